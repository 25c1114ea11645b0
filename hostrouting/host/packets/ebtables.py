"""ebtables through its programs, the only ones that can interpret their rules."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

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
from hostrouting.host.packets.ebtables_tools import (
    UNSEEN,
    Command,
    RefusedError,
    find,
    legacy_may_have_rules,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from phases import Context

_logger = logging.getLogger(__name__)


@attrs.frozen
class EbtablesCommand:
    """The ebtables rules of this machine, or where `prefix` leads: `("ip", "netns", "exec", NAME)`.

    It implements `Ebtables`. Of identical rules in a chain it deletes the first ones, whichever
    were named.
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
                continue  # a table that was never loaded is empty
            try:
                text = find(ctx, self.prefix, backend).save(ctx)
            except UNSEEN as error:
                notes.append(str(error))
                denied |= isinstance(error, PermissionDeniedError)
            else:
                rules += parse_save(text, backend=backend)
                texts.append((backend, text))
                # "# Table `nat' contains incompatible base-chains, use 'nft' tool to list them."
                notes += [
                    f"ebtables ({backend}): {line[2:]}"
                    for line in text.split("\n")
                    if "# Table `nat'" in line
                ]
        return EbtablesReading(tuple(rules), tuple(notes), denied=denied, texts=tuple(texts))

    def delete(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """See `Ebtables.delete`."""
        # In the order of the chain: the program searches from its beginning, and so finds each rule
        # at once.
        self._change(
            ctx,
            rules,
            "deleted",
            lambda before: [Command("-D", rule) for rule in matches(before, rules)],
        )

    def insert(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """See `Ebtables.insert`."""
        self._change(ctx, rules, "inserted", lambda before: insertions(before, rules))

    def _change(
        self,
        ctx: Context,
        rules: Sequence[EbtablesRule],
        word: str,
        plan: Callable[[list[EbtablesRule]], list[Command]],
    ) -> None:
        """Make the change, batch by batch; log each batch with its `progress`: (done, total)."""
        ctx.check()
        for rule in rules:
            if reason := why_unsafe(rule):
                raise BackendError(f"{rule.line}: {reason}; nothing was {word}, do it by hand")
        changed = {rule.backend for rule in rules}
        programs = {name: find(ctx, self.prefix, name) for name in BACKENDS if name in changed}

        def read() -> list[EbtablesRule]:
            return [
                rule
                for backend, tools in programs.items()
                for rule in parse_save(tools.save(ctx), backend=backend)
            ]

        before = read()
        commands = plan(before)
        done = 0
        for backend, tools in programs.items():
            own = [command for command in commands if command.rule.backend == backend]
            for start in range(0, len(own), tools.most):
                batch = own[start : start + tools.most]
                try:
                    tools.change(ctx, batch)
                except RefusedError as error:
                    one_of = f"one of these: {titles([command.rule for command in batch])}"
                    culprit = error.rule.line if error.rule else one_of
                    state = f"{done} rules were {word} before it" if done else f"nothing was {word}"
                    raise BackendError(f"not {word}: {culprit}: {error}\n{state}") from error
                done += len(batch)
                fields = {"progress": (done, len(commands))}
                _logger.info("%d of %d ebtables rules %s", done, len(commands), word, extra=fields)
        then, now = (Counter(map(identity, rules)) for rules in (before, read()))
        # How often each rule was in fact deleted or inserted: there are identical ones.
        times = then - now if word == "deleted" else now - then
        undone = []
        for _, rule, _ in commands:
            times[identity(rule)] -= 1
            if times[identity(rule)] < 0:
                undone.append(rule)
        if undone:
            words = f"{titles(undone)} was {word}, and at once it was not"
            raise BackendError(f"{words}: something alive undoes it; find and stop that first")


def insertions(present: Iterable[EbtablesRule], rules: Iterable[EbtablesRule]) -> list[Command]:
    """Return the commands that insert each rule at its position, or else at its chain's end.

    They are in the order of the chains, each from the last to the first. The program counts its way
    to a position, rule by rule. From the end of the chain it passes only rules that were there
    before, not the thousands that it has just inserted. To the first place and to the end it does
    not count at all.
    """
    # By the chain; None is a rule that is already there.
    layouts: dict[tuple[str, str], list[EbtablesRule | None]] = {}
    for rule in present:
        layouts.setdefault((rule.backend, rule.chain), []).append(None)
    for rule in sorted(
        rules, key=lambda rule: (BACKENDS.index(rule.backend), rule.chain, rule.position)
    ):
        layout = layouts.setdefault((rule.backend, rule.chain), [])
        layout.insert(rule.position - 1 if 1 <= rule.position <= len(layout) else len(layout), rule)
    commands: list[Command] = []
    for layout in layouts.values():
        there = layout.count(None)
        end = max((number for number, rule in enumerate(layout, 1) if rule is None), default=0)
        commands += [Command("-A", rule) for rule in layout[end:] if rule is not None]
        for place in reversed(layout[:end]):
            if place is None:
                there -= 1
            else:
                commands.append(Command("-I", place, there + 1))
    return commands
