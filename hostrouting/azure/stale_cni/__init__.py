"""The sweep: removes ebtables rules, neighbours and routes that a removed CNI (azure-vnet) left.

capability.py   the sweep in the list of a node
azure_vnet.py   azure-vnet's configuration, locks and state; only read
leftovers.py    a snapshot -> the objects that azure-vnet may have left; recorded objects compared
verdicts.py     a snapshot -> a verdict on each object; the agreement of several readings
node.py         the machine -> a snapshot, judged; objects removed and restored, sort by sort
task.py         CleanStaleCNI: read, confirm, record, remove and read again; restore
swept.py        `hostrouting sweep`
"""
