"""The promises of `RunLock`, as tests."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest
from support.patience import ActingClock
from support.printed import NOT_IN_TIME

from hostrouting.exceptions import LockHeldError
from hostrouting.host import RunLock
from phases import CancelledError, Context

#: A file that is there, and that other programs lock.
FILE = "/etc/gates.lock"


class RunLockContract:
    """The promises of `RunLock`. A subclass has `lock` and `other`, two handles to one free lock,
    as of two runs, and a file FILE that exists.
    """

    def test_handles_of_one_lock_are_equal(self, lock: RunLock, other: RunLock) -> None:
        """Two handles of one lock are equal, so that a value kept for the lock is found by
        either.
        """
        assert {lock: "kept"}[other] == "kept"
        assert lock != object()

    def test_a_free_lock_is_taken_at_once(self, lock: RunLock) -> None:
        """A run takes a free lock without waiting, and the lock is free again after the block."""
        clock = ActingClock()
        for _ in range(3):
            with lock.hold(Context(clock=clock)):
                pass
        assert clock.monotonic() == 0

    def test_a_second_run_waits_as_long_as_it_may(self, lock: RunLock, other: RunLock) -> None:
        """A run that waits for the lock gives up at its deadline, and the error names the process
        that holds the lock.
        """
        clock = ActingClock()
        with (
            lock.hold(Context()),
            pytest.raises(LockHeldError, match=r" \(process \d+\) holds .* in time") as caught,
            other.hold(Context(timeout=30, clock=clock)),
        ):
            pytest.fail("two runs at a time")
        assert clock.monotonic() == 30
        assert "DeadlineExceededError" in repr(caught.value.__cause__)

    def test_a_cancelled_run_does_not_wait(self, lock: RunLock, other: RunLock) -> None:
        """A run that is cancelled while it waits for the lock raises CancelledError."""
        clock = ActingClock()
        ctx = Context(timeout=30, clock=clock)
        clock.on_wait = partial(ctx.cancel, "enough")
        with lock.hold(Context()), pytest.raises(CancelledError, match="enough"), other.hold(ctx):
            pytest.fail("two runs at a time")

    def test_a_cancelled_run_does_not_begin(self, lock: RunLock) -> None:
        """A cancelled run does not take even a free lock."""
        ctx = Context()
        ctx.cancel("enough")
        with pytest.raises(CancelledError, match="enough"), lock.hold(ctx):
            pytest.fail("a cancelled run began")

    def test_an_error_frees_the_lock(self, lock: RunLock, other: RunLock) -> None:
        """An error in the block passes through and frees the lock for the next run."""
        with pytest.raises(KeyError, match="lost"), lock.hold(Context()):
            raise KeyError("lost")
        with other.hold(Context(clock=ActingClock(), timeout=1)):
            pass

    def test_who_waits_gets_it_next(self, lock: RunLock, other: RunLock) -> None:
        """A run that waits for the lock goes on when the holder ends."""
        clock = ActingClock()
        first = ExitStack()
        first.enter_context(lock.hold(Context()))
        clock.on_wait = first.close
        with other.hold(Context(clock=clock, timeout=30)):
            assert 0 < clock.monotonic() < 1

    def test_it_ends_without_a_deadline(self, lock: RunLock, other: RunLock) -> None:
        """A run without a deadline gives up the wait for the lock after ten minutes, since the
        holder may be waiting for this run.
        """
        clock = ActingClock()
        # A loaded machine: each wait takes two seconds longer.
        clock.on_wait = lambda: clock.advance(2)
        with lock.hold(Context()), pytest.raises(LockHeldError), other.hold(Context(clock=clock)):
            pytest.fail("two runs at a time")
        assert 600 <= clock.monotonic() <= 602

    def test_the_code_inside_holds_it(self, lock: RunLock, other: RunLock) -> None:
        """The returned context, and every context derived from it, holds the lock: `hold` does not
        wait, at any depth.
        """
        clock = ActingClock()
        with (
            lock.hold(Context(clock=clock)) as held,
            other.hold(held.child(timeout=5)) as inner,
            lock.hold(inner.shielded()),
        ):
            pass
        with other.hold(Context(clock=clock)):
            assert clock.monotonic() == 0

    def test_the_code_inside_takes_turns(self, lock: RunLock, other: RunLock) -> None:
        """The second of two tasks of a run that holds the lock waits for the first, until its
        deadline.
        """
        clock = ActingClock()
        with (
            lock.hold(Context(clock=clock)) as held,
            lock.hold(held),
            pytest.raises(LockHeldError),
            other.hold(held.child(timeout=30)),
        ):
            pytest.fail("two tasks at a time")
        assert clock.monotonic() == 30

    def test_never_two_at_a_time(self, lock: RunLock, other: RunLock) -> None:
        """Of many threads that want the lock, only one holds it at any time."""
        inside: list[RunLock] = []

        def work(mine: RunLock) -> list[int]:
            most = []
            for _ in range(20):
                with mine.hold(Context(clock=ActingClock())):
                    inside.append(mine)
                    most.append(len(inside))
                    inside.pop()
            return most

        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(work, (lock, other, lock, other))] == [[1] * 20] * 4

    def test_a_locked_file_is_waited_for(self, lock: RunLock, other: RunLock) -> None:
        """A run waits 15 s at most for a file that another program has locked; the error names the
        file and a command that shows the program.
        """
        clock = ActingClock()
        with (
            lock.hold_file(Context(), FILE),
            pytest.raises(LockHeldError) as caught,
            other.hold_file(Context(timeout=60, clock=clock), FILE),
        ):
            pytest.fail("two holders at a time")
        assert clock.monotonic() == 15
        text = str(caught.value)
        assert text.startswith("another program (such as the gate of a unit) holds ")
        assert text.endswith(f"{FILE}{NOT_IN_TIME}see: lslocks | grep gates.lock")

    def test_a_file_is_locked_after_its_holder(self, lock: RunLock, other: RunLock) -> None:
        """A run that waits for a locked file goes on when the holder ends, and frees the file
        afterwards.
        """
        clock = ActingClock()
        first = ExitStack()
        first.enter_context(lock.hold_file(Context(), FILE))
        clock.on_wait = first.close
        with other.hold_file(Context(clock=clock), FILE):
            assert 0 < clock.monotonic() < 1
        with lock.hold_file(Context(clock=clock), FILE):
            assert clock.monotonic() < 1

    def test_a_file_is_locked_beside_the_run(self, lock: RunLock, other: RunLock) -> None:
        """The lock of a file is not that of the run: one run holds the file while another holds the
        run's lock.
        """
        clock = ActingClock()
        with lock.hold_file(Context(), FILE), other.hold(Context(clock=clock)):
            assert clock.monotonic() == 0

    def test_an_error_frees_the_file(self, lock: RunLock, other: RunLock) -> None:
        """An error in the block frees the locked file."""
        with pytest.raises(KeyError, match="lost"), lock.hold_file(Context(), FILE):
            raise KeyError("lost")
        with other.hold_file(Context(clock=ActingClock()), FILE):
            pass

    def test_a_cancelled_run_locks_no_file(self, lock: RunLock) -> None:
        """A cancelled run does not lock even a free file."""
        ctx = Context()
        ctx.cancel("enough")
        with pytest.raises(CancelledError, match="enough"), lock.hold_file(ctx, FILE):
            pytest.fail("a cancelled run began")
