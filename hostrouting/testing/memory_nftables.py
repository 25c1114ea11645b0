r"""nftables in memory: it lists the tables that a script declares; nft itself is the judge of the language.

It reads the rules that probes need: `iifname`, `oifname`, `ip6 saddr`, `ip6 daddr`, `icmpv6 type { ... }`, `counter`,
`accept`, `drop`, `return`, `ip6 saddr set` and `ip6 daddr set`. Values are listed as they are written, so write them as
nft prints them. Every other rule is an error; nft's own checks of a script are left to nft.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any, Final

import attrs

from hostrouting.exceptions import BackendError, PermissionDeniedError, ToolNotFoundError
from hostrouting.host.packets.nft import check_table_name
from hostrouting.testing.faults import Faulty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from phases import Context

__all__ = ["MemoryNftables"]

#: A comment, the end of a block, or a statement of strings, sets and words; the head of a block ends in its bracket.
_STATEMENT: Final = re.compile(r'#.*|\}|(?:"[^"\n]*"|(?<=type )\{[^{}\n]*\}|[^{};\n"#])+\{?')
_HOOK: Final = re.compile(r"type filter hook (\w+) priority (-?\d+)")
_RULE: Final = re.compile(
    r'(?P<meta>[io]ifname) "(?P<dev>[^"]+)"|icmpv6 type \{ (?P<types>[^}]+) \}|(?P<bare>counter|accept|drop|return)\b'
    r'|ip6 (?P<field>[sd]addr) (?P<set>set )?(?P<address>\S+)|comment "(?P<comment>[^"]*)"'
)


@attrs.define
class _Chain:
    hook: dict[str, Any] = attrs.field(factory=dict)
    rules: list[dict[str, Any]] = attrs.field(factory=list)


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
        #: Tables by family and name that have flags, so that a listing shows only that they exist.
        self.unreadable: set[_Table] = set()
        #: Called after each load: the place for another program's change.
        self.after_load: Callable[[], None] | None = None
        self._ruleset: dict[_Table, dict[str, _Chain]] = {}

    @property
    def tables(self) -> Mapping[_Table, list[dict[str, Any]]]:
        """The listing of every table by family and name. To read it is no operation."""
        return {table: self._listing(*table) for table in self._ruleset}

    def flush(self) -> None:
        """Remove every table, as another program's `nft flush ruleset` does."""
        self._ruleset = {}
        self.unreadable.clear()

    def table(self, ctx: Context, family: str, name: str) -> list[dict[str, Any]] | None:
        """See `Nftables.table`."""
        self._begin(ctx, "table", family, name)
        check_table_name(family, name)
        return self.tables.get((family, name))

    def load(self, ctx: Context, ruleset: str) -> None:
        """See `Nftables.load`."""
        self._begin(ctx, "load", ruleset)
        self._transact(ruleset, commit=True)
        if self.after_load is not None:
            self.after_load()

    def check(self, ctx: Context, ruleset: str) -> None:
        """See `Nftables.check`."""
        self._begin(ctx, "check", ruleset)
        self._transact(ruleset, commit=False)

    def _begin(self, ctx: Context, *call: str) -> None:
        ctx.check()
        self.operations.record(*call)
        if not self.is_installed:
            raise ToolNotFoundError("nft", package="nftables", purpose=f"to {call[0]}")
        if not self.may_read:
            raise PermissionDeniedError(f"cannot {call[0]}: Operation not permitted (you must be root)")

    def _transact(self, script: str, *, commit: bool) -> None:
        before = copy.deepcopy(self._ruleset), set(self.unreadable)
        done = False
        try:
            self._run(script)
            done = commit
        finally:
            if not done:
                self._ruleset, self.unreadable = before

    def _run(self, script: str) -> None:
        statements = _statements(script)
        for statement in statements:
            match statement.split():
                case ["table", family, name]:
                    self._ruleset.setdefault((family, name), {})
                case ["table", family, name, "{"]:
                    self._define((family, name), statements)
                case ["delete", "table", family, name] if (family, name) in self._ruleset:
                    del self._ruleset[family, name]
                    self.unreadable.discard((family, name))
                case ["flush", "table", family, name] if (family, name) in self._ruleset:
                    # The chains stay, each with its hook.
                    for chain in self._ruleset[family, name].values():
                        chain.rules.clear()
                case ["flush", "ruleset"]:
                    self.flush()
                case _:
                    raise _refused(statement)

    def _define(self, table: _Table, statements: Iterator[str]) -> None:
        chains = self._ruleset.setdefault(table, {})
        for statement in _block(statements):
            match statement.split():
                case ["chain", name, "{"]:
                    _fill(chains.setdefault(name, _Chain()), statements)
                case ["comment", *_]:
                    pass
                case _:
                    raise _refused(statement)

    def _listing(self, family: str, name: str) -> list[dict[str, Any]]:
        """Return the table, then its chains, then its rules, in nft's order; of comments only those of rules."""
        if (family, name) in self.unreadable:
            return [{"table": {"family": family, "name": name, "unreadable": True}}]
        place = {"family": family, "table": name}
        chains = copy.deepcopy(self._ruleset[family, name])
        return [
            {"table": {"family": family, "name": name}},
            *({"chain": {**place, "name": name, **chain.hook}} for name, chain in chains.items()),
            *({"rule": {**place, "chain": name, **rule}} for name, chain in chains.items() for rule in chain.rules),
        ]


def _statements(script: str) -> Iterator[str]:
    statements = map(str.strip, _STATEMENT.findall(script))
    return (statement for statement in statements if statement and not statement.startswith("#"))


def _block(statements: Iterator[str]) -> Iterator[str]:
    for statement in statements:
        if statement == "}":
            return
        yield statement
    raise _refused("the end of the script inside a block")


def _fill(chain: _Chain, statements: Iterator[str]) -> None:
    for statement in _block(statements):
        hook = _HOOK.fullmatch(statement)
        if hook:
            chain.hook = {"type": "filter", "hook": hook[1], "prio": int(hook[2]), "policy": "accept"}
        elif statement.startswith("policy "):
            chain.hook["policy"] = statement.removeprefix("policy ")
        elif not statement.startswith("comment "):
            chain.rules.append(_rule(statement))


def _rule(statement: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"expr": []}
    at = 0
    while at < len(statement):
        part = _RULE.match(statement, at)
        if part is None:
            raise _refused(statement[at:])
        if part["comment"] is not None:
            rule["comment"] = part["comment"]
        else:
            rule["expr"].append(_expression(part))
        at = part.end() + 1
    return rule


def _expression(part: re.Match[str]) -> dict[str, Any]:
    if part["bare"]:
        return {part["bare"]: None}
    if part["meta"]:
        return _match({"meta": {"key": part["meta"]}}, part["dev"])
    if part["types"]:
        return _match({"payload": {"protocol": "icmpv6", "field": "type"}}, {"set": part["types"].split(", ")})
    field = {"payload": {"protocol": "ip6", "field": part["field"]}}
    return {"mangle": {"key": field, "value": part["address"]}} if part["set"] else _match(field, part["address"])


def _match(left: dict[str, Any], right: object) -> dict[str, Any]:
    return {"match": {"op": "==", "left": left, "right": right}}


def _refused(statement: str) -> BackendError:
    return BackendError(f"the nft in memory refuses {statement!r}: it knows no more than the rules of probes")
