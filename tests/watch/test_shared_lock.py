"""Threads of a watch share a lock: other runs wait for all of them, and the threads never wait for
each other.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from hostrouting.exceptions import LockHeldError
from hostrouting.host import RunLock
from hostrouting.host.files.lock import FileLock
from hostrouting.testing import MemoryLock
from hostrouting.watch.worker import SharedLock
from phases import CancelledError, Context, DeadlineExceededError

SECONDS = 60


@contextmanager
def another_thread(lock: SharedLock, ctx: Context) -> Iterator[tuple[Event, Event]]:
    """A thread that holds the lock until the second event; at the first one it has taken it."""
    has_it = Event()
    release = Event()

    def run() -> None:
        with lock.hold(ctx):
            has_it.set()
            release.wait(SECONDS)

    thread = Thread(target=run)
    thread.start()
    try:
        yield has_it, release
    finally:
        release.set()
        thread.join()


def is_free(lock: RunLock) -> bool:
    """Return True if another run can take the lock."""
    try:
        with lock.hold(Context(timeout=0.01)):
            return True
    except LockHeldError:
        return False


@pytest.fixture(params=["memory", "file"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> RunLock:
    return MemoryLock() if request.param == "memory" else FileLock(root=str(tmp_path))


def test_threads_hold_it_together(inner: RunLock) -> None:
    """Two threads hold the shared lock at once, and another run can take it when both have released
    it.
    """
    lock = SharedLock(inner)
    with ExitStack() as own:
        own.enter_context(lock.hold(Context()))
        with another_thread(lock, Context()) as (has_it, release):
            assert has_it.wait(SECONDS)
            own.close()
            assert not is_free(inner)
            release.set()
    assert is_free(inner)


def test_the_code_inside_holds_it_already() -> None:
    """A task inside the block of a shared lock takes the lock without a wait, and does not release
    it.
    """
    inner = MemoryLock()
    lock = SharedLock(inner)
    with lock.hold(Context()) as held:
        with lock.hold(held.child(timeout=0.01)):
            pass
        assert inner.is_held
    assert not inner.is_held


def test_all_get_it_when_another_run_ends() -> None:
    """Threads that wait for the lock of another run hold the shared lock together when that run
    ends.
    """
    inner = MemoryLock()
    inner.holder = 4242
    lock = SharedLock(inner)
    with another_thread(lock, Context()) as (one, _), another_thread(lock, Context()) as (other, _):
        assert not one.wait(0.01)
        inner.holder = None
        assert one.wait(SECONDS)
        assert other.wait(SECONDS)


def test_a_thread_that_gives_up_leaves_the_wait_to_the_next() -> None:
    """A thread that waits for the lock behind one whose time is over waits in its place, and takes
    the lock.
    """
    inner = MemoryLock()
    inner.holder = 4242
    lock = SharedLock(inner)
    impatient = Context(timeout=0.05)

    def give_up() -> None:
        # Its time may be over before it takes the lock, too.
        with pytest.raises((LockHeldError, DeadlineExceededError)), lock.hold(impatient):
            pass

    thread = Thread(target=give_up)
    thread.start()
    with another_thread(lock, Context()) as (has_it, _):
        thread.join()
        inner.holder = None
        assert has_it.wait(SECONDS)


def test_a_cancelled_thread_stops_waiting() -> None:
    """A thread whose context is cancelled raises while another one goes on waiting."""
    inner = MemoryLock()
    inner.holder = 4242
    lock = SharedLock(inner)
    ctx = Context()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            with lock.hold(ctx):
                pass
        except CancelledError as error:
            errors.append(error)

    with another_thread(lock, Context()) as (has_it, _):
        thread = Thread(target=wait)
        thread.start()
        ctx.cancel("the test")
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert len(errors) == 1
        inner.holder = None
        assert has_it.wait(SECONDS)
