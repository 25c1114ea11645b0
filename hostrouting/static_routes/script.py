"""The unit that restores the routes at a boot, and its script, which can do so without Python."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from hostrouting.boot.layout import STATE_DIRECTORY, BootTemplate, BootUnit, Departure
from hostrouting.net.addresses import IPV4, IPV6

if TYPE_CHECKING:
    from hostrouting.config.sections import HostRoutingConfig, StaticRoute
    from hostrouting.net.exits import NamedExits

_TEMPLATE = BootTemplate("static-routes", "static-routes.sh", __file__)
DEPARTURE: Final = _TEMPLATE.departure
#: The last message about the routes in the journal.
LOGGED: Final = f"{STATE_DIRECTORY}/static-routes.told"


def render_script(config: HostRoutingConfig, exits: NamedExits) -> bytes:
    """Return the script for the routes of a config, which its `exits` complete.

    See `exits_under`. Bash and ip take no character of a device's name for anything else: see
    `hostrouting.net.addresses.check_device_name`.
    """
    text = _TEMPLATE.read_script().decode()
    for family, number in ((IPV4, 4), (IPV6, 6)):
        text = text.replace(f"@EXITS{number}@", " ".join(exits.get(family, ())))
    lines = map(_line, config.static_routes.routes)
    return text.replace("@ROUTES@", "".join(lines)).encode()


# An apply needs it three times: 2 ms for each 1,000 routes.
@lru_cache(maxsize=2)
def boot_part(
    config: HostRoutingConfig, exits: tuple[tuple[int, tuple[str, ...]], ...] = ()
) -> BootUnit | Departure:
    """Return the unit and the script to install for a config, or their removal without routes.

    `exits` are the items of `exits_under`, or of those that a run pins.
    """
    if not config.static_routes.routes:
        return DEPARTURE
    return _TEMPLATE.fill(render_script(config, dict(exits)))


def _line(route: StaticRoute) -> str:
    number = 4 if route.family == IPV4 else 6
    given = (number, route.destination, route.gateway or "-", route.dev or "-", route.metric)
    return " ".join(map(str, given)) + "\n"
