"""ebtables through its programs, the only ones that can interpret their rules.

Two programs share the name, and each has its own rules: that of iptables-nft, and the older
`legacy`. A machine has either or both, as `ebtables-nft` and `ebtables-legacy`, or one of them as
plain `ebtables`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import attrs

from hostrouting.base.errors import BackendError, PermissionDeniedError, ToolNotFoundError
from hostrouting.host.packets import with_sbin
from hostrouting.host.packets.ebtables_rules import (
    BACKENDS,
    EbtablesRule,
    EbtablesSnapshot,
    listing_to_save,
    parse_save,
)
from phases import CommandFailedError, Context, run_command

if TYPE_CHECKING:
    from collections.abc import Sequence


class _UnsupportedError(BackendError):
    """The kernel does not support a backend."""


#: The errors for a backend that cannot be read; each becomes a note in the result.
UNSEEN: Final = (PermissionDeniedError, ToolNotFoundError, _UnsupportedError)


@attrs.frozen
class _Tools:
    """The programs of one backend; `name` is the program to call."""

    prefix: Sequence[str]
    name: str

    backend: ClassVar[str]

    def _read(self, ctx: Context, *argv: str) -> str:
        # With `yes`, ebtables-save prints counters, and its output is never the same twice.
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
                raise _UnsupportedError(
                    f"ebtables ({self.backend}) is not supported by the kernel: {words}"
                ) from error
            raise BackendError(
                f"cannot read the rules of ebtables ({self.backend}): {error}"
            ) from error


class NftTools(_Tools):
    """ebtables-nft: a file of commands is one transaction of the kernel."""

    backend = "nft"
    #: Debian's name; other distributions use similar ones.
    package = "iptables"

    def save(self, ctx: Context) -> str:
        """Return the rules as ebtables-save prints them; raise one of `UNSEEN` on failure."""
        return self._read(ctx, f"{self.name}-save")

    def delete(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """Delete all the rules or, if one is absent or refused, none of them."""
        deletions = [" ".join(("-D", rule.chain, *rule.spec)) for rule in rules]
        # Without --noflush the program would first empty the table.
        argv = [*self.prefix, f"{self.name}-restore", "--noflush"]
        script = "\n".join(["*nat", *deletions, "COMMIT", ""])
        try:
            run_command(ctx, argv, input=script, env=with_sbin())
        except CommandFailedError as error:
            raise BackendError(
                f"none of {len(rules)} ebtables rules (nft) was deleted: {_words(error)}"
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

    def save(self, ctx: Context) -> str:
        """See `NftTools.save`."""
        # Not ebtables-legacy-save: it calls /usr/sbin/ebtables, which may be ebtables-nft.
        return listing_to_save(self._read(ctx, self.name, "-t", "nat", "-L"))

    def delete(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """Delete the rules one by one, up to the first that is absent or refused."""
        for rule in rules:
            words = ["--concurrent", "-t", "nat", "-D", rule.chain, *rule.spec]
            try:
                run_command(ctx, [*self.prefix, self.name, *words], env=with_sbin())
            except CommandFailedError as error:
                raise BackendError(f"not deleted: {rule}: {_words(error)}") from error


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
    """Return False if the kernel has no legacy table `nat`, because no program has requested it.

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


@attrs.frozen
class EbtablesCommand:
    """The ebtables rules of this machine, or where `prefix` leads: `("ip", "netns", "exec", NAME)`.

    It implements `Ebtables`.
    """

    prefix: Sequence[str] = ()

    def read(self, ctx: Context) -> EbtablesSnapshot:
        """See `Ebtables.read`."""
        rules = []
        notes = []
        texts = []
        programs = []
        denied = False
        for backend in BACKENDS:
            if backend == "legacy" and not legacy_may_have_rules():
                continue  # a table that was never loaded is empty
            try:
                tools = find(ctx, self.prefix, backend)
                text = tools.save(ctx)
            except UNSEEN as error:
                notes.append(str(error))
                denied |= isinstance(error, PermissionDeniedError)
                continue
            rules += parse_save(text, backend=backend)
            texts.append((backend, text))
            programs.append((backend, tools.name))
            # "# Table `nat' contains incompatible base-chains, use 'nft' tool to list them."
            notes += [
                f"ebtables ({backend}): {line[2:]}"
                for line in text.split("\n")
                if "# Table `nat'" in line
            ]
        return EbtablesSnapshot(
            tuple(rules),
            tuple(notes),
            denied=denied,
            texts=tuple(texts),
            programs=tuple(programs),
        )

    def delete(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """See `Ebtables.delete`."""
        for backend in BACKENDS:
            if own := [rule for rule in rules if rule.backend == backend]:
                find(ctx, self.prefix, backend).delete(ctx, own)
