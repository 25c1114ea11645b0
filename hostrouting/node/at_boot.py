"""The program of a boot; see `hostrouting.boot.program`.

    python3 -I -S hostrouting.zip VERB

    routes      bring the routes into force; the first runs of a boot wait for what may be late
    check       check the expected CIDRs; the first runs of a boot wait as well
    ask MODE    do both at once, for a gate of this mode, and do not wait
    try         show that this Python can run the program

The exit status is that of the `BootVerdict`. After any other failure it is 12, and the reason is a
line on stdout.

The program has no options and no log of its own, so that it starts quickly.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import suppress
from importlib.util import MAGIC_NUMBER
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.base.commands import CHECK, printable
from hostrouting.base.errors import HostFileError, HostRoutingError
from hostrouting.boot.installed_config import applied_config
from hostrouting.boot.layout import ANSWER, CONFIG_PATH, SCRIPT_DIRECTORY, WAIT_SECONDS, WAITED
from hostrouting.config.sections import OverlapMode
from hostrouting.host import Host
from hostrouting.host.cached_routing import with_cached_routing
from hostrouting.host.files.lock import FileLock
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.offline import late
from hostrouting.route_overlap.script import LOGGED, MARKER_DETECTED
from hostrouting.route_overlap.waiting import check_once, leave_marker
from phases import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn, TypeAlias

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import FileStore
    from hostrouting.route_overlap.report import OverlapReport
    from hostrouting.route_overlap.waiting import Checked

    Verb: TypeAlias = Callable[[Context, HostRoutingConfig, Host], "BootVerdict"]

#: The exit statuses of an answer: units may start, or they may not.
RIGHT: Final = 10
WRONG: Final = 11
#: The program could not answer.
FAILED: Final = 12
#: The priorities of the journal.
ERROR: Final = 3
WARNING: Final = 4
NOTICE: Final = 5
#: A daemon may have filled an expected CIDR with routes: too many lines hide the cause.
_MOST_LINES = 10
#: The bytes of a program that contain its interpreter and the magic number of its bytecode.
_LONGEST_HEAD = 4096
_HELD = (
    "The mode is STRICT: units that wait for hostrouting-ready.service start once routing is right."
)


class BootVerdict(NamedTuple):
    """The answer about the routes, or about the check."""

    status: int
    text: str
    priority: int = NOTICE
    #: The file with the last text: the journal gets a text only if it is a different one.
    logged: str = ""
    #: What was changed: printed before the text, every time.
    changes: tuple[str, ...] = ()
    #: The first fact, on one line; empty if it is the first line of the text.
    fact: str = ""
    #: Why a second may help; empty if it does not.
    early: str = ""

    @property
    def first_fact(self) -> str:
        """The first fact, on one line."""
        return printable(self.fact or self.text.partition("\n")[0])


def main(renewed: str) -> NoReturn:
    """Run the verb of this process's arguments, and end the process with its status.

    `renewed` is the path of a program with the bytecode of this Python, empty for none.
    """
    try:
        host = this_node()
        folder = sys.argv[0].rpartition("/")[0]
        # The script of the gates marks its lines itself.
        is_journal = sys.argv[1] != "ask" and bool(os.environ.get("JOURNAL_STREAM"))
        status, lines = answer(sys.argv[1:], host, folder, is_journal=is_journal)
        for priority, line in lines:
            mark = f"<{priority}>" if is_journal else ""
            sys.stdout.write(f"{mark}{line}\n")
        sys.stdout.flush()
        if renewed:
            _renew(host.files, renewed)
    # Whatever it is must not end with the status of an answer.
    except BaseException as error:  # noqa: BLE001
        status = FAILED
        os.write(1, f"{reason_of(error)}\n".encode())
    gc.freeze()
    sys.exit(status)


def _renew(files: FileStore, renewed: str) -> None:
    """Write a program with the bytecode of this Python for later starts during this boot.

    Compiling the sources takes more than twice as long as everything else.
    """
    head = files.read(sys.argv[0], limit=_LONGEST_HEAD) or b""
    if MAGIC_NUMBER.hex().encode() in head or files.exists(renewed):
        return
    # Imported here because it is only needed after an upgrade of Python.
    from hostrouting.boot.program import new_program

    # Without it, the next start compiles them again.
    with suppress(Exception):
        files.write(renewed, new_program(sys.executable), mode=0o600)


def reason_of(error: BaseException) -> str:
    """Return the reason why the program cannot answer, as one line."""
    text = "; ".join(line.strip() for line in str(error).splitlines())
    named = text if isinstance(error, HostRoutingError) else f"{type(error).__name__}: {text}"
    return printable(named)


def this_node() -> Host:
    """Return this machine with the ports that the verbs need: Host.live() takes 5 ms longer."""
    return Host(
        routes=NetlinkBackend(),
        files=RootedFiles(),
        lock=FileLock(),
        # For units of `after` only.
        services=late("systemd.systemctl", "Systemctl"),
    )


def answer(
    words: Sequence[str],
    host: Host,
    folder: str = SCRIPT_DIRECTORY,
    *,
    is_journal: bool = True,
) -> tuple[int, list[tuple[int, str]]]:
    """Return the exit status for the arguments of the program, and its lines with priorities.

    The config is in the directory of the program, because another config may be in force a moment
    later. The journal gets a text only once; a person who runs a script always gets it.
    """
    verb, *modes = words
    if verb == "try":
        return RIGHT, [(NOTICE, "the program runs")]
    config = applied_config(host.files, folder)
    if verb == "ask":
        return _ask(config, host, OverlapMode[modes[0]])
    verdict = _waiting(VERBS[verb], config, host)
    if is_journal:
        return verdict.status, log_lines(verdict, host)
    text = "\n".join([*verdict.changes, verdict.text])
    return verdict.status, [(NOTICE, line) for line in printable(text, kept="\n").split("\n")]


def _waiting(verb: Verb, config: HostRoutingConfig, host: Host) -> BootVerdict:
    """Return the answer of a verb; in the first seconds of a boot, wait for what may be late."""
    ends = _end(host)
    is_logged = False
    while True:
        verdict = verb(Context(timeout=WAIT_SECONDS), config, host)
        left = ends - time.clock_gettime(time.CLOCK_BOOTTIME)
        if not verdict.early or left <= 0:
            return verdict
        if not is_logged:
            mark = f"<{WARNING}>" if os.environ.get("JOURNAL_STREAM") else ""
            text = f"waiting up to {ceil(left)} s: {printable(verdict.early)}"
            os.write(2, f"{mark}{text}\n".encode())
            is_logged = True
        time.sleep(min(1, left))


def _end(host: Host) -> float:
    """Return the second of this boot in which its waits end; the first run writes it."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    noted = (host.files.read(WAITED) or b"").strip()
    if noted.isdigit():
        return min(float(noted), now + WAIT_SECONDS)
    try:
        host.files.write(WAITED, b"%d\n" % (now + WAIT_SECONDS), mode=0o644)
    except HostFileError:
        # Otherwise, every later start would wait again.
        return now
    return now + WAIT_SECONDS


def _ask(
    config: HostRoutingConfig, host: Host, mode: OverlapMode
) -> tuple[int, list[tuple[int, str]]]:
    """Repair the routes, check them, and note the answer for the gates that ask meanwhile."""
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    ctx = Context(timeout=WAIT_SECONDS)
    # One snapshot for both, unless the repair changes routes.
    node = with_cached_routing(host)
    verdicts = []
    if config.static_routes.routes:
        verdicts.append(_routes(ctx, config, node))
    if config.route_overlap.cidrs and all(verdict.status == RIGHT for verdict in verdicts):
        if config.route_overlap.mode is not mode:
            overlap = attrs.evolve(config.route_overlap, mode=mode)
            config = attrs.evolve(config, route_overlap=overlap)
        verdicts.append(_judged(ctx, host, check_once(ctx, config, node), mode))
    status = max((verdict.status for verdict in verdicts), default=RIGHT)
    lines = []
    reason = ""
    for verdict in verdicts:
        if verdict.status != RIGHT:
            since = known_since(verdict, host) or time.strftime("%H:%M")
            reason = f"as before, since {since}: {verdict.first_fact}"
        lines += log_lines(verdict, host)
    # As in /proc/uptime, with which the gates compare it.
    text = f"{int(began * 100) / 100:.2f} {mode} {status}\n{reason}\n"
    # Without it, each gate checks.
    with suppress(HostFileError):
        host.files.write(ANSWER, text.encode(), mode=0o600)
    return status, [line for line in lines if line[0] <= WARNING]


def known_since(verdict: BootVerdict, host: Host) -> str:
    """Return the time since when the journal has the text of a verdict; empty if it is new."""
    text = printable(verdict.text, kept="\n")
    if not verdict.logged or host.files.read(verdict.logged) != text.encode():
        return ""
    return time.strftime("%H:%M", time.localtime(host.files.modified(verdict.logged)))


def log_lines(verdict: BootVerdict, host: Host) -> list[tuple[int, str]]:
    """Return the lines to print, with priorities; a text is not repeated until it changes."""
    changes = [(WARNING, printable(change)) for change in verdict.changes]
    if since := known_since(verdict, host):
        # Each failure has a line.
        again = (ERROR, f"as before, since {since}: {verdict.first_fact}")
        return [*changes, again] if verdict.priority <= ERROR else changes
    text = printable(verdict.text, kept="\n")
    with suppress(HostFileError):
        host.files.write(verdict.logged, text.encode(), mode=0o644)
    return [*changes, *((verdict.priority, line) for line in text.split("\n"))]


# --- the verbs


def _check(ctx: Context, config: HostRoutingConfig, host: Host) -> BootVerdict:
    """Check the expected CIDRs, and write the marker."""
    if not config.route_overlap.cidrs:
        # Success would mean nothing. Only the script of another config runs this.
        raise HostFileError(f"{CONFIG_PATH} has no expected CIDRs; apply the config again")
    return _judged(ctx, host, check_once(ctx, config, host), config.route_overlap.mode)


def _judged(ctx: Context, host: Host, checked: Checked, mode: OverlapMode) -> BootVerdict:
    """Write the marker of a check, and return its answer under a mode."""
    report, reason, _ = checked
    text = _verdict_of(report)
    fact = "" if report.is_correct else report.lines()[0]
    try:
        leave_marker(ctx, host, report)
    except HostFileError as error:
        # The answer is the same on a full disk.
        text = f"{text}\nwarning: the marker of the check is out of date: {error}"
    if report.ok:
        is_late = any(note.kind == "late-unit" for note in report.notes)
        return BootVerdict(RIGHT, text, WARNING if is_late else NOTICE, LOGGED, early=reason)
    if mode is not OverlapMode.STRICT:
        return BootVerdict(RIGHT, text, WARNING, LOGGED, fact=fact, early=reason)
    return BootVerdict(WRONG, f"{text}\n{_HELD}", ERROR, LOGGED, fact=fact, early=reason)


def _verdict_of(report: OverlapReport) -> str:
    """Return a few lines about a check; the marker has all findings."""
    lines = [] if report.refusals else [report.headline]
    if not report.is_correct:
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


def _routes(ctx: Context, config: HostRoutingConfig, host: Host) -> BootVerdict:
    """Bring the static routes into force, as far as the node allows now."""
    # Imported here because a node without routes needs none of it.
    from hostrouting.static_routes.at_boot import repair_once
    from hostrouting.static_routes.script import LOGGED as ROUTES_LOGGED

    outcome = repair_once(ctx, config, host)
    # The first run of a boot adds routes, and repairs none.
    is_boot = host.files.read(ROUTES_LOGGED) is None
    made = () if is_boot else outcome.changes
    changes = [f"repaired: {change}" for change in made[:_MOST_LINES]]
    if len(made) > _MOST_LINES:
        changes.append(f"repaired: {len(made) - _MOST_LINES} more routes")
    if outcome.refusals:
        text = "\n".join(f"refused: {reason}" for reason in outcome.refusals)
        early = outcome.refusals[0] if outcome.may_heal else ""
        return BootVerdict(WRONG, text, ERROR, ROUTES_LOGGED, tuple(changes), early=early)
    text = f"routes in force: {outcome.wanted}"
    return BootVerdict(RIGHT, text, NOTICE, ROUTES_LOGGED, tuple(changes))


#: The verbs of the units, by the first argument of the program.
VERBS: Final[Mapping[str, Verb]] = {"check": _check, "routes": _routes}
