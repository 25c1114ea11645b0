"""What the ebtables port speaks: rules of the table `nat`, as ebtables-save prints them.

A rule's words are kept as they were printed, quotes and all: only so they say the same to the tool again. To compare
what two backends, or two versions, printed, there is `EbtablesRule.normal`.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.exceptions import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = ["BACKENDS", "EbtablesReading", "EbtablesRule", "listing_to_save", "matches", "parse_save", "why_unsafe"]

#: Each has a ruleset of its own, and both are in force.
BACKENDS: Final = ("nft", "legacy")

#: Words as ebtables-restore tells them apart: at blanks and tabs, but not between double quotes.
_WORDS: Final = re.compile(r'(?:"[^"]*"|[^ \t])+')
#: Counters in all the forms that they are printed in: iptables' way before a rule, with EBTABLES_SAVE_COUNTER=yes
#: behind it, and as the legacy tool lists them. Neither begins with a repetition, which would make a search quadratic.
_COUNTERS_BEFORE: Final = re.compile(r"\[[0-9]+:[0-9]+\] ")
_COUNTERS_BEHIND: Final = re.compile(r"(?:(?<=[ \t])-c [0-9]+ [0-9]+|, pcnt = [0-9]+ -- bcnt = [0-9]+)\Z")
#: As much of a line as an error shows.
_MOST_CHARACTERS: Final = 100


class EbtablesRule(NamedTuple):
    """A rule, and where it stands.

    >>> rule = EbtablesRule.parse("-A PREROUTING -p ARP -j arpreply --arpreply-mac 2:0:0:0:0:a", backend="legacy")
    >>> rule.chain, rule.position
    ('PREROUTING', 1)
    >>> rule.normal
    (('--arpreply-mac', '02:00:00:00:00:0a'), ('--arpreply-target', 'DROP'), ('-j', 'arpreply'), ('-p', 'ARP'))
    """

    #: `nft` or `legacy`: each has a ruleset of its own, and both are in force.
    backend: str
    chain: str
    #: From 1, among the rules of its chain.
    position: int
    #: The rule's description word by word, as its backend prints it, without `-A CHAIN` and without counters.
    spec: tuple[str, ...]

    @classmethod
    def parse(cls, line: str, *, backend: str, position: int = 1) -> EbtablesRule:
        """The rule of a line that ebtables-save printed; ValueError for any other line."""
        before = _COUNTERS_BEFORE.match(line)
        bare = line[before.end() if before else 0 :].rstrip(" \t")
        behind = _COUNTERS_BEHIND.search(bare)
        words = _WORDS.findall(bare[: behind.start()] if behind else bare)
        if len(words) < 2 or words[0] != "-A":
            raise ValueError(f"{line!r} is not a rule as ebtables-save prints it: it begins with -A and the chain")
        return cls(backend, words[1], position, tuple(words[2:]))

    @property
    def line(self) -> str:
        """`-A CHAIN ...`, as it was printed."""
        return " ".join(("-A", self.chain, *self.spec))

    def __str__(self) -> str:
        return f"ebtables {self.backend} nat: {self.line}"

    @property
    def normal(self) -> tuple[tuple[str, str], ...]:
        """The sorted (option, value) pairs of the rule in one spelling, whatever backend printed it.

        `! ` before the value says that it is inverted. Hardware addresses are in lower case with leading zeros, single
        addresses without a mask, and defaults that some backends leave out are there.
        """
        pairs = [(option, _value(option, value)) for option, value in _pairs(self.spec)]
        named = dict(pairs)
        option, default = _TARGET_DEFAULTS.get(named.get("-j", ""), ("", ""))
        if option and option not in named:
            pairs.append((option, default))
        return tuple(sorted(pairs))


class EbtablesReading(NamedTuple):
    """All the rules that could be seen, and what could not."""

    rules: tuple[EbtablesRule, ...]
    #: Why a backend was not read: it is not installed, the kernel does not support it, privilege is missing.
    notes: tuple[str, ...] = ()
    #: One of them is that privilege is missing: there may be rules that root would have seen.
    denied: bool = False
    #: What each backend's ebtables-save printed, for the backup: (backend, text).
    texts: tuple[tuple[str, str], ...] = ()


def parse_save(text: str, *, backend: str) -> list[EbtablesRule]:
    r"""The rules of the table `nat` in what ebtables-save printed, chain by chain, each in its order.

    >>> parse_save("*nat\n:OUTPUT ACCEPT\n-A OUTPUT -j DROP\n", backend="nft")
    [EbtablesRule(backend='nft', chain='OUTPUT', position=1, spec=('-j', 'DROP'))]
    """
    chains: dict[str, list[EbtablesRule]] = {}
    table = ""
    # Not splitlines(): a log prefix may hold what Unicode takes for the end of a line.
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split(maxsplit=1)
        if not words or line.startswith("#") or line == "COMMIT":
            continue
        if line.startswith("*") and line[1:].strip():
            table = line[1:].strip()
        elif table not in {"", "nat"}:
            continue
        elif table and line.startswith(":") and words[0] != ":":
            chains.setdefault(words[0][1:], [])
        else:
            try:
                rule = EbtablesRule.parse(line if table else "", backend=backend)
            except ValueError as error:
                shown = line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..."
                raise BackendError(
                    f"cannot read the rules of ebtables ({backend}): line {number} of them is no line of "
                    f"ebtables-save: {shown!r}; see what the program says by itself"
                ) from error
            chain = chains.setdefault(rule.chain, [])
            chain.append(rule._replace(position=len(chain) + 1))
    return [rule for chain in chains.values() for rule in chain]


def listing_to_save(text: str) -> str:
    r"""What `ebtables -L` printed, in the form of ebtables-save.

    >>> print(listing_to_save("Bridge table: nat\n\nBridge chain: OUTPUT, entries: 1, policy: ACCEPT\n-j DROP \n"))
    *nat
    :OUTPUT ACCEPT
    -A OUTPUT -j DROP
    <BLANKLINE>
    """
    head: list[str] = []
    rules: list[str] = []
    chain = ""
    for line in text.split("\n"):
        if line.startswith("Bridge table: "):
            head.append(f"*{line.removeprefix('Bridge table: ').strip()}")
        elif found := re.fullmatch(r"Bridge chain: (\S+), entries: \d+, policy: (\S+)\s*", line):
            chain = found[1]
            head.append(f":{chain} {found[2]}")
        elif line.strip() and chain:
            rules.append(f"-A {chain} {line.rstrip()}")
    return "".join(f"{line}\n" for line in [*head, *rules])


def identity(rule: EbtablesRule) -> tuple[str, str, tuple[str, ...]]:
    """What a deletion goes by: everything but the position."""
    return rule.backend, rule.chain, rule.spec


def matches(
    present: Iterable[EbtablesRule], asked: Iterable[EbtablesRule]
) -> tuple[list[EbtablesRule], list[EbtablesRule]]:
    """Which of the rules that are `present` go when those `asked` for are deleted, in the order of their chains.

    Also those that were asked for in vain. Of identical rules the first go, as the tools have it.
    """
    wanted = Counter(map(identity, asked))
    found = []
    for rule in present:
        if wanted[identity(rule)] > 0:
            wanted[identity(rule)] -= 1
            found.append(rule)
    return found, [rule for rule in asked if wanted[identity(rule)] > 0]


def placed(present: Iterable[EbtablesRule], rules: Iterable[EbtablesRule]) -> list[tuple[EbtablesRule, int | None]]:
    """Each of the `rules` with the position at which it is to be inserted, in that order; None for the chain's end."""
    lengths = Counter((rule.backend, rule.chain) for rule in present)
    steps: list[tuple[EbtablesRule, int | None]] = []
    for rule in sorted(rules, key=lambda rule: (BACKENDS.index(rule.backend), rule.chain, rule.position)):
        key = (rule.backend, rule.chain)
        steps.append((rule, rule.position if 1 <= rule.position <= lengths[key] else None))
        lengths[key] += 1
    return steps


def why_unsafe(rule: EbtablesRule) -> str | None:
    """Why the rule's words cannot be handed to the tool so that it reads what was printed; None if they can.

    The tools print a log prefix as it is, so that one with a quote or a backslash in it reads as something else.

    >>> print(why_unsafe(EbtablesRule.parse('-A OUTPUT --log-prefix "a b" -j DROP', backend="nft")))
    None
    >>> why_unsafe(EbtablesRule.parse('-A OUTPUT --log-prefix "a"b" -j DROP', backend="nft"))
    'the word "a"b" has a quote or backslash that the tool would not read as it printed it'
    """
    for word in (rule.chain, *rule.spec):
        inner = _inside(word)
        if not word or not word.isprintable() or "\ufffd" in word:
            return f"the word {word!r} has characters that cannot be printed"
        if '"' in inner or ("\\" in inner and inner != word):
            return f"the word {word} has a quote or backslash that the tool would not read as it printed it"
    return None


def arguments(rule: EbtablesRule) -> list[str]:
    """The words of a rule as a program takes them: without the quotes that keep them together in a file."""
    return [_inside(word) for word in rule.spec]


def titles(rules: Sequence[EbtablesRule]) -> str:
    """The first rule, and how many there are besides."""
    more = f" (and {len(rules) - 1} more)" if len(rules) > 1 else ""
    return f"{rules[0].line} ({rules[0].backend}){more}"


def _inside(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word.startswith('"') and word.endswith('"') else word


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options with their values; `!` stands before the value, or, in newer versions, before the option."""
    option, values = "", list[str]()
    inverted = False
    for word, after in pairwise([*words, ""]):
        if word == "!" and _is_option(after):
            yield from [(option, " ".join(values))] if option else []
            option, values, inverted = "", [], True
        elif _is_option(word):
            yield from [(option, " ".join(values))] if option else []
            option, values, inverted = word, ["!"] if inverted else [], False
        else:
            values.append(word)
    yield from [(option, " ".join(values))] if option else []


def _is_option(word: str) -> bool:
    return re.match(r"-[A-Za-z]$|--[a-z]", word) is not None


def _value(option: str, value: str) -> str:
    inverted = "! " if value.startswith("! ") else ""
    return inverted + _SPELLINGS.get(option, str)(value.removeprefix("! "))


def _mac(value: str) -> str:
    """`02:00:00:00:00:01`, with `/mask` unless that is full; a name (`Unicast`, `BGA`) in lower case."""
    mac, _, mask = (
        ":".join(group.zfill(2) for group in part.split(":")) if ":" in part else part
        for part in value.lower().partition("/")
    )
    return f"{mac}/{mask}" if mask not in ("", "ff:ff:ff:ff:ff:ff") else mac


def _address(value: str) -> str:
    """A single address without its mask, IPv6 compressed, masks as lengths; what is no such thing stays."""
    import ipaddress  # most runs never see a rule

    text, _, mask = value.partition("/")
    try:
        address = ipaddress.ip_address(text)
        length = _length(mask, address.max_prefixlen)
        return str(address) if length == address.max_prefixlen else str(ipaddress.ip_network((address, length), False))
    except ValueError:
        return value


def _length(mask: str, most: int) -> int:
    """The length of a mask; ValueError if it has holes (ebtables takes such, ipaddress would take some as inverse)."""
    import ipaddress

    if not mask or mask.isdecimal():
        return int(mask or most)
    bits = f"{int(ipaddress.ip_address(mask)):0{most}b}"
    if "01" in bits:
        raise ValueError(f"{mask} has holes")
    return bits.count("1")


def _protocol(value: str) -> str:
    try:
        value = f"0x{int(value, 16):04x}" if value.lower().startswith("0x") else value
    except ValueError:
        return value
    return _PROTOCOLS.get(value.lower(), value)


_PROTOCOLS: Final = {
    "0x0800": "IPv4",
    "ipv4": "IPv4",
    "0x0806": "ARP",
    "arp": "ARP",
    "0x86dd": "IPv6",
    "ipv6": "IPv6",
}
#: Some versions leave the default of a target out, some print it.
_TARGET_DEFAULTS: Final = {
    "arpreply": ("--arpreply-target", "DROP"),
    "dnat": ("--dnat-target", "ACCEPT"),
    "snat": ("--snat-target", "ACCEPT"),
    "redirect": ("--redirect-target", "ACCEPT"),
    "mark": ("--mark-target", "ACCEPT"),
}
_SPELLINGS: Final[Mapping[str, Callable[[str], str]]] = {
    "-p": _protocol,
    **dict.fromkeys(
        ("-s", "-d", "--to-src", "--to-dst", "--arpreply-mac", "--arp-mac-src", "--arp-mac-dst"),
        _mac,
    ),
    **dict.fromkeys(
        ("--ip-src", "--ip-dst", "--ip6-src", "--ip6-dst", "--arp-ip-src", "--arp-ip-dst"),
        _address,
    ),
}
