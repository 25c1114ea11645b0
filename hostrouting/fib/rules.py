"""Packets, and the policy rules that select them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.net.rules import Range, Rule

__all__ = ["TOS_BITS", "Packet", "selected"]

#: The input device of the packets that the node itself sends.
_LOOPBACK: Final = "lo"
#: The bits of a packet's tos that the kernel compares with a route's or a rule's.
TOS_BITS: Final = 0x1C
#: Masks of ports that mask nothing: newer kernels show them with a single port.
_HARMLESS: Final = frozenset({(28, b"\xff\xff"), (29, b"\xff\xff")})


class Packet(NamedTuple):
    """The fields of a packet by which the kernel routes it. By default it is one that root sends on this node."""

    destination: int
    #: 0 until the kernel or the program chooses one.
    source: int = 0
    tos: int = 0
    mark: int = 0
    #: The device by which it comes in.
    iif: str = _LOOPBACK
    #: The device to which its socket is bound; empty if it is not.
    oif: str = ""
    ip_protocol: int = 0
    source_port: int = 0
    destination_port: int = 0
    uid: int = 0


def selected(policy: Sequence[Rule], packet: Packet, bits: int) -> Iterator[tuple[Rule, bool]]:
    """Yield the rules that act on a packet, in their order, each with True if the model knows that it does.

    A `goto` is followed here. Its target is the first rule of that priority; without one it is skipped, as the kernel
    skips it. A `goto` that the model cannot decide is yielded.
    """
    target = None
    for rule in policy:
        if target is not None and rule.priority != target:
            continue
        target = None
        selects = _selects(rule, packet, bits)
        if selects is False or rule.action == "nop":
            continue
        if rule.action != "goto":
            yield rule, bool(selects)
        elif any(other.priority == rule.goto for other in policy):
            if selects is None:
                yield rule, False
            target = rule.goto


def _selects(rule: Rule, packet: Packet, bits: int) -> bool | None:
    """Return True if a rule applies to a packet; None if that depends on a selector that the model does not know."""
    fits = (
        not (rule.destination[0] ^ packet.destination) >> (bits - rule.destination[1])
        and not (rule.source[0] ^ packet.source) >> (bits - rule.source[1])
        and not (rule.mark ^ packet.mark) & rule.mark_mask
        and rule.tos in {0, packet.tos & TOS_BITS}
        and rule.iif in {"", packet.iif}
        and rule.oif in {"", packet.oif}
        and rule.ip_protocol in {0, packet.ip_protocol}
        and _holds(rule.source_ports, packet.source_port)
        and _holds(rule.destination_ports, packet.destination_port)
        and _holds(rule.uids, packet.uid)
        # A packet that no VRF has seen has no VRF's table.
        and not rule.l3mdev
    )
    if fits and (rule.tun_id or not _HARMLESS.issuperset(rule.unknown)):
        return None
    return fits != rule.inverted


def _holds(some: Range | None, number: int) -> bool:
    return some is None or some.first <= number <= some.last
