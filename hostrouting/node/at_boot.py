"""The program that the boot scripts run where routing is not plain; see `hostrouting.boot.program`.

    python3 -IS hostrouting.zip VERB WORD [wait] [ask]

WORD is what the script could not answer, for people who list processes. With `wait` the script may
wait a second, and ask again. With `ask` values precede the text, as in `finish` of the scripts. The
program ends with the status of its `BootVerdict`, which it prints as the scripts print theirs.
Whatever else happens ends with another status, and the reason in a line on stdout, for the script's
own verdict.

It has no options and no log of its own, so that it begins at once.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.base.commands import CHECK, printable
from hostrouting.base.errors import HostFileError, HostRoutingError
from hostrouting.boot.intent import require_intent
from hostrouting.boot.layout import INTENT_PATH, WAIT_SECONDS
from hostrouting.boot.recorded import RecordedFiles
from hostrouting.config.sections import OverlapMode
from hostrouting.host import Host
from hostrouting.host.files.lock import FileLock
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.offline import late
from hostrouting.route_overlap.look import leave_marker, look_once
from hostrouting.route_overlap.script import LOGGED, MARKER_DETECTED
from phases import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn, TypeAlias

    from hostrouting.route_overlap.proven import OverlapReport

    Verb: TypeAlias = Callable[[Context, Host, bool], "BootVerdict"]

#: The exit statuses that are answers: right, wrong, and wrong now, but a second may help.
RIGHT: Final = 10
WRONG: Final = 11
EARLY: Final = 14
#: The program could not answer.
FAILED: Final = 12
#: The priorities of the journal.
ERROR: Final = 3
WARNING: Final = 4
NOTICE: Final = 5
#: A daemon may have filled an expected CIDR with routes: too many lines hide the cause.
_MOST_LINES = 10
_HELD = (
    "The mode is STRICT: units that wait for hostrouting-ready.service start once routing is right."
)


class BootVerdict(NamedTuple):
    """An answer: its exit status, the priority of its text, and the file with the last text."""

    status: int
    text: str
    priority: int = NOTICE
    #: The journal gets a text only if it differs from that in this file.
    logged: str = ""
    #: What was changed: lines before the text, each time.
    changes: tuple[str, ...] = ()
    #: The first fact in a line; empty if that is the first line of the text.
    fact: str = ""

    @property
    def first_fact(self) -> str:
        """The first fact in a line."""
        return printable(self.fact or self.text.partition("\n")[0])


def main() -> NoReturn:
    """Run the verb of this process's arguments, and end the process with its status."""
    # As in hostrouting.__main__: all garbage ends with this process.
    gc.disable()
    words = sys.argv[1:]
    is_journal = bool(os.environ.get("JOURNAL_STREAM"))
    try:
        host = this_node()
        verdict = answer(words, host)
        since = known_since(verdict, host) if is_journal else ""
        values = f"\36{since}\36{verdict.first_fact}\36" if "ask" in words[2:] else ""
        lines = log_lines(verdict, host, is_journal=is_journal)
        sys.stdout.write(values + "".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        status = verdict.status
    # Whatever it is must not end with the status of an answer.
    except BaseException as error:  # noqa: BLE001
        status = FAILED
        os.write(1, f"{reason_of(error)}\n".encode())
    gc.freeze()
    sys.exit(status)


def reason_of(error: BaseException) -> str:
    """Return the reason why the program cannot answer, as one line for the script's verdict."""
    text = "; ".join(line.strip() for line in str(error).splitlines())
    named = text if isinstance(error, HostRoutingError) else f"{type(error).__name__}: {text}"
    return printable(named)


def this_node() -> Host:
    """Return this machine, with the ports that the verbs need: Host.live() takes 5 ms more."""
    return Host(
        routes=NetlinkBackend(),
        files=RootedFiles(),
        lock=FileLock(),
        # For units of `after` only.
        services=late("systemd.systemctl", "Systemctl"),
    )


def answer(words: Sequence[str], host: Host) -> BootVerdict:
    """Return the answer to the arguments of the program."""
    verb, _word, *options = words
    return VERBS[verb](Context(timeout=WAIT_SECONDS), host, "wait" in options)


def known_since(verdict: BootVerdict, host: Host) -> str:
    """Return the time since when the journal has the text of a verdict; empty if it is new."""
    text = printable(verdict.text, kept="\n")
    if not verdict.logged or host.files.read(verdict.logged) != text.encode():
        return ""
    return time.strftime("%H:%M", time.localtime(host.files.modified(verdict.logged)))


def log_lines(verdict: BootVerdict, host: Host, *, is_journal: bool) -> list[str]:
    """Return the lines to print; a text that the journal has is not logged until it changes."""
    text = printable(verdict.text, kept="\n")
    lines = text.split("\n")
    changes = [printable(change) for change in verdict.changes]
    if not is_journal or not verdict.logged:
        return [*changes, *lines]
    changes = [f"<{WARNING}>{change}" for change in changes]
    since = known_since(verdict, host)
    if not since:
        with suppress(HostFileError):
            host.files.write(verdict.logged, text.encode(), mode=0o644)
        return [*changes, *(f"<{verdict.priority}>{line}" for line in lines)]
    if verdict.priority > ERROR:
        return changes
    # Each failure has a line.
    return [*changes, f"<{ERROR}>as before, since {since}: {verdict.first_fact}"]


# --- the verbs


def _check(ctx: Context, host: Host, may_wait: bool) -> BootVerdict:
    """Prove the expected CIDRs, and write the marker."""
    config = require_intent(host)
    if not config.route_overlap.cidrs:
        # A yes would prove nothing. Only the script of another config runs this.
        raise HostFileError(f"{INTENT_PATH} has no expected CIDRs; apply the config again")
    report, reason, _ = look_once(ctx, config, host)
    if reason and may_wait:
        return BootVerdict(EARLY, reason)
    text = _verdict_of(report)
    fact = "" if report.is_proven else report.lines()[0]
    try:
        leave_marker(RecordedFiles(ctx, host), report)
    except HostFileError as error:
        # The answer is the same on a full disk.
        text = f"{text}\nwarning: the marker of the check is out of date: {error}"
    if report.ok:
        is_late = any(note.kind == "late-unit" for note in report.notes)
        return BootVerdict(RIGHT, text, WARNING if is_late else NOTICE, LOGGED)
    if config.route_overlap.mode is not OverlapMode.STRICT:
        return BootVerdict(WRONG, text, WARNING, LOGGED, fact=fact)
    return BootVerdict(WRONG, f"{text}\n{_HELD}", ERROR, LOGGED, fact=fact)


def _verdict_of(report: OverlapReport) -> str:
    """Return a few lines about a proof; the marker has all findings."""
    lines = [] if report.refusals else [report.headline]
    if not report.is_proven:
        findings = report.lines()
        lines = [f"{report.headline}:", *(f"  {line}" for line in findings[:_MOST_LINES])]
        if len(findings) > _MOST_LINES:
            lines.append(f"  and {len(findings) - _MOST_LINES} more in {MARKER_DETECTED}")
        lines += [note.text for note in report.explanations]
        lines.append(f"for the routes that help: {CHECK}")
    shown = {note.text for note in report.explanations}
    warnings = [note for note in report.notes if note.severity == "warning"]
    lines += report.refusals
    lines += [f"warning: {note.text}" for note in warnings if note.text not in shown]
    return "\n".join(lines)


def _routes(ctx: Context, host: Host, may_wait: bool) -> BootVerdict:
    """Bring the static routes into force, as far as the node allows now."""
    # Imported late: the check of a boot runs more often.
    from hostrouting.static_routes.at_boot import repair_once
    from hostrouting.static_routes.script import LOGGED as ROUTES_LOGGED

    outcome = repair_once(ctx, host)
    if outcome.may_heal and may_wait:
        return BootVerdict(EARLY, outcome.refusals[0])
    # The first run of a boot adds routes, and repairs none.
    is_boot = host.files.read(ROUTES_LOGGED) is None
    changes = () if is_boot else tuple(f"repaired: {change}" for change in outcome.changes)
    if outcome.refusals:
        text = "\n".join(f"refused: {reason}" for reason in outcome.refusals)
        return BootVerdict(WRONG, text, ERROR, ROUTES_LOGGED, changes)
    text = f"routes in force: {outcome.wanted}"
    return BootVerdict(RIGHT, text, NOTICE, ROUTES_LOGGED, changes)


def _try(_ctx: Context, _host: Host, _may_wait: bool) -> BootVerdict:
    """Show that this interpreter runs the program."""
    return BootVerdict(RIGHT, "the program runs")


#: The functions that answer, by the first argument of the program.
VERBS: Final[Mapping[str, Verb]] = {"check": _check, "routes": _routes, "try": _try}
