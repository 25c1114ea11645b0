"""The command `hostrouting`: it calls the tasks and prints the result.

parser      its words, options and help
commands    what each command does

stdout carries the answer, stderr the log. Exit status: 0 fine; 1 the answer is bad; 2 usage or an
invalid config; 3 it could not; 4 there is something to change (`plan --exit-code`).
"""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from hostrouting.base.commands import DIFFERS, FINE, USAGE
from hostrouting.cli.commands import CHANGING, recorded_run, refuse, status_after
from hostrouting.cli.parser import parser
from hostrouting.exceptions import InvalidConfigError
from hostrouting.node.output import end_log, log_to_stderr, prepare_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

_logger = logging.getLogger("hostrouting")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return perform(parsed(argv))


def parsed(argv: Sequence[str] | None = None) -> Namespace:
    """Return the parsed arguments; without any, those of --help."""
    prepare_streams()
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["help"]:
        argv = [*argv[1:2], "--help"]
    absent = Namespace(json=False, verbose=False, timeout=None)
    words = argv or ["--help"]
    return parser(as_json="--json" in words, words=words).parse_args(words, absent)


def perform(arguments: Namespace) -> int:
    """Run the command, and return the exit status."""
    is_brief = arguments.command in CHANGING and not arguments.verbose
    talks = arguments.command == "watch"
    log_to_stderr(verbose=arguments.verbose, talks=talks, is_brief=is_brief, as_json=arguments.json)
    with recorded_run(arguments):
        try:
            status: int = arguments.run(arguments)
        except KeyboardInterrupt:
            # As of a process that SIGINT ended; that is the usual end of a watch.
            status = refuse(arguments, "interrupted", FINE if talks else 130)
        except Exception as error:
            _logger.debug("where it happened", exc_info=True)
            # Some mistakes in a config show only on its machine, within a task.
            failures = getattr(error, "failures", (error,))
            mistakes = (failure for failure in failures if isinstance(failure, InvalidConfigError))
            status = refuse(arguments, next(mistakes, error), status_after(error))
    end_log(failed=status not in {FINE, USAGE, DIFFERS})
    return status
