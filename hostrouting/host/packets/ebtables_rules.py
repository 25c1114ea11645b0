"""The values of the ebtables port: rules of the table `nat`, as ebtables-save prints them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.base.errors import BackendError
from hostrouting.net.addresses import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Each backend has its own ruleset, and both are in force.
BACKENDS: Final = ("nft", "legacy")

#: Counters in every printed form: before a rule as iptables prints them, after it with
#: EBTABLES_SAVE_COUNTER=yes, and as the legacy program lists them. No alternative begins with a
#: repetition, which would make a search quadratic.
_COUNTERS_BEFORE = re.compile(r"\A\[[0-9]+:[0-9]+\] ")
_COUNTERS_BEHIND = re.compile(r"(?:(?<=[ \t])-c [0-9]+ [0-9]+|, pcnt = [0-9]+ -- bcnt = [0-9]+)\Z")
#: The masks of single addresses, which some releases print.
_WHOLE_MASK = re.compile(r"/(?:32|128|255\.255\.255\.255|ffff(?::ffff){7})\Z")
#: The most characters of a line that an error shows.
_MOST_CHARACTERS = 100


class EbtablesRule(NamedTuple):
    """A rule of the table `nat`.

    >>> line = "-A PREROUTING -p ARP -j arpreply --arpreply-mac 2:0:0:0:0:a"
    >>> rule = EbtablesRule.parse(line, backend="legacy")
    >>> rule.chain, rule.options
    ('PREROUTING', {'-p': 'ARP', '-j': 'arpreply', '--arpreply-mac': '02:00:00:00:00:0a', ...})
    """

    #: `nft` or `legacy`: each has its own ruleset, and both are in force.
    backend: str
    chain: str
    #: The description word by word, as its backend prints it, without `-A CHAIN` and without
    #: counters.
    spec: tuple[str, ...]

    @classmethod
    def parse(cls, line: str, *, backend: str) -> EbtablesRule:
        """Parse a line that ebtables-save printed; raise ValueError for any other line."""
        bare = _COUNTERS_BEFORE.sub("", line).rstrip(" \t")
        words = re.findall(r"[^ \t]+", _COUNTERS_BEHIND.sub("", bare))
        if len(words) < 2 or words[0] != "-A":
            raise ValueError(
                f"{line!r} is not a rule as ebtables-save prints it: "
                "it begins with -A and the chain"
            )
        return cls(backend, words[1], tuple(words[2:]))

    @property
    def line(self) -> str:
        """`-A CHAIN ...`."""
        return " ".join(("-A", self.chain, *self.spec))

    def __str__(self) -> str:
        return f"ebtables {self.backend} nat: {self.line}"

    @property
    def options(self) -> dict[str, str]:
        """The options with their values, spelled the same way for both backends.

        Empty if an option is negated or repeated. Hardware addresses are in lower case with leading
        zeros, single addresses have no mask, and the defaults that some backends leave out are
        filled in.
        """
        pairs: list[list[str]] = []
        for word in self.spec:
            if re.match(r"-[A-Za-z]$|--[a-z]", word):
                pairs.append([word])
            elif pairs:
                pairs[-1].append(word)
        options = {name: _spelled(name, " ".join(values)) for name, *values in pairs}
        if "!" in self.spec or len(options) < len(pairs):
            return {}
        target = options.get("-j", "")
        if target in _TARGET_DEFAULTS:
            options.setdefault(f"--{target}-target", _TARGET_DEFAULTS[target])
        return options


class EbtablesSnapshot(NamedTuple):
    """All the rules that could be read, and notes on the rest."""

    rules: tuple[EbtablesRule, ...]
    #: Reasons why a backend was not read: it is not installed, the kernel does not support it, or
    #: privilege is missing.
    notes: tuple[str, ...] = ()
    #: Privilege is missing, so root might see more rules.
    denied: bool = False
    #: The output of each backend's ebtables-save, for a backup: (backend, text).
    texts: tuple[tuple[str, str], ...] = ()
    #: The program of each backend: (backend, `ebtables-nft`, `ebtables-legacy` or `ebtables`).
    programs: tuple[tuple[str, str], ...] = ()


def parse_save(text: str, *, backend: str) -> list[EbtablesRule]:
    r"""Return the rules of the table `nat` in the output of ebtables-save, in order.

    >>> parse_save("*nat\n:OUTPUT ACCEPT\n-A OUTPUT -j DROP\n", backend="nft")
    [EbtablesRule(backend='nft', chain='OUTPUT', spec=('-j', 'DROP'))]
    """
    rules = []
    table = ""
    # Not splitlines(): a log prefix may contain a character that Unicode calls the end of a line.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith(("#", ":")) or line == "COMMIT":
            continue
        if line.startswith("*"):
            table = line[1:].strip()
        elif table == "nat":
            try:
                rules.append(EbtablesRule.parse(line, backend=backend))
            except ValueError as error:
                raise _unreadable(backend, number, line) from error
        elif not table:
            raise _unreadable(backend, number, line)
    return rules


def _unreadable(backend: str, number: int, line: str) -> BackendError:
    shown = line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..."
    return BackendError(
        f"cannot read the rules of ebtables ({backend}): line {number} of them is not a line of "
        f"ebtables-save: {shown!r}; run the program by hand to see its output"
    )


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


def _spelled(option: str, value: str) -> str:
    return _SPELLINGS[option](value) if option in _SPELLINGS else value


def _mac(value: str) -> str:
    """Return a hardware address in full without its mask, a name (`Unicast`) in lower case."""
    mac = value.lower().removesuffix("/ff:ff:ff:ff:ff:ff")
    return ":".join(octet.zfill(2) for octet in mac.split(":")) if ":" in mac else mac


def _address(value: str) -> str:
    """Return a single address without its mask, other text unchanged."""
    try:
        return str(Address.parse(_WHOLE_MASK.sub("", value)))
    except ValueError:
        return value


def _protocol(value: str) -> str:
    return _PROTOCOLS.get(value.lower(), value)


_PROTOCOLS = {
    "0x0800": "IPv4",
    "0x800": "IPv4",
    "ipv4": "IPv4",
    "0x0806": "ARP",
    "0x806": "ARP",
    "arp": "ARP",
    "0x86dd": "IPv6",
    "ipv6": "IPv6",
}
#: The default of the option `--TARGET-target`: some versions print it, some leave it out.
_TARGET_DEFAULTS = {"arpreply": "DROP", "dnat": "ACCEPT", "snat": "ACCEPT"}
_SPELLINGS: Final[Mapping[str, Callable[[str], str]]] = {
    "-p": _protocol,
    **dict.fromkeys(("-s", "--to-src", "--to-dst", "--arpreply-mac"), _mac),
    **dict.fromkeys(("--ip-dst", "--ip6-dst", "--arp-ip-dst"), _address),
}
