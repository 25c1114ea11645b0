"""The waits of the check, which are made only if its check fails and may become right, and last 30
s in all.
"""

from collections.abc import Iterator, Mapping

import pytest
from support.kernel import connect, needs_kernel
from support.printed import NO_DEVICE_OF, WAITING, leaves

from hostrouting import HostRoutingConfig
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.route_overlap.waiting import check_with_wait
from hostrouting.testing import FakeHost, KernelNode
from phases import Context
from phases.testing import ManualClock

pytestmark = needs_kernel

CIDR = "10.96.0.0/16"
WHOLE = f"{CIDR}: no-route 10.96.0.0-10.96.255.255"
FINE = leaves(CIDR, "eth0\n")
NO_DEFAULT = "table main has no IPv4 default route"
#: The node is isolated: no default route is expected.
ISOLATED = {"expectedDevs": ["eth0"]}
ABSENT = {"expectedDevs": ["eth0", "eth1"]}
NO_DEVICE = "there is no network device eth1"
HALF = "10.96.0.0/17 via 10.224.0.1"
ASTRAY = f"{CIDR} dev ib0"
#: What is missing at a boot: routes, section, and the reason to wait; without one the node is not
#: waited for.
CASES: Mapping[str, tuple[list[str], Mapping[str, object], str]] = {
    "no default route": ([], {}, NO_DEFAULT),
    "no route": ([], ISOLATED, WHOLE),
    "no route for a part": ([HALF], ISOLATED, f"{CIDR}: no-route 10.96.128.0-10.96.255.255"),
    "no route, no device": ([HALF], ABSENT, NO_DEVICE),
    "another way, no device": ([ASTRAY], ABSENT, NO_DEVICE),
    "another way, no device of the network": (
        [ASTRAY],
        {"expectedDevs": ["10.224.0.0/16"]},
        f"there is no network device {NO_DEVICE_OF}",
    ),
    "another way": ([ASTRAY], ISOLATED, ""),
    "another way than the default route": (["default via 10.224.0.1", ASTRAY], {}, ""),
    "another way for a part": (["10.96.0.0/17 dev ib0"], ISOLATED, ""),
    "blocked": ([HALF, "blackhole 10.96.128.0/17"], ABSENT, ""),
    "local": (["local 10.96.0.1 dev ib0 table local"], ABSENT, ""),
    "announced": ([f"{CIDR} via 10.224.0.1"], {**ABSENT, "fabric": ["10.96.0.0/20"]}, ""),
}


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        connect(node, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
        yield node


def checked(node: KernelNode, section: Mapping[str, object]) -> tuple[bool, float]:
    """Return the answer of the library, and the seconds that it waited."""
    clock = ManualClock(auto=True)
    config = HostRoutingConfig.from_mapping({"routeOverlap": {"expectedCidrs": [CIDR], **section}})
    report = check_with_wait(
        Context(clock=clock), config, FakeHost(NetlinkBackend(netns=node.name))
    )
    return report.ok, clock.monotonic()


@pytest.mark.parametrize("case", CASES)
def test_what_may_heal(node: KernelNode, caplog: pytest.LogCaptureFixture, case: str) -> None:
    """The task waits if its check may become right, logs the reason, and does not wait
    otherwise.
    """
    routes, section, reason = CASES[case]
    for route in routes:
        node.ip(f"route add {route}")
    assert checked(node, section) == (False, 30 if reason else 0)
    assert caplog.messages == ([f"{WAITING}{reason}"] if reason else [])


@pytest.mark.parametrize("rule", ["del pref 32766", f"add pref 100 to {CIDR} unreachable"])
def test_a_rule_is_not_waited_for(
    node: KernelNode, caplog: pytest.LogCaptureFixture, rule: str
) -> None:
    """The task does not wait for a missing rule of table main, or for the removal of a rule that
    refuses: a program fixes neither, though the errno is that of a missing route.
    """
    node.ip("route add default via 10.224.0.1")
    node.ip(f"rule {rule}")
    assert checked(node, {}) == (False, 0)
    assert caplog.messages == []
