"""Make the wanted routes those of the kernel, all or none, though other programs change them, too.

For `Watch` and at a boot, repair the static routes of a config as far as the node allows now. Such
a repair never waits, and a route that the kernel refuses does not prevent the rest.
`ConfigureStaticRoutes` is all or nothing instead: its caller gets the error.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import attrs

from hostrouting.base.conflicts import ConflictError, until_settled
from hostrouting.base.errors import BackendError, LinkNotFoundError
from hostrouting.net.addresses import IPV6
from hostrouting.net.rejected import Refusal, RouteRejectedError
from hostrouting.net.routes import Place, default_routes, place
from hostrouting.static_routes.account import between, described, inverse
from hostrouting.static_routes.reconcile import Reconciliation, Routes, read, reconcile, resolve
from hostrouting.static_routes.refusals import all_in_the_way, explain, why_merged, with_routes

if TYPE_CHECKING:
    import logging
    from collections.abc import Collection, Container, Mapping, Sequence

    from hostrouting.config.sections import StaticRoute
    from hostrouting.host import Host, Route
    from phases import Context

#: Refusals that another program's change may cause.
_CONFLICTS = frozenset({errno.EEXIST, errno.ESRCH, errno.ENOENT})


def converge(
    ctx: Context,
    desired: Sequence[Route],
    host: Host,
    logger: logging.Logger,
    *,
    undecided: Container[Place] = (),
    observed: Routes | None = None,
) -> Reconciliation:
    """Make these the routes of hostrouting, record the changes, and return what was done.

    Routes in `undecided` places stay as they are. `observed` is a reading of this moment. Nothing
    is read back: the caller reads the routes again after each of their events.
    """

    def decide() -> Reconciliation:
        return reconcile(desired, read(host.routes, desired), undecided=undecided)

    def make(outcome: Reconciliation, is_last: bool) -> None:
        make_changes(ctx, outcome, host, logger, is_last=is_last, verify=False)

    first = decide() if observed is None else reconcile(desired, observed, undecided=undecided)
    return until_settled(first, decide, make)


def make_changes(
    ctx: Context,
    outcome: Reconciliation,
    host: Host,
    logger: logging.Logger,
    *,
    is_last: bool,
    verify: bool = True,
) -> None:
    """Make exactly these changes, and record them, or what a failure has left of them.

    If the kernel refuses one since another program was faster, that is a `ConflictError`, and for
    the last try an error.
    """
    try:
        _send(host, outcome, is_last=is_last, verify=verify)
    except BaseException as error:
        routes = [change.route for change in outcome.changes]
        is_whole = isinstance(error, ConflictError) or getattr(error, "rolled_back", False)
        if not is_whole:
            # After an interrupt only another reading shows which routes there are.
            with suppress(BackendError):
                made = between(outcome.observed, read(host.routes, routes))
                _record(ctx, made, host, logger)
        if isinstance(error, LinkNotFoundError):
            raise with_routes(error, routes) from error
        raise
    _record(ctx, outcome, host, logger)


def _send(host: Host, outcome: Reconciliation, *, is_last: bool, verify: bool = True) -> None:
    in_the_way = all_in_the_way(outcome)
    # The kernel would accept an IPv6 route that another one hides.
    if any(route.family == IPV6 for route in outcome.in_the_way.values()):
        refusals = [Refusal(change, errno.EEXIST, why) for change, why in in_the_way.items()]
        raise RouteRejectedError(refusals, rolled_back=True)
    try:
        if outcome.changes:
            host.routes.apply(outcome.changes, verify=verify)
    except RouteRejectedError as error:
        # A retry helps only if just another program's changes caused the refusal.
        if not error.rolled_back or any(
            refusal.errno not in _CONFLICTS or refusal.change in in_the_way
            for refusal in error.refusals
        ):
            explain(error, outcome, host.routes)
            raise
        if not is_last:
            raise ConflictError(str(error)) from error
        text = "another program changes this place all the time; the last time"
        error.refusals = [
            attrs.evolve(refusal, reason=f"{text}: {refusal.reason}") for refusal in error.refusals
        ]
        raise


def log_consequences(outcome: Reconciliation, logger: logging.Logger) -> None:
    """Log the foreign routes that changes hide, and the routes that could not be removed."""
    for route, foreign in outcome.hidden.items():
        for hidden in foreign:
            text = "foreign route '%s' is hidden by '%s'; it decides again when ours is removed"
            extra = {"hidden": str(hidden), "route": str(route)}
            logger.warning(text, hidden, route, extra=extra)
    for merged in outcome.merged:
        logger.warning("not removed: %s", why_merged(merged), extra={"route": str(merged)})


def _record(ctx: Context, made: Reconciliation, host: Host, logger: logging.Logger) -> None:
    """Record changes that were made, with one inverse for all of them."""

    def undo(ctx: Context) -> bool:
        with host.lock.hold(ctx):
            routes = [change.route for change in made.changes]

            def decide() -> tuple[Reconciliation, Sequence[str]]:
                observed = read(host.routes, routes)
                changes, notes = inverse(made, observed)
                return Reconciliation(changes=changes, observed=observed), notes

            def send(decided: tuple[Reconciliation, object], is_last: bool) -> None:
                _send(host, decided[0], is_last=is_last)

            _, notes = until_settled(decide(), decide, send)
            for note in notes:
                logger.warning("%s", note)
            return not notes

    for change in made.changes:
        ctx.record(described(change, made.hidden), undo=undo)


class Waiting(NamedTuple):
    """A route that cannot be in force now: as the config has it, or completed, and the reason."""

    route: StaticRoute | Route
    reason: str


class Repair(NamedTuple):
    """The outcome of a repair."""

    #: The routes of the config that have a device and a gateway, by their place.
    wanted: Mapping[Place, Route] = {}
    #: The routes that cannot be in force now, by their place.
    waiting: Mapping[Place, Waiting] = {}
    #: The devices by which these routes leave, or that may change which these are.
    devices: frozenset[str | None] = frozenset()
    #: True if a lease, a device, an address or a carrier may end a wait.
    may_heal: bool = False
    #: What was done, and its consequences. A watch leaves these to its log of changes.
    outcome: Reconciliation | None = None


def repair(
    ctx: Context,
    routes: Sequence[StaticRoute],
    observed: Routes,
    host: Host,
    logger: logging.Logger,
    *,
    devs: Collection[str] = (),
    leave: Collection[Place] = (),
) -> Repair:
    """Make the routes of a config those of hostrouting, except in the places `leave`.

    Call it under the run lock, with a reading of all routes. A route that lacks a default route, a
    device or an address waits: its place stays as it is, too.
    """
    resolution = resolve(routes, observed, devs, host.routes.links())
    wanted = {place(route): route for route in resolution.routes}
    waiting = {route.place: Waiting(route, reason) for route, reason in resolution.missing}
    may_heal = bool(waiting)
    while True:
        undecided = {*waiting, *leave}
        desired = [route for key, route in wanted.items() if key not in undecided]
        try:
            outcome = converge(ctx, desired, host, logger, undecided=undecided, observed=observed)
        except (LinkNotFoundError, RouteRejectedError) as error:
            refused = _refused(error, desired)
            if not refused:
                raise
            may_heal = may_heal or error.may_heal or isinstance(error, LinkNotFoundError)
        else:
            devices = {route.dev for route in routes}
            devices.update(route.dev for route in wanted.values())
            for default in default_routes(observed):
                devices.update(hop.dev for hop in default.hops)
            return Repair(
                wanted=wanted,
                waiting=waiting,
                devices=frozenset(devices),
                may_heal=may_heal,
                outcome=outcome,
            )
        waiting |= {key: Waiting(wanted[key], reason) for key, reason in refused.items()}


def _refused(
    error: LinkNotFoundError | RouteRejectedError, desired: Sequence[Route]
) -> dict[Place, str]:
    """Return the reasons of refused routes by place; {} if the rest was not rolled back."""
    if isinstance(error, LinkNotFoundError):
        absent = [route for route in desired if route.dev == error.dev]
        return dict.fromkeys(map(place, absent), "there is no such device")
    if not error.rolled_back:
        return {}
    reasons = {place(refusal.change.route): refusal.reason for refusal in error.refusals}
    return {key: reasons[key] for key in map(place, desired) if key in reasons}
