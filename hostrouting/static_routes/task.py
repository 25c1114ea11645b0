"""ConfigureStaticRoutes: look up, reconcile, apply in one batch, install the boot files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hostrouting.base.findings import REFUSED
from hostrouting.boot.deployment import WAITING, deploying
from hostrouting.boot.intent import exits_under, installed_over
from hostrouting.boot.layout import RUNTIME_DIRECTORY
from hostrouting.boot.task import PairTask
from hostrouting.exceptions import (
    BackendError,
    ConfigMistake,
    InvalidConfigError,
    LinkNotFoundError,
)
from hostrouting.net.addresses import IPV6
from hostrouting.net.routes import OUR_PROTOCOL, is_merged
from hostrouting.static_routes.plan import RoutePlan
from hostrouting.static_routes.refusals import (
    giver,
    no_way,
    own_gateways,
    why_merged,
    with_routes,
)
from hostrouting.static_routes.script import RUN_FILES, boot_part
from phases import Change, Context

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    from hostrouting.boot.deployment import Waiting
    from hostrouting.boot.intent import Part
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.net.exits import Exits
    from hostrouting.static_routes.reconcile import Resolution


class ConfigureStaticRoutes(PairTask):
    """Configure the static routes of a config, now and at every boot.

    Without routes, those of earlier runs are removed. Routes change all together or not at all,
    under the run lock. On a node without hostrouting the boot files come first and stay: if the
    routes fail, the machine must not start at the next boot either. Over an installed config the
    routes come first; if any part fails, everything is undone.

    Under STRICT, changes that make an expected address leave wrong are refused, or undone, unless
    `force` is set; under WARN they are logged, and the step is degraded, with the planned
    `OverlapReport` as its result. Expected are the CIDRs of the config, and those of the config
    that was installed when the outermost run began, under its own mode, as far as this one does not
    prove them. An undo is never refused.
    """

    name = "configure-static-routes"
    section = "static_routes"
    _boot_part = staticmethod(boot_part)
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
        from hostrouting.apply.story import Selection, Story

        with deploying(ctx, self._host, self._boot, self._logger) as run:
            wanted = Selection(
                self._config,
                self,
                lambda _: self._parts,
                run.config_over(self._config),
                is_judged=not self._force,
            )
            story = Story(wanted, self._host, self._boot, self._logger, run)
            self.refuse_own_gateways()
            story.decide()
            story.decide_files()
            story.carry_out(story.install, story.settle, story.prove)

    def plan(self, ctx: Context) -> list[Change]:
        """Return the changes that `do` would make, and its refusal; do not wait."""
        if self._force or not self._host.is_live:
            return super().plan(ctx)
        from hostrouting.static_routes.forecast import Forecaster

        earlier = installed_over(self._host.files, self._config)
        forecaster = Forecaster(ctx, self._config, self._host, earlier=earlier)
        if not forecaster.expects:
            return super().plan(ctx)
        self.refuse_own_gateways()
        routes, forecast = forecaster.plan(self.plan_routes)
        changes = [each.entry for each in routes.entries] if routes is not None else []
        changes += self._boot.plan_install(ctx, *self._parts)
        if forecast.is_refused:
            refusal = f"{REFUSED}: worse than now: {'; '.join(map(str, forecast.worse))}"
            changes.append(Change("~", self.name, refusal, REFUSED))
        return changes

    def refuse_own_gateways(self) -> None:
        """Raise InvalidConfigError for gateways of the node itself, which the kernel accepts."""
        links = self._host.routes.links() if self._host.is_live else ()
        own = {str(address): reason for address, reason in own_gateways(links).items()}
        mistakes = [
            ConfigMistake(
                f"hostRouting.staticRoutes.routes[{index}].gateway",
                f"{route.gateway!r} {own[route.gateway]}",
            )
            for index, route in enumerate(self._config.static_routes.routes)
            if route.gateway in own
        ]
        if mistakes:
            raise InvalidConfigError(mistakes)

    @property
    def _parts(self) -> tuple[Part, ...]:
        return boot_part(self._config, (*self._exits.items(),)), self._intent

    # --- the live half

    def act(self, ctx: Context, waiting: Waiting = WAITING) -> None:
        """Change the routes of a live machine; wait for DHCP."""
        from hostrouting.apply.story import Selection, Story

        ctx.check()
        with deploying(ctx, self._host, self._boot, self._logger) as run:
            wanted = Selection(self._config, self, lambda _: (), is_judged=False)
            story = Story(wanted, self._host, self._boot, self._logger, run)
            story.decide()
            story.settle(ctx)
            run.open_gates()

    def clean_up(self) -> None:
        """Remove the files of a boot script that is gone; raise for routes that cannot be."""
        for path in RUN_FILES:
            self._host.files.remove(path)
        self._host.files.remove_directory_if_empty(RUNTIME_DIRECTORY)
        if IPV6 in self._host.routes.families:
            own = self._host.routes.routes_of(OUR_PROTOCOL, IPV6)
            if left := [why_merged(route) for route in own if is_merged(route)]:
                raise BackendError("; ".join(left))

    def plan_act(self, ctx: Context) -> list[Change]:
        """Return the changes that `act` would make now."""
        ctx.check()
        self.refuse_own_gateways()
        if not self._host.is_live:
            return []
        return [each.entry for each in self.plan_routes().entries]

    def plan_routes(self, node: Host | None = None) -> RoutePlan:
        """Return the changes of the routes that `act` would make, by one reading.

        `node` is the host, or a reading of it (see `at_one_moment`).
        """
        routing = (node or self._host).routes
        return RoutePlan(self._config.static_routes, routing, self._exits)

    @property
    def _exits(self) -> Exits:
        return exits_under(self._config, self._host.files)

    def refuse_incomplete(self, resolution: Resolution, seconds: float) -> None:
        """Raise if a route lacks a value that only a default route has."""
        if not resolution.missing:
            return
        links = self._host.routes.links()
        devices = {link.name: link for link in links}
        for route, _ in resolution.missing:
            # Neither a device that does not exist nor the loopback device gets a default route.
            if fact := no_way(route, devices):
                text = f"{fact}. No route was changed"
                if route.dev is None or route.dev in devices:
                    raise BackendError(f"{text}; correct the 'dev' of: {route}")
                error = LinkNotFoundError(text, dev=route.dev)
                raise with_routes(error, self._config.static_routes.routes)
        routes = [route for route, _ in resolution.missing]
        givers = " and ".join(
            giver(family, self._exits, links)
            for family in sorted({route.family for route in routes})
        )
        incomplete = BackendError(
            f"static routes cannot be completed: {resolution.reasons}, not even after "
            f"{round(seconds, 1):g} s. No route was changed. Give the node one ({givers}), or "
            f"give 'dev' and 'gateway' of: {', '.join(map(str, routes))}",
            retryable=True,
        )
        incomplete.may_heal = True
        raise incomplete
