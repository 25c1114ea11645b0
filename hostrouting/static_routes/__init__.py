"""The routes that a node must have, now and at every boot.

task.py         ConfigureStaticRoutes: install for the boot, apply, wait while a cause may still pass
converge.py     bring the kernel's routes to the wanted ones while other programs change the same places; the journal
account.py      the words for changed routes: forecast, records with their inverse, the reason of a refusal
resolve.py      a config and the default routes -> routes, and the missing ones with the reason; pure
reconcile.py    desired and observed routes -> ordered changes; pure
script.py       the boot script and its unit (assets/), which do the same with only bash and ip
"""

from __future__ import annotations

from hostrouting.static_routes.reconcile import Reconciliation, reconcile
from hostrouting.static_routes.resolve import Resolution, resolve
from hostrouting.static_routes.script import render_script
from hostrouting.static_routes.task import WAIT_SECONDS, ConfigureStaticRoutes

__all__ = [
    "WAIT_SECONDS",
    "ConfigureStaticRoutes",
    "Reconciliation",
    "Resolution",
    "reconcile",
    "render_script",
    "resolve",
]
