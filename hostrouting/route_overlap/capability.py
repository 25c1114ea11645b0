"""The check of addresses in the list of a node's capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.base.findings import NodeFinding
from hostrouting.boot.capability import SCRIPT_PROGRAMS, Capability
from hostrouting.boot.intent import mode_of
from hostrouting.config import OverlapMode
from hostrouting.route_overlap.script import boot_part

if TYPE_CHECKING:
    from hostrouting.boot.capability import Inquiry
    from hostrouting.boot.intent import Part
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.route_overlap.task import CheckRouteOverlap
    from phases import Context


def _task() -> type[CheckRouteOverlap]:
    from hostrouting.route_overlap.task import CheckRouteOverlap

    return CheckRouteOverlap


def _parts(config: HostRoutingConfig, _host: Host | None) -> list[Part]:
    return [boot_part(config)]


def _open_exit(_ctx: Context, inquiry: Inquiry) -> list[NodeFinding]:
    """Return a note if the exit of an image is open under STRICT: an image has no pinned one."""
    is_strict = mode_of(inquiry.config) is OverlapMode.STRICT
    if inquiry.host.is_live or inquiry.config.route_overlap.expected_devs or not is_strict:
        return []
    reason = "is not given, so a default route by a fabric of Ethernet could become the exit"
    step = 'name the network of the exit, such as "expectedDevs": ["10.224.0.0/16"]'
    return [NodeFinding("open-exit", "routeOverlap.expectedDevs", reason, "note", step)]


ROUTE_OVERLAP: Final = Capability(
    section="route_overlap",
    name="check-route-overlap",
    task=_task,
    parts=_parts,
    programs=SCRIPT_PROGRAMS,
    warnings={"open-exit": _open_exit},
)
