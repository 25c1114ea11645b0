"""The routing pair as tasks of their own: each does a part of an apply."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hostrouting.apply.carry_out import Apply
from hostrouting.apply.plan import Wanted, decide
from hostrouting.apply.proof import Proof
from hostrouting.apply.run import CHECK, ROUTES, locked
from hostrouting.base.findings import REFUSED
from hostrouting.boot.intent import installed_over, refuse_local_over
from hostrouting.boot.task import NOT_CONFIGURED, SectionTask
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.host import Host
from hostrouting.route_overlap import script as check_script
from hostrouting.route_overlap.logged import log_dropped
from hostrouting.static_routes import script as routes_script
from hostrouting.static_routes.refusals import refuse_own_gateways
from phases import Change, Context

if TYPE_CHECKING:
    from hostrouting.boot.intent import Part


class ConfigureStaticRoutes(SectionTask):
    """Configure the static routes of a config, now and at every boot.

    Without routes, those of earlier runs are removed. Routes change all together or not at all,
    under the run lock. On a node without hostrouting the boot files come first and stay: if the
    routes fail, the machine must not start at the next boot either. Over an installed config the
    routes come first; if any part fails, everything is undone.

    Under STRICT, changes that make an expected address leave wrong are refused, or undone, unless
    `force` is set; under WARN they are logged, and the step is degraded. Expected are the CIDRs of
    the config, and those of the config that was installed when the outermost run began, under its
    own mode, as far as this one does not prove them. An undo is never refused.
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
        """Change the live routes, and install the boot files that do so at every boot."""
        with locked(ctx, self._host, self._boot, self._logger) as run:
            refuse_own_gateways(self._config, self._host)
            apply = Apply(run, self._wanted(run.config_over(self._config)))
            apply.carry_out(apply.decide())
        if not self._config.static_routes.routes:
            ctx.skip(NOT_CONFIGURED)

    def plan(self, ctx: Context) -> list[Change]:
        """Return the changes that `do` would make, and its refusal; do not wait."""
        refuse_own_gateways(self._config, self._host)
        earlier = installed_over(self._host.files, self._config)
        plan = decide(ctx, self._wanted(earlier), self._host)
        changes = [*plan.entries, *self._plan_files(ctx, self._parts, force=self._force)]
        if plan.forecast.is_refused:
            refusal = f"{REFUSED}: worse than now: {'; '.join(map(str, plan.forecast.worse))}"
            changes.append(Change("~", self.name, refusal, REFUSED))
        return changes

    def _wanted(self, earlier: HostRoutingConfig | None) -> Wanted:
        return Wanted(self._config, lambda _: self._parts, earlier, is_proven=not self._force)

    @property
    def _parts(self) -> tuple[Part, ...]:
        return self._installed(routes_script.boot_part(self._on_node))


class CheckRouteOverlap(SectionTask):
    """Check that every expected CIDR leaves by the node's own devices, now and at every boot.

    The installation comes first: a node that fails now must not start its machine at the next boot.

    In mode WARN it logs each finding and is degraded; in mode STRICT it raises RouteOverlapError,
    and the gates stay closed. The `OverlapReport` is the result of its step, see `Report.find`.

    If it drops addresses that the config installed when the outermost run began expects, it logs
    them and is degraded.
    """

    name = CHECK
    section = "route_overlap"

    @property
    def proves(self) -> bool:
        """True if a run that skips it is degraded."""
        return bool(self._config.route_overlap.cidrs)

    def do(self, ctx: Context) -> None:
        """Install boot files, prove the routing and write the marker."""
        wanted = Wanted(self._config, lambda _: self._parts, has_routes=False, is_proven=False)
        with locked(ctx, self._host, self._boot, self._logger) as run:
            apply = Apply(run, wanted)
            plan = apply.decide()
            earlier = run.config_over(self._config)
            refuse_local_over(earlier, self._config)
            log_dropped(run.ctx, earlier, self._config, self._logger)
            apply.carry_out(plan)
            self._proof.do(run.ctx)

    def plan(self, ctx: Context) -> list[Change]:
        """Return the changes that `do` would make now, and the addresses that it would drop."""
        files = self._plan_files(ctx, self._parts)
        return [*self._proof.plan(ctx), *files, *self._proof.plan_dropped()]

    @property
    def _proof(self) -> Proof:
        return Proof(self._config, self._host, self._boot, self._logger)

    @property
    def _parts(self) -> tuple[Part, ...]:
        return self._installed(check_script.boot_part(self._config))
