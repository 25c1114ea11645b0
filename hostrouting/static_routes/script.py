"""What runs at boot: the script that does what the task does, with nothing but bash and ip, and its unit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hostrouting.boot import RUNTIME_DIRECTORY, SCRIPT_DIRECTORY, UNIT_DIRECTORY, BootFile, BootUnit, with_shared
from hostrouting.net.addresses import parse_cidr

if TYPE_CHECKING:
    from hostrouting.config import HostRoutingConfig, StaticRoute

__all__ = [
    "PATHS",
    "RUN_FILES",
    "SCRIPT_PATH",
    "UNIT_NAME",
    "UNIT_PATH",
    "boot_unit",
    "render_script",
    "render_unit",
]

UNIT_NAME: Final = "static-routes.service"
SCRIPT_PATH: Final = f"{SCRIPT_DIRECTORY}/static-routes.sh"
UNIT_PATH: Final = f"{UNIT_DIRECTORY}/{UNIT_NAME}"
#: All that is installed, in the order in which it is written.
PATHS: Final = (SCRIPT_PATH, UNIT_PATH)

#: What the script may leave on a machine that runs: how long it waited, and what it told the journal last.
RUN_FILES: Final = (f"{RUNTIME_DIRECTORY}/static-routes.waited", f"{RUNTIME_DIRECTORY}/static-routes.told")

_ASSETS: Final = Path(__file__).parent / "assets"


def render_script(config: HostRoutingConfig) -> bytes:
    """The boot script; the same config gives the same bytes. Without routes it takes away those that are ours."""
    routes = sorted(config.static_routes.routes, key=_kernels_order)
    template = with_shared((_ASSETS / "static-routes.sh").read_text(encoding="utf-8"))
    return template.replace("@COUNT@", str(len(routes))).replace("@ROUTES@", "".join(map(_line, routes))).encode()


def render_unit() -> bytes:
    """The oneshot that runs it, the same on every node."""
    return (_ASSETS / UNIT_NAME).read_bytes()


def boot_unit(config: HostRoutingConfig) -> BootUnit:
    """What is to be installed for this config."""
    script = BootFile(path=SCRIPT_PATH, content=render_script(config), mode=0o755)
    return BootUnit(name=UNIT_NAME, files=(script, BootFile(path=UNIT_PATH, content=render_unit(), mode=0o644)))


def _kernels_order(route: StaticRoute) -> tuple[int, int, int]:
    """As the kernel lists them, so that the script can compare all of them at once."""
    network, prefix_length = parse_cidr(route.destination)
    return network, -prefix_length, route.metric


def _line(route: StaticRoute) -> str:
    """One route as ip reads it, and as it shows it: a single address has no length there.

    A device name has no quote in it, nor anything else that bash or ip could take for more than a part of a name: see
    `hostrouting.net.addresses.check_device_name`. A question mark is no part of it either.
    """
    metric = f" metric {route.metric}" if route.metric else ""
    destination = route.destination.removesuffix("/32")
    return f"{destination} via {route.gateway or '?'} dev {route.dev or '?'}{metric}\n"
