"""Routes and check, as the list of a node's features describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.base.findings import NodeFinding, Severity
from hostrouting.boot.capability import SCRIPT_PROGRAMS, Capability
from hostrouting.boot.installed_config import mode_of, with_found_devs
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.config.sections import OverlapMode
from hostrouting.route_overlap import script as check_script
from hostrouting.static_routes import script as routes_script

if TYPE_CHECKING:
    from hostrouting.apply.tasks import CheckRouteOverlap, ConfigureStaticRoutes
    from hostrouting.boot.capability import Inquiry
    from hostrouting.config.sections import HostRoutingConfig
    from phases import Context


def _routes() -> type[ConfigureStaticRoutes]:
    # Imported here because only nodes whose section is enabled need it.
    from hostrouting.apply.tasks import ConfigureStaticRoutes

    return ConfigureStaticRoutes


def _check() -> type[CheckRouteOverlap]:
    # Imported here because only nodes whose section is enabled need it.
    from hostrouting.apply.tasks import CheckRouteOverlap

    return CheckRouteOverlap


def _open_in_image(_ctx: Context, inquiry: Inquiry) -> list[NodeFinding]:
    """Return a note on an image in STRICT mode whose config does not name the device."""
    return [] if inquiry.host.is_live else _open_exit(inquiry.config, "note")


def _open_on_node(_ctx: Context, inquiry: Inquiry) -> list[NodeFinding]:
    """Return a warning on a node made from such an image, until an apply finds the device."""
    files = inquiry.host.files
    # Before the first apply, nothing depends on it.
    if not (inquiry.host.is_live and files.exists(CONFIG_PATH)):
        return []
    return _open_exit(with_found_devs(inquiry.config, files), "warning")


def _open_exit(config: HostRoutingConfig, severity: Severity) -> list[NodeFinding]:
    """Return a finding if the config is STRICT and expects no device by name."""
    if config.devs or mode_of(config) is not OverlapMode.STRICT:
        return []
    reason = (
        "is not given, so a default route through a fabric of Ethernet could become the way out"
    )
    step = 'name the network of the device, such as "expectedDevs": ["10.224.0.0/16"]'
    return [NodeFinding("open-exit", "routeOverlap.expectedDevs", reason, severity, step)]


#: The static routes and their check, whose boot files are installed together.
PAIR: Final = (
    Capability(
        section="static_routes",
        name="configure-static-routes",
        task=_routes,
        parts=lambda config, _: [routes_script.boot_part(config)],
        programs=SCRIPT_PROGRAMS,
    ),
    Capability(
        section="route_overlap",
        name="check-route-overlap",
        task=_check,
        parts=lambda config, _: [check_script.boot_part(config)],
        programs=SCRIPT_PROGRAMS,
        findings={"found-device": _open_on_node},
        warnings={"open-exit": _open_in_image},
    ),
)
