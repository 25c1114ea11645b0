"""A fault at every step of an apply, a first apply, a reset and an undo, by each port and each kind
of error: afterwards the node is in the state that the run names.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import Mock

import attrs
import pytest
from support.patience import at_once
from support.printed import AS_BEFORE, LEFT_BY_THE_RUN, UNDO_ENDED, UNDONE
from support.run_nodes import gpu_node

from hostrouting import Configure, HostRoutingConfig, Reset, RouteOverlapConfig
from hostrouting.apply.run import Run
from hostrouting.boot.boot import Boot
from hostrouting.exceptions import HostFileError, UnitError
from hostrouting.testing import FakeHost
from hostrouting.testing.faults import Operations, Refused
from phases import Context, DeadlineExceededError, Report, Task, execute, run

INSTALLED = "this config is installed all the same; gated units start once this is fixed"
CHANGED = "the config is changed all the same; see which units are held: hostrouting status"
INTERRUPTED = "the config is changed; the rest was interrupted"
NOTHING = "nothing is installed for the next boot"
KEPT = "what was installed is in force, live and for the next boot"
RESET = "the boot files are removed all the same; see which units are held: hostrouting status"
RESET_COMMITTED = "the boot files are removed all the same"
RESET_INTERRUPTED = "the boot files are removed; the rest was interrupted"
#: The routes and the files after a run, by its message: as before it, or as without a fault.
STATES = {
    INSTALLED: (None, "after"),
    CHANGED: ("after", "after"),
    INTERRUPTED: ("after", "after"),
    UNDONE: ("before", "before"),
    NOTHING: (None, "before"),
    f"undone: {NOTHING}": (None, "before"),
    AS_BEFORE: ("before", "after"),
    f"undone: {AS_BEFORE}": ("before", "after"),
    KEPT: ("before", "before"),
    f"undone: {KEPT}": ("before", "before"),
    RESET: ("after", "after"),
    RESET_COMMITTED: (None, "after"),
    RESET_INTERRUPTED: (None, "after"),
}
UNFINISHED = re.compile(rf"not undone: {LEFT_BY_THE_RUN}(.*?); ")
BACK = ("not undone: the files are back", "not undone: the files are restored")


def config(*routes: str) -> HostRoutingConfig:
    return HostRoutingConfig.from_mapping(
        {
            "staticRoutes": {"enabled": True, "routes": [{"destination": text} for text in routes]},
            "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"},
        }
    )


EARLIER = config("172.16.8.0/22")
NEW = config("172.16.8.0/21", "172.16.16.0/24")


class State(NamedTuple):
    """Our routes, and the files below /etc."""

    routes: list[str]
    files: dict[str, str]


def statements(messages: list[str]) -> list[str]:
    return [line for line in messages if line in STATES or "undo was ended" in line]


def disproved(lines: list[str], now: State, before: State, after: State) -> Iterator[str]:
    """Yield each line that names another state."""
    wanted: dict[str | None, State] = {"before": before, "after": after, None: now}
    for line in lines:
        routes, files = STATES.get(line, (None, None))
        in_force = wanted[files].files
        if line in {INSTALLED, INTERRUPTED}:
            # Files of the earlier config may be left next to it.
            in_force = in_force | {path: now.files[path] for path in now.files.keys() - in_force}
        if now.routes != wanted[routes].routes or now.files != in_force:
            yield line


def unnamed(report: Report | None, now: State, before: State, after: State) -> bool:
    """Return True if a run that logs no state has made other changes than those of its report."""
    if report is None:
        # A signal that ends a run before its first change, or after its last one.
        return now not in (before, after)
    subjects = [change.subject for change in report.changes]
    routes = after if any("proto 142" in subject for subject in subjects) else before
    files = after if any(subject.startswith("/etc/") for subject in subjects) else before
    return now != State(routes.routes, files.files)


def is_named(line: str, now: State, before: State) -> bool:
    """Return True if the state is that which a line on an undo names."""
    if line == UNDONE:
        return now == before
    if found := UNFINISHED.match(line):
        paths = now.files.keys() | before.files.keys()
        left = {path for path in paths if now.files.get(path) != before.files.get(path)}
        named = {path for path in found[1].split(", ") if path.startswith("/etc/")}
        return named == left
    if line.startswith(BACK):
        return now == before
    if line.startswith("not undone: - 172.16.8.0/22 via 10.224.0.1"):
        return now.files == before.files and now.routes != before.routes
    if line.startswith("the undo was interrupted, and went on; what stays may be: "):
        # The inverse of the routes is not that of the files.
        return now.files == before.files or now.routes == before.routes
    return line.startswith(UNDO_ENDED)


#: The operations of files that change nothing.
READING = [("read",), ("mode",), ("folder_mode",), ("modified",), ("exposed",), ("names",)]
READING += [("exists",), ("read_link",), ("sweep",), ("is_locked",), ("refuse_unwritable",)]


class Interrupt(Exception):  # noqa: N818 - no error: it stands for a signal to the command
    """Plans the first signal to the command, which cancels its context."""


class ReadOnly(Exception):  # noqa: N818 - it stands for what happens to a disk
    """The disk becomes read-only: each later change fails, too, and so does the undo."""


def refused_write(number: int) -> HostFileError:
    return HostFileError(f"cannot write /etc/x: {os.strerror(number)}")


FAULTS: dict[str, list[BaseException]] = {
    "files": [
        *map(refused_write, (errno.EROFS, errno.ENOSPC, errno.EIO, errno.EACCES)),
        KeyboardInterrupt(),
        Interrupt(),
    ],
    "disk": [ReadOnly()],
    "services": [
        UnitError("Failed to connect to bus: Connection refused"),
        DeadlineExceededError(30),
        KeyboardInterrupt(),
        Interrupt(),
    ],
    "routes": [
        *map(Refused, (errno.EPERM, errno.ENOBUFS, errno.ENODEV)),
        KeyboardInterrupt(),
        Interrupt(),
    ],
}


def node() -> FakeHost:
    """A node that is right by an installed config."""
    host = gpu_node()
    execute(Configure(EARLIER, host=host), at_once())
    return host


def state(host: FakeHost) -> State:
    files = host.files.tree.snapshot()
    routes = [str(route) for route in host.routes.routes() if route.protocol == 142]
    return State(routes, {path: text for path, text in files.items() if path.startswith("/etc/")})


class Story(NamedTuple):
    """A node, and what is done to it."""

    node: Callable[[], FakeHost]
    task: Callable[[FakeHost], Task]


def new(host: FakeHost) -> Task:
    return Configure(NEW, host=host)


STORIES = {
    "over": Story(node, new),
    "first": Story(gpu_node, new),
    "reset": Story(node, lambda host: Reset(HostRoutingConfig(), host=host)),
}


def operations(host: FakeHost, port: str) -> Operations:
    if port == "routes":
        return host.routes.steps
    return (host.services if port == "services" else host.files).operations


def steps_of(calls: list[tuple[str, ...]]) -> list[int]:
    """Return the numbers of the steps: of files, those that change something and some that read."""
    return [
        number for number, call in enumerate(calls, 1) if call[:1] not in READING or not number % 20
    ]


def trials(
    calls: list[tuple[str, ...]], faults: list[BaseException]
) -> list[tuple[int, BaseException]]:
    """Return each step with each fault if there are few, and else with one of them."""
    steps = steps_of(calls)
    if len(steps) < 10:
        return [(step, fault) for step in steps for fault in faults]
    return [(step, faults[turn % len(faults)]) for turn, step in enumerate(steps)]


def fail(host: FakeHost, port: str, step: int, fault: BaseException, ctx: Context) -> None:
    if isinstance(fault, Interrupt):
        operations(host, port).plan(step, lambda: ctx.cancel("SIGTERM"))
    elif isinstance(fault, ReadOnly):
        operations(host, port).plan(step, partial(host.files.tree.read_only.add, "/etc"))
    else:
        operations(host, port).fail(step, fault)


def outcome(task: Task, ctx: Context) -> Report | None:
    """Return the report of a run; None if a signal has ended it."""
    try:
        return run(task, ctx)
    except KeyboardInterrupt:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("port", FAULTS)
@pytest.mark.parametrize("story", STORIES)
def test_the_node_is_in_the_state_that_the_run_names(
    story: str, port: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A run with a fault logs the state in which the node then is, and names what cannot be undone;
    a run that logs neither has made the changes of its report alone.

    Faults hit each step that changes something, and some of those that read.
    """
    begin, task = STORIES[story]
    host = begin()
    before = state(host)
    first = len(operations(host, port).calls)
    execute(task(host), at_once())
    after = state(host)
    calls = operations(host, port).calls[first:]
    assert calls
    for step, fault in trials(calls, FAULTS[port]):
        host = begin()
        ctx = at_once()
        caplog.clear()
        fail(host, port, step, fault, ctx)
        report = outcome(task(host), ctx)
        now = state(host)
        lines = statements(caplog.messages)
        unfinished = [line for line in caplog.messages if line.startswith("not undone")]
        where = story, step, calls[step - 1], repr(fault), lines, unfinished
        assert [*disproved(lines, now, before, after)] == [], where
        assert all(is_named(line, now, before) for line in unfinished), where
        if not lines + unfinished:
            assert not unnamed(report, now, before, after), where


def undo_of(host: FakeHost, arm: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fail an apply when systemd is to read the new files, and call `arm` when its undo begins."""
    undo = Run.undo

    def armed(run_: Run, text: str, *, always: bool) -> None:
        arm()
        undo(run_, text, always=always)

    def refuse(_: Context) -> None:
        reload.undo()
        raise UnitError("it is busy")

    with monkeypatch.context() as patched, pytest.MonkeyPatch.context() as reload:
        patched.setattr(Run, "undo", armed)
        reload.setattr(host.services, "daemon_reload", refuse)
        return outcome(new(host), at_once())


@pytest.mark.slow
@pytest.mark.parametrize("port", FAULTS)
def test_a_fault_of_the_undo(
    port: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of an undo leads to one line of the log, which names the files and routes that stay,
    or a restored state.
    """
    host = node()
    begun = list[int]()
    before = state(host)
    undo_of(host, lambda: begun.append(len(operations(host, port).calls)), monkeypatch)
    assert state(host) == before
    calls = operations(host, port).calls[begun[0] :]
    faults = [fault for fault in FAULTS[port] if not isinstance(fault, Interrupt)]
    for step, fault in trials(calls, faults):
        host = node()
        caplog.clear()
        undo_of(host, partial(fail, host, port, step, fault, at_once()), monkeypatch)
        now = state(host)
        lines = [line for line in caplog.messages if "undo" in line]
        where = step, calls[step - 1], repr(fault), lines
        assert len(lines) == 1, where
        assert is_named(lines[0], now, before), where
        if UNFINISHED.match(lines[0]):
            assert now.routes == before.routes, where


def test_a_disk_that_fails_between_commit_and_cleaning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that cannot remove the earlier files has its routes in force and the failure in the
    task of the files, and another apply removes the rest.
    """
    host = node()
    undisturbed = node()
    without_check = attrs.evolve(NEW, route_overlap=RouteOverlapConfig())
    execute(Configure(without_check, host=undisturbed), at_once())
    install = Boot.install
    # The installation, and the removal of earlier files.
    troubles = iter((None, HostFileError("cannot read /etc/x"), *[None] * 9))

    def fail(boot: Boot, ctx: Context, *parts: Any, **options: Any) -> object:
        if trouble := next(troubles):
            raise trouble
        return install(boot, ctx, *parts, **options)

    monkeypatch.setattr(Boot, "install", fail)
    report = run(Configure(without_check, host=host), at_once())
    assert str(report.error) == "configure/install-boot-files: cannot read /etc/x"
    assert host.routes.routes() == undisturbed.routes.routes()
    assert run(Configure(without_check, host=host), at_once()).ok
    assert state(host) == state(undisturbed)


def test_a_first_apply_that_ends_between_files_and_routes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first apply that cannot hold the lock of the gates installs the config, and reports in one
    line that the routes are as before.
    """
    host = gpu_node()
    monkeypatch.setattr(host.lock, "hold_file", Mock(side_effect=HostFileError("cannot lock")))
    report = run(Configure(NEW, host=host), at_once())
    assert str(report.error) == "configure: cannot lock"
    assert statements(caplog.messages) == [AS_BEFORE]
    assert state(host).routes == []
    assert host.files.exists("/etc/aks-flex-node/hostrouting.json")


def test_a_reset_that_is_interrupted_after_its_files(caplog: pytest.LogCaptureFixture) -> None:
    """A reset that is interrupted after its files reports in one line that the boot files are
    removed and the rest was not tried.
    """
    host = node()
    ctx = at_once()
    host.routes.steps.plan(1, lambda: ctx.cancel("SIGTERM"))
    report = run(Reset(HostRoutingConfig(), host=host), ctx)
    assert str(report.error) == "cancelled: SIGTERM"
    assert statements(caplog.messages) == [RESET_INTERRUPTED]
    assert state(host).files == {}


def test_a_reset_whose_systemd_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset whose systemd does not answer removes the files and the routes, and one line reports
    that the files are gone.
    """
    host = node()
    monkeypatch.setattr(
        host.services, "daemon_reload", Mock(side_effect=UnitError("systemd does not answer"))
    )
    report = run(Reset(EARLIER, host=host), at_once())
    assert "systemd does not answer" in str(report.error)
    assert "the boot files are removed all the same" in caplog.messages
    routes, files = state(host)
    assert routes == []
    assert [path for path in files if "aks-flex-node" in path] == []
