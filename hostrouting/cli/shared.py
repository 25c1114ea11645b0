"""What the commands share: reading the config, finding the host, and reporting the answer."""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, TypeVar

from hostrouting.base.commands import BAD, FAILED, FINE, USAGE
from hostrouting.base.errors import HostRoutingError, InvalidConfigError
from hostrouting.base.signals import status_of_signal
from hostrouting.boot.installed_config import (
    installed_over,
    refuse_local_over,
    require_installed_config,
)
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.host import Host
from hostrouting.host.files.store import RootedFiles
from hostrouting.node.output import (
    json_line,
    painted,
    print_json,
    print_lines,
    width_of_stdout,
    wrapped,
)
from phases import Context, DeadlineExceededError, PhaseError
from phases.exceptions import describe
from phases.hosting import cancel_on_signals

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Mapping

_T = TypeVar("_T")
_SECONDS_BETWEEN_CHECKS: Final = 2.0
#: For apply and reset: enough to wait for DHCP (30 s), for systemd, and for another run.
DEFAULT_TIMEOUT: Final = 120.0
#: The errors that are raised on purpose; a MemoryError can come from anywhere.
_EXPECTED: Final = (HostRoutingError, PhaseError, MemoryError)
#: What to run after an error, by its code.
_STEPS: Final = {
    "no-systemd": (
        "for its files alone, use --root DIR; for its routes until the next boot, "
        "run: hostrouting apply --live CONFIG"
    ),
    "config-installed": "apply this one without --live, or run: hostrouting reset",
    "other-routes": "to remove them, run: hostrouting reset",
    "no-program": "to apply it anyway, use --force",
    "worse-routing": "to apply it anyway, use --force",
}
#: Where to report any other error.
_ISSUES: Final = "https://github.com/hostrouting/hostrouting/issues"
_logger = logging.getLogger("hostrouting")


def config_of(arguments: Namespace) -> HostRoutingConfig:
    """Return the CONFIG of a command, or the installed one."""
    if arguments.config is None:
        return require_installed_config(host_of(arguments))
    source = sys.stdin.fileno() if arguments.config == "-" else arguments.config
    config = HostRoutingConfig.from_file(source, timeout=arguments.timeout or DEFAULT_TIMEOUT)
    if arguments.allow_empty and config.void:
        return HostRoutingConfig()
    if config.given is None:
        # `reset` removes everything, so an empty file is probably a mistake.
        raise InvalidConfigError(config.void)
    return config


def new_config_of(arguments: Namespace) -> HostRoutingConfig:
    """Return the same; refuse in CONFIG what only an installed config may contain."""
    config = config_of(arguments)
    if config.route_overlap.local:
        refuse_local_over(installed_over(host_of(arguments).files, config), config)
    return config


def host_of(arguments: Namespace) -> Host:
    """Return the host of a command: this node, or the image below --root."""
    if arguments.root is None:
        return Host.live()
    return Host.offline(os.path.abspath(arguments.root))  # noqa: PTH100 (slow)


def awaited(
    ctx: Context, seconds: float | None, check: Callable[[], _T], state: Callable[[_T], str]
) -> _T:
    """Return the result of a check; with `seconds`, repeat it that long until its state is "".

    Each new state is logged.
    """
    result = check()
    if seconds is None:
        return result
    # The end of the wait does not interrupt a check.
    waiting = ctx.child(seconds)
    logged = ""
    while now := state(result):
        if now != logged:
            logged = now
            _logger.warning("waiting: %s", logged, extra={"waits": True})
        try:
            waiting.sleep(_SECONDS_BETWEEN_CHECKS)
        except DeadlineExceededError:
            break
        result = check()
    return result


def context(timeout: float | None) -> AbstractContextManager[Context]:
    """Return a context with a limit in seconds that signals cancel."""
    return cancel_on_signals(Context(timeout=timeout))


@contextmanager
def outliving_terminal(arguments: Namespace) -> Iterator[None]:
    """Let a command that changes the node go on after its terminal is closed."""
    if not arguments.chosen.has_history:
        yield
        return
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, usual)


def recorded_run(arguments: Namespace) -> AbstractContextManager[None]:
    """Return a context that records the run in the journal, if the command changes the node."""
    if not arguments.chosen.has_history or arguments.root is not None or arguments.dry_run:
        return nullcontext()
    # Imported here because only runs that change the node are recorded.
    from hostrouting.node.history import recorded

    return recorded(arguments, RootedFiles())


def print_answer(arguments: Namespace, mapping: Mapping[str, object], lines: Iterable[str]) -> None:
    """Print the answer of a command: as JSON, or as lines with colours."""
    if arguments.json:
        # The answer of the watch is the last of many lines.
        print_lines([json_line(mapping)]) if arguments.chosen.goes_on else print_json(mapping)
    else:
        print_lines(map(painted, wrapped(lines, width=width_of_stdout())))


def explained(error: BaseException, *, is_logged: bool = False) -> object:
    """Return what to print about an error; log the traceback of an unexpected one.

    If a task failed, its run has logged that already: then `is_logged` is true.
    """
    failures = getattr(error, "failures", (error,))
    is_internal = not all(isinstance(failure, _EXPECTED) for failure in failures)
    log = _logger.error if is_internal and not is_logged else _logger.debug
    log("where it happened", exc_info=error)
    if is_internal:
        return f"internal error: {describe(error)}; report it, with the above: {_ISSUES}"
    codes = dict.fromkeys(getattr(each, "code", "") for each in failures)
    steps = [_STEPS[code] for code in codes if code in _STEPS]
    return "; ".join([str(error), *steps]) if steps else error


def status_after(error: BaseException) -> int:
    """Return the exit status of a failure."""
    # Imported here because only failures need it.
    from hostrouting.route_overlap.errors import RouteOverlapError

    reason = getattr(error, "reason", "")
    failures = getattr(error, "failures", (error,))
    if reason in signal.Signals.__members__:
        return status_of_signal(reason)
    if any(isinstance(failure, InvalidConfigError) for failure in failures):
        return USAGE
    return BAD if all(isinstance(failure, RouteOverlapError) for failure in failures) else FAILED


def refuse(arguments: Namespace, problem: object, status: int) -> int:
    """Print the problem to stderr, and with --json also to stdout."""
    # Keep the verdict if only the answer cannot be written.
    arguments.verdict = arguments.verdict or problem
    _logger.error("%s", problem)
    if arguments.json:
        answer: dict[str, object] = {"ok": status == FINE, "error": str(problem)}
        if isinstance(problem, InvalidConfigError):
            answer["errors"] = [error._asdict() for error in problem.errors]
        print_answer(arguments, answer, ())
    return status
