"""run_command: a subprocess that ends with its context."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from shlex import quote
from typing import NamedTuple

from phases.context import Context, end_of_work, notify, wait
from phases.exceptions import CommandFailedError
from phases.mistakes import wrong_argument

#: The seconds between SIGTERM and SIGKILL.
_GRACE = 1.0


class CommandResult(NamedTuple):
    """The result of a command; a negative status is the signal that killed it."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str


def run_command(
    ctx: Context,
    argv: Sequence[str],
    *,
    input: str | bytes | None = None,  # noqa: A002 - as subprocess.run calls it
    check: bool = True,
    env: Mapping[str, str] | None = None,
) -> CommandResult:
    r"""Run a command until it ends or the context does.

    When the context ends, the command and all its processes get SIGTERM, and a second
    later SIGKILL; then CancelledError or DeadlineExceededError is raised. Any thread may call this.

    Args:
        ctx: How long the command may take.
        argv: The command and its arguments; no shell reads them.
        input: The command's stdin; the default is /dev/null.
        check: Raise CommandFailedError for a status other than 0. A command that cannot start
            always raises it.
        env: Variables added to those of this process. LC_ALL is C, so that messages can be parsed.

    >>> from phases import Context
    >>> run_command(Context(), ["echo", "hello"]).stdout
    'hello\n'
    """
    _require_argv(argv)
    ctx.check()
    data = input.encode() if isinstance(input, str) else input
    # Imported here because it takes 8 ms, and only a program that starts processes needs it.
    import subprocess
    from signal import SIGKILL, SIGTERM

    try:
        process = subprocess.Popen(  # noqa: S603 - the caller chooses the command; without a shell
            argv,
            stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
            # A new session: one signal reaches all its processes, and Ctrl-C only this process.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = _why_not_started(error, os.fsdecode(argv[0]))
        raise CommandFailedError(argv, None, reason=reason) from error
    outcome: list[tuple[bytes, bytes] | BaseException] = []

    def communicate() -> None:
        try:
            with process:  # closes the pipes and waits for the end, whatever happens
                outcome.append(process.communicate(data))
        except BaseException as error:  # noqa: BLE001 - it is raised again below, in the caller's thread
            outcome.append(error)
        notify(ctx)

    try:
        # A thread reads, so that this one can wait for the context. It is a daemon: it may not end.
        threading.Thread(target=communicate, name=f"run {argv[0]}", daemon=True).start()
        until = end_of_work(ctx.clock, ctx.deadline)
        wait(ctx, lambda: bool(outcome) or ctx.cancelled, until=until)
        if not outcome:
            ctx.check()
    except BaseException:
        for number in (SIGTERM, SIGKILL):
            # Its id is that of its session and group. It may have ended, or we may not kill it
            # (sudo).
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            # SIGKILL follows even if the command obeyed SIGTERM: its children may not have. A
            # process in another session may hold the pipes for ever, and the kernel may hold a
            # process: the wait is limited even after SIGKILL. The reading thread then goes on.
            wait(ctx, lambda: bool(outcome), until=ctx.clock.monotonic() + _GRACE)
        raise
    output = outcome[0]
    if isinstance(output, BaseException):
        raise output
    stdout, stderr = (stream.decode(errors="replace") for stream in output)
    result = CommandResult(tuple(argv), process.returncode, stdout, stderr)
    if check and result.status != 0:
        raise CommandFailedError(*result)
    return result


def _require_argv(argv: Sequence[str]) -> None:
    """Raise TypeError for anything but a list of texts, or of paths."""
    if isinstance(argv, str | bytes) or not argv:
        raise TypeError(f"argv must be a list of a program and its arguments (got {argv!r})")
    if not all(isinstance(word, str | bytes | os.PathLike) for word in argv):
        raise wrong_argument("argv", argv, "a list of texts", repr([*map(str, argv)]))


def _why_not_started(error: Exception, program: str) -> str:
    """Return why a program could not be started, and the next step."""
    if isinstance(error, FileNotFoundError):
        return "was not found: is it installed, and on PATH?"
    if isinstance(error, PermissionError):
        return f"could not be started: {error.strerror}; see: ls -l {quote(program)}"
    return f"could not be started: {getattr(error, 'strerror', None) or error}"
