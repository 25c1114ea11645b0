"""The check of addresses in the list of a node's capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot.capability import SCRIPT_PROGRAMS, Capability
from hostrouting.route_overlap.script import boot_part

if TYPE_CHECKING:
    from hostrouting.boot import Part
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.route_overlap.task import CheckRouteOverlap


def _task() -> type[CheckRouteOverlap]:
    from hostrouting.route_overlap.task import CheckRouteOverlap

    return CheckRouteOverlap


def _parts(config: HostRoutingConfig, _host: Host | None) -> list[Part]:
    return [boot_part(config)]


ROUTE_OVERLAP: Final = Capability(
    section="route_overlap",
    name="check-route-overlap",
    task=_task,
    parts=_parts,
    programs=SCRIPT_PROGRAMS,
)
