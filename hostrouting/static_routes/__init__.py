"""The routes that a node must have, now and at every boot.

task.py         ConfigureStaticRoutes: look up, apply, wait for what may heal, persist
live.py         the running kernel's side: converge, plan, and why a route is refused
converge.py     the kernel's routes become those that are wanted, beside programs that change the same places
resolve.py      a config and the default routes -> routes, and what cannot be looked up yet; pure
reconcile.py    desired and observed routes -> ordered changes; pure
displaced.py    routes of others that we took the place of, kept under /run until they are put back
script.py       the boot script and its unit (assets/), which do the same with bash and ip alone
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
