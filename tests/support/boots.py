"""Shortcuts of the tests of `Boot`, and the files of a fake machine by short names."""

from support.boot_units import NSPAWN, stand_in

from hostrouting.boot.boot import Boot
from hostrouting.boot.intent import Part
from hostrouting.boot.steps import GENERATION_LINK, LINKED_PATHS, generation_folders
from hostrouting.testing import FakeHost, MemoryServices
from hostrouting.testing.memory_files import MemoryTree
from phases import Context

UNITS = "/etc/systemd/system"
READY = f"{UNITS}/hostrouting-ready.service"
DROP_IN = f"{UNITS}/{NSPAWN}.d/10-hostrouting.conf"
KUBELET_DROP_IN = f"{UNITS}/kubelet.service.d/10-hostrouting.conf"
UNFINISHED = "/run/hostrouting.unfinished"


def boot(host: FakeHost, *gates: str) -> Boot:
    return Boot(host, gates=gates or (NSPAWN,))


def install(host: FakeHost, *parts: Part | str) -> bool:
    """Install these parts, or the stand-ins of these names, before the usual gate."""
    return boot(host).install(Context(timeout=60), *map(_part, parts))


def planned(host: FakeHost, *parts: Part | str) -> list[str]:
    """Return the plan of the same."""
    return [*map(str, boot(host).plan_install(Context(timeout=60), *map(_part, parts)))]


def _part(part: Part | str) -> Part:
    return stand_in(part) if isinstance(part, str) else part


def reloads(services: MemoryServices) -> int:
    return services.operations.calls.count(("daemon_reload",))


def pids_of_machines(host: FakeHost) -> list[int]:
    """Return the main processes of the machines that run."""
    return [state.main_pid for state in host.services.loaded(Context(), NSPAWN) if state.is_running]


def seen(tree: MemoryTree) -> dict[str, str]:
    """The text of each file, and the target of each link but those to scripts, by path."""
    folders = tuple(f"{folder}/" for folder in generation_folders(tree))
    shown = {
        path: text
        for path, text in tree.snapshot().items()
        if path != GENERATION_LINK and not path.startswith(folders or "\0")
    }
    return {
        path: (tree.read(path) or b"").decode(errors="replace") if path in LINKED_PATHS else text
        for path, text in shown.items()
    }
