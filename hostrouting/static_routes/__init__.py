"""The routes that a node must have, now and at every boot.

task.py         ConfigureStaticRoutes: install for the boot, apply, wait while a cause may still pass
live.py         the live kernel: apply, plan, and the reason why a route is refused
converge.py     bring the kernel's routes to the wanted ones while other programs change the same places
account.py      records of changed routes, with their inverse
resolve.py      a config and the default routes -> routes, and the missing ones with the reason; pure
reconcile.py    desired and observed routes -> ordered changes; pure
displaced.py    foreign routes that ours displaced, recorded under /run until they are restored
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
