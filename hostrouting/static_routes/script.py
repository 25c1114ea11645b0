"""The boot script, which does the work of the task with nothing but bash and ip, and its unit."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from hostrouting.boot.layout import RUNTIME_DIRECTORY, BootTemplate, BootUnit, Departure
from hostrouting.net.addresses import IPV4, IPV6, roots_of
from hostrouting.net.routes import metric_words

if TYPE_CHECKING:
    from hostrouting.config.sections import HostRoutingConfig, StaticRoute
    from hostrouting.net.exits import NamedExits

_TEMPLATE = BootTemplate("static-routes", "static-routes.sh", __file__)
DEPARTURE: Final = _TEMPLATE.departure

#: The last message of the script to journald.
LOGGED: Final = f"{RUNTIME_DIRECTORY}/static-routes.told"


def render_script(config: HostRoutingConfig, exits: NamedExits | None = None) -> bytes:
    """Return the boot script of a config; without routes it removes those of hostrouting.

    `exits` are those of the config: see `exits_under`. Only a route without a device needs them.
    """
    is_ipv6 = any(route.family == IPV6 for route in config.static_routes.routes)
    text = _TEMPLATE.read_script("ipv6" if is_ipv6 else "")
    for family, number in ((IPV4, ""), (IPV6, "6")):
        routes = [route for route in config.static_routes.routes if route.family == family]
        roots = roots_of((route.prefix for route in routes), family)
        commands = [f"route show root {root}" for root in roots]
        lines = map(_line, sorted(routes, key=_kernels_order))
        text = text.replace(f"@TABLE{number}@", "\n".join(commands))
        text = text.replace(f"@COUNT{number}@", str(len(routes)))
        is_open = any(route.dev is None for route in routes)
        names = (exits or {}).get(family, ()) if is_open else ()
        text = text.replace(f"@EXIT{number}@", " ".join(names))
        text = text.replace(f"@ROUTES{number}@", "".join(lines))
    return text.encode()


# An apply needs that of its exits three times, and a check that without them, too: 2 ms for each
# 1,000 routes.
@lru_cache(maxsize=2)
def boot_part(
    config: HostRoutingConfig, exits: tuple[tuple[int, tuple[str, ...]], ...] = ()
) -> BootUnit | Departure:
    """Return the unit and the script to install for a config, or their removal without routes.

    `exits` are the items of `exits_under`, or of those that a run pins.
    """
    script = render_script(config, dict(exits))
    return _TEMPLATE.fill(script) if config.static_routes.routes else DEPARTURE


def _kernels_order(route: StaticRoute) -> tuple[int, int, int]:
    """Return the sort key by which the kernel lists the routes of a family."""
    family, network, length = route.prefix
    # IPv6 lists a network after the networks inside it.
    return network if family == IPV4 else route.prefix.last, -length, route.metric


_given: Final = attrgetter("gateway", "dev", "metric")


def _line(route: StaticRoute) -> str:
    """Return one route as ip reads and shows it: a single address without a length.

    A name contains only characters that are plain for bash and ip: see
    `hostrouting.net.addresses.check_device_name`.
    """
    is_ipv6 = ":" in route.destination
    destination = route.destination.removesuffix("/128" if is_ipv6 else "/32")
    return f"{destination} {_after_destination(_given(route), is_ipv6)}\n"


# Thousands of routes differ in their destination alone.
@lru_cache(256)
def _after_destination(given: tuple[Any, ...], is_ipv6: bool) -> str:
    """Return the words of a next hop and of the metric.

    What a default route completes is between bars, which no device name has.
    """
    gateway, dev, metric = given
    to_dev = f"dev {dev or '?'}"
    if not gateway:
        hop = f"|via ? {to_dev}|"
    else:
        kind = "inet6 " if ":" in gateway and not is_ipv6 else ""
        hop = f"via {kind}{gateway} {to_dev if dev else f'|{to_dev}|'}"
    # ip ends a route of IPv4 with a blank.
    return f"{hop}{metric_words(metric)} {'pref medium' if is_ipv6 else ''}"
