"""The run of a command that changes the node, from its signals to the verdict after it."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.base.commands import BAD, FINE
from hostrouting.base.errors import sentence_of
from hostrouting.base.findings import RESTARTED, STARTED, NextStep
from hostrouting.base.signals import CANCELLING, status_of_signal
from hostrouting.boot.boot import Boot
from hostrouting.cli.shared import DEFAULT_TIMEOUT, explained, print_answer, refuse, status_after
from hostrouting.node.configure import RELEASED
from hostrouting.node.output import end_log
from hostrouting.node.status import verdict_now
from hostrouting.route_overlap.report import OverlapReport
from phases import CancelledError, Context, print_progress, run
from phases.hosting import cancel_on_signals, reason_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.node.configure import Configure, Reset
    from hostrouting.node.status_report import StatusReport
    from phases import Report

#: For the verdict after a run.
_SECONDS_TO_LOOK: Final = 10.0
_NOT_KEPT = "nothing is kept at the next boot; to remove the routes, run: hostrouting reset"
#: The kinds of changes of units that run now.
_STARTS: Final = (RELEASED, STARTED, RESTARTED)
_logger = logging.getLogger("hostrouting")


def run_task(
    arguments: Namespace,
    task: Configure | Reset,
    host: Host,
    installs: HostRoutingConfig | None = None,
) -> int:
    """Run the task, print its recorded changes, and return the exit status.

    The first signal cancels the run, which is undone; the second ends that at once.
    """
    # One context for the run and for the look after it: at no moment a first signal counts as the
    # second, or ends the process without a line on what stays.
    report: Report | None = None
    second = signal.default_int_handler
    with cancel_on_signals(Context(), signals=CANCELLING, second=second) as ctx:
        try:
            timeout = arguments.timeout or DEFAULT_TIMEOUT
            report = run(task, ctx, timeout=timeout, logger=_logger, observer=print_progress)
            return _answer(arguments, report, ctx, host, installs if report.ok else None)
        except KeyboardInterrupt as interrupt:
            reason = reason_of(ctx)
            if reason is None:
                raise
            ended = getattr(interrupt, "report", None)
            return _stop(arguments, reason, ended=ended, complete=report)


def _answer(
    arguments: Namespace,
    report: Report,
    ctx: Context,
    host: Host,
    installs: HostRoutingConfig | None,
) -> int:
    """Look at the node after a run, print the answer, and return the exit status."""
    # After a signal ended the run, another one may still end the look.
    look = (ctx.shielded() if ctx.cancelled else ctx).child(_SECONDS_TO_LOOK)
    applied = getattr(report.task, "applied", None) if report.ok else None
    node = verdict_now(look, host, installs, applied)
    sentence, step = node.sentence, node.step
    if arguments.live:
        sentence, step = _verdict_of_live(report, node)
    # Another user may lack the rights for it, too.
    if step and report.error and os.geteuid():
        command = step.command.replace("hostrouting apply", "sudo hostrouting apply")
        step = attrs.evolve(step, command=command)
    # A program is missing, or another program has changed a route since the check.
    is_wrong = installs is not None and node.check.is_wrong
    arguments.verdict = report.error or sentence
    answer: dict[str, object] = {}
    if arguments.json:
        held = [] if report.ok else _held(look, host)
        answer = {
            "verdict": sentence,
            "next": (step and step.command) or None,
            "step": step and step.to_mapping(),
            **report.to_mapping(),
        }
        answer["ok"] = report.ok and not is_wrong
        answer |= _account(report, node, held)
    if report.error:
        _logger.error("%s", explained(report.error, is_logged=True))
        end_log(failed=True)
    following = [f"next: {step}"] if step else []
    print_answer(arguments, answer, [*lines_of(report), sentence, *following])
    # A run that was complete before the signal, and its look, are not ended by it.
    reason = reason_of(ctx)
    if reason is not None and (report.error or look.cancelled):
        return status_of_signal(reason)
    if report.error:
        return status_after(report.error)
    return BAD if is_wrong else FINE


def _account(report: Report, node: StatusReport, held: Sequence[str]) -> dict[str, object]:
    """Return the check of a run, its held and started units, and the findings about the node."""
    released = [change.subject for change in report.changes if change.kind == RELEASED]
    found = {
        "held": held,
        "released": released,
        "spared": node.check.spared,
        "findings": node.to_mapping().get("findings"),
    }
    given = {name: value for name, value in found.items() if value}
    # A step that fails because of its check also has the check as its result.
    overlap = report.result_of(OverlapReport)
    return {"overlap": None if overlap is None else overlap.to_mapping(), **given}


def _held(ctx: Context, host: Host) -> list[str]:
    """Return the units that are held, as far as they are known."""
    try:
        return Boot(host).held(ctx)
    except CancelledError:
        return []


def _stop(
    arguments: Namespace, reason: str, *, ended: Report | None, complete: Report | None
) -> int:
    """Print what a run has done that a second signal ended, or the look after a complete one.

    Return the exit status.
    """
    arguments.verdict = "a second signal ended the run, or its undo"
    stays = "what was changed until then stays; see: hostrouting status"
    lines: list[str] = []
    if complete is not None:
        arguments.verdict = "a second signal ended the last look at the node"
        stays = "see: hostrouting status"
        lines = lines_of(complete)
    elif ended is not None:
        # The newest inverse may have done its work.
        lines = lines_of(ended, stay="these changes may stay")
    if not arguments.json:
        print_answer(arguments, {}, lines)
    return refuse(arguments, f"{arguments.verdict}; {stays}", status_of_signal(reason))


def lines_of(report: Report, *, stay: str = "these changes stay") -> list[str]:
    """Return the changes of a run as lines; if it failed, those that stay apart from the rest."""
    if report.ok:
        return [*map(str, report.changes)]
    started = [change for change in report.changes if change.kind in _STARTS]
    groups = {
        stay: [change for change in report.changes if change.kind not in _STARTS],
        "these were undone": report.undone,
        "these have started": started,
    }
    lines = []
    for heading, changes in groups.items():
        if changes:
            lines += [f"{heading}:", *(f"  {change}" for change in changes)]
    return lines


def _verdict_of_live(report: Report, seen: StatusReport) -> tuple[str, NextStep | None]:
    """Return the verdict after a run that changed the kernel alone, and the next step.

    `seen` is that of the node: its config, if one is installed, is still in force.
    """
    overlap = report.result_of(OverlapReport)
    if report.error and (overlap is None or overlap.ok):
        # A change failed rather than the check, or the run was refused.
        if not seen.absence:
            return seen.sentence, seen.step
        return f"wrong: {sentence_of(report.error)}", None
    state = overlap.headline if overlap is not None else "the routes of CONFIG are in force"
    word = "warning" if report.ok else "wrong"
    step: NextStep | None = NextStep("look", command="hostrouting check CONFIG")
    if report.ok and not report.degraded:
        word = "right"
        step = None
    # A failed run that changed nothing has left no routes to remove.
    kept = f"; {_NOT_KEPT}" if report.ok or report.changes else ""
    return f"{word}: {state}{kept}", step
