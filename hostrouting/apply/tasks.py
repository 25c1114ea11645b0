"""The tasks of the Go package, each of which does a part of an apply."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hostrouting.apply.carry_out import Apply
from hostrouting.apply.check import AddressCheck
from hostrouting.apply.plan import Wanted, decide
from hostrouting.apply.run import CHECK, ROUTES, locked
from hostrouting.base.findings import REFUSED
from hostrouting.boot.installed_config import installed_over, refuse_local_over
from hostrouting.boot.task import NOT_CONFIGURED, SectionTask
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.host import Host
from hostrouting.route_overlap import script as check_script
from hostrouting.route_overlap.logs import log_dropped
from hostrouting.static_routes import script as routes_script
from hostrouting.static_routes.refusals import refuse_own_gateways
from phases import Change, Context

if TYPE_CHECKING:
    from hostrouting.boot.installed_config import BootPart


class ConfigureStaticRoutes(SectionTask):
    """Configure the static routes of a config, now and at every boot.

    If the config has no routes, those of earlier runs are removed. All routes change together or
    not at all, under the run lock. On a node without hostrouting, the boot files come first and
    stay, because a machine whose routes fail must not start at the next boot either. Over an
    installed config, the routes come first; if anything fails, everything is undone.

    In STRICT mode, changes that would misroute an expected address are refused, or undone, unless
    `force` is true; in WARN mode, they are logged and the step is degraded. Expected are the CIDRs
    of the config, and those that only the config in force checks, in that config's mode. An undo is
    never refused.
    """

    name = ROUTES
    section = "static_routes"
    _undo_options: ClassVar[Mapping[str, Any]] = {"force": True}

    def __init__(
        self,
        config: HostRoutingConfig,
        *,
        host: Host | None = None,
        logger: logging.Logger | None = None,
        force: bool = False,
    ) -> None:
        super().__init__(config, host=host, logger=logger)
        self._force = force

    def do(self, ctx: Context) -> None:
        """Change the routes, and install the boot files that restore them at every boot."""
        with locked(ctx, self._host, self._boot, self._logger) as run:
            refuse_own_gateways(self._config, self._host)
            apply = Apply(run, self._wanted(run.config_over(self._config)))
            apply.carry_out(apply.decide())
        if not self._config.static_routes.routes:
            ctx.skip(NOT_CONFIGURED)

    def plan(self, ctx: Context) -> list[Change]:
        """Return the changes that `do` would make, and why it would refuse them; do not wait."""
        refuse_own_gateways(self._config, self._host)
        earlier = installed_over(self._host.files, self._config)
        plan = decide(ctx, self._wanted(earlier), self._host)
        changes = [*plan.entries, *self._plan_files(ctx, self._parts, force=self._force)]
        if plan.forecast.is_refused:
            refusal = f"{REFUSED}: worse than now: {'; '.join(map(str, plan.forecast.worse))}"
            changes.append(Change("~", self.name, refusal, REFUSED))
        return changes

    def _wanted(self, earlier: HostRoutingConfig | None) -> Wanted:
        return Wanted(self._config, lambda _: self._parts, earlier, is_checked=not self._force)

    @property
    def _parts(self) -> tuple[BootPart, ...]:
        return self._installed(routes_script.boot_part(self._on_node))


class CheckRouteOverlap(SectionTask):
    """Check that every expected CIDR leaves through the node's own devices, now and at every boot.

    The boot files are installed first, because a node that fails now must not start its machine at
    the next boot.

    In WARN mode, each finding is logged and the step is degraded; in STRICT mode, it raises
    `RouteOverlapError`, and the gates stay closed. The result of the step is the `OverlapReport`:
    see `Report.find`.

    If addresses that the config in force expects are no longer checked, they are logged and the
    step is degraded.
    """

    name = CHECK
    section = "route_overlap"

    @property
    def checks(self) -> bool:
        """True if a run that skips it is degraded."""
        return bool(self._config.route_overlap.cidrs)

    def do(self, ctx: Context) -> None:
        """Install the boot files, check the addresses and write the marker."""
        wanted = Wanted(self._config, lambda _: self._parts, has_routes=False, is_checked=False)
        with locked(ctx, self._host, self._boot, self._logger) as run:
            apply = Apply(run, wanted)
            plan = apply.decide()
            earlier = run.config_over(self._config)
            refuse_local_over(earlier, self._config)
            log_dropped(run.ctx, earlier, self._config, self._logger)
            apply.carry_out(plan)
            self._check.do(run.ctx)

    def plan(self, ctx: Context) -> list[Change]:
        """Return the changes that `do` would make, and the addresses that it would drop."""
        files = self._plan_files(ctx, self._parts)
        return [*self._check.plan(ctx), *files, *self._check.plan_dropped()]

    @property
    def _check(self) -> AddressCheck:
        return AddressCheck(self._config, self._host, self._boot, self._logger)

    @property
    def _parts(self) -> tuple[BootPart, ...]:
        return self._installed(check_script.boot_part(self._config))
