"""The contract of `IPv6Backend` on the fake and on the kernel, and facts that only the kernel shows."""

from __future__ import annotations

import errno
import itertools
import struct
import sys
from typing import TYPE_CHECKING

import pytest
from support import bpf
from support.kernel import needs_kernel, powerless
from support.kernel_links import KernelLinks
from support.needs import needs

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink.conversation import Conversation
from hostrouting.host.netlink.frames import attribute, message
from hostrouting.host.netlink.ipv6 import NetlinkIPv6
from hostrouting.host.netlink.ipv6_messages import (
    parse_bpf_names,
    parse_routes,
    parse_usable_addresses,
    parse_youngest,
)
from hostrouting.host.netlink.route_reader import RouteReader
from hostrouting.testing import KernelNode
from hostrouting.testing.contracts import IPv6BackendContract, IPv6Node
from hostrouting.testing.memory_ipv6 import MemoryIPv6

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host import IPv6Backend

_priorities = itertools.count(1)


class MemoryArrangement(IPv6Node):
    """The contract's handles, as attributes of the fake."""

    def __init__(self) -> None:
        self.backend = MemoryIPv6()
        self._defaults: dict[int, tuple[str, ...]] = {}

    def add_device(self, name: str) -> None:
        self.backend.by_dev[name] = []

    def add_address(self, dev: str, address: str) -> None:
        self.backend.by_dev[dev].append(address)
        self.backend.ages[dev] = 0.0

    def add_default(self, *devs: str, metric: int = 1024) -> None:
        self._defaults[metric] = devs
        self.backend.defaults = list(self._defaults[min(self._defaults)])
        self.backend.routes["::/0"] = self._defaults[min(self._defaults)]

    def add_route(self, destination: str, *devs: str) -> None:
        self.backend.routes[destination] = devs

    def attach(self, dev: str, direction: str, program: str) -> None:
        self.backend.programs[dev] = (*self.backend.programs.get(dev, ()), program)


class KernelArrangement(IPv6Node):
    """The contract's handles on a namespace."""

    def __init__(self, kernel: KernelNode) -> None:
        self.kernel = kernel
        self._links = KernelLinks(kernel)
        self._with_clsact: set[str] = set()

    def add_device(self, name: str) -> None:
        self._links.add_device(name)

    def add_address(self, dev: str, address: str) -> None:
        self._links.add_address(dev, f"{address}/64")

    def add_default(self, *devs: str, metric: int = 1024) -> None:
        self.ip("add", "default", "metric", str(metric), *_hops(devs))

    def add_route(self, destination: str, *devs: str) -> None:
        self.ip("add", *([] if devs else ["blackhole"]), destination, *_hops(devs))

    def attach(self, dev: str, direction: str, program: str) -> None:
        if dev not in self._with_clsact:
            self.kernel.run("tc", "qdisc", "add", "dev", dev, "clsact")
            self._with_clsact.add(dev)
        bpf.attach(self.kernel.name, dev, direction, program, priority=next(_priorities))

    def ip(self, *words: str) -> str:
        return self.kernel.ip("-6", "route", *words)


def _hops(devs: tuple[str, ...]) -> list[str]:
    if len(devs) == 1:
        return ["via", "fe80::1", "dev", devs[0]]
    return [word for dev in devs for word in ("nexthop", "via", "fe80::1", "dev", dev)]


class TestMemoryIPv6(IPv6BackendContract):
    """The fake."""

    @pytest.fixture
    def node(self) -> IPv6Node:
        return MemoryArrangement()

    @pytest.fixture
    def backend(self, node: IPv6Node) -> IPv6Backend:
        assert isinstance(node, MemoryArrangement)
        return node.backend


@needs_kernel
class TestNetlinkIPv6(IPv6BackendContract):
    """The kernel."""

    @pytest.fixture
    def node(self) -> Iterator[IPv6Node]:
        with KernelNode.made() as made:
            yield KernelArrangement(made)

    @pytest.fixture
    def backend(self, node: IPv6Node) -> IPv6Backend:
        assert isinstance(node, KernelArrangement)
        return NetlinkIPv6(netns=node.kernel.name)

    @needs("bpf")
    def test_programmes_of_both_directions_are_named(self, eth0: IPv6Node, backend: IPv6Backend) -> None:
        """See the contract."""
        super().test_programmes_of_both_directions_are_named(eth0, backend)


# --- only the kernel


@pytest.fixture
def node() -> Iterator[KernelArrangement]:
    with KernelNode.made() as made:
        arranged = KernelArrangement(made)
        for dev, address in (("eth0", "fd00:1::4"), ("ib0", "fd00:a::4")):
            arranged.add_device(dev)
            arranged.add_address(dev, address)
        yield arranged


@pytest.fixture
def backend(node: KernelArrangement) -> NetlinkIPv6:
    return NetlinkIPv6(netns=node.kernel.name)


@needs_kernel
class TestOnTheKernel:
    """Facts that the fake does not model."""

    @pytest.mark.parametrize("kind", ["blackhole", "unreachable", "prohibit", "throw"])
    def test_whatever_blocks_leads_nowhere(self, node: KernelArrangement, backend: NetlinkIPv6, kind: str) -> None:
        """Each kind is answered with its own errno."""
        node.ip("add", kind, "fd00:3::/64")
        assert backend.leaves_by("fd00:3::9") == ()

    def test_a_rule_may_decide(self, node: KernelArrangement, backend: NetlinkIPv6) -> None:
        """The lookup goes through the policy rules, not just through main."""
        node.ip("add", "fd00:2::/64", "dev", "ib0", "table", "77")
        node.add_default("eth0")
        node.kernel.ip("-6", "rule", "add", "to", "fd00:2::/64", "lookup", "77")
        assert backend.leaves_by("fd00:2::9") == ("ib0",)

    def test_only_unicast_defaults_of_main_count(self, node: KernelArrangement, backend: NetlinkIPv6) -> None:
        """Neither a default that blocks nor one of another table."""
        node.ip("add", "unreachable", "default", "metric", "1")
        node.ip("add", "default", "dev", "ib0", "table", "77", "metric", "1")
        node.ip("add", "default", "dev", "eth0")
        assert backend.default_devs() == ("eth0",)

    def test_a_routers_preference_decides_among_equals(self, node: KernelArrangement, backend: NetlinkIPv6) -> None:
        """As the kernel does for routes of one metric."""
        node.ip("add", "default", "dev", "eth0", "pref", "low")
        node.ip("append", "default", "dev", "ib0", "pref", "high")
        assert backend.default_devs() == ("ib0",)
        assert "dev ib0" in node.ip("get", "2001:db8::1")

    def test_nexthop_objects_are_followed(self, node: KernelArrangement, backend: NetlinkIPv6) -> None:
        """Also where the kernel shows only their numbers."""
        node.kernel.ip("nexthop", "add", "id", "7", "via", "fe80::1", "dev", "ib0")
        node.ip("add", "fd00:7::/64", "nhid", "7")
        assert backend.leaves_by("fd00:7::9") == ("ib0",)
        node.kernel.run("sysctl", "-qw", "net.ipv4.nexthop_compat_mode=0")
        assert backend.leaves_by("fd00:7::9") == ("ib0",)

    def test_only_usable_addresses_of_global_scope_count(self, node: KernelArrangement, backend: NetlinkIPv6) -> None:
        """Not link-local ones, and none whose uniqueness is still being tried; but those that may be used meanwhile."""
        # Without carrier, nothing is tried, so it stays tentative.
        node.kernel.ip("link", "set", "eth0-far", "down")
        node.kernel.ip("address", "add", "fd00:1::5/64", "dev", "eth0")
        node.kernel.ip("address", "add", "fd00:1::6/128", "peer", "fd00:1::7", "dev", "eth0", "nodad")
        node.kernel.ip("address", "add", "fd00:1::8/64", "dev", "eth0", "nodad", "preferred_lft", "0")
        assert "fd00:1::5/64 scope global tentative" in node.kernel.ip("address", "show", "dev", "eth0")
        shown = backend.addresses("eth0")
        assert sorted(shown) == ["fd00:1::4", "fd00:1::6", "fd00:1::8"]
        order = [
            one["local"]
            for one in KernelLinks(node.kernel).shown("-6", "address", "show", "dev", "eth0")[0]["addr_info"]
        ]
        assert list(shown) == [address for address in order if address in shown]

    @needs("bpf")
    def test_the_name_is_that_of_the_attachment(self, node: KernelArrangement, backend: NetlinkIPv6) -> None:
        """Not the one under which the programme was loaded, which tc shows after it."""
        node.attach("eth0", "in", "ipv6_hp_ingress")
        node.attach("eth0", "in", "ipv6_hp.o:[classifier]")
        assert backend.classifiers("eth0") == ("ipv6_hp.o:[classifier]", "ipv6_hp_ingress")
        said = node.kernel.run("tc", "filter", "show", "dev", "eth0", "ingress")
        assert "handle 0x1 ipv6_hp_ingress " in said
        assert "name loaded_as" in said

    @needs("bpf")
    def test_programmes_of_tcx_are_named(self, node: KernelArrangement, backend: NetlinkIPv6) -> None:
        """Which rtnetlink does not show; in both directions, each with the name under which it was loaded."""
        if bpf.why_no_tcx() is not None:
            # Kernels before 6.6: nothing is there, and that is no error.
            assert backend.classifiers("eth0") == ()
            return
        bpf.attach_by_tcx(node.kernel.name, "eth0", "in", "cil_from_netdev")
        bpf.attach_by_tcx(node.kernel.name, "eth0", "out", "ipv6_hp_egress")
        node.attach("eth0", "in", "by_tc")
        assert backend.classifiers("eth0") == ("by_tc", "cil_from_netdev", "ipv6_hp_egress")
        assert backend.classifiers("ib0") == ()
        program = "from hostrouting.host.netlink.ipv6 import NetlinkIPv6; print(NetlinkIPv6().classifiers('eth0'))"
        assert node.kernel.run(sys.executable, "-c", program) == ("('by_tc', 'cil_from_netdev', 'ipv6_hp_egress')\n")
        assert node.kernel.run(*powerless(), sys.executable, "-c", program) == "('by_tc',)\n"

    @pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
    def test_a_kernel_without_tcx_has_no_programmes(
        self, backend: NetlinkIPv6, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """Before 6.6 the question is invalid, and where bpf(2) is forbidden there is none: no names, and no error."""

        def refuse(*_: object) -> int:
            raise OSError(number, "refused")

        monkeypatch.setattr("hostrouting.host.netlink.tcx._system_call", lambda: refuse)
        assert backend.classifiers("eth0") == ()

    def test_what_may_not_be_seen_is_said(
        self, backend: NetlinkIPv6, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Without privilege the programs of tcx are unknown; the log says so; any other failure is an error."""
        caplog.set_level("INFO")

        def refuse(*_: object) -> int:
            raise OSError(number, "refused")

        monkeypatch.setattr("hostrouting.host.netlink.tcx._system_call", lambda: refuse)
        number = errno.EPERM
        assert backend.classifiers("eth0") == ()
        assert "which BPF programs are attached by tcx cannot be told without root" in caplog.messages
        number = errno.EIO
        with pytest.raises(BackendError, match="bpf: refused"):
            backend.classifiers("eth0")

    def test_reading_needs_no_privilege(self, node: KernelArrangement) -> None:
        """An ordinary user may ask all of it."""
        node.add_default("eth0")
        program = (
            "from hostrouting.host.netlink.ipv6 import NetlinkIPv6; n = NetlinkIPv6();"
            "print(n.default_devs(), n.addresses('eth0'), n.leaves_by('fd00:a::9'), n.classifiers('eth0'))"
        )
        assert node.kernel.run(*powerless(), sys.executable, "-c", program) == (
            "('eth0',) ('fd00:1::4',) ('ib0',) ()\n"
        )


def test_a_missing_namespace_is_a_clear_error() -> None:
    """The namespace is named."""
    with pytest.raises(BackendError, match="rtnetlink in network namespace no-such-namespace: No such file"):
        NetlinkIPv6(netns="no-such-namespace").default_devs()


# --- packed messages


@pytest.mark.parametrize(("added", "age"), [(1000, 90.0), (10_001, 0.0), (2**32 - 500, 105.0)])
def test_the_age_of_an_address(added: int, age: float) -> None:
    """Its time of birth may be a tick ahead of our clock, and begins anew every 497 days."""
    packed = struct.pack("=BBBBI", 10, 64, 0, 0, 3) + attribute(6, struct.pack("=IIII", 1, 1, added, added))
    assert parse_youngest([message(20, 0, packed)], 3, 100.0) == age
    assert parse_youngest([message(20, 0, packed)], 4, 100.0) is None


@pytest.mark.parametrize(
    ("flags", "usable"), [(0x80, True), (0xC0, False), (0x40, False), (0x44, True), (0x48, False), (0x88, False)]
)
def test_flags_say_whether_an_address_is_usable(flags: int, usable: bool) -> None:
    """Tentative ones are not unless they are optimistic; those that failed (dadfailed) are not in any case."""
    packed = struct.pack("=BBBBI", 10, 64, 0, 0, 3) + attribute(1, bytes(15) + b"\4")
    packed += attribute(8, struct.pack("=I", flags))
    assert parse_usable_addresses([message(20, 0, packed)], 3) == (("::4",) if usable else ())
    assert parse_usable_addresses([message(20, 0, packed)], 4) == ()


def test_other_families_are_passed_over() -> None:
    """A kernel without IPv6 (`ipv6.disable=1`) answers with all that it has of the others."""
    to, by = attribute(1, bytes([10, 0, 0, 0])), attribute(4, struct.pack("=I", 3))
    routes = [message(24, 0, struct.pack("=8BI", family, 8, 0, 0, 254, 3, 0, 1, 0) + to + by) for family in (2, 7, 28)]
    assert parse_routes(routes, {3: "eth0"}) == []
    local = attribute(2, bytes([10, 0, 0, 4]))
    address = message(20, 0, struct.pack("=BBBBI", 2, 24, 0x80, 0, 3) + attribute(1, bytes([10, 0, 0, 4])) + local)
    assert parse_usable_addresses([address], 3) == ()


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EOPNOTSUPP])
def test_without_ipv6_nothing_leads_anywhere(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A kernel that does not know of IPv6 refuses the question for a way, and that is the answer."""

    def refuse(_conversation: object, _request: object) -> bytes:
        raise OSError(number, "not supported")

    monkeypatch.setattr(Conversation, "ask", refuse)
    assert NetlinkIPv6().leaves_by("2001:db8::1") == ()


def test_a_dead_next_hop_is_none() -> None:
    """Nothing leaves by a device of several that is down."""
    hops = struct.pack("=HBBI", 8, 0, 0, 3) + struct.pack("=HBBI", 8, 0x1, 0, 4) + struct.pack("=HBBI", 8, 0x10, 0, 5)
    packed = struct.pack("=8BI", 10, 0, 0, 0, 254, 3, 0, 1, 0) + attribute(9, hops)
    names = {3: "eth0", 4: "ib0", 5: "ib1"}
    route = RouteReader(names).read(message(24, 0, packed))
    assert [hop.dev for hop in route.hops if not hop.dead] == ["eth0", "ib1"]


def test_a_filter_without_programme_has_no_name() -> None:
    """Other kinds of filters have other options under the same numbers."""
    head = struct.pack("=BxxxiIII", 0, 3, 0, 0, 0)
    other = attribute(1, b"u32\0") + attribute(2, attribute(7, b"not-a-name\0"))
    bare = attribute(1, b"bpf\0")
    named = attribute(1, b"bpf\0") + attribute(2, attribute(7, b"ipv6_hp_egress\0"))
    assert parse_bpf_names(message(44, 0, head + one) for one in (other, bare, named)) == {"ipv6_hp_egress"}


def test_the_fake_fails_where_it_is_told_to() -> None:
    """Calls are counted and remembered."""
    fake = MemoryIPv6()
    fake.fail_at(2)
    assert fake.default_devs() == ()
    with pytest.raises(BackendError, match="No buffer space available"):
        fake.leaves_by("::1")
    assert fake.operations.calls == [("default_devs",), ("leaves_by", "::1")]
