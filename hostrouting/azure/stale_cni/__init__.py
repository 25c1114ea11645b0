"""The cleanup: removes ebtables rules and neighbours that a removed CNI (azure-vnet) left behind.

capability.py   the feature as an entry in the list of capabilities
azure_vnet.py   reads azure-vnet's configuration, locks and records
leftovers.py    judges each rule and neighbour in a snapshot; pure
node.py         takes a snapshot of the machine and judges it
backup.py       the backup before a removal; commands that restore entries
task.py         CleanStaleCNI: read twice, write the backup, remove
swept.py        `hostrouting sweep`
reconciler.py   the same for the watch
"""
