"""Removals of neighbours: which would remove another entry, and which the kernel refused."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from hostrouting.base.errors import BackendError, PermissionDeniedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from hostrouting.host.netlink.frames import Failure
    from hostrouting.net.links import Neighbour


def refuse_changed(neighbours: Sequence[Neighbour], known: Collection[Neighbour]) -> None:
    """Raise `BackendError` if an entry to remove is absent or has changed.

    The kernel removes by address and device, so it would remove another program's entry instead.
    """
    present = set(known)
    for neighbour in neighbours:
        if neighbour not in present:
            raise BackendError(
                f"no neighbour was removed: '{neighbour}' is absent or has changed",
                errno=errno.ENOENT,
            )


def refuse_failed(
    neighbours: Sequence[Neighbour], failures: Mapping[int, Failure], known: Collection[Neighbour]
) -> None:
    """Raise an error if an entry is still in `known`, which was read after the removal."""
    present = set(known)
    remaining = [
        (number, neighbour) for number, neighbour in enumerate(neighbours) if neighbour in present
    ]
    if not remaining:
        return
    number, neighbour = remaining[0]
    failure = failures.get(number)
    if failure is None:
        raise BackendError(f"'{neighbour}' is back: another program added it again")
    if failure.errno == errno.EPERM:
        raise PermissionDeniedError("removing neighbours needs root or CAP_NET_ADMIN")
    raise BackendError(f"'{neighbour}' was not removed: {failure.reason}", errno=failure.errno)
