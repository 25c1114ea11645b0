"""One all-or-nothing commit for every batch of changes: IPv4 routes, IPv6 routes and neighbours.

The kernel has no transaction. So a batch is a list of steps, and each step has an inverse: a thing that was added is
removed by its full description, a thing that was removed is appended. No step overwrites a route, so no step destroys
a route that another program has added meanwhile. If the kernel refuses a step, the steps that succeeded are rolled
back, the newest first, and the things are read again. A step of the rollback that was refused or not answered, and
that is not in force on reading back, is reported in the error. (If it was answered and is not in force, another
program has changed the thing since.)

The kernel does not always do what a step says. A deletion cannot express every field and takes the first thing that
fits, so the things are read first, and a removal that would take another one is refused before anything is sent. And
the kernel changes some values of a route that it accepts. So the rollback compares with the first reading, and removes
an added thing in the form that the kernel gave it.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import attrs

from hostrouting.exceptions import PermissionDeniedError, Refusal, RouteRejectedError
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import ObservedRoute, Route, place, signature

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

__all__ = [
    "AnswersLostError",
    "AnyRoute",
    "Batch",
    "Failure",
    "LinkThing",
    "Steps",
    "Transport",
    "identity",
    "missing_after",
    "slot",
    "taken_by",
]

_logger = logging.getLogger(__name__)

#: The things that the port `RouteBackend` changes.
AnyRoute: TypeAlias = Route | ObservedRoute
#: The things that the port `LinkLayer` changes.
LinkThing: TypeAlias = Neighbour | ObservedRoute
Thing = TypeVar("Thing", bound="AnyRoute | LinkThing")


class Failure(NamedTuple):
    """The kernel's answer to one step that it refused."""

    errno: int
    reason: str


@attrs.frozen
class Steps(Generic[Thing]):
    """Messages in their order, as columns.

    A verb is `add` (to an empty place), `prepend` (before the others of a place), `append` (after them) or `remove`.
    """

    verbs: list[str] = attrs.field(factory=list)
    things: list[Thing] = attrs.field(factory=list)
    #: The positions of the changes that the steps belong to.
    positions: list[int] = attrs.field(factory=list)

    def __iter__(self) -> Iterator[tuple[str, Thing, int]]:
        return zip(self.verbs, self.things, self.positions, strict=True)

    def add(self, verb: str, thing: Thing, position: int) -> None:
        """Append one step."""
        self.verbs.append(verb)
        self.things.append(thing)
        self.positions.append(position)

    def followed_by(self, others: Steps[Thing]) -> Steps[Thing]:
        """Return these steps and then the others."""
        if not self.verbs:
            return others
        return Steps(self.verbs + others.verbs, self.things + others.things, self.positions + others.positions)

    def without(self, numbers: Collection[int]) -> Steps[Thing]:
        """Return the steps but for those with the given numbers, counted from 0."""
        if not numbers:
            return self
        kept: Steps[Thing] = Steps()
        for number, step in enumerate(self):
            if number not in numbers:
                kept.add(*step)
        return kept


class AnswersLostError(Exception):
    """Some answers did not arrive: only reading back shows which steps succeeded."""


class Transport(Protocol[Thing]):
    """A backend's way to the kernel, or to a model of it."""

    def send(self, steps: Steps[Thing]) -> Mapping[int, Failure]:
        """Do all the steps and return the refusals by the step's number; a refusal does not stop the rest.

        A removal takes the thing of its full description and no other.
        """
        ...

    def standing(self) -> Iterable[Thing]:
        """Return everything that exists now."""
        ...

    def unfulfilled(self, steps: Steps[Thing]) -> dict[int, Failure]:
        """Return `missing_after` of a fresh reading, or the same answer found faster.

        The steps end with those that were sent last.
        """
        return missing_after(steps, self.standing())


@attrs.frozen
class Batch(Generic[Thing]):
    """One batch of changes on its way through a transport."""

    transport: Transport[Thing]
    #: The changes in words, by their position.
    describe: Callable[[int], str]
    kind: str = "route"
    #: The things that existed before; a batch that only adds to empty places needs none of them.
    before: Iterable[Thing] = ()

    def commit(self, parts: Iterable[Steps[Thing]], *, verify: bool) -> None:
        """Send the parts one after the other, and roll all of them back as soon as one is refused."""
        done: Steps[Thing] = Steps()
        for part in parts:
            accepted, failures = self._send(part, done)
            done = done.followed_by(accepted)
            if failures:
                raise self._roll_back(failures, done)
        if verify and done.verbs:
            failures = self.transport.unfulfilled(done)
            if failures:
                raise self._roll_back(failures, done)

    def _send(self, part: Steps[Thing], done: Steps[Thing]) -> tuple[Steps[Thing], Mapping[int, Failure]]:
        """Send one part; return the accepted steps, and the failures by the change's position."""
        try:
            refused = self.transport.send(part)
        except AnswersLostError:
            _logger.warning("the kernel's answers were lost; reading back decides")
            return part, self.transport.unfulfilled(done.followed_by(part))
        all_refused = not done.verbs and len(refused) == len(part.verbs)
        if all_refused and {failure.errno for failure in refused.values()} == {errno.EPERM}:
            plural = self.kind.replace(" and ", "s and ") + "s"
            raise PermissionDeniedError(
                f"changing {plural} needs root or CAP_NET_ADMIN; nothing was changed", errno=errno.EPERM
            )
        return part.without(refused), {part.positions[number]: failure for number, failure in refused.items()}

    def rejection(
        self,
        failures: Mapping[int, Failure],
        *,
        left_behind: Sequence[str] = (),
        overtaken: Sequence[str] = (),
    ) -> RouteRejectedError:
        """Return the error for these failures, by the change's position."""
        return RouteRejectedError(
            [Refusal(self.describe(position), *failure) for position, failure in sorted(failures.items())],
            rolled_back=not left_behind,
            left_behind=[*left_behind],
            overtaken=[*overtaken],
            what=self.kind,
        )

    def _roll_back(self, failures: Mapping[int, Failure], done: Steps[Thing]) -> RouteRejectedError:
        back = _inverse(done)
        refused = self._send_back(back)
        doubtful = back if refused is None else back.without(set(range(len(back.verbs))).difference(refused))
        standing = _near(done, self.transport.standing())
        left_behind = _unmet(_expectations(doubtful), standing.values())
        repairs = _changed_forms(doubtful, _near(done, self.before), standing)
        if repairs.verbs:
            self._send_back(repairs)
            left_behind += _unmet(_expectations(repairs), self.transport.standing())
        overtaken = [
            self.describe(back.positions[number])
            for number, failure in (refused or {}).items()
            if back.verbs[number] == "remove" and failure.errno in {errno.ESRCH, errno.ENOENT}
            if back.positions[number] not in repairs.positions
        ]
        words = [f"{'missing' if wrong.there else 'still there'}: {wrong.thing}" for wrong in left_behind]
        return self.rejection(failures, left_behind=words, overtaken=overtaken)

    def _send_back(self, steps: Steps[Thing]) -> Mapping[int, Failure] | None:
        """Send steps of a rollback; return the refusals, or None if answers were lost."""
        try:
            return self.transport.send(steps)
        except AnswersLostError:
            _logger.warning("the kernel's answers to a rollback were lost; reading back decides")
            return None


def _near(steps: Steps[Thing], things: Iterable[Thing]) -> dict[Hashable, Thing]:
    """Return the things in the slots of the steps, by their identity."""
    used = set(map(slot, steps.things))
    return {identity(thing): thing for thing in things if slot(thing) in used}


def slot(thing: AnyRoute | LinkThing) -> Hashable:
    """Return the key by which the kernel looks for a thing's place."""
    return (thing.address, thing.dev) if isinstance(thing, Neighbour) else place(thing)


def _changed_forms(
    unremoved: Steps[Thing], before: Collection[Hashable], standing: Mapping[Hashable, Thing]
) -> Steps[Thing]:
    """Return the removals of added things that the kernel changed, so that the first removal missed them."""
    forms = {
        _form(thing): position
        for verb, thing, position in unremoved
        if verb == "remove" and identity(thing) not in standing
    }
    repairs: Steps[Thing] = Steps()
    for one, thing in standing.items():
        if one not in before and _form(thing) in forms:
            repairs.add("remove", thing, forms[_form(thing)])
    return repairs


def _form(thing: AnyRoute | LinkThing) -> Hashable:
    """Return the part of a thing that the kernel keeps as it was sent; it limits the metrics of a route."""
    if isinstance(thing, Neighbour):
        return thing
    return identity(thing._replace(extra=()) if isinstance(thing, ObservedRoute) else attrs.evolve(thing, extra=()))


def missing_after(steps: Steps[Thing], standing: Iterable[Thing]) -> dict[int, Failure]:
    """Return which changes are not in force in `standing`, by their position."""
    return {
        wrong.position: Failure(errno.ENOENT, "not refused, but not there on reading back")
        if wrong.there
        else Failure(errno.EEXIST, f"not refused, but on reading back '{wrong.thing}' is still there")
        for wrong in _unmet(_expectations(steps), standing)
    }


def identity(thing: AnyRoute | LinkThing) -> Hashable:
    """Return the part of a thing that stays the same from reading to reading."""
    return thing if isinstance(thing, Neighbour) else (thing.network, signature(thing))


def taken_by(named: Thing, here: Sequence[Thing], is_deleted_by: Callable[[Thing, Thing], bool]) -> Thing | Failure:
    """Return the thing among those of one place that the kernel's deletion of `named` takes: the first that fits.

    If that is another thing, or none, return the refusal of the removal instead.
    """
    number = errno.ENOENT if isinstance(named, Neighbour) else errno.ESRCH
    first = next((thing for thing in here if is_deleted_by(named, thing)), None)
    if first is None:
        other = f", but there is '{here[0]}'" if here else ""
        return Failure(number, f"{os.strerror(number)}{other}")
    if identity(first) != identity(named):
        return Failure(number, f"the kernel would remove '{first}' instead")
    return first


def _inverse(done: Steps[Thing]) -> Steps[Thing]:
    """Newest first: a gateway's on-link route was added before the routes through it, and goes after them."""
    verbs = ["append" if verb == "remove" else "remove" for verb in reversed(done.verbs)]
    back = Steps(verbs, done.things[::-1], done.positions[::-1])
    if len(set(verbs)) == 1:
        return back
    # A thing that was removed and added again is there as before. If its owner has deleted it since, it stays so.
    identities = list(map(identity, back.things))
    newest = dict(zip(reversed(identities), reversed(verbs), strict=True))
    oldest = dict(zip(identities, verbs, strict=True))
    seen: set[Hashable] = set()
    superfluous = set()
    for number, one in enumerate(identities):
        if one in seen or newest[one] != oldest[one]:
            superfluous.add(number)
        seen.add(one)
    return back.without(superfluous)


class _Expectation(NamedTuple):
    position: int
    thing: object
    there: bool


def _expectations(steps: Steps[Thing]) -> dict[Hashable, _Expectation]:
    """Return the things that must and must not exist after the steps; the last step of each thing decides."""
    return {identity(thing): _Expectation(position, thing, there=verb != "remove") for verb, thing, position in steps}


def _unmet(expected: dict[Hashable, _Expectation], standing: Iterable[Thing]) -> list[_Expectation]:
    """Return which expectations `standing` does not meet; `expected` is used up."""
    unmet = []
    for thing in standing:
        expectation = expected.pop(identity(thing), None)
        if expectation is not None and not expectation.there:
            unmet.append(expectation)
    return unmet + [expectation for expectation in expected.values() if expectation.there]
