"""Whether azure-vnet is in use: the CNI configuration that names it, and its locks. Only read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import HostFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host import FileStore

__all__ = ["configured", "locked"]

#: Of this process, and of the one that gives out addresses; their names have changed with the versions.
_LOCKS: Final = tuple(
    f"{path}{ending}"
    for folder in ("/var/run", "/var/run/azure-vnet")
    for path in (f"{folder}/azure-vnet", f"{folder}/azure-vnet-ipam")
    for ending in (".json.lock", ".lock")
)
#: Where version 1.4.5 has them.
_LOCK_FOLDER: Final = "/var/lock/azure-vnet"
#: Locks of CNS, which runs for ever, and may serve the new CNI.
_OF_CNS: Final = ("azure-cns", "azure-endpoints")
_CONFIGURATION: Final = "/etc/cni/net.d"
#: What container runtimes read there; a `.cilium_bak` is none of it.
_ENDINGS: Final = (".conflist", ".conf", ".json")
#: How its programs' names begin: azure-vnet, azure-vnet-ipam, azure-vnet-telemetry.
_PLUGIN: Final = "azure-vnet"
_LONGEST_PID: Final = 10


def configured(files: FileStore) -> list[str]:
    """Why azure-vnet must be taken to be in use by the container runtime: one sentence for each file that names it."""
    paths = [f"{_CONFIGURATION}/{name}" for name in files.names(_CONFIGURATION) if name.endswith(_ENDINGS)]
    return [reason for path in paths if (reason := _why_configured(files, path))]


def _why_configured(files: FileStore, path: str) -> str | None:
    try:
        content = files.read(path) or b""
    except HostFileError as error:
        # A folder, or a link that leads to itself: what a runtime makes of it nobody knows.
        words = str(error).removeprefix(f"cannot read {path}: ")
        return f"{path} cannot be read ({words}); move it away if no container runtime uses it"
    try:
        return f"{path} names azure-vnet" if _names_azure_vnet(json.loads(content)) else None
    except (ValueError, RecursionError):
        if _PLUGIN.encode() in content:
            return f"{path} is no JSON that can be read, but has 'azure-vnet' in it"
    return None


def _names_azure_vnet(document: object) -> bool:
    """Whether a `type` is one of its programs, at any depth: some plugins (multus) call others that they name there."""
    if isinstance(document, list):
        return any(map(_names_azure_vnet, document))
    if not isinstance(document, dict):
        return False
    kind = document.get("type")
    if isinstance(kind, str) and kind.rstrip("/").rpartition("/")[2].startswith(_PLUGIN):
        return True
    return any(map(_names_azure_vnet, document.values()))


def locked(files: FileStore) -> list[str]:
    """Why azure-vnet must be taken to be running at this moment: one sentence for each lock that is held."""
    reasons = []
    for path in _locks(files):
        if files.is_locked(path):
            reasons.append(f"a process holds the lock {path}")
            continue
        # Older versions take no lock: that the file exists is the lock, and it has the holder's process id in it.
        pid = (files.read(path) or b"").strip()
        if pid.isdigit() and len(pid) <= _LONGEST_PID and files.exists(f"/proc/{int(pid)}"):
            reasons.append(f"process {int(pid)} holds the lock {path}")
    return reasons


def _locks(files: FileStore) -> Iterator[str]:
    yield from _LOCKS
    for name in files.names(_LOCK_FOLDER):
        if name.endswith(".lock") and not name.startswith(_OF_CNS):
            yield f"{_LOCK_FOLDER}/{name}"
