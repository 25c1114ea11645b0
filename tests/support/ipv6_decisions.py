"""What the kernel decides by IPv6: commands of `ip`, questions, and the answer to each.

This is the one table of these facts. The test of kernel and model runs it, and so does that of the
proof.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from support.kernel import do
from support.routers import ROUTER, WiredNode

_PLACE, _ADDRESS = "fd09::/16", "fd09::9"


class Decision(NamedTuple):
    """A node with the devices e0 and e1, and what it decides."""

    fact: str
    #: After `ip -6 route`.
    commands: Sequence[str]
    #: The device by the question, as `ip -6 route get` takes it; `local`, or empty for no route.
    answers: Mapping[str, str]
    #: The devices of all routes that are equal to the first one, if there are several.
    equal: tuple[str, ...] = ()

    @contextmanager
    def arranged(self, node: WiredNode) -> Iterator[None]:
        """Add the routes to the node of `two_links`, and delete them in the end."""
        do(node, "-6", commands=[f"route {command}" for command in self.commands])
        try:
            yield
        finally:
            routes = [command.partition(" ")[2] for command in self.commands]
            do(node, "-6", commands=[f"route delete {route}" for route in routes])


@contextmanager
def two_links() -> Iterator[WiredNode]:
    """Make a host with two links, an address on each, and a neighbour entry for their routers."""
    with WiredNode.made() as node:
        node.add_links("e0", "e1")
        node.hold("e0", "2001:db8:1::1/64")
        for address in "fd00:1::1/64", "fd00:1:2::1/64":
            node.hold("e1", address)
        for dev in "e0", "e1":
            node.ip(f"neigh add {ROUTER} dev {dev} lladdr 02:00:00:00:00:01 nud permanent")
        yield node


DECISIONS = (
    Decision(
        "the lowest metric decides, also over a connected 256",
        [
            f"add {_PLACE} dev e0",
            f"add {_PLACE} via {ROUTER} dev e1 metric 1",
            f"add 2001:db8:1::/64 via {ROUTER} dev e1 metric 1",
        ],
        {_ADDRESS: "e1", "2001:db8:1::99": "e1", "2001:db8:1::1": "local"},
    ),
    Decision(
        "a higher preference decides among equal metrics",
        [f"append {_PLACE} dev e0", f"append {_PLACE} dev e1 pref high"],
        {_ADDRESS: "e1", f"{_ADDRESS} oif e0": "e0"},
    ),
    Decision(
        "a low preference does not",
        [f"append {_PLACE} dev e0 pref low", f"append {_PLACE} dev e1"],
        {_ADDRESS: "e1", f"{_ADDRESS} oif e0": "e0"},
    ),
    Decision(
        "a lower metric decides before the preference",
        [f"append {_PLACE} dev e0 metric 1", f"append {_PLACE} dev e1 metric 2 pref high"],
        {_ADDRESS: "e0", f"{_ADDRESS} oif e1": "e1"},
    ),
    Decision(
        "of equal routes the first decides",
        [f"append {_PLACE} dev e0", f"append {_PLACE} via {ROUTER} dev e1"],
        {_ADDRESS: "e0", f"{_ADDRESS} iif e1": "e1"},
        equal=("e0", "e1"),
    ),
    Decision(
        "a question for a device passes over a blackhole",
        [f"add blackhole {_PLACE} metric 1", f"add {_PLACE} dev e1 metric 2000"],
        {f"{_ADDRESS} oif e1": "e1"},
    ),
    Decision(
        "a question with a source is bound to its device only by an address of one link",
        [
            f"add {_PLACE} dev e0",
            "add fe80::9 dev e0",
            "add ff05::9 dev e0 table local",
        ],
        {
            f"{_ADDRESS} from 2001:db8:1::1 oif e1": "e0",
            f"{_ADDRESS} iif e1": "e0",
            "fe80::9 from 2001:db8:1::1 oif e1": "e1",
            "ff05::9 from 2001:db8:1::1 oif e1": "e1",
        },
    ),
    Decision(
        "a route by source hides those of any higher metric without one",
        [
            f"add fd00::/8 via {ROUTER} dev e0",
            f"add {_PLACE} from fd00:1::/64 dev e1 metric 1",
            f"add {_PLACE} dev e1 metric 1024",
        ],
        {
            _ADDRESS: "e0",
            f"{_ADDRESS} from 2001:db8:1::1": "e0",
            f"{_ADDRESS} from fd00:1::1": "e1",
        },
    ),
    Decision(
        "a route by source hides those of any lower metric without one",
        [
            f"add fd00::/8 via {ROUTER} dev e0",
            f"add {_PLACE} dev e1 metric 1",
            f"add {_PLACE} from fd00:1::/64 dev e1 metric 1024",
        ],
        {
            _ADDRESS: "e0",
            f"{_ADDRESS} from 2001:db8:1::1": "e0",
            f"{_ADDRESS} from fd00:1::1": "e1",
        },
    ),
    Decision(
        "the longest source decides before the metric, and hides at a shorter prefix, too",
        [
            "add fd00::/8 from fd00:1::/32 dev lo",
            f"add fd00::/8 via {ROUTER} dev e0 metric 1",
            f"add {_PLACE} from fd00:1:2::/64 dev e0 metric 2000",
            f"add {_PLACE} from fd00:1::/32 dev e1 metric 1",
        ],
        {
            f"{_ADDRESS} from fd00:1:2::1": "e0",
            f"{_ADDRESS} from fd00:1::1": "e1",
            f"{_ADDRESS} from 2001:db8:1::1": "",
            _ADDRESS: "",
        },
    ),
    Decision(
        "a source that fits any hides nothing",
        [f"add {_PLACE} from ::/0 dev e0", f"append {_PLACE} dev e1 metric 2000"],
        {_ADDRESS: "e0", f"{_ADDRESS} oif e1": "e1"},
    ),
    Decision(
        "a default route is never hidden, also where a longer prefix hides",
        [
            "add default dev e0 metric 1",
            "add default from fd00:1::/64 dev e1 metric 2000",
            f"add {_PLACE} from 2001:db8:7::/64 dev lo",
            f"add {_PLACE} dev lo",
        ],
        {
            _ADDRESS: "e0",
            f"{_ADDRESS} from 2001:db8:1::1": "e0",
            f"{_ADDRESS} from fd00:1::1": "e1",
            "2001:db8:9::9": "e0",
        },
    ),
    Decision(
        "a shorter prefix in local decides over a longer one in main",
        [f"add local {_PLACE} dev lo", f"add {_ADDRESS} dev e0 table main"],
        {_ADDRESS: "local"},
    ),
)
each_decision = pytest.mark.parametrize(
    "decision", DECISIONS, ids=[decision.fact for decision in DECISIONS]
)
