"""Commands that a task runs: their output, their end, their environment, and their cancellation."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

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

BIG = "import sys; d = sys.stdin.read(); sys.stderr.write(d); sys.stdout.write(d)"
#: A command, its options, and its status, stdout and stderr.
RESULTS: list[tuple[list[str], dict[str, Any], tuple[int, str, str]]] = [
    (["sh", "-c", "echo out; echo err >&2"], {}, (0, "out\n", "err\n")),
    (["sh", "-c", "exit 3"], {"check": False}, (3, "", "")),
    (["sh", "-c", "kill -KILL $$"], {"check": False}, (-9, "", "")),
    (["cat"], {"input": "räksmörgås\n"}, (0, "räksmörgås\n", "")),
    (["cat"], {"input": b""}, (0, "", "")),
    (["cat"], {}, (0, "", "")),
    (["printf", r"a\377b"], {}, (0, "a\N{REPLACEMENT CHARACTER}b", "")),
    (["sh", "-c", 'echo "$OURS $LC_ALL $THEIRS"'], {"env": {"THEIRS": "2"}}, (0, "1 C 2\n", "")),
    ([sys.executable, "-c", BIG], {"input": "x" * 10**6}, (0, "x" * 10**6, "x" * 10**6)),
]


@pytest.mark.parametrize(("argv", "options", "result"), RESULTS, ids=lambda each: str(each)[:30])
def test_a_command(
    argv: list[str], options: Any, result: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command has our environment, LC_ALL=C and the caller's variables, its input or nothing."""
    monkeypatch.setenv("OURS", "1")
    monkeypatch.setenv("LC_ALL", "sv_SE.UTF-8")
    assert run_command(Context(), argv, **options) == CommandResult(tuple(argv), *result)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["sh", "-c", "echo a; echo broken >&2; exit 3"], " ended with status 3: broken"),
        (["sh", "-c", "kill -KILL $$"], " was killed by SIGKILL"),
        (
            ["no-such-command", "x"],
            "`no-such-command x` was not found: is it installed, and on PATH?",
        ),
        (
            ["/etc/passwd"],
            "`/etc/passwd` could not be started: Permission denied; see: ls -l /etc/passwd",
        ),
        (["echo", "\0"], " could not be started: embedded null byte"),
    ],
)
def test_a_command_that_fails(argv: list[str], text: str) -> None:
    """The error names the command, its end and its stderr; unchecked is only the status."""
    with pytest.raises(CommandFailedError) as caught:
        run_command(Context(), argv)
    assert str(caught.value).endswith(text)
    assert (caught.value.argv, caught.value.status is None) == (
        tuple(argv),
        "start" in text or "found" in text,
    )
    if caught.value.status is None:
        with pytest.raises(CommandFailedError):
            run_command(Context(), argv, check=False)
    with pytest.raises(TypeError):
        run_command(Context(), ["cat"], input=5)  # type: ignore[arg-type]


def test_the_stdin_of_a_command_is_not_ours_and_one_that_is_over_starts_nothing(
    tmp_path: Path,
) -> None:
    """A command reads nothing of our stdin; in a cancelled context it is not started."""
    code = "from phases import Context, run_command; print(run_command(Context(), ['cat']))"
    own = [sys.executable, "-c", code]
    assert b"stdout=''" in subprocess.run(own, input=b"own", capture_output=True, check=True).stdout
    ctx = Context()
    ctx.cancel("stop")
    with pytest.raises(CancelledError):
        run_command(ctx, ["touch", str(tmp_path / "file")])
    assert not [*tmp_path.iterdir()]


#: Waits for SIGTERM, and says so.
GOODBYE = """\
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.write(3, b"ready\\n")
signal.sigwait({signal.SIGTERM})
os.write(3, b"bye\\n")
"""
#: A child, the seconds that its end takes, and what it says before it.
CHILDREN = {
    "obeys": ("(sleep 20; echo late >&3) & echo ready >&3; wait", 0, ""),
    "a child ignores SIGTERM": (
        "(trap '' TERM; echo ready >&3; sleep 20; echo late >&3) > /dev/null 2>&1 & wait",
        0,
        "",
    ),
    "ignores SIGTERM": ("trap '' TERM; echo ready >&3; sleep 60", 1, ""),
    # Without a child: one that a shell has just forked may miss the signal.
    "says goodbye": (f"exec {sys.executable} -c '{GOODBYE}'", 0, "bye\n"),
    "another session": (
        "setsid sh -c 'echo $$ >&3; exec sleep 60' & sleep 0.2; echo ready >&3; wait",
        2,
        "",
    ),
}


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_cancellation_ends_the_command_and_its_children(
    tmp_path: Path, threads: ThreadPoolExecutor, clock: ManualClock, kind: str
) -> None:
    """SIGTERM comes first, and SIGKILL a second later; a process of another session that holds our
    pipes cannot make us wait for ever.
    """
    script, seconds, said = CHILDREN[kind]
    fifo = tmp_path / "ready"
    os.mkfifo(fifo)
    ctx = Context(clock=clock)
    running = threads.submit(run_command, ctx, ["sh", "-c", f"exec 3>{fifo}; {script}"])
    with fifo.open() as stream:
        lines = [stream.readline()]
        while lines[-1] != "ready\n":
            lines.append(stream.readline())
        ctx.cancel("stop")
        for _ in range(seconds):
            clock.wait_for_sleepers()
            clock.advance(0.5)
            clock.wait_for_sleepers()
            assert not running.done()
            clock.advance(0.5)
        assert str(running.exception(timeout=60)) == "cancelled: stop"
        for pid in lines[:-1]:
            os.kill(int(pid), signal.SIGKILL)
        # The end of the file: no process has the pipe any more.
        assert stream.read() == said


def test_an_interrupt_ends_the_command(tmp_path: Path) -> None:
    """An interrupt of the thread that waits for a command ends the command, and is raised."""
    os.mkfifo(tmp_path / "ready")
    streams: list[Any] = []

    class Interrupted(SystemClock):
        def wait(self, doorbell: Lock, until: float | None) -> None:
            if not streams:
                streams.append((tmp_path / "ready").open())
                assert streams[0].readline() == "ready\n"
                raise KeyboardInterrupt
            super().wait(doorbell, until)

    script = f"exec 3>{tmp_path / 'ready'}; echo ready >&3; exec sleep 60"
    with pytest.raises(KeyboardInterrupt):
        run_command(Context(clock=Interrupted()), ["sh", "-c", script])
    assert streams[0].read() == ""
    streams[0].close()


@needs("root", "setpriv")
def test_a_command_of_another_user_that_cannot_be_killed() -> None:
    """A command that the kernel does not let us kill, as one of sudo, ends with its context."""
    program = """
from phases import Context, DeadlineExceededError, run_command
try:
    run_command(Context(timeout=0.3), ["setpriv", "--reuid=65534", "--clear-groups", "sleep", "5"])
except DeadlineExceededError as error:
    print(error, flush=True)
"""
    argv = ["setpriv", "--bounding-set=-kill", sys.executable, "-c", program]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{DeadlineExceededError(0.3)}\n", "")
