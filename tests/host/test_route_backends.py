"""The contract of `RouteBackend`, on each of its implementations."""

import ctypes
import errno
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
from support.kernel import needs_kernel
from support.needs import needs

from hostrouting.exceptions import LinkNotFoundError, RouteRejectedError
from hostrouting.host import IPV6, Address, NextHop, Route, RouteBackend, RouteChange, Rule
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.pyroute import Pyroute2Backend
from hostrouting.net.addresses import parse_ipv4
from hostrouting.testing import KernelNode, MemoryBackend, Node
from hostrouting.testing.contracts.routes import (
    ABSENT,
    DEFAULT,
    DHCP,
    IB0,
    IPV6_BOOT,
    IPV6_ON_LINK,
    IPV6_OWN,
    OFF_LINK,
    ON_LINK,
    OWN,
    RouteBackendContract,
    arrange,
    as_read,
    competing_routes,
    deciding,
    find,
    in_order,
    look_up,
    metrics,
    shown,
)
from hostrouting.testing.route_texts import route

#: A route of a table that only rules reach.
BY_RULE = "default dev ib0 table 88 scope link"


class KernelRoutesContract(RouteBackendContract):
    """The contract for the backends of this project, beyond `RouteBackendContract`."""

    def test_a_prepended_ipv6_route_is_the_last_of_its_place(
        self, six: Node, backend: RouteBackend
    ) -> None:
        """An IPv6 route that another program prepends is the last of its place, since the kernel
        sorts by metric alone.
        """
        texts = ("fd00:9::/32 dev eth0 metric 5", "fd00:9::/32 dev ib0 metric 5")
        for text, verb in zip(texts, ("add", "prepend"), strict=True):
            six.insert_route(route(text), verb=verb)
        assert competing_routes(backend, IPV6) == in_order(*texts)

    def test_resolving_an_ipv6_address(self, six: Node, backend: RouteBackend) -> None:
        """A resolved IPv6 lookup has the gateway, device and source address of one packet."""
        arrange(six, "fd00:9::/32 via fd00:1::9 dev eth0 src fd00:1::4 metric 1")
        paths = [one.route for one in look_up(backend, "fd00:9::1", "fd00:a::4", resolve=True)]
        assert [
            path and (path.kind, path.dev, path.gateway, path.source, path.from_prefix)
            for path in paths
        ] == [
            (
                "unicast",
                "eth0",
                Address.parse("fd00:1::9"),
                Address.parse("fd00:1::4").number,
                None,
            ),
            ("local", "lo", None, Address.parse("fd00:a::4").number, None),
        ]

    def test_an_ipv6_route_without_a_gateway_stands_behind(
        self, six: Node, backend: RouteBackend
    ) -> None:
        """An IPv6 route without a gateway can be appended, as it does not merge with others, and
        cannot be prepended.
        """
        arrange(six, IPV6_OWN)
        backend.apply([RouteChange.append(route(IPV6_ON_LINK))])
        assert competing_routes(backend, IPV6) == in_order(IPV6_OWN, IPV6_ON_LINK)
        with pytest.raises(ValueError, match="can only be added as the only route"):
            RouteChange.append(route(IPV6_OWN))
        with pytest.raises(ValueError, match="cannot be prepended"):
            RouteChange.prepend(route(IPV6_ON_LINK))

    def test_an_address_brings_its_routes(self, node: Node, backend: RouteBackend) -> None:
        """A new address adds a connected, a local and a broadcast route; before Linux 5.14 another
        one for broadcasts.
        """
        node.add_link("ib0")
        before = shown(backend)
        node.add_address("ib0", "172.16.1.4/16")
        first = "broadcast 172.16.0.0 dev ib0 table local proto kernel scope link src 172.16.1.4"
        assert {*shown(backend)} - {*before, as_read(first)} == {
            as_read(IB0),
            as_read("local 172.16.1.4 dev ib0 table local proto kernel src 172.16.1.4"),
            as_read("broadcast 172.16.255.255 dev ib0 table local proto kernel src 172.16.1.4"),
        }

    def test_a_link_that_goes_down_takes_its_routes(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """A device that is down keeps no route but the local one of its address."""
        eth0.set_up("ib0", up=False)
        local = "local 172.16.1.4 dev ib0 table local proto kernel scope host src 172.16.1.4"
        assert shown(backend, dev="ib0") == in_order(local)

    @pytest.fixture
    def table88(self, eth0: Node) -> Node:
        """The same node, with a default route in another table."""
        arrange(eth0, BY_RULE)
        return eth0

    def test_throw_ends_the_search_in_its_table_only(
        self, table88: Node, backend: RouteBackend
    ) -> None:
        """A throw route ends the search in its table, and the kernel reads the table of the next
        rule.
        """
        table88.add_rule(Rule(100, table=88))
        arrange(table88, "throw 9.0.0.0/8 table 88")
        decided = [deciding(backend, address) for address in ("9.1.1.1", "8.1.1.1")]
        assert decided == in_order(DEFAULT, BY_RULE)

    def test_a_rule_by_source_wants_the_source(self, table88: Node, backend: RouteBackend) -> None:
        """A lookup without a source misses a `from` rule, and the same lookup with the source finds
        the rule.
        """
        own = parse_ipv4("10.224.0.4")
        table88.add_rule(Rule(100, table=88, source=(own, 32)))
        answers = look_up(backend, "9.1.1.1", "9.1.1.1", sources=[None, own])
        assert [answer.route for answer in answers] == in_order(DEFAULT, BY_RULE)

    def test_a_route_that_came_first_comes_back_first(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """A rollback restores a removed route as the first of its place, where it decides."""
        arrange(eth0, OWN, DHCP)
        self._refused(
            backend, RouteChange.remove(find(backend, OWN)), RouteChange.add(route(OFF_LINK))
        )

    @pytest.mark.parametrize("verb", [RouteChange.add, RouteChange.prepend, RouteChange.append])
    @pytest.mark.parametrize("metric", [2, 8, 10], ids=["mtu", "advmss", "hoplimit"])
    def test_what_the_kernel_made_of_a_route_is_rolled_back(
        self, eth0: Node, backend: RouteBackend, verb: Callable[[Route], RouteChange], metric: int
    ) -> None:
        """A route whose metric the kernel limits is refused as not in force, and the route that the
        kernel added is removed.
        """
        change = verb(route(ON_LINK, extra=metrics(metric, 70_000)))
        error = self._refused(backend, change)
        assert [refusal.change for refusal in error.refusals] == [change]

    def test_a_rollback_spares_what_looks_like_the_changed_route(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """A foreign route that differs from the refused one by its metrics only was there before, and stays."""
        usual, large = (
            attrs.evolve(route(ON_LINK), extra=metrics(2, mtu)) for mtu in (1400, 70_000)
        )
        backend.apply([RouteChange.add(usual)])
        self._refused(backend, RouteChange.append(large))

    def test_a_refused_removal_names_the_route_that_it_would_take(
        self, six: Node, backend: RouteBackend
    ) -> None:
        """A removal that would take another route is refused, and the reason has the route that the
        kernel would remove instead.
        """
        present = f"{ON_LINK} metric 5"
        arrange(six, present, IPV6_BOOT, IPV6_ON_LINK)
        for removed, taken in (
            (ABSENT, present),
            (find(backend, IPV6_ON_LINK), IPV6_BOOT),
        ):
            [refusal] = self._refused(backend, RouteChange.remove(removed)).refusals
            assert refusal.reason == f"the kernel would remove '{taken}' instead"

    def test_a_missing_device_is_named_with_those_of_the_node(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """A change by an absent device is refused, and the error names the device and those of the
        node.
        """
        with pytest.raises(LinkNotFoundError) as caught:
            backend.apply([RouteChange.add(route("8.0.0.0/8 dev eht0"))])
        text = "no such device: eht0; nothing was changed. The node has lo, eth0, ib0"
        assert str(caught.value) == text

    def test_a_missing_source_is_counted(self, node: Node, backend: RouteBackend) -> None:
        """A lookup with fewer sources than destinations is refused, and the error has both numbers
        and the correct form.
        """
        with pytest.raises(ValueError, match="for 2 destinations") as caught:
            backend.lookup([1 << 24, 2 << 24], sources=[None])
        text = "1 sources for 2 destinations: give one for each, or none"
        assert str(caught.value) == text

    def test_a_removal_never_takes_a_route_of_its_batch(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """The removal of an absent route without a metric does not take a route that the same batch
        adds, as the kernel would.
        """
        self._refused(
            backend, RouteChange.add(route(f"{ON_LINK} metric 7")), RouteChange.remove(ABSENT)
        )
        backend.apply([RouteChange.add(route(ON_LINK)), RouteChange.remove(ABSENT)])
        assert competing_routes(backend) == []

    def test_a_removal_of_several_next_hops_never_takes_the_first_alone(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """The removal of a route with several next hops is refused if the kernel would remove one
        with only the first of them.
        """
        hops = NextHop(None, "eth0"), NextHop(None, "ib0")
        several = Route(network=9 << 24, prefix_length=8, nexthops=hops)
        backend.apply([RouteChange.add(several)])
        [standing] = [one for one in backend.routes() if one.fulfils(several)]
        backend.apply([RouteChange.prepend(route(OWN))])
        with pytest.raises(RouteRejectedError, match=f"the kernel would remove '{OWN}' instead"):
            backend.apply([RouteChange.remove(standing)])
        assert competing_routes(backend) == [as_read(OWN), standing]


class TestMemoryBackend(KernelRoutesContract):
    """The contract on the model, which needs no kernel and always reaches its node."""

    test_every_failure_is_a_backend_error: Any = None
    test_the_nexthop_object_of_a_route_is_kept: Any = None

    @pytest.fixture
    def node(self) -> MemoryBackend:
        return MemoryBackend()

    @pytest.fixture
    def backend(self, node: Any) -> Any:
        return node

    @pytest.fixture
    def denied(self, node: Any) -> Any:
        node.refuse_at(1, number=errno.EPERM)
        return node


@contextmanager
def without_net_admin() -> Iterator[None]:
    """Let this thread lack CAP_NET_ADMIN, which the kernel wants for changes of routes."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Version 3 of the interface, and this thread.
    head = struct.pack("=Ii", 0x20080522, 0)
    present = ctypes.create_string_buffer(24)
    assert libc.capget(head, present) == 0
    (effective,) = struct.unpack_from("=I", present)
    less = ctypes.create_string_buffer(present.raw)
    struct.pack_into("=I", less, 0, effective & ~(1 << 12))
    assert libc.capset(head, less) == 0
    yield
    assert libc.capset(head, present) == 0


class OnTheKernel(KernelRoutesContract):
    """The contract in a new network namespace."""

    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        with KernelNode.made() as node:
            yield node

    @pytest.fixture
    def denied(self, backend: RouteBackend) -> Iterator[RouteBackend]:
        with without_net_admin():
            yield backend


@needs_kernel
class TestNetlinkBackend(OnTheKernel):
    """The contract on packed messages."""

    @pytest.fixture
    def backend(self, node: Any) -> RouteBackend:
        return NetlinkBackend(netns=node.name)

    @pytest.fixture
    def failing(self) -> RouteBackend:
        return NetlinkBackend(netns="hostrouting-absent")


class DummyNode(KernelNode):
    """A namespace whose devices are of the type `dummy`, which has no ARP, as a fabric may have
    none.
    """

    def add_link(self, name: str, *, up: bool = True, carrier: bool = True) -> None:
        """See `KernelNode.add_link`."""
        if not carrier:
            super().add_link(name, up=up, carrier=False)
            return
        self.ip(f"link add {name} type dummy")
        if up:
            self.set_up(name)


@needs("kernel", "dummy")
@pytest.mark.other_kernel
class TestOnDummies(TestNetlinkBackend):
    """The contract on packed messages, with devices of the type `dummy`."""

    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        with DummyNode.made() as node:
            yield node


@needs_kernel
class TestPyroute2Backend(OnTheKernel):
    """The contract on pyroute2's messages."""

    @pytest.fixture
    def backend(self, node: Any) -> Iterator[RouteBackend]:
        # pyroute2 takes long to import, and only these tests need it.
        from pyroute2 import NetNS

        with NetNS(node.name, flags=0) as netns:
            yield Pyroute2Backend(netns)

    @pytest.fixture
    def failing(self, node: Any) -> RouteBackend:
        from pyroute2 import NetNS

        closed = NetNS(node.name, flags=0)
        closed.close()
        return Pyroute2Backend(closed)
