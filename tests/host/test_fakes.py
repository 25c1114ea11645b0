from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.contracts.files import FileStoreContract
from support.contracts.lock import RunLockContract
from support.contracts.services import LiveServiceManagerContract, ServiceManagerContract, Units

from hostrouting.exceptions import BackendError, UnitError
from hostrouting.host import FileStore, RunLock, ServiceManager
from hostrouting.testing.host_fakes import FakeHost, MemoryLock
from hostrouting.testing.memory_files import MemoryFiles, MemoryTree
from hostrouting.testing.memory_services import MemoryServices
from phases import Context
from phases.testing import ManualClock

UNITS = "/etc/systemd/system"


class TestMemoryFiles(FileStoreContract):
    @pytest.fixture
    def files(self) -> FileStore:
        """The files of the contract."""
        return MemoryFiles()

    def stamp(self, files: FileStore, path: str) -> object:
        """See the contract."""
        assert isinstance(files, MemoryFiles)
        file = files.tree.file(path)
        assert file is not None
        return file.generation

    def give_away(self, files: FileStore, path: str, user: int) -> None:
        """See the contract."""
        assert isinstance(files, MemoryFiles)
        files.tree.change(path, owner=user)

    def touch(self, files: FileStore, path: str, seconds: float) -> None:
        """See the contract."""
        assert isinstance(files, MemoryFiles)
        files.tree.change(path, modified=seconds)

    def open_up(self, files: FileStore, folder: str, mode: int) -> None:
        """See the contract."""
        assert isinstance(files, MemoryFiles)
        files.tree.change(folder, mode=mode)

    @contextmanager
    def locked(self, files: FileStore, path: str) -> Iterator[None]:
        """See the contract."""
        assert isinstance(files, MemoryFiles)
        files.tree.locked.add(path)
        yield
        files.tree.locked.remove(path)

    def test_a_tree_shows_itself(self) -> None:
        """`snapshot` is all files and links; arranging and looking are no operations."""
        files = MemoryFiles()
        files.tree.write("/etc/a", b"one", mode=0o644)
        files.tree.link("/etc/b", "a")
        files.tree.make_directory("/srv/empty")
        assert files.tree.snapshot() == {"/etc/a": "one", "/etc/b": "-> a"}
        assert files.tree.names("/") == ["etc", "srv"]
        assert files.operations.calls == []


class TestMemoryServices(LiveServiceManagerContract):
    @pytest.fixture
    def files(self) -> FileStore:
        """The files of the contract."""
        return MemoryTree()

    @pytest.fixture
    def services(self, files: MemoryTree) -> ServiceManager:
        """The units of the contract."""
        return MemoryServices(files)

    def test_a_unit_fails_where_the_test_says_so(self, ctx: Context) -> None:
        """A unit in `failing` fails at its start until it is taken out; `started` has both attempts."""
        tree = MemoryTree()
        services = MemoryServices(tree)
        Units(services, tree, ctx).install("check.service")
        services.failing.add("check.service")
        with pytest.raises(UnitError, match=r"Job for check\.service failed"):
            services.start(ctx, "check.service")
        services.failing.clear()
        services.start(ctx, "check.service")
        assert services.started == ["check.service", "check.service"]
        assert services.state(ctx, "check.service").active_state == "inactive"


class TestMemoryServicesOfAnImage(ServiceManagerContract):
    @pytest.fixture
    def files(self) -> FileStore:
        """The files of the contract."""
        return MemoryTree()

    @pytest.fixture
    def services(self, files: MemoryTree) -> ServiceManager:
        """The units of the contract."""
        return MemoryServices(files, is_live=False)

    def test_nothing_is_started(self, ctx: Context) -> None:
        """In an image a start does nothing, for a present unit and for an absent one."""
        services = MemoryServices(MemoryTree(), is_live=False)
        services.start(ctx, "ct-absent.service")
        assert services.started == []


class TestMemoryLock(RunLockContract):
    @pytest.fixture
    def lock(self) -> RunLock:
        """The lock of one run."""
        return MemoryLock()

    @pytest.fixture
    def other(self, lock: RunLock) -> RunLock:
        """The lock of another run."""
        return lock

    def test_a_test_may_let_another_process_hold_it(self) -> None:
        """`holder` is the process that holds the lock; the error names it."""
        lock = MemoryLock()
        lock.holder = 4711
        assert lock.is_held
        hurried = Context(timeout=1, clock=ManualClock(auto=True))
        with pytest.raises(Exception, match=r"\(process 4711\)"), lock.hold(hurried):
            pytest.fail("another process has it")
        lock.holder = None
        with lock.hold(Context()):
            assert lock.is_held
        assert not lock.is_held


class TestFakeHost:
    def test_its_parts_make_one_machine(self) -> None:
        """The units are the unit files of the same host."""
        host = FakeHost()
        host.files.write(f"{UNITS}/a.service", b"[Service]\nType=oneshot\nExecStart=/bin/true\n", mode=0o644)
        host.services.start(Context(), "a.service")
        assert host.services.started == ["a.service"]
        assert host.is_live
        assert [link.name for link in host.routes.links()] == ["lo"]

    def test_reading_units_is_no_operation_on_files(self) -> None:
        """The file operations that a test lets fail do not include those of the fake systemd."""
        host = FakeHost()
        host.files.fail_at(1)
        assert not host.services.state(Context(), "a.service").exists

    def test_an_image_has_no_kernel(self) -> None:
        """With `is_live=False` routes are refused, and nothing runs."""
        host = FakeHost(is_live=False)
        with pytest.raises(BackendError):
            host.routes.links()
        host.services.start(Context(), "a.service")
        assert not host.is_live
