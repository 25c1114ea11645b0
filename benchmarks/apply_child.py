"""The `hostrouting` command on a machine without systemd: apply_child.py ROOT WORDS..., the words
being the command's.

Routes are those of the network namespace that we are in; files, units and the lock are below ROOT.
"""

import sys

from hostrouting.__main__ import main as command
from hostrouting.host import Host
from hostrouting.host.offline import late
from phases import Context


def _machine(root: str) -> Host:
    from hostrouting.boot.layout import READY_LINKS
    from hostrouting.host import UnitState
    from hostrouting.host.files.lock import FileLock
    from hostrouting.host.files.store import RootedFiles
    from hostrouting.host.netlink import NetlinkBackend
    from hostrouting.host.systemd.systemctl import OfflineUnits

    files = RootedFiles(root)

    class Units(OfflineUnits):
        """Those of a systemd that has read all files."""

        def state(self, ctx: Context, unit: str) -> UnitState:
            requires = frozenset(files.names(READY_LINKS))
            return super().state(ctx, unit)._replace(requires=requires)

    return Host(
        routes=NetlinkBackend(),
        services=Units(root),
        files=files,
        lock=FileLock(root=root),
        link_layer=late("netlink.link_layer", "NetlinkLinkLayer"),
        events=late("netlink.events", "NetlinkEvents"),
    )


if __name__ == "__main__":
    root = sys.argv.pop(1)
    setattr(Host, "live", lambda: _machine(root))  # noqa: B010 (a type checker refuses =)
    command()
