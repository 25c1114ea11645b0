"""The unit that restores the routes at boot, and its script, which also works without Python."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from hostrouting.boot.layout import STATE_DIRECTORY, BootTemplate, BootUnit, UnitRemoval
from hostrouting.net.addresses import IPV4

if TYPE_CHECKING:
    from hostrouting.config.sections import HostRoutingConfig, StaticRoute

_TEMPLATE = BootTemplate("static-routes", "static-routes.sh", __file__)
REMOVAL: Final = _TEMPLATE.removal
#: The last message about the routes that was logged.
LOGGED: Final = f"{STATE_DIRECTORY}/static-routes.message"


def render_script(config: HostRoutingConfig) -> bytes:
    """Return the script for the routes of a config.

    Device names are safe in bash and `ip`: see `hostrouting.net.addresses.check_device_name`.
    """
    text = _TEMPLATE.read_script().decode()
    text = text.replace("@DEVS@", " ".join(config.devs))
    lines = map(_line, config.static_routes.routes)
    return text.replace("@ROUTES@", "".join(lines)).encode()


# An apply calls this three times, and 1,000 routes take 2 ms.
@lru_cache(maxsize=2)
def boot_part(config: HostRoutingConfig) -> BootUnit | UnitRemoval:
    """Return the unit and script to install for a config, or their removal if it has no routes."""
    if not config.static_routes.routes:
        return REMOVAL
    return _TEMPLATE.fill(render_script(config))


def _line(route: StaticRoute) -> str:
    number = 4 if route.family == IPV4 else 6
    given = (number, route.destination, route.gateway or "-", route.dev or "-", route.metric)
    return " ".join(map(str, given)) + "\n"
