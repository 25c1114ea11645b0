"""Carry out a plan of routes, even while other programs change routes.

An apply makes all changes or none, and raises the error. A repair, at boot and by the watch, never
waits, and skips routes that the kernel refuses.
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
from hostrouting.net.routes import RouteKey, route_key
from hostrouting.static_routes.plan import RoutePlan
from hostrouting.static_routes.reconcile import Reconciliation, read
from hostrouting.static_routes.refusals import all_in_the_way, explain, why_merged, with_routes
from hostrouting.static_routes.undo import changes_between, changes_to_undo, report_entry

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from hostrouting.host import Host
    from phases import Context

#: Refusals that may be due to a change by another program.
_CONFLICTS = frozenset({errno.EEXIST, errno.ESRCH, errno.ENOENT})


def make_changes(
    ctx: Context,
    outcome: Reconciliation,
    host: Host,
    logger: logging.Logger,
    *,
    is_last: bool,
    verify: bool = True,
) -> None:
    """Make exactly these changes and record them; after a failure, record what is left of them.

    Raises `ConflictError` if the kernel refuses a change because another program was faster; on the
    last attempt, raises the refusal itself.
    """
    try:
        _send(host, outcome, is_last=is_last, verify=verify)
    except BaseException as error:
        routes = [change.route for change in outcome.changes]
        is_whole = isinstance(error, ConflictError) or getattr(error, "rolled_back", False)
        if not is_whole:
            # After an interrupt, the routes must be read again to see what was done.
            with suppress(BackendError):
                made = changes_between(outcome.observed, read(host.routes, routes))
                _record(ctx, made, host, logger)
        if isinstance(error, LinkNotFoundError):
            raise with_routes(error, routes) from error
        raise
    _record(ctx, outcome, host, logger)


def _send(host: Host, outcome: Reconciliation, *, is_last: bool, verify: bool = True) -> None:
    in_the_way = all_in_the_way(outcome)
    # The kernel would accept an IPv6 route even if another one hides it.
    if any(route.family == IPV6 for route in outcome.in_the_way.values()):
        refusals = [Refusal(change, errno.EEXIST, why) for change, why in in_the_way.items()]
        raise RouteRejectedError(refusals, rolled_back=True)
    try:
        if outcome.changes:
            host.routes.apply(outcome.changes, verify=verify)
    except RouteRejectedError as error:
        # Trying again helps only if changes by another program are the only cause.
        if not error.rolled_back or any(
            refusal.errno not in _CONFLICTS or refusal.change in in_the_way
            for refusal in error.refusals
        ):
            explain(error, outcome, host.routes)
            raise
        if not is_last:
            raise ConflictError(str(error)) from error
        text = "another program keeps changing this route; last attempt"
        error.refusals = [
            attrs.evolve(refusal, reason=f"{text}: {refusal.reason}") for refusal in error.refusals
        ]
        raise


def log_consequences(outcome: Reconciliation, logger: logging.Logger) -> None:
    """Log the routes of other programs that changes hide, and routes that could not be removed."""
    for route, foreign in outcome.hidden.items():
        for hidden in foreign:
            text = "route '%s' of another program is hidden by '%s' until ours is removed"
            extra = {"hidden": str(hidden), "route": str(route)}
            logger.warning(text, hidden, route, extra=extra)
    for merged in outcome.merged:
        logger.warning("not removed: %s", why_merged(merged), extra={"route": str(merged)})


def _record(ctx: Context, made: Reconciliation, host: Host, logger: logging.Logger) -> None:
    """Record changes that were made, with a common undo."""

    def undo(ctx: Context) -> bool:
        with host.lock.hold(ctx):
            routes = [change.route for change in made.changes]

            def decide() -> tuple[Reconciliation, Sequence[str]]:
                observed = read(host.routes, routes)
                changes, notes = changes_to_undo(made, observed)
                return Reconciliation(changes=changes, observed=observed), notes

            def send(decided: tuple[Reconciliation, object], is_last: bool) -> None:
                _send(host, decided[0], is_last=is_last)

            _, notes = until_settled(decide(), lambda _: decide(), send)
            for note in notes:
                logger.warning("%s", note)
            return not notes

    for change in made.changes:
        ctx.record(report_entry(change, made.hidden), undo=undo)


class Repair(NamedTuple):
    """The outcome of a repair."""

    #: The plan without the routes that the kernel refused.
    plan: RoutePlan
    #: True if a new lease, device, address or carrier may help.
    may_heal: bool


def repair(ctx: Context, plan: RoutePlan, host: Host, logger: logging.Logger) -> Repair:
    """Make the changes of a plan that the kernel accepts, and record them.

    Call it under the run lock. A refused route is left for later, and routes with its key stay as
    they are. Nothing is read back, because the caller reads the routes again after each event.
    """
    may_heal = bool(plan.resolution.missing)

    def make(plan: RoutePlan, is_last: bool) -> None:
        make_changes(ctx, plan.outcome, host, logger, is_last=is_last, verify=False)

    while True:
        try:
            done = until_settled(plan, lambda last: last.again(host.routes), make)
        except (LinkNotFoundError, RouteRejectedError) as error:
            refused = _refused(error, plan)
            if not refused:
                raise
            may_heal = may_heal or error.may_heal or isinstance(error, LinkNotFoundError)
        else:
            return Repair(done, may_heal)
        plan = plan.without(refused)


def _refused(error: LinkNotFoundError | RouteRejectedError, plan: RoutePlan) -> dict[RouteKey, str]:
    """Return why routes were refused, by key; {} if the batch was not rolled back."""
    desired = {key: route for key, route in plan.wanted.items() if key not in plan.refused}
    if isinstance(error, LinkNotFoundError):
        absent = [key for key, route in desired.items() if route.dev == error.dev]
        return dict.fromkeys(absent, "there is no such device")
    if not error.rolled_back:
        return {}
    reasons = {route_key(refusal.change.route): refusal.reason for refusal in error.refusals}
    return {key: reasons[key] for key in desired if key in reasons}
