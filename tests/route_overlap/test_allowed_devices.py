"""The devices that may carry expected traffic: a value, whatever was called on it before."""

import pytest

from hostrouting.net.routes import Lookup, NextHop, ObservedRoute
from hostrouting.route_overlap.snapshot import AllowedDevices

ALLOWED = AllowedDevices(
    expected=("eth1", "eth0"), patterns=("cali*", "??"), dead_ends=frozenset({"eth1"})
)


@pytest.mark.parametrize(
    ("dev", "allows", "may_carry"),
    [
        ("eth0", True, True),
        ("eth1", False, True),
        ("cali1", True, True),
        ("ib0", False, False),
        # Byte for byte, as bash matches.
        ("é", True, True),
        ("éa", False, False),
        ("cali/announced", False, False),
    ],
)
def test_a_device_is_expected_or_matches_a_pattern(dev: str, allows: bool, may_carry: bool) -> None:
    """A device is allowed if it is expected or matches a pattern, byte for byte; an expected one
    without carrier may carry traffic, but not now.
    """
    assert ALLOWED.allows(dev) == allows
    assert ALLOWED.may_carry(dev) == may_carry


def test_a_route_by_several_next_hops_is_not_allowed_by_itself() -> None:
    """A route without a device of its own, as by several next hops, is not allowed by itself."""
    assert not ALLOWED.allows(None)


def test_no_question_changes_the_answer_to_another_one() -> None:
    """The carriers among given devices are returned in the order of the config, then by name, and
    the value cannot be changed.
    """
    assert ALLOWED.among(["cali2", "eth0", "ib0", "cali1", "eth1"]) == ("eth0", "cali1", "cali2")
    assert ALLOWED.among(["cali1"]) == ("cali1",)
    with pytest.raises(AttributeError):
        ALLOWED.expected = ()  # type: ignore[misc]


def test_each_next_hop_must_be_allowed() -> None:
    """A route with a next hop that is refused is wrong, and the next hop is named; a dead next hop
    does not matter.
    """
    hops = (NextHop(None, "eth0"), NextHop(None, "ib0"), NextHop(None, "eth1", dead=True))
    route = ObservedRoute.parse("10.0.0.0/8")._replace(nexthops=hops)
    assert ALLOWED.refused(route) == ("ib0",)
    assert not ALLOWED.answer_is_fine(Lookup(1, route))
    assert ALLOWED.answer_is_fine(Lookup(1, route._replace(nexthops=hops[::2])))
