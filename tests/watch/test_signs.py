"""The signs that a watch gives to the manager of its process."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest
from support.patience import wait_until
from support.printed import NOT_REPAIRED, OVER, REPLACE_IT

from hostrouting import HostRoutingConfig, Watch
from hostrouting.boot.installed_config import NewConfig
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.testing import FakeHost, MemorySupervisor
from hostrouting.testing.contracts.routes import arrange
from hostrouting.testing.route_texts import route
from hostrouting.watch.installed import wait_for_installed
from hostrouting.watch.signs import LivingClock
from phases import CancelledError, Context
from phases.context import SystemClock, wait
from phases.hosting import cancel_on_signals, reason_of
from phases.testing import ManualClock

SECONDS = 60


def config(*destinations: str) -> HostRoutingConfig:
    routes = [
        {"destination": each, "gateway": "10.224.0.1", "dev": "eth0"} for each in destinations
    ]
    return HostRoutingConfig.from_mapping(
        {"staticRoutes": {"enabled": bool(routes), "routes": routes}}
    )


@pytest.fixture
def host() -> FakeHost:
    """A node with a device for the routes."""
    host = FakeHost()
    host.routes.add_link("eth0")
    host.routes.add_address("eth0", "10.224.0.4/16")
    return host


class RecordingSupervisor(MemorySupervisor):
    """A manager that goes on to the next step at each sign about the state, and then ends the
    watch.
    """

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self.steps = list(steps)
        self.ctx = Context(timeout=SECONDS)

    def notify(self, **assignments: str) -> None:
        super().notify(**assignments)
        if "STATUS" in assignments:
            (self.steps.pop(0) if self.steps else lambda: self.ctx.cancel("told"))()


def watch(host: FakeHost, watching: Watch, *steps: Callable[[], object]) -> list[dict[str, str]]:
    """Run a watch with a manager that takes these steps, and return the signs."""
    supervisor = RecordingSupervisor(*steps)
    object.__setattr__(host, "supervisor", supervisor)
    watching.do(supervisor.ctx)
    assert supervisor.steps == []
    assert reason_of(supervisor.ctx) == "told"
    return supervisor.heard


def test_it_is_ready_after_the_first_look(host: FakeHost) -> None:
    """A watch sends that it is ready after its first look, then each change of its state, and its
    end.
    """
    watching = Watch(config("172.16.1.0/24", "172.16.2.0/24"), host=host)
    down = partial(host.routes.set_up, "eth0", up=False)
    up = partial(host.routes.set_up, "eth0", up=True)
    assert watch(host, watching, down, up) == [
        {"READY": "1", "STATUS": "routes in force: 2"},
        {"STATUS": "routes in force: 0, waiting: 2"},
        {"STATUS": "routes in force: 2"},
        {"STOPPING": "1"},
    ]


def test_a_failure_is_the_state(host: FakeHost) -> None:
    """A watch whose first look fails sends that it is ready, with the failure as its state, since a
    manager would give it up otherwise.
    """
    host.lock.fail_at(1)
    [ready, stopping] = watch(host, Watch(config("172.16.1.0/24"), host=host))
    assert ready["READY"] == "1"
    assert ready["STATUS"] == f"{NOT_REPAIRED}cannot open the lock: Read-only file system"
    assert stopping == {"STOPPING": "1"}


def test_an_alarm_is_part_of_the_state(host: FakeHost) -> None:
    """The state of a watch names the expected CIDRs of an alarm, three of them at most, until the
    alarm is over.
    """
    arrange(host.routes, "default via 10.224.0.1 dev eth0")
    host.routes.add_link("ib0")
    cidrs = [f"172.{number}.0.0/16" for number in range(16, 21)]
    proven = HostRoutingConfig.from_mapping(
        {"routeOverlap": {"expectedCidrs": cidrs}, "watch": {"enabled": True, "readings": 1}}
    )
    one, all_of_them = (
        route(f"{network} dev ib0 proto dhcp") for network in ("172.17.4.0/24", "172.16.0.0/12")
    )
    signs = watch(
        host,
        Watch(proven, host=host),
        lambda: host.routes.insert_route(one),
        lambda: host.routes.insert_route(all_of_them),
        lambda: host.routes.set_up("ib0", up=False),
    )
    assert signs[:-1] == [
        {"READY": "1", "STATUS": "routes in force: 0"},
        {"STATUS": "routes in force: 0; alarm: 172.17.0.0/16"},
        {
            "STATUS": "routes in force: 0; alarm: 172.16.0.0/16, 172.17.0.0/16, 172.18.0.0/16 and 2 more"
        },
        {"STATUS": "routes in force: 0"},
    ]


class TestADamagedConfigAtTheStart:
    """A service with a damaged config waits for another one, and is ready meanwhile with the
    trouble as its state.
    """

    @pytest.fixture
    def host(self, host: FakeHost) -> FakeHost:
        host.files.write(
            CONFIG_PATH,
            b'{"hostRouting": {"staticRoutes": {"enabled": 1, "routes": 2}}}',
            mode=0o644,
        )
        return host

    def waited(
        self, host: FakeHost, *steps: Callable[[], object]
    ) -> tuple[HostRoutingConfig | None, RecordingSupervisor]:
        supervisor = RecordingSupervisor(*steps)
        supervisor.ctx = Context(timeout=SECONDS, clock=ManualClock(auto=True))
        object.__setattr__(host, "supervisor", supervisor)
        return wait_for_installed(supervisor.ctx, host, logging.getLogger("service")), supervisor

    def test_until_it_is_written_again(
        self, host: FakeHost, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A damaged config is logged in one line with the file, the reasons and the next step, and
        its end in another one.
        """
        caplog.set_level(logging.INFO)
        wanted = config("172.16.1.0/24")
        new = NewConfig(config=wanted).file.content
        found, supervisor = self.waited(
            host, lambda: host.files.write(CONFIG_PATH, new, mode=0o644)
        )
        assert found == wanted
        trouble = "the installed config cannot be read, so nothing is kept"
        sent_once = (
            f"{trouble}: 2 errors in the config: hostRouting.staticRoutes.enabled: expected true or false, found the "
            "number 1; hostRouting.staticRoutes.routes: expected a list, found the number 2; "
            f"in the installed config {CONFIG_PATH}; correct it there, {REPLACE_IT}"
        )
        assert caplog.messages == [sent_once, f"{OVER}{trouble}"]
        assert supervisor.heard == [{"READY": "1", "STATUS": sent_once}]

    def test_until_a_reset(self, host: FakeHost) -> None:
        """A service with a damaged config ends its wait at a reset, without a config to keep."""
        found, _ = self.waited(host, lambda: host.files.remove(CONFIG_PATH))
        assert found is None

    def test_until_its_time_is_over(self, host: FakeHost) -> None:
        """The trouble of a damaged config is sent once, however often the service looks."""
        _, supervisor = self.waited(host, lambda: None)
        assert [*map(set, supervisor.heard)] == [{"READY", "STATUS"}, {"STOPPING"}]


class TestLivingClock:
    @pytest.fixture
    def supervisor(self) -> MemorySupervisor:
        """A manager that waits for a sign each minute."""
        supervisor = MemorySupervisor()
        supervisor.seconds_between_signs = 60.0
        return supervisor

    def test_a_wait_is_a_sign_of_life(self, supervisor: MemorySupervisor) -> None:
        """Several waits within the manager's interval send one sign of life; with an interval of 0
        each wait sends one.
        """
        ctx = Context(clock=LivingClock(supervisor))
        for _ in range(3):
            ctx.sleep(0.001)
        assert supervisor.heard == [{"WATCHDOG": "1"}]
        # An interval of 0 is one, too; None stands for the lack of a manager.
        supervisor.seconds_between_signs = 0.0
        LivingClock(supervisor).wait(threading.Lock(), 0.0)
        assert len(supervisor.heard) == 2

    def test_other_threads_give_none(self, supervisor: MemorySupervisor) -> None:
        """A wait of another thread does not send a sign of life, since the loop in the main thread
        may hang.
        """
        ctx = Context(clock=LivingClock(supervisor))
        thread = threading.Thread(target=ctx.sleep, args=(0.001,))
        thread.start()
        thread.join()
        assert supervisor.heard == []

    def test_a_signal_that_another_thread_caught(self) -> None:
        """A signal that another thread received ends the wait of the main thread, and leaves
        neither a descriptor nor a thread behind.
        """
        clock = LivingClock(MemorySupervisor())
        main = threading.get_ident()
        code = SystemClock.wait.__code__
        last_line = max(line for _, _, line in code.co_lines() if line)

        def kill() -> None:
            # The main thread is inside of `acquire`: it has given up the interpreter at that line.
            def is_inside() -> bool:
                frame = sys._current_frames()[main]
                return frame.f_code is code and frame.f_lineno == last_line

            wait_until(is_inside, "the main thread does not wait")
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

        before = sorted(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208
        with (
            cancel_on_signals(Context(timeout=SECONDS, clock=clock)) as ctx,
            clock.woken_by_signals(),
        ):
            thread = threading.Thread(target=kill)
            thread.start()
            end = clock.monotonic() + SECONDS
            with pytest.raises(CancelledError, match="SIGTERM"):
                wait(ctx.shielded(), lambda: bool(ctx.check()), until=end)  # type: ignore[func-returns-value]
            assert clock.monotonic() < end
            thread.join()
        assert (sorted(os.listdir("/proc/self/fd")), threading.active_count()) == before  # noqa: PTH208
        assert signal.set_wakeup_fd(-1) == -1

    def test_a_long_wait_gives_signs(self, supervisor: MemorySupervisor) -> None:
        """A long wait sends a sign of life whenever one is due, although nothing else wakes the
        wait.
        """
        supervisor.seconds_between_signs = 0.001
        clock = LivingClock(supervisor)
        with clock.woken_by_signals():
            ctx = Context(clock=clock)
            assert wait(ctx, lambda: len(supervisor.heard) >= 3, until=clock.monotonic() + SECONDS)

    def test_no_sign_is_due_without_a_manager(self) -> None:
        """A watch without a manager does not send a sign of life."""
        supervisor = MemorySupervisor()
        Context(clock=LivingClock(supervisor)).sleep(0.001)
        assert supervisor.heard == []
