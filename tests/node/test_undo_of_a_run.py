"""The undo of a run over Configure: it reverses the recorded changes and leaves everything else."""

import logging
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.boot_units import install_upstream
from support.kernel import connect, uplink
from support.patience import at_once
from support.run_nodes import state

from hostrouting import (
    CheckRouteOverlap,
    CleanStaleCNI,
    Configure,
    ConfigureProbeSNAT,
    ConfigureStaticRoutes,
    HostRoutingConfig,
    Reset,
)
from hostrouting.boot.layout import GENERATION_LINK, UNFINISHED
from hostrouting.exceptions import HostFileError, UnitError
from hostrouting.host import IPV4, Route, RouteChange
from hostrouting.testing import FakeHost, MemoryFiles, MemoryServices
from phases import Context, Parallel, Report, Serial, Task, execute, run


class FailingTask:
    """A task that fails."""

    name = "late"

    def do(self, ctx: Context) -> None:
        raise OSError("x")


LATE = FailingTask()


def node() -> FakeHost:
    host = FakeHost()
    uplink(host.routes)
    host.routes.add_route("172.16.16.0/24", gateway="10.224.0.9", dev="eth0", protocol=16)
    return host


def config(*destinations: str, cidrs: tuple[str, ...] = ()) -> HostRoutingConfig:
    routes = {
        "enabled": bool(destinations),
        "routes": [{"destination": each} for each in destinations],
    }
    whole = HostRoutingConfig.from_mapping(
        {"staticRoutes": routes, "routeOverlap": {"expectedCidrs": list(cidrs)}}
    )
    return whole if whole.asks else HostRoutingConfig()


def undone(host: FakeHost, wanted: HostRoutingConfig, *after: Task) -> Report:
    """Run Configure and then a task that fails, and undo the run."""
    return run(Serial(Configure(wanted, host=host), *after, LATE), at_once(), undo_on_failure=True)


def test_a_caller_that_holds_the_lock_undoes_its_run_under_it() -> None:
    """A run under a lock that its caller holds is undone under the same lock, and upstream's files
    are back.
    """
    host = node()
    install_upstream(host.files)
    before = state(host)
    wanted = config("172.16.8.0/22", cidrs=("10.1.0.0/16",))
    with host.lock.hold(at_once()) as held:
        run(Serial(Configure(wanted, host=host), LATE), held, undo_on_failure=True)
        assert state(host) == before
        assert host.lock.is_held


@pytest.mark.parametrize("again", [True, False])
def test_changes_of_a_later_run_stay(caplog: pytest.LogCaptureFixture, *, again: bool) -> None:
    """Files and routes of a later run stay, with a warning about them."""
    host = node()
    later = config("172.16.24.0/24") if again else config()

    class Another(FailingTask):
        name = "another"

        def do(self, ctx: Context) -> None:
            execute(Configure(later, host=host))
            self.after = state(host)

    another = Another()
    with caplog.at_level(logging.WARNING):
        undone(host, config("172.16.8.0/22"), another)
    assert state(host) == another.after
    assert ("the files of this run are left as they are" in caplog.text) == again


def test_a_place_that_another_program_took_stays() -> None:
    """An undo leaves a foreign route that has taken the place of an own one, and all other routes
    of its owner.
    """
    host = node()
    usurper = Route.parse("172.16.8.0/22", gateway="10.224.0.77", dev="eth0", protocol=16)

    class Another(FailingTask):
        name = "another"

        def do(self, ctx: Context) -> None:
            [own_route] = [route for route in host.routes.routes() if route.protocol == 142]
            host.routes.apply([RouteChange.replace(own_route, usurper)])

    before = [str(route) for route in host.routes.routes()]
    undone(host, config("172.16.8.0/22"), Another())
    now = [str(route) for route in host.routes.routes()]
    assert sorted(now) == sorted([*before, str(usurper)])


def test_a_batch_that_was_rolled_back_records_nothing() -> None:
    """A batch whose second route the kernel refuses leaves none of its routes in the report."""
    host = node()
    host.routes.refuse_at(2)
    report = run(
        ConfigureStaticRoutes(config("172.16.8.0/22", "172.16.9.0/24"), host=host), at_once()
    )
    assert report.status == "failed"
    assert not [change for change in report.changes if "proto 142" in change.subject]


destinations = st.lists(
    st.sampled_from(["172.16.8.0/22", "172.16.16.0/24", "172.16.24.0/24"]), unique=True, max_size=3
)


@example(["172.16.8.0/22", "172.16.16.0/24"], ["172.16.8.0/22", "172.16.16.0/24"], (), 118, True)
@example(["172.16.8.0/22"], ["172.16.8.0/22"], ("10.1.0.0/16",), 400, True)
@given(
    destinations,
    destinations,
    st.sampled_from([(), ("10.1.0.0/16",)]),
    st.integers(1, 400),
    st.booleans(),
)
def test_a_run_that_fails_anywhere(
    first: list[str], second: list[str], cidrs: tuple[str, ...], number: int, files: bool
) -> None:
    """From any config to any other or the same, with a failure at any operation, an undone run
    changes nothing.
    """
    host = node()
    if first:
        execute(Configure(config(*first, cidrs=cidrs), host=host), at_once())
    before = state(host)
    late = Armed(host.files if files else host.services, number)
    report = undone(host, config(*second, cidrs=cidrs), late)
    assert late.fault_is_left or (state(host), report.changes) == (before, ())


class Armed(FailingTask):
    """Fails last in a run, one of whose operations may fail before; a fault that is left after that
    hits the undo.
    """

    name = "armed"

    def __init__(self, faulty: MemoryFiles | MemoryServices, number: int) -> None:
        faulty.fail_at(number)
        self._operations = faulty.operations
        self._last = len(self._operations.calls) + number
        self.fault_is_left = False

    def do(self, ctx: Context) -> None:
        self.fault_is_left = len(self._operations.calls) < self._last
        super().do(ctx)


def test_an_interrupt_while_routes_change() -> None:
    """An undo removes a route that was just added, and not yet verified, at an interrupt."""
    host = node()
    before = state(host)
    plain = host.routes.routes
    readings: list[str] = []

    def interrupted(family: int = IPV4) -> object:
        if not readings and any(route.protocol == 142 for route in plain()):
            readings.append("stands")
            raise KeyboardInterrupt
        return plain(family)

    host.routes.routes = interrupted  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        run(
            ConfigureStaticRoutes(config("172.16.16.0/24"), host=host),
            at_once(),
            undo_on_failure=True,
        )
    assert readings
    assert state(host) == before


def test_reset_finishes_an_undo_whose_reload_failed() -> None:
    """A reset after an undo whose reload failed lets systemd read the disk."""
    host = node()
    before = state(host)

    class Busy(FailingTask):
        name = "busy"

        def do(self, ctx: Context) -> None:
            host.services.fail_at(1, UnitError("systemd is busy"))
            super().do(ctx)

    report = undone(host, config("172.16.8.0/22"), Busy())
    assert "systemd is busy" in str(report.error)
    host.services.operations.calls.clear()
    execute(Reset(config(), host=host), at_once())
    assert ("daemon_reload",) in host.services.operations.calls
    assert state(host) == before


def test_files_that_stay_after_an_undo_are_read_by_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An undo does not restore scripts that another program has exchanged meanwhile, and leaves the
    note for the next run.
    """
    host = node()
    execute(Configure(config("172.16.8.0/22"), host=host))

    def refuse(_: Context) -> None:
        host.files.link(GENERATION_LINK, "of-another-program")
        raise UnitError("it is busy")

    monkeypatch.setattr(host.services, "daemon_reload", refuse)
    report = run(Configure(config("172.16.8.0/21"), host=host), at_once())
    assert report.status == "failed"
    assert host.files.read_link(GENERATION_LINK) == "of-another-program"
    assert host.files.exists(UNFINISHED)


# --- tasks by themselves


def test_a_task_that_cannot_install_its_files_keeps_the_earlier_routes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task alone that cannot install its files over an installed config leaves the routes and
    files as they are.
    """
    host = node()
    execute(Configure(config("172.16.8.0/22"), host=host))
    before = state(host)
    write = host.files.write

    def full(path: str, content: bytes, *, mode: int) -> bool:
        if "/hostrouting-" in path:
            raise HostFileError(f"cannot write {path}: No space left on device")
        return write(path, content, mode=mode)

    monkeypatch.setattr(host.files, "write", full)
    with pytest.raises(HostFileError):
        ConfigureStaticRoutes(config("172.16.16.0/24"), host=host).do(at_once())
    assert state(host) == before


def test_a_check_that_fails_is_undone_with_its_marker() -> None:
    """The undo of a check that has failed removes its files and its marker."""
    host = node()
    connect(host.routes, ib0="172.17.1.4/16")
    before = state(host)
    section = {"expectedCidrs": ["172.17.0.0/16"], "mode": "STRICT"}
    check = CheckRouteOverlap(HostRoutingConfig.from_mapping({"routeOverlap": section}), host=host)
    assert run(check, at_once()).status == "failed"
    assert state(host) != before
    check.undo(at_once())
    assert run(check, at_once(), undo_on_failure=True).status == "failed"
    assert state(host) == before


TASKS = [Configure, ConfigureStaticRoutes, CheckRouteOverlap, ConfigureProbeSNAT, CleanStaleCNI]
EVERYTHING = HostRoutingConfig.from_mapping(
    config("172.16.8.0/22", cidrs=("10.1.0.0/16",)).to_mapping()
    | {"probeSnat": {"enabled": True}, "staleCni": {"enabled": True, "podCidrs": ["10.240.0.0/16"]}}
)


@pytest.mark.parametrize("kind", TASKS)
def test_a_task_by_itself_holds_the_lock(kind: type[ConfigureStaticRoutes]) -> None:
    """A task by itself waits for the lock of another process, fails with the holder's name, and
    changes nothing.
    """
    host = node()
    before = state(host)
    host.lock.holder = 4711
    task = kind(EVERYTHING, host=host)
    # What a cleanup has removed stays removed.
    for act in task.do, getattr(task, "undo", task.do):
        with pytest.raises(Exception, match=r"\(process 4711\) holds"):
            act(at_once(5))
    assert state(host) == before


def test_tasks_side_by_side_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Siblings of a Parallel, by themselves or inside a run that holds the lock, never work at the
    same time.
    """
    monkeypatch.setattr("hostrouting.host.files.lock._SECONDS_BETWEEN_TRIES", 0.001)
    host = node()
    inside: list[str] = []
    most: list[int] = []
    plain = host.routes.routes

    def slow(family: int = IPV4) -> object:
        inside.append("")
        most.append(len(inside))
        threading.Event().wait(0.001)
        inside.pop()
        return plain(family)

    host.routes.routes = slow  # type: ignore[method-assign,assignment]  # every task reads the routes
    wanted = config("172.16.8.0/22", cidrs=("10.1.0.0/16",))
    routes = ConfigureStaticRoutes(wanted, host=host)
    check = CheckRouteOverlap(wanted, host=host)
    tasks = Parallel(routes, check, Serial(routes), Serial(check))
    execute(tasks)
    with host.lock.hold(Context()) as held:
        execute(tasks, held)
    assert set(most) == {1}
    assert not host.lock.is_held
