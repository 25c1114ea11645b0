"""Configs of a node, and images to which they were applied."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.images import make_image

from benchmarks import world
from benchmarks.cases import OURS, Setting, command

#: Of a node as the demo has it; the first one holds the routes.
CIDRS = ("11.0.0.0/16", "172.16.0.0/12", "10.244.0.0/16", "10.96.0.0/12")
#: The folder of the boot's files.
BOOT = Path("/etc/aks-flex-node")


def neighbours(count: int) -> list[str]:
    """Return the networks of uniform routes."""
    return [route.destination for route in world.uniform(count)]


def config_file(
    setting: Setting,
    networks: Sequence[str],
    cidrs: Sequence[str] = (),
    *,
    gateway: str | None = world.GATEWAY,
    name: str = "config.json",
) -> str:
    """Write a config with routes to these networks, and return its path.

    Without a gateway, the default route completes them.
    """
    way = {"gateway": gateway, "dev": world.DEVICE} if gateway else {}
    routes = [{"destination": network, **way} for network in networks]
    # STRICT, so that an exit status of 0 means that all is well.
    document = {
        "staticRoutes": {"enabled": bool(routes), "routes": routes},
        "routeOverlap": {"expectedCidrs": list(cidrs), "mode": "STRICT"},
        "gates": [],
    }
    return write(setting, name, json.dumps({"hostRouting": document}))


def batch_file(setting: Setting, count: int) -> str:
    """Write the additions of so many routes for `ip`, and return the path."""
    lines = "".join(f"route add {route}\n" for route in world.uniform(count))
    return write(setting, f"batch-{count}", lines)


def write(setting: Setting, name: str, text: str) -> str:
    """Write a file, and return its path."""
    path = setting.folder / name
    path.write_text(text)
    return str(path)


def applied(setting: Setting, config: str, name: str = "applied") -> Path:
    """Apply a config to a new image, whose program is for this Python, and return the image."""
    root = setting.folder / name
    shutil.rmtree(root, ignore_errors=True)
    make_image(root)
    python = root / os.path.realpath(sys.executable)[1:]
    python.parent.mkdir(parents=True, exist_ok=True)
    python.touch(mode=0o755)
    command(OURS, root, "apply", config).run()
    world.clean()
    return root


def put_in_force(root: Path) -> None:
    """Have the files of an image where a boot has them."""
    world.demand_own_run()
    BOOT.unlink(missing_ok=True)
    # Not a copy: the files stay on a disk, so that its cache can be dropped.
    BOOT.symlink_to(root / str(BOOT)[1:])


@contextmanager
def in_force(root: Path) -> Iterator[None]:
    """Do so until the end of the block; afterwards no files are there."""
    put_in_force(root)
    try:
        yield
    finally:
        BOOT.unlink()
        world.clean()
