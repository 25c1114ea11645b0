"""`explain` names the route or rule that decides each part."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernel import connect

from hostrouting.host import IPV4, IPV6, Address, Rule
from hostrouting.net.addresses import parse_cidr
from hostrouting.route_overlap.explain import ExplainedPart, Explanation, explain_routing
from hostrouting.testing import MemoryBackend
from hostrouting.testing.contracts.routes import arrange


@pytest.fixture
def node() -> MemoryBackend:
    """A node with a default route."""
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16")
    arrange(node, "default via 10.224.0.1 dev eth0")
    return node


def test_a_refusing_route_is_named(node: MemoryBackend) -> None:
    """A route that refuses packets is named, although the kernel answers with an errno alone."""
    arrange(node, "blackhole 172.16.8.0/24")
    [explanation] = explain_routing(node, ["172.16.8.0/23"])
    heading, refused, fine = explanation.lines()
    assert heading == "172.16.8.0/23"
    assert refused.split() == [
        "nowhere",
        "172.16.8.0",
        "-",
        "172.16.8.255",
        "blackhole",
        "172.16.8.0/24",
    ]
    way = "eth0 172.16.9.0 - 172.16.9.255 default via 10.224.0.1 dev eth0"
    assert fine.split() == way.split()
    [part, _] = explanation.to_mapping()["parts"]
    assert str(part["reason"]).startswith("a route or rule refuses it (")


def test_a_refusing_rule_is_named_once(node: MemoryBackend) -> None:
    """A rule that refuses packets is named as what decides, without a route."""
    node.add_rule(Rule(50, action="blackhole", destination=parse_cidr("172.16.8.0/24")))
    [explanation] = explain_routing(node, ["172.16.8.0/24"])
    _, line = explanation.lines()
    refused = "nowhere 172.16.8.0 - 172.16.8.255 50: from all to 172.16.8.0/24 blackhole"
    assert line.split() == refused.split()


@pytest.mark.parametrize(("expected", "mark"), [(True, "  "), (False, "! "), (None, "  ")])
def test_a_device_that_is_not_expected_has_a_mark(expected: bool | None, mark: str) -> None:
    """A device that is not expected is marked with `!`, as a pipe has no colour; without a config
    nothing is marked.
    """
    first = Address.parse("172.16.8.0")
    last = Address.parse("172.16.8.255")
    route = "172.16.8.0/24 dev ib0"
    part = ExplainedPart(first, last, ("ib0",), route, None, None, is_expected=expected)
    _, line = Explanation("172.16.8.0/24", (part,)).lines()
    assert line.split("ib0")[0] == mark
    [mapped] = Explanation("172.16.8.0/24", (part,)).to_mapping()["parts"]
    assert mapped["is_expected"] is expected


def test_host_bits_are_named(node: MemoryBackend) -> None:
    """The heading of a network with host bits has the network that was looked up; an address has
    none.
    """
    headings = [
        next(explanation.lines())
        for explanation in explain_routing(node, ["172.16.8.1/23", "172.16.8.1"])
    ]
    assert headings == ["172.16.8.1/23 has host bits; this is 172.16.8.0/23", "172.16.8.1"]


@st.composite
def explanations(draw: st.DrawFn) -> Explanation:
    """Up to 80 parts, by up to 9 devices each, of either family."""
    family, width = draw(st.sampled_from([(IPV4, 32), (IPV6, 128)]))
    ends = sorted(draw(st.sets(st.integers(0, 2**width - 1), min_size=2, max_size=81)))
    names = st.text("abeio0123-.", min_size=1, max_size=15)
    parts = []
    for first, following in pairwise(ends):
        devs = tuple(draw(st.lists(names, max_size=9, unique=True)))
        low = Address(family, first)
        high = Address(family, following - 1)
        hops = " ".join(f"nexthop via {low} dev {dev} weight 1" for dev in devs)
        rule = draw(st.sampled_from([None, "5270: from all lookup 52"])) if devs else None
        route, reason = (f"{low}/{width} {hops}", None) if devs else (None, "no route at all")
        parts.append(ExplainedPart(low, high, devs, route, rule, reason))
    return Explanation(f"{parts[0].first}/{width}", tuple(parts))


@given(explanations(), st.integers(20, 200), st.booleans())
def test_the_picture_fits_any_width(explanation: Explanation, width: int, picture: bool) -> None:
    """Each line of the picture fits the terminal, and each address, device and route is there, in
    order.
    """
    lines = [
        re.sub(r"\x1b\[[0-9;]*m", "", line)
        for line in explanation.lines(width=width, picture=picture)
    ]
    assert max(map(len, lines)) <= width
    shown = "".join("".join(lines).split())
    for part in explanation.parts:
        decider = f"{part.route or part.reason}" + f", by the rule {part.rule}" * bool(part.rule)
        whole = "".join(f"{part.by}{part.span}{decider}".split())
        assert whole in shown
        shown = shown.partition(whole)[2]
    assert shown == ""
    # Words are whole wherever they fit a line.
    for address in {
        f"{part.first}" for part in explanation.parts if len(f"{part.first}") <= width - 4
    }:
        assert any(
            re.search(rf"(?<![0-9a-f:.]){re.escape(address)}(?![0-9a-f:.])", line) for line in lines
        )


def test_the_width_of_the_bar(node: MemoryBackend) -> None:
    """Each part has a cell in the bar, which is not wider than the terminal; with too many parts
    there is no bar. Neighbours with the same answer are one part.
    """
    node.add_rule(Rule(50, table=88, source=parse_cidr("10.9.0.9/32")))
    arrange(node, "172.17.8.0/24 dev eth0 table 88")
    for number in range(8):
        arrange(node, f"blackhole 172.16.{2 * number}.7")
    [explanation] = explain_routing(node, ["172.16.0.0/12"])
    assert len(explanation.parts) == 17

    def cells(width: int) -> list[int]:
        bars = [
            line
            for line in explanation.lines(width=width, picture=True)
            if not re.sub(r"\x1b\[[0-9;]*m", "", line).strip()
        ]
        return [len(cell) for bar in bars for cell in re.findall(r"m( +)\x1b", bar)]

    assert cells(20) == []
    for width in 21, 40, 80, 200:
        assert len(cells(width)) == 17
        assert sum(cells(width)) <= min(64, width - 4)
