"""The ebtables rules of a machine in memory: an `Ebtables` to inspect and to break."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import BackendError, PermissionDeniedError
from hostrouting.host.packets.ebtables_rules import (
    BACKENDS,
    EbtablesReading,
    EbtablesRule,
    matches,
    parse_save,
    titles,
    why_unsafe,
)
from hostrouting.testing.faults import Faulty

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from phases import Context

__all__ = ["MemoryEbtables"]

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
        texts = ((backend, self._text(backend)) for backend in BACKENDS)
        return EbtablesReading(tuple(self._rules()), tuple(self.notes), texts=tuple(texts))

    def delete(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """See `Ebtables.delete`."""
        self._begin_change(ctx, "delete", rules)
        found, absent = matches(self._rules(), rules)
        if absent:
            raise BackendError(f"nothing was deleted: {titles(absent)} is not there (any more)")
        for rule in reversed(found):
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
