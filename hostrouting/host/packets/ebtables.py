"""ebtables through its programs, which alone know the meaning of their rules."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.exceptions import BackendError, PermissionDeniedError
from hostrouting.host.packets.ebtables_rules import (
    BACKENDS,
    EbtablesReading,
    EbtablesRule,
    identity,
    matches,
    parse_save,
    titles,
    why_unsafe,
)
from hostrouting.host.packets.ebtables_tools import UNSEEN, Command, RefusedError, Tools, find, legacy_may_have_rules
from phases import Context, DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_logger = logging.getLogger(__name__)

#: The time that one process may take to undo another's change: the caller's context may be over by then.
_SECONDS_TO_PUT_BACK: Final = 60.0


@attrs.frozen
class EbtablesCommand:
    """The ebtables rules of this machine, or of another place that `prefix` enters: `("ip", "netns", "exec", NAME)`.

    It implements `Ebtables`. Of identical rules in a chain it deletes the first ones, whichever were named.
    """

    prefix: Sequence[str] = ()

    def read(self, ctx: Context) -> EbtablesReading:
        """See `Ebtables.read`."""
        rules: list[EbtablesRule] = []
        notes: list[str] = []
        texts: list[tuple[str, str]] = []
        denied = False
        for backend in BACKENDS:
            if backend == "legacy" and not legacy_may_have_rules():
                continue  # a table that was never loaded has no rules
            try:
                text = find(ctx, self.prefix, backend).save(ctx)
            except UNSEEN as error:
                notes.append(str(error))
                denied |= isinstance(error, PermissionDeniedError)
            else:
                rules += parse_save(text, backend=backend)
                texts.append((backend, text))
                # "# Table `nat' contains incompatible base-chains, use 'nft' tool to list them."
                notes += [f"ebtables ({backend}): {line[2:]}" for line in text.split("\n") if "# Table `nat'" in line]
        return EbtablesReading(tuple(rules), tuple(notes), denied=denied, texts=tuple(texts))

    def delete(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """See `Ebtables.delete`."""
        change = _Change(ctx, self.prefix, rules, "deleted")
        # In the order of the chain: the program searches from its beginning, and so finds each rule at once.
        change.make([Command("-D", rule) for rule in matches(change.before, rules)])

    def insert(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """See `Ebtables.insert`."""
        change = _Change(ctx, self.prefix, rules, "inserted")
        change.make(insertions(change.before, rules))


class _Change:
    """One call of `delete` or `insert`: the rules before it, the commands done so far, and their rollback."""

    def __init__(self, ctx: Context, prefix: Sequence[str], rules: Sequence[EbtablesRule], done: str) -> None:
        ctx.check()
        for rule in rules:
            if reason := why_unsafe(rule):
                raise BackendError(f"{rule.line}: {reason}; nothing was {done}, do it by hand")
        self._ctx = ctx
        self._word = done
        self._tools = {name: find(ctx, prefix, name) for name in BACKENDS if any(r.backend == name for r in rules)}
        self.before = self._read(ctx)

    def make(self, commands: Sequence[Command]) -> None:
        """Make all of the change or nothing of it; log each batch with its `progress`: (done, total)."""
        attempted: list[Command] = []
        done = 0
        try:
            for tools, batch in self._batches(commands):
                attempted += batch
                tools.change(self._ctx, batch)
                done = len(attempted)
                fields = {"progress": (done, len(commands))}
                _logger.info("%d of %d ebtables rules %s", done, len(commands), self._word, extra=fields)
            lasting, undone = self._outcome(commands, self._read(self._ctx))
        except RefusedError as error:
            culprit = error.rule.line if error.rule else f"one of these: {_titles(attempted[done:])}"
            raise BackendError(f"not {self._word}: {culprit}: {error}\n{self._take_back(attempted[:done])}") from error
        except BaseException:
            # The context may have ended, for example, and the kernel may have got the last batch all the same.
            _logger.warning("ebtables: interrupted: %s", self._take_back(attempted))
            raise
        if undone:
            words = f"{_titles(undone)} was {self._word}, and at once it was not: something alive undoes it"
            raise BackendError(f"{words}; find and stop that first\n{self._take_back(lasting)}")

    def _outcome(self, commands: Sequence[Command], now: Iterable[EbtablesRule]) -> tuple[list[Command], list[Command]]:
        """Split the commands into those in force and those not in force, by the rules that are there now."""
        before, after = Counter(map(identity, self.before)), Counter(map(identity, now))
        # How often each rule was in fact deleted or inserted: there are identical ones.
        times = before - after if self._word == "deleted" else after - before
        lasting: list[Command] = []
        undone: list[Command] = []
        for command in commands:
            times[identity(command.rule)] -= 1
            (undone if times[identity(command.rule)] < 0 else lasting).append(command)
        return lasting, undone

    def _take_back(self, attempted: Sequence[Command]) -> str:
        """Roll back those of the commands that are in force; return a sentence about the result."""
        lasting = list(attempted)
        reasons: list[str] = []
        try:
            now = self._read(Context(timeout=_SECONDS_TO_PUT_BACK)) if attempted else []
            lasting, _ = self._outcome(attempted, now)
            if not lasting:
                return f"nothing was {self._word}"
            rules = [command.rule for command in lasting]
            if self._word == "deleted":
                back = insertions(now, rules)
            else:
                back = [Command("-D", rule) for rule in matches(now, rules)]
            for tools, batch in self._batches(back):
                reasons += _as_far_as_possible(tools, batch)
            # A second reading shows the result; the program's own reasons say more.
            still, _ = self._outcome(lasting, self._read(Context(timeout=_SECONDS_TO_PUT_BACK)))
            reasons = reasons or [command.rule.line for command in still]
        except (BackendError, DeadlineExceededError) as error:
            reasons.append(str(error))
        count = f"{len(lasting)} rules"
        if not reasons:
            return f"the {count} that had been {self._word} before it are as they were; nothing has changed"
        _logger.error("ebtables: the rollback is incomplete", extra={"reasons": reasons})
        return "\n  ".join([f"THE ROLLBACK IS INCOMPLETE, of {count} these could not be restored:", *reasons])

    def _read(self, ctx: Context) -> list[EbtablesRule]:
        """Return the rules of the backends that the change is about."""
        return [rule for backend, tools in self._tools.items() for rule in parse_save(tools.save(ctx), backend=backend)]

    def _batches(self, commands: Sequence[Command]) -> Iterator[tuple[Tools, list[Command]]]:
        for backend, tools in self._tools.items():
            mine = [command for command in commands if command.rule.backend == backend]
            for start in range(0, len(mine), tools.most):
                yield tools, mine[start : start + tools.most]


def insertions(present: Iterable[EbtablesRule], rules: Iterable[EbtablesRule]) -> list[Command]:
    """Return the commands that insert each rule at its position, as if in ascending order, or at the end of its chain.

    They are in the order of the chains, each from the last to the first. The program counts its way to a position, rule
    by rule. From the end of the chain it passes only rules that were there before, not the thousands that it has just
    inserted. To the first place and to the end it does not count at all.
    """
    layouts: dict[tuple[str, str], list[EbtablesRule | None]] = {}
    for rule in present:
        layouts.setdefault((rule.backend, rule.chain), []).append(None)
    for rule in sorted(rules, key=lambda rule: (BACKENDS.index(rule.backend), rule.chain, rule.position)):
        layout = layouts.setdefault((rule.backend, rule.chain), [])
        layout.insert(rule.position - 1 if 1 <= rule.position <= len(layout) else len(layout), rule)
    return [command for layout in layouts.values() for command in _from_the_back(layout)]


def _from_the_back(layout: list[EbtablesRule | None]) -> Iterator[Command]:
    """Yield the commands that give a chain this layout; None stands for a rule that is already there."""
    there = layout.count(None)
    end = max((number for number, rule in enumerate(layout, 1) if rule is None), default=0)
    yield from (Command("-A", rule) for rule in layout[end:] if rule is not None)
    for rule in reversed(layout[:end]):
        if rule is None:
            there -= 1
        else:
            yield Command("-I", rule, there + 1)


def _as_far_as_possible(tools: Tools, batch: Sequence[Command]) -> list[str]:
    """Run a batch, or each command alone if the batch is refused; return the refusals with their reasons."""
    reasons = []
    try:
        tools.change(Context(timeout=_SECONDS_TO_PUT_BACK), batch)
    except RefusedError as error:
        if len(batch) == 1:
            return [f"{batch[0].rule.line}: {error}"]
        for command in batch:
            reasons += _as_far_as_possible(tools, [command])
    return reasons


def _titles(commands: Sequence[Command]) -> str:
    """Return the first rule and the number of the others."""
    return titles([command.rule for command in commands])
