"""The command `hostrouting sweep`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hostrouting.azure.stale_cni.report import sweep_node
from hostrouting.base.commands import BAD, DIFFERS, FAILED, FINE, Answer
from phases import Context, cancel_on_signals

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host

#: Enough to wait for another run.
_SECONDS = 120.0


def run(host: Host, options: Namespace, read_config: Callable[[], HostRoutingConfig]) -> Answer:
    """Remove stale objects, or show them only."""
    config = read_config()
    with cancel_on_signals(Context(timeout=options.timeout or _SECONDS)) as ctx:
        logger = logging.getLogger("hostrouting")
        report = sweep_node(ctx, config, host, dry_run=options.dry_run, logger=logger)
    if report.error:
        status = FAILED
    elif not report.ok:
        status = BAD
    else:
        status = DIFFERS if options.dry_run and options.exit_code and report.changes else FINE
    lines = report.lines(verbose=options.verbose)
    return Answer(report.to_mapping(), lines, status, report.error)
