"""All or nothing for neighbours and IPv6 routes: what every link layer does around its own way to read and to send.

Everything is read first, so most refusals are known before anything is changed; and read again afterwards, for it is
the reading that says what holds, not the answers.
"""

from __future__ import annotations

import errno
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from hostrouting.exceptions import PermissionDeniedError, Refusal, RouteRejectedError
from hostrouting.host.netlink.commit import AnswersLostError, Failure
from hostrouting.net.addresses import IPV6, canonical
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import DEVICELESS_KINDS, LOCAL_TABLE, ObservedRoute, place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Step", "Thing", "Things", "Transport", "commit", "is_as_shown", "shares_place", "slot"]

_logger = logging.getLogger(__name__)

Thing: TypeAlias = Neighbour | ObservedRoute


class Step(NamedTuple):
    """One change. A verb is `remove`, `add`, or `restore` (an addition that puts back what a batch took away)."""

    verb: str
    thing: Thing

    def __str__(self) -> str:
        return f"{'-' if self.verb == 'remove' else '+'} {self.thing}"


class Things(NamedTuple):
    """A reading: all neighbours and routes, and the names of the devices."""

    devices: frozenset[str]
    things: Sequence[Thing]


class Transport(Protocol):
    """A link layer's own way to read and to change."""

    def read(self) -> Things:
        """All that there is now."""
        ...

    def send(self, steps: Sequence[Step]) -> Mapping[int, Failure]:
        """Do all the steps, going on past refusals, which are returned by the step's position."""
        ...


def commit(transport: Transport, *, remove: Sequence[Thing], add: Sequence[Thing]) -> None:
    """Make all the changes or none; see `LinkLayer.apply` for what it raises."""
    removals = [Step("remove", thing) for thing in remove]
    steps = removals + [Step("add", thing) for thing in add]
    if not steps:
        return
    before = transport.read()
    foreseen = _foreseen(steps, before)
    if foreseen:
        raise _error(steps, foreseen, [])
    failures: dict[int, Failure] = {}
    sent = 0
    for end in (len(removals), len(steps)):
        part = steps[sent:end]
        if not part or failures:
            continue
        try:
            refused = transport.send(part)
        except AnswersLostError:
            _logger.warning("the kernel's answers were lost; reading back decides")
            refused = {}
        if sent == 0 and len(refused) == len(part) and {failure.errno for failure in refused.values()} == {errno.EPERM}:
            raise PermissionDeniedError(
                "changing neighbours and routes needs root or CAP_NET_ADMIN; nothing was changed", errno=errno.EPERM
            )
        failures |= {sent + position: failure for position, failure in refused.items()}
        sent = end
    now = transport.read()
    failures = failures or _unfulfilled(steps, before, now)
    if failures:
        raise _roll_back(transport, steps, failures, before, now)


def slot(thing: Thing) -> tuple[object, ...]:
    """What the kernel goes by when it looks for a thing's place."""
    if isinstance(thing, Neighbour):
        return thing.address, thing.dev
    return place(thing)


def shares_place(thing: Thing, other: Thing) -> bool:
    """Whether two things of one slot cannot stand beside each other.

    Routes of different devices can (every device has its `fe80::/64`), unless both have gateways: those the kernel
    makes next hops of one route.
    """
    if isinstance(thing, Neighbour) or isinstance(other, Neighbour):
        return True
    return thing.dev == other.dev or (_has_gateway(thing) and _has_gateway(other))


def is_as_shown(thing: Thing) -> bool:
    """Return True if the port shows such a thing: it could not find again what the kernel changes.

    The kernel turns metric 0 into 1024 and no protocol into `boot`, and drops the bits after a prefix.

    >>> is_as_shown(Neighbour("FD00::9", "azure0", "12:34:56:78:9a:bc", permanent=True))
    False
    """
    try:
        if isinstance(thing, Neighbour):
            mac = bytes.fromhex(thing.mac.replace(":", "")).hex(":")
            return bool(mac) and mac == thing.mac and canonical(thing.address) == thing.address
        # Raises ValueError for what no route may be.
        thing.to_route()
    except ValueError:
        return False
    return (
        thing.family == IPV6
        and (thing.from_prefix is None or thing.from_prefix == thing.from_prefix.masked)
        and not (thing.kind in DEVICELESS_KINDS and thing.dev is not None)
        and thing.table != LOCAL_TABLE
        and thing.scope == thing.tos == 0
        and min(thing.metric, thing.protocol) > 0
    )


def _has_gateway(route: ObservedRoute) -> bool:
    return route.gateway is not None or (route.dev is None and route.kind == "unicast")


def _identity(thing: Thing) -> Thing:
    return thing.without_expiry() if isinstance(thing, ObservedRoute) else thing


def _by_slot(things: Sequence[Thing]) -> dict[tuple[object, ...], list[Thing]]:
    """The things of each slot, as they are from reading to reading."""
    held: dict[tuple[object, ...], list[Thing]] = defaultdict(list)
    for thing in things:
        held[slot(thing)].append(_identity(thing))
    return held


def _foreseen(steps: Sequence[Step], before: Things) -> dict[int, Failure]:
    """What will be refused, by position, as far as a reading can tell."""
    held = _by_slot(before.things)
    failures = {}
    for position, (verb, thing) in enumerate(steps):
        here = held[slot(thing)]
        other = next((other for other in here if shares_place(thing, other)), None)
        if thing.dev is not None and thing.dev not in before.devices:
            failures[position] = Failure(errno.ENODEV, f"there is no device {thing.dev}")
        elif not is_as_shown(thing):
            # Once removed, it could not be put back; once added, not be found.
            failures[position] = Failure(errno.EINVAL, "the kernel would make something else of it")
        elif verb == "add":
            if other is not None:
                failures[position] = Failure(errno.EEXIST, f"its place is taken by '{other}'")
            here.append(_identity(thing))
        elif _identity(thing) in here:
            here.remove(_identity(thing))
        else:
            number = errno.ENOENT if isinstance(thing, Neighbour) else errno.ESRCH
            said = f"it differs from what is there: '{other}'" if other is not None else "there is none"
            failures[position] = Failure(number, said)
    return failures


def _unfulfilled(steps: Sequence[Step], before: Things, now: Things) -> dict[int, Failure]:
    """Which steps are not in force on reading back, though nothing was refused."""
    was, held = _by_slot(before.things), _by_slot(now.things)
    added = {_identity(step.thing) for step in steps if step.verb == "add"}
    removed = {_identity(step.thing) for step in steps if step.verb == "remove"} - added
    failures = {}
    for position, (verb, thing) in enumerate(steps):
        here = held[slot(thing)]
        if verb == "add":
            if _identity(thing) not in here:
                failures[position] = Failure(errno.ENOENT, "not refused, but not there on reading back")
        elif _identity(thing) in removed and _identity(thing) in here:
            failures[position] = Failure(errno.EEXIST, "not refused, but still there on reading back")
        else:
            # A removal names a route by less than all of its details: did it hit another one of the same device?
            lost = [
                other
                for other in was[slot(thing)]
                if other.dev == thing.dev and other not in removed and other not in here
            ]
            if lost:
                failures[position] = Failure(errno.ENOENT, f"it took '{lost[0]}' along")
    return failures


def _roll_back(
    transport: Transport, steps: Sequence[Step], failures: Mapping[int, Failure], before: Things, now: Things
) -> RouteRejectedError:
    inverse = _differences(steps, before, now)
    if inverse:
        try:
            transport.send(inverse)
        except AnswersLostError:
            _logger.warning("the kernel's answers to a rollback were lost; reading back decides")
        now = transport.read()
    left_behind = [
        f"{'still there' if step.verb == 'remove' else 'missing'}: {step.thing}"
        for step in _differences(steps, before, now)
    ]
    return _error(steps, failures, left_behind)


def _differences(steps: Sequence[Step], before: Things, now: Things) -> list[Step]:
    """What it takes to get from `now` to `before` where the steps have changed something, newest first."""
    was = {_identity(thing): thing for thing in before.things}
    held = {_identity(thing) for thing in now.things}
    differences = []
    for verb, thing in reversed(steps):
        same = _identity(thing)
        if verb == "add" and same in held and same not in was:
            differences.append(Step("remove", thing))
        elif verb == "remove" and same not in held:
            # As it was read: what the caller named has perhaps no expiry.
            differences.append(Step("restore", was.get(same, thing)))
    touched = {(slot(step.thing), step.thing.dev) for step in steps if step.verb == "remove"}
    removed = {_identity(step.thing) for step in steps}
    differences += [
        Step("restore", thing)
        for thing in before.things
        if (slot(thing), thing.dev) in touched and _identity(thing) not in held | removed
    ]
    return differences


def _error(steps: Sequence[Step], failures: Mapping[int, Failure], left_behind: list[str]) -> RouteRejectedError:
    refused = [steps[position] for position in sorted(failures)]
    kinds = {"neighbour" if isinstance(step.thing, Neighbour) else "route" for step in steps}
    return RouteRejectedError(
        [Refusal(str(step), *failures[position]) for position, step in zip(sorted(failures), refused, strict=True)],
        rolled_back=not left_behind,
        left_behind=left_behind,
        what=" and ".join(sorted(kinds)),
    )
