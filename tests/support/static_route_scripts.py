"""Configs of static routes, and the program of a boot on a node."""

from collections.abc import Sequence

from support.kernel import host_of, kernel_of

from hostrouting import HostRoutingConfig, RouteOverlapConfig, StaticRoute, StaticRoutesConfig
from hostrouting.boot.installed_config import NewConfig
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.node.at_boot import answer
from hostrouting.testing import FakeHost, KernelNode


def static_route(text: str) -> StaticRoute:
    """Return a route of a config, by the text that `str` returns of it."""
    destination, *words = text.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    return StaticRoute(
        destination=destination,
        gateway=given.get("via"),
        dev=given.get("dev"),
        metric=int(given.get("metric", 0)),
    )


def config_of(routes: Sequence[StaticRoute], *, devs: Sequence[str] = ()) -> HostRoutingConfig:
    """A config of these routes, and of the devices that complete them."""
    return HostRoutingConfig(
        static_routes=StaticRoutesConfig(enabled=True, routes=tuple(routes)),
        route_overlap=RouteOverlapConfig(expected_devs=tuple(devs)),
    )


def install(host: FakeHost, config: HostRoutingConfig) -> FakeHost:
    """Install a config; return the host."""
    host.files.write(CONFIG_PATH, NewConfig(config=config).file.content, mode=0o644)
    return host


def repaired_at_boot(
    node: KernelNode, config: HostRoutingConfig
) -> tuple[int, list[tuple[int, str]]]:
    """Ask the program of a boot for the routes of a config; return its answer."""
    return answer(["ask", "STRICT"], host_of(kernel_of(node), install(FakeHost(), config)))
