"""The static routes in the list of a node's capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot.capability import SCRIPT_PROGRAMS, Capability
from hostrouting.static_routes.script import boot_part

if TYPE_CHECKING:
    from hostrouting.boot.intent import Part
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.static_routes.task import ConfigureStaticRoutes


def _task() -> type[ConfigureStaticRoutes]:
    from hostrouting.static_routes.task import ConfigureStaticRoutes

    return ConfigureStaticRoutes


def _parts(config: HostRoutingConfig, _host: Host | None) -> list[Part]:
    return [boot_part(config)]


STATIC_ROUTES: Final = Capability(
    section="static_routes",
    name="configure-static-routes",
    task=_task,
    parts=_parts,
    programs=SCRIPT_PROGRAMS,
)
