"""A model that follows the kernel, in the cases of which the state machine of the two worlds knows nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs
import pytest
from support.kernel import needs_kernel
from support.kernel_links import KernelLinks

from hostrouting.fib import Fib
from hostrouting.fib.live import LiveFib, differences
from hostrouting.fib.packed import Packed
from hostrouting.host import Device, DeviceEvent, ObservedRoute, RouteEvent
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.events import NetlinkEvents
from hostrouting.net.routes import FLAG_LINKDOWN
from hostrouting.testing import KernelNode
from phases import Context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host import Listener

SECONDS = 10


@attrs.frozen
class Followed:
    """A namespace and the model that follows it."""

    node: KernelNode
    links: KernelLinks
    backend: NetlinkBackend
    listener: Listener
    live: LiveFib

    def check(self) -> str:
        """Hear what came; the model is then a reading, unless it says that it does not know."""
        effect = self.live.apply(self.listener.take())
        reading = Fib.of(self.backend.links(), self.backend.routes(), self.backend.rules())
        assert effect.unknown or list(differences(self.live.fib, reading)) == []
        return effect.unknown

    def told_late(self) -> Iterator[str]:
        """Yield what the model does not know, for as long as the kernel may wait before it announces a carrier."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            yield self.live.apply(self.listener.take()).unknown
            time.sleep(0.01)


@pytest.fixture
def followed() -> Iterator[Followed]:
    with KernelNode.made() as node, KernelLinks(node) as links:
        links.add_device("eth0", addresses=["10.224.0.4/16"])
        backend = NetlinkBackend(netns=node.name)
        with NetlinkEvents(netns=node.name).listen(Context()) as listener:
            fib = Fib.of(backend.links(), backend.routes(), backend.rules())
            yield Followed(node, links, backend, listener, LiveFib(fib))


@needs_kernel
def test_a_promoted_address(followed: Followed) -> None:
    """With `promote_secondaries`, which systemd sets, the addresses stay of which one follows the removed primary."""
    node = followed.node
    node.run("sysctl", "-qw", "net.ipv4.conf.eth0.promote_secondaries=1")
    for last in 5, 6:
        node.ip("address", "add", f"10.224.0.{last}/16", "dev", "eth0")
    node.add_route("9.0.0.0/8", dev="eth0", source="10.224.0.4")
    node.add_route("9.1.0.0/16", dev="eth0", source="10.224.0.6")
    followed.check()
    node.ip("address", "delete", "10.224.0.4/16", "dev", "eth0")
    followed.check()
    assert [str(own) for own in followed.live.fib.devices["eth0"].addresses] == ["10.224.0.5/16", "10.224.0.6/16"]


@needs_kernel
def test_an_address_without_its_network(followed: Followed) -> None:
    """An address that is added with `noprefixroute`, as networkd does, brings no connected route."""
    followed.node.ip("address", "add", "172.16.1.4/16", "dev", "eth0", "noprefixroute")
    followed.check()
    followed.node.ip("address", "delete", "172.16.1.4/16", "dev", "eth0")
    followed.check()


@needs_kernel
def test_an_address_whose_lifetime_is_renewed(followed: Followed) -> None:
    """A renewed lease is announced like a new address, and changes nothing."""
    for seconds in 100, 200:
        followed.node.ip(
            "address",
            "replace",
            "172.16.1.4/16",
            "dev",
            "eth0",
            *f"valid_lft {seconds} preferred_lft {seconds}".split(),
        )
        followed.check()


@needs_kernel
def test_a_changed_nexthop_object(followed: Followed) -> None:
    """Its routes change where they stand, also behind others."""
    node = followed.node
    node.ip("nexthop", "add", "id", "7", "via", "10.224.0.9", "dev", "eth0")
    for words in ("9.0.0.0/8", "via", "10.224.0.1"), ("9.0.0.0/8", "nhid", "7"), ("8.0.0.0/8", "nhid", "7"):
        node.ip("route", "append", *words)
    followed.check()
    node.ip("nexthop", "replace", "id", "7", "via", "10.224.0.8", "dev", "eth0")
    followed.check()


@needs_kernel
def test_a_carrier(followed: Followed) -> None:
    """The state of the routes of a device without carrier is announced by nothing: the node must be read."""
    followed.node.run("sysctl", "-qw", "net.ipv4.conf.all.ignore_routes_with_linkdown=1")
    followed.check()
    followed.node.ip("link", "set", "eth0-far", "down")
    assert "the carrier of eth0 changed" in followed.told_late()


@needs_kernel
def test_bridges_and_renamed_devices(followed: Followed) -> None:
    """Ports that come and go, a rename, and a name that another device takes."""
    node = followed.node
    followed.links.add_device("br0", kind="bridge", addresses=["10.9.0.1/24"])
    followed.links.add_device("port")
    followed.check()
    for words in ("port", "master", "br0"), ("port", "nomaster"):
        node.ip("link", "set", *words)
        followed.check()
    for name, new in ("port", "old"), ("br0", "port"):
        node.ip("link", "set", name, "down")
        node.ip("link", "set", name, "name", new)
    followed.check()
    node.ip("link", "delete", "old")
    followed.check()


def test_routes_that_share_all_but_their_network() -> None:
    """What was packed is what is found, in buckets of several routes, and after changes, too."""
    routes = [ObservedRoute.parse(f"9.{number}.0.0/16", "eth0", protocol=3) for number in range(3)]
    several = (routes[1], routes[1]._replace(metric=7))
    packed = Packed.of([routes[0], *several, routes[2]])
    keys = [(254, route.network, 16) for route in routes]
    changed = packed.changed({keys[0]: (), keys[1]: several[:1], keys[2]: several})
    assert [changed.get(key) for key in keys] == [(), several[:1], several]
    assert (len(packed), len(changed)) == (3, 2)
    assert set(packed.suspects(changed)) == set(keys)
    assert [packed.get(key) for key in keys] == [(routes[0],), several, (routes[2],)]


def test_only_some_routes_are_followed() -> None:
    """Events of other routes change nothing."""
    live = LiveFib(Fib.of([], []), keeps=lambda route: route.network >> 24 == 9)
    routes = [ObservedRoute.parse(f"{first}.0.0.0/8", "eth0") for first in (8, 9)]
    effect = live.apply([RouteEvent("add", route) for route in routes])
    assert live.fib.routes() == routes[1:]
    assert effect.keys == {(254, 9 << 24, 8)}


@needs_kernel
def test_a_removed_device_with_a_secondary_address(followed: Followed) -> None:
    """A route by another device that sends from a secondary address of a removed device stays."""
    node = followed.node
    followed.links.add_device("eth1", addresses=["10.3.0.2/24", "10.3.0.1/24"])
    for number, source in enumerate(("10.3.0.2", "10.3.0.1")):
        node.add_route(f"{8 + number}.0.0.0/8", gateway="10.224.0.1", dev="eth0", source=source)
    followed.check()
    node.remove_link("eth1")
    followed.check()
    assert [str(route) for route in followed.live.fib.routes() if route.protocol != 2] == [
        "9.0.0.0/8 via 10.224.0.1 dev eth0 src 10.3.0.1"
    ]


@needs_kernel
def test_a_deleted_nexthop_object(followed: Followed) -> None:
    """Its routes go in silence, and those of its groups lose a next hop in silence: the node must be read."""
    node = followed.node
    for last in "78":
        node.ip("nexthop", "add", "id", last, "via", f"10.224.0.{last}", "dev", "eth0")
    node.ip("nexthop", "add", "id", "10", "group", "7/8")
    assert followed.check() == ""
    for destination, number in ("9.0.0.0/8", "10"), ("8.0.0.0/8", "8"):
        node.ip("route", "add", destination, "nhid", number)
    assert followed.check() == ""
    node.ip("nexthop", "delete", "id", "7")
    assert followed.check() == "the nexthop object 10 changed"
    node.ip("nexthop", "delete", "id", "8")
    assert followed.live.apply(followed.listener.take()).unknown


@needs_kernel
def test_the_routes_of_a_nexthop_object_outlive_addresses(followed: Followed) -> None:
    """With the last address of a device all its routes go, but not those of nexthop objects."""
    node = followed.node
    node.ip("nexthop", "add", "id", "7", "via", "10.224.0.9", "dev", "eth0")
    node.ip("route", "add", "9.0.0.0/8", "nhid", "7")
    assert followed.check() == ""
    node.ip("address", "flush", "dev", "eth0")
    assert "nexthop objects" in followed.check()


@needs_kernel
def test_routes_without_carrier_die_by_a_setting(followed: Followed) -> None:
    """`ignore_routes_with_linkdown` changes routes in silence, and another setting changes none."""
    followed.links.add_device("eth1", addresses=["10.3.0.2/24"], carrier=False)
    assert followed.listener.take()
    live = LiveFib(Fib.of(followed.backend.links(), followed.backend.routes(), followed.backend.rules()))
    followed = attrs.evolve(followed, live=live)
    followed.node.run("sysctl", "-qw", "net.ipv4.conf.eth1.rp_filter=2")
    assert followed.check() == ""
    followed.node.run("sysctl", "-qw", "net.ipv4.conf.eth1.ignore_routes_with_linkdown=1")
    assert followed.check() == "the setting ignore_routes_with_linkdown changed"


@needs_kernel
def test_another_address_without_carrier(followed: Followed) -> None:
    """A new address revives the routes of its device, but not those that are dead for want of a carrier."""
    followed.links.add_device("eth1", addresses=["10.3.0.2/24"], carrier=False)
    followed.node.run("sysctl", "-qw", "net.ipv4.conf.eth1.ignore_routes_with_linkdown=1")
    assert followed.listener.take()
    live = LiveFib(Fib.of(followed.backend.links(), followed.backend.routes(), followed.backend.rules()))
    followed = attrs.evolve(followed, live=live)
    followed.node.add_address("eth1", "10.4.0.2/24")
    assert followed.check() == "an address of eth1, which has no carrier, changed"


def test_a_carrier_that_was_read_before_it_was_announced() -> None:
    """The kernel announces a carrier, and changes the routes, up to a second after the device shows it."""
    eth0 = Device("eth0", 2, up=True, carrier=False)
    route = ObservedRoute.parse("9.0.0.0/8", "eth0")
    assert LiveFib(Fib.of([eth0], [route])).apply([DeviceEvent("set", eth0)]).unknown == "the carrier of eth0 changed"
    known = LiveFib(Fib.of([eth0], [route._replace(flags=FLAG_LINKDOWN)]))
    assert known.apply([DeviceEvent("set", eth0)]).unknown == ""
