"""Facts of `NetlinkBackend` that only the kernel shows: privileges, lost answers, details that no
value models.
"""

import errno
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kernel import connect, kernel_of, many, needs_kernel, powerless

from hostrouting.exceptions import BackendError, RouteRejectedError
from hostrouting.host import Address, NextHop, Route, RouteChange
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.conversation import Conversation
from hostrouting.host.netlink.frames import Request
from hostrouting.host.pyroute import Pyroute2Backend
from hostrouting.net.addresses import parse_ipv4
from hostrouting.testing import KernelNode

pytestmark = needs_kernel

GATEWAY = Address.parse("10.224.0.1")


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as made:
        connect(made, eth0="10.224.0.4/16")
        made.add_link("ib0")
        yield made


@pytest.fixture
def backend(node: KernelNode) -> NetlinkBackend:
    return kernel_of(node)


@pytest.fixture
def big_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one send have more messages than a queue has room for answers."""
    for module in "backend", "bulk":
        monkeypatch.setattr(f"hostrouting.host.netlink.{module}.BATCH", 4096)


@pytest.fixture
def short_queues(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give sockets room for few answers; return a list with an entry for each socket that is
    opened.
    """
    numbers: list[int] = []

    class Short(Conversation):
        def __init__(self, opened: socket.socket) -> None:
            super().__init__(opened)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
            numbers.append(opened.fileno())

    monkeypatch.setattr("hostrouting.host.netlink.conversation.Conversation", Short)
    return numbers


def own_count(backend: NetlinkBackend) -> int:
    return sum(route.protocol == 142 for route in backend.routes())


def without_privilege(node: KernelNode, program: str) -> str:
    """Run Python inside the namespace."""
    return node.run(*powerless(), sys.executable, "-c", program)


@pytest.mark.parametrize(
    ("netns", "number"), [("no-such-namespace", errno.ENOENT), ("/dev/null", errno.EINVAL)]
)
def test_a_missing_namespace_is_a_clear_error(netns: str, number: int) -> None:
    """A namespace that cannot be entered is an error that has its name and the reason."""
    with pytest.raises(BackendError) as caught:
        NetlinkBackend(netns=netns).links()
    assert str(caught.value) == f"rtnetlink in network namespace {netns}: {os.strerror(number)}"
    assert caught.value.errno == number


def test_visiting_a_namespace_leaves_our_threads_where_they_were(backend: NetlinkBackend) -> None:
    """A thread that reads another namespace is in its old namespace afterwards."""
    own_count = Path("/proc/thread-self/ns/net")
    before = own_count.readlink()
    backend.routes()
    assert own_count.readlink() == before


def test_reading_needs_no_privilege(node: KernelNode, backend: NetlinkBackend) -> None:
    """Any user may read links, routes and rules, and do lookups."""
    seen = without_privilege(
        node,
        "from hostrouting.host.netlink import NetlinkBackend as B; b = B();"
        "print(len(b.links()), len(b.routes()), len(b.rules()), b.lookup([0x0AE00009])[0].route)",
    )
    assert (
        seen
        == f"3 {len(backend.routes())} 3 10.224.0.0/16 dev eth0 proto kernel scope link src 10.224.0.4\n"
    )


def test_changing_needs_privilege(node: KernelNode, backend: NetlinkBackend) -> None:
    """A change of routes without privilege raises an error that names the privilege and that
    nothing was changed.
    """
    seen = without_privilege(
        node,
        "from hostrouting.host.netlink import NetlinkBackend as B\n"
        "from hostrouting.host import Route, RouteChange\n"
        "try: B().apply([RouteChange.add(Route.parse('9.0.0.0/8', dev='eth0'))])\n"
        "except Exception as error: print(type(error).__name__, error)",
    )
    assert (
        seen
        == "PermissionDeniedError changing routes needs root or CAP_NET_ADMIN; nothing was changed\n"
    )
    assert own_count(backend) == 0


@pytest.mark.usefixtures("short_queues", "big_sends")
def test_lost_answers_are_replaced_by_reading_back(backend: NetlinkBackend) -> None:
    """A send with more refusals than the queue holds finds each result by reading back."""
    with pytest.raises(RouteRejectedError) as caught:
        backend.apply(many(2000, every=2))
    assert len(caught.value.refusals) == 1000
    assert {refusal.reason for refusal in caught.value.refusals} == {
        "not refused, but the route is not there"
    }
    assert caught.value.rolled_back
    assert own_count(backend) == 0


@pytest.mark.usefixtures("big_sends")
def test_lost_lookups_are_sent_again(backend: NetlinkBackend, short_queues: list[int]) -> None:
    """Lost lookups are sent again in smaller portions, since lookups change nothing."""
    destinations = [10 << 24 | 224 << 16 | number for number in range(1, 3001)]
    answers = backend.lookup(destinations)
    assert len(short_queues) > 1
    assert [answer.destination for answer in answers] == destinations
    assert {
        str(answer.route) for answer in answers if answer.route and answer.route.kind == "unicast"
    } == {"10.224.0.0/16 dev eth0 proto kernel scope link src 10.224.0.4"}


def test_long_answers_are_not_cut(backend: NetlinkBackend) -> None:
    """A route with two hundred next hops is read whole, in a dump and in a lookup."""
    hops = tuple(
        NextHop(GATEWAY._replace(number=GATEWAY.number + number), "eth0") for number in range(200)
    )
    backend.apply([RouteChange.add(Route(network=9 << 24, prefix_length=8, nexthops=hops))])
    (answer,) = backend.lookup([9 << 24 | 1])
    assert answer.route is not None
    assert answer.route.nexthops == hops


@pytest.mark.parametrize(
    "words",
    [
        "via 10.224.0.1 dev eth0 mtu 1400 advmss 1300 realm 7",
        "via 10.224.0.1 dev eth0 mtu lock 1400 initcwnd 10 initrwnd 20 quickack 1 reordering 5",
        "via 10.224.0.1 dev eth0 congctl reno features ecn rto_min 5ms fastopen_no_cookie 1",
        "nexthop via 10.224.0.1 dev eth0 weight 3 realm 5 nexthop via 10.224.0.2 dev eth0 onlink",
        "nexthop via inet6 fe80::1 dev eth0 nexthop via 10.224.0.1 dev eth0",
        "nexthop via 10.224.0.1 dev eth0 nexthop encap ip id 7 dst 10.224.0.9 via 10.224.0.2 dev eth0",
        "via inet6 fe80::1 dev eth0",
        "nhid 7",
        "encap ip id 7 dst 10.224.0.9 dev eth0",
        "via 1.2.3.4 dev eth0 onlink metric 5 proto bird",
    ],
)
def test_a_rollback_restores_details_without_a_field(
    node: KernelNode, backend: NetlinkBackend, words: str
) -> None:
    """A foreign route is restored with its metrics, realms, IPv6 gateway or nexthop object, so that
    `ip` prints the route unchanged.
    """
    node.ip("nexthop add id 7 via 10.224.0.1 dev eth0")
    node.ip("route add 9.0.0.0/8", *words.split())
    before = node.ip("-4 -details route show table all")
    (foreign,) = [route for route in backend.routes() if route.network == 9 << 24]
    with pytest.raises(RouteRejectedError) as caught:
        backend.apply([RouteChange.remove(foreign), *many(1, every=1)])
    assert caught.value.rolled_back
    assert node.ip("-4 -details route show table all") == before


def test_a_route_reads_as_ip_prints_it(node: KernelNode, backend: NetlinkBackend) -> None:
    """The text of an observed route is `ip route`'s own, so that an operator can paste it."""
    for words in (
        "default via 10.224.0.1 dev eth0 proto dhcp src 10.224.0.4 metric 100",
        "9.0.0.0/8 dev eth0 scope link proto 142",
        "9.9.9.9 via 10.224.0.1 dev eth0 onlink",
        "blackhole 8.0.0.0/8",
        "unreachable 7.0.0.0/8 metric 5 table 88",
        "6.0.0.0/8 nexthop via 10.224.0.1 dev eth0 weight 2 nexthop dev ib0 weight 1",
        "5.0.0.0/8 dev eth0 tos 0x10 table 1000 proto bgp",
    ):
        node.ip("route add", *words.split())
    printed = [
        " ".join(line.split()) for line in node.ip("-4 -oneline route show table all").splitlines()
    ]
    printed = [line.replace("\\ ", "").replace("\\", "") for line in printed]
    assert sorted(map(str, backend.routes())) == sorted(printed)


def test_a_rule_reads_as_ip_prints_it(node: KernelNode, backend: NetlinkBackend) -> None:
    """The text of a rule is that of `ip rule`, and the rule names the selectors that a lookup by
    address does not cover: mark, interface, protocol, port or user.
    """
    for words in (
        "priority 10 fwmark 7/0xff lookup 88",
        "priority 11 iif eth0 lookup 88",
        "priority 12 oif eth0 lookup 88",
        "priority 13 ipproto 6 dport 443 lookup 88",  # by number: a minimal system has no names for protocols
        "priority 14 uidrange 5-6 lookup 1000",
        "priority 15 dsfield 0x10 lookup 88",
        "priority 16 from 10.224.0.4 sport 5-6 goto 32766",
        "priority 17 not to 9.0.0.0/8 lookup main suppress_prefixlength 0",
        "priority 18 to 9.0.0.0/8 prohibit",
        "priority 19 l3mdev",
    ):
        node.ip("rule add", *words.split())
    rules = backend.rules()
    printed = [" ".join(line.split()) for line in node.ip("rule show").splitlines()]
    assert [*map(str, rules)] == [line.partition(" suppress")[0] for line in printed]
    assert [" ".join(sorted(rule.selectors)) for rule in rules if 9 < rule.priority < 19] == [
        "fwmark", "iif", "oif", "dport ipproto", "uidrange", "tos", "sport", "", ""
    ]  # fmt: skip


def test_both_backends_see_the_same(node: KernelNode, backend: NetlinkBackend) -> None:
    """The backend over pyroute2's socket reads the same links, addresses, rules and routes in every
    field.
    """
    from pyroute2 import NetNS

    node.add_address("ib0", "10.3.0.1/32", peer="10.3.0.2")
    node.ip("address add 10.5.0.1/24 broadcast + dev ib0 scope link")
    node.ip("rule add priority 10 from 10.224.0.4 fwmark 7 lookup 88")
    with NetNS(node.name, flags=0) as netns:
        plain = Pyroute2Backend(netns)
        assert plain.links() == backend.links()
        assert plain.rules() == backend.rules()
        assert plain.routes() == backend.routes()
    [own] = [own for link in backend.links() for own in link.addresses if str(own) == "10.5.0.1/24"]
    assert own.broadcast == parse_ipv4("10.5.0.255")
    assert own.scope == 253


def test_over_pyroute2_an_interrupted_dump_is_read_again(
    node: KernelNode, backend: NetlinkBackend
) -> None:
    """A dump over pyroute2's socket that a change interrupts is read again, without an error."""
    from pyroute2 import NetNS
    from pyroute2.netlink.exceptions import NetlinkDumpInterrupted

    with NetNS(node.name, flags=0) as netns:
        interruptions = [NetlinkDumpInterrupted(), NetlinkDumpInterrupted()]

        class Busy:
            def nlm_request_batch(self, messages: list[Any]) -> Any:
                if interruptions:
                    raise interruptions.pop()
                return netns.nlm_request_batch(messages)

        assert Pyroute2Backend(Busy()).routes() == backend.routes()


def test_tables_that_change_while_they_are_read_are_read(
    node: KernelNode, backend: NetlinkBackend
) -> None:
    """Each reading while another process changes the table has every route that stays."""
    backend.apply(many(3000))
    stop = threading.Event()

    def disturb() -> None:
        other = kernel_of(node)
        change = RouteChange.add(Route.parse("9.0.0.0/8", dev="eth0"))
        while not stop.is_set():
            other.apply([change], verify=False)
            (held,) = [route for route in other.routes() if route.network == 9 << 24]
            other.apply([RouteChange.remove(held)], verify=False)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        counts = {sum(route.network >> 24 == 20 for route in backend.routes()) for _ in range(50)}
    finally:
        stop.set()
        thread.join()
    assert counts == {3000}


@pytest.mark.usefixtures("big_sends")
def test_big_sends_without_refusals_lose_nothing(backend: NetlinkBackend) -> None:
    """A send of two thousand changes that all succeed does not overflow the queue, as successes are
    not answered.
    """
    backend.apply(many(2000))
    assert own_count(backend) == 2000


def test_devices_are_read_by_one_dump_of_each_kind(
    backend: NetlinkBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading of the devices makes one dump each of links, addresses and neighbours, as
    neighbours are assigned by the index of their device.
    """
    commands = []
    receive_dump = Conversation.receive_dump

    def count(conversation: Conversation, request: Request) -> Iterator[memoryview]:
        commands.append(request.command)
        return receive_dump(conversation, request)

    monkeypatch.setattr(Conversation, "receive_dump", count)
    backend.links()
    assert sorted(commands) == ["ip -d link", "ip address", "ip neighbour"]
