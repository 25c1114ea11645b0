"""Commands that a task runs: their output, their end, their environment, and their cancellation."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from io import TextIOWrapper
from pathlib import Path
from threading import Lock

import pytest
from support.needs import needs

from phases import (
    CancelledError,
    CommandFailedError,
    CommandResult,
    Context,
    DeadlineExceededError,
    run_command,
)
from phases.context import SystemClock
from phases.testing import ManualClock


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A pipe that a command writes into when it is ready, and that ends when the last of its
    processes does.
    """
    path = tmp_path / "ready"
    os.mkfifo(path)
    return path


def _ready(fifo: Path) -> TextIOWrapper:
    """Wait until the command prints that it is ready."""
    stream = fifo.open()
    assert stream.readline() == "ready\n"
    return stream


def test_both_streams_are_captured() -> None:
    """The stdout and the stderr of a command are returned apart, as text."""
    argv = ["sh", "-c", "echo out; echo err >&2"]
    assert run_command(Context(), argv) == CommandResult(tuple(argv), 0, "out\n", "err\n")


def test_a_failing_command() -> None:
    """A status other than 0 is an error that shows command, status and stderr."""
    argv = ["sh", "-c", "echo partial; echo broken >&2; exit 3"]
    with pytest.raises(CommandFailedError) as caught:
        run_command(Context(), argv)
    error = caught.value
    assert (
        str(error) == "`sh -c 'echo partial; echo broken >&2; exit 3'` ended with status 3: broken"
    )
    assert error.argv == tuple(argv)
    assert error.status == 3
    assert error.stdout == "partial\n"
    assert error.stderr == "broken\n"


def test_a_killed_command() -> None:
    """The error of a command that a signal ended names the signal."""
    with pytest.raises(
        CommandFailedError, match=r"^`sh -c 'kill -KILL \$\$'` was killed by SIGKILL$"
    ):
        run_command(Context(), ["sh", "-c", "kill -KILL $$"])


def test_status_can_be_the_answer() -> None:
    """An unchecked status is a result like any other."""
    assert run_command(Context(), ["sh", "-c", "exit 3"], check=False).status == 3


def test_command_not_found() -> None:
    """A command that does not exist is an error, even if its status is unchecked."""
    for check in True, False:
        with pytest.raises(CommandFailedError) as caught:
            run_command(Context(), ["no-such-command", "x"], check=check)
        assert (
            str(caught.value) == "`no-such-command x` was not found: is it installed, and on PATH?"
        )
        assert caught.value.status is None


def test_command_that_cannot_start(tmp_path: Path) -> None:
    """A file that cannot be executed, and a NUL in an argument, are errors that name the reason."""
    program = tmp_path / "program"
    program.touch(mode=0o644)
    reason = rf"could not be started: Permission denied; see: ls -l {program}$"
    with pytest.raises(CommandFailedError, match=reason):
        run_command(Context(), [str(program)])
    with pytest.raises(CommandFailedError, match=r"could not be started: embedded null byte$"):
        run_command(Context(), ["echo", "\0"])


def test_stdin_is_empty_or_given() -> None:
    """The stdin of a command is the given input or /dev/null, and not that of this process."""
    code = "from phases import Context, run_command; print(run_command(Context(), ['cat']))"
    own = [sys.executable, "-c", code]
    assert b"stdout=''" in subprocess.run(own, input=b"own", capture_output=True, check=True).stdout
    assert run_command(Context(), ["cat"], input="räksmörgås\n").stdout == "räksmörgås\n"
    assert run_command(Context(), ["cat"], input=b"").stdout == ""


def test_much_of_everything() -> None:
    """A command with a megabyte of input, and of output on both streams, does not block."""
    code = "import sys; data = sys.stdin.read(); sys.stderr.write(data); sys.stdout.write(data)"
    data = "x" * 1_000_000
    result = run_command(Context(), [sys.executable, "-c", code], input=data)
    assert result.stdout == data
    assert result.stderr == data


def test_output_that_is_not_text_is_shown() -> None:
    """Bytes of output that are not UTF-8 are replaced."""
    assert run_command(Context(), ["printf", r"a\377b"]).stdout == "a\N{REPLACEMENT CHARACTER}b"


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command has our environment, LC_ALL=C so that its messages can be read, and the caller's
    variables.
    """
    monkeypatch.setenv("OURS", "1")
    monkeypatch.setenv("LC_ALL", "sv_SE.UTF-8")
    script = 'echo "$OURS $LC_ALL $THEIRS"'
    assert run_command(Context(), ["sh", "-c", script], env={"THEIRS": "2"}).stdout == "1 C 2\n"


def test_a_context_that_is_over_starts_nothing(tmp_path: Path) -> None:
    """A command is not started in a cancelled context."""
    ctx = Context()
    ctx.cancel("stop")
    with pytest.raises(CancelledError):
        run_command(ctx, ["touch", str(tmp_path / "file")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "child",
    [
        "(sleep 20; echo 'came to its end' >&3) & echo ready >&3;",
        """(trap '' TERM; echo ready >&3; sleep 20; echo 'came to its end' >&3) >/dev/null 2>&1 &""",
    ],
    ids=["obeys", "ignores SIGTERM"],
)
def test_cancel_ends_the_command_and_its_children(
    fifo: Path, threads: ThreadPoolExecutor, child: str
) -> None:
    """A cancellation ends the command and all that it started, even a child that ignores
    SIGTERM.
    """
    ctx = Context()
    running = threads.submit(run_command, ctx, ["sh", "-c", f"exec 3>{fifo}; {child} wait"])
    stream = _ready(fifo)
    ctx.cancel("stop")
    assert str(running.exception(timeout=60)) == "cancelled: stop"
    # The end of the file: no process has the pipe any more.
    assert stream.read() == ""
    stream.close()


def test_a_command_that_ignores_sigterm_is_killed(
    fifo: Path, threads: ThreadPoolExecutor, clock: ManualClock
) -> None:
    """A command that ignores SIGTERM is killed by SIGKILL after the grace period."""
    ctx = Context(clock=clock)
    script = f"trap '' TERM; exec 3>{fifo}; echo ready >&3; sleep 60"
    running = threads.submit(run_command, ctx, ["sh", "-c", script])
    stream = _ready(fifo)
    ctx.cancel("stop")
    # It sleeps after SIGTERM was sent.
    clock.wait_for_sleepers()
    clock.advance(0.5)
    clock.wait_for_sleepers()
    assert not running.done()
    clock.advance(0.5)
    assert isinstance(running.exception(timeout=60), CancelledError)
    assert stream.read() == ""
    stream.close()


def test_a_process_in_another_session_is_not_waited_for(
    fifo: Path, threads: ThreadPoolExecutor, clock: ManualClock
) -> None:
    """A process in a separate session that holds our pipes cannot make us wait for ever."""
    ctx = Context(clock=clock)
    script = f"exec 3>{fifo}; setsid sh -c 'echo $$ >&3; exec sleep 60' & echo ready >&3; wait"
    running = threads.submit(run_command, ctx, ["sh", "-c", script])
    stream = fifo.open()
    lines = {stream.readline(), stream.readline()}
    ctx.cancel("stop")
    for _ in "SIGTERM", "SIGKILL":
        clock.wait_for_sleepers()
        clock.advance(1)
    assert isinstance(running.exception(timeout=60), CancelledError)
    (fled,) = lines - {"ready\n"}
    os.kill(int(fled), signal.SIGKILL)
    assert stream.read() == ""
    stream.close()


@needs("root", "setpriv")
def test_a_command_of_another_user_that_cannot_be_killed() -> None:
    """A command that the kernel does not let us kill, as one of sudo, ends with the error of its
    context.

    Here root lacks CAP_KILL, and the command runs as another user.
    """
    program = """
from phases import Context, DeadlineExceededError, run_command

command = ["setpriv", "--reuid=65534", "--clear-groups", "sleep", "5"]
try:
    run_command(Context(timeout=0.3), command)
except DeadlineExceededError as error:
    print(error, flush=True)
"""
    without_kill = ["setpriv", "--bounding-set=-kill", sys.executable, "-c", program]
    done = subprocess.run(without_kill, check=False, capture_output=True, text=True)
    assert done.stdout == f"{DeadlineExceededError(0.3)}\n"
    assert done.stderr == ""


def test_interrupt_ends_the_command(fifo: Path) -> None:
    """An interrupt of the thread that waits for a command ends the command, and is raised."""
    streams: list[TextIOWrapper] = []

    class Interrupted(SystemClock):
        def wait(self, doorbell: Lock, until: float | None) -> None:
            if not streams:
                streams.append(_ready(fifo))
                raise KeyboardInterrupt
            super().wait(doorbell, until)

    ctx = Context(clock=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        run_command(ctx, ["sh", "-c", f"exec 3>{fifo}; echo ready >&3; exec sleep 60"])
    assert streams[0].read() == ""
    streams[0].close()


def test_input_of_a_wrong_type_is_an_error() -> None:
    """An input of a wrong type is an error in the caller's thread, although another thread writes
    the input.
    """
    with pytest.raises(TypeError):
        run_command(Context(), ["cat"], input=5)  # type: ignore[arg-type]  # that is the point
