"""More of the small world of `hostrouting.testing.strategies`: its places, its packets, and rules by every selector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from hostrouting.fib import Packet
from hostrouting.net.addresses import parse_cidr, parse_ipv4
from hostrouting.net.rules import Range, Rule
from hostrouting.testing.strategies import ADDRESSES, DESTINATIONS, DEVICES, GATEWAYS, devices, rules

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["packets", "places", "selecting_rules"]


def places() -> list[int]:
    """Every address of the small world at which a lookup's answer can change, and its neighbours."""
    found = {parse_ipv4(text) for text in GATEWAYS}
    for text in (*DESTINATIONS, *(address for address, _ in ADDRESSES)):
        address, length = parse_cidr(text)
        first = address & 0xFFFFFFFF << 32 - length
        behind = first + (1 << 32 - length)
        found |= {address, first, first + 1, behind - 1, behind}
    # 0/8, 127/8 and multicast have lookup rules that only they have.
    return sorted(a for a in found if 1 << 24 <= a < 127 << 24 or 128 << 24 <= a < 224 << 24)


def _ranges(*pairs: tuple[int, int]) -> st.SearchStrategy[Range | None]:
    return st.none() | st.sampled_from(pairs).map(lambda pair: Range(*pair))


@st.composite
def selecting_rules(draw: st.DrawFn) -> Rule:
    """A policy rule with up to two selectors that the model knows beside the addresses, or with another action."""
    rule = draw(rules())
    choices: dict[str, st.SearchStrategy[Any]] = {
        "tos": st.sampled_from([8, 16]),
        "mark": st.sampled_from([0, 1, 2]),
        "iif": st.sampled_from(["lo", *DEVICES, "absent0"]),
        "oif": st.sampled_from(DEVICES),
        "ip_protocol": st.sampled_from([1, 6, 17]),
        "source_ports": _ranges((1000, 1000), (1000, 2000)),
        "destination_ports": _ranges((53, 53), (1, 442)),
        "uids": _ranges((0, 0), (1, 65533), (65534, 65534)),
        "l3mdev": st.just(value=True),
        "suppress_prefix_length": st.sampled_from([0, 8, 15, 16, 24]),
        "suppress_group": st.sampled_from([0, 5]),
        "goto": st.sampled_from([50, 100, 200, 32766, 40000]),
        "nop": st.just(value=True),
    }
    chosen = {
        name: draw(choices[name]) for name in draw(st.lists(st.sampled_from(sorted(choices)), max_size=2, unique=True))
    }
    if "mark" in chosen:
        chosen["mark_mask"] = draw(st.sampled_from([1, 3, 0xFFFFFFFF]))
    is_nop = chosen.pop("nop", False)
    action = "goto" if "goto" in chosen else "nop" if is_nop else rule.action
    if action != "lookup":
        for name in "suppress_prefix_length", "suppress_group", "l3mdev":
            chosen.pop(name, None)
    table = 0 if action != "lookup" or "l3mdev" in chosen else rule.table
    return rule._replace(**chosen, action=action, table=table)


@st.composite
def packets(draw: st.DrawFn, sources: Sequence[int]) -> Packet:
    """A packet of the small world: one that the node sends from one of `sources`, or one that comes in by a device."""
    fields: dict[str, Any] = {
        "tos": draw(st.sampled_from([0, 0, 8, 16])),
        "mark": draw(st.sampled_from([0, 1, 2, 3])),
        "ip_protocol": draw(st.sampled_from([6, 17])),
        "source_port": draw(st.sampled_from([1000, 1500, 3000])),
        "destination_port": draw(st.sampled_from([53, 443])),
    }
    if draw(st.booleans()):
        fields["source"] = draw(st.sampled_from([0, *sources]))
        fields["oif"] = draw(st.sampled_from(["", "", *DEVICES]))
        fields["uid"] = draw(st.sampled_from([0, 1000, 65534]))
    else:
        fields["source"] = parse_ipv4("198.51.100.9")
        fields["iif"] = draw(devices())
    return Packet(draw(st.sampled_from(places())), **fields)
