"""A fault at every step of a batch, and at every step of its rollback, by each errno: the routes are
what the error has.
"""

import errno
from collections.abc import Sequence
from itertools import chain

import pytest
from support.kernel import connect

from hostrouting.exceptions import HostRoutingError, PermissionDeniedError, RouteRejectedError
from hostrouting.host import RouteChange
from hostrouting.testing import MemoryBackend
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


def routes_of(node: MemoryBackend) -> list[str]:
    return [*map(str, chain.from_iterable(map(node.routes, node.families)))]


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
    """A fault of a step, alone or with a fault of any later one, the rollback included."""
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
