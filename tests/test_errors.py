"""The public errors: copies, retries, causes, and the step in each message."""

import copy
import errno
import importlib
import inspect
import os
import pickle
import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.printed import FOLDER, LOOP, NOT_ROLLED_BACK

import hostrouting.exceptions
import phases
from hostrouting import HostRoutingConfig, prove_egress
from hostrouting.base.errors import sentence_of
from hostrouting.base.refused_files import why_refused
from hostrouting.exceptions import (
    BackendError,
    ConfigError,
    ConfigMistake,
    EventsLostError,
    HostFileError,
    HostInUseError,
    HostRoutingError,
    InvalidConfigError,
    LinkNotFoundError,
    LockHeldError,
    NoSystemdError,
    PermissionDeniedError,
    Refusal,
    RouteOverlapError,
    RouteRejectedError,
    StaleCNIError,
    ToolNotFoundError,
    UnfinishedUndoError,
    UnitError,
    UnknownDecisionError,
    UnreadableConfigError,
    WorseRoutingError,
)
from hostrouting.host import Route, RouteChange
from hostrouting.testing import MemoryBackend
from phases import (
    CancelledError,
    CommandFailedError,
    DeadlineExceededError,
    PhaseError,
    TaskFailedError,
    UnknownTaskError,
)

REPORT = prove_egress(MemoryBackend(), ["172.16.0.0/16"])
ADDITION = RouteChange.add(Route.parse("10.0.0.0/8", dev="eth0"))
ERRORS: list[HostRoutingError | PhaseError] = [
    HostRoutingError("what, why, next step"),
    ConfigError("x"),
    InvalidConfigError([ConfigMistake("gates[0]", "is empty"), ConfigMistake("", "y")]),
    UnreadableConfigError("x"),
    BackendError("x", errno=5, retryable=True),
    EventsLostError("x", errno=105),
    LinkNotFoundError("x", dev="eth0", errno=19, retryable=True),
    PermissionDeniedError("x"),
    RouteRejectedError(
        [Refusal(ADDITION, 101, "unreachable")], rolled_back=False, left_behind=["y"]
    ),
    ToolNotFoundError("nft", package="nftables", purpose="to list"),
    RouteOverlapError(REPORT, retryable=True),
    WorseRoutingError(REPORT, "x", "y"),
    StaleCNIError("x"),
    UnitError("x"),
    NoSystemdError("x"),
    HostInUseError("x", code="other-routes", routes=["y"]),
    UnfinishedUndoError("x"),
    UnknownDecisionError("x"),
    HostFileError("x"),
    LockHeldError("x"),
    PhaseError("x"),
    CancelledError("x"),
    DeadlineExceededError(1.5),
    UnknownTaskError(["x"], ["y", "z"]),
    CommandFailedError(["ip", "route"], -9, stdout="x", stderr="y"),
    TaskFailedError(
        ["a", "b"], UnitError("x"), others=[TaskFailedError(["c"], BackendError("y", errno=2))]
    ),
]


def shown(value: object) -> object:
    """Return a value that compares errors, inside errors too, by all that a reader can see of them."""
    if isinstance(value, BaseException):
        return type(value), str(value), value.args, shown(vars(value))
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(each) for each in value]
    return value


def pickled(error: Exception) -> object:
    return pickle.loads(pickle.dumps(error))  # noqa: S301 (its own pickle)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_copied_or_pickled_error_is_the_same(
    again: Callable[[Exception], Exception], error: Exception
) -> None:
    """A copied or pickled error has the same type, message and attributes, so it may cross a
    process boundary.
    """
    copied = again(error)
    assert shown(copied) == shown(error)
    if isinstance(error, TaskFailedError):
        assert isinstance(copied, TaskFailedError)
        assert copied.__cause__ is copied.cause


def classes_below(root: type[Exception]) -> set[type[Exception]]:
    """Return a class and all classes that are derived from it."""
    return {root}.union(*map(classes_below, root.__subclasses__()))


def test_every_error_that_can_be_a_failure_can_be_imported() -> None:
    """An agent can name the class of each failure of a report: all errors of both packages are
    public, but for those that are only told from others within one module.
    """
    for package in hostrouting, phases:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    raised = classes_below(HostRoutingError) | classes_below(PhaseError)
    public = {
        getattr(module, name)
        for module in (hostrouting.exceptions, phases)
        for name in module.__all__
    }
    assert {each for each in raised - public if each.__name__[0] != "_"} == set()


def test_every_error_shows_if_a_retry_can_help() -> None:
    """An error is retryable if another attempt may succeed, such as one after a held lock or a
    deadline; by default an error is not.
    """
    retried = (
        LockHeldError("x"),
        EventsLostError("x"),
        BackendError("x", retryable=True),
        LinkNotFoundError("x", dev="eth0", retryable=True),
        DeadlineExceededError(1),
    )
    final = InvalidConfigError([]), BackendError("x"), CancelledError("x")
    assert [error.retryable for error in retried] == [True] * 5
    assert [error.retryable for error in final] == [False] * 3


PASSING = ("ENOMEM", "ENOBUFS", "EBUSY", "EAGAIN", "EINTR", "ENETDOWN")


@pytest.mark.parametrize("name", [*PASSING, "EINVAL"])
def test_an_error_of_a_moment_can_be_tried_again(name: str) -> None:
    """An error of the kernel that passes is retryable if nothing was changed, and does not count as
    one that heals by itself.
    """
    number = getattr(errno, name)
    passing = Refusal(ADDITION, number, name)
    lasting = Refusal(ADDITION, errno.EINVAL, "EINVAL")
    errors = [
        BackendError("x", errno=number),
        LinkNotFoundError("x", dev="eth0", errno=number),
        RouteRejectedError([passing], rolled_back=True),
    ]
    assert [error.retryable for error in errors] == [name in PASSING] * 3
    assert not any(error.may_heal for error in errors)
    changed = [
        RouteRejectedError([passing], rolled_back=False),
        RouteRejectedError([passing, lasting], rolled_back=True),
    ]
    assert [error.retryable for error in changed] == [False] * 2


def test_a_refused_and_an_unreadable_config_are_config_errors() -> None:
    """A refused config and an unreadable one both raise a ConfigError; the latter is a
    HostFileError as well, and the former a ValueError.
    """
    with pytest.raises(ConfigError) as caught:
        HostRoutingConfig.from_file("/nonexistent")
    assert isinstance(caught.value, HostFileError)
    with pytest.raises(ConfigError) as refused:
        HostRoutingConfig.from_json("{")
    assert isinstance(refused.value, ValueError)


def test_every_error_class_is_copied_here() -> None:
    """Each public error class has an example in ERRORS."""
    public = {
        value
        for module in (hostrouting.exceptions, phases)
        for value in map(vars(module).get, module.__all__)
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert public == {type(error) for error in ERRORS}


@pytest.mark.parametrize(
    ("error", "text", "sentence"),
    [
        (
            InvalidConfigError([ConfigMistake("gates[0]", "is empty"), ConfigMistake("", "y:")]),
            "2 errors in the config:\n  gates[0]: is empty\n  y:",
            "2 errors in the config: gates[0]: is empty; y:",
        ),
        (InvalidConfigError([ConfigMistake("a", "is empty")]), "a: is empty", "a: is empty"),
        (
            RouteRejectedError([Refusal(ADDITION, 101, "unreachable")], rolled_back=True),
            (
                "1 route change was refused:\n  + 10.0.0.0/8 dev eth0 proto 142 scope link: unreachable\n"
                "the routes are as before: the rollback was verified by reading them back"
            ),
            (
                "1 route change was refused: + 10.0.0.0/8 dev eth0 proto 142 scope link: unreachable; "
                "the routes are as before: the rollback was verified by reading them back"
            ),
        ),
        (
            RouteRejectedError(
                [Refusal(ADDITION, 1, "x")] * 2, rolled_back=False, left_behind="yz"
            ),
            (
                "2 route changes were refused:\n  + 10.0.0.0/8 dev eth0 proto 142 scope link: x\n"
                "  + 10.0.0.0/8 dev eth0 proto 142 scope link: x\n"
                f"{NOT_ROLLED_BACK}:\n  y\n  z"
            ),
            (
                "2 route changes were refused: + 10.0.0.0/8 dev eth0 proto 142 scope link: x; "
                "+ 10.0.0.0/8 dev eth0 proto 142 scope link: x; "
                f"{NOT_ROLLED_BACK}: y; z"
            ),
        ),
        (
            LinkNotFoundError("absent; correct the 'dev' of", dev="a", routes=["10.0.0.0/8 dev a"]),
            "absent; correct the 'dev' of:\n  10.0.0.0/8 dev a",
            "absent; correct the 'dev' of: 10.0.0.0/8 dev a",
        ),
        (
            BackendError("not deleted: a\nnothing was"),
            "not deleted: a\nnothing was",
            "not deleted: a; nothing was",
        ),
        (
            WorseRoutingError(REPORT, "refused, since", "nothing was changed", ("one", "two")),
            "refused, since:\none\ntwo\nnothing was changed",
            "refused, since: one; two; nothing was changed",
        ),
        (
            TaskFailedError(
                ["a"],
                InvalidConfigError([ConfigMistake("b", "x"), ConfigMistake("c", "y")]),
                others=[TaskFailedError(["d"], OSError("e\nf"))] * 2,
            ),
            "a: 2 errors in the config:\n  b: x\n  c: y\nd: e\nf",
            "a: 2 errors in the config: b: x; c: y; d: e; f",
        ),
    ],
)
def test_an_error_has_its_parts_for_a_text_and_for_one_line(
    error: Exception, text: str, sentence: str
) -> None:
    """An error has the same parts as a text, with its list below a heading, and as one line, with
    the list behind it.
    """
    assert str(error) == text
    assert sentence_of(error) == sentence


_PLACE = """\"$(findmnt -n -o TARGET -T '{}')\""""


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (errno.EROFS, f"Read-only file system; run: mount -o remount,rw {_PLACE}"),
        (errno.ENOSPC, f"No space left on device; run: du -xah {_PLACE} | sort -h | tail"),
        (errno.EACCES, "Permission denied; see: ls -ld '{0}' && lsattr -d '{0}'"),
        (errno.EPERM, "Operation not permitted; see: ls -ld '{0}' && lsattr -d '{0}'"),
        (errno.EIO, "Input/output error"),
    ],
)
@pytest.mark.parametrize("inner", ["", "/absent/inside/a"])
def test_the_reason_of_a_file_has_a_command_that_can_be_run(
    number: int, step: str, inner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command in the reason of a refused file names a folder that exists: the path, or the
    nearest above, quoted for the shell.
    """
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    folder = tmp_path / "a b"
    folder.mkdir()
    assert why_refused(number, f"{folder}{inner}") == step.format(folder)


def test_a_path_that_is_of_another_kind() -> None:
    """The step for a folder in the place of a file is to move it away, and for a loop of links to
    remove the link.
    """
    assert why_refused(errno.EISDIR, "/etc") == FOLDER
    assert why_refused(errno.ELOOP, "/etc/a") == (LOOP)


def test_a_user_without_rights_is_to_be_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user other than root whose access is refused is advised to run as root; the command for a
    relative path names the current folder.
    """
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_refused(errno.EACCES, "/etc/a") == "Permission denied; run this as root"
    assert why_refused(errno.EROFS, "absent").endswith('-T .)"')
