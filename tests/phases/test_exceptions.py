"""The messages and causes of the errors of phases."""

import pickle

from phases import CommandFailedError, PhaseError, TaskFailedError, UnknownTaskError


def test_path_is_printed_once() -> None:
    """The message of a failure has its path once, in front, however many groups it passes."""
    error = TaskFailedError(["c"], OSError("broken")).under("b").under("a")
    assert str(error) == "a/b/c: broken"
    assert error.path == "a/b/c"
    assert error.names == ("a", "b", "c")


def test_combine_loses_nothing() -> None:
    """Combined errors show all messages and flatten all causes, the first in front."""
    causes = [OSError("one"), OSError("two"), OSError("three")]
    first, second, third = (TaskFailedError([str(each)], each) for each in causes)
    error = TaskFailedError.combine(
        [TaskFailedError.combine([first, second]).under("x"), third]
    ).under("y")
    assert error.failures == tuple(causes)
    assert error.__cause__ is error.cause is causes[0]
    assert str(error) == "y/x/one: one; y/x/two: two; y/three: three"


def test_equal_failures_read_as_one() -> None:
    """Equal failures of attempts are printed once, and all are in `failures`."""
    error = TaskFailedError.combine([TaskFailedError(["a"], OSError("busy")) for _ in range(3)])
    assert str(error) == "a: busy"
    assert len(error.failures) == 3


def test_a_failure_of_several_lines_ends_before_the_next_begins() -> None:
    """A failure of several lines and the next failure stand on lines of their own."""
    error = TaskFailedError.combine(
        [TaskFailedError(["a"], OSError("two\nlines")), TaskFailedError(["b"], OSError("c"))]
    )
    assert str(error) == "a: two\nlines\nb: c"


def test_unknown_task_lists_the_known_ones() -> None:
    """The message of an unknown task suggests a similar name and lists the known tasks."""
    error = UnknownTaskError(["beta", "zzz"], ["alpha", "bta"])
    assert (
        str(error)
        == "no task is named 'beta' (did you mean 'bta'?), 'zzz'; the tasks are: alpha, bta"
    )
    assert error.unknown == ("beta", "zzz")
    assert error.known == ("alpha", "bta")


def test_command_failure_shows_how_it_ended() -> None:
    """The message of a command failure has the arguments quoted as for a shell, and the number of a
    signal without a name.
    """
    error = CommandFailedError(["ip", "route", "a b"], -40, stderr="No such device\n")
    assert str(error) == "`ip route 'a b'` was killed by signal 40: No such device"
    assert isinstance(error, PhaseError)


def test_command_failure_shows_the_end_of_a_long_stderr() -> None:
    """The message of a command failure has the last 2,000 characters of a long stderr, and the
    attribute all.
    """
    error = CommandFailedError(["x"], 1, stderr="a" * 5000 + "b" * 2000)
    assert str(error) == f"`x` ended with status 1: ... {'b' * 2000}"
    assert len(error.stderr) == 7000


def test_a_pickled_error_has_its_cause() -> None:
    """Any error survives pickling with its cause, and with the cause of that one."""
    error = CommandFailedError(["x"], None, reason="could not be started")
    error.__cause__ = TaskFailedError(["a"], OSError("busy"))
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert str(copied.__cause__) == "a: busy"
    assert repr(copied.__cause__.__cause__) == "OSError('busy')"


class GroupError(Exception):
    """An ExceptionGroup as of Python 3.11, which 3.10 lacks."""

    def __init__(self, message: str, *inside: Exception) -> None:
        super().__init__(f"{message} ({len(inside)} sub-exceptions)")
        self.exceptions = inside


class BusyError(Exception):
    retryable = False


def test_a_group_of_errors_counts_as_those_inside() -> None:
    """The `failures`, `retryable` and the message of a group of errors are those of the errors
    inside, at any depth.
    """
    cause = GroupError(
        "several", OSError("no carrier"), GroupError("more", BusyError("locked"), KeyError("dev"))
    )
    error = TaskFailedError(["routes"], cause)
    assert [*map(str, error.failures)] == ["no carrier", "locked", "'dev'"]
    assert not error.retryable
    assert str(error) == "routes: no carrier; locked; KeyError: 'dev'"


def test_notes_are_kept() -> None:
    """The notes of a cause, in which a program adds what it was about, are in the message."""
    cause = OSError("no carrier")
    cause.__notes__ = ["while eth1 was set up"]  # type: ignore[attr-defined]
    text = str(TaskFailedError(["routes"], cause))
    assert text == "routes: no carrier\nwhile eth1 was set up"
