"""The run of a command that changes the node, from its signals to the verdict after it."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import BAD, FINE
from hostrouting.boot import Boot
from hostrouting.cli.shared import DEFAULT_TIMEOUT, context, print_answer, status_after
from hostrouting.exceptions import RouteOverlapError, sentence_of
from hostrouting.node.configure import RELEASED
from hostrouting.node.output import end_log
from hostrouting.node.status import verdict_now
from phases import run

if TYPE_CHECKING:
    from argparse import Namespace

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.node.configure import Configure, Reset

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
    # Like Ctrl-C: a second SIGTERM ends an undo, with a line on what is left. A run outlives its
    # terminal.
    usual = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGQUIT)
    }
    usual[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        report = run(
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
    failures = getattr(report.error, "failures", ())
    proofs = [failure.report for failure in failures if isinstance(failure, RouteOverlapError)]
    results = [child.result for child in report.children if child.result is not None]
    proofs += results
    changes = report.changes
    with context(_SECONDS_TO_LOOK) as ctx:
        applied = getattr(task, "applied", None) if report.ok else None
        verdict, node = verdict_now(ctx, host, installs if report.ok else None, applied)
        held = [] if report.ok else Boot(host).held(ctx)
    if arguments.live:
        state = results[-1].headline if results else "the routes of CONFIG are in force"
        is_right = report.ok and not report.degraded
        word, step = ("right", "") if is_right else ("wrong", "; run: hostrouting check CONFIG")
        verdict = f"{word}: {state}{step}"
        # A failed run that changed nothing has left no routes to remove.
        if report.ok or changes:
            verdict += f"; {_NOT_KEPT}"
        if report.error and all(proof.ok for proof in results):
            # Not the proof failed, but a change, or the run was refused.
            verdict = f"wrong: {sentence_of(report.error)}"
    account = {
        "held": held,
        "released": [change.subject for change in changes if change.kind == RELEASED],
        "spared": () if node is None else node.spared,
    }
    # Its 10,000 changes take a while.
    tree = report.to_mapping() if arguments.json else {}
    overlap = proofs[0].to_mapping() if proofs and arguments.json else None
    # A program is missing, or another one has changed a route since the proof.
    is_wrong = installs is not None and node is not None and node.is_wrong
    answer = {"verdict": verdict, **tree, "ok": report.ok and not is_wrong, "overlap": overlap}
    answer |= {name: value for name, value in account.items() if value}
    arguments.verdict = report.error or verdict
    if report.error:
        _logger.error("%s", report.error)
        end_log(failed=True)
    print_answer(arguments, answer, [*map(str, changes), verdict])
    if report.error:
        return status_after(report.error)
    return BAD if is_wrong else FINE
