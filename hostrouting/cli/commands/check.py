"""`hostrouting check`: check every expected CIDR, and everything else on the node."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from hostrouting.base.commands import BAD, FAILED, FINE, USAGE
from hostrouting.base.errors import HostFileError
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.cli.command import INSTALLED, RECORDS, ROOT, WAIT, Command, switch
from hostrouting.cli.shared import (
    awaited,
    context,
    host_of,
    new_config_of,
    print_answer,
    refuse,
)
from hostrouting.node.check import check_node
from hostrouting.node.output import print_document
from hostrouting.node.units import with_read_units

if TYPE_CHECKING:
    from argparse import Namespace

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.node.report import NodeReport
    from phases import Context

_logger = logging.getLogger("hostrouting")


def run(arguments: Namespace) -> int:
    """Check the expected CIDRs, and compare the installed files."""
    if arguments.records:
        # Imported here because --from is rare.
        from hostrouting.cli.recorded_nodes import prove_records

        return prove_records(arguments, planned=False, fail_on=arguments.fail_on)
    lacks_format = arguments.out is not None and not arguments.format
    if lacks_format or (arguments.format and (arguments.root or arguments.fix or arguments.json)):
        problem = "--format prometheus excludes --root, --fix and --json, and --out needs it"
        return refuse(arguments, problem, USAGE)
    config = new_config_of(arguments)
    host = host_of(arguments)
    with context(arguments.timeout) as ctx:
        if arguments.fix:
            return _fix(ctx, arguments, config, host)
        # A command with `-` would wait for a config on the terminal.
        given = "CONFIG" if arguments.config == "-" else arguments.config

        def check() -> NodeReport:
            node = with_read_units(ctx, host, config.gates)
            path = given or CONFIG_PATH
            return check_node(ctx.expiring(), config, node, path=path, root=arguments.root)

        report = awaited(ctx, arguments.wait, check, _state)
        lines = report.lines()
        if arguments.format:
            # Imported here because --format is rare.
            from hostrouting.fleet.metrics import exposition

            text = exposition(report, config, now=ctx.clock.time())
            # A name of stdout must not be replaced by a file.
            if arguments.out in {None, "-", "/dev/stdout"}:
                lines = text.splitlines()
            else:
                _write(os.path.abspath(arguments.out), text, host)  # noqa: PTH100 (slow)
    print_answer(arguments, report.to_mapping() if arguments.json else {}, lines)
    if not report.severities.isdisjoint({"error", arguments.fail_on}):
        return BAD
    return FAILED if report.unread else FINE


def _fix(ctx: Context, arguments: Namespace, config: HostRoutingConfig, host: Host) -> int:
    # Imported here because --fix is rare.
    from hostrouting.node.fix import fixed, replaced

    result = awaited(ctx, arguments.wait, partial(fixed, ctx, config, host), _why_unfixed)
    if isinstance(result, str):
        _logger.error("%s", result)
        return BAD
    for sentence in replaced(config, result):
        _logger.warning("%s", sentence)
    print_document({"hostRouting": result.to_mapping()})
    return FINE


def _write(path: str, text: str, host: Host) -> None:
    # Replacing a device such as /dev/null would break the whole machine; a link, its owner's setup.
    is_plain = os.path.isfile(path) and not os.path.islink(path)  # noqa: PTH113, PTH114
    if os.path.lexists(path) and not is_plain:
        raise HostFileError(f"{path} is not a plain file to replace; give the path of one")
    if not os.path.isdir(folder := os.path.dirname(path)):  # noqa: PTH112, PTH120
        raise HostFileError(f"there is no folder {folder}; create it")
    host.files.write(path, text.encode(), mode=0o644)


def _why_unfixed(result: HostRoutingConfig | str) -> str:
    return result.partition("\n")[0] if isinstance(result, str) else ""


def _state(report: NodeReport) -> str:
    return "" if report.verdict == "right" else report.sentence


COMMAND = Command(
    run=run,
    summary="check every expected address and everything else; changes nothing, needs no root",
    position=30,
    config=INSTALLED,
    options={
        **ROOT,
        "--fail-on": {
            "choices": ["error", "warning"],
            "default": "error",
            "help": "exit with 1 for findings of this severity or higher; the default is error",
        },
        **RECORDS,
        "--wait": WAIT,
        "--fix": switch("print CONFIG with the routes that fix this node, ready to apply"),
        "--format": {
            "choices": ["prometheus"],
            "help": "print metrics of this node for the textfile collector of node_exporter",
        },
        "--out": {
            "metavar": "FILE",
            "help": "write the metrics to FILE, which is replaced atomically",
        },
    },
)
