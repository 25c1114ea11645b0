"""Functions that run in another network namespace."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "in_namespace",
    "open_here",
]

_CLONE_NEWNET: Final = 0x40000000
_NAMED_NAMESPACES: Final = "/run/netns"

_T = TypeVar("_T")


def in_namespace(netns: str | None, function: Callable[[], _T]) -> _T:
    """Call the function in the namespace `netns` (a name of `ip netns`, or a path; None: ours) and return its result.

    A new thread enters the namespace and ends there, so no failure can leave one of the caller's threads in it. A
    socket belongs to the namespace that its thread was in when it was made.
    """
    if not netns:
        return function()
    path = netns if "/" in netns else f"{_NAMED_NAMESPACES}/{netns}"
    outcome: list[_T | OSError] = []

    def enter() -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _setns(descriptor)
                outcome.append(function())
            finally:
                os.close(descriptor)
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=enter, name=f"enter-{netns}", daemon=True)
    thread.start()
    thread.join()
    if isinstance(outcome[0], OSError):
        raise outcome[0]
    return outcome[0]


def open_here() -> socket.socket:
    """Return a raw rtnetlink socket in the namespace of this thread."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)


def _setns(descriptor: int) -> None:
    # os.setns came with Python 3.12. ctypes takes 5 ms to import, so only if a namespace is named.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
