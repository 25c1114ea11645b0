"""The routes that a node must have, now and at every boot.

task.py         ConfigureStaticRoutes: install for the boot, apply, wait while a cause may still pass
converge.py     bring the kernel's routes to the wanted ones while others change the same places; repairs of Watch
account.py      the words for changed routes: forecast, records with their inverse, the reason of a refusal
reconcile.py    a config and the default routes -> routes; desired and observed routes -> ordered changes; pure
script.py       the boot script and its unit (assets/), which do the same with only bash and ip
"""

from __future__ import annotations

from hostrouting.static_routes.account import forecast
from hostrouting.static_routes.reconcile import reconcile, resolve
from hostrouting.static_routes.script import render_script
from hostrouting.static_routes.task import ConfigureStaticRoutes

__all__ = [
    "ConfigureStaticRoutes",
    "forecast",
    "reconcile",
    "render_script",
    "resolve",
]
