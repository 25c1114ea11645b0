"""Changes of neighbours: which the kernel would refuse, and which were made."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Literal

from hostrouting.base.errors import PermissionDeniedError
from hostrouting.net.links import Neighbour, NeighbourChange, is_as_shown
from hostrouting.net.rejected import NeighbourRejectedError, Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from hostrouting.host.netlink.frames import Failure

Verb = Literal["remove", "add"]


def refuse_impossible(
    verb: Verb,
    neighbours: Sequence[Neighbour],
    known: Iterable[Neighbour],
    devices: Collection[str],
) -> None:
    """Raise `NeighbourRejectedError` for changes that the kernel would refuse or misapply.

    It removes by address and device alone, and shows some neighbours otherwise than they were
    added.
    """
    in_place = {(neighbour.address, neighbour.dev): neighbour for neighbour in known}
    refusals = []
    for neighbour in neighbours:
        slot = neighbour.address, neighbour.dev
        failure = _obstacle(verb, neighbour, in_place.get(slot), devices)
        if failure is not None:
            number, reason = failure
            refusals.append(Refusal(NeighbourChange(verb, neighbour), number, reason))
        elif verb == "add":
            in_place[slot] = neighbour
        else:
            del in_place[slot]
    if refusals:
        raise NeighbourRejectedError(refusals)


def _obstacle(
    verb: Verb, neighbour: Neighbour, current: Neighbour | None, devices: Collection[str]
) -> tuple[int, str] | None:
    """Return the errno and the reason if a change cannot be made.

    `current` has the address and the device of the neighbour now.
    """
    if neighbour.dev not in devices:
        return errno.ENODEV, f"there is no device {neighbour.dev}"
    if not is_as_shown(neighbour):
        # Once removed, it could not be restored; once added, it could not be found.
        return errno.EINVAL, "the kernel would make something else of it"
    if verb == "add":
        return (errno.EEXIST, f"its place is taken by '{current}'") if current else None
    if current is None:
        return errno.ENOENT, os.strerror(errno.ENOENT)
    if current != neighbour:
        return errno.ENOENT, f"the kernel would remove '{current}' instead"
    return None


def check_changes(
    verb: Verb,
    neighbours: Sequence[Neighbour],
    failures: Mapping[int, Failure],
    known: Iterable[Neighbour],
) -> None:
    """Raise `NeighbourRejectedError` if a change is not in force in `known`, a later reading."""
    in_place = set(known)
    not_in_force = (errno.EAGAIN, "not in force on reading back: another program is at work")
    made = []
    refusals = []
    for number, neighbour in enumerate(neighbours):
        is_made = neighbour in in_place if verb == "add" else neighbour not in in_place
        if is_made:
            made.append(neighbour)
        else:
            failure = failures.get(number) or not_in_force
            refusals.append(Refusal(NeighbourChange(verb, neighbour), *failure))
    if refusals and not made and {refusal.errno for refusal in refusals} == {errno.EPERM}:
        raise PermissionDeniedError(
            "changing neighbours needs root or CAP_NET_ADMIN; nothing was changed"
        )
    if refusals:
        raise NeighbourRejectedError(refusals, made)
