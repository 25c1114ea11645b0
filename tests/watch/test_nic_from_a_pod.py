"""A NIC that was lent to a pod comes back without its addresses and routes, as in dranet#42."""

from collections.abc import Callable

import pytest
from support.kept_routes import OWN_ROUTE as ROUTE
from support.kept_routes import ROUTE as WANTED
from support.kept_routes import Kept, standing
from support.kernel import kernel_host
from support.needs import needs
from support.watched_nodes import OWN_ROUTES, arrange, watching

from hostrouting.testing import KernelNode, MemoryBackend
from phases import Context


class LentNode(KernelNode):
    """A node whose eth1 can be lent."""

    def connect(self) -> None:
        """Do as DHCP does."""
        self.set_up("eth1")
        self.ip("address add 10.225.0.4/16 dev eth1")

    def lend(self, pod: KernelNode) -> None:
        self.ip(f"link set eth1 netns {pod.name}")

    def take_back(self, pod: KernelNode) -> None:
        pod.ip(f"link set eth1 netns {self.name}")
        self.connect()


@needs("kernel")
def test_watch_restores_its_routes(caplog: pytest.LogCaptureFixture) -> None:
    """Once its address is back, each of 100 times; the limit of lines holds."""
    caplog.set_level("INFO")
    with LentNode.made() as node, KernelNode.made() as pod:
        assert isinstance(node, LentNode)
        arrange(node)
        node.remove_link("eth1")
        node.ip("link add eth1 type veth peer name far1")
        node.set_up("far1")
        node.connect()
        with watching(kernel_host(node), node) as watched:
            for _ in range(100):
                node.lend(pod)
                watched.until_repaired(OWN_ROUTES[:1])
                node.take_back(pod)
                watched.until_repaired()
        start, *messages = caplog.messages
        assert start.startswith("keeps static routes")
        waits = [message for message in messages if " waits: " in message]
        assert len(waits) <= 60
        assert messages.count(f"repaired: + {OWN_ROUTES[0]}") == 1, "when watch started"
        counted = {message for message in messages if " repairs, the first is: " in message}
        assert {*messages} - {*waits} - counted <= {
            *(f"repaired: + {route}" for route in OWN_ROUTES),
            "no route waits any more",
        }


def test_it_waits_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Each step of the way back has a reason of its own, and the first one is logged."""
    caplog.set_level("INFO")
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    with node.events.listen(Context()) as listener:
        kept = Kept(node, listener, WANTED)
        kept.act()
        caplog.clear()
        steps: list[Callable[[], None]] = [
            lambda: node.remove_link("eth0"),
            lambda: node.add_link("eth0", up=False),
            lambda: node.set_up("eth0"),
            lambda: node.add_address("eth0", "10.224.0.4/16"),
        ]
        for step in steps:
            step()
            assert kept.catch_up() == 0
            kept.act()
        assert standing(node) == [str(ROUTE)]
    assert caplog.messages == [
        f"route '{ROUTE}' waits: there is no such device",
        f"repaired: + {ROUTE}",
        "no route waits any more",
    ]
