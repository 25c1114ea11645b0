"""The lock of a run as a file: its contract, its holders, and the files in its place."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import pytest
from host.contracts.lock import FILE, RunLockContract
from support.needs import needs
from support.patience import at_once
from support.printed import ANOTHER_RUN, LOOP, NOT_IN_TIME
from support.processes import ended

from hostrouting.exceptions import HostFileError, LockHeldError
from hostrouting.host import RunLock
from hostrouting.host.files import lock as module
from hostrouting.host.files.lock import FileLock
from phases import Context

if TYPE_CHECKING:
    from _typeshed import TraceFunction


LOCK = "/run/hostrouting.lock"

HOLDER = """
import sys
from hostrouting.host.files.lock import FileLock
from phases import Context
with FileLock(root=sys.argv[1]).hold(Context()):
    print("held", flush=True)
    sys.stdin.read()
"""

HOLDER_OF_A_FILE = f"""
import sys
from hostrouting.host.files.lock import FileLock
from phases import Context
with FileLock(root=sys.argv[1]).hold_file(Context(), "{FILE}"):
    print("held")
"""


@contextmanager
def another_run(root: Path) -> Generator[subprocess.Popen[str]]:
    """Another process that holds the lock until its stdin is closed."""
    argv = [sys.executable, "-I", "-c", HOLDER, str(root)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _interrupted_at(line: int) -> Generator[list[int]]:
    """Raise KeyboardInterrupt at the `line`-th line of the lock's module; the list is empty if
    there were fewer.
    """
    left = [line]
    interrupted: list[int] = []

    def trace(frame: FrameType, event: str, _value: object) -> TraceFunction | None:
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                interrupted.append(frame.f_lineno)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield interrupted
    finally:
        sys.settrace(before)


class TestFileLock(RunLockContract):
    @pytest.fixture
    def lock(self, tmp_path: Path) -> RunLock:
        """The lock of one run."""
        (tmp_path / "etc").mkdir(exist_ok=True)
        (tmp_path / FILE.lstrip("/")).touch(0o600)
        return FileLock(root=str(tmp_path))

    @pytest.fixture
    def other(self, tmp_path: Path) -> RunLock:
        """The lock of another run."""
        return FileLock(root=str(tmp_path))

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        """The file of the lock, in its folder."""
        (tmp_path / "run").mkdir()
        return tmp_path / "run/hostrouting.lock"

    def test_another_process_is_named(
        self, tmp_path: Path, lock: RunLock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The error of a run that waited in vain names the holding process and the file; the log
        has one line at the beginning of the wait.
        """
        with (
            another_run(tmp_path) as holder,
            caplog.at_level("INFO"),
            pytest.raises(LockHeldError) as caught,
            lock.hold(at_once(10)),
        ):
            pytest.fail("two runs at a time")
        assert str(caught.value) == (
            f"{ANOTHER_RUN}{holder.pid}) holds {tmp_path}{LOCK}{NOT_IN_TIME}"
            "try again when it has, or allow more time"
        )
        assert caplog.messages == [f"waiting for {ANOTHER_RUN}{holder.pid})"]

    def test_a_child_gets_an_error_that_its_parent_holds_it(
        self, tmp_path: Path, lock: RunLock
    ) -> None:
        """An indirect child of a run that holds the lock waits until its deadline, and its error
        names the holder.
        """
        child = HOLDER.replace("Context()", "Context(timeout=0.2)")
        indirectly = ["sh", "-c", 'true; "$@"; exit $?', "sh"]
        argv = [*indirectly, sys.executable, "-I", "-c", child, str(tmp_path)]
        with lock.hold(Context()):
            result = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert f"{ANOTHER_RUN}{os.getpid()}) holds" in result.stderr

    def test_one_lock_by_two_names(self, tmp_path: Path, lock: RunLock, file: Path) -> None:
        """A context that holds the lock of an image holds the lock under each name of the image's
        folder, and can take that of another image.
        """
        (tmp_path / "image").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "image")
        with FileLock(root=str(tmp_path / "image")).hold(Context()) as held:
            with FileLock(root=str(tmp_path / "link")).hold(held):
                pass
            with lock.hold(held):
                assert file.exists()

    def test_a_killed_run_holds_nothing(self, tmp_path: Path, lock: RunLock, file: Path) -> None:
        """A killed run leaves its lock file, and the lock is free."""
        with another_run(tmp_path) as holder:
            holder.send_signal(signal.SIGKILL)
            holder.wait()
        assert file.read_text() == f"{holder.pid}\n"
        with lock.hold(at_once(1)):
            assert file.read_text() == f"{os.getpid()}\n"

    def test_the_id_of_a_killed_run_goes_as_a_whole(self, lock: RunLock, file: Path) -> None:
        """The process id in the lock file is replaced as a whole, even by a shorter one."""
        file.write_text("1234567890123\n")
        with lock.hold(at_once(1)):
            assert file.read_text() == f"{os.getpid()}\n"

    @needs("root")
    def test_a_full_disk_does_not_prevent_locking(self, tmp_path: Path) -> None:
        """A run on a full disk takes the lock without writing its process id."""
        script = f"""
            mount -t tmpfs -o size=4k tmpfs {tmp_path} && mkdir {tmp_path}/run || exit 1
            head -c 4096 /dev/zero > {tmp_path}/full
            ! echo more > {tmp_path}/more || exit 1
            exec {sys.executable} -I -c '{HOLDER}' {tmp_path} < /dev/null
        """
        result = ended("unshare", "--mount", "bash", "-c", script)
        assert result.returncode == 0, result.stderr
        assert result.stdout == "held\n", result.stderr

    def test_children_do_not_hold_it(self, lock: RunLock, other: RunLock) -> None:
        """A daemon that a run has started does not keep the next run waiting."""
        with lock.hold(Context()):
            daemon = subprocess.Popen(["sleep", "infinity"], close_fds=False)
        try:
            with other.hold(at_once(1)):
                pass
        finally:
            daemon.kill()
            daemon.wait()

    def test_only_we_can_open_it(self, lock: RunLock, file: Path) -> None:
        """The lock file can be opened by root only, since whoever can open it can lock it, and is
        removed after the run.
        """
        with lock.hold(Context()):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert list(file.parent.iterdir()) == []

    def test_a_fifo_in_its_place_is_refused(self, lock: FileLock, file: Path) -> None:
        """A fifo in place of the lock file is an error with its path, and no run waits for its
        writer.
        """
        os.mkfifo(file)
        with (
            pytest.raises(HostFileError, match=r"hostrouting\.lock: it is not a plain file"),
            lock.hold(Context(timeout=5)),
        ):
            raise AssertionError
        assert lock.holder_name() == "process unknown"

    def test_a_fifo_in_the_place_of_a_shared_file_is_refused(
        self, tmp_path: Path, lock: RunLock
    ) -> None:
        """A fifo where other programs have their lock file is an error with its path, and no run
        waits for its writer.
        """
        assert lock is not None
        file = tmp_path / FILE.lstrip("/")
        file.unlink()
        os.mkfifo(file)
        # In another process, as no context ends an open that waits.
        done = ended(sys.executable, "-c", HOLDER_OF_A_FILE, tmp_path, timeout=30)
        assert done.stdout == ""
        assert f"{file}: it is not a plain file; remove it" in done.stderr

    def test_an_interrupt_at_any_line_frees_it(self, lock: RunLock) -> None:
        """A run that is interrupted while it takes the lock leaves it free, whichever line it has
        reached.
        """
        for line in count(1):
            with ExitStack() as held:
                with _interrupted_at(line) as was_interrupted, suppress(KeyboardInterrupt):
                    held.enter_context(lock.hold(Context()))
                if not was_interrupted:
                    break
            with lock.hold(at_once(1)):
                pass
        assert line > 20

    def test_another_program_may_remove_it(self, lock: RunLock, other: RunLock, file: Path) -> None:
        """A run whose lock file is removed by another program succeeds, and leaves the lock of a
        later run alone.
        """
        third = other.hold(at_once(1))
        with lock.hold(Context()):
            file.unlink()
            second = other.hold(Context())
            second.__enter__()
        with pytest.raises(LockHeldError), third:
            pytest.fail("two runs at a time")
        second.__exit__(None, None, None)

    def test_no_link_leads_it_astray(self, tmp_path: Path, lock: RunLock, file: Path) -> None:
        """A symbolic link in place of the lock is refused, and its target stays as it is."""
        (tmp_path / "precious").write_text("precious")
        file.symlink_to(tmp_path / "precious")
        with pytest.raises(HostFileError) as caught, lock.hold(Context()):
            pytest.fail("that is no lock")
        assert str(caught.value) == f"cannot open the lock {tmp_path}{LOCK}: {LOOP}"
        assert (tmp_path / "precious").read_text() == "precious"

    def test_a_lock_without_a_name_is_tried_again_at_once(
        self, lock: RunLock, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run that locked a file which its holder has just removed tries again at once, without a
        wait.
        """
        flock = fcntl.flock
        tries = []

        def end_first(descriptor: int, operation: int) -> None:
            flock(descriptor, operation)
            tries.append(descriptor)
            if len(tries) == 1:
                file.unlink()

        monkeypatch.setattr(fcntl, "flock", end_first)
        with lock.hold(Context(timeout=0.05)):
            assert len(tries) == 2

    def test_a_file_stays_with_the_time_of_its_hold(self, tmp_path: Path, lock: RunLock) -> None:
        """A locked file of other programs stays in place and empty, and has the time when it was
        locked.
        """
        file = tmp_path / FILE.lstrip("/")
        os.utime(file, ns=(0, 0))
        before = file.stat()
        with lock.hold_file(Context(), FILE):
            held = file.stat().st_mtime_ns
        after = file.stat()
        assert 0 < held == after.st_mtime_ns
        assert after.st_ino == before.st_ino
        assert after.st_size == 0

    def test_an_absent_file_is_not_made(self, tmp_path: Path, lock: RunLock) -> None:
        """Locking an absent file is an error that names the file and does not create it."""
        with (
            pytest.raises(HostFileError) as caught,
            lock.hold_file(Context(), "/etc/absent.lock"),
        ):
            pytest.fail("there is nothing to hold")
        assert str(caught.value) == (
            f"cannot open the lock {tmp_path}/etc/absent.lock: No such file or directory"
        )
        assert not (tmp_path / "etc/absent.lock").exists()

    def test_a_program_that_shares_a_file_is_waited_for(
        self, tmp_path: Path, lock: RunLock
    ) -> None:
        """A run waits for a program that holds a shared lock on the file, as a gate does with flock
        of util-linux.
        """
        argv = [
            "flock",
            "--shared",
            str(tmp_path / FILE.lstrip("/")),
            "sh",
            "-c",
            "echo held; read _",
        ]
        with subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as gate:
            assert gate.stdout is not None
            assert gate.stdout.readline() == "held\n"
            with pytest.raises(LockHeldError), lock.hold_file(at_once(1), FILE):
                pytest.fail("two holders at a time")
            gate.communicate("\n")
        with lock.hold_file(at_once(1), FILE):
            pass

    @needs("root")
    def test_a_file_on_a_read_only_disk_is_locked(self, tmp_path: Path, lock: RunLock) -> None:
        """A file on a read-only disk can be locked."""
        assert lock is not None
        script = f"""
            mount --bind {tmp_path}/etc {tmp_path}/etc || exit
            mount -o remount,bind,ro {tmp_path}/etc || exit
            exec "$0" -c "$1" {tmp_path}
        """
        argv = ["unshare", "--mount", "bash", "-c", script, sys.executable, HOLDER_OF_A_FILE]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.stdout == "held\n", done.stderr
        assert done.returncode == 0, done.stderr
