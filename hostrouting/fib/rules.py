"""Packets, and the policy rules that select them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.net.routes import Rule

__all__ = ["LOOPBACK", "Packet", "covers", "selected"]

#: The input device of the packets that the node itself sends.
LOOPBACK = "lo"


class Packet(NamedTuple):
    """The fields of a packet by which the kernel routes it. By default it is one that root sends on this node."""

    destination: int
    #: 0 until the kernel or the program chooses one.
    source: int = 0
    tos: int = 0
    mark: int = 0
    #: The device by which it comes in.
    iif: str = LOOPBACK
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
    fits = covers(rule.destination, packet.destination, bits) and covers(rule.source, packet.source, bits)
    if fits and rule.other_selectors:
        return None
    return fits != rule.inverted


def covers(selector: tuple[int, int], address: int, bits: int) -> bool:
    """Return True if an address lies in (network, prefix length)."""
    network, length = selector
    return not (network ^ address) >> (bits - length)
