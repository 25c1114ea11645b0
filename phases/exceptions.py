"""Every error that this package raises on purpose.

PhaseError
├── TaskFailedError         a task failed: which one, and every cause
├── CancelledError          the context was cancelled, and why
├── DeadlineExceededError   the context's time ran out
├── UnknownTaskError        a name that no task has, to skip or to do alone; nothing has run
└── CommandFailedError      a subprocess failed, or could not be started
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from shlex import join
from traceback import walk_tb
from typing import Any

#: The number of characters of a command's stderr in an error, from its end, which has the reason.
_STDERR_TAIL = 2000


class PhaseError(Exception):
    """The root: `except PhaseError` catches every error that this package raises on purpose.

    Every error can be copied and pickled, with its attributes and its cause.
    """

    #: True if the same call may succeed later.
    retryable: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Without __init__, which takes other arguments than the message.
        state = {**self.__dict__, "__cause__": self.__cause__}
        return type(self).__new__, (type(self), *self.args), state


class TaskFailedError(PhaseError):
    """A task failed; the message has its path and the reason.

    `path` is that path as text, `names` the same as a tuple. Groups without a given name are in no
    path. `failures` is the flat list of all causes, at any depth of groups; the first one is also
    `cause` and `__cause__`. `others` are the further failures, each with its own path: of siblings
    that ran in parallel, of earlier attempts, of undo.

    >>> error = TaskFailedError(["static-routes"], OSError("no such device")).under("bootstrap")
    >>> str(error), error.failures
    ('bootstrap/static-routes: no such device', (OSError('no such device'),))
    """

    def __init__(
        self, names: Sequence[str], cause: BaseException, *, others: Sequence[TaskFailedError] = ()
    ) -> None:
        self.names: tuple[str, ...] = tuple(names)
        self.others: tuple[TaskFailedError, ...] = tuple(others)
        self.cause = cause
        # Here and not only in a `raise ... from`: those in `others` are never raised.
        self.__cause__: BaseException | None = cause
        #: The names of the groups and of the task, as `bootstrap/configure-static-routes`.
        self.path: str = "/".join(self.names)
        #: Every cause: first that of this error, then those in `others`. An ExceptionGroup counts
        #: as the errors in it.
        self.failures: tuple[BaseException, ...] = tuple(
            leaf for error in self.walk() for leaf in leaves(error.cause)
        )
        #: True if each cause says so, or is an OSError.
        self.retryable: bool = all(map(may_pass, self.failures))
        # Attempts that fail alike are shown once. A text of several lines has its end on a separate
        # line.
        texts = dict.fromkeys(
            ": ".join(filter(None, [error.path, describe(error.cause)])) for error in self.walk()
        )
        super().__init__(("\n" if any("\n" in text for text in texts) else "; ").join(texts))

    def under(self, *names: str) -> TaskFailedError:
        """Return the same failure with `names` before each of its paths that lacks them."""
        own = self.names if self.names[: len(names)] == names else (*names, *self.names)
        others = [error.under(*names) for error in self.others]
        return TaskFailedError(own, self.cause, others=others)

    @classmethod
    def combine(cls, errors: Sequence[TaskFailedError]) -> TaskFailedError:
        """Return one error with the path and cause of the first, and the rest as `others`."""
        first, *rest = errors
        return cls(first.names, first.cause, others=(*first.others, *rest))

    def walk(self) -> Iterator[TaskFailedError]:
        """Yield this failure, and then all inside `others`, at any depth."""
        yield self
        for error in self.others:
            yield from error.walk()


class CancelledError(PhaseError):
    """The context was cancelled; `reason` is the argument of `cancel`.

    `earlier` has the failures of attempts before it, of a task that was tried again.
    """

    earlier: tuple[TaskFailedError, ...] = ()

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"cancelled: {reason}")


class DeadlineExceededError(PhaseError):
    """The context's deadline passed; `timeout` is the time that it had, in seconds.

    `earlier` has the failures of attempts before it, of a task that was tried again.
    """

    retryable = True
    earlier: tuple[TaskFailedError, ...] = ()

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        super().__init__(f"deadline exceeded: not done within {timeout:g} s")


class UnknownTaskError(PhaseError):
    """`skip` or `only` names no task; `unknown` are these words, `known` the names of the tasks.

    >>> raise UnknownTaskError(["probs"], ["routes", "probes"])
    Traceback (most recent call last):
    phases.exceptions.UnknownTaskError: no task is named 'probs' (did you mean 'probes'?); \
the tasks are: routes, probes
    """

    def __init__(self, unknown: Sequence[str], known: Sequence[str]) -> None:
        self.unknown: tuple[str, ...] = tuple(unknown)
        self.known: tuple[str, ...] = tuple(known)
        texts = []
        for name in self.unknown:
            guess = most_similar(str(name), self.known)
            texts.append(f"{name!r} (did you mean {guess!r}?)" if guess else repr(name))
        super().__init__(
            f"no task is named {', '.join(texts)}; the tasks are: {', '.join(self.known)}"
        )


class CommandFailedError(PhaseError):
    """A command failed, or could not be started; in the latter case `status` is None.

    `argv`, `status` (negative: the signal that killed it), `stdout` and `stderr` are whole; the
    message shows the end of a long stderr.

    >>> raise CommandFailedError(["ip", "link"], 1, stderr="Operation not permitted")
    Traceback (most recent call last):
    phases.exceptions.CommandFailedError: `ip link` ended with status 1: Operation not permitted
    """

    retryable = True

    def __init__(
        self,
        argv: Sequence[str],
        status: int | None,
        stdout: str = "",
        stderr: str = "",
        *,
        reason: str = "",
    ) -> None:
        self.argv: tuple[str, ...] = tuple(argv)
        self.status = status
        self.stdout = stdout
        self.stderr = stderr
        text = stderr.strip()
        if len(text) > _STDERR_TAIL:
            text = f"... {text[-_STDERR_TAIL:]}"
        if not reason:
            reason = f"ended with status {status}"
            if status is not None and status < 0:
                # Imported here because it makes a hundred names.
                from signal import Signals

                # Python does not name all real-time signals.
                names = (signal.name for signal in Signals if signal == -status)
                reason = f"was killed by {next(names, f'signal {-status}')}"
        super().__init__(f"`{join(self.argv)}` {reason}" + (f": {text}" if text else ""))


def most_similar(name: str, known: Iterable[str], *, similarity: float = 0.6) -> str | None:
    """Return the known name that is most similar to `name`, if any is similar enough.

    >>> most_similar("probs", ["routes", "probes"]), most_similar("probs", ["routes"])
    ('probes', None)
    """
    # Imported here because only a misspelled name needs it.
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, known, n=1, cutoff=similarity)), None)


#: The errors of `Context.check`. `ctx.over` shows if they mean the end of `ctx` itself.
CONTEXT_OVER = (CancelledError, DeadlineExceededError)


def as_failure(error: BaseException, *names: str) -> TaskFailedError:
    """Return the error of the task with this path; one of a task inside stays as it is.

    The failures of attempts before the end of a context are further ones.
    """
    if isinstance(error, TaskFailedError):
        return error
    return TaskFailedError(names, error, others=getattr(error, "earlier", ()))


def may_pass(error: BaseException) -> bool:
    """Return True if the same call may succeed later: an error says so itself, or is an OSError.

    >>> may_pass(OSError("busy")), may_pass(KeyError("token"))
    (True, False)
    """
    return bool(getattr(error, "retryable", isinstance(error, OSError)))


def is_bug(error: BaseException) -> bool:
    """Return True for an error that nobody raised on purpose: its place helps more than its text.

    One that is raised on purpose is an OSError, or says if it is `retryable`.
    """
    is_meant = isinstance(error, OSError) or hasattr(error, "retryable")
    return isinstance(error, Exception) and not is_meant


def place_of(error: BaseException) -> str | None:
    """Return the line of a bug, as `join.py:7 in join`; None for an error that is none.

    It is the innermost line outside of this package.
    """
    place = None
    for frame, line in walk_tb(error.__traceback__ if is_bug(error) else None):
        if frame.f_globals.get("__package__") != __package__:
            file = frame.f_code.co_filename.rpartition("/")[2]
            place = f"{file}:{line} in {frame.f_code.co_name}"
    return place


def leaves(error: BaseException) -> tuple[BaseException, ...]:
    """Return the errors inside an ExceptionGroup, at any depth; of another error itself.

    >>> leaves(OSError("busy"))
    (OSError('busy'),)
    """
    # Python 3.10 lacks groups; a backport has the same attribute.
    inside = getattr(error, "exceptions", None)
    if not isinstance(inside, tuple) or not inside:
        return (error,)
    return tuple(leaf for each in inside for leaf in leaves(each))


def describe(error: BaseException) -> str:
    """Return the text of an error, with its type where the text alone is unclear, and its notes.

    That of an ExceptionGroup has the texts of the errors in it.

    >>> describe(OSError("no such device")), describe(KeyError("dev")), describe(TimeoutError())
    ('no such device', "KeyError: 'dev'", 'TimeoutError')
    """
    inside = leaves(error)
    text = _described(error) if inside == (error,) else "; ".join(map(describe, inside))
    return "\n".join([text, *getattr(error, "__notes__", ())])


def _described(error: BaseException) -> str:
    name = type(error).__name__
    text = ""
    # An error whose text fails is reported all the same.
    with suppress(Exception):
        text = str(error)
    # str() of a KeyError is only the key, that of a SystemExit only a number.
    is_clear = isinstance(error, Exception) and not isinstance(error, KeyError)
    if text and is_clear:
        return text
    return f"{name}: {text}" if text else name
