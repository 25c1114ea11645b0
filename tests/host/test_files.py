"""Files below a root: the contract on real ones, read-only disks, oddities, and killed writers."""

import fcntl
import io
import os
import signal
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

import pytest
from host.contracts.files import READ_ONLY, FileStoreContract
from support.needs import needs, require
from support.processes import ended

import hostrouting.host.files.rooted
import hostrouting.host.files.store
from hostrouting.exceptions import HostFileError
from hostrouting.host import FileStore
from hostrouting.host.files.store import RootedFiles

NOBODY = 65534


class TestRootedFiles(FileStoreContract):
    """The contract on real files, in a folder as the root."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """The root folder."""
        return tmp_path

    @pytest.fixture
    def files(self, root: Path) -> FileStore:
        """The files of the contract."""
        return RootedFiles(str(root))

    def stamp(self, files: FileStore, path: str) -> object:
        """See the contract."""
        status = self.outside(files, path).stat()
        return status.st_ino, status.st_mtime_ns

    def give_away(self, files: FileStore, path: str, user: int) -> None:
        """See the contract."""
        require("root")
        os.chown(self.outside(files, path), user, -1, follow_symlinks=False)

    def touch(self, files: FileStore, path: str, seconds: float) -> None:
        """See the contract."""
        os.utime(self.outside(files, path), (seconds, seconds))

    def open_up(self, files: FileStore, folder: str, mode: int) -> None:
        """See the contract."""
        self.outside(files, folder).chmod(mode)

    @contextmanager
    def locked(self, files: FileStore, path: str) -> Iterator[None]:
        """See the contract."""
        with self.outside(files, path).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def test_the_other_kind_of_lock_is_seen(self, files: FileStore) -> None:
        """A lock by fcntl, as newer programs take it, is seen."""
        files.write("/run/other/a", b"", mode=0o644)
        with self.outside(files, "/run/other/a").open("r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            assert files.is_locked("/run/other/a")

    def outside(self, files: Any, path: str) -> Path:
        """Return the path outside of the image."""
        return Path(files.root + path)


class TestTheRoot:
    def test_paths_are_absolute(self, tmp_path: Path) -> None:
        """A relative path is refused as a mistake of the caller."""
        with pytest.raises(ValueError, match="'etc/a' is not an absolute path"):
            RootedFiles(str(tmp_path)).read("etc/a")

    def test_must_exist_to_be_written_below(self, tmp_path: Path) -> None:
        """Folders are made below the root, never the root."""
        with pytest.raises(HostFileError, match="No such file or directory"):
            RootedFiles(str(tmp_path / "typo")).write("/etc/a", b"", mode=0o644)
        assert list(tmp_path.iterdir()) == []


class TestFolders:
    def test_are_made_for_all_to_read(self, tmp_path: Path) -> None:
        """Missing folders are created with mode 0755, and files with their own, whatever the umask;
        an existing folder keeps its mode.
        """
        (tmp_path / "etc").mkdir(mode=0o700)
        before = os.umask(0o077)
        try:
            RootedFiles(str(tmp_path)).write("/etc/own/deep/a", b"", mode=0o644)
        finally:
            os.umask(before)
        modes = [
            (tmp_path / name).stat().st_mode & 0o7777
            for name in ("etc", "etc/own", "etc/own/deep", "etc/own/deep/a")
        ]
        assert modes == [0o700, 0o755, 0o755, 0o644]

    def test_close_together_after_a_walk(self) -> None:
        """Folders are closed without Python code between the calls of `os.close`, where a signal
        handler that raises would leave the rest open.
        """

        def refuse(*event: object) -> None:
            assert event[2] is not os.close

        sys.setprofile(refuse)
        RootedFiles().exists("/usr/lib")
        sys.setprofile(None)


@needs("root")
class TestAReadOnlyDisk:
    @staticmethod
    def result(tmp_path: Path, method: str, arguments: dict[str, Any]) -> str:
        """Return what a call of the store returns, or the text of its error, with /a a file."""
        (tmp_path / "a").touch()
        program = (
            "from hostrouting.exceptions import HostFileError\n"
            "from hostrouting.host.files.store import RootedFiles\n"
            f"files = RootedFiles({str(tmp_path)!r})\n"
            f"try:\n    print(files.{method}(**{arguments!r}))\n"
            "except HostFileError as error:\n    print(error)\n"
        )
        mounts = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,bind,ro {tmp_path}"
        command = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
        command += [sys.executable, "-c", program]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        own = done.stdout.replace(f"-T {tmp_path}", "-T /")
        return own.replace(str(tmp_path), "").rstrip()

    @pytest.mark.parametrize(("method", "arguments", "message"), READ_ONLY)
    def test_refuses_only_what_would_change_it(
        self, tmp_path: Path, method: str, arguments: dict[str, Any], message: str
    ) -> None:
        """A read-only disk refuses only the calls that would change it: the removal of an absent
        file is allowed.
        """
        assert self.result(tmp_path, method, arguments) == message


class TestOddities:
    @staticmethod
    def mounted(root: Path, mount: str, call: str) -> subprocess.CompletedProcess[str]:
        """Print the answer of the files of a folder, after a mount that nobody else sees."""
        store = "from hostrouting.host.files.store import RootedFiles"
        program = f"{store}; print(RootedFiles('{root}').{call})"
        script = f'mount -t tmpfs {mount} || exit 2; exec {sys.executable} -c "$0"'
        return ended("unshare", "--mount", "bash", "-c", script, program)

    @needs("root")
    def test_a_folder_that_is_a_mount_point_stays(self, tmp_path: Path) -> None:
        """An empty folder that is a mount point, which the kernel calls busy, stays without an
        error.
        """
        (tmp_path / "a").mkdir()
        done = self.mounted(tmp_path, f"none {tmp_path}/a", "remove_directory_if_empty('/a')")
        assert done.stdout == "False\n"
        assert done.stderr == ""

    @needs("root")
    def test_a_disk_without_free_inodes_is_full(self, tmp_path: Path) -> None:
        """A disk without free inodes is full for a new file, however many blocks are free."""
        mount = f"-o nr_inodes=1 none {tmp_path}"
        done = self.mounted(tmp_path, mount, "refuse_unwritable('/etc', size=1)")
        assert done.returncode == 1
        assert "/etc: No space left on device" in done.stderr

    def test_a_fifo_does_not_keep_us_waiting(self, tmp_path: Path) -> None:
        """A fifo without writer is read as empty without a wait, and replaced by a write."""
        os.mkfifo(tmp_path / "a")
        files = RootedFiles(str(tmp_path))
        assert files.read("/a") == b""
        assert files.write("/a", b"", mode=0o644)
        assert (tmp_path / "a").is_file()

    @needs("root")
    def test_a_file_of_another_user_stays(self, tmp_path: Path) -> None:
        """A file of another user is not a leftover of our writers, whatever its name."""
        for name in ".a.hostrouting-0123456789abcdef", ".b.hostrouting-0123456789abcdef":
            (tmp_path / name).touch()
        # The last one.
        os.chown(tmp_path / name, NOBODY, -1)
        RootedFiles(str(tmp_path)).write("/c", b"", mode=0o644)
        assert entries(tmp_path) == [name, "c"]

    @pytest.mark.parametrize(("end", "is_locked"), [("", True), ("0", False)])
    def test_a_lock_is_that_of_a_whole_number(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, end: str, is_locked: bool
    ) -> None:
        """A file is locked only if the kernel's list of locks has its whole inode number, and not
        one that begins with it.
        """
        (tmp_path / "a").touch()
        found = os.stat(tmp_path / "a")  # noqa: PTH116 (as the kernel writes it)
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        listed = io.StringIO(f"1: FLOCK  ADVISORY  WRITE 5 {place}{end} 0 EOF\n")
        monkeypatch.setattr(
            "hostrouting.host.files.store.open", lambda *_, **__: listed, raising=False
        )
        assert RootedFiles(str(tmp_path)).is_locked("/a") is is_locked

    def test_a_loss_of_power_finds_all_on_the_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The content and the mode are synced before the rename and the folder after it, so that a
        name never has a part of them.
        """
        steps: list[object] = []
        rename = os.rename

        def note_sync(descriptor: int) -> None:
            status = os.fstat(descriptor)
            is_folder = stat.S_ISDIR(status.st_mode)
            mode = stat.S_IMODE(status.st_mode)
            steps.append(("sync", "folder") if is_folder else ("sync", status.st_size, mode))

        def note_rename(before: str, after: str, **folders: Any) -> None:
            steps.append("rename")
            rename(before, after, **folders)

        monkeypatch.setattr(os, "fsync", note_sync)
        monkeypatch.setattr(os, "rename", note_rename)
        files = RootedFiles(str(tmp_path))
        files.write("/a", b"one\n", mode=0o644)
        # Each slice below has the steps of one more act.
        assert steps == [("sync", 4, 0o644), "rename", ("sync", "folder")]
        files.write("/a", b"one\n", mode=0o755)
        assert steps[3:] == [("sync", 4, 0o755)]
        files.remove("/a")
        assert steps[4:] == [("sync", "folder")]
        files.write("/etc/a", b"", mode=0o644)
        assert steps[5:] == [("sync", "folder"), ("sync", 0, 0o644), "rename", ("sync", "folder")]
        files.link("/b", "a")
        assert steps[9:] == ["rename", ("sync", "folder")]
        (tmp_path / "c").mkdir()
        files.set_folder_mode("/c", 0o700)
        assert steps[11:] == [("sync", "folder")]
        files.remove_directory_if_empty("/c")
        assert steps[12:] == [("sync", "folder")]

    def test_only_its_writer_can_open_an_unfinished_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file has no mode that lets another user read it until its content is whole."""
        modes = []

        def note_mode(descriptor: int, _mode: int) -> None:
            modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))

        monkeypatch.setattr(os, "fchmod", note_mode)
        RootedFiles(str(tmp_path)).write("/a", b"secret\n", mode=0o644)
        assert modes == [0o600]

    @pytest.mark.parametrize("error", [OSError(28, os.strerror(28)), KeyboardInterrupt()])
    def test_a_write_that_fails_midway_leaves_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
    ) -> None:
        """A write that fails on a full disk, or by Ctrl-C, leaves the old content and no temporary
        file, as does a link in the place of a folder.
        """
        files = RootedFiles(str(tmp_path))
        files.write("/a", b"old\n", mode=0o644)
        monkeypatch.setattr(os, "fsync", Mock(side_effect=error))
        with pytest.raises((HostFileError, KeyboardInterrupt)) as caught:
            files.write("/a", b"new\n", mode=0o644)
        assert isinstance(error, KeyboardInterrupt) or str(caught.value) == (
            f"cannot write {tmp_path}/a: No space left on device; "
            f'run: du -xah "$(findmnt -n -o TARGET -T {tmp_path})" | sort -h | tail'
        )
        assert (tmp_path / "a").read_bytes() == b"old\n"
        (tmp_path / "b").mkdir()
        with pytest.raises(HostFileError, match="Is a directory"):
            files.link("/b", "a")
        assert entries(tmp_path) == ["a", "b"]


class TestWithoutPrivilege:
    @pytest.fixture
    def locked(self) -> Generator[Path]:
        """Return a folder of root with a file that only root may read; other users may not list it."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            folder.chmod(0o711)
            (folder / "open").write_text("open")
            (folder / "secret").write_text("secret")
            (folder / "secret").chmod(0o000)
            folder.chmod(0o511 if os.geteuid() else 0o711)
            yield folder
            folder.chmod(0o700)

    def test_a_readable_file_is_read_without_root(self, locked: Path) -> None:
        """A file that all may read is read from a folder that may only be searched."""
        with plain_user():
            assert RootedFiles(str(locked)).read("/open") == b"open"

    @pytest.mark.parametrize(
        ("verb", "act"),
        [
            ("read", lambda files: files.read("/secret")),
            ("write", lambda files: files.write("/new", b"", mode=0o644)),
            ("write", lambda files: files.write("/new/a", b"", mode=0o644)),
        ],
    )
    def test_a_lack_of_permission_names_root(
        self, locked: Path, verb: str, act: Callable[[RootedFiles], object]
    ) -> None:
        """A call that does not have permission raises an error that has the path and the reason, and
        suggests root.
        """
        with plain_user(), pytest.raises(HostFileError) as caught:
            act(RootedFiles(str(locked)))
        message = str(caught.value)
        assert message.startswith(f"cannot {verb} {locked}/")
        assert message.endswith(": Permission denied; run this as root")


@contextmanager
def plain_user() -> Generator[None]:
    """Drop root's privileges; do nothing without them."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestKilledWriters:
    @pytest.mark.slow
    @pytest.mark.parametrize("old", [None, b"old\n"])
    def test_a_write_is_whole_wherever_it_is_killed(
        self, tmp_path: Path, old: bytes | None
    ) -> None:
        """A write that is killed before any line leaves the old file, or none, or the new one; the
        next write cleans up.
        """
        seen = set()
        for line in range(1, 1000):
            root = tmp_path / str(line)
            root.mkdir()
            files = RootedFiles(str(root))
            own_file = root / "etc/own"
            if old is not None:
                files.write("/etc/own/a", old, mode=0o644)
            write = partial(files.write, "/etc/own/a", b"new\n", mode=0o755)
            finished = not killed_at(line, write)
            content = files.read("/etc/own/a")
            assert files.names("/etc/own") == ["a"] * (content is not None)
            seen.add((content, own_file.exists() and entries(own_file) != files.names("/etc/own")))
            write()
            assert files.read("/etc/own/a") == b"new\n"
            assert (own_file / "a").stat().st_mode & 0o7777 == 0o755
            assert entries(own_file) == ["a"]
            if finished:
                break
        else:
            pytest.fail("the write never came to its end")
        # All three states occurred: killed before the new file, during its write, and after it.
        assert seen == {(old, False), (old, True), (b"new\n", False)}

    def test_leftovers_go_with_the_file(self, tmp_path: Path) -> None:
        """The removal of a file removes the leftovers of its killed writers, so that the folder can
        be removed afterwards.
        """
        files = RootedFiles(str(tmp_path))
        (tmp_path / "own").mkdir()
        (tmp_path / "own/.a.hostrouting-0123456789abcdef").touch()
        assert files.names("/own") == []
        assert files.remove("/own/a") is False
        assert files.remove_directory_if_empty("/own") is True

    def test_leftovers_go_when_there_is_nothing_to_write(self, tmp_path: Path) -> None:
        """A write removes leftovers, even if the file has the wanted content already."""
        files = RootedFiles(str(tmp_path))
        files.write("/a", b"one\n", mode=0o644)
        (tmp_path / ".a.hostrouting-0123456789abcdef").touch()
        assert files.write("/a", b"one\n", mode=0o644) is False
        assert entries(tmp_path) == ["a"]

    def test_those_of_living_writers_and_of_others_stay(self, tmp_path: Path) -> None:
        """The unfinished file of a live writer, which holds a lock on it, and a file whose name
        only resembles a leftover stay.
        """
        files = RootedFiles(str(tmp_path))
        alive = tmp_path / ".a.hostrouting-0123456789abcdef"
        foreign_file = [
            ".b.hostrouting-0123",
            ".b.hostrouting-0123456789abcdeg",
            "b.hostrouting-0123456789abcdef",
        ]
        for name in *foreign_file, ".b.hostrouting-0123456789abcdef":
            (tmp_path / name).touch()
        (tmp_path / ".c.hostrouting-0123456789abcdef").mkdir()
        with alive.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            files.write("/a", b"one\n", mode=0o644)
        assert entries(tmp_path) == sorted(
            [alive.name, *foreign_file, ".c.hostrouting-0123456789abcdef", "a"]
        )

    def test_a_folder_is_swept_of_files_and_links(self, tmp_path: Path) -> None:
        """A sweep removes unfinished files and links from a folder, and accepts a folder that is
        clean or absent.
        """
        files = RootedFiles(str(tmp_path))
        files.write("/etc/own/a", b"", mode=0o644)
        (tmp_path / "etc/own/.gone.hostrouting-0123456789abcdef").touch()
        (tmp_path / "etc/own/.link.hostrouting-0123456789abcdef").symlink_to("/nowhere")
        for folder in "/etc/own", "/etc/own", "/nowhere":
            files.sweep(folder)
        assert entries(tmp_path / "etc/own") == ["a"]

    def test_a_writer_whose_unfinished_file_another_one_sweeps_makes_it_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A writer creates a file again that another writer sweeps before the file is locked, and a
        link that another one sweeps before the link has its name.
        """
        files = RootedFiles(str(tmp_path))

        def let_another_sweep_before(module: Any, name: str) -> None:
            call = getattr(module, name)

            def sweep_once(*arguments: Any, **options: Any) -> None:
                monkeypatch.setattr(module, name, call)
                assert entries(tmp_path) != files.names("/")
                files.sweep("/")
                assert entries(tmp_path) == files.names("/")
                call(*arguments, **options)

            monkeypatch.setattr(module, name, sweep_once)

        let_another_sweep_before(fcntl, "flock")
        files.write("/a", b"one\n", mode=0o644)
        let_another_sweep_before(os, "rename")
        files.link("/b", "a")
        assert entries(tmp_path) == ["a", "b"]
        assert files.read("/b") == b"one\n"


def killed_at(line: int, action: Callable[[], object]) -> bool:
    """Run `action` in a child that is killed before a line of the file code; return False if it
    ended before.
    """
    with warnings.catch_warnings():
        # Python 3.12 warns of forks while threads run, as the test runner may have: the child
        # touches none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            sys.settrace(_killer(line))
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _killer(line: int) -> Callable[[FrameType, str, Any], Any]:
    own_file = {hostrouting.host.files.store.__file__, hostrouting.host.files.rooted.__file__}
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in own_file:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace
