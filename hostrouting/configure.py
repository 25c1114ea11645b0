"""Configure: which tasks a node needs, and in which order; one run at a time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hostrouting.boot.layout import gate_drop_in, ready_unit
from hostrouting.exceptions import ConfigError, InvalidConfigError
from hostrouting.host import Host
from hostrouting.route_overlap import CheckRouteOverlap
from hostrouting.route_overlap.script import boot_unit as overlap_unit
from hostrouting.static_routes import ConfigureStaticRoutes
from hostrouting.static_routes.script import boot_unit as routes_unit
from phases import Serial, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.boot import BootFile, BootUnit
    from hostrouting.config import HostRoutingConfig
    from phases import Change, Context, Task

__all__ = ["Configure", "boot_files"]


class Configure:
    """Static routes, then the check that holds the gates: live, and for every boot.

    >>> from hostrouting import HostRoutingConfig
    >>> from hostrouting.testing import FakeHost
    >>> [task.name for task in Configure(HostRoutingConfig(), host=FakeHost()).subtasks]
    ['configure-static-routes', 'check-route-overlap']

    It holds the run lock from the first task to the last: nobody else's routes get between ours and their proof.
    """

    name = "configure"
    anonymous = False

    def __init__(
        self, config: HostRoutingConfig, *, host: Host | None = None, logger: logging.Logger | None = None
    ) -> None:
        _refuse_unbuilt(config)
        logger = logger or logging.getLogger("hostrouting")
        self._host = host or Host.live()
        self.subtasks: tuple[Task, ...] = (
            ConfigureStaticRoutes(config, host=self._host, logger=logger),
            CheckRouteOverlap(config, host=self._host, logger=logger),
        )
        self._serial = Serial(*self.subtasks, name=self.name)

    def do(self, ctx: Context) -> None:
        """Bring it all about; the first task that fails ends it."""
        with self._host.lock.hold(ctx):
            self._serial.do(ctx)

    def plan(self, ctx: Context) -> Sequence[Change]:
        """What `do` would change; changes nothing, and waits for nobody."""
        return plan(self, ctx).changes

    def undo(self, ctx: Context) -> None:
        """Take it all back, the gate first."""
        with self._host.lock.hold(ctx):
            self._serial.undo(ctx)


def boot_files(config: HostRoutingConfig) -> list[BootFile]:
    """The exact files that `Configure` installs for every boot; none for a config that asks for nothing."""
    units: list[BootUnit] = []
    if config.static_routes.routes:
        units.append(routes_unit(config))
    if config.route_overlap.expected_cidrs:
        units.append(overlap_unit(config))
    if not units:
        return []
    files = [file for unit in (*units, ready_unit()) for file in unit.files]
    return files + [gate_drop_in(gate) for gate in config.gates]


def _refuse_unbuilt(config: HostRoutingConfig) -> None:
    """Nobody should believe that a section is in force which this release cannot bring about."""
    enabled = {
        "probeSnat": config.probe_snat.enabled,
        "staleCni": config.stale_cni.enabled,
        "watch": config.watch.enabled,
    }
    errors = [
        ConfigError(f"hostRouting.{name}.enabled", "this release cannot do that yet; set it to false")
        for name, is_enabled in enabled.items()
        if is_enabled
    ]
    if errors:
        raise InvalidConfigError(errors)
