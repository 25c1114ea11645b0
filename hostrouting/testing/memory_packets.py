"""The packet rules of a machine in memory: nftables and ebtables, to arrange, to inspect and to break.

nft itself is the judge of its language. `MemoryNftables` lists the rules that probes need: `iifname`, `oifname`,
`ip6 saddr`, `ip6 daddr`, `icmpv6 type { ... }`, `counter`, `accept`, `drop`, `return`, `ip6 saddr set` and
`ip6 daddr set`. Values are listed as they are written, so write them as nft prints them. Every other rule is an error;
nft's own checks of a script are left to nft.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any, Final

from hostrouting.exceptions import BackendError, PermissionDeniedError, ToolNotFoundError
from hostrouting.host.packets.ebtables_rules import (
    BACKENDS,
    EbtablesReading,
    EbtablesRule,
    matches,
    parse_save,
    why_unsafe,
)
from hostrouting.host.packets.nft import check_table_name
from hostrouting.testing.faults import Faulty

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostrouting.host.packets.nft import Listing
    from phases import Context

#: A comment, the end of a block, or a statement of strings, sets and words; the head of a block ends in its bracket.
_STATEMENT: Final = re.compile(r'#.*|\}|(?:"[^"\n]*"|(?<=type )\{[^{}\n]*\}|[^{};\n"#])+\{?')
_WORD: Final = re.compile(r'"[^"]*"|\{ [^}]+ \}|\S+')

_Table = tuple[str, str]


class MemoryNftables(Faulty):
    r"""The nftables of a fake machine. It implements `Nftables`; a test arranges it by `load`.

    By default, `fail_at` says that the kernel has no memory left.

    >>> from phases import Context
    >>> nftables = MemoryNftables()
    >>> nftables.load(Context(), 'table ip6 ours {\n chain in {\n iifname "eth0" counter accept\n }\n}')
    >>> nftables.tables["ip6", "ours"][-1]["rule"]["expr"][1:]
    [{'counter': None}, {'accept': None}]
    """

    def __init__(self) -> None:
        super().__init__(BackendError("nft said (status 1)\nError: Could not process rule: Cannot allocate memory"))
        #: If nft is installed.
        self.is_installed = True
        #: If the process may read and change the ruleset.
        self.may_read = True
        #: The listing of every table by family and name. To read it is no operation.
        self.tables: dict[_Table, Listing] = {}

    def table(self, ctx: Context, family: str, name: str) -> Listing | None:
        """See `Nftables.table`."""
        self._begin(ctx, "table", family, name)
        check_table_name(family, name)
        return copy.deepcopy(self.tables.get((family, name)))

    def load(self, ctx: Context, ruleset: str) -> None:
        """See `Nftables.load`."""
        self._begin(ctx, "load", ruleset)
        self.tables = _loaded(self.tables, ruleset)

    def check(self, ctx: Context, ruleset: str) -> None:
        """See `Nftables.check`."""
        self._begin(ctx, "check", ruleset)
        _loaded(self.tables, ruleset)

    def _begin(self, ctx: Context, *call: str) -> None:
        super()._begin(ctx, *call)
        if not self.is_installed:
            raise ToolNotFoundError("nft", package="nftables", purpose=f"to {call[0]}")
        if not self.may_read:
            raise PermissionDeniedError(f"cannot {call[0]}: Operation not permitted (you must be root)")


def _loaded(tables: Mapping[_Table, Listing], script: str) -> dict[_Table, Listing]:
    """Return the tables as a script leaves them."""
    after = dict(tables)
    found = map(str.strip, _STATEMENT.findall(script))
    statements = (statement for statement in found if statement and not statement.startswith("#"))
    for statement in statements:
        match statement.split():
            case ["table", family, name, *block] if block in ([], ["{"]):
                listing = after.get((family, name), [{"table": {"family": family, "name": name}}])
                after[family, name] = _defined(listing, statements) if block else listing
            case ["delete", "table", family, name] if (family, name) in after:
                del after[family, name]
            case ["flush", "table", family, name] if (family, name) in after:
                after[family, name] = [entry for entry in after[family, name] if "rule" not in entry]
            case ["flush", "ruleset"]:
                after.clear()
            case _:
                raise _refused(statement)
    return after


def _defined(listing: Listing, statements: Iterator[str]) -> Listing:
    """Return the listing with the chains and rules of a block added, in nft's order; it shows only rules' comments."""
    table = listing[0]["table"]
    place = {"family": table["family"], "table": table["name"]}
    chains = {entry["chain"]["name"]: entry for entry in listing if "chain" in entry}
    rules = [entry for entry in listing if "rule" in entry]
    for statement in _block(statements):
        match statement.split():
            case ["chain", name, "{"]:
                hook, added = _chain(statements)
                chains.setdefault(name, {"chain": {**place, "name": name, **hook}})
                rules += [{"rule": {**place, "chain": name, **rule}} for rule in added]
            case ["comment", *_]:
                pass
            case _:
                raise _refused(statement)
    order = [*chains]
    return [listing[0], *chains.values(), *sorted(rules, key=lambda entry: order.index(entry["rule"]["chain"]))]


def _chain(statements: Iterator[str]) -> tuple[dict[str, Any], Listing]:
    """Return the hook and the rules of a block."""
    hook: dict[str, Any] = {}
    rules: Listing = []
    for statement in _block(statements):
        match _WORD.findall(statement):
            case ["type", "filter", "hook", name, "priority", priority]:
                hook = {"type": "filter", "hook": name, "prio": int(priority), "policy": "accept"}
            case ["policy", policy]:
                hook["policy"] = policy
            case ["comment", _]:
                pass
            case [*words, "comment", comment]:
                rules.append({"expr": [*_expressions(words)], "comment": comment.strip('"')})
            case words:
                rules.append({"expr": [*_expressions(words)]})
    return hook, rules


def _block(statements: Iterator[str]) -> Iterator[str]:
    for statement in statements:
        if statement == "}":
            return
        yield statement
    raise _refused("the end of the script inside a block")


def _expressions(words: Sequence[str]) -> Iterator[dict[str, Any]]:
    match words:
        case []:
            return
        case ["counter" | "accept" | "drop" | "return" as word, *rest]:
            yield {word: None}
        case ["iifname" | "oifname" as key, dev, *rest] if dev.startswith('"'):
            yield _match({"meta": {"key": key}}, dev.strip('"'))
        case ["icmpv6", "type", types, *rest] if types.startswith("{"):
            yield _match({"payload": {"protocol": "icmpv6", "field": "type"}}, {"set": types.strip("{ }").split(", ")})
        case ["ip6", "saddr" | "daddr" as field, "set", address, *rest]:
            yield {"mangle": {"key": {"payload": {"protocol": "ip6", "field": field}}, "value": address}}
        case ["ip6", "saddr" | "daddr" as field, address, *rest]:
            yield _match({"payload": {"protocol": "ip6", "field": field}}, address)
        case _:
            raise _refused(" ".join(words))
    yield from _expressions(rest)


def _match(left: dict[str, Any], right: object) -> dict[str, Any]:
    return {"match": {"op": "==", "left": left, "right": right}}


def _refused(statement: str) -> BackendError:
    return BackendError(f"the nft in memory refuses {statement!r}: it knows no more than the rules of probes")


_DENIED: Final = "ebtables (nft) may not be read without CAP_NET_ADMIN: Permission denied (you must be root)"


class MemoryEbtables(Faulty):
    """The table `nat` of both backends, with the chains that the kernel makes; it implements `Ebtables`.

    By default, `fail_at` says that the program cannot be run; `operations.plan` lets another program act between calls.

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
        #: If the process may read and change rules.
        self.may_read = True

    def add(self, line: str, *, backend: str = "nft") -> None:
        """Append a rule as ebtables-save prints it (`-A CHAIN ...`); make the chain if it is missing."""
        chain = EbtablesRule.parse(line, backend=backend).chain
        self._chains[backend].setdefault(chain, []).append(line)

    def lines(self, backend: str = "nft") -> list[str]:
        """Return the rules of a backend as ebtables-save prints them."""
        return [line for lines in self._chains[backend].values() for line in lines]

    def read(self, ctx: Context) -> EbtablesReading:
        """See `Ebtables.read`."""
        self._begin(ctx, "read")
        if not self.may_read:
            return EbtablesReading((), (*self.notes, _DENIED), denied=True)
        texts = tuple((backend, self._text(backend)) for backend in BACKENDS)
        return EbtablesReading(tuple(self._rules()), tuple(self.notes), texts=texts)

    def delete(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """See `Ebtables.delete`."""
        self._begin_change(ctx, "delete", rules)
        for rule in reversed(matches(self._rules(), rules)):
            del self._chains[rule.backend][rule.chain][rule.position - 1]

    def insert(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """See `Ebtables.insert`."""
        self._begin_change(ctx, "insert", rules)
        for rule in rules:
            if rule.chain not in self._chains[rule.backend]:
                words = "No chain/target/match by that name."
                raise BackendError(f"not inserted: {rule.line}: {words}\nnothing was inserted")
        for rule in sorted(rules, key=lambda rule: rule.position):
            chain = self._chains[rule.backend][rule.chain]
            chain.insert(rule.position - 1 if 1 <= rule.position <= len(chain) else len(chain), rule.line)

    def _begin_change(self, ctx: Context, verb: str, rules: Sequence[EbtablesRule]) -> None:
        self._begin(ctx, verb, *(rule.line for rule in rules))
        if not self.may_read:
            raise PermissionDeniedError(_DENIED)
        for rule in rules:
            if reason := why_unsafe(rule):
                raise BackendError(f"{rule.line}: {reason}; nothing was changed, do it by hand")

    def _rules(self) -> Iterator[EbtablesRule]:
        for backend in BACKENDS:
            yield from parse_save(self._text(backend), backend=backend)

    def _text(self, backend: str) -> str:
        heads = [f":{chain} ACCEPT" for chain in self._chains[backend]]
        return "".join(f"{line}\n" for line in ["*nat", *heads, *self.lines(backend)])
