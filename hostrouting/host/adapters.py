"""The adapters that `Host.live` and `Host.offline` make at once."""

from hostrouting.host.files.lock import FileLock
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.systemd.notify import supervisor_of
from hostrouting.host.systemd.systemctl import OfflineUnits, Systemctl

__all__ = [
    "FileLock",
    "NetlinkBackend",
    "OfflineUnits",
    "RootedFiles",
    "Systemctl",
    "supervisor_of",
]
