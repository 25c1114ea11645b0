"""The run of a command that changes the node, from its signals to the verdict after it."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Any, Final

from hostrouting.base.commands import BAD, FINE
from hostrouting.boot import Boot
from hostrouting.cli.shared import DEFAULT_TIMEOUT, context, print_answer, status_after
from hostrouting.exceptions import RouteOverlapError, sentence_of
from hostrouting.node.configure import RELEASED
from hostrouting.node.output import end_log
from hostrouting.node.status import verdict_now
from hostrouting.route_overlap import OverlapReport
from phases import run

if TYPE_CHECKING:
    from argparse import Namespace

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.node.configure import Configure, Reset
    from phases import Report

#: For the verdict after a run.
_SECONDS_TO_LOOK: Final = 10.0
_NOT_KEPT = "nothing is kept at the next boot; to remove the routes, run: hostrouting reset"
_logger = logging.getLogger("hostrouting")


def run_task(
    arguments: Namespace,
    task: Configure | Reset,
    host: Host,
    installs: HostRoutingConfig | None = None,
) -> int:
    """Run the task, print its recorded changes, and return the exit status."""
    report = _report_of(task, arguments)
    with context(_SECONDS_TO_LOOK) as ctx:
        applied = getattr(task, "applied", None) if report.ok else None
        verdict, node = verdict_now(ctx, host, installs if report.ok else None, applied)
        held = [] if report.ok else Boot(host).held(ctx)
    if arguments.live:
        verdict = _verdict_of_live(report)
    # A program is missing, or another one has changed a route since the proof.
    is_wrong = installs is not None and node is not None and node.is_wrong
    arguments.verdict = report.error or verdict
    answer: dict[str, object] = {"verdict": verdict}
    if arguments.json:
        # Its 10,000 changes take a while.
        answer |= report.to_mapping()
    answer["ok"] = report.ok and not is_wrong
    answer["overlap"] = _first_proof(report) if arguments.json else None
    account = {
        "held": held,
        "released": [change.subject for change in report.changes if change.kind == RELEASED],
        "spared": () if node is None else node.spared,
    }
    answer |= {name: value for name, value in account.items() if value}
    if report.error:
        _logger.error("%s", report.error)
        end_log(failed=True)
    print_answer(arguments, answer, [*map(str, report.changes), verdict])
    if report.error:
        return status_after(report.error)
    return BAD if is_wrong else FINE


def _report_of(task: Configure | Reset, arguments: Namespace) -> Report:
    """Run the task, and return its report; handle signals meanwhile."""
    # Like Ctrl-C: a second SIGTERM ends an undo, with a line on what is left. A run outlives its
    # terminal.
    usual = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGQUIT)
    }
    usual[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        return run(
            task, timeout=arguments.timeout or DEFAULT_TIMEOUT, handle_signals=True, logger=_logger
        )
    except KeyboardInterrupt:
        arguments.verdict = "a second signal ended the run, or its undo"
        stays = "what was changed until then stays; see: hostrouting status"
        _logger.warning("%s; %s", arguments.verdict, stays)
        raise
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def _first_proof(report: Report) -> dict[str, Any] | None:
    """Return the proof for the answer: the first that failed the run, or else that of the run."""
    failures = getattr(report.error, "failures", ())
    failed = [failure.report for failure in failures if isinstance(failure, RouteOverlapError)]
    proof = failed[0] if failed else report.result_of(OverlapReport)
    return None if proof is None else proof.to_mapping()


def _verdict_of_live(report: Report) -> str:
    """Return the verdict on a run that changed the kernel alone."""
    proof = report.result_of(OverlapReport)
    if report.error and (proof is None or proof.ok):
        # Not the proof failed, but a change, or the run was refused.
        return f"wrong: {sentence_of(report.error)}"
    state = proof.headline if proof is not None else "the routes of CONFIG are in force"
    verdict = f"wrong: {state}; run: hostrouting check CONFIG"
    if report.ok and not report.degraded:
        verdict = f"right: {state}"
    # A failed run that changed nothing has left no routes to remove.
    if report.ok or report.changes:
        verdict += f"; {_NOT_KEPT}"
    return verdict
