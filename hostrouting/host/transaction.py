"""All or nothing: what every backend does around its own way to send changes.

The kernel has no transaction for routes. So each change carries its own inverse (`RouteChange.before`
and `.after`), what succeeded of a refused batch is taken back newest first, and the routes are read
again: it is the read-back that says whether the rollback held, not the answers to it.
"""

from __future__ import annotations

import errno
import logging
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hostrouting.exceptions import LinkNotFoundError, PermissionDeniedError, Refusal, RouteRejectedError
from hostrouting.host.routes import signature

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from hostrouting.host.routes import ObservedRoute, Route, RouteChange

_logger = logging.getLogger(__name__)
_dev = attrgetter("dev")


class Failure(NamedTuple):
    """The kernel's answer to one step that it refused."""

    errno: int
    reason: str


class Steps(NamedTuple):
    """Messages in their order, as two columns.

    A verb is `add`, `replace`, `remove`, or `restore` (an addition that may stand beside a duplicate).
    """

    verbs: list[str]
    routes: list[Route | ObservedRoute]


class AnswersLostError(Exception):
    """Some answers did not arrive, so nobody knows which steps succeeded: read the routes back."""


class Transport(Protocol):
    """A backend's own way to the routes."""

    def send(self, steps: Steps, *, will_verify: bool) -> Mapping[int, Failure]:
        """Do all the steps, going on past refusals, which are returned by the step's position.

        `will_verify` says that `unfulfilled` may be asked about them next.
        """
        ...

    def routes(self) -> list[ObservedRoute]:
        """All routes, as `RouteBackend.routes`."""
        ...

    def unfulfilled(self, changes: Sequence[RouteChange]) -> dict[int, Failure]:
        """`missing_after` on a fresh reading, or a faster way to the same answer."""
        ...


def commit(transport: Transport, changes: Sequence[RouteChange], *, verify: bool) -> None:
    """Make all the changes or none; see `RouteBackend.apply` for what it raises."""
    if not changes:
        return
    sent = 0
    # Removals that end a batch are sent only when all before them succeeded: a route that is never taken away cannot
    # fail to come back, and keeps its place among its duplicates.
    for end in sorted({_end_of_additions(changes), len(changes)} - {0}):
        part = changes[sent:end]
        lost = False
        refused: Mapping[int, Failure] = {}
        try:
            refused = transport.send(_steps(part), will_verify=verify)
        except AnswersLostError:
            lost = True
        if (
            sent == 0
            and len(refused) == len(part)
            and all(failure.errno == errno.EPERM for failure in refused.values())
        ):
            raise PermissionDeniedError(
                "changing routes needs root or CAP_NET_ADMIN; nothing was changed", errno=errno.EPERM
            )
        failures = refused = {sent + position: failure for position, failure in refused.items()}
        sent = end
        if lost or (verify and not failures and sent == len(changes)):
            failures = transport.unfulfilled(changes[:sent])
        if failures:
            raise _roll_back(transport, changes[:sent], failures, set(refused))


def _end_of_additions(changes: Sequence[RouteChange]) -> int:
    """Where the removals begin with which a batch ends."""
    end = len(changes)
    while end and changes[end - 1].after is None:
        end -= 1
    return end


def check_devices(changes: Sequence[RouteChange], names: Collection[str]) -> None:
    """Nothing may be sent when a device does not exist: name all that are missing, at once."""
    routes: list[Route | ObservedRoute] = [change.after for change in changes if change.after is not None]
    routes += [change.before for change in changes if change.before is not None]
    used = set(map(_dev, routes))
    if None in used:
        # Devices of a multipath route are those of its legs; of a blackhole there are none.
        used |= {hop.dev for route in routes if route.dev is None for hop in route.nexthops}
        used.discard(None)
    missing = sorted(used.difference(names))
    if missing:
        raise LinkNotFoundError(
            f"no such device: {', '.join(missing)}; nothing was changed. The node has {', '.join(names)}",
            dev=missing[0],
            errno=errno.ENODEV,
        )


def missing_after(changes: Sequence[RouteChange], routes: Iterable[ObservedRoute]) -> dict[int, Failure]:
    """Which changes are not in force in `routes`, by their position."""
    expected: dict[_Identity, _Expectation] = {}
    for position, change in enumerate(changes):
        if change.before is not None:
            expected[_identity(change.before)] = _Expectation(position, change.before, there=False)
        if change.after is not None:
            expected[_identity(change.after)] = _Expectation(position, change.after, there=True)
    return {
        wrong.position: Failure(errno.ENOENT, "not refused, but not there on reading back")
        if wrong.there
        else Failure(errno.EEXIST, f"not refused, but on reading back '{wrong.route}' is still there")
        for wrong in _unmet(expected, routes)
    }


def _steps(changes: Sequence[RouteChange]) -> Steps:
    added = [change.after for change in changes if change.before is None and change.after is not None]
    if len(added) == len(changes):
        return Steps(["add"] * len(added), [*added])
    steps = Steps([], [])
    for change in changes:
        if change.after is not None:
            steps.verbs.append("add" if change.before is None else "replace")
            steps.routes.append(change.after)
        elif change.before is not None:
            steps.verbs.append("remove")
            steps.routes.append(change.before)
    return steps


def _inverse(changes: Sequence[RouteChange]) -> Steps:
    steps = Steps([], [])
    # Newest first: a gateway's on-link route was added before the routes through it, and goes after them.
    for change in reversed(changes):
        if change.before is not None:
            steps.verbs.append("restore" if change.after is None else "replace")
            steps.routes.append(change.before)
        elif change.after is not None:
            steps.verbs.append("remove")
            steps.routes.append(change.after)
    return steps


def _roll_back(
    transport: Transport, changes: Sequence[RouteChange], failures: Mapping[int, Failure], refused: set[int]
) -> RouteRejectedError:
    done = [change for position, change in enumerate(changes) if position not in refused]
    try:
        transport.send(_inverse(done), will_verify=False)
    except AnswersLostError:
        _logger.warning("the kernel's answers to a rollback were lost; reading the routes back decides")
    expected: dict[_Identity, _Expectation] = {}
    for change in reversed(done):
        if change.after is not None:
            expected[_identity(change.after)] = _Expectation(0, change.after, there=False)
        if change.before is not None:
            expected[_identity(change.before)] = _Expectation(0, change.before, there=True)
    left_behind = [
        f"{'missing' if wrong.there else 'still there'}: {wrong.route}"
        for wrong in _unmet(expected, transport.routes())
    ]
    refusals = [
        Refusal(str(changes[position]), failure.errno, failure.reason) for position, failure in sorted(failures.items())
    ]
    return RouteRejectedError(refusals, rolled_back=not left_behind, left_behind=left_behind)


_Identity = tuple[int, tuple[object, ...]]


class _Expectation(NamedTuple):
    position: int
    route: Route | ObservedRoute
    there: bool


def _identity(route: Route | ObservedRoute) -> _Identity:
    return route.network, signature(route)


def _unmet(expected: dict[_Identity, _Expectation], routes: Iterable[ObservedRoute]) -> list[_Expectation]:
    """Which expectations `routes` do not meet; `expected` is used up."""
    unmet = []
    for route in routes:
        expectation = expected.pop(_identity(route), None)
        if expectation is not None and not expectation.there:
            unmet.append(expectation)
    return unmet + [expectation for expectation in expected.values() if expectation.there]
