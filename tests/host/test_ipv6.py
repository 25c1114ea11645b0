"""Facts of IPv6 on a node, and of the BPF programs of a device, that only the kernel shows."""

import errno
import struct
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.kernel import needs_kernel, powerless
from support.kernel_links import KernelLinks, attach_by_tcx, needs_bpf, why_no_tcx
from support.played_kernel import NEW_ROUTE, pack_route

from hostrouting.exceptions import BackendError, RouteRejectedError
from hostrouting.host import IPV6, Address, Lookup, ObservedRoute, RouteChange
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.bulk import RouteReader
from hostrouting.host.netlink.classifiers import parse_bpf_names
from hostrouting.host.netlink.conversation import Conversation
from hostrouting.host.netlink.device_codec import parse_devices, parse_youngest
from hostrouting.host.netlink.events import NetlinkEvents
from hostrouting.host.netlink.frames import attribute, message, word
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from hostrouting.host.netlink.route_codec import parse_route
from hostrouting.net.addresses import Prefix
from hostrouting.net.events import AddressEvent, RouteEvent, RuleEvent
from hostrouting.net.routes import DEVICELESS_KINDS, KINDS
from hostrouting.testing import KernelNode
from hostrouting.testing.contracts.routes import find, in_order, shown
from hostrouting.testing.route_texts import route
from phases import Context

#: Its gateway is on no link, so its addition is refused.
BEYOND = route("fd00:f::/64 via fd00:99::1 dev eth0 metric 1 proto 142")

# --- only the kernel


@pytest.fixture
def node() -> Iterator[KernelLinks]:
    with KernelNode.made() as made:
        links = KernelLinks(made)
        for dev, address in ("eth0", "fd00:1::4/64"), ("ib0", "fd00:a::4/64"):
            links.add_device(dev, addresses=[address])
        yield links


@pytest.fixture
def backend(node: KernelLinks) -> NetlinkBackend:
    return NetlinkBackend(netns=node.name)


@pytest.fixture
def layer(node: KernelLinks) -> NetlinkLinkLayer:
    return NetlinkLinkLayer(netns=node.name)


def ip_route(node: KernelLinks, *words: str) -> str:
    return node.kernel.ip("-6 route", *words)


def lookups(backend: NetlinkBackend, *addresses: str, resolve: bool = False) -> list[Lookup]:
    return backend.lookup(
        [Address.parse(text).number for text in addresses], resolve=resolve, family=IPV6
    )


def _words(one: ObservedRoute) -> tuple[object, ...]:
    source = None if one.source is None else str(Address(IPV6, one.source))
    fields = one.metric, one.table, one.protocol, one.kind, source
    return Prefix.parse(one.destination), one.dev, *fields


def variety(node: KernelLinks) -> None:
    """Routes with every detail that `ip` can give them."""
    node.kernel.ip("nexthop add id 7 via fd00:1::7 dev eth0")
    for words in (
        "fd00:9::9/128 dev ib0",
        "fd00:2::/64 from fd00:1::/64 dev eth0",
        "fd00:4::/64 nexthop via fd00:1::1 dev eth0 nexthop via fe80::1 dev ib0 weight 3",
        "blackhole fd00:5::/64",
        "unreachable fd00:6::/64 metric 77",
        "prohibit default metric 4096",
        "fd00:7::/64 nhid 7",
        "fd00:8::/64 dev ib0 mtu 1300 hoplimit 3 pref high src fd00:1::4 proto 77 table 1000",
        "fd00:c::/64 via fd00:99::1 dev eth0 onlink pref low",
        "default via fe80::1 dev eth0 metric 100 proto ra",
        "fd00:b::/64 encap seg6 mode encap segs fd00:1::77 dev eth0",
    ):
        ip_route(node, "add", words)


@needs_kernel
class TestOnTheKernel:
    """Facts that the fake does not model."""

    @pytest.mark.parametrize("shown", ["1", "0"])
    def test_nexthop_objects_are_followed(
        self, node: KernelLinks, backend: NetlinkBackend, shown: str
    ) -> None:
        """A lookup of a path names the device and gateway of a nexthop object, which the kernel
        shows in the route by default, and leaves out if it is set so.
        """
        node.kernel.ip("nexthop add id 7 via fe80::1 dev ib0")
        ip_route(node, "add fd00:7::/64 nhid 7")
        node.kernel.run("sysctl", "-qw", f"net.ipv4.nexthop_compat_mode={shown}")
        [decided] = lookups(backend, "fd00:7::9")
        [path] = lookups(backend, "fd00:7::9", resolve=True)
        assert decided.route is not None
        assert path.route is not None
        assert decided.route.nexthop_id == 7
        assert decided.route.dev == ("ib0" if shown == "1" else None)
        assert path.route.dev == "ib0"
        assert str(path.route.gateway) == "fe80::1"

    def test_a_rollback_never_makes_one_route_of_two(
        self, node: KernelLinks, backend: NetlinkBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A rollback does not restore a removed route if another program took its place meanwhile,
        and the error names the route.
        """
        backend.apply([RouteChange.add(route("fd00:7::/64 via fd00:1::7 dev eth0 metric 1"))])
        alone = find(backend, "fd00:7::/64 via fd00:1::7 dev eth0 metric 1")
        foreign_route = "fd00:7::/64 via fd00:a::7 dev ib0 metric 1"
        deliver = Conversation.deliver

        def deliver_and_meddle(conversation: Conversation, batches: Any, count: int) -> Any:
            answer = deliver(conversation, batches, count)
            if foreign_route not in node.kernel.ip("-6 route"):
                ip_route(node, "add", foreign_route)
            return answer

        monkeypatch.setattr(Conversation, "deliver", deliver_and_meddle)
        with pytest.raises(RouteRejectedError) as caught:
            backend.apply([RouteChange.remove(alone), RouteChange.add(BEYOND)])
        assert caught.value.left_behind == [f"missing: {alone}"]
        assert shown(backend, family=IPV6, metric=1) == in_order(foreign_route)

    def test_all_details_come_back(self, node: KernelLinks, backend: NetlinkBackend) -> None:
        """A rollback restores every detail that `ip -6 -d route` prints: several next hops,
        tunnels, metrics, sources, ...
        """
        variety(node)
        before = node.listed("-6", "-d", "route", "show", "table", "all")
        foreign = [one for one in backend.routes(IPV6) if one.table != 255 and one.protocol != 2]
        assert len(foreign) >= 11
        with pytest.raises(RouteRejectedError) as caught:
            backend.apply([*map(RouteChange.remove, foreign), RouteChange.add(BEYOND)])
        assert caught.value.left_behind == []
        assert node.listed("-6", "-d", "route", "show", "table", "all") == before

    def test_routes_are_those_of_ip(self, node: KernelLinks, backend: NetlinkBackend) -> None:
        """The routes of IPv6 are read in every kind and from all tables."""
        variety(node)
        printed = []
        for one in node.shown("-6", "-d", "-N", "route", "show", "table", "all"):
            kind = KINDS[int(one["type"])]
            destination = "::/0" if one["dst"] == "default" else one["dst"]
            dev = None if kind in DEVICELESS_KINDS else one.get("dev")
            prefix = Prefix.parse(destination if "/" in destination else f"{destination}/128")
            numbers = one["metric"], int(one.get("table", 254)), int(one["protocol"])
            printed.append((prefix, dev, *numbers, kind, one.get("prefsrc")))
        assert sorted(printed, key=repr) == sorted(map(_words, backend.routes(IPV6)), key=repr)
        assert len(printed) >= 11

    def test_a_route_that_ends_is_not_made_immortal(
        self, node: KernelLinks, backend: NetlinkBackend
    ) -> None:
        """A rollback restores a route with its remaining lifetime."""
        ip_route(node, "add fd00:c::/64 dev eth0 expires 500")
        ending = find(backend, "fd00:c::/64 dev eth0 metric 1024")
        assert 490 < ending.expires <= 500
        for second in RouteChange.remove(ending), RouteChange.add(BEYOND):
            with pytest.raises(RouteRejectedError):
                backend.apply([RouteChange.remove(ending), second])
        again = find(backend, str(ending))
        assert again.fulfils(ending)
        assert 490 < again.expires <= ending.expires

    def test_events_of_ipv6_are_reported(self, node: KernelLinks, backend: NetlinkBackend) -> None:
        """IPv6 routes, addresses and rules are reported as events; a route to which a next hop is
        added is reported with all of its next hops.
        """
        with NetlinkEvents(netns=node.name).listen(Context()) as listener:
            ip_route(node, "add fd00:7::/64 via fd00:1::7 dev eth0 metric 1")
            ip_route(node, "append fd00:7::/64 via fd00:a::7 dev ib0 metric 1")
            [merged] = [one for one in backend.routes(IPV6) if one.destination == "fd00:7::/64"]
            ip_route(node, "replace fd00:7::/64 via fd00:1::8 dev eth0 metric 1")
            ip_route(node, "delete fd00:7::/64 metric 1")
            # The kernel adds routes of its own when it has noticed a carrier, which may be late.
            events = [
                event
                for event in listener.take()
                if isinstance(event, RouteEvent) and event.route.destination == "fd00:7::/64"
            ]
            assert [event.verb for event in events] == ["add", "append", "replace", "remove"]
            assert events[1].route == merged
            # The replacement, and the removal of what it has left.
            assert [str(event.route.gateway) for event in events[2:]] == ["fd00:1::8"] * 2
            node.kernel.ip("-6 rule add priority 50 from fd00:1::/64 lookup 88")
            [rule] = [event for event in listener.take() if isinstance(event, RuleEvent)]
            assert rule.rule in backend.rules(IPV6)
            node.kernel.ip("address delete fd00:1::4/64 dev eth0")
            gone = [event for event in listener.take() if event.verb == "remove"]
            assert [str(event.address) for event in gone if isinstance(event, AddressEvent)] == [
                "fd00:1::4/64"
            ]
            assert "fd00:1::/64" in {
                event.route.destination for event in gone if isinstance(event, RouteEvent)
            }

    @needs_bpf()
    def test_programs_of_tcx_are_named(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """Programs of tcx, which rtnetlink does not show, are named by the name of their load, in
        both directions.
        """
        if why_no_tcx() is not None:
            # Kernels before 6.6 have no tcx, and that is no error.
            assert layer.classifiers("eth0") == ()
            return
        attach_by_tcx(node.name, "eth0", "in", "cil_from_netdev")
        attach_by_tcx(node.name, "eth0", "out", "ipv6_hp_egress")
        node.attach("eth0", "in", "by_tc")
        assert layer.classifiers("eth0") == ("by_tc", "cil_from_netdev", "ipv6_hp_egress")
        assert layer.classifiers("ib0") == ()
        program = "from hostrouting.host.netlink.link_layer import NetlinkLinkLayer as N; print(N().classifiers('eth0'))"
        assert node.kernel.run(sys.executable, "-c", program) == (
            "('by_tc', 'cil_from_netdev', 'ipv6_hp_egress')\n"
        )
        assert node.kernel.run(*powerless(), sys.executable, "-c", program) == "('by_tc',)\n"

    @pytest.mark.parametrize(
        ("number", "logged"),
        [
            (errno.EINVAL, []),
            (errno.ENOSYS, []),
            (
                errno.EPERM,
                ["which BPF programs are attached with tcx cannot be read without CAP_SYS_ADMIN"],
            ),
        ],
    )
    def test_a_query_of_tcx_that_is_refused_names_no_programs(
        self,
        layer: NetlinkLinkLayer,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        number: int,
        logged: list[str],
    ) -> None:
        """A query of tcx that bpf(2) refuses, as before Linux 6.6 or in a sandbox, returns an empty
        list; one that does not have privilege does, too, which is logged once; any other failure is an
        error.
        """
        caplog.set_level("INFO")

        def refuse(*_: object) -> int:
            raise OSError(number, "refused")

        monkeypatch.setattr("hostrouting.host.netlink.classifiers._bpf", refuse)
        assert [layer.classifiers("eth0") for _ in range(2)] == [(), ()]
        assert caplog.messages == logged
        number = errno.EIO
        with pytest.raises(BackendError, match="bpf: refused"):
            layer.classifiers("eth0")


# --- packed messages


@pytest.mark.parametrize(("added", "age"), [(1000, 90.0), (10_001, 0.0), (2**32 - 500, 105.0)])
def test_the_age_of_an_address(added: int, age: float) -> None:
    """The age of an address is never below zero, though its creation may be a tick ahead of our
    clock, and is right after the wrap at 497 days.
    """
    packed = struct.pack("=BBBBI", 10, 64, 0, 0, 3) + attribute(
        6, struct.pack("=IIII", 1, 1, added, added)
    )
    assert parse_youngest([packed], 3, 100.0) == age
    assert parse_youngest([packed], 4, 100.0) is None


@pytest.mark.parametrize(
    ("flags", "usable"),
    [(0xA0, True), (0xC0, False), (0x40, False), (0x44, True), (0x48, False), (0x88, False)],
)
def test_flags_show_whether_an_address_is_usable(flags: int, usable: bool) -> None:
    """An address is usable unless it failed its duplicate detection, or is tentative and not
    optimistic; a deprecated one is usable.
    """
    packed = struct.pack("=BBBBI", 10, 64, flags, 0, 3) + attribute(1, bytes(15) + b"\4")
    link = struct.pack("=BxHiII", 0, 1, 3, 0x1, 0) + attribute(3, b"eth0\0")
    [device] = parse_devices([link], [packed])
    [own] = device.addresses
    assert (str(own), own.usable, own.deprecated) == ("::4/64", usable, flags == 0xA0)


def test_other_families_are_passed_over() -> None:
    """Messages of other families, with which a kernel with `ipv6.disable=1` answers, are
    skipped.
    """
    to = attribute(15, struct.pack("=I", 254)) + attribute(1, bytes([10, 0, 0, 0]))
    by = attribute(4, struct.pack("=I", 3))
    heads = [struct.pack("=8BI", family, 8, 0, 0, 254, 3, 0, 1, 0) for family in (2, 7, 28)]
    dump = b"".join(message(NEW_ROUTE, 2, head + to + by) for head in [*heads, *heads])
    routes: list[ObservedRoute] = []
    RouteReader({3: "eth0"}, IPV6).read_dump(memoryview(dump), routes)
    assert routes == []
    added = attribute(6, struct.pack("=IIII", 1, 1, 1000, 1000))
    address = struct.pack("=BBBBI", 2, 24, 0x80, 0, 3) + attribute(1, bytes([10, 0, 0, 4])) + added
    assert parse_youngest([address], 3, 100.0) is None


def test_a_route_that_has_just_ended_is_not_made_immortal() -> None:
    """A route that has ended is packed with a lifetime of one second, as 0 would mean for ever; a
    part of a second is read as a whole one.
    """
    ended = ObservedRoute.parse("fd00:c::/64", "eth0", expires=-1)
    assert attribute(23, word.pack(1)) in pack_route(ended, {"eth0": 3})
    head = struct.pack("=8BI", IPV6, 0, 0, 0, 254, 9, 0, 1, 0) + attribute(4, word.pack(3))
    for ticks, seconds in (0, 0), (1, 1), (101, 2), (-1, -1):
        left = attribute(12, struct.pack("=8xi20x", ticks))
        assert parse_route(head + left, {3: "eth0"}).expires == seconds


def test_a_filter_without_program_has_no_name() -> None:
    """A filter of another kind has no program name, though its options use the same numbers."""
    head = struct.pack("=BxxxiIII", 0, 3, 0, 0, 0)
    other = attribute(1, b"u32\0") + attribute(2, attribute(7, b"not-a-name\0"))
    bare = attribute(1, b"bpf\0")
    named = attribute(1, b"bpf\0") + attribute(2, attribute(7, b"ipv6_hp_egress\0"))
    assert parse_bpf_names(head + one for one in (other, bare, named)) == {"ipv6_hp_egress"}
