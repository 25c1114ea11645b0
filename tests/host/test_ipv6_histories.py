"""Random histories of IPv6 routes: own ones beside those of a program that adds, appends, replaces
and deletes.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random

import pytest
from support.kernel import needs_kernel

from hostrouting import BackendError, RouteRejectedError
from hostrouting.host import IPV6, OUR_PROTOCOL, NextHop, ObservedRoute, RouteChange
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.testing import KernelNode
from hostrouting.testing.route_texts import route

HISTORIES = 25
STEPS = 20
WAYS = (
    "via fd00:1::7 dev eth0",
    "via fd00:1::8 dev eth0",
    "via fd00:a::7 dev ib0",
    "dev eth0",
    "dev ib0",
    "nhid 5",
)


@pytest.fixture(scope="module")
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as made:
        for dev, address in ("eth0", "fd00:1::4/64"), ("ib0", "fd00:a::4/64"):
            made.add_link(dev)
            made.add_address(dev, address)
        made.ip("nexthop add id 5 via fd00:a::9 dev ib0")
        yield made


def meddle(node: KernelNode, random: Random) -> None:
    """Let another program act; the kernel may refuse it."""
    verb = random.choice(["add", "append", "prepend", "replace", "delete"])
    destination = f"fd00:9:{random.randrange(2)}::/48"
    words = [destination, *random.choice(WAYS).split(), "metric", random.choice(["1", "2"])]
    with suppress(BackendError):
        node.ip(f"-6 route {verb}", *words, "proto", random.choice(["142", "static"]))


def own_changes(backend: NetlinkBackend, random: Random) -> list[RouteChange]:
    """Return a batch: an addition, removals and replacements of what stands, and perhaps a refusal."""
    standing = backend.routes_of(OUR_PROTOCOL, IPV6)
    changes = [RouteChange.remove(each) for each in standing if random.random() < 0.3]
    for number in range(2):
        wanted = route(f"fd00:9:{number}::/48 {random.choice(WAYS[:5])} metric 1 proto 142")
        held = [
            each for each in standing if each.destination == wanted.destination and each.metric == 1
        ]
        if held and random.random() < 0.5 and RouteChange.remove(held[0]) not in changes:
            changes.append(RouteChange.replace(held[0], wanted))
        elif random.random() < 0.7:
            changes.append(RouteChange.add(wanted))
    if random.random() < 0.3:
        changes.append(
            RouteChange.add(route("fd00:8::/48 via fd00:99::1 dev eth0 metric 1 proto 142"))
        )
    return changes


def hops(routes: list[ObservedRoute]) -> set[frozenset[NextHop]]:
    """Return the next hops of the routes that have several."""
    return {frozenset(route.nexthops) for route in routes if route.nexthops}


def applied(backend: NetlinkBackend, changes: Sequence[RouteChange]) -> RouteRejectedError | None:
    try:
        backend.apply(changes)
    except RouteRejectedError as error:
        return error
    return None


@needs_kernel
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_no_own_change_merges_routes_or_takes_a_foreign_one(node: KernelNode, seed: int) -> None:
    """A batch makes no route with several next hops, and leaves what it does not name as it is;
    refused, it is none.

    A route that stood between two next hops, which the kernel does not show, may come to light.
    """
    random = Random(seed)
    backend = NetlinkBackend(netns=node.name)
    for _ in range(STEPS):
        meddle(node, random)
        changes = own_changes(backend, random)
        before = backend.routes(IPV6)
        error = applied(backend, changes)
        after = backend.routes(IPV6)
        named = [change.before for change in changes]
        lost = [route for route in before if route not in after and (route not in named or error)]
        left_behind = (
            [line for line in error.left_behind if not line.startswith("now the last")]
            if error
            else []
        )
        assert sorted(left_behind) == sorted(f"missing: {route}" for route in lost), error
        assert hops(after) <= hops(before), changes
        for change in changes:
            there = change.after is not None and any(route.fulfils(change.after) for route in after)
            assert error or there == (change.after is not None)
