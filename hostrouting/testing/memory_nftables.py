"""nftables in memory: a small dialect of nft's language, all or nothing, listed as the real nft lists it.

It is nft 1.0.6 that it imitates, and it refuses what it cannot vouch for: a script that this fake loads means to the
real nft what it means here; one that it refuses may still be right.

    table F NAME [{ ... }], add table, flush table, delete table, flush ruleset
    in a table: comment "...", chain NAME { ... }
    in a chain: comment "...", type filter hook HOOK priority P, policy accept|drop, rules
    in a rule: iifname, oifname, ip6 saddr, ip6 daddr, icmpv6 type, meta l4proto, each with or without !=; counter;
               ip6 saddr set, ip6 daddr set; accept, drop, return; comment "..."
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import attrs

from hostrouting.exceptions import BackendError, PermissionDeniedError, ToolNotFoundError
from hostrouting.host.packets.nft import check_table_name
from hostrouting.testing.faults import Operations
from hostrouting.testing.nft_dialect import ENDS, NftReader, is_number, read_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from phases import Context

__all__ = ["MemoryNftables"]

_HOOKS: Final = ("prerouting", "input", "forward", "output", "postrouting")
_PRIORITIES: Final = {"raw": -300, "mangle": -150, "filter": 0, "security": 50}


@attrs.define(kw_only=True)
class _Chain:
    hook: dict[str, Any] = attrs.field(factory=dict)
    rules: list[dict[str, Any]] = attrs.field(factory=list)


_Ruleset = dict[tuple[str, str], dict[str, _Chain]]


class MemoryNftables:
    r"""The nftables of a fake machine. It fulfils `Nftables`; whatever a test arranges it arranges by `load`.

    >>> from phases import Context
    >>> nftables = MemoryNftables()
    >>> nftables.load(Context(), 'table ip6 ours {\n chain in {\n iifname "eth0" counter accept\n }\n}')
    >>> nftables.tables["ip6", "ours"][-1]["rule"]["expr"][1:]
    [{'counter': None}, {'accept': None}]
    """

    def __init__(self) -> None:
        self.operations = Operations()
        #: False: nft is not there.
        self.is_installed = True
        #: False: we may neither read nor change.
        self.may_read = True
        #: Tables by family and name that have flags, so that all there is to see is that they are there; until they
        #: are deleted.
        self.unreadable: set[tuple[str, str]] = set()
        #: Called after each load: somebody who is quicker than whoever reads back.
        self.after_load: Callable[[], None] | None = None
        self._ruleset: _Ruleset = {}

    def fail_at(self, number: int, error: BaseException | None = None) -> None:
        """Let the `number`-th operation from now (1 is the next) fail: by default the kernel has no memory left."""
        message = "nft said (status 1)\nError: Could not process rule: Cannot allocate memory"
        self.operations.fail(number, error or BackendError(message))

    @property
    def tables(self) -> Mapping[tuple[str, str], list[dict[str, Any]]]:
        """The listing of every table by family and name; to look at, which is no operation."""
        return {(family, name): self._listing(family, name) for family, name in self._ruleset}

    def flush(self) -> None:
        """Somebody's `nft flush ruleset`; no operation of ours."""
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
        script = _Script(ruleset, self._ruleset)
        self._ruleset = script.run()
        self.unreadable -= script.deleted
        if self.after_load is not None:
            self.after_load()

    def check(self, ctx: Context, ruleset: str) -> None:
        """See `Nftables.check`."""
        self._begin(ctx, "check", ruleset)
        _Script(ruleset, self._ruleset).run()

    def _listing(self, family: str, name: str) -> list[dict[str, Any]]:
        if (family, name) in self.unreadable:
            return [{"table": {"family": family, "name": name, "unreadable": True}}]
        return _listing(family, name, self._ruleset[family, name])

    def _begin(self, ctx: Context, *call: str) -> None:
        ctx.check()
        self.operations.record(*call)
        if not self.is_installed:
            raise ToolNotFoundError("nft", package="nftables", purpose=f"to {call[0]}")
        if not self.may_read:
            raise PermissionDeniedError(f"cannot {call[0]}: Operation not permitted (you must be root)")


def _listing(family: str, name: str, chains: dict[str, _Chain]) -> list[dict[str, Any]]:
    # As nft has it: all chains, then all rules; and of the comments only those of rules, see `Nftables.table`.
    whose = {"family": family, "table": name}
    listing: list[dict[str, Any]] = [{"table": {"family": family, "name": name}}]
    listing += [{"chain": {**whose, "name": chain, **chains[chain].hook}} for chain in chains]
    listing += [{"rule": {**whose, "chain": chain, **rule}} for chain in chains for rule in chains[chain].rules]
    return copy.deepcopy(listing)


class _Script:
    """One script, run on a copy of the ruleset."""

    def __init__(self, text: str, ruleset: _Ruleset) -> None:
        self._ruleset = copy.deepcopy(ruleset)
        self._reader = NftReader(text)
        #: Those that went, be it to be declared anew.
        self.deleted: set[tuple[str, str]] = set()

    def run(self) -> _Ruleset:
        """The ruleset after the script; an error if any line of it is refused."""
        while self._reader.peek():
            if not self._reader.skip(*ENDS):
                self._command()
                self._reader.end()
        return self._ruleset

    def _command(self) -> None:
        read = self._reader
        verb = read.one_of("commands", "table", "add", "flush", "delete")
        if verb == "flush" and read.skip("ruleset"):
            self.deleted.update(self._ruleset)
            self._ruleset = {}
            return
        if verb != "table":
            read.one_of("objects", "table")
        table = read.one_of("families", "ip6", "inet", "ip"), read.name()
        if verb in {"table", "add"}:
            self._ruleset.setdefault(table, {})
            if read.skip("{"):
                self._table(table)
        elif table not in self._ruleset:
            read.refuse("Could not process rule: No such file or directory")
        elif verb == "delete":
            del self._ruleset[table]
            self.deleted.add(table)
        else:
            # The chains stay, each with its hook.
            for chain in self._ruleset[table].values():
                chain.rules.clear()

    def _table(self, table: tuple[str, str]) -> None:
        read = self._reader
        seen: set[str] = set()
        while not read.skip("}"):
            if read.skip(*ENDS):
                continue
            if read.one_of("parts of a table", "comment", "chain") == "comment":
                read.once("comment", seen)
                read.comment()
            else:
                self._chain(table)
            read.end()

    def _chain(self, table: tuple[str, str]) -> None:
        read = self._reader
        name = read.name()
        read.one_of("what follows the name of a chain", "{")
        seen: set[str] = set()
        hook: dict[str, Any] = {}
        rules: list[dict[str, Any]] = []
        while not read.skip("}"):
            if read.skip(*ENDS):
                continue
            what = read.peek()
            if what in {"comment", "type", "policy"}:
                read.once(read.take(), seen)
            if what == "comment":
                read.comment()
            elif what == "type":
                hook |= self._hook()
            elif what == "policy":
                hook["policy"] = read.one_of("policies", "accept", "drop")
            else:
                rules.append(read_rule(read, table[0]))
            read.end()
        self._declare(self._ruleset[table], name, hook)
        self._ruleset[table][name].rules += rules

    def _hook(self) -> dict[str, Any]:
        read = self._reader
        kind = read.one_of("types of chains", "filter")
        read.one_of("what follows the type", "hook")
        hook = read.one_of("hooks", *_HOOKS)
        read.one_of("what follows the hook", "priority")
        priority = read.take()
        if priority not in _PRIORITIES and not is_number(priority.removeprefix("-")):
            read.refuse(f"{priority!r} is no priority that it understands")
        number = _PRIORITIES[priority] if priority in _PRIORITIES else int(priority)
        return {"type": kind, "hook": hook, "prio": number}

    def _declare(self, chains: dict[str, _Chain], name: str, hook: dict[str, Any]) -> None:
        """What the kernel makes of a chain: a new one is as written, one that is there may change its policy only."""
        there = chains.get(name)
        if there is None:
            if "policy" in hook and "type" not in hook:
                self._reader.refuse("Could not process rule: Operation not supported: a policy without a hook")
            chains[name] = _Chain(hook={"policy": "accept", **hook} if hook else {})
        elif any(there.hook.get(key) != value for key, value in hook.items() if key != "policy" or not there.hook):
            self._reader.refuse(f"Could not process rule: the chain {name} is there, with another hook or priority")
        else:
            there.hook |= hook
