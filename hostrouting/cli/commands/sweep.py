"""`hostrouting sweep`: remove the stale entries of azure-vnet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hostrouting.azure.stale_cni.sweep_report import sweep_node
from hostrouting.base.commands import BAD, DIFFERS, FAILED, FINE
from hostrouting.base.signals import CANCELLING, status_of_signal
from hostrouting.cli.command import INSTALLED, Command, switch
from hostrouting.cli.shared import DEFAULT_TIMEOUT, config_of, host_of, print_answer
from phases import Context
from phases.hosting import cancel_on_signals, reason_of

if TYPE_CHECKING:
    from argparse import Namespace

_logger = logging.getLogger("hostrouting")


def run(arguments: Namespace) -> int:
    """Remove stale entries, or only show them."""
    config = config_of(arguments)
    is_dry = arguments.dry_run
    limited = Context(timeout=arguments.timeout or DEFAULT_TIMEOUT)
    with cancel_on_signals(limited, signals=CANCELLING) as ctx:
        report = sweep_node(ctx, config, host_of(arguments), dry_run=is_dry, logger=_logger)
    arguments.verdict = report.error or "ok"
    print_answer(arguments, report.to_mapping(), report.lines(verbose=arguments.verbose))
    if report.error:
        _logger.error("%s", report.error)
        # After a signal, whatever failed did so because of it.
        reason = reason_of(ctx)
        return FAILED if reason is None else status_of_signal(reason)
    if not report.ok:
        return BAD
    return DIFFERS if is_dry and arguments.exit_code and report.changes else FINE


COMMAND = Command(
    run=run,
    summary="remove the ebtables rules and neighbours that azure-vnet left",
    position=30,
    config=INSTALLED,
    options={
        "--dry-run": switch("only show what would be removed"),
        "--exit-code": switch("with --dry-run: exit with 4 if something would be removed"),
    },
    changes=True,
)
