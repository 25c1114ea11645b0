"""The effects of own routes that other programs notice, which docs/limits.md lists; the rest notice
nothing.

The oracle is a second namespace, in which the same program does the same, and hostrouting nothing.
It shares no code with what it judges: `ip` changes the routes and shows them.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.kernel import batch, do, kernel_host
from support.needs import needs
from support.patience import at_once

from hostrouting import Configure, HostRoutingConfig, Reset
from hostrouting.testing import KernelNode
from phases import execute

pytestmark = needs("kernel")

_NODE: Final = (
    "link add eth0 up type ifb",
    "link add eth1 up type ifb",
    "address add 10.1.0.2/24 dev eth0",
    "address add 10.1.0.3/24 dev eth0",
    "address add 10.2.0.2/24 dev eth1",
    "route add default via 10.1.0.1 dev eth0 proto dhcp metric 100",
)
#: Carrier comes and goes a moment after the device itself.
_FLAGS: Final = re.compile(r" (linkdown|dead)\b")
PLACE = "172.16.8.0/22"
CONFIG = HostRoutingConfig.from_mapping(
    {
        "staticRoutes": {
            "enabled": True,
            "routes": [{"destination": PLACE, "gateway": "10.1.0.1", "dev": "eth0"}],
        },
        "gates": [],
    }
)
OWN_ROUTE = f"unicast {PLACE} via 10.1.0.1 dev eth0 proto 142 scope global"
OLDER, NEWER = (f"{PLACE} proto static via 10.1.0.{last} dev eth0" for last in (8, 9))
HIDDEN, IN_PLACE_OF_OWN = (
    f"unicast {PLACE} via 10.1.0.{last} dev eth0 proto static scope global" for last in (8, 9)
)
EXISTS = "File exists"


class Beside:
    """A node on which hostrouting works next to another program, and its shadow, on which the
    program is alone.
    """

    def __init__(self, node: KernelNode, shadow: KernelNode) -> None:
        self.node = node
        self._shadow = shadow
        self.host = kernel_host(node)

    def apply(self, config: HostRoutingConfig) -> None:
        """Apply a config."""
        # Nothing heals while it waits.
        execute(Configure(config, host=self.host), at_once())

    def reset(self) -> None:
        """Remove all of hostrouting's."""
        execute(Reset(HostRoutingConfig(), host=self.host), at_once())

    def act(self, command: str) -> tuple[str, str]:
        """Run a command of the program in both; return the refusals, or empty texts."""
        here, there = (
            batch(node.name, commands=[command])[1].get(1, "") for node in (self.node, self._shadow)
        )
        return here, there

    @property
    def routes(self) -> list[str]:
        """The routes of the node."""
        return _routes(self.node)

    @property
    def shadow(self) -> list[str]:
        """The routes that the program has alone."""
        return _routes(self._shadow)


def _routes(node: KernelNode) -> list[str]:
    """Return routes of the place as `ip -details` shows them, in the order of the kernel."""
    shown = node.ip(f"-details -oneline route show exact {PLACE}")
    return [_FLAGS.sub("", line).strip() for line in shown.splitlines()]


@pytest.fixture
def beside() -> Iterator[Beside]:
    with KernelNode.made() as node, KernelNode.made() as shadow:
        for each in node, shadow:
            do(each, commands=_NODE)
        yield Beside(node, shadow)


@pytest.fixture
def hiding(beside: Beside) -> Beside:
    """The older route of the program is hidden."""
    assert beside.act(f"route add {OLDER}") == ("", "")
    beside.apply(CONFIG)
    assert beside.routes == [OWN_ROUTE, HIDDEN]
    assert beside.shadow == [HIDDEN]
    return beside


@pytest.mark.parametrize("verb", ["replace", "change"])
def test_a_an_operation_acts_on_the_own_route(hiding: Beside, verb: str) -> None:
    """A `replace` or `change` of another program acts on the own route, and the program's older
    route stays hidden.

    A later change back to the older route is refused, and the newer one decides after the reset.
    """
    assert hiding.act(f"route {verb} {NEWER}") == ("", "")
    assert hiding.routes == [IN_PLACE_OF_OWN, HIDDEN]
    assert hiding.shadow == [IN_PLACE_OF_OWN]
    hiding.apply(CONFIG)
    assert hiding.routes == [OWN_ROUTE, IN_PLACE_OF_OWN, HIDDEN]
    assert hiding.act(f"route {verb} {OLDER}") == (EXISTS, "")
    hiding.reset()
    assert hiding.routes == [IN_PLACE_OF_OWN, HIDDEN]
    assert hiding.shadow == [HIDDEN]


def test_a_a_change_acts_on_the_own_route_alone(beside: Beside) -> None:
    """A `change` of another program without a route of its own acts on the own route, and would be
    refused without it.
    """
    beside.apply(CONFIG)
    assert beside.act(f"route change {NEWER}") == ("", "No such file or directory")
    beside.apply(CONFIG)
    assert beside.routes == [OWN_ROUTE, IN_PLACE_OF_OWN]
    assert beside.shadow == []


def test_b_an_exclusive_add_is_refused(beside: Beside) -> None:
    """An exclusive `add` of another program is refused next to the own route, so the program has no
    route after the reset.
    """
    beside.apply(CONFIG)
    assert beside.act(f"route add {OLDER}") == (EXISTS, "")
    assert beside.routes == [OWN_ROUTE]
    beside.reset()
    assert beside.routes == []
    assert beside.shadow == [HIDDEN]


@pytest.mark.parametrize("verb", ["replace", "change"])
def test_b_a_refresh_of_the_hidden_route_is_refused(hiding: Beside, verb: str) -> None:
    """A refresh of the hidden route is refused, and the hidden route decides again after the
    reset.
    """
    assert hiding.act(f"route {verb} {OLDER}") == (EXISTS, "")
    assert hiding.routes == [OWN_ROUTE, HIDDEN]
    hiding.reset()
    assert hiding.routes == hiding.shadow == [HIDDEN]


@pytest.mark.parametrize("words", ["", " dev eth0", " metric 0"])
def test_c_a_deletion_by_destination_deletes_the_own_route(hiding: Beside, words: str) -> None:
    """A deletion by destination takes the own route instead of the program's, which decides after
    the reset; the next apply restores the own route.
    """
    assert hiding.act(f"route del {PLACE}{words}") == ("", "")
    assert hiding.routes == [HIDDEN]
    assert hiding.shadow == []
    hiding.apply(CONFIG)
    assert hiding.routes == [OWN_ROUTE, HIDDEN]
    hiding.reset()
    assert hiding.routes == [HIDDEN]


def test_e_save_and_restore_reverse_a_place(hiding: Beside, tmp_path: Path) -> None:
    """A save and restore reverses the routes of a place, and the next apply puts the own route
    first again.
    """
    steps = (
        f"ip route save exact {PLACE} > $1 && ip route flush exact {PLACE} && ip route restore < $1"
    )
    hiding.node.run("bash", "-c", steps, "bash", str(tmp_path / "saved"))
    assert hiding.routes == [HIDDEN, OWN_ROUTE]
    hiding.apply(CONFIG)
    assert hiding.routes == [OWN_ROUTE, HIDDEN]
    hiding.reset()
    assert hiding.routes == [HIDDEN]
