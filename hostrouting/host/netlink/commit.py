"""Commit a batch of route changes: all of them or none.

The kernel has no transactions. So a batch is a list of steps, and each step has an inverse: an
added route is removed by its full description, and a removed route is appended again, or prepended
if it came first. (The kernel has only these two positions, so a route from the middle comes last,
and the error reports it. An IPv6 route with a gateway is added only if no other route has its key,
because the kernel would merge the two.) No step overwrites a route, so none destroys a route that
another program has added in the meantime. If the kernel refuses a step, the steps that succeeded
are rolled back, latest first, and the routes are read again. If a step of the rollback was refused
or not answered, and reading back shows that it is not in force, the error reports it. (If it was
answered and is not in force, another program has changed the route since.)

The kernel does not always do exactly what a step says. A deletion cannot express every field and
removes the first match, so the routes are read first, and a removal that would remove another route
is refused before anything is sent. The kernel also changes some values of routes that it accepts.
So the rollback compares with the snapshot from before, and removes an added route in the form that
the kernel gave it.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Protocol, TypeAlias

import attrs

from hostrouting.base.errors import LinkNotFoundError, PermissionDeniedError
from hostrouting.fib.tables import Tables, inserted, key_of
from hostrouting.host.netlink.frames import AnswersLostError, Failure, Failures
from hostrouting.net.addresses import IPV6
from hostrouting.net.rejected import Refusal, RouteRejectedError
from hostrouting.net.routes import (
    ObservedRoute,
    Route,
    RouteChange,
    is_deleted_by,
    is_merged,
    may_merge,
    resting,
    route_key,
    signature,
)

_logger = logging.getLogger(__name__)

#: The routes that the port `RouteBackend` changes.
AnyRoute: TypeAlias = Route | ObservedRoute
#: One message: a verb, the route, and the position of the change that it belongs to. The verbs are
#: `add` (if no route has its key), `prepend` (before those with its key), `append` (after them) and
#: `remove`.
RouteStep: TypeAlias = tuple[str, AnyRoute, int]
Steps: TypeAlias = Sequence[RouteStep]


class Transport(Protocol):
    """How a backend sends changes to the kernel, or to a model of it."""

    def send(self, steps: Steps) -> Failures:
        """Do all the steps; return the refusals by the step's number.

        A removal removes only the route that matches its full description.
        """

    def present(self) -> Iterable[AnyRoute]:
        """Return all routes that exist now."""

    def unfulfilled(self, steps: Steps) -> Failures:
        """Return `missing_after` for the present routes, or the same answer in a faster way.

        The steps end with those that were sent last.
        """
        return missing_after(steps, self.present())


@attrs.frozen(eq=False, repr=False)
class Batch:
    """A batch of changes that is sent through a transport."""

    transport: Transport
    changes: Sequence[RouteChange]
    #: The routes that existed before; not needed if the batch only adds routes with unused keys.
    before: Iterable[AnyRoute]

    def commit(self, parts: Iterable[Steps], *, verify: bool) -> None:
        """Send the parts in order, and roll all of them back as soon as one is refused.

        An OSError means that the routes could not be read, and that nothing was changed.
        """
        done: list[RouteStep] = []
        try:
            self._carry_out(parts, done, verify=verify)
        except OSError as error:
            if not done:
                raise
            failure = Failure(error.errno or 0, f"cannot be read back: {error.strerror}")
            failures = {position: failure for _, _, position in done}
            raise self._roll_back(failures, done) from error

    def _carry_out(self, parts: Iterable[Steps], done: list[RouteStep], *, verify: bool) -> None:
        """Send the parts; add the steps that may have changed something to `done`."""
        for part in parts:
            refused = self._refused(part)
            if isinstance(refused, AnswersLostError):
                done += part
                failures = refused.explain(self.transport.unfulfilled(done))
            else:
                errnos = [refusal.errno for refusal in refused.values()]
                if not done and errnos == [errno.EPERM] * len(part):
                    raise PermissionDeniedError(
                        "changing routes needs root or CAP_NET_ADMIN; nothing was changed"
                    )
                failures = {}
                for number, failure in sorted(refused.items()):
                    # The first failure of a change is the reason for its others.
                    failures.setdefault(part[number][2], failure)
                done += [step for number, step in enumerate(part) if number not in refused]
            if failures:
                raise self._roll_back(failures, done)
        if verify and done and (failures := self.transport.unfulfilled(done)):
            raise self._roll_back(failures, done)

    def rejection(self, failures: Failures, left_behind: Sequence[str] = ()) -> RouteRejectedError:
        """Return the error for these failures, by the change's position."""
        return RouteRejectedError(
            [
                Refusal(self.changes[position], *failure)
                for position, failure in sorted(failures.items())
            ],
            rolled_back=not left_behind,
            left_behind=[*left_behind],
        )

    def _roll_back(self, failures: Failures, done: Steps) -> RouteRejectedError:
        if not done:
            # Reading all routes would take seconds on some nodes.
            return self.rejection(failures)
        before = _near(done, self.before)
        # The routes that came first among those with their key before.
        firsts = {route_key(route): key for key, route in reversed(before.items())}
        back = _inverse(done, firsts.values())
        refused = self._refused(back)
        if isinstance(refused, AnswersLostError):
            doubtful = back
        else:
            doubtful = [step for number, step in enumerate(back) if number in refused]
        unsure = {identity(route) for _, route, _ in doubtful}
        try:
            present = _near(done, self.transport.present())
        except OSError as error:
            unread = f"unknown, because it cannot be read back ({error.strerror})"
            return self.rejection(failures, [f"{unread}: {route}" for _, route, _ in back])
        wrong = _unmet([step for step in back if identity(step[1]) in unsure], present.values())
        repairs = _changed_forms(doubtful, before, present)
        if repairs:
            self._refused(repairs)
            wrong += _unmet(repairs, self.transport.present())
        words: list[str] = []
        for verb, route, _ in wrong:
            word = "still there" if verb == "remove" else "missing"
            words.append(f"{word}: {route}")
        words += [
            f"now after all others with its key: {route}" for route in _moved(back, before, present)
        ]
        return self.rejection(failures, words)

    def _refused(self, steps: Steps) -> Failures | AnswersLostError:
        """Send the steps; return the refusals by the step's number, or that answers were lost."""
        try:
            return self.transport.send(steps)
        except AnswersLostError as error:
            _logger.warning("the kernel's answers were lost, so the routes are read back")
            return error


def commit_routes(
    transport: Transport, changes: Sequence[RouteChange], *, devices: Collection[str], verify: bool
) -> None:
    """Make all the changes or none; see `RouteBackend.apply` for the errors."""
    # Check the devices before anything is sent.
    routes: list[AnyRoute] = [change.after for change in changes if change.after is not None]
    routes += [change.before for change in changes if change.before is not None]
    used = set(map(attrgetter("dev"), routes))
    if None in used:
        # The devices of a multipath route are those of its next hops; a blackhole has none.
        used |= {hop.dev for route in routes if route.dev is None for hop in route.nexthops}
        used.discard(None)
    missing = sorted(used.difference(devices))
    if missing:
        raise LinkNotFoundError(
            f"no such device: {', '.join(missing)}; nothing was changed. "
            f"The node has {', '.join(devices)}",
            dev=missing[0],
            errno=errno.ENODEV,
        )
    parts = _route_parts(changes)
    only_adds = all(change.before is None and change.verb == "add" for change in changes)
    before: Sequence[AnyRoute] = () if only_adds else [*transport.present()]
    batch = Batch(transport, changes, before)
    if not only_adds and (failures := _wrong_removals(changes, parts, before)):
        raise batch.rejection(failures)
    batch.commit(parts, verify=verify)


def _wrong_removals(
    changes: Sequence[RouteChange], parts: Iterable[Steps], before: Iterable[AnyRoute]
) -> Failures:
    """Return the removals of missing routes, or for which the kernel would remove another route."""
    failures: Failures = {}
    keys = [key_of(change.route) for change in changes]
    counts = Counter(keys)
    tables = Tables.of(
        route for route in before if isinstance(route, ObservedRoute) and key_of(route) in counts
    )
    # The routes to each destination that has more than a single removal of its only route.
    buckets = {
        key: tables.bucket(key)
        for key, change in zip(keys, changes, strict=True)
        if counts[key] > 1 or tables.bucket(key) != (change.before,)
    }
    # In the order in which the steps are sent.
    for verb, route, position in chain.from_iterable(parts) if buckets else ():
        key = key_of(route)
        if key not in buckets:
            continue
        if verb != "remove":
            buckets[key] = inserted(buckets[key], resting(route), last=verb == "append")
            continue
        bucket = buckets[key]
        # The kernel shows the protocol of one next hop, but another program may have merged one
        # with another protocol into it.
        for first in bucket:
            own = first._replace(protocol=route.protocol) if is_merged(first) else first
            if is_deleted_by(route, own):
                break
        else:
            hint = f", but there is '{bucket[0]}'" if bucket else ""
            failures[position] = Failure(errno.ESRCH, f"{os.strerror(errno.ESRCH)}{hint}")
            continue
        if identity(first) != identity(route):
            failures[position] = Failure(errno.ESRCH, f"the kernel would remove '{first}' instead")
        else:
            buckets[key] = tuple(kept for kept in bucket if kept is not first)
    return failures


def _route_parts(changes: Sequence[RouteChange]) -> list[list[RouteStep]]:
    """Return the steps of the changes, in up to three parts.

    A part is sent only after everything before it has succeeded. The second part are removals at
    the end of a batch, and those of replacements: a route that is not removed need not be restored,
    and keeps its position. The third part are changes that remove first, so that nothing is moved
    if anything else is refused.
    """
    end = len(changes)
    while end and changes[end - 1].after is None:
        end -= 1
    parts: list[list[RouteStep]] = [[], [], []]
    first, second, third = parts
    for position, change in enumerate(changes):
        moves = change.removes_first
        if moves and change.before is not None:
            third.append(("remove", change.before, position))
        if change.after is not None:
            (third if moves else first).append((change.verb, change.after, position))
        if change.before is not None and not moves:
            ends = change.after is not None or position >= end
            (second if ends else first).append(("remove", change.before, position))
    return [part for part in parts if part]


def _near(steps: Steps, routes: Iterable[AnyRoute]) -> dict[Hashable, AnyRoute]:
    """Return the routes with the same keys as those of the steps, by identity."""
    places = {route_key(route) for _, route, _ in steps}
    return {identity(route): route for route in routes if route_key(route) in places}


def _changed_forms(
    unremoved: Steps, before: Collection[Hashable], present: Mapping[Hashable, AnyRoute]
) -> list[RouteStep]:
    """Return removals for added routes that the kernel changed, so that a first removal missed."""
    forms = {
        _form(route): position
        for verb, route, position in unremoved
        if verb == "remove" and identity(route) not in present
    }
    return [
        ("remove", route, forms[_form(route)])
        for key, route in present.items()
        if key not in before and _form(route) in forms
    ]


def _form(route: AnyRoute) -> Hashable:
    """Return the part of a route that the kernel keeps as it was sent; it limits metrics."""
    return identity(resting(route)._replace(extra=()))


def missing_after(steps: Steps, present: Iterable[AnyRoute]) -> Failures:
    """Return which changes are not in force in `present`, by their position."""
    return {
        position: Failure(errno.EEXIST, f"not refused, but '{route}' is still there")
        if verb == "remove"
        else Failure(errno.ENOENT, "not refused, but the route is not there")
        for verb, route, position in _unmet(steps, present)
    }


def identity(route: AnyRoute) -> Hashable:
    """Return the part of a route that does not change with its state."""
    return route.network, signature(route)


def _inverse(done: Steps, firsts: Collection[Hashable]) -> list[RouteStep]:
    """Return the inverse steps, latest first, because on-link routes were added before others.

    A route that came first among those with its key is prepended again; appended, it would not be
    used any more. The kernel cannot prepend IPv6 routes, and merges those with gateways.
    """

    def verb_for(verb: str, route: AnyRoute) -> str:
        if verb != "remove":
            return "remove"
        if route.family == IPV6:
            return "add" if may_merge(route) else "append"
        return "prepend" if identity(route) in firsts else "append"

    return [(verb_for(verb, route), route, position) for verb, route, position in reversed(done)]


def _moved(
    back: Steps, before: Mapping[Hashable, AnyRoute], present: Mapping[Hashable, AnyRoute]
) -> list[AnyRoute]:
    """Return the routes that a rollback appended although others came after them before."""
    appended = {identity(route): route for verb, route, _ in back if verb == "append"}
    places = set(map(route_key, appended.values()))
    was = [key for key, route in before.items() if key in present and route_key(route) in places]
    now = [key for key, route in present.items() if key in before and route_key(route) in places]
    moved = [key for key, earlier in zip(now, was, strict=True) if key != earlier]
    return [appended[key] for key in moved if key in appended]


def _unmet(steps: Steps, present: Iterable[AnyRoute]) -> list[RouteStep]:
    """Return the steps that are not in force in `present`; the last step of each route counts."""
    last = {identity(step[1]): step for step in steps}
    unmet = []
    for route in present:
        step = last.pop(identity(route), None)
        if step is not None and step[0] == "remove":
            unmet.append(step)
    return unmet + [step for step in last.values() if step[0] != "remove"]
