"""`hostrouting apply`: fix the node, now and for every boot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.base.commands import USAGE
from hostrouting.cli.changing import run_task
from hostrouting.cli.command import ROOT, Command, switch
from hostrouting.cli.commands.plan import log_notices, show_plan
from hostrouting.cli.shared import context, host_of, new_config_of, refuse
from hostrouting.host import Host
from hostrouting.node.configure import Configure
from hostrouting.node.units import read_units

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: Namespace) -> int:
    """Fix the node, now and for every boot."""
    if arguments.live and (arguments.dry_run or arguments.root is not None):
        problem = (
            "--live excludes --root and --dry-run; for the changes, run: hostrouting plan CONFIG"
        )
        return refuse(arguments, problem, USAGE)
    if arguments.dry_run:
        return show_plan(arguments)
    config = new_config_of(arguments)
    host = Host.live(boot=False) if arguments.live else host_of(arguments)
    task = Configure(config, host=host, force=arguments.force)
    if arguments.live:
        return run_task(arguments, task, host)
    # Before the gates are installed: afterwards, nobody knows which running units were never held.
    with context(arguments.timeout) as ctx:
        log_notices(ctx, config, host if config.void else read_units(ctx, host, config.gates))
    return run_task(arguments, task, host, None if config.void else config)


COMMAND = Command(
    run=run,
    summary="fix this node, now and for every boot",
    position=10,
    config="",
    options={
        **ROOT,
        "--dry-run": switch("same as plan"),
        "--live": switch("change and check routes until the next boot, and install nothing"),
        "--force": switch("apply even if it misroutes addresses that are routed correctly now"),
    },
    changes=True,
)
