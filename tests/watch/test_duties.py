"""A reconciler acts at its time, its failure is logged once, and few failures end the watch."""

import logging
import os
from math import inf

import attrs
import pytest
from support.printed import OVER

from hostrouting import HostRoutingConfig
from hostrouting.boot.reconciler import InstalledConfig, Reconciler
from hostrouting.exceptions import HostFileError
from hostrouting.testing import FakeHost
from hostrouting.watch.duty import PACE, Duty
from phases import Context
from phases.testing import ManualClock

LOGGER = logging.getLogger(__name__)


class Player(Reconciler):
    """A reconciler whose runs end as given: with the seconds to the next one, or with an error."""

    failure = "nothing can be kept"
    is_optional = False

    def __init__(self, *ends: float | Exception) -> None:
        host = FakeHost()
        super().__init__(host, LOGGER, InstalledConfig(HostRoutingConfig(), host.files, LOGGER))
        self._ends = list(ends)

    def act(self, _ctx: Context) -> float:
        end = self._ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


def duty_of(*ends: float | Exception) -> Duty:
    return Duty(Player(*ends), PACE)


class Busy(Player):
    """A reconciler whose run takes 0.5 s of processor time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.used = 0.0
        monkeypatch.setattr("time.thread_time", lambda: self.used)

    def act(self, _ctx: Context) -> float:
        self.used += 0.5
        return inf


def test_costly_looks_follow_each_other_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """While events come all the time, a costly look is 5 s after the one before; an event after the
    pause leads to a look at once.

    An event never delays a look: one that is due before the pause after the event's look would end
    (here at 8, within 5 + 5 seconds) keeps its time.
    """
    clock = ManualClock()
    ctx = Context(clock=clock)
    duty = Duty(Busy(monkeypatch), PACE)
    now = clock.monotonic()
    duty.run(ctx)
    for seconds in 0.0, 1.0, 4.9:
        duty.after_events(0.05, now=now + seconds)
        assert duty.due == now + 5
    for named, due in (8, 8), (10, 5):
        duty.due = now + named
        duty.after_events(0.05, now=now + 1)
        assert duty.due == now + due
    duty.run(ctx)
    duty.after_events(0.05, now=now + 100)
    assert duty.due == now + 100.05
    duty.soon(now=now + 90)
    assert duty.due == now + 90


class Interrupted(Player):
    """A reconciler that another thread wants to run again while it runs."""

    duty: Duty

    def act(self, ctx: Context) -> float:
        self.duty.soon(now=ctx.clock.monotonic())
        return super().act(ctx)


def test_what_comes_while_it_runs_is_not_forgotten() -> None:
    """A reconciler that another thread wants to run again while it runs is due again at once."""
    reconciler = Interrupted(60.0)
    reconciler.duty = duty = Duty(reconciler, PACE)
    clock = ManualClock()
    duty.run(Context(clock=clock))
    assert duty.due <= clock.monotonic()


def refused() -> HostFileError:
    error = HostFileError("cannot open the lock: Permission denied")
    error.__cause__ = PermissionError()
    return error


def test_a_failure_after_half_of_the_work_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged once until a whole look succeeds, which is logged as its end; a look that
    goes on at once is only half of one.
    """
    caplog.set_level(logging.INFO)
    ctx = Context(clock=ManualClock(auto=True))
    duty = duty_of(0, HostFileError("full"), 0, HostFileError("full"), 0, 60, HostFileError("full"))
    for _ in range(5):
        duty.run(ctx)
    assert caplog.messages == ["nothing can be kept: full"]
    assert str(duty.trouble)
    duty.run(ctx)
    assert not str(duty.trouble)
    duty.run(ctx)
    failure = "nothing can be kept: full"
    over = f"{OVER}nothing can be kept"
    assert caplog.messages == [failure, over, failure]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO", "ERROR"]


def test_without_root_it_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reconciler of a user other than root fails for good by a refused lock; as root it logs the
    failure and goes on.
    """
    ctx = Context(clock=ManualClock(auto=True))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    duty_of(refused()).run(ctx)
    assert len(caplog.messages) == 1
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(HostFileError, match="Permission denied"):
        duty_of(refused()).run(ctx)


class Sometimes(Player):
    """A reconciler of an optional feature whose runs end as given."""

    is_optional = True


def test_a_failure_of_an_optional_one_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A failure of an optional capability is logged, whatever its kind, and the reconciler tries again
    after the interval; a look that goes on is a second later at least.
    """
    clock = ManualClock(auto=True)
    ctx = Context(clock=clock)
    duty = Duty(Sometimes(ZeroDivisionError(), refused(), 0.0), attrs.evolve(PACE, least=1.0))
    duty.run(ctx)
    assert duty.due == clock.monotonic() + 60
    duty.run(ctx)
    assert caplog.messages == [
        "nothing can be kept: ZeroDivisionError()",
        "nothing can be kept: cannot open the lock: Permission denied",
    ]
    duty.run(ctx)
    assert duty.due == clock.monotonic() + 1
