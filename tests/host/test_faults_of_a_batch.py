"""A batch with a fault at any step, its rollback included, or at any call of the socket: the routes
are as the error reports.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import pytest
from support.kernel import connect, kernel_of, needs_kernel

from hostrouting.exceptions import (
    BackendError,
    HostRoutingError,
    PermissionDeniedError,
    RouteRejectedError,
)
from hostrouting.host import RouteBackend, RouteChange
from hostrouting.host.netlink import NetlinkBackend, conversation
from hostrouting.testing import KernelNode, MemoryBackend
from hostrouting.testing.contracts.routes import arrange, find
from hostrouting.testing.route_texts import route

#: Those of the kernel for a change of routes: of privilege, of memory, of what other programs did
#: meanwhile, and of what it does not take.
ERRNOS = [
    errno.EPERM,
    errno.ESRCH,
    errno.ENOMEM,
    errno.EEXIST,
    errno.ENODEV,
    errno.EINVAL,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENOBUFS,
    errno.EHOSTUNREACH,
]
#: Of IPv4, the second is the first of two in its place.
BEFORE = (
    "5.0.0.0/8 via 10.224.0.5 dev eth0",
    "6.0.0.0/8 via 10.224.0.6 dev eth0",
    "6.0.0.0/8 via 10.224.0.7 dev eth0",
    "fd05::/32 via fd00:1::5 dev eth0 metric 1",
    "fd06::/32 dev eth0 metric 1",
)


def node_before() -> MemoryBackend:
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16")
    node.add_address("eth0", "fd00:1::4/64")
    arrange(node, *BEFORE)
    return node


def batch(node: MemoryBackend) -> Sequence[RouteChange]:
    """Return additions, removals and replacements, so that each part of a batch has several."""
    present = [find(node, text) for text in BEFORE]
    return [
        RouteChange.add(route("8.0.0.0/8 dev eth0 proto 142")),
        RouteChange.replace(present[0], route("5.0.0.0/8 via 10.224.0.9 dev eth0 proto 142")),
        RouteChange.remove(present[1]),
        RouteChange.add(route("fd08::/32 dev eth0 proto 142 metric 1")),
        RouteChange.replace(
            present[3], route("fd05::/32 via fd00:1::9 dev eth0 proto 142 metric 1")
        ),
        RouteChange.remove(present[4]),
    ]


def routes_of(backend: RouteBackend) -> list[str]:
    return [*map(str, chain.from_iterable(map(backend.routes, backend.families)))]


def differences(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return how an error describes routes that were added or removed."""
    added = [f"still there: {text}" for text in now if text not in before]
    return added + [f"missing: {text}" for text in before if text not in now]


def after(node: MemoryBackend, *, verify: bool) -> HostRoutingError | None:
    try:
        node.apply(batch(node), verify=verify)
    except HostRoutingError as error:
        return error
    return None


def steps_of_a_batch() -> int:
    node = node_before()
    assert after(node, verify=True) is None
    return len(node.steps.calls)


@pytest.mark.parametrize("number", ERRNOS, ids=errno.errorcode.get)
@pytest.mark.parametrize("verify", [True, False])
def test_the_routes_are_as_in_the_error(number: int, *, verify: bool) -> None:
    """A batch that fails at one step, or at a later one as well, the rollback included, leaves the
    routes as its error reports.
    """
    steps = steps_of_a_batch()
    for first in range(1, steps + 1):
        # A second fault beyond the last step is none.
        for second in range(first + 1, 2 * steps + 1):
            node = node_before()
            before = routes_of(node)
            for step in first, second:
                node.refuse_at(step, number=number)
            error = after(node, verify=verify)
            now = routes_of(node)
            where = first, second, str(error)
            if isinstance(error, PermissionDeniedError):
                assert str(error).endswith("nothing was changed"), where
                assert now == before, where
                continue
            assert isinstance(error, RouteRejectedError), where
            moved = [line for line in error.left_behind if line.startswith("now the last")]
            named = [line for line in error.left_behind if line not in moved]
            assert sorted(named) == sorted(differences(before, now)), where
            assert error.rolled_back == (now == before), where
            assert error.refusals[0].errno == number, where


# --- the socket

#: A route of a merged next hop, or with a metric, returns to the same place.
IN_THE_KERNEL = (
    "5.0.0.0/8 via 10.224.0.5 dev eth0",
    "6.0.0.0/8 via 10.224.0.6 dev eth0",
    "fd05::/32 via fd00:1::5 dev eth0 metric 1",
)
ADDED = "8.0.0.0/8 via 10.224.0.9 dev eth0 proto 142"
NOT_READ = "unknown, because it cannot be read back"


class FaultySocket:
    """A socket, one of whose calls fails; with `lasts` all later calls fail, too."""

    def __init__(
        self, opened: socket.socket, step: int, fault: Callable[[Any], int], *, lasts: bool
    ) -> None:
        self._opened = opened
        self._step = step
        self._fault = fault
        self._lasts = lasts
        self.calls: list[str] = []

    def __enter__(self) -> "FaultySocket":
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._opened, name)
        if name not in {"send", "recv_into"}:
            return call

        def counted(*arguments: Any) -> int:
            self.calls.append(name)
            calls = len(self.calls)
            if calls == self._step or (self._lasts and calls > self._step):
                return self._fault(lambda: call(*arguments))
            answer: int = call(*arguments)
            return answer

        return counted


def fails(number: int) -> Callable[[Any], int]:
    """Return a fault: the call does nothing."""

    def fault(_: Any) -> int:
        raise OSError(number, os.strerror(number))

    return fault


def fails_after(number: int) -> Callable[[Any], int]:
    """Return a fault: the kernel carries the call out; the answer that it had is lost."""

    def fault(call: Any) -> int:
        call()
        raise OSError(number, os.strerror(number))

    return fault


FAULTS = {
    "EPERM": fails(errno.EPERM),
    "EINTR": fails(errno.EINTR),
    "ENOBUFS": fails(errno.ENOBUFS),
    "ENOBUFS, carried out": fails_after(errno.ENOBUFS),
    "ENOMEM, carried out": fails_after(errno.ENOMEM),
    "no answer": fails_after(errno.EAGAIN),
}


@pytest.fixture(scope="module")
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        connect(node, eth0="10.224.0.4/16")
        node.add_address("eth0", "fd00:1::4/64")
        arrange(node, *IN_THE_KERNEL)
        yield node


def kernels_batch(backend: NetlinkBackend) -> list[RouteChange]:
    """Return an addition, replacements and a removal: two parts, of both families."""
    return [
        RouteChange.add(route(ADDED)),
        RouteChange.replace(
            find(backend, IN_THE_KERNEL[0]), route("5.0.0.0/8 via 10.224.0.9 dev eth0 proto 142")
        ),
        RouteChange.remove(find(backend, IN_THE_KERNEL[1])),
        RouteChange.remove(find(backend, IN_THE_KERNEL[2])),
    ]


def restore(node: KernelNode) -> None:
    for family, number in ("-4", "boot"), ("-6", "boot"):
        node.ip(f"{family} route flush proto {number}")
        node.ip(f"{family} route flush proto 142")
    arrange(node, *IN_THE_KERNEL)


@needs_kernel
@pytest.mark.slow
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    # The kernel reports an overflow once, and an empty queue is no error.
    ("fault", "lasts"),
    [*((fault, False) for fault in FAULTS), ("EPERM", True), ("ENOMEM, carried out", True)],
)
def test_the_kernel_has_the_routes_that_the_error_names(
    node: KernelNode, monkeypatch: pytest.MonkeyPatch, fault: str, *, verify: bool, lasts: bool
) -> None:
    """A batch at whose socket a call fails is in force as a whole, or its error lists each change
    that was not undone.
    """
    backend = kernel_of(node)
    before = routes_of(kernel_of(node))
    steps = 1
    plain = conversation.open_here
    while True:
        opened: list[FaultySocket] = []

        def open_faulty(step: int = steps, opened: list[FaultySocket] = opened) -> Any:
            opened.append(FaultySocket(plain(), step, FAULTS[fault], lasts=lasts))
            return opened[0]

        changes = kernels_batch(backend)
        error = None
        with monkeypatch.context() as patched:
            patched.setattr(conversation, "open_here", open_faulty)
            try:
                backend.apply(changes, verify=verify)
            except BackendError as raised:
                error = raised
        calls = opened[0].calls
        now = routes_of(backend)
        where = steps, calls[: steps + 1], str(error)
        if now != before:
            restore(node)
            assert routes_of(backend) == before
        if isinstance(error, RouteRejectedError):
            if any(line.startswith(NOT_READ) for line in error.left_behind):
                assert not error.rolled_back, where
                named = {line.rpartition(": ")[2] for line in error.left_behind}
                assert set(now) ^ set(before) <= named, where
            else:
                assert sorted(error.left_behind) == sorted(differences(before, now)), where
                assert error.rolled_back == (now == before), where
        elif error is not None:
            assert now == before, where
        else:
            assert ADDED in now, where
            assert not set(IN_THE_KERNEL) & set(now), where
        if len(calls) < steps:
            break
        steps += 1
    assert steps > 10
