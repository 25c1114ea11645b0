"""The routes of an address in the model, against those of the kernel: Linux before 5.14 adds one more."""

import pytest
from support.kernel import needs_kernel

from hostrouting.fib import Fib
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.routes import LOCAL_TABLE, ObservedRoute
from hostrouting.testing import KernelNode, consequences

IB0 = Device("ib0", 2, up=True)
OLD = ObservedRoute.parse("127.0.0.0/32", "lo", kind="broadcast", table=LOCAL_TABLE)


@needs_kernel
@pytest.mark.parametrize("address", ["172.16.1.4/16", "172.16.1.4/30", "172.16.1.4/31", "172.16.1.4/32"])
def test_an_address_brings_the_routes_of_the_model(address: str) -> None:
    """The first address of a network is for broadcasts if that of 127.0.0.0/8 is, on every kernel."""
    with KernelNode.made() as node:
        node.add_link("ib0")
        backend = NetlinkBackend(netns=node.name)
        before = Fib.of(backend.links(), backend.routes())
        node.add_address("ib0", address)
        model = consequences.address_added(before, "ib0", DeviceAddress.parse(address))
        assert sorted(map(str, model.routes())) == sorted(map(str, backend.routes()))


@pytest.mark.parametrize(
    ("standing", "expected"), [([], ["172.16.255.255/32"]), ([OLD], ["172.16.0.0/32", "172.16.255.255/32"])]
)
def test_the_first_address_of_a_network(standing: list[ObservedRoute], expected: list[str]) -> None:
    """It is for broadcasts where that of the loopback device is."""
    fib = Fib.of([IB0], standing)
    routes = consequences.own_routes(fib, IB0, DeviceAddress.parse("172.16.1.4/16"))
    assert [route.destination for route in routes if route.kind == "broadcast"] == expected
