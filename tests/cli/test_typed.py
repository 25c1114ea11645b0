"""Command lines as people type them: without words, with wrong words or another order, with Ctrl-C,
and with a stderr that cannot be written.
"""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support.command_line import COMMAND
from support.in_process import run_here
from support.printed import NOT_CLOSED, TOO_LARGE
from support.processes import ended

#: With the name of each module as soon as it is imported.
_INTERRUPTED = sys.executable, "-X", "importtime", "-m", "hostrouting"


def test_a_program_gets_the_guess() -> None:
    """The JSON about an unknown command has the guess that its message has."""
    assert "; did you mean 'apply'" in run_here("aply", "--json").stdout


@pytest.mark.parametrize(
    "options", [["-v"], ["--json"], ["--timeout", "7"], ["--json", "-v", "--timeout=7"]]
)
def test_options_before_the_command_count_like_those_after_it(options: list[str]) -> None:
    """An option before the command has the same effect as one after it, and the later of two
    counts.
    """
    from hostrouting.cli import parsed

    assert vars(parsed([*options, "status"])) == vars(parsed(["status", *options]))
    assert vars(parsed([*options, "status", "--timeout", "8"]))["timeout"] == 8


@pytest.mark.parametrize("command", ["check", "watch"])
@pytest.mark.parametrize(
    "module", ["argparse", "logging", "hostrouting.node.output", "hostrouting.config.rules", None]
)
def test_ctrl_c_ends_with_one_line(command: str, module: str | None, tmp_path: Path) -> None:
    """Ctrl-C ends a command that imports, or waits for a config in a pipe, with status 130, or 0
    for a watch, and without a traceback.
    """
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    # These tests may run in the background of a shell, which ignores the signal.
    usual = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    argv = [*_INTERRUPTED, command, str(pipe)]
    started = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, preexec_fn=usual)  # noqa: PLW1509
    assert started.stderr is not None
    with started, pipe.open("w") if module is None else open(os.devnull):  # noqa: PTH123
        for line in started.stderr if module else ():
            if line.split("|")[-1].strip() == module:
                break
        started.send_signal(signal.SIGINT)
        output = [
            line
            for line in started.communicate(timeout=60)[1].splitlines()
            if not line.startswith("import time")
        ]
    assert started.returncode == (0 if command == "watch" else 130), output
    assert "Traceback" not in str(output), output
    assert output == ["hostrouting: interrupted"] or (command == "watch" and not output)


def test_ctrl_c_just_before_a_wait_ends_it(tmp_path: Path) -> None:
    """Ctrl-C ends a wait for a config even if another thread received the signal, so that it did
    not interrupt the kernel's call.
    """
    program = """
import signal, sys, threading
from hostrouting.config.sections import read_source

def interrupt():
    with open(sys.argv[1], "w") as writer:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        ended.wait()

signal.signal(signal.SIGINT, signal.default_int_handler)
ended = threading.Event()
threading.Thread(target=interrupt).start()
try:
    read_source(sys.argv[1], timeout=600)
except KeyboardInterrupt:
    print("interrupted")
finally:
    ended.set()
"""
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    done = ended(sys.executable, "-c", program, pipe, timeout=60)
    assert done.stdout == "interrupted\n"
    assert done.stderr == ""


def test_a_caller_that_ignores_ctrl_c_is_obeyed(tmp_path: Path) -> None:
    """A command whose caller ignores Ctrl-C, as `nohup` does, goes on after the signal."""
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *COMMAND, "check", str(pipe)]
    with subprocess.Popen(ignoring, stderr=subprocess.PIPE, text=True) as started:
        with pipe.open("w") as writer:
            started.send_signal(signal.SIGINT)
            writer.write("{")
        _, output = started.communicate(timeout=60)
    assert started.returncode == 2
    assert "the text ends too early" in output


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "2> >(:)"])
@pytest.mark.parametrize(
    ("words", "status"), [("-v check /nonexistent", 3), ("explain --help", 0), ("chek", 2)]
)
def test_a_stderr_that_takes_nothing_changes_no_status(
    redirection: str, words: str, status: int
) -> None:
    """A stderr that cannot be written loses the log, and changes neither the exit status nor
    stdout.
    """
    command = ["bash", "-c", f'"$@" {redirection}', "bash", *COMMAND, *words.split()]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == status
    assert ended.stderr == ""
    assert "Traceback" not in ended.stdout


def test_stdin_has_the_limits_of_a_file() -> None:
    """A config on stdin has a limit of size and one of time."""
    for given, reason in (
        ("/dev/zero", TOO_LARGE),
        (None, f"{NOT_CLOSED}0.05 s"),
    ):
        source, end = os.pipe()
        try:
            with open(given, "rb") if given else os.fdopen(source, "rb") as stdin:  # noqa: PTH123
                command = [*COMMAND, "check", "--timeout", "0.05" if given is None else "60", "-"]
                ended = subprocess.run(
                    command, check=False, stdin=stdin, capture_output=True, text=True
                )
        finally:
            os.close(end)
        assert ended.returncode == 3, ended.stderr
        assert reason in ended.stderr, ended.stderr
