"""Facts of IPv6 on a node, and of the BPF programs of a device, that only the kernel shows."""

import errno
import struct
import sys
from collections.abc import Iterator

import pytest
from support import bpf
from support.kernel import needs_kernel, powerless
from support.kernel_links import KernelLinks
from support.needs import needs

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink.classifiers import parse_bpf_names
from hostrouting.host.netlink.conversation import Conversation
from hostrouting.host.netlink.device_codec import parse_devices, parse_youngest
from hostrouting.host.netlink.frames import attribute
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from hostrouting.host.netlink.route_codec import parse_ipv6_routes, parse_route
from hostrouting.net.addresses import IPV6
from hostrouting.net.default_route import best_default_devs
from hostrouting.testing import KernelNode

# --- only the kernel


@pytest.fixture
def node() -> Iterator[KernelLinks]:
    with KernelNode.made() as made:
        links = KernelLinks(made)
        for dev, address in (("eth0", "fd00:1::4/64"), ("ib0", "fd00:a::4/64")):
            links.add_device(dev, addresses=[address])
        yield links


@pytest.fixture
def layer(node: KernelLinks) -> NetlinkLinkLayer:
    return NetlinkLinkLayer(netns=node.name)


def ip_route(node: KernelLinks, *words: str) -> str:
    return node.kernel.ip("-6", "route", *words)


@needs_kernel
class TestOnTheKernel:
    """Facts that the fake does not model."""

    @pytest.mark.parametrize("kind", ["blackhole", "unreachable", "prohibit", "throw"])
    def test_a_route_that_blocks_leads_nowhere(self, node: KernelLinks, layer: NetlinkLinkLayer, kind: str) -> None:
        """A route of a blocking kind gives no way; the kernel answers each kind with another errno."""
        ip_route(node, "add", kind, "fd00:3::/64")
        assert layer.leaves_by("fd00:3::9") == ()

    def test_a_rule_may_decide(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """The lookup follows the policy rules, not only the main table."""
        ip_route(node, "add", "fd00:2::/64", "dev", "ib0", "table", "77")
        node.add_route("::/0", "eth0", gateway="fe80::1")
        node.kernel.ip("-6", "rule", "add", "to", "fd00:2::/64", "lookup", "77")
        assert layer.leaves_by("fd00:2::9") == ("ib0",)

    def test_only_unicast_defaults_of_main_count(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """A default that blocks does not count, nor one of another table."""
        ip_route(node, "add", "unreachable", "default", "metric", "1")
        ip_route(node, "add", "default", "dev", "ib0", "table", "77", "metric", "1")
        ip_route(node, "add", "default", "dev", "eth0")
        assert best_default_devs(layer.routes()) == ("eth0",)

    def test_a_routers_preference_decides_among_equals(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """Of default routes with one metric, the router preference decides, as in the kernel."""
        ip_route(node, "add", "default", "dev", "eth0", "pref", "low")
        ip_route(node, "append", "default", "dev", "ib0", "pref", "high")
        assert best_default_devs(layer.routes()) == ("ib0",)
        assert "dev ib0" in ip_route(node, "get", "2001:db8::1")

    def test_nexthop_objects_are_followed(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """A route is read with its nexthop objects, though the kernel shows only their numbers."""
        node.kernel.ip("nexthop", "add", "id", "7", "via", "fe80::1", "dev", "ib0")
        ip_route(node, "add", "fd00:7::/64", "nhid", "7")
        assert layer.leaves_by("fd00:7::9") == ("ib0",)
        node.kernel.run("sysctl", "-qw", "net.ipv4.nexthop_compat_mode=0")
        assert layer.leaves_by("fd00:7::9") == ("ib0",)

    def test_only_usable_addresses_of_global_scope_count(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """Link-local and tentative addresses do not count; those with a peer and deprecated ones do."""
        # Without carrier, no duplicate is looked for, so the address stays tentative.
        node.kernel.ip("link", "set", "eth0-far", "down")
        node.kernel.ip("address", "add", "fd00:1::5/64", "dev", "eth0")
        node.kernel.ip("address", "add", "fd00:1::6/128", "peer", "fd00:1::7", "dev", "eth0", "nodad")
        node.kernel.ip("address", "add", "fd00:1::8/64", "dev", "eth0", "nodad", "preferred_lft", "0")
        assert "fd00:1::5/64 scope global tentative" in node.kernel.ip("address", "show", "dev", "eth0")
        [eth0] = [device for device in layer.devices() if device.name == "eth0"]
        shown = [str(own.address) for own in eth0.addresses if own.usable and own.scope == 0]
        assert sorted(shown) == ["fd00:1::4", "fd00:1::6", "fd00:1::8"]
        assert "fd00:1::5" in {str(own.address) for own in eth0.addresses}
        order = [one["local"] for one in node.shown("-6", "address", "show", "dev", "eth0")[0]["addr_info"]]
        assert shown == [address for address in order if address in shown]

    @needs("bpf")
    def test_the_name_is_that_of_the_attachment(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """The name is not that under which the program was loaded, which tc shows after it."""
        node.attach("eth0", "in", "ipv6_hp_ingress")
        node.attach("eth0", "in", "ipv6_hp.o:[classifier]")
        assert layer.classifiers("eth0") == ("ipv6_hp.o:[classifier]", "ipv6_hp_ingress")
        said = node.kernel.run("tc", "filter", "show", "dev", "eth0", "ingress")
        assert "handle 0x1 ipv6_hp_ingress " in said
        assert "name loaded_as" in said

    @needs("bpf")
    def test_programs_of_tcx_are_named(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """Programs of tcx, which rtnetlink does not show, are named by the name of their load, in both directions."""
        if bpf.why_no_tcx() is not None:
            # Kernels before 6.6 have no tcx, and that is no error.
            assert layer.classifiers("eth0") == ()
            return
        bpf.attach_by_tcx(node.name, "eth0", "in", "cil_from_netdev")
        bpf.attach_by_tcx(node.name, "eth0", "out", "ipv6_hp_egress")
        node.attach("eth0", "in", "by_tc")
        assert layer.classifiers("eth0") == ("by_tc", "cil_from_netdev", "ipv6_hp_egress")
        assert layer.classifiers("ib0") == ()
        program = (
            "from hostrouting.host.netlink.link_layer import NetlinkLinkLayer as N; print(N().classifiers('eth0'))"
        )
        assert node.kernel.run(sys.executable, "-c", program) == ("('by_tc', 'cil_from_netdev', 'ipv6_hp_egress')\n")
        assert node.kernel.run(*powerless(), sys.executable, "-c", program) == "('by_tc',)\n"

    @pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
    def test_a_kernel_without_tcx_has_no_programs(
        self, layer: NetlinkLinkLayer, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """Before 6.6 bpf(2) refuses the query, and a sandbox may forbid the call: no names, and no error."""

        def refuse(*_: object) -> int:
            raise OSError(number, "refused")

        monkeypatch.setattr("hostrouting.host.netlink.classifiers._bpf", refuse)
        assert layer.classifiers("eth0") == ()

    def test_programs_that_may_not_be_read_are_logged(
        self, layer: NetlinkLinkLayer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Without privilege the programs of tcx are unknown, as the log says once; any other failure is an error."""
        caplog.set_level("INFO")

        def refuse(*_: object) -> int:
            raise OSError(number, "refused")

        monkeypatch.setattr("hostrouting.host.netlink.classifiers._bpf", refuse)
        number = errno.EPERM
        assert [layer.classifiers("eth0") for _ in range(2)] == [(), ()]
        assert caplog.messages == ["which BPF programs are attached by tcx cannot be told without CAP_SYS_ADMIN"]
        number = errno.EIO
        with pytest.raises(BackendError, match="bpf: refused"):
            layer.classifiers("eth0")

    def test_reading_needs_no_privilege(self, node: KernelLinks) -> None:
        """An ordinary user may read all of it."""
        node.add_route("::/0", "eth0", gateway="fe80::1")
        program = (
            "from hostrouting.host.netlink.link_layer import NetlinkLinkLayer; n = NetlinkLinkLayer();"
            "print(len(n.devices()), n.newest_address('eth0') < 60, n.leaves_by('fd00:a::9'), n.classifiers('eth0'))"
        )
        assert node.kernel.run(*powerless(), sys.executable, "-c", program) == ("5 True ('ib0',) ()\n")


# --- packed messages


@pytest.mark.parametrize(("added", "age"), [(1000, 90.0), (10_001, 0.0), (2**32 - 500, 105.0)])
def test_the_age_of_an_address(added: int, age: float) -> None:
    """The creation time of an address may be a tick ahead of our clock, and wraps after 497 days."""
    packed = struct.pack("=BBBBI", 10, 64, 0, 0, 3) + attribute(6, struct.pack("=IIII", 1, 1, added, added))
    assert parse_youngest([packed], 3, 100.0) == age
    assert parse_youngest([packed], 4, 100.0) is None


@pytest.mark.parametrize(
    ("flags", "usable"), [(0x80, True), (0xC0, False), (0x40, False), (0x44, True), (0x48, False), (0x88, False)]
)
def test_flags_say_whether_an_address_is_usable(flags: int, usable: bool) -> None:
    """A tentative address is usable only if it is optimistic; one with dadfailed never is."""
    packed = struct.pack("=BBBBI", 10, 64, flags, 0, 3) + attribute(1, bytes(15) + b"\4")
    link = struct.pack("=BxHiII", 0, 1, 3, 0x1, 0) + attribute(3, b"eth0\0")
    [device] = parse_devices([link], [packed])
    assert [(str(own), own.usable) for own in device.addresses] == [("::4/64", usable)]


def test_other_families_are_passed_over() -> None:
    """Messages of other families are skipped: a kernel with `ipv6.disable=1` answers with those."""
    to, by = attribute(1, bytes([10, 0, 0, 0])), attribute(4, struct.pack("=I", 3))
    routes = [struct.pack("=8BI", family, 8, 0, 0, 254, 3, 0, 1, 0) + to + by for family in (2, 7, 28)]
    assert parse_ipv6_routes(routes, {3: "eth0"}) == []
    added = attribute(6, struct.pack("=IIII", 1, 1, 1000, 1000))
    address = struct.pack("=BBBBI", 2, 24, 0x80, 0, 3) + attribute(1, bytes([10, 0, 0, 4])) + added
    assert parse_youngest([address], 3, 100.0) is None


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EOPNOTSUPP])
def test_without_ipv6_nothing_leads_anywhere(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A kernel without IPv6 refuses the lookup, which counts as no way."""

    def refuse(_conversation: object, _request: object) -> bytes:
        raise OSError(number, "not supported")

    monkeypatch.setattr(Conversation, "ask", refuse)
    assert NetlinkLinkLayer().leaves_by("2001:db8::1") == ()


def test_a_dead_next_hop_is_none() -> None:
    """A dead next hop of a multipath route is left out."""
    hops = struct.pack("=HBBI", 8, 0, 0, 3) + struct.pack("=HBBI", 8, 0x1, 0, 4) + struct.pack("=HBBI", 8, 0x10, 0, 5)
    packed = struct.pack("=8BI", 10, 0, 0, 0, 254, 3, 0, 1, 0) + attribute(9, hops)
    names = {3: "eth0", 4: "ib0", 5: "ib1"}
    route = parse_route(packed, names, family=IPV6)
    assert [hop.dev for hop in route.hops if not hop.dead] == ["eth0", "ib1"]


def test_a_filter_without_program_has_no_name() -> None:
    """A filter of another kind has no program name, though its options use the same numbers."""
    head = struct.pack("=BxxxiIII", 0, 3, 0, 0, 0)
    other = attribute(1, b"u32\0") + attribute(2, attribute(7, b"not-a-name\0"))
    bare = attribute(1, b"bpf\0")
    named = attribute(1, b"bpf\0") + attribute(2, attribute(7, b"ipv6_hp_egress\0"))
    assert parse_bpf_names(head + one for one in (other, bare, named)) == {"ipv6_hp_egress"}
