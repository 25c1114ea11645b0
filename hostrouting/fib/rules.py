"""Packets, and the policy rules that select them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.net.addresses import IPV4, IPV6, address_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hostrouting.net.rules import Range, Rule

#: The input device of the packets that the node itself sends.
LOOPBACK: Final = "lo"
#: The bits of a packet's tos that the kernel compares with a route's or a rule's; those of ECN do
#: not count, and for IPv6 all others do.
TOS_BITS: Final = 0x1C
_TOS_BITS = {IPV4: TOS_BITS, IPV6: 0xFC}
#: Masks of ports that mask nothing: newer kernels show them with a single port.
_HARMLESS = frozenset({(28, b"\xff\xff"), (29, b"\xff\xff")})


class Packet(NamedTuple):
    """The fields of a packet that decide its route; by default root sends it on this node."""

    destination: int
    #: 0 until the kernel or the program chooses one.
    source: int = 0
    tos: int = 0
    mark: int = 0
    #: The device by which it arrives.
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
        self._steps = {
            family: [
                (rule, _checks(rule), bool(rule.tun_id) or not _HARMLESS.issuperset(rule.unknown))
                for rule in self.of(family)
            ]
            for family in (IPV4, IPV6)
        }

    def of(self, family: int) -> list[Rule]:
        """Return the rules of one family."""
        return [rule for rule in self.rules if rule.family == family]

    def selected(self, packet: Packet) -> Iterator[tuple[Rule, bool]]:
        """Yield the rules that act on a packet, in their order, each with True if that is certain.

        A `goto` is followed to the first rule of that priority, and skipped without one, as in the
        kernel. A `goto` that the model cannot decide is yielded.
        """
        target = None
        steps = self._steps[packet.family]
        for rule, checks, is_beyond in steps:
            if target is not None and rule.priority != target:
                continue
            target = None
            # Tunnels and unknown attributes may select in ways that the model lacks.
            fits = all(check(packet) for check in checks) if checks else True
            is_known = not (fits and is_beyond)
            if (is_known and fits == rule.inverted) or rule.action == "nop":
                continue
            if rule.action != "goto":
                yield rule, is_known
            elif any(target_rule.priority == rule.goto for target_rule, *_ in steps):
                if not is_known:
                    yield rule, False
                target = rule.goto


def _checks(rule: Rule) -> list[Callable[[Packet], bool]]:
    """Return a predicate for each selector that the rule has; a packet must fulfil them all."""
    to_rest, from_rest = (
        address_bits(rule.family) - length for _, length in (rule.destination, rule.source)
    )
    selectors: list[tuple[object, Callable[[Packet], bool]]] = [
        (rule.destination[1], lambda packet: not (rule.destination[0] ^ packet[0]) >> to_rest),
        # No prefix selects an IPv6 packet without source, not even one that contains `::`.
        (
            rule.source[1],
            lambda packet: (
                not (rule.source[0] ^ packet[1]) >> from_rest
                and bool(packet[1] or rule.family == IPV4)
            ),
        ),
        (rule.mark_mask, lambda packet: not (rule.mark ^ packet.mark) & rule.mark_mask),
        (rule.tos, lambda packet: rule.tos == packet.tos & _TOS_BITS[packet.family]),
        (rule.iif, lambda packet: rule.iif == packet.iif),
        (rule.oif, lambda packet: rule.oif == packet.oif),
        (rule.ip_protocol, lambda packet: rule.ip_protocol == packet.ip_protocol),
        (rule.source_ports, lambda packet: _holds(rule.source_ports, packet.source_port)),
        (
            rule.destination_ports,
            lambda packet: _holds(rule.destination_ports, packet.destination_port),
        ),
        (rule.uids, lambda packet: _holds(rule.uids, packet.uid)),
        # A packet outside of a VRF is never selected.
        (rule.l3mdev, lambda _: False),
    ]
    return [check for value, check in selectors if value]


def _holds(some: Range | None, number: int) -> bool:
    return some is None or some.first <= number <= some.last
