"""Prepare an image: files and units below a folder, for gates at the first boot of its machines.

    python examples/image.py DIRECTORY

It neither reads nor changes the state of the running machine, even if DIRECTORY is `/`. The image
needs a Python of 3.10 or newer as /usr/bin/python3, because the mode is STRICT.
"""

from __future__ import annotations

import sys

from hostrouting import Configure, Host, HostRoutingConfig, OverlapMode, RouteOverlapConfig
from phases import execute, plan

CONFIG = HostRoutingConfig(
    route_overlap=RouteOverlapConfig(
        expected_cidrs=("172.16.0.0/16",),
        # The network of the exit: its device has another name on each kind of machine.
        expected_devs=("10.224.0.0/16",),
        mode=OverlapMode.STRICT,
    ),
    gates=("systemd-nspawn@.service", "kubelet.service"),
)


def main(root: str) -> None:
    """Install the check and the gates, and show that a second run would change nothing."""
    host = Host.offline(root)
    execute(Configure(CONFIG, host=host))
    for path in host.files.names("/etc/systemd/system"):
        print(f"/etc/systemd/system/{path}")
    print("left to do:", *plan(Configure(CONFIG, host=host)).changes or ["nothing"])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/image.py DIRECTORY")
    main(sys.argv[1])
