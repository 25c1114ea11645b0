"""The packet rules of a machine in memory, nftables and ebtables, which tests arrange and break.

nft itself is the judge of its language. `MemoryNftables` keeps the text of each table, and lists
the rules that probes need, a line each: `iifname`, `oifname`, `ip6 saddr`, `ip6 daddr`, `icmpv6
type { ... }`, `counter`, `accept`, `drop`, `return`, `ip6 saddr set` and `ip6 daddr set`. Values
are listed as they are written, so write them as nft prints them. Every other line is an error;
nft's own checks of a script are left to nft.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hostrouting.base.errors import BackendError, PermissionDeniedError, ToolNotFoundError
from hostrouting.host.packets.ebtables_rules import (
    BACKENDS,
    EbtablesRule,
    EbtablesSnapshot,
    parse_save,
)
from hostrouting.host.packets.nft import Listing, check_table_name
from hostrouting.host.ports import Ebtables, Nftables
from hostrouting.testing.faults import Faulty
from phases import Context

#: Comments, and any other end of a line.
_END = re.compile(r'^\s*#.*$|[ \t;]*(?:#[^"\n]*)?$', re.MULTILINE)
_CHAIN = re.compile(r"\s*chain (\S+) \{\n((?:.*\n)*?)\s*\}\n")
_STATEMENT = re.compile(
    rf"^(delete )?table (\w+) (\S+)(?: \{{\n((?:{_CHAIN.pattern}|(?!\s*\}}$).*\n)*)\s*\}})?$"
    r"|^(.+)$",
    re.MULTILINE,
)
_HOOK = re.compile(
    r"type (?P<type>filter) hook (?P<hook>\w+) priority (?P<prio>-?\d+)"
    r"(?:; policy (?P<policy>\w+))?"
)
_EXPRESSION = re.compile(
    r'([io]ifname) "([^"]+)"|icmpv6 type \{ ([^}]+) \}|ip6 ([sd]addr) (set )?(\S+)'
    r"|\b(counter|accept|drop|return)\b"
)

_Table = tuple[str, str]


class MemoryNftables(Faulty, ports=[Nftables]):
    r"""The nftables of a fake machine. It implements `Nftables`; a test arranges it by `load`.

    By default, `fail_at` reports that the kernel is out of memory.

    >>> from phases import Context
    >>> nftables = MemoryNftables()
    >>> nftables.load(Context(), 'table ip6 a {\n chain b {\n iifname "eth0" counter accept\n}\n}')
    >>> nftables.tables["ip6", "a"][-1]["rule"]["expr"][1:]
    [{'counter': None}, {'accept': None}]
    """

    def __init__(self) -> None:
        super().__init__(
            BackendError(
                "nft said (status 1)\nError: Could not process rule: Cannot allocate memory"
            )
        )
        #: True if nft is installed.
        self.is_installed = True
        #: True if the process may read and change the ruleset.
        self.may_read = True
        #: The text of every table by family and name, without comments.
        self.texts: dict[_Table, str] = {}

    @property
    def tables(self) -> dict[_Table, Listing]:
        """The listing of every table by family and name. Reading it is not recorded."""
        return {table: _listing(table, text) for table, text in self.texts.items()}

    def table(self, ctx: Context, family: str, name: str) -> Listing | None:
        """See `Nftables.table`."""
        check_table_name(family, name)
        return self.tables.get((family, name))

    def load(self, ctx: Context, ruleset: str) -> None:
        """See `Nftables.load`."""
        self.texts = _loaded(self.texts, ruleset)

    def check(self, ctx: Context, ruleset: str) -> None:
        """See `Nftables.check`."""
        _loaded(self.texts, ruleset)

    def _begin(self, name: str, *arguments: object) -> None:
        super()._begin(name, *arguments)
        if not self.is_installed:
            raise ToolNotFoundError("nft", package="nftables", purpose=f"to {name}")
        if not self.may_read:
            raise PermissionDeniedError(
                f"cannot {name}: Operation not permitted (you must be root)"
            )


def _loaded(texts: Mapping[_Table, str], script: str) -> dict[_Table, str]:
    """Return the texts of the tables as a script leaves them."""
    after = dict(texts)
    for deletes, family, name, body, *_, unsupported in _STATEMENT.findall(_END.sub("", script)):
        table = family, name
        if unsupported == "flush ruleset":
            after.clear()
        elif unsupported or (deletes and table not in after):
            raise _refused(unsupported or f"delete table {family} {name}")
        elif deletes:
            del after[table]
        else:
            after[table] = after.get(table, "") + body
            _listing(table, after[table])
    return after


def _listing(table: _Table, text: str) -> Listing:
    """Return the listing of a table: its chains, then its rules, chain by chain."""
    family, name = table
    if "flags" in text:
        return [{"table": {"family": family, "name": name, "unreadable": True}}]
    for statement in _statements(_CHAIN.sub("", text)):
        raise _refused(statement)
    bodies: dict[str, str] = {}
    for chain, body in _CHAIN.findall(text):
        bodies[chain] = bodies.get(chain, "") + body
    place = {"family": family, "table": name}
    heads: list[dict[str, Any]] = [{"table": {"family": family, "name": name}}]
    rules: list[dict[str, Any]] = []
    for chain, body in bodies.items():
        hook: dict[str, Any] = {**place, "name": chain}
        heads.append({"chain": hook})
        for statement in _statements(body):
            if match := _HOOK.fullmatch(statement):
                hook.update(match.groupdict("accept"), prio=int(match["prio"]))
            else:
                rules.append({"rule": {**place, "chain": chain, **_rule(statement)}})
    return heads + rules


def _statements(text: str) -> list[str]:
    lines = map(str.strip, text.splitlines())
    return [line for line in lines if line and not line.startswith("comment ")]


def _rule(statement: str) -> dict[str, Any]:
    text, _, comment = statement.partition(' comment "')
    if _EXPRESSION.sub("", text).strip():
        raise _refused(statement)
    rule: dict[str, Any] = {"expr": [*map(_expression, _EXPRESSION.finditer(text))]}
    return {**rule, "comment": comment.removesuffix('"')} if comment else rule


def _expression(match: re.Match[str]) -> dict[str, Any]:
    key, dev, types, field, change, address, word = match.groups()
    if word:
        return {word: None}
    packet = {"protocol": "ip6" if field else "icmpv6", "field": field or "type"}
    left = {"meta": {"key": key}} if key else {"payload": packet}
    if change:
        return {"mangle": {"key": left, "value": address}}
    return {
        "match": {"op": "==", "left": left, "right": dev or address or {"set": types.split(", ")}}
    }


def _refused(statement: str) -> BackendError:
    return BackendError(f"the nft in memory refuses {statement!r}: it supports probes only")


_DENIED = (
    "ebtables (nft) may not be read without CAP_NET_ADMIN: Permission denied (you must be root)"
)


class MemoryEbtables(Faulty, ports=[Ebtables]):
    """The table `nat` of both backends, with the kernel's chains; implements `Ebtables`.

    By default, `fail_at` reports that the program cannot be run; `operations.plan` runs
    another program between calls.

    >>> from phases import Context
    >>> ebtables = MemoryEbtables()
    >>> ebtables.add("-A PREROUTING -p ARP -j DROP")
    >>> ebtables.delete(Context(), ebtables.read(Context()).rules)
    >>> ebtables.lines()
    []
    """

    def __init__(self) -> None:
        super().__init__(BackendError("cannot run ebtables: Cannot allocate memory"))
        #: The lines of ebtables-save, by backend and chain.
        self._chains: dict[str, dict[str, list[str]]] = {
            backend: {"PREROUTING": [], "OUTPUT": [], "POSTROUTING": []} for backend in BACKENDS
        }
        #: The notes of each reading.
        self.notes: list[str] = []
        #: True if the process may read and change rules.
        self.may_read = True

    def add(self, line: str, *, backend: str = "nft") -> None:
        """Append a rule in the form of ebtables-save (`-A CHAIN ...`); make a missing chain."""
        chain = EbtablesRule.parse(line, backend=backend).chain
        self._chains[backend].setdefault(chain, []).append(line)

    def lines(self, backend: str = "nft") -> list[str]:
        """Return the rules of a backend as ebtables-save prints them."""
        return [line for lines in self._chains[backend].values() for line in lines]

    def read(self, ctx: Context) -> EbtablesSnapshot:
        """See `Ebtables.read`."""
        if not self.may_read:
            return EbtablesSnapshot((), (*self.notes, _DENIED), denied=True)
        texts = tuple((backend, self._text(backend)) for backend in BACKENDS)
        programs = tuple((backend, f"ebtables-{backend}") for backend in BACKENDS)
        rules = tuple(self._rules())
        return EbtablesSnapshot(rules, tuple(self.notes), texts=texts, programs=programs)

    def delete(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """See `Ebtables.delete`."""
        if not self.may_read:
            raise PermissionDeniedError(_DENIED)
        for backend in BACKENDS:
            left = [rule for rule in self._rules() if rule.backend == backend]
            for rule in (rule for rule in rules if rule.backend == backend):
                if rule not in left:
                    raise BackendError(f"not deleted: {rule}: rule does not exist")
                left.remove(rule)
                if backend == "legacy":
                    self._set(backend, left)
            self._set(backend, left)

    def _set(self, backend: str, rules: Sequence[EbtablesRule]) -> None:
        for chain in self._chains[backend]:
            self._chains[backend][chain] = [rule.line for rule in rules if rule.chain == chain]

    def _rules(self) -> Iterator[EbtablesRule]:
        for backend in BACKENDS:
            yield from parse_save(self._text(backend), backend=backend)

    def _text(self, backend: str) -> str:
        heads = [f":{chain} ACCEPT" for chain in self._chains[backend]]
        return "".join(f"{line}\n" for line in ["*nat", *heads, *self.lines(backend)])
