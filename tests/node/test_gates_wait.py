"""An apply holds the lock of the gates exactly as long as it may still be undone, and gates wait
meanwhile.
"""

from collections.abc import Callable

import attrs
import pytest
from node.test_transaction import MORE, RIGHT, config, state
from support.patience import ActingClock, at_once
from support.run_nodes import gpu_node, lose_our_routes, lose_the_default_route

from hostrouting import CheckRouteOverlap, Configure, ConfigureStaticRoutes, RouteOverlapConfig
from hostrouting.testing import FakeHost
from phases import CancelledError, Context, TaskFailedError, execute, run

LOCK = "/etc/aks-flex-node/hostrouting.lock"


@pytest.fixture
def host() -> FakeHost:
    """A node that is right by an installed config."""
    host = gpu_node()
    execute(Configure(config(RIGHT), host=host), at_once())
    return host


class Moments:
    """What happens on a node, each with whether gates wait then."""

    def __init__(self, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self._host = host
        self._monkeypatch = monkeypatch
        self._note_calls(host.routes, "apply", "routes")
        self._note_calls(host.files, "link", "files")
        self._note_calls(host.files, "remove", "files")
        self._note_calls(host.services, "daemon_reload", "reload")

    def note(self, what: str) -> None:
        """Note a moment, once for several of the same in a row."""
        moment = f"{what}, {'gates wait' if self._host.lock.locked_files else 'gates open'}"
        if self.seen[-1:] != [moment]:
            self.seen.append(moment)

    def _note_calls(self, part: object, name: str, what: str) -> None:
        function: Callable[..., object] = getattr(part, name)

        def call(*values: object, **options: object) -> object:
            # A call that changes nothing is no moment.
            before = state(self._host)
            result = function(*values, **options)
            if state(self._host) != before or what == "reload":
                self.note(what)
            return result

        self._monkeypatch.setattr(part, name, call)


def test_over_an_installed_config(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over an installed config gates wait from the first change of an apply to its commit; a unit
    that the earlier config alone had is removed afterwards.
    """
    moments = Moments(host, monkeypatch)
    without_check = attrs.evolve(MORE, route_overlap=RouteOverlapConfig())
    execute(Configure(without_check, host=host), at_once())
    assert moments.seen == [
        "routes, gates wait",
        "files, gates wait",
        "reload, gates wait",
        "files, gates open",
        "reload, gates open",
    ]
    assert host.lock.locked_files == set()


def test_an_undo_ends_before_the_wait(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is interrupted after everything was changed is undone while gates wait."""
    moments = Moments(host, monkeypatch)
    ctx = at_once()
    before = state(host)
    reload = host.services.daemon_reload

    def interrupt(given: Context) -> None:
        reload(given)
        ctx.cancel("SIGINT")

    monkeypatch.setattr(host.services, "daemon_reload", interrupt)
    assert isinstance(run(Configure(MORE, host=host), ctx).error, CancelledError)
    assert {moment.partition(", ")[2] for moment in moments.seen} == {"gates wait"}
    assert moments.seen[0] == "routes, gates wait"
    assert moments.seen[-1] == "routes, gates wait"
    assert state(host) == before
    assert host.lock.locked_files == set()


@pytest.mark.parametrize("kind", [ConfigureStaticRoutes, CheckRouteOverlap])
def test_gates_wait_for_a_task_alone(
    host: FakeHost,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[ConfigureStaticRoutes | CheckRouteOverlap],
) -> None:
    """A gate waits while a task of an agent's pipeline exchanges files, and not afterwards."""
    moments = Moments(host, monkeypatch)
    wanted = attrs.evolve(
        MORE, route_overlap=RouteOverlapConfig(expected_cidrs=("172.16.16.0/24",))
    )
    run(kind(wanted, host=host), at_once())
    assert "reload, gates wait" in moments.seen
    assert host.lock.locked_files == set()


def until_a_lease(host: FakeHost, moments: Moments) -> ActingClock:
    """Take the default route, and return a clock by which it comes back after three seconds."""
    [default] = [route for route in host.routes.routes() if not route.prefix_length]
    lose_the_default_route(host)
    clock = ActingClock()

    def look() -> None:
        moments.note("waiting")
        if clock.monotonic() > 3:
            host.routes.insert_route(default)
            clock.on_wait = lambda: None

    clock.on_wait = look
    return clock


def test_a_first_apply_waits_for_a_lease_and_no_gate_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A first apply waits for a lease without the lock of the gates, since its new scripts hold the
    gates meanwhile, and holds the lock only while it changes the routes.
    """
    host = gpu_node()
    moments = Moments(host, monkeypatch)
    execute(Configure(config(RIGHT), host=host), Context(clock=until_a_lease(host, moments)))
    assert moments.seen == [
        "files, gates open",
        "reload, gates open",
        "waiting, gates open",
        "routes, gates wait",
    ]
    assert host.lock.locked_files == set()


def test_gates_open_while_an_apply_waits_for_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that the kernel refuses, since its device has no address yet, is tried again under the
    lock of the gates, and no gate waits in between.
    """
    host = gpu_node()
    host.routes.add_link("eth1")
    moments = Moments(host, monkeypatch)
    clock = ActingClock()

    def look() -> None:
        moments.note("waiting")
        if clock.monotonic() > 3:
            host.routes.add_address("eth1", "10.9.0.4/16")
            clock.on_wait = lambda: None

    clock.on_wait = look
    late = {"destination": "192.168.77.0/24", "gateway": "10.9.0.1", "dev": "eth1"}
    execute(Configure(config(RIGHT, late), host=host), Context(clock=clock))
    assert moments.seen[-2:] == ["waiting, gates open", "routes, gates wait"]


def test_a_wait_before_the_first_change(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apply over an installed config waits for a lease before its first change, while the gates
    are open.
    """
    moments = Moments(host, monkeypatch)
    execute(Configure(MORE, host=host), Context(clock=until_a_lease(host, moments)))
    assert moments.seen[:3] == ["waiting, gates open", "routes, gates wait", "files, gates wait"]


def test_nothing_waits_while_gates_do(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apply whose lease and routes are lost between its first change and the commit fails
    without a wait, and its files are undone.
    """
    clock = ActingClock()
    reload = host.services.daemon_reload
    before = state(host)

    def lose(given: Context) -> None:
        monkeypatch.setattr(host.services, "daemon_reload", reload)
        lose_the_default_route(host)
        lose_our_routes(host)
        reload(given)

    monkeypatch.setattr(host.services, "daemon_reload", lose)
    with pytest.raises(TaskFailedError, match="static routes are still incomplete"):
        execute(Configure(MORE, host=host), Context(clock=clock))
    assert clock.monotonic() == 0
    assert state(host)[1] == before[1]
    assert host.lock.locked_files == set()


def test_an_earlier_release_had_none(host: FakeHost) -> None:
    """An apply makes the gates' lock file that an earlier release does not have; an undo removes it."""
    host.files.remove(LOCK)
    before = state(host)
    ctx = at_once()
    host.routes.steps.plan(1, lambda: ctx.cancel("SIGTERM"))
    assert isinstance(run(Configure(MORE, host=host), ctx).error, CancelledError)
    assert state(host) == before
    report = run(Configure(MORE, host=host), at_once())
    assert f"+ {LOCK}" in [str(change) for each in report.walk() for change in each.changes]
    assert host.files.read(LOCK) == b""
    assert host.files.mode(LOCK) == 0o600


def test_a_wrong_lock_is_mended_before_it_is_taken(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply fixes the content and mode of the gates' lock file before it takes the lock, since
    gates would find the lock of a new file free.
    """
    host.files.write(LOCK, b"1234\n", mode=0o644)
    write = host.files.write
    locked = []

    def note(path: str, content: bytes, *, mode: int) -> bool:
        if path == LOCK:
            locked.append(LOCK in host.lock.locked_files)
        return write(path, content, mode=mode)

    monkeypatch.setattr(host.files, "write", note)
    execute(Configure(MORE, host=host), at_once())
    assert host.files.read(LOCK) == b""
    assert host.files.mode(LOCK) == 0o600
    assert locked == [False]
