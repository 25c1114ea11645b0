"""A lookup is about root's packets, whichever user calls it."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.kernel import needs_kernel, uplink

from hostrouting.testing import KernelNode
from hostrouting.testing.contracts.routes import arrange

pytestmark = needs_kernel

CIDRS = ["10.96.0.0/16", "10.97.0.0/16"]
#: Import everything before the user changes, since other users may not be able to read a checkout.
PROGRAM = """
import json, os, sys
from pyroute2 import IPRoute
import hostrouting.route_overlap.suggest
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.pyroute import Pyroute2Backend
from hostrouting.route_overlap.check import prove_egress
destinations, sources = [0x0A600001, 0x0A610001], [0x0AE00004, None]
with IPRoute() as ipr:
    backends = NetlinkBackend(), Pyroute2Backend(ipr)
    prove_egress(backends[1], sys.argv[2:])
    user = int(sys.argv[1])
    os.setresuid(user, user, user)
    print(json.dumps([
        [
            prove_egress(backend, sys.argv[2:]).to_mapping(),
            [str(answer) for answer in backend.lookup(destinations, sources=sources)],
            [str(answer) for answer in backend.lookup(destinations, resolve=True)],
        ]
        for backend in backends
    ]))
"""


@pytest.fixture(params=["root", "nobody"])
def node(request: pytest.FixtureRequest) -> Iterator[KernelNode]:
    """A node whose rules lead one user's packets into the fabric."""
    with KernelNode.made() as node:
        uplink(node, ib0="172.16.1.4/16")
        arrange(node, "10.96.0.0/16 dev ib0 table 101")
        user = 0 if request.param == "root" else 65534
        node.ip(f"rule add uidrange {user}-{user} lookup 101 priority 50")
        yield node


def answers(node: KernelNode, user: int) -> Any:
    return json.loads(node.run(sys.executable, "-I", "-c", PROGRAM, str(user), *CIDRS))


def test_root_and_another_user_get_the_same_proof(node: KernelNode) -> None:
    """A check by root and one by another user have the same findings, although a rule selects
    packets by user.
    """
    of_root = answers(node, 0)
    assert answers(node, 65534) == of_root
    assert of_root[0] == of_root[1]
