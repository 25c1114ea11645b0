"""The `hostrouting` command on a machine without systemd: apply_child.py ROOT WORDS..., the words
being the command's.

Routes are those of the network namespace that we are in; files, units and the lock are below ROOT.
"""

import sys

from hostrouting.__main__ import main as command
from hostrouting.host import Host


def _machine(root: str) -> Host:
    from hostrouting.host.files.lock import FileLock
    from hostrouting.host.files.store import RootedFiles
    from hostrouting.host.netlink import NetlinkBackend
    from hostrouting.host.netlink.events import NetlinkEvents
    from hostrouting.host.systemd.systemctl import OfflineUnits

    return Host(
        routes=NetlinkBackend(),
        services=OfflineUnits(root),
        files=RootedFiles(root),
        lock=FileLock(root=root),
        events=NetlinkEvents(),
    )


if __name__ == "__main__":
    root = sys.argv.pop(1)
    Host.live = lambda: _machine(root)  # type: ignore[method-assign]
    command()
