"""ConfigureStaticRoutes: look up, reconcile, apply in one transaction, persist for every boot."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from hostrouting.addresses import parse_cidr
from hostrouting.boot import RUNTIME_DIRECTORY, Boot
from hostrouting.exceptions import BackendError, HostFileError, LinkNotFoundError, Refusal, RouteRejectedError
from hostrouting.host import Host
from hostrouting.host.routes import MAIN_TABLE
from hostrouting.static_routes.displaced import read_records, write_records
from hostrouting.static_routes.reconcile import GivenUp, Reconciliation, place, reconcile
from hostrouting.static_routes.resolve import resolve
from hostrouting.static_routes.script import PATHS, RUN_FILES, UNIT_NAME, boot_unit
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.config import HostRoutingConfig, StaticRoute
    from hostrouting.host import ObservedRoute, Route, RouteChange
    from hostrouting.static_routes.reconcile import Place
    from hostrouting.static_routes.resolve import Resolution
    from phases import Context

__all__ = ["ConfigureStaticRoutes"]

#: In all, for DHCP; the gate's own start timeout has to hold this and more.
_WAIT_SECONDS: Final = 30


class ConfigureStaticRoutes:
    """Bring the static routes of a config about, now and at every boot; without any, take ours away.

    The caller holds the run lock. Routes change all together or not at all; files and unit follow only when they did.
    """

    name = "configure-static-routes"

    def __init__(
        self, config: HostRoutingConfig, *, host: Host | None = None, logger: logging.Logger | None = None
    ) -> None:
        self._config = config
        self._host = host or Host.live()
        self._resolution: Resolution | None = None
        self._logger = logger or logging.getLogger(__name__)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._config.static_routes.routes)} routes>"

    def do(self, ctx: Context) -> None:
        """Bring the routes about and persist them."""
        if not self._config.static_routes.routes:
            self.undo(ctx)
            return
        ctx.check()
        unit = boot_unit(self._config)
        if self._host.is_live:
            # A gate that is refused is refused before any route is changed.
            self._boot.plan_install(ctx, unit)
            self._converge(self._resolved(ctx))
        self._boot.install(ctx, unit)

    def plan(self, ctx: Context) -> list[Change]:
        """What `do` would change now: routes, then files; nothing is waited for."""
        ctx.check()
        routes = self._config.static_routes.routes
        changes = self._route_changes(routes) if self._host.is_live else []
        if routes:
            return changes + self._boot.plan_install(ctx, boot_unit(self._config))
        # As `undo` goes about it.
        return self._boot.plan_remove(ctx, UNIT_NAME, PATHS) + changes

    def undo(self, ctx: Context) -> None:
        """Take away unit, script and our routes, and put back what they displaced."""
        ctx.check()
        # The unit first: a machine that starts meanwhile would have it bring the routes back.
        self._boot.remove(ctx, UNIT_NAME, PATHS)
        if self._host.is_live:
            self._converge(())
        removed = [self._host.files.remove(path) for path in RUN_FILES]
        if any(removed):
            self._host.files.remove_directory_if_empty(RUNTIME_DIRECTORY)

    @property
    def _boot(self) -> Boot:
        return Boot(self._host, gates=self._config.gates, logger=self._logger)

    # --- looking up

    def _resolved(self, ctx: Context) -> tuple[Route, ...]:
        """The routes, complete; waits for the default route that they need."""
        until = ctx.clock.monotonic() + _WAIT_SECONDS
        told = False
        while True:
            resolution = self._complete or resolve(self._config.static_routes.routes, self._defaults())
            if not resolution.missing:
                break
            if ctx.clock.monotonic() >= until:
                raise BackendError(
                    f"static routes cannot be completed: {resolution.reasons}, also not after {_WAIT_SECONDS} s. "
                    f"Nothing was changed. See why DHCP or the network's configuration brings none, or give 'dev' and "
                    f"'gateway' of: {', '.join(str(route) for route, _ in resolution.missing)}"
                )
            if not told:
                self._logger.info("waiting up to %d s: %s", _WAIT_SECONDS, resolution.reasons)
                told = True
            ctx.sleep(1)
        for words in resolution.looked_up:
            self._logger.info("the default route gives %s", words)
        return resolution.routes

    @property
    def _complete(self) -> Resolution | None:
        """The routes, if all name device and gateway: then there is nothing to look up, now or later."""
        routes = self._config.static_routes.routes
        if self._resolution is None and all(route.dev and route.gateway for route in routes):
            self._resolution = resolve(routes, ())
        return self._resolution

    def _defaults(self) -> list[ObservedRoute]:
        return [r for r in self._host.routes.routes() if not r.prefix_length and r.table == MAIN_TABLE]

    # --- changing routes

    def _converge(self, desired: Sequence[Route]) -> None:
        """Make the routes that carry our mark exactly these, and put back what has no more reason to be displaced."""
        files = self._host.files
        recorded = read_records(files)
        records, lost = self._restorable(recorded)
        observed = self._host.routes.routes()
        outcome = reconcile(desired, observed, displaced=records)
        while True:
            # Before anything is displaced: a run that is killed in between can be undone all the same.
            write_records(files, list({place(route): route for route in (*recorded, *outcome.records)}.values()))
            self._tell(outcome)
            try:
                self._host.routes.apply(outcome.changes)
            except RouteRejectedError as error:
                refused = _refused_to_come_back(outcome, error)
                if not refused:
                    self._restore_records(recorded)
                    raise _explained(error, outcome) from error
                # What others had must not hold up what is ours: without it, then.
                lost += refused
                records = [record for record in records if record not in [given_up.route for given_up in refused]]
                outcome = reconcile(desired, observed, displaced=records)
            except LinkNotFoundError as error:
                self._restore_records(recorded)
                raise _with_routes(error, desired) from error
            except BackendError:
                self._restore_records(recorded)
                raise
            else:
                break
        self._logger.info("%d routes changed", len(outcome.changes), extra={"changed": len(outcome.changes)})
        for route, reason in (*lost, *outcome.given_up):
            self._logger.warning("route '%s', which we had displaced, is not put back: %s", route, reason)
        write_records(files, outcome.records)

    def _restorable(self, records: Iterable[ObservedRoute]) -> tuple[list[ObservedRoute], list[GivenUp]]:
        """Of displaced routes those that can come back, and those whose device has gone."""
        kept: list[ObservedRoute] = []
        lost: list[GivenUp] = []
        devices: set[str] | None = None
        for record in records:
            if devices is None:
                devices = {link.name for link in self._host.routes.links()}
            gone = sorted({*record.devs} - devices)
            if gone:
                lost.append(GivenUp(record, f"there is no device {', '.join(gone)} any more"))
            else:
                kept.append(record)
        return kept, lost

    def _restore_records(self, recorded: Sequence[ObservedRoute]) -> None:
        """Nothing was displaced after all."""
        try:
            write_records(self._host.files, recorded)
        except HostFileError as error:
            # The next run finds those routes in their places; and what went wrong first matters more.
            self._logger.warning("%s", error)

    def _tell(self, outcome: Reconciliation) -> None:
        for change, route in outcome.displaced.items():
            self._logger.warning(
                "route '%s' of somebody else is displaced by '%s'; it comes back when ours goes",
                route,
                change.after,
                extra={"displaced": str(route), "route": str(change.after)},
            )
        if self._logger.isEnabledFor(logging.DEBUG):
            for change in outcome.changes:
                self._logger.debug("%s", change)

    # --- planning

    def _route_changes(self, routes: Sequence[StaticRoute]) -> list[Change]:
        observed = self._host.routes.routes()
        resolution = (self._complete if routes else None) or resolve(routes, observed)
        records, _ = self._restorable(read_records(self._host.files))
        undecided = {_place_of(route) for route, _ in resolution.missing}
        outcome = reconcile(resolution.routes, observed, displaced=records, undecided=undecided)
        waiting = [
            Change("+", str(route), f"looked up when a default route is there: {reason}")
            for route, reason in resolution.missing
        ]
        return waiting + [_shown(change, outcome) for change in outcome.changes]


def _place_of(route: StaticRoute) -> Place:
    network, prefix_length = parse_cidr(route.destination)
    return MAIN_TABLE, network, prefix_length, 0, route.metric


def _shown(change: RouteChange, outcome: Reconciliation) -> Change:
    before, after = change.before, change.after
    if before is None and not outcome.in_the_way and not outcome.put_back:
        return Change("+", str(after))  # what most are
    if change in outcome.in_the_way:
        return Change("+", str(after), f"will be refused: {_never_overwritten(outcome.in_the_way[change])}")
    if after is None:
        return Change("-", str(before))
    comes_back = change in outcome.put_back
    if before is None:
        return Change("+", str(after), "put back" if comes_back else None)
    if change in outcome.displaced:
        return Change("~", str(after), f"displaces '{before}', which comes back when ours goes")
    if change in outcome.adopted:
        return Change("~", str(after), f"adopts '{before}'")
    return Change("~", str(after), f"{'put back, ' if comes_back else ''}was '{before}'")


def _never_overwritten(own: ObservedRoute) -> str:
    return (
        f"the kernel's own route '{own}' has this destination and metric, and is never overwritten; "
        f"configure narrower destinations, or another metric"
    )


def _explained(error: RouteRejectedError, outcome: Reconciliation) -> RouteRejectedError:
    """The same error; where it is a route of the kernel's own that is in the way, it says so."""
    reasons = {str(change): _never_overwritten(own) for change, own in outcome.in_the_way.items()}
    refusals = [
        Refusal(refusal.change, refusal.errno, reasons.get(refusal.change, refusal.reason))
        for refusal in error.refusals
    ]
    return RouteRejectedError(refusals, rolled_back=error.rolled_back, left_behind=error.left_behind)


def _with_routes(error: LinkNotFoundError, routes: Iterable[Route]) -> LinkNotFoundError:
    """The same error; it says whose device is missing."""
    of_device = [f"\n  {route}" for route in routes if route.dev == error.dev]
    step = f"; correct the 'dev' of:{''.join(of_device)}" if of_device else ""
    return LinkNotFoundError(f"{error}{step}", dev=error.dev, errno=error.errno)


def _refused_to_come_back(outcome: Reconciliation, error: RouteRejectedError) -> list[GivenUp]:
    """The displaced routes that the kernel does not take back, if these are all that it refused."""
    coming_back = {str(change): record for change, record in outcome.put_back.items()}
    if not error.rolled_back or any(refusal.change not in coming_back for refusal in error.refusals):
        return []
    return [GivenUp(coming_back[refusal.change], refusal.reason) for refusal in error.refusals]
