"""Policy rules of both address families, with every selector of the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix, address_bits
from hostrouting.net.routes import LOCAL_TABLE, MAIN_TABLE, TABLE_NAMES, Extra

#: The names of uninterpreted selectors by the number of their attribute.
_UNKNOWN_NAMES = {
    26: "flowlabel",
    27: "flowlabel",
    28: "sport",
    29: "dport",
    30: "dscp",
}
#: How these selectors are described; the others as `with NAME VALUE`.
_WORDS = {
    "fwmark": "with mark",
    "iif": "that arrive through",
    "uidrange": "of uid",
    "ipproto": "of protocol",
    "sport": "from port",
    "dport": "to port",
    "l3mdev": "of a",
}
#: Full masks, which newer kernels show for a single port and for a DSCP.
_HARMLESS: Final = frozenset({(28, b"\xff\xff"), (29, b"\xff\xff"), (30, b"\x3f")})
#: The programs whose rules look up these tables.
_PROGRAMS = {52: "Tailscale", 51820: "wg-quick"}
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp"}
UDP: Final = 17
#: Stands for every protocol that no rule names.
OTHER_PROTOCOL: Final = 255


class Range(NamedTuple):
    """A range of ports or users, from `first` to `last`."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.first < self.last else str(self.first)


class Rule(NamedTuple):
    """A policy rule; `source` and `destination` are (network, prefix length), (0, 0) for any.

    >>> Rule(70, table=88, mark=1, mark_mask=0xFF, oif="eth0").selectors
    {'fwmark': '0x1/0xff', 'oif': 'eth0'}
    >>> str(Rule(70, table=88, source=(0x0AE00004, 32), mark=0x200, mark_mask=0xF00))
    '70: from 10.224.0.4 fwmark 0x200/0xf00 lookup 88'
    """

    priority: int
    #: `lookup`, `goto`, `nop`, `blackhole`, `unreachable`, `prohibit`; or `action` and its number.
    action: str = "lookup"
    table: int = 0
    #: Routes with a prefix of at most this length are ignored.
    suppress_prefix_length: int | None = None
    #: Routes through devices of this group are ignored.
    suppress_group: int | None = None
    source: tuple[int, int] = (0, 0)
    destination: tuple[int, int] = (0, 0)
    #: The rule applies to the packets that its selectors do not match.
    inverted: bool = False
    #: The priority of the next rule.
    goto: int | None = None
    tos: int = 0
    #: A packet matches if its masked mark is this; without a mask, any packet matches.
    mark: int = 0
    mark_mask: int = 0
    iif: str = ""
    oif: str = ""
    ip_protocol: int = 0
    source_ports: Range | None = None
    destination_ports: Range | None = None
    uids: Range | None = None
    tun_id: int = 0
    l3mdev: bool = False
    #: RTPROT_* of the program that added it: 2 for the kernel, 3 for `ip rule add`.
    protocol: int = 3
    family: int = IPV4
    #: All six bits of the DSCP, which newer kernels compare instead of `tos`.
    dscp: int | None = None
    #: Uninterpreted attributes; some may be selectors.
    unknown: Extra = ()

    @property
    def selectors(self) -> dict[str, str]:
        """The selectors except `from` and `to`, as in `ip rule`; unknown ones as hexadecimal bytes.

        A lookup by addresses alone does not cover them.
        """
        unknown = {
            _UNKNOWN_NAMES.get(number, f"attribute {number}"): f"0x{value.hex()}"
            for number, value in self.unknown
        }
        words = {
            "tos": self.tos and f"{self.tos:#04x}",
            "dscp": "" if self.dscp is None else f"{self.dscp:#04x}",
            "fwmark": self.mark_mask
            and f"{self.mark:#x}/{self.mark_mask:#x}".removesuffix("/0xffffffff"),
            "iif": self.iif,
            "oif": self.oif,
            "uidrange": self.uids and f"{self.uids.first}-{self.uids.last}",
            "ipproto": self.ip_protocol and _PROTOCOLS.get(self.ip_protocol, self.ip_protocol),
            "sport": self.source_ports,
            "dport": self.destination_ports,
            "tun_id": self.tun_id,
            "l3mdev": self.l3mdev and "VRF",
        }
        known = {name: str(value) for name, value in words.items() if value}
        # Newer kernels also show the mask of a single port and of a DSCP.
        return known | unknown | known

    @property
    def is_by_protocol(self) -> bool:
        """True if it selects packets by protocol, and by nothing else except addresses."""
        return bool(self.ip_protocol) and self.selectors.keys() == {"ipproto"}

    @property
    def is_unclear(self) -> bool:
        """True if it may have selectors that hostrouting does not understand."""
        return not _HARMLESS.issuperset(self.unknown)

    @property
    def packets(self) -> str:
        """The selected packets in words, without their destination; empty if only addresses select.

        >>> Rule(70, table=88, iif="eth1", ip_protocol=6, destination_ports=Range(443, 443)).packets
        'packets that arrive through eth1, of protocol tcp, to port 443'
        """
        words = [
            f"{_WORDS.get(name, f'with {name}')} {value}" for name, value in self.selectors.items()
        ]
        if not words:
            return ""
        if self.source[1]:
            words.append(f"from {self._selector(self.source)}")
        if self.inverted and self.destination[1]:
            words.append(f"to {self._selector(self.destination)}")
        return "packets " + "other than those " * self.inverted + ", ".join(words)

    def may_select(self, sources: Iterable[Address]) -> bool:
        """Return True if it may select a packet that the node itself sends from these sources.

        Such a packet did not arrive through a device, is not bound to one, and has no mark.

        >>> pod = Rule(100, table=2, source=(0x0AE00009, 32))
        >>> own = Address.parse("10.224.0.4")
        >>> pod.may_select([own]), pod._replace(inverted=True).may_select([own])
        (False, True)
        """
        if self.inverted:
            return True
        if self.iif not in {"", "lo"} or self.oif or (self.mark and self.mark_mask):
            return False
        network = Prefix(self.family, *self.source)
        return not network.length or any(map(network.covers, sources))

    @property
    def program(self) -> str | None:
        """The program that probably added the rule, judging by its table.

        >>> Rule(5270, table=52).program
        'Tailscale'
        """
        return _PROGRAMS.get(self.table) if self.action == "lookup" else None

    def deletion(self, rules: Iterable[Rule]) -> list[str]:
        """Return the command that deletes this rule; `rules` are all rules of the node.

        The kernel deletes the first match, so the priority is enough only if it is unique.

        >>> unreachable = Rule(100, "unreachable", destination=(0x0AE00004, 32))
        >>> " ".join(unreachable.deletion([unreachable]))
        'ip rule del pref 100'
        >>> " ".join(unreachable.deletion([unreachable, Rule(100, table=88)]))
        'ip rule del pref 100 from all to 10.224.0.4 unreachable'
        """
        of_family = [rule for rule in rules if rule.family == self.family]
        ip = ["ip"] if self.family == IPV4 else ["ip", "-6"]
        command = [*ip, "rule", "del", "pref", str(self.priority)]
        if [rule.priority for rule in of_family].count(self.priority) > 1:
            command += str(self).split()[1:]
        return command

    def __str__(self) -> str:
        """Return the rule as `ip rule show` prints it."""
        inverted = ["not"] if self.inverted else []
        words = [f"{self.priority}:", *inverted, "from", self._selector(self.source)]
        if self.destination[1]:
            words += ["to", self._selector(self.destination)]
        for name, value in self.selectors.items():
            words += [name, value] if name != "l3mdev" else []
        words.append(self.action)
        if self.action == "lookup":
            table = TABLE_NAMES.get(self.table, str(self.table))
            words.append("[l3mdev-table]" if self.l3mdev else table)
        if self.goto is not None:
            words.append(str(self.goto))
        return " ".join(words)

    def _selector(self, selector: tuple[int, int]) -> str:
        text = str(Prefix(self.family, *selector))
        return text.removesuffix(f"/{address_bits(self.family)}") if selector[1] else "all"


#: The rules of a new network namespace; only IPv4 has the table `default`.
FIRST_RULES: Final = tuple(
    Rule(priority, table=table, protocol=2, family=family)
    for family in (IPV4, IPV6)
    for priority, table in ((0, LOCAL_TABLE), (32766, MAIN_TABLE), (32767, 253))
    if (family, table) != (IPV6, 253)
)


def protocols_apart(rules: Iterable[Rule], *, but: int) -> list[int]:
    """Return one protocol for each class of packets that rules distinguish only by protocol.

    The class of `but` is left out. All protocols that no rule names form one class.

    >>> protocols_apart([Rule(70, table=88, ip_protocol=17)], but=17) == [OTHER_PROTOCOL]
    True
    >>> protocols_apart([Rule(70, table=88)], but=17)
    []
    """
    named = {rule.ip_protocol for rule in rules if rule.is_by_protocol}
    answered = but if but in named else OTHER_PROTOCOL
    return sorted({*named, OTHER_PROTOCOL} - {answered}) if named else []


def packets_of(protocol: int) -> str:
    """Describe the packets of a class that `protocols_apart` returned."""
    if protocol == OTHER_PROTOCOL:
        return "packets of a protocol that no rule names"
    return f"packets of protocol {_PROTOCOLS.get(protocol, protocol)}"


def as_of_protocol(rule: Rule, protocol: int) -> Rule:
    """Return the rule by addresses that a rule amounts to for packets of one protocol.

    Selectors that hostrouting does not understand are assumed not to match.

    >>> str(as_of_protocol(Rule(70, table=88, ip_protocol=17), 17))
    '70: from all lookup 88'
    >>> str(as_of_protocol(Rule(70, table=88, ip_protocol=17), 6))
    '70: from all nop'
    """
    if not (rule.is_by_protocol or rule.is_unclear):
        return rule
    if rule.ip_protocol == protocol and not rule.is_unclear:
        by_addresses = rule._replace(ip_protocol=0)
        selects = not rule.inverted or rule.source[1] or rule.destination[1]
    else:
        # None of these packets matches all of its selectors.
        selects = rule.inverted
        by_addresses = Rule(*rule[:5], goto=rule.goto, protocol=rule.protocol, family=rule.family)
    # It may be the target of a `goto`.
    never = Rule(rule.priority, "nop", protocol=rule.protocol, family=rule.family)
    return by_addresses if selects else never


def lost_rules(rules: Sequence[Rule], family: int) -> list[Rule]:
    """Return the missing built-in rules for the tables local and main.

    They are not missing if another rule looks up the table for all packets. If there is no IPv6
    rule at all, the kernel has no IPv6 or searches both tables anyway.
    """
    kept = {
        rule.table
        for rule in rules
        if rule == Rule(rule.priority, table=rule.table, protocol=rule.protocol, family=family)
    }
    return [
        rule
        for rule in FIRST_RULES
        if rule.family == family and rule.table not in {*kept, 253} and (rules or family == IPV4)
    ]


def addition(rule: Rule) -> str:
    """Return the command that adds a built-in rule."""
    ip = "ip -6" if rule.family == IPV6 else "ip"
    return f"{ip} rule add pref {rule.priority} lookup {TABLE_NAMES[rule.table]}"
