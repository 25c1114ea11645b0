"""Packets, and the policy rules that select them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.net.addresses import IPV4, IPV6, address_bits
from hostrouting.net.rules import FIRST_RULES, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The input device of the packets that the node itself sends.
LOOPBACK: Final = "lo"
#: The bits of a packet's tos that the kernel compares with that of a route or rule; for IPv6, all
#: bits except those of ECN.
TOS_BITS: Final = 0x1C
_TOS_BITS = {IPV4: TOS_BITS, IPV6: 0xFC}

_FIRST_OF_IPV6 = {rule for rule in FIRST_RULES if rule.family == IPV6}


class Packet(NamedTuple):
    """The fields of a packet that affect routing; by default, root sends it on this node."""

    destination: int
    #: 0 until the kernel or the program has chosen one.
    source: int = 0
    tos: int = 0
    mark: int = 0
    #: The device through which it arrives.
    iif: str = LOOPBACK
    #: The device to which its socket is bound, or empty.
    oif: str = ""
    ip_protocol: int = 0
    source_port: int = 0
    destination_port: int = 0
    uid: int = 0
    family: int = IPV4


class Policy:
    """The policy rules of a node, in the kernel's order within a family. Treat it as immutable."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules: tuple[Rule, ...] = tuple(rules)
        self._by_family = {
            family: [rule for rule in self.rules if rule.family == family]
            for family in (IPV4, IPV6)
        }
        # Nearly all rules of nearly all nodes are among these.
        self._for_all = frozenset(
            rule
            for rule in self.rules
            if not (rule.source[1] or rule.destination[1] or rule.selectors)
        )
        #: True if the kernel may still search local and main although IPv6 rules are missing: it
        #: does so until a rule is added.
        self.may_be_bypassed: bool = {*self._by_family[IPV6]} < _FIRST_OF_IPV6

    def of(self, family: int) -> list[Rule]:
        """Return the rules of one family."""
        return self._by_family[family].copy()

    def selected(self, packet: Packet) -> Iterator[tuple[Rule, bool]]:
        """Yield the rules that apply to a packet, in order, each with True if that is certain.

        As in the kernel, a `goto` continues at the first rule of the target priority, and is
        skipped if there is none. A `goto` that may or may not match is yielded.
        """
        target = None
        rules = self._by_family[packet.family]
        for rule in rules:
            if target is not None and rule.priority != target:
                continue
            target = None
            fits = rule in self._for_all or _fits(rule, packet)
            # Unknown attributes may be selectors that the model does not support.
            is_known = not (fits and rule.is_unclear)
            if (is_known and fits == rule.inverted) or rule.action == "nop":
                continue
            if rule.action != "goto":
                yield rule, is_known
            elif rule.goto in [other.priority for other in rules]:
                if not is_known:
                    yield rule, False
                target = rule.goto


def _fits(rule: Rule, packet: Packet) -> bool:
    """Return True if a packet matches all selectors of a rule."""
    # `l3mdev` never selects a packet outside a VRF.
    return not rule.l3mdev and _fits_addresses(rule, packet) and _fits_rest(rule, packet)


def _fits_addresses(rule: Rule, packet: Packet) -> bool:
    bits = address_bits(rule.family)
    network, length = rule.destination
    if (network ^ packet.destination) >> bits - length:
        return False
    network, length = rule.source
    if (network ^ packet.source) >> bits - length:
        return False
    # No prefix selects an IPv6 packet without a source, not even one that contains `::`.
    return bool(packet.source or rule.family == IPV4 or not length)


def _fits_rest(rule: Rule, packet: Packet) -> bool:
    if (rule.mark ^ packet.mark) & rule.mark_mask:
        return False
    ranges = (
        (rule.source_ports, packet.source_port),
        (rule.destination_ports, packet.destination_port),
        (rule.uids, packet.uid),
    )
    return (
        rule.tos in {0, packet.tos & _TOS_BITS[packet.family]}
        and rule.dscp in {None, packet.tos >> 2}
        and rule.iif in {"", packet.iif}
        and rule.oif in {"", packet.oif}
        and rule.ip_protocol in {0, packet.ip_protocol}
        # The packet is not in a tunnel.
        and not rule.tun_id
        and all(some is None or some.first <= number <= some.last for some, number in ranges)
    )
