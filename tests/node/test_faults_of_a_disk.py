"""A real disk that fails within an apply, a first apply and a reset: afterwards it holds what the
run names, and no temporary file.
"""

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.named_states import EARLIER, NEW, State, disproved, is_named, statements, unnamed
from support.needs import needs
from support.patience import in_time
from support.run_nodes import gpu_node

from hostrouting import Configure, HostRoutingConfig, Reset
from hostrouting.host import Host
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.netlink.libc import call_libc
from hostrouting.testing import FakeHost, MemoryServices
from phases import Task, execute, run

_CLONE_NEWNS = 0x20000
_CHANGING = {"write", "link", "remove", "set_folder_mode", "remove_directory_if_empty"}


class FailingDisk:
    """Files of a disk; `fault` is called before the change with this number."""

    def __init__(self, files: RootedFiles) -> None:
        self._files = files
        self.changes = 0
        self.step = 0
        self.fault: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        if name in _CHANGING:
            self.changes += 1
            if self.changes == self.step:
                self.fault()
        return getattr(self._files, name)


class DiskNode:
    """A node in memory, but for its files: these are on a disk at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fake: FakeHost = gpu_node()
        self.disk = FailingDisk(RootedFiles(str(root)))
        files: Any = self.disk
        services = MemoryServices(files)
        self.host = Host(
            routes=self.fake.routes, services=services, files=files, lock=self.fake.lock
        )

    def state(self) -> State:
        below = [path for path in self.root.glob("etc/**/*") if not path.is_dir()]
        below += [path for path in self.root.glob("etc/**/*") if path.is_symlink()]
        files = {
            f"/{path.relative_to(self.root)}": f"-> {path.readlink()}"
            if path.is_symlink()
            else path.read_bytes().decode(errors="replace")
            for path in below
        }
        routes = [str(route) for route in self.host.routes.routes() if route.protocol == 142]
        return State(routes, files)


def apply(host: Host) -> Task:
    return Configure(NEW, host=host)


def reset(host: Host) -> Task:
    return Reset(HostRoutingConfig(), host=host)


STORIES = {"over": (True, apply), "first": (False, apply), "reset": (True, reset)}


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def fill(root: Path) -> None:
    """Let the disk have no block left."""
    with (root / "filling").open("wb", 0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def in_own_mounts(act: Callable[[], object]) -> None:
    """Call `act` in a thread with mounts of its own, which end with it."""
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            call_libc("unshare", _CLONE_NEWNS)
            mount("--make-rprivate", "/")
            act()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@pytest.mark.slow
@needs("root")
@pytest.mark.parametrize("trouble", ["read-only", "full"])
@pytest.mark.parametrize("story", STORIES)
def test_the_disk_holds_what_the_run_names(
    tmp_path: Path, story: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    """From a change on the disk is read-only, or full, also for the undo."""
    is_installed, task = STORIES[story]

    def node() -> DiskNode:
        mount("-t", "tmpfs", "-o", "size=8m,mode=755", "none", tmp_path)
        node = DiskNode(tmp_path)
        if is_installed:
            execute(Configure(EARLIER, host=node.host), in_time())
        node.disk.changes = 0
        return node

    def unmount() -> None:
        subprocess.run(["umount", "-l", tmp_path], check=True)

    def trials() -> None:
        undisturbed = node()
        before = undisturbed.state()
        execute(task(undisturbed.host), in_time())
        after = undisturbed.state()
        changes = undisturbed.disk.changes
        unmount()
        assert changes > 20
        for step in range(1, changes + 1, 4):
            broken = node()
            caplog.clear()
            broken.disk.step = step
            broken.disk.fault = (
                (lambda: mount("-o", "remount,ro", tmp_path))
                if trouble == "read-only"
                else (lambda: fill(tmp_path))
            )
            report = run(task(broken.host), in_time())
            now = broken.state()
            lines = statements(caplog.messages)
            unfinished = [line for line in caplog.messages if line.startswith("not undone")]
            where = story, trouble, step, lines, unfinished, str(report.error)
            assert not [path for path in now.files if ".hostrouting-" in path], where
            assert [*disproved(lines, now, before, after)] == [], where
            assert all(is_named(line, now, before) for line in unfinished), where
            if not lines + unfinished:
                assert not unnamed(report, now, before, after), where
            unmount()

    in_own_mounts(trials)
