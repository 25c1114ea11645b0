"""Check recorded nodes: `check --from` and `plan --from`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import USAGE, printable
from hostrouting.cli.shared import config_of, context, refuse
from hostrouting.fleet.stream import Summary, read_lines, verdict_on
from hostrouting.node.output import json_line, print_lines
from phases.hosting import interruptible
from phases.progress import show_line

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

#: Progress is shown after this many nodes.
_PROGRESS: Final = 100


def prove_records(arguments: Namespace, *, planned: bool, fail_on: str) -> int:
    """Check recorded nodes: print a line for each that needs attention, and a summary."""
    summary = Summary(fail_on)
    live = ("root", "fix", "diff", "exit-code", "timeout", "wait", "format", "out")
    useless = [name for name in live if vars(arguments).get(name.replace("-", "_"))]
    sources = [arguments.config, *arguments.records]
    if useless or (planned and not arguments.config) or sources.count("-") > 1:
        rule = "a plan needs a CONFIG, which stands before --from, and stdin is read once"
        problem = f"--{useless[0]} means nothing with --from" if useless else f"with --from {rule}"
        return refuse(arguments, problem, USAGE)
    config = config_of(arguments) if arguments.config else None
    judge = partial(verdict_on, config=config, planned=planned)
    is_json = arguments.json
    counts = summary.counts

    def lines() -> Iterator[str]:
        with context(None) as ctx, interruptible(ctx):
            for verdict in map(judge, read_lines(arguments.records)):
                if summary.add(verdict) or arguments.verbose or is_json:
                    yield json_line(verdict.to_mapping()) if is_json else printable(str(verdict))
                if not counts["nodes"] % _PROGRESS:
                    show_line(f"{counts['nodes']:,} nodes, {counts['bad']:,} bad")
        show_line("")
        if is_json:
            yield json_line({"summary": summary.to_mapping()})
        else:
            yield from map(printable, summary.lines(planned=planned))

    print_lines(lines())
    return summary.status
