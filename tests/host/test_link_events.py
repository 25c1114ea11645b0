"""The events of what is arranged and changed by the link layer, on the fake and on the kernel."""

from collections.abc import Iterator, Sequence

import pytest
from support.contracts.link_layer import LinkNode
from support.kernel import needs_kernel
from support.kernel_links import KernelLinks

from hostrouting.host import Listener, NetworkEvents, RouteBackend
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.events import NetlinkEvents
from hostrouting.net.events import AddressEvent, DeviceEvent, NetworkEvent
from hostrouting.net.links import DeviceAddress
from hostrouting.testing import KernelNode, MemoryLinkLayer
from phases import Context


def names(events: Sequence[NetworkEvent]) -> list[tuple[str, str]]:
    """Return verb and name of the devices in the events."""
    return [(event.verb, event.device.name) for event in events if isinstance(event, DeviceEvent)]


class LinkEvents:
    """Each test has a `node` with a bridge, whose events come to `listener`."""

    @pytest.fixture
    def listener(self, node: LinkNode, events: NetworkEvents) -> Iterator[Listener]:
        node.add_device("azure0", kind="bridge", addresses=["10.240.0.4/16"])
        with events.listen(Context()) as listener:
            yield listener

    def test_a_pod_comes_and_goes(self, node: LinkNode, backend: RouteBackend, listener: Listener) -> None:
        """Its device is told as a reading shows it, with its bridge, and as removed in the end."""
        node.add_device("azv1", kind="veth", master="azure0")
        told = [event for event in listener.take() if isinstance(event, DeviceEvent) and event.device.name == "azv1"]
        [azv1] = [device for device in backend.links() if device.name == "azv1"]
        # Its carrier may come later.
        assert (told[-1].verb, told[-1].device[:6]) == ("set", azv1[:6])
        node.remove_device("azv1")
        assert ("remove", "azv1") in names(listener.take())


class TestInMemory(LinkEvents):
    @pytest.fixture
    def node(self) -> MemoryLinkLayer:
        return MemoryLinkLayer()

    @pytest.fixture
    def events(self, node: MemoryLinkLayer) -> NetworkEvents:
        return node.node.events

    @pytest.fixture
    def backend(self, node: MemoryLinkLayer) -> RouteBackend:
        return node.node


@needs_kernel
class TestInTheKernel(LinkEvents):
    @pytest.fixture
    def node(self) -> Iterator[KernelLinks]:
        with KernelNode.made() as made, KernelLinks(made) as links:
            yield links

    @pytest.fixture
    def events(self, node: KernelLinks) -> NetworkEvents:
        return NetlinkEvents(netns=node.name)

    @pytest.fixture
    def backend(self, node: KernelLinks) -> RouteBackend:
        return NetlinkBackend(netns=node.name)

    def test_addresses_are_told(self, node: LinkNode, listener: Listener) -> None:
        """They come with a device and go with it, before it; those of IPv6 are told again when they are usable."""
        node.add_device("eth0", addresses=["10.224.0.4/16", "fd00:1::4/64"])
        told = [event for event in listener.take() if isinstance(event, AddressEvent)]
        own = [DeviceAddress.parse(text) for text in ("10.224.0.4/16", "fd00:1::4/64")]
        assert told[:1] == [AddressEvent("set", "eth0", own[0])]
        assert {event.address for event in told} <= set(own)
        node.remove_device("eth0")
        gone = [
            event
            for event in listener.take()
            if event.verb == "remove" and isinstance(event, AddressEvent | DeviceEvent)
        ]
        assert told[0]._replace(verb="remove") in gone[:2]
        assert ("remove", "eth0") in names(gone[2:])
