"""All or nothing: what every backend does around its own way to send changes.

The kernel has no transaction for routes. So a batch is a list of steps each of which has an inverse: a route
that was added is removed by its full description, one that was removed is appended. No step overwrites a
route, so none takes what another program has put there meanwhile. What succeeded of a refused batch is taken
back newest first, and the routes are read again: what was refused or not answered on the way back, and is not
as before, is left behind. (What was answered and is not as before, another program has changed since.)
"""

from __future__ import annotations

import errno
import logging
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hostrouting.exceptions import LinkNotFoundError, PermissionDeniedError, Refusal, RouteRejectedError
from hostrouting.net.routes import signature

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from hostrouting.net.changes import RouteChange
    from hostrouting.net.routes import ObservedRoute, Route

_logger = logging.getLogger(__name__)
_dev = attrgetter("dev")


class Failure(NamedTuple):
    """The kernel's answer to one step that it refused."""

    errno: int
    reason: str


class Steps(NamedTuple):
    """Messages in their order, as columns.

    A verb is `add` (to an empty place), `prepend` (before others), `append` (behind others) or `remove`.
    """

    verbs: list[str]
    routes: list[Route | ObservedRoute]
    #: Of the changes that the steps belong to.
    positions: list[int]

    def add(self, verb: str, route: Route | ObservedRoute, position: int) -> None:
        """One step more."""
        self.verbs.append(verb)
        self.routes.append(route)
        self.positions.append(position)


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

    def unfulfilled(self, steps: Steps) -> dict[int, Failure]:
        """`missing_after` on a fresh reading, or a faster way to the same answer."""
        ...


def commit(transport: Transport, changes: Sequence[RouteChange], *, verify: bool) -> None:
    """Make all the changes or none; see `RouteBackend.apply` for what it raises."""
    sent = Steps([], [], [])
    for part in _parts(changes):
        failures: dict[int, Failure] = {}
        refused: Mapping[int, Failure] = {}
        try:
            refused = transport.send(part, will_verify=verify)
        except AnswersLostError:
            done = part
            failures = transport.unfulfilled(_joined(sent, part))
        else:
            done = _without(part, refused)
        if (
            not sent.verbs
            and len(refused) == len(part.verbs)
            and all(failure.errno == errno.EPERM for failure in refused.values())
        ):
            raise PermissionDeniedError(
                "changing routes needs root or CAP_NET_ADMIN; nothing was changed", errno=errno.EPERM
            )
        for number, failure in refused.items():
            failures.setdefault(part.positions[number], failure)
        sent = _joined(sent, done)
        if failures:
            raise _roll_back(transport, changes, failures, sent)
    if verify and changes:
        failures = transport.unfulfilled(sent)
        if failures:
            raise _roll_back(transport, changes, failures, sent)


def _parts(changes: Sequence[RouteChange]) -> list[Steps]:
    """The steps of the changes, in one or two sends.

    Removals that end a batch are sent only when all before them succeeded: a route that is never taken away cannot
    fail to come back, and keeps its place among its duplicates. So are those of changes that add a route first.
    """
    if all(change.before is None for change in changes):
        added = [change.after for change in changes if change.after is not None]
        return [Steps([change.verb for change in changes], [*added], [*range(len(added))])] if added else []
    end = len(changes)
    while end and changes[end - 1].after is None:
        end -= 1
    first, last = Steps([], [], []), Steps([], [], [])
    for position, change in enumerate(changes):
        if change.after is not None:
            first.add(change.verb, change.after, position)
        if change.before is not None:
            ends = change.after is not None or position >= end
            (last if ends else first).add("remove", change.before, position)
    return [part for part in (first, last) if part.verbs]


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


def missing_after(steps: Steps, routes: Iterable[ObservedRoute]) -> dict[int, Failure]:
    """Which changes are not in force in `routes`, by their position."""
    return {
        wrong.position: Failure(errno.ENOENT, "not refused, but not there on reading back")
        if wrong.there
        else Failure(errno.EEXIST, f"not refused, but on reading back '{wrong.route}' is still there")
        for wrong in _unmet(_expectations(steps), routes)
    }


def _joined(first: Steps, second: Steps) -> Steps:
    if not first.verbs:
        return second
    return Steps(first.verbs + second.verbs, first.routes + second.routes, first.positions + second.positions)


def _without(steps: Steps, refused: Collection[int]) -> Steps:
    if not refused:
        return steps
    kept = [number for number in range(len(steps.verbs)) if number not in refused]
    return Steps(
        [steps.verbs[number] for number in kept],
        [steps.routes[number] for number in kept],
        [steps.positions[number] for number in kept],
    )


def _roll_back(
    transport: Transport, changes: Sequence[RouteChange], failures: Mapping[int, Failure], done: Steps
) -> RouteRejectedError:
    back = _inverse(done)
    doubtful = back
    overtaken: list[str] = []
    try:
        refused = transport.send(back, will_verify=False)
        doubtful = _without(back, set(range(len(back.verbs))).difference(refused))
        overtaken = [
            str(changes[back.positions[number]])
            for number, failure in refused.items()
            if back.verbs[number] == "remove" and failure.errno == errno.ESRCH
        ]
    except AnswersLostError:
        _logger.warning("the kernel's answers to a rollback were lost; reading the routes back decides")
    left_behind = [
        f"{'missing' if wrong.there else 'still there'}: {wrong.route}"
        for wrong in _unmet(_expectations(doubtful), transport.routes())
    ]
    refusals = [
        Refusal(str(changes[position]), failure.errno, failure.reason) for position, failure in sorted(failures.items())
    ]
    return RouteRejectedError(refusals, rolled_back=not left_behind, left_behind=left_behind, overtaken=overtaken)


def _inverse(done: Steps) -> Steps:
    """Newest first: a gateway's on-link route was added before the routes through it, and goes after them."""
    verbs = ["append" if verb == "remove" else "remove" for verb in reversed(done.verbs)]
    back = Steps(verbs, done.routes[::-1], done.positions[::-1])
    if len(set(verbs)) == 1:
        return back
    # A route that was removed and added again is there as before. If its owner has deleted it since, it stays so.
    identities = list(map(_identity, back.routes))
    newest = dict(zip(reversed(identities), reversed(verbs), strict=True))
    oldest = dict(zip(identities, verbs, strict=True))
    seen: set[_Identity] = set()
    superfluous = set()
    for number, identity in enumerate(identities):
        if identity in seen or newest[identity] != oldest[identity]:
            superfluous.add(number)
        seen.add(identity)
    return _without(back, superfluous)


_Identity = tuple[int, tuple[object, ...]]


class _Expectation(NamedTuple):
    position: int
    route: Route | ObservedRoute
    there: bool


def _identity(route: Route | ObservedRoute) -> _Identity:
    return route.network, signature(route)


def _expectations(steps: Steps) -> dict[_Identity, _Expectation]:
    """What must be there afterwards and what must not; of several steps with one route the last one decides."""
    return {
        _identity(route): _Expectation(position, route, there=verb != "remove")
        for verb, route, position in zip(*steps, strict=True)
    }


def _unmet(expected: dict[_Identity, _Expectation], routes: Iterable[ObservedRoute]) -> list[_Expectation]:
    """Which expectations `routes` do not meet; `expected` is used up."""
    unmet = []
    for route in routes:
        expectation = expected.pop(_identity(route), None)
        if expectation is not None and not expectation.there:
            unmet.append(expectation)
    return unmet + [expectation for expectation in expected.values() if expectation.there]
