"""The routes that a node must have, now and at every boot.

plan.py         the plan of the routes by one reading: changes, refusals, findings of `check`
converge.py     make the planned routes those of the kernel, all or none; repairs of Watch
account.py      the changes that were made, with their inverse
refusals.py     why the kernel refuses a change, foreseen or explained
forecast.py     the proofs before, of and after changes of routes, compared
reconcile.py    a config and default routes -> wanted routes -> ordered changes; pure
script.py       the unit of a boot and its script (assets/), which can do without Python
at_boot.py      one repair without a wait, at a boot and before a gated unit starts
"""
