"""What other programs notice of own routes, each by its letter in docs/limits.md; the rest notice
nothing.

The oracle is a second namespace, in which the same program does the same, and hostrouting nothing.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.needs import needs
from support.shadow_worlds import Beside

from hostrouting import HostRoutingConfig

pytestmark = needs("kernel")

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
EXISTS = "RTNETLINK answers: File exists"


@pytest.fixture
def beside() -> Iterator[Beside]:
    with Beside.made(f"exact {PLACE}") as made:
        yield made


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
    """The older route stays. If its owner returns to it that is refused, and the newer one decides
    after the reset.
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
    """Without the own route the program would have nothing to change."""
    beside.apply(CONFIG)
    assert beside.act(f"route change {NEWER}") == (
        "",
        "RTNETLINK answers: No such file or directory",
    )
    beside.apply(CONFIG)
    assert beside.routes == [OWN_ROUTE, IN_PLACE_OF_OWN]
    assert beside.shadow == []


def test_b_an_exclusive_add_is_refused(beside: Beside) -> None:
    """The program has no route after the reset either."""
    beside.apply(CONFIG)
    assert beside.act(f"route add {OLDER}") == (EXISTS, "")
    assert beside.routes == [OWN_ROUTE]
    beside.reset()
    assert beside.routes == []
    assert beside.shadow == [HIDDEN]


@pytest.mark.parametrize("verb", ["replace", "change"])
def test_b_a_refresh_of_the_hidden_route_is_refused(hiding: Beside, verb: str) -> None:
    """The own route stays in force, and the hidden route decides again after the reset."""
    assert hiding.act(f"route {verb} {OLDER}") == (EXISTS, "")
    assert hiding.routes == [OWN_ROUTE, HIDDEN]
    hiding.reset()
    assert hiding.routes == hiding.shadow == [HIDDEN]


@pytest.mark.parametrize("words", ["", " dev eth0", " metric 0"])
def test_c_a_deletion_by_destination_deletes_the_own_route(hiding: Beside, words: str) -> None:
    """Its own stays, and decides after the reset; the own route returns with the next apply."""
    assert hiding.act(f"route del {PLACE}{words}") == ("", "")
    assert hiding.routes == [HIDDEN]
    assert hiding.shadow == []
    hiding.apply(CONFIG)
    assert hiding.routes == [OWN_ROUTE, HIDDEN]
    hiding.reset()
    assert hiding.routes == [HIDDEN]


def test_e_save_and_restore_reverse_a_place(hiding: Beside, tmp_path: Path) -> None:
    """The next apply puts the own route first again."""
    steps = (
        f"ip route save exact {PLACE} > $1 && ip route flush exact {PLACE} && ip route restore < $1"
    )
    hiding.node.run("bash", "-c", steps, "bash", str(tmp_path / "saved"))
    assert hiding.routes == [HIDDEN, OWN_ROUTE]
    hiding.apply(CONFIG)
    assert hiding.routes == [OWN_ROUTE, HIDDEN]
    hiding.reset()
    assert hiding.routes == [HIDDEN]


#: As each program changes a route of its own, and deletes it, at its default metric.
PROGRAMS = {
    "bird": ("replace", "replace", "proto bird metric 32", "del {place} proto bird"),
    "zebra": ("replace", "replace", "proto static metric 20", "del {place} proto static metric 20"),
    "NetworkManager": (
        "append",
        "append",
        "proto static metric 100",
        "del {place} via {hop} proto static metric 100",
    ),
    "networkd": (
        "append",
        "append",
        "proto dhcp metric 1024",
        "del {place} via {hop} proto dhcp metric 1024",
    ),
    "dhcpcd": ("add", "replace", "proto dhcp metric 1002", "del {place} dev eth0 metric 1002"),
    "dhclient": ("add", "replace", "metric 100", "del {place} via {hop} metric 100"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_default_metrics_notice_nothing(beside: Beside, program: str) -> None:
    """Beside our metric 0 each has the routes that it would have without us."""
    adds, changes, words, deletes = PROGRAMS[program]
    first = "10.1.0.8 dev eth0"
    second = "10.1.0.9 dev eth0"
    beside.apply(CONFIG)
    for command in (
        f"{adds} {PLACE} {words} via {first}",
        f"{changes} {PLACE} {words} via {second}",
        deletes.format(place=PLACE, hop=second),
        f"{adds} {PLACE} {words} via {first}",
    ):
        refused, refused_in_shadow = beside.act(f"route {command}")
        assert refused == refused_in_shadow
        assert beside.routes == [OWN_ROUTE, *beside.shadow]
    assert beside.shadow
    beside.reset()
    assert beside.routes == beside.shadow
