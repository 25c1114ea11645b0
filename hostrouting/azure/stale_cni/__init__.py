"""The cleanup: removes ebtables rules and neighbours that a removed CNI (azure-vnet) left.

capability.py   the cleanup in the list of a node
azure_vnet.py   azure-vnet's configuration, locks and records; only read
leftovers.py    a snapshot -> a verdict on each rule and neighbour; pure
node.py         the machine -> a snapshot, judged
backup.py       what is written before a removal; the command that adds an entry again
task.py         CleanStaleCNI: read twice, write the backup, remove
swept.py        `hostrouting sweep`
reconciler.py   the same for a watch
"""
