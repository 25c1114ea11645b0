"""A keeper acts at its time, its failure is logged once, and few failures end the watch."""

import logging
import os
from collections.abc import Sequence
from math import inf

import pytest
from support.printed import OVER

from hostrouting import HostRoutingConfig
from hostrouting.boot.keeper import InstalledConfig, Keeper, SiblingKeeper
from hostrouting.exceptions import HostFileError
from hostrouting.host import NetworkEvent
from hostrouting.testing import FakeHost
from phases import Context
from phases.testing import ManualClock

LOGGER = logging.getLogger(__name__)


class Player(Keeper):
    """A keeper whose looks end as given: with the seconds to the next look, or with an error."""

    failure = "nothing can be kept"

    def __init__(self, *ends: float | Exception) -> None:
        host = FakeHost()
        super().__init__(host, LOGGER, InstalledConfig(HostRoutingConfig(), host.files, LOGGER))
        self._ends = list(ends)

    def act(self, _ctx: Context) -> float:
        end = self._ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


class Busy(Player):
    """A keeper that finds work in each event, and whose look takes 0.5 s of processor time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.used = 0.0
        monkeypatch.setattr("time.thread_time", lambda: self.used)

    def receive(self, _events: Sequence[NetworkEvent]) -> float:
        return 0.05

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
    keeper = Busy(monkeypatch)
    now = clock.monotonic()
    keeper.run(ctx)
    for seconds in 0.0, 1.0, 4.9:
        keeper.deliver([], now=now + seconds)
        assert keeper.due == now + 5
    for named, due in (8, 8), (10, 5):
        keeper.due = now + named
        keeper.deliver([], now=now + 1)
        assert keeper.due == now + due
    keeper.run(ctx)
    keeper.deliver([], now=now + 100)
    assert keeper.due == now + 100.05
    keeper.read_soon(now=now + 90)
    assert keeper.due == now + 90


class Interrupted(Player):
    """A keeper that another thread wants to act anew while it acts."""

    losses = 0

    def lose(self) -> None:
        self.losses += 1

    def act(self, ctx: Context) -> float:
        self.read_soon(now=ctx.clock.monotonic())
        return super().act(ctx)


def test_what_comes_while_it_acts_is_not_forgotten() -> None:
    """A keeper that another thread lets read anew while it acts is due again at once, and drops the
    events that it had stored.
    """
    keeper = Interrupted(60.0)
    clock = ManualClock()
    keeper.run(Context(clock=clock))
    assert keeper.due <= clock.monotonic()
    assert keeper.losses == 1


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
    keeper = Player(
        0, HostFileError("full"), 0, HostFileError("full"), 0, 60, HostFileError("full")
    )
    for _ in range(5):
        keeper.run(ctx)
    assert caplog.messages == ["nothing can be kept: full"]
    assert str(keeper.trouble)
    keeper.run(ctx)
    assert not str(keeper.trouble)
    keeper.run(ctx)
    failure = "nothing can be kept: full"
    over = f"{OVER}nothing can be kept"
    assert caplog.messages == [failure, over, failure]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO", "ERROR"]


def test_without_root_it_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A keeper of a user other than root fails for good by a refused lock; as root it logs the
    failure and goes on.
    """
    ctx = Context(clock=ManualClock(auto=True))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    Player(refused()).run(ctx)
    assert len(caplog.messages) == 1
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(HostFileError, match="Permission denied"):
        Player(refused()).run(ctx)


class Sibling(Player, SiblingKeeper):
    """A keeper of an optional capability whose looks end as given."""


def test_a_failure_of_a_sibling_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A failure of an optional capability is logged, whatever its kind, and the keeper tries again
    after the interval; a look that goes on is a second later at least.
    """
    clock = ManualClock(auto=True)
    ctx = Context(clock=clock)
    keeper = Sibling(ZeroDivisionError(), refused(), 0.0)
    keeper.run(ctx)
    assert keeper.due == clock.monotonic() + 60
    keeper.run(ctx)
    assert caplog.messages == [
        "nothing can be kept: ZeroDivisionError()",
        "nothing can be kept: cannot open the lock: Permission denied",
    ]
    keeper.run(ctx)
    assert keeper.due == clock.monotonic() + 1
