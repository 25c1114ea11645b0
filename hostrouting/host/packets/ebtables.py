"""ebtables through its programs, the only ones that can interpret their rules.

Two programs share the name, and each has its own rules: that of iptables-nft, and the older
`legacy`. A machine has either or both, as `ebtables-nft` and `ebtables-legacy`, or one of them as
plain `ebtables`.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias

import attrs

from hostrouting.base.errors import BackendError, PermissionDeniedError, ToolNotFoundError
from hostrouting.host.packets import with_sbin
from hostrouting.host.packets.ebtables_rules import (
    BACKENDS,
    EbtablesReading,
    EbtablesRule,
    arguments,
    identity,
    listing_to_save,
    matches,
    parse_save,
    titles,
    why_unsafe,
)
from phases import CommandFailedError, Context, run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class TableCommand(NamedTuple):
    """One command in the table `nat`: `-D`, `-A`, or `-I` at a position."""

    verb: str
    rule: EbtablesRule
    position: int | None = None

    @property
    def words(self) -> list[str]:
        """The command without the rule's description."""
        position = [] if self.position is None else [str(self.position)]
        return [self.verb, self.rule.chain, *position]


class UnsupportedError(BackendError):
    """The kernel does not support a backend."""


#: The errors for a backend that cannot be read: a note in a reading, and a refusal of a change.
UNSEEN: Final = (PermissionDeniedError, ToolNotFoundError, UnsupportedError)


class RefusedError(Exception):
    """The program refused a change, in its own words; `rule` is the refused one, if known."""

    def __init__(self, words: str, rule: EbtablesRule | None) -> None:
        self.rule = rule
        super().__init__(words)


@attrs.frozen
class _Tools:
    """The programs of one backend; `name` is the program to call."""

    prefix: Sequence[str]
    name: str

    backend: ClassVar[str]

    def _read(self, ctx: Context, *argv: str) -> str:
        # With `yes`, ebtables-save prints counters, and no two readings are the same.
        environment = {**with_sbin(), "EBTABLES_SAVE_COUNTER": "no"}
        try:
            return run_command(ctx, [*self.prefix, *argv], env=environment).stdout
        except CommandFailedError as error:
            words = _words(error)
            if re.search(r"Permission denied|right permissions|Operation not permitted", words):
                raise PermissionDeniedError(
                    f"ebtables ({self.backend}) may not be read without CAP_NET_ADMIN: {words}"
                ) from error
            if "not support" in words or "doesn't support" in words:
                raise UnsupportedError(
                    f"ebtables ({self.backend}) is not supported by the kernel: {words}"
                ) from error
            raise BackendError(
                f"cannot read the rules of ebtables ({self.backend}): {error}"
            ) from error


class NftTools(_Tools):
    """ebtables-nft: a file of up to a thousand commands is one transaction of the kernel."""

    backend = "nft"
    #: Debian's name; other distributions use similar ones.
    package = "iptables"
    #: The most commands for one process, which does all of them or nothing. One process takes
    #: 10,000 as well, but reports no progress then, and one refusal costs the whole time.
    most = 1000

    def save(self, ctx: Context) -> str:
        """Return the rules as ebtables-save prints them; raise one of `UNSEEN` on failure."""
        return self._read(ctx, f"{self.name}-save")

    def change(self, ctx: Context, commands: Sequence[TableCommand]) -> None:
        """Run up to `most` commands, or raise RefusedError and run none of them."""
        lines = [" ".join([*command.words, *command.rule.spec]) for command in commands]
        # Without --noflush the program would first empty the table.
        argv = [*self.prefix, f"{self.name}-restore", "--noflush"]
        try:
            run_command(ctx, argv, input="\n".join(["*nat", *lines, "COMMIT", ""]), env=with_sbin())
        except CommandFailedError as error:
            words = _words(error)
            # `line 3 failed: Bad rule`, `line 3: RULE_APPEND failed`, `Error occurred at line: 3`;
            # `*nat` is line 1. If the kernel refuses a deletion (1.8.9 does for some rules with
            # --among), the line may be another rule's.
            line = re.search(r"line:? (\d+)\b(?!: RULE_DELETE)", words)
            index = int(line[1]) - 2 if line else -1
            raise RefusedError(
                words, commands[index].rule if 0 <= index < len(commands) else None
            ) from error


class LegacyTools(_Tools):
    """The legacy ebtables: a process for each rule.

    It could change a file and commit that (`--atomic-commit`), but would lose the rules that
    another program adds in between: the kernel replaces the whole table, for one rule too. So the
    time between reading and writing must be short. `--concurrent` takes the lock that other users
    of the program may take.
    """

    backend = "legacy"
    package = "ebtables"
    most = 1

    def save(self, ctx: Context) -> str:
        """See `NftTools.save`."""
        # Not ebtables-legacy-save: it calls /usr/sbin/ebtables, which may be ebtables-nft.
        return listing_to_save(self._read(ctx, self.name, "-t", "nat", "-L"))

    def change(self, ctx: Context, commands: Sequence[TableCommand]) -> None:
        """See `NftTools.change`."""
        for command in commands:
            words = [*command.words, *arguments(command.rule)]
            argv = [*self.prefix, self.name, "--concurrent", "-t", "nat", *words]
            try:
                run_command(ctx, argv, env=with_sbin())
            except CommandFailedError as error:
                raise RefusedError(_words(error), command.rule) from error


Tools: TypeAlias = NftTools | LegacyTools


def find(ctx: Context, prefix: Sequence[str], backend: str) -> Tools:
    """Return the programs of a backend by any name; raise ToolNotFoundError without any."""
    kind = NftTools if backend == NftTools.backend else LegacyTools
    for name in (f"ebtables-{backend}", "ebtables"):
        version = _version(ctx, prefix, name)
        if version is None:
            continue
        # The legacy program's answer depends on its version: `v2.0.11 (legacy)`, `v2.0.10-4`.
        found = NftTools if "nf_tables" in version else LegacyTools
        if found is kind:
            return kind(prefix, name)
    purpose = f"to see the rules of ebtables ({backend}), if there are any"
    raise ToolNotFoundError(f"ebtables-{backend}", package=kind.package, purpose=purpose)


def legacy_may_have_rules(modules: str = "/proc/modules", built_in: str | None = None) -> bool:
    """Return False if the kernel lacks the legacy table `nat` and no program has requested it yet.

    A request for the table makes the kernel load its module and hook it into every bridge, so a
    reader must not send one. A table that was never loaded is empty.
    """
    try:
        loaded = Path(modules).read_text()
    except OSError:
        return True  # a kernel without modules has the table, or refuses the request for it
    if re.search(r"^ebtable_nat ", loaded, re.MULTILINE):
        return True
    try:
        built_in = built_in or f"/lib/modules/{os.uname().release}/modules.builtin"
        return "/ebtable_nat.ko" in Path(built_in).read_text()
    except OSError:
        return False


def _version(ctx: Context, prefix: Sequence[str], name: str) -> str | None:
    """Return the program's version line; None if it is not installed."""
    try:
        return run_command(ctx, [*prefix, name, "--version"], env=with_sbin()).stdout
    except CommandFailedError as error:
        # The programs that run it elsewhere (ip, nsenter, env) name it in their errors, and none
        # begins with that name.
        missing = any(
            name in line and not line.startswith(name) and "No such file or directory" in line
            for line in error.stderr.splitlines()
        )
        if missing or (error.status is None and not prefix):
            return None
        raise BackendError(f"cannot run ebtables: {error}") from error


def _words(error: CommandFailedError) -> str:
    """Return the program's words in one line, without its advice to read the help."""
    lines = (line.strip() for line in (error.stderr or error.stdout).splitlines())
    return " ".join(line for line in lines if line and not line.startswith("Try `")) or str(error)


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
        rules = []
        notes = []
        texts = []
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
            lambda before: [TableCommand("-D", rule) for rule in matches(before, rules)],
        )

    def insert(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """See `Ebtables.insert`."""
        self._change(ctx, rules, "inserted", lambda before: insertions(before, rules))

    def _change(
        self,
        ctx: Context,
        rules: Sequence[EbtablesRule],
        word: str,
        plan: Callable[[list[EbtablesRule]], list[TableCommand]],
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
            raise BackendError(
                f"{titles(undone)} was {word}, and at once it was not: something alive undoes it; "
                "find and stop that first"
            )


def insertions(
    present: Iterable[EbtablesRule], rules: Iterable[EbtablesRule]
) -> list[TableCommand]:
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
    commands = []
    for layout in layouts.values():
        there = layout.count(None)
        end = max((number for number, rule in enumerate(layout, 1) if rule is None), default=0)
        commands += [TableCommand("-A", rule) for rule in layout[end:] if rule is not None]
        for place in reversed(layout[:end]):
            if place is None:
                there -= 1
            else:
                commands.append(TableCommand("-I", place, there + 1))
    return commands
