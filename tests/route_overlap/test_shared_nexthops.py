"""The check of IPv6 routes that share a nexthop object.

The kernel's answer then names another route, so a check that believed it would call an address
healthy that leaves through the fabric.
"""

from __future__ import annotations

import pytest
from support.kernel import kernel_of, needs_kernel
from support.routers import ROUTER, SECOND_ROUTER, WiredNode

from hostrouting import prove_egress

pytestmark = needs_kernel

#: The kernel spreads flows over next hops by a hash that it seeds at boot. Of 64 addresses each
#: next hop has some, whatever the seed.
ADDRESSES = 64
#: Routes to fd09::/80, fd0a::/80 and fd0b::/80, each with a next hop through e1.
COMMANDS = f"""\
-6 route add default via {ROUTER} dev e0 proto ra
-6 route append fd09::/80 via {ROUTER} dev e1 pref high
-6 route append fd09::/80 via {SECOND_ROUTER} dev e1
-6 route append fd09::/80 dev e0
-6 nexthop add id 7 via {ROUTER} dev e0
-6 nexthop add id 8 via {ROUTER} dev e1
nexthop add id 9 group 7/8
-6 route add fd08::1 nhid 7
-6 route add fd0a::/80 nhid 9
-6 route append fd0b::/80 via {ROUTER} dev e0
-6 route append fd0b::/80 via {SECOND_ROUTER} dev e0 pref high
-6 route append fd0b::/80 nhid 8"""


@pytest.mark.parametrize("network", ["fd09::", "fd0a::", "fd0b::"])
def test_an_answer_that_names_another_route_hides_no_misrouted_address(network: str) -> None:
    """Each address of a network with a next hop through another device is misrouted, whichever
    next hop its flow takes and whichever route the kernel looked up before.
    """
    with WiredNode.made() as node:
        node.add_links("e0", "e1")
        node.hold("e0", "fd00:1::1/64")
        for command in COMMANDS.splitlines():
            node.ip(command)
        backend = kernel_of(node)
        for host in range(1, ADDRESSES + 1):
            cidrs = ["fd08::1/128", f"{network}{host:x}/128"]
            assert not prove_egress(backend, cidrs, expected_devs=["e0"]).ok, cidrs
