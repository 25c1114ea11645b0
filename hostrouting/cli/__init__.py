"""The command `hostrouting`, which runs the tasks and prints their results.

command          a command as a value
commands/        one file per command: function, options and help
parser           the argument parser, built from them
shared           config, host, answer and exit status of all commands
changing         the run of `apply` and `reset`
recorded_nodes   the check of recorded nodes

stdout has the answer, stderr the log. Exit status: 0 success; 1 the check failed; 2 usage error or
invalid config; 3 the command could not do its work, or an internal error; 4 something would change
(`plan --exit-code`).
"""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from hostrouting.base.commands import DIFFERS, FINE, USAGE
from hostrouting.base.errors import InvalidConfigError
from hostrouting.cli.parser import parser
from hostrouting.cli.shared import explained, outliving_terminal, recorded_run, refuse, status_after
from hostrouting.node.output import end_log, log_to_stderr, prepare_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.cli.command import Command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return perform(parsed(argv))


def parsed(argv: Sequence[str] | None = None) -> Namespace:
    """Parse the arguments; without any, show the help."""
    prepare_streams()
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["help"]:
        argv = [*argv[1:2], "--help"]
    absent = Namespace(json=False, verbose=False, timeout=None)
    words = argv or ["--help"]
    return parser(as_json="--json" in words, words=words).parse_args(words, absent)


def perform(arguments: Namespace) -> int:
    """Run the command, and return the exit status."""
    command: Command = arguments.chosen
    log_to_stderr(
        verbose=arguments.verbose,
        talks=command.goes_on,
        is_brief=command.has_history and not arguments.verbose,
        as_json=arguments.json,
    )
    with outliving_terminal(arguments), recorded_run(arguments):
        try:
            status = command.run(arguments)
        except KeyboardInterrupt:
            # The exit status of a process that SIGINT ended; a watch usually ends this way.
            status = refuse(arguments, "interrupted", FINE if command.goes_on else 130)
        except Exception as error:  # noqa: BLE001 - its traceback is logged
            problem = explained(error)
            # Some mistakes in a config are found by a task, on the node.
            failures = getattr(error, "failures", (error,))
            mistakes = (failure for failure in failures if isinstance(failure, InvalidConfigError))
            status = refuse(arguments, next(mistakes, problem), status_after(error))
    end_log(failed=status not in {FINE, USAGE, DIFFERS})
    return status
