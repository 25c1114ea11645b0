"""The routes that a node must have, now and at every boot.

task.py         ConfigureStaticRoutes: apply, wait while that may help, install for the boot
converge.py     make the wanted routes those of the kernel, all or none; repairs of Watch
account.py      changes as text: forecast, records with their inverse, reasons of refusals
forecast.py     the proofs before, of and after changes of routes, compared
reconcile.py    a config and default routes -> wanted routes -> ordered changes; pure
script.py       the boot script and its unit (assets/), which do what is plain with bash and ip
at_boot.py      what is not plain, for the boot script: one repair without a wait
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.base.late import on_first_use
from hostrouting.static_routes.account import RouteAccount
from hostrouting.static_routes.reconcile import reconcile, resolve
from hostrouting.static_routes.script import render_script

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.static_routes.task import ConfigureStaticRoutes

__all__ = ["ConfigureStaticRoutes", "RouteAccount", "reconcile", "render_script", "resolve"]

# The program of a boot needs no task.
__getattr__: Callable[[str], object] = on_first_use(__name__, {"task": ("ConfigureStaticRoutes",)})
