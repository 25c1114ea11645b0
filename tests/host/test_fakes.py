"""The contracts of the ports, on their fakes in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from host.contracts.files import READ_ONLY, FileStoreContract
from host.contracts.lock import RunLockContract
from host.contracts.services import LiveServiceManagerContract, ServiceManagerContract, Units
from support.patience import at_once

from hostrouting import HostRoutingConfig, render_files
from hostrouting.exceptions import BackendError, HostFileError, LockHeldError
from hostrouting.host import FileStore, RunLock, ServiceManager
from hostrouting.testing import FakeHost, MemoryFiles, MemoryLock, MemoryServices
from hostrouting.testing.memory_files import MemoryTree
from phases import Context


class TestMemoryFiles(FileStoreContract):
    @pytest.fixture
    def files(self) -> FileStore:
        """The files of the contract."""
        return MemoryFiles()

    def stamp(self, files: Any, path: str) -> Any:
        """See the contract."""
        return files.tree.file(path).generation

    def give_away(self, files: Any, path: str, user: int) -> None:
        """See the contract."""
        files.tree.change(path, owner=user)

    def touch(self, files: Any, path: str, seconds: float) -> None:
        """See the contract."""
        files.tree.change(path, modified=seconds)

    def open_up(self, files: Any, folder: str, mode: int) -> None:
        """See the contract."""
        files.tree.change(folder, mode=mode)

    @contextmanager
    def locked(self, files: Any, path: str) -> Iterator[None]:
        """See the contract."""
        files.tree.locked.add(path)
        yield
        files.tree.locked.remove(path)


@pytest.mark.parametrize(("method", "arguments", "reason"), READ_ONLY)
def test_a_read_only_disk_in_memory(method: str, arguments: dict[str, Any], reason: str) -> None:
    """A store in memory that is read-only refuses what a real read-only disk refuses, in the same
    words.
    """
    files = MemoryFiles()
    files.write("/a", b"", mode=0o644)
    files.read_only.add("")
    try:
        result = str(getattr(files, method)(**arguments))
    except HostFileError as error:
        result = str(error)
    assert result == reason


class TestMemoryServices(LiveServiceManagerContract):
    @pytest.fixture
    def files(self) -> FileStore:
        """The files of the contract."""
        return MemoryTree()

    @pytest.fixture
    def services(self, files: MemoryTree) -> ServiceManager:
        """The units of the contract."""
        return MemoryServices(files)

    def test_a_new_drop_in_is_no_reason_for_a_reload(self, units: Units) -> None:
        """As in systemd before 257, a loaded unit needs no reload for its first drop-in, so that
        code that counts on one fails in memory, too.
        """
        units.start_daemon("ct-gated.service")
        units.drop_in("ct-gated.service", "[Unit]\nDescription=new\n")
        assert not units.state("ct-gated.service").needs_reload


class TestMemoryServicesOfAnImage(ServiceManagerContract):
    @pytest.fixture
    def files(self) -> FileStore:
        """The files of the contract."""
        return MemoryTree()

    @pytest.fixture
    def services(self, files: MemoryTree) -> ServiceManager:
        """The units of the contract."""
        return MemoryServices(files, is_live=False)


class TestMemoryLock(RunLockContract):
    @pytest.fixture
    def lock(self) -> RunLock:
        """The lock of one run."""
        return MemoryLock()

    @pytest.fixture
    def other(self, lock: RunLock) -> RunLock:
        """The lock of another run."""
        return lock


def test_a_fake_machine_is_one() -> None:
    """The links and events of a fake machine are those of its routes, another run can hold its
    lock, and an image does not have a kernel.
    """
    host = FakeHost()
    assert host.link_layer.node is host.routes
    assert host.events is host.routes.events
    host.lock.holder = 7
    assert host.lock.is_held
    with pytest.raises(LockHeldError, match="process 7"), host.lock.hold(at_once(timeout=1)):
        pytest.fail("it is held")
    way_out = r"no ebtables; make it with Host\.live\(\), or give it one: ebtables="
    with pytest.raises(BackendError, match=way_out):
        FakeHost(is_live=False).ebtables.read(Context())


def test_the_command_of_a_fake_machine_is_not_that_of_the_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The units of a fake machine name /usr/bin/hostrouting, whatever command runs the test."""
    monkeypatch.setattr("sys.argv", ["/opt/agent/hostrouting"])
    host = FakeHost()
    host.files.write("/opt/agent/hostrouting", b"", mode=0o755)
    sections = {
        "watch": {"enabled": True, "mode": "service"},
        "routeOverlap": {"expected": ["aws"]},
    }
    files = render_files(HostRoutingConfig.from_mapping(sections), host=host).files
    assert b"\nExecStart=/usr/bin/hostrouting watch " in b"".join(file.content for file in files)
