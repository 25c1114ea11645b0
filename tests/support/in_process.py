"""The command within the test's own process, for tests that run it many times; another form of it
is a process.
"""

import logging
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from support.answers import require_valid_output
from support.command_line import OTHER_COMMAND, alone, run

from hostrouting.cli import main


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run_here(*words: str | Path) -> Result:
    """Run the command with these words; its log goes with it, and is not that of all tests after
    this one. What it prints for programs is as docs/schemas has it.
    """
    if OTHER_COMMAND:
        # Words such as `watch` never reach the machine that runs the tests.
        ended = run(*words, prefix=alone())
        return Result(ended.returncode, ended.stdout, ended.stderr)
    with redirect_stdout(StringIO()) as stdout:
        status, stderr = run_in_process(*words)
    require_valid_output(words, stdout.getvalue())
    return Result(status, stdout.getvalue(), stderr)


def run_in_process(*words: str | Path) -> tuple[int, str]:
    """Run the command on the stdout that is there; return its exit status and its stderr."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers.copy()
    try:
        with redirect_stderr(StringIO()) as stderr:
            status = _status(*words)
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
    return status, stderr.getvalue()


def _status(*words: str | Path) -> int:
    """Return the exit status; argparse ends the process when it refuses the words."""
    try:
        with patch.object(sys, "argv", ["hostrouting", *map(str, words)]):
            return main()
    except SystemExit as ended:
        return int(str(ended.code))
