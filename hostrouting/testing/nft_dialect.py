"""The words of nft's language that the fake understands, and what a rule of them is in `nft -j` of nft 1.0.6.

Whatever else there is in a script is refused, for this must never take a rule for something else than nft would.
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from hostrouting.exceptions import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ENDS", "NftReader", "is_number", "read_rule"]

_TOKEN: Final = re.compile(
    r"""
    (?P<skip> (?: [ \t] | \\\n | \#[^\n]* )+ ) | "(?P<quoted> [^"\n]* )"
    | (?P<sign> \n | ; | \{ | \} | , | != ) | (?P<word> [\w.:/-]+ )
    """,
    re.VERBOSE | re.ASCII,
)
#: What ends a line.
ENDS: Final = ("\n", ";")
#: What no table or chain may be called, found by trying: where names stand, too, nft takes these for its own words.
_KEYWORDS: Final = (
    " accept add ah all and arp auto-merge bridge cgroup chain comment comp constant continue counter cpu create"
    " ct day dccp define delete describe device devices dnat drop dst dup dynamic ecn element elements eq esp"
    " ether exists expires export exthdr fib flags flow flowtable flush frag fwd ge get goto gt handle hbh hook"
    " hour ibriport ibrname icmp icmpv6 igmp iif iifgroup iifname iiftype import include index inet insert"
    " interval ip ip6 ipsec jhash jump le limit list log lt map mark masquerade meta meter mh missing monitor ne"
    " netdev nftrace not notrack numgen obriport obrname oif oifgroup oifname oiftype or osf pkttype policy"
    " position priority queue quota random redirect reject rename replace reset return rt rt0 rt2 rtclassid rule"
    " ruleset sctp secmark set size skgid skuid snat socket symhash synproxy table tcp th time timeout tproxy type"
    " typeof udp udplite undefine update vlan vmap xor xt"
    " "
)
_VERDICTS: Final = ("accept", "drop", "return")
#: As `nft describe icmpv6 type` has them.
_ICMPV6: Final = {
    "destination-unreachable": 1,
    "packet-too-big": 2,
    "time-exceeded": 3,
    "parameter-problem": 4,
    "echo-request": 128,
    "echo-reply": 129,
    "mld-listener-query": 130,
    "mld-listener-report": 131,
    "mld-listener-done": 132,
    "nd-router-solicit": 133,
    "nd-router-advert": 134,
    "nd-neighbor-solicit": 135,
    "nd-neighbor-advert": 136,
    "nd-redirect": 137,
    "router-renumbering": 138,
    "ind-neighbor-solicit": 141,
    "ind-neighbor-advert": 142,
    "mld2-listener-report": 143,
}
#: nft has them from /etc/protocols. Others, too, which the fake does not translate.
_PROTOCOLS: Final = {"tcp": 6, "udp": 17, "ipv6-icmp": 58}
_LONGEST_COMMENT: Final = 128


class _Token(NamedTuple):
    text: str
    line: int
    is_quoted: bool = False


class NftReader:
    """The words of a script, one after the other."""

    def __init__(self, text: str) -> None:
        self._tokens: list[_Token] = []
        self._next = 0
        position, line = 0, 1
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                raise _refusal(line, f"it does not understand {text[position]!r}")
            if found["quoted"] is not None:
                self._tokens.append(_Token(found["quoted"], line, is_quoted=True))
            elif found["skip"] is None:
                self._tokens.append(_Token(found[0], line))
            line += found[0].count("\n")
            position = found.end()
        # The last line ends, too. The end itself is no word at all.
        self._tokens += [_Token("\n", line), _Token("", line)]

    def refuse(self, why: str) -> NoReturn:
        """End the script where it is now."""
        raise _refusal(self._tokens[self._next].line, why)

    def peek(self) -> str:
        """The next word, as it stands there; empty at the end of the script."""
        token = self._tokens[self._next]
        return f'"{token.text}"' if token.is_quoted else token.text

    def take(self) -> str:
        """The next word, which is not quoted."""
        word = self.peek()
        if word in {"", "\n"} or word.startswith('"'):
            self.refuse(f"syntax error, unexpected {word or 'end of file'!r}")
        self._next += 1
        return word

    def skip(self, *words: str) -> bool:
        """Whether one of these is next, and was passed."""
        found = self.peek() in words
        self._next += found
        return found

    def one_of(self, what: str, *words: str) -> str:
        """The next word, which is one of these."""
        if self.peek() not in words:
            self.refuse(f"unexpected {self.peek()!r}; of {what} it understands {', '.join(words)}")
        self._next += 1
        return words[words.index(self._tokens[self._next - 1].text)]

    def quoted(self, what: str) -> str:
        """The next text in quotes."""
        token = self._tokens[self._next]
        if not token.is_quoted:
            self.refuse(f"{what} must be in quotes, not {self.peek()!r}")
        self._next += 1
        return token.text

    def comment(self) -> str:
        """What follows the word `comment`."""
        text = self.quoted("a comment")
        if len(text.encode()) > _LONGEST_COMMENT:
            self.refuse(f"comment too long, {_LONGEST_COMMENT} bytes maximum allowed, not {len(text.encode())}")
        return text

    def name(self) -> str:
        """The name of a table or a chain."""
        name = self.take()
        if f" {name} " in _KEYWORDS or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            self.refuse(f"{name!r} is no name")
        return name

    def once(self, what: str, seen: set[str]) -> None:
        """Refuse what was seen before."""
        if what in seen:
            self.refuse(f"{what} may be there once; this one is the second")
        seen.add(what)

    def end(self) -> None:
        """What ends every command, every part of a table, every rule; a bracket does not."""
        if not self.skip(*ENDS):
            self.refuse(f"syntax error, unexpected {self.peek()!r}, expecting newline or semicolon")


def is_number(text: str) -> bool:
    """Whether this is a number from 0 on; with a leading 0 it would be octal.

    >>> is_number("10"), is_number("010"), is_number("-1")
    (True, False, False)
    """
    return re.fullmatch("0|[1-9][0-9]{0,8}", text) is not None


def _refusal(line: int, why: str) -> BackendError:
    return BackendError(f"the nft in memory refuses line {line}: {why}")


def read_rule(reader: NftReader, family: str) -> dict[str, Any]:
    """The rule that comes next, as `nft -j` has it: `expr`, and `comment` if there is one."""
    return _Rule(reader, family).read()


class _Rule:
    def __init__(self, reader: NftReader, family: str) -> None:
        self._reader = reader
        self._family = family
        self._seen: set[str] = set()
        self._expressions: list[dict[str, Any]] = []

    def read(self) -> dict[str, Any]:
        """The rule until the end of its line."""
        read = self._reader
        verdict = ""
        while read.peek() not in {*ENDS, "}", ""}:
            if self._expressions and read.skip("comment"):
                return {"comment": read.comment(), "expr": self._expressions}
            if verdict:
                read.refuse(f"Statement after terminal statement has no effect: {read.peek()!r} after {verdict!r}")
            word = read.one_of("rules", "iifname", "oifname", "meta", "ip6", "icmpv6", "counter", *_VERDICTS)
            if word in _VERDICTS:
                verdict = word
            self._add(word)
        return {"expr": self._expressions}

    def _add(self, word: str) -> None:
        if word in _VERDICTS:
            self._expressions.append({word: None})
        elif word == "counter":
            self._counter()
        elif word == "ip6":
            self._ip6()
        elif word == "icmpv6":
            self._icmpv6()
        else:
            key = self._reader.one_of("meta", "iifname", "oifname", "l4proto") if word == "meta" else word
            read_value = self._protocols if key == "l4proto" else self._device
            self._match(key, {"meta": {"key": key}}, read_value)

    def _match(self, what: str, left: dict[str, Any], read_value: Callable[[], Any]) -> None:
        # nft draws comparisons of the same thing together, in ways of its own.
        self._reader.once(what, self._seen)
        operator = "!=" if self._reader.skip("!=") else "=="
        self._expressions.append({"match": {"op": operator, "left": left, "right": read_value()}})

    def _counter(self) -> None:
        for what in ("packets", "bytes") if self._reader.peek() == "packets" else ():
            self._reader.one_of("counters", what)
            if not is_number(self._reader.take()):
                self._reader.refuse(f"the number of {what} is a number")
        self._expressions.append({"counter": None})

    def _ip6(self) -> None:
        read = self._reader
        if self._family == "ip":
            read.refuse("conflicting protocols specified: ip vs. ip6")
        field = read.one_of("parts of ip6", "saddr", "daddr")
        payload = {"payload": {"protocol": "ip6", "field": field}}
        if read.skip("set"):
            self._expressions.append({"mangle": {"key": payload, "value": self._address(read.take())}})
        else:
            self._match(f"ip6 {field}", payload, self._network)

    def _icmpv6(self) -> None:
        read = self._reader
        read.one_of("parts of icmpv6", "type")
        if self._family == "ip":
            read.refuse("icmpv6 in a table of the family ip never matches")
        implied = {"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "ipv6-icmp"}}
        if self._expressions[-1:] == [implied]:
            # nft leaves out what the type implies.
            self._expressions.pop()
        else:
            read.once("l4proto", self._seen)
        self._match("icmpv6 type", {"payload": {"protocol": "icmpv6", "field": "type"}}, self._icmpv6_types)

    def _device(self) -> str:
        name = self._reader.quoted("the name of a device")
        # A backslash escapes an asterisk, which is more than a test needs.
        if not 0 < len(name.encode()) < 16 or name == "*" or "\\" in name:
            self._reader.refuse(f"{name!r} is no name of a device")
        return name

    def _address(self, text: str) -> str:
        try:
            return socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, text))
        except OSError:
            self._reader.refuse(f"{text!r} is no IPv6 address")

    def _network(self) -> Any:
        text, slash, length = self._reader.take().partition("/")
        address = self._address(text)
        if not slash:
            return address
        if not is_number(length) or int(length) > 128:
            self._reader.refuse(f"{length!r} is no length of a prefix")
        bits = int.from_bytes(socket.inet_pton(socket.AF_INET6, text), "big")
        kept = bits >> (128 - int(length)) << (128 - int(length))
        network = socket.inet_ntop(socket.AF_INET6, kept.to_bytes(16, "big"))
        return network if length == "128" else {"prefix": {"addr": network, "len": int(length)}}

    def _icmpv6_types(self) -> Any:
        return self._numbers(_ICMPV6, self._icmpv6_range)

    def _protocols(self) -> Any:
        return self._numbers(_PROTOCOLS, self._protocol)

    def _numbers(self, names: Mapping[str, int], read_range: Callable[[], tuple[int, int]]) -> Any:
        """A number, a range, or a set of them; nft prints those that have names by name."""
        spoken = {number: name for name, number in names.items()}

        def show(low: int, high: int) -> Any:
            ends = [spoken.get(end, end) for end in (low, high)]
            return ends[0] if low == high else {"range": ends}

        ranges = self._set_of(read_range) if self._reader.skip("{") else [read_range()]
        if len(ranges) == 1:
            return show(*ranges[0])
        if any(low < high for low, high in ranges):
            ranges = self._joined(ranges)
        return {"set": [show(low, high) for low, high in sorted(set(ranges))]}

    def _set_of(self, read_range: Callable[[], tuple[int, int]]) -> list[tuple[int, int]]:
        read = self._reader
        ranges: list[tuple[int, int]] = []
        while not (ranges and read.skip("}")):
            if read.skip("\n"):
                continue
            ranges.append(read_range())
            while read.skip("\n"):
                pass
            if not read.skip(",") and read.peek() != "}":
                read.refuse(f"syntax error, unexpected {read.peek()!r} in a set")
        return ranges

    def _icmpv6_range(self) -> tuple[int, int]:
        word = self._reader.take()
        if word in _ICMPV6:
            return _ICMPV6[word], _ICMPV6[word]
        ends = word.split("-")
        if len(ends) > 2 or not all(is_number(end) and int(end) < 256 for end in ends):
            self._reader.refuse(f"{word!r} is no number below 256, range of them or name that it understands")
        if len(ends) == 2 and int(ends[0]) >= int(ends[1]):
            self._reader.refuse("Range has zero or negative size")
        return int(ends[0]), int(ends[-1])

    def _protocol(self) -> tuple[int, int]:
        word = self._reader.one_of("protocols", *_PROTOCOLS, "icmpv6")
        number = _PROTOCOLS["ipv6-icmp" if word == "icmpv6" else word]
        return number, number

    def _joined(self, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """In a set that has a range nft joins what is side by side."""
        joined: list[tuple[int, int]] = []
        for low, high in sorted(ranges):
            if joined and low <= joined[-1][1]:
                self._reader.refuse("what overlaps in a set is more than it understands")
            if joined and low == joined[-1][1] + 1:
                joined[-1] = joined[-1][0], high
            else:
                joined.append((low, high))
        return joined
