"""One all-or-nothing commit for every batch of changes of routes.

The kernel lacks transactions. So a batch is a list of steps, and each step has an inverse: a route
that was added is removed by its full description, a route that was removed is appended, or
prepended if it came first. (The kernel has only these two positions: a route from the middle comes
last, and the error reports it. An IPv6 route by a gateway is added to an empty place only, since
the kernel would make one multipath route of it and of another.) No step overwrites a route, so no
step destroys a route that another program has added meanwhile. If the kernel refuses a step, the
steps that succeeded are rolled back, the newest first, and the routes are read again. A step of the
rollback that was refused or not answered, and that is not in force on reading back, is reported in
the error. (If it was answered and is not in force, another program has changed the route since.)

The kernel does not always make the change of a step. A deletion cannot express every field and
takes the first route that fits, so the routes are read first, and a removal that would take another
one is refused before anything is sent. And the kernel changes some values of a route that it
accepts. So the rollback compares with the first reading, and removes an added route in the form
that the kernel gave it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import attrs

from hostrouting.exceptions import PermissionDeniedError, Refusal, RouteRejectedError
from hostrouting.net.addresses import IPV6
from hostrouting.net.changes import may_merge
from hostrouting.net.routes import ObservedRoute, Route, place, resting, signature

_logger = logging.getLogger(__name__)

#: The routes that the port `RouteBackend` changes.
AnyRoute: TypeAlias = Route | ObservedRoute


class Failure(NamedTuple):
    """The kernel's answer to one step that it refused."""

    errno: int
    reason: str


#: One message: a verb, the route, and the position of the change that it belongs to. The verbs are
#: `add` (to an empty place), `prepend` (before the routes of a place), `append` (after them) and
#: `remove`.
Step: TypeAlias = tuple[str, AnyRoute, int]
Steps: TypeAlias = Sequence[Step]
#: Refusals by the step's number, or by the change's position.
Failures = dict[int, Failure]


class AnswersLostError(Exception):
    """Some answers did not arrive: only reading back shows which steps succeeded."""


class Transport(Protocol):
    """A backend's way to the kernel, or to a model of it."""

    def send(self, steps: Steps) -> Failures:
        """Do all the steps; return the refusals by the step's number.

        A removal takes the route of its full description and no other.
        """
        ...

    def present(self) -> Iterable[AnyRoute]:
        """Return everything that exists now."""
        ...

    def unfulfilled(self, steps: Steps) -> Failures:
        """Return `missing_after` of a fresh reading, or the same answer found faster.

        The steps end with those that were sent last.
        """
        return missing_after(steps, self.present())


@attrs.frozen
class Batch:
    """One batch of changes on its way through a transport."""

    transport: Transport
    changes: Sequence[object]
    #: The routes that existed before; a batch that only adds to empty places needs none of them.
    before: Iterable[AnyRoute]

    def commit(self, parts: Iterable[Steps], *, verify: bool) -> None:
        """Send the parts in their order, and roll all of them back as soon as one is refused."""
        done: list[Step] = []
        for part in parts:
            accepted, failures = self._send(part, done)
            done += accepted
            if failures:
                raise self._roll_back(failures, done)
        if verify and done and (failures := self.transport.unfulfilled(done)):
            raise self._roll_back(failures, done)

    def _send(self, part: Steps, done: Steps) -> tuple[Steps, Failures]:
        """Send one part; return the accepted steps, and the failures by the change's position."""
        refused = self._refused(part)
        if refused is None:
            return part, self.transport.unfulfilled([*done, *part])
        errnos = [refusal.errno for refusal in refused.values()]
        if not done and errnos == [errno.EPERM] * len(part):
            raise PermissionDeniedError(
                "changing routes needs root or CAP_NET_ADMIN; nothing was changed",
                errno=errno.EPERM,
            )
        accepted = [step for number, step in enumerate(part) if number not in refused]
        return accepted, {
            position: refused[number]
            for number, (_, _, position) in enumerate(part)
            if number in refused
        }

    def rejection(self, failures: Failures, left_behind: Sequence[str] = ()) -> RouteRejectedError:
        """Return the error for these failures, by the change's position."""
        return RouteRejectedError(
            [
                Refusal(str(self.changes[position]), *failure)
                for position, failure in sorted(failures.items())
            ],
            rolled_back=not left_behind,
            left_behind=[*left_behind],
        )

    def _roll_back(self, failures: Failures, done: Steps) -> RouteRejectedError:
        if not done:
            # A reading of all routes would cost seconds on some nodes.
            return self.rejection(failures)
        before = _near(done, self.before)
        # The routes that came first in their places before.
        firsts = {place(route): key for key, route in reversed(before.items())}
        back = _inverse(done, firsts.values())
        refused = self._refused(back)
        doubtful = [
            step for number, step in enumerate(back) if refused is None or number in refused
        ]
        unsure = {identity(route) for _, route, _ in doubtful}
        present = _near(done, self.transport.present())
        wrong = _unmet([step for step in back if identity(step[1]) in unsure], present.values())
        repairs = _changed_forms(doubtful, before, present)
        if repairs:
            self._refused(repairs)
            wrong += _unmet(repairs, self.transport.present())
        words = [
            f"{'still there' if verb == 'remove' else 'missing'}: {route}"
            for verb, route, _ in wrong
        ]
        words += [f"now the last of its place: {route}" for route in _moved(back, before, present)]
        return self.rejection(failures, words)

    def _refused(self, steps: Steps) -> Failures | None:
        """Send the steps; return the refusals by the step's number, None if answers were lost."""
        try:
            return self.transport.send(steps)
        except AnswersLostError:
            _logger.warning("the kernel's answers were lost; reading back decides")
            return None


def _near(steps: Steps, routes: Iterable[AnyRoute]) -> dict[Hashable, AnyRoute]:
    """Return the routes in the places of the steps, by their identity."""
    places = {place(route) for _, route, _ in steps}
    return {identity(route): route for route in routes if place(route) in places}


def _changed_forms(
    unremoved: Steps, before: Collection[Hashable], present: Mapping[Hashable, AnyRoute]
) -> list[Step]:
    """Return removals of added routes that the kernel changed, which a first removal missed."""
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
    """Return the part of a route that the kernel keeps as sent; it limits metrics."""
    return identity(resting(route)._replace(extra=()))


def missing_after(steps: Steps, present: Iterable[AnyRoute]) -> Failures:
    """Return which changes are not in force in `present`, by their position."""
    return {
        position: Failure(
            errno.EEXIST, f"not refused, but on reading back '{route}' is still there"
        )
        if verb == "remove"
        else Failure(errno.ENOENT, "not refused, but not there on reading back")
        for verb, route, position in _unmet(steps, present)
    }


def identity(route: AnyRoute) -> Hashable:
    """Return the part of a route that stays the same from reading to reading."""
    return route.network, signature(route)


def _inverse(done: Steps, firsts: Collection[Hashable]) -> list[Step]:
    """Newest first: a gateway's on-link route was added before the routes through it.

    A route that came first in its place comes first again: appended, it would no longer decide. The
    kernel prepends no IPv6 route, and merges those by gateways.
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
    """Return the routes that a rollback appended, though others came after them before."""
    appended = {identity(route): route for verb, route, _ in back if verb == "append"}
    places = set(map(place, appended.values()))
    was = [key for key, route in before.items() if key in present and place(route) in places]
    now = [key for key, route in present.items() if key in before and place(route) in places]
    moved = [key for key, earlier in zip(now, was, strict=True) if key != earlier]
    return [appended[key] for key in moved if key in appended]


def _unmet(steps: Steps, present: Iterable[AnyRoute]) -> list[Step]:
    """Return the steps that are not in force in `present`, of each route only the last."""
    last = {identity(step[1]): step for step in steps}
    unmet = []
    for route in present:
        step = last.pop(identity(route), None)
        if step is not None and step[0] == "remove":
            unmet.append(step)
    return unmet + [step for step in last.values() if step[0] != "remove"]
