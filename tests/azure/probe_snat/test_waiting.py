"""The wait of a node without IPv6, by the kernel's knowledge of its device."""

from collections.abc import Iterator
from functools import partial

import attrs
import pytest
from support.kernel import kernel_of
from support.needs import needs
from support.patience import wait_until

from hostrouting.azure.probe_snat import ConfigureProbeSNAT
from hostrouting.config import HostRoutingConfig, ProbeSNATConfig
from hostrouting.host import Host
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from hostrouting.testing import FakeHost, KernelNode
from phases import Context
from phases.testing import ManualClock

CONFIG = HostRoutingConfig(
    probe_snat=ProbeSNATConfig(enabled=True, dev="eth0", detect="address"), gates=()
)


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as made:
        # With link-local addresses, as the kernel has them by default.
        made.run("sysctl", "-qw", "net.ipv6.conf.default.addr_gen_mode=0")
        made.ip("link add eth0 type veth peer name wire")
        made.ip("link set wire up")
        yield made


def waited(node: KernelNode) -> float:
    """The seconds that the task waits, by a clock that does not."""
    clock = ManualClock(auto=True)
    began = clock.monotonic()
    fake = FakeHost()
    parts = {field.name: getattr(fake, field.name) for field in attrs.fields(Host)}
    parts |= {
        "routes": kernel_of(node),
        "link_layer": NetlinkLinkLayer(netns=node.name),
    }
    host = Host(**parts)
    ConfigureProbeSNAT(CONFIG, host=host).do(Context(clock=clock))
    return clock.monotonic() - began


@needs("kernel")
def test_a_device_that_just_came_up_may_get_an_answer(node: KernelNode) -> None:
    """The kernel has added its link-local address a moment ago, and is still asking for routers."""
    node.ip("link set eth0 up")
    # A work queue of the kernel adds the address once it has seen the carrier, up to a second
    # later.
    shown = partial(node.ip, "-6", "address", "show", "dev", "eth0")
    wait_until(lambda: "inet6" in shown(), "the kernel adds no link-local address")
    assert 5 < waited(node) < 16


@needs("kernel")
def test_a_device_without_ipv6_is_not_waited_for(node: KernelNode) -> None:
    """Where IPv6 is switched off on the device, so that it has no address at all, nothing is waited
    for.
    """
    node.run("sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=1")
    node.ip("link set eth0 up")
    assert waited(node) == 0
