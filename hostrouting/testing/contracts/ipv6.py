"""The promises of `IPv6Backend`, as tests. See `hostrouting.testing.contracts`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

import pytest

from hostrouting.exceptions import BackendError

if TYPE_CHECKING:
    from hostrouting.host import IPv6Backend

__all__ = ["IPv6BackendContract", "IPv6Node"]


class IPv6Node(Protocol):
    """The handles of a node."""

    def add_device(self, name: str) -> None:
        """Add a device that is up and has carrier."""

    def add_address(self, dev: str, address: str) -> None:
        """Add a global address that is usable at once, with a network of 64 bits."""

    def add_default(self, *devs: str, metric: int = 1024) -> None:
        """Add a default route by the devices, each a next hop, with a metric that is free."""

    def add_route(self, destination: str, *devs: str) -> None:
        """Add a route with a next hop by each device; without any it blocks."""

    def attach(self, dev: str, direction: str, program: str) -> None:
        """Attach a BPF program of that name for the packets `in` or `out`."""


class IPv6BackendContract:
    """Each test has a fresh `node` with a loopback device only; `backend` sees that node."""

    @pytest.fixture
    def node(self) -> IPv6Node:
        """The node that the tests arrange."""
        raise NotImplementedError

    @pytest.fixture
    def backend(self, node: IPv6Node) -> IPv6Backend:
        """The backend under test, which sees `node`."""
        raise NotImplementedError

    @pytest.fixture
    def eth0(self, node: IPv6Node) -> IPv6Node:
        """A node with eth0 on fd00:1::4, its default route there, and ib0 and ib1."""
        for dev, address in (("eth0", "fd00:1::4"), ("ib0", "fd00:a::4"), ("ib1", "fd00:b::4")):
            node.add_device(dev)
            node.add_address(dev, address)
        node.add_default("eth0", metric=100)
        return node

    def test_a_fresh_node_leads_nowhere(self, node: IPv6Node, backend: IPv6Backend) -> None:
        """Without a default route there is no device, and only the node itself is reached."""
        assert backend.default_devs() == ()
        assert backend.leaves_by("2001:db8::1") == ()
        assert backend.leaves_by("::1") == ("lo",)

    def test_the_default_device_is_found(self, eth0: IPv6Node, backend: IPv6Backend) -> None:
        """It is the default route's, and addresses that no other route decides leave by it."""
        assert backend.default_devs() == ("eth0",)
        assert backend.leaves_by("2001:db8::1") == ("eth0",)

    def test_only_the_best_default_counts(self, eth0: IPv6Node, backend: IPv6Backend) -> None:
        """The lowest metric decides; all its next hops count, each device once."""
        eth0.add_default("ib1", metric=200)
        assert backend.default_devs() == ("eth0",)
        assert backend.leaves_by("2001:db8::1") == ("eth0",)
        eth0.add_default("ib1", "ib0", metric=50)
        assert sorted(backend.default_devs()) == ["ib0", "ib1"]
        assert backend.leaves_by("2001:db8::1") == ("ib0", "ib1")

    def test_every_next_hop_counts(self, eth0: IPv6Node, backend: IPv6Backend) -> None:
        """A packet may leave by any of them; they are sorted."""
        eth0.add_route("fd00:2::/64", "ib1", "ib0")
        assert backend.leaves_by("fd00:2::9") == ("ib0", "ib1")

    def test_the_longest_prefix_decides(self, eth0: IPv6Node, backend: IPv6Backend) -> None:
        """It wins over all other routes."""
        eth0.add_route("fd00:2::/48", "ib0")
        eth0.add_route("fd00:2:0:5::/64", "ib1")
        assert backend.leaves_by("fd00:2:0:5::9") == ("ib1",)
        assert backend.leaves_by("fd00:2:0:6::9") == ("ib0",)

    def test_a_route_that_blocks_leads_nowhere(self, eth0: IPv6Node, backend: IPv6Backend) -> None:
        """The default route does not count for it."""
        eth0.add_route("fd00:3::/64")
        assert backend.leaves_by("fd00:3::9") == ()

    def test_an_own_address_is_its_owners(self, eth0: IPv6Node, backend: IPv6Backend) -> None:
        """The answer is the device that has it, not the loopback."""
        assert backend.leaves_by("fd00:a::4") == ("ib0",)

    @pytest.mark.parametrize("text", ["10.0.0.1", "fd00::/64", "eth0", ""])
    def test_what_is_no_address_is_refused(self, eth0: IPv6Node, backend: IPv6Backend, text: str) -> None:
        """The error shows it."""
        with pytest.raises(BackendError) as caught:
            backend.leaves_by(text)
        assert str(caught.value) == f"{text!r} is not an IPv6 address"

    def test_addresses_are_those_of_the_device(self, eth0: IPv6Node, backend: IPv6Backend) -> None:
        """All of them, without prefix length; an absent device has none."""
        eth0.add_address("eth0", "2001:db8::4")
        assert sorted(backend.addresses("eth0")) == ["2001:db8::4", "fd00:1::4"]
        assert backend.addresses("ib0") == ("fd00:a::4",)
        assert backend.addresses("no-such-device") == ()

    def test_the_age_of_the_newest_address(self, node: IPv6Node, backend: IPv6Backend) -> None:
        """It is a moment old; an absent device has no age."""
        node.add_device("eth0")
        node.add_address("eth0", "2001:db8::4")
        age = backend.newest_address("eth0")
        assert age is not None
        assert 0 <= age < 10
        assert backend.newest_address("no-such-device") is None

    def test_a_device_without_programmes_has_none(self, eth0: IPv6Node, backend: IPv6Backend) -> None:
        """An absent device has none, either."""
        assert backend.classifiers("eth0") == ()
        assert backend.classifiers("no-such-device") == ()

    def test_programmes_of_both_directions_are_named(self, eth0: IPv6Node, backend: IPv6Backend) -> None:
        """Sorted, each once, and those of this device only."""
        eth0.attach("eth0", "in", "ipv6_hp_ingress")
        eth0.attach("eth0", "out", "ipv6_hp_egress")
        eth0.attach("eth0", "out", "ipv6_hp_ingress")
        eth0.attach("ib0", "in", "other")
        assert backend.classifiers("eth0") == ("ipv6_hp_egress", "ipv6_hp_ingress")
        assert backend.classifiers("ib0") == ("other",)

    def test_it_may_be_used_from_any_thread(self, eth0: IPv6Node, backend: IPv6Backend) -> None:
        """Another thread than the one that made it gets the same answers."""
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.append(backend.default_devs()))
        thread.start()
        thread.join()
        assert answers == [("eth0",)]
