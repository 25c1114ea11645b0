"""Keep the routes of a node right from a container: the program of examples/daemonset.yaml.

    python examples/container.py CONFIG ROOT

ROOT is the folder where the file system of the node is mounted. Nothing is installed there: the
routes last until the next boot, and the pod adds them again. A node where a config is installed is
left alone, because that config and its watch look after its routes already.
"""

from __future__ import annotations

import logging
import sys

from hostrouting import Configure, Host, HostRoutingConfig, Watch
from hostrouting.exceptions import HostRoutingError
from phases import Serial, run, with_timeout


def main(config_path: str, root: str) -> int:
    """Change and check the routes, then keep them until SIGTERM; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        config = HostRoutingConfig.from_file(config_path)
        host = Host.live(boot=False, root=root)
    except HostRoutingError as error:
        print(error, file=sys.stderr)
        return 2
    configure = with_timeout(Configure(config, host=host), 120)
    work = Serial(configure, Watch(config, host=host), name="container")
    report = run(work, handle_signals=True)
    print(report)
    # SIGTERM is how a pod ends.
    return 0 if report.status in {"ok", "cancelled"} else 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/container.py CONFIG ROOT")
    sys.exit(main(*sys.argv[1:]))
