"""The routes that a node must have, now and at every boot.

reconcile.py    config and default routes -> wanted routes -> ordered changes; pure
plan.py         plan the routes of a node from one snapshot
converge.py     carry out a plan, all or nothing; repair routes for the boot and the watch
undo.py         the route changes that were made, and how to undo them
refusals.py     why the kernel refuses a change, predicted or explained
entries.py      a plan as entries of a report and as findings of `check`
forecast.py     compare the check before, with and after planned changes
lost_hops.py    addresses that changes would move away from their gateway
script.py       the boot unit and its script (assets/), which also works without Python
at_boot.py      one repair without waiting, at boot and before a gated unit starts
"""
