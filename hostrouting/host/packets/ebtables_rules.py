"""The values of the ebtables port: rules of the table `nat`, as ebtables-save prints them.

A rule keeps its words as they were printed, with their quotes: only these mean the same to the
program again. `EbtablesRule.normal` compares rules that two backends or two versions printed.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.base.errors import BackendError
from hostrouting.net.addresses import Address, Prefix, address_bits, mask_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: Each backend has its own ruleset, and both are in force.
BACKENDS: Final = ("nft", "legacy")

#: The words that ebtables-restore reads: blanks and tabs separate them, except between double
#: quotes.
_WORDS = re.compile(r'(?:"[^"]*"|[^ \t])+')
#: Counters in every printed form: before a rule as iptables prints them, after it with
#: EBTABLES_SAVE_COUNTER=yes, and as the legacy program lists them. No alternative begins with a
#: repetition, which would make a search quadratic.
_COUNTERS_BEFORE = re.compile(r"\A\[[0-9]+:[0-9]+\] ")
_COUNTERS_BEHIND = re.compile(r"(?:(?<=[ \t])-c [0-9]+ [0-9]+|, pcnt = [0-9]+ -- bcnt = [0-9]+)\Z")
#: The most characters of a line that an error shows.
_MOST_CHARACTERS = 100


class EbtablesRule(NamedTuple):
    """A rule and its place.

    >>> line = "-A PREROUTING -p ARP -j arpreply --arpreply-mac 2:0:0:0:0:a"
    >>> rule = EbtablesRule.parse(line, backend="legacy")
    >>> rule.chain, rule.position
    ('PREROUTING', 1)
    >>> rule.normal
    (('--arpreply-mac', '02:00:00:00:00:0a'), ..., ('-j', 'arpreply'), ('-p', 'ARP'))
    """

    #: `nft` or `legacy`: each has its own ruleset, and both are in force.
    backend: str
    chain: str
    #: The number in its chain, from 1.
    position: int
    #: The description word by word, as its backend prints it, without `-A CHAIN` and without
    #: counters.
    spec: tuple[str, ...]

    @classmethod
    def parse(cls, line: str, *, backend: str, position: int = 1) -> EbtablesRule:
        """Parse a line that ebtables-save printed; raise ValueError for any other line."""
        bare = _COUNTERS_BEFORE.sub("", line).rstrip(" \t")
        words = _WORDS.findall(_COUNTERS_BEHIND.sub("", bare))
        if len(words) < 2 or words[0] != "-A":
            raise ValueError(
                f"{line!r} is not a rule as ebtables-save prints it: "
                "it begins with -A and the chain"
            )
        return cls(backend, words[1], position, tuple(words[2:]))

    @property
    def line(self) -> str:
        """`-A CHAIN ...`, as it was printed."""
        return " ".join(("-A", self.chain, *self.spec))

    def __str__(self) -> str:
        return f"ebtables {self.backend} nat: {self.line}"

    @property
    def normal(self) -> tuple[tuple[str, str], ...]:
        """The sorted (option, value) pairs of the rule in one spelling for both backends.

        `! ` before the value inverts it. Hardware addresses are in lower case with leading zeros,
        single addresses have no mask, and the defaults that some backends leave out are filled in.
        """
        pairs = [(option, _value(option, value)) for option, value in _pairs(self.spec)]
        named = dict(pairs)
        target = named.get("-j", "")
        option = f"--{target}-target"
        if target in _TARGET_DEFAULTS and option not in named:
            pairs.append((option, _TARGET_DEFAULTS[target]))
        return tuple(sorted(pairs))


class EbtablesReading(NamedTuple):
    """All the rules that could be read, and notes on the rest."""

    rules: tuple[EbtablesRule, ...]
    #: Reasons why a backend was not read: it is not installed, the kernel does not support it, or
    #: privilege is missing.
    notes: tuple[str, ...] = ()
    #: Privilege is missing, so root might see more rules.
    denied: bool = False
    #: The output of each backend's ebtables-save, for the backup: (backend, text).
    texts: tuple[tuple[str, str], ...] = ()


def parse_save(text: str, *, backend: str) -> list[EbtablesRule]:
    r"""Return the rules of the table `nat` in the output of ebtables-save, by chain, in order.

    >>> parse_save("*nat\n:OUTPUT ACCEPT\n-A OUTPUT -j DROP\n", backend="nft")
    [EbtablesRule(backend='nft', chain='OUTPUT', position=1, spec=('-j', 'DROP'))]
    """
    chains: dict[str, list[EbtablesRule]] = {}
    table = ""
    # Not splitlines(): a log prefix may contain a character that Unicode calls the end of a line.
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
                    f"cannot read the rules of ebtables ({backend}): line {number} of them is not "
                    f"a line of ebtables-save: {shown!r}; run the program by hand to see its output"
                ) from error
            chain = chains.setdefault(rule.chain, [])
            chain.append(rule._replace(position=len(chain) + 1))
    return [rule for chain in chains.values() for rule in chain]


def listing_to_save(text: str) -> str:
    r"""Turn the output of `ebtables -L` into that of ebtables-save.

    >>> listing = "Bridge table: nat\n\nBridge chain: OUTPUT, entries: 1, policy: ACCEPT\n"
    >>> print(listing_to_save(listing + "-j DROP \n"))
    *nat
    :OUTPUT ACCEPT
    -A OUTPUT -j DROP
    <BLANKLINE>
    """
    head = []
    rules = []
    chain = ""
    for line in text.split("\n"):
        if line.startswith("Bridge table: "):
            head.append(f"*{line.removeprefix('Bridge table: ').strip()}")
        elif heading := re.fullmatch(r"Bridge chain: (\S+), entries: \d+, policy: (\S+)\s*", line):
            chain = heading[1]
            head.append(f":{chain} {heading[2]}")
        elif line.strip() and chain:
            rules.append(f"-A {chain} {line.rstrip()}")
    return "".join(f"{line}\n" for line in [*head, *rules])


def identity(rule: EbtablesRule) -> tuple[str, str, tuple[str, ...]]:
    """Return the key by which a deletion finds a rule: everything but the position."""
    return rule.backend, rule.chain, rule.spec


def matches(present: Iterable[EbtablesRule], rules: Sequence[EbtablesRule]) -> list[EbtablesRule]:
    """Return the `present` rules that a deletion of `rules` deletes, in the order of their chains.

    Of identical rules the first are deleted, as the programs do it. Raise BackendError if some are
    absent.
    """
    wanted = Counter(map(identity, rules))
    matching = []
    for rule in present:
        if wanted[identity(rule)] > 0:
            wanted[identity(rule)] -= 1
            matching.append(rule)
    if absent := [rule for rule in rules if wanted[identity(rule)] > 0]:
        raise BackendError(f"nothing was deleted: {titles(absent)} is not there (any more)")
    return matching


def why_unsafe(rule: EbtablesRule) -> str | None:
    """Return why the program would not read the rule's words as printed; None if it would.

    The programs print a log prefix as it is: with a quote or a backslash in it, it reads as
    something else.

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
            return (
                f"the word {word} has a quote or backslash that the tool would not read as it "
                "printed it"
            )
    return None


def arguments(rule: EbtablesRule) -> list[str]:
    """Return the words of a rule as arguments of a program, without the quotes of a file."""
    return [_inside(word) for word in rule.spec]


def titles(rules: Sequence[EbtablesRule]) -> str:
    """Return the first rule and the number of the rest."""
    more = f" (and {len(rules) - 1} more)" if len(rules) > 1 else ""
    return f"{rules[0].line} ({rules[0].backend}){more}"


def _inside(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word.startswith('"') and word.endswith('"') else word


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the options with their values; `!` stands before the value or before the option."""
    pairs = []
    inversion = []
    for word, after in pairwise([*words, ""]):
        if word == "!" and _is_option(after):
            inversion = ["!"]
        elif _is_option(word):
            pairs.append([word, *inversion])
            inversion = []
        elif pairs:
            pairs[-1].append(word)
    return [(option, " ".join(values)) for option, *values in pairs]


def _is_option(word: str) -> bool:
    return re.match(r"-[A-Za-z]$|--[a-z]", word) is not None


def _value(option: str, value: str) -> str:
    inverted = "! " if value.startswith("! ") else ""
    return inverted + _SPELLINGS.get(option, str)(value.removeprefix("! "))


def _mac(value: str) -> str:
    """Return a hardware address in full without its mask, a name (`Unicast`) in lower case."""
    short, _, short_mask = value.lower().partition("/")
    mac = _in_full(short)
    mask = _in_full(short_mask)
    return mac if mask in ("", "ff:ff:ff:ff:ff:ff") else f"{mac}/{mask}"


def _in_full(mac: str) -> str:
    """Return a hardware address with two digits for each octet; any other word as it is."""
    if ":" not in mac:
        return mac
    return ":".join(octet.zfill(2) for octet in mac.split(":"))


def _address(value: str) -> str:
    """Return a single address without its mask, a mask as a length, other text unchanged."""
    text, _, mask = value.partition("/")
    try:
        address = Address.parse(text)
        whole = str(address_bits(address.family))
        return str(Prefix.parse(f"{address}/{_length(mask or whole)}").masked).removesuffix(
            f"/{whole}"
        )
    except ValueError:
        return value


def _length(mask: str) -> str:
    """Return the length of a mask; return one with holes, which ebtables accepts, unchanged."""
    if mask.isdecimal():
        return mask
    family, number = Address.parse(mask)
    length = number.bit_count()
    return str(length) if mask_of(family, length) == number else mask


def _protocol(value: str) -> str:
    try:
        value = f"0x{int(value, 16):04x}" if value.lower().startswith("0x") else value
    except ValueError:
        return value
    return _PROTOCOLS.get(value.lower(), value)


_PROTOCOLS = {
    "0x0800": "IPv4",
    "ipv4": "IPv4",
    "0x0806": "ARP",
    "arp": "ARP",
    "0x86dd": "IPv6",
    "ipv6": "IPv6",
}
#: The default of the option `--TARGET-target`: some versions print it, some leave it out.
_TARGET_DEFAULTS = {
    "arpreply": "DROP",
    "dnat": "ACCEPT",
    "snat": "ACCEPT",
    "redirect": "ACCEPT",
    "mark": "ACCEPT",
}
_SPELLINGS: Final[Mapping[str, Callable[[str], str]]] = {
    "-p": _protocol,
    **dict.fromkeys(
        ("-s", "-d", "--to-src", "--to-dst", "--arpreply-mac", "--arp-mac-src", "--arp-mac-dst"),
        _mac,
    ),
    **dict.fromkeys(
        ("--ip-src", "--ip-dst", "--ip6-src", "--ip6-dst", "--arp-ip-src", "--arp-ip-dst"), _address
    ),
}
