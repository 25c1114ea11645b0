"""Configure: which tasks a node needs, and in which order; one run at a time. Reset: the way back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hostrouting.boot.layout import gate_drop_in, ready_unit
from hostrouting.config import HostRoutingConfig
from hostrouting.exceptions import ConfigError, HostRoutingError, InvalidConfigError
from hostrouting.host import Host
from hostrouting.probe_snat import ConfigureProbeSNAT, check_probe_snat, rules_to_install
from hostrouting.probe_snat import boot_unit as probe_unit
from hostrouting.route_overlap import CheckRouteOverlap
from hostrouting.route_overlap.script import boot_unit as overlap_unit
from hostrouting.stale_cni import CleanStaleCNI, check_stale_cni
from hostrouting.static_routes import ConfigureStaticRoutes
from hostrouting.static_routes.script import boot_unit as routes_unit
from phases import Serial, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.boot import BootFile, BootUnit
    from hostrouting.findings import NodeFinding
    from phases import Change, Context, Task

__all__ = ["Configure", "Reset", "boot_files", "installs_units", "node_findings"]

_logger = logging.getLogger(__name__)


class Configure:
    """What a removed CNI left, static routes, probes, then the check that holds the gates: live, and for every boot.

    >>> from hostrouting import HostRoutingConfig
    >>> from hostrouting.testing import FakeHost
    >>> [task.name for task in Configure(HostRoutingConfig(), host=FakeHost()).subtasks]
    ['clean-stale-cni', 'configure-static-routes', 'configure-probe-snat', 'check-route-overlap']

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
            # First, for what it leaves behind would shadow everything that follows.
            CleanStaleCNI(config, host=self._host, logger=logger),
            ConfigureStaticRoutes(config, host=self._host, logger=logger),
            ConfigureProbeSNAT(config, host=self._host, logger=logger),
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


class Reset:
    """Everything of ours goes, whatever config brought it, and what was displaced or swept away comes back.

    To want nothing is to take away what is ours; only the sweep has to be undone on purpose, since a config without its
    section must not bring stale objects back.
    """

    name = "reset"
    anonymous = False

    def __init__(
        self, config: HostRoutingConfig, *, host: Host | None = None, logger: logging.Logger | None = None
    ) -> None:
        logger = logger or logging.getLogger("hostrouting")
        self._host = host or Host.live()
        nothing = HostRoutingConfig(gates=())
        self.subtasks: tuple[Task, ...] = (
            ConfigureStaticRoutes(nothing, host=self._host, logger=logger),
            ConfigureProbeSNAT(nothing, host=self._host, logger=logger),
            CheckRouteOverlap(nothing, host=self._host, logger=logger),
            _PutBack(CleanStaleCNI(config, host=self._host, logger=logger)),
        )
        self._serial = Serial(*self.subtasks, name=self.name)

    def do(self, ctx: Context) -> None:
        """Take it all away, and put back."""
        with self._host.lock.hold(ctx):
            self._serial.do(ctx)


class _PutBack:
    """The way back of the sweep, as a task."""

    name = "put-stale-cni-back"

    def __init__(self, sweep: CleanStaleCNI) -> None:
        self._sweep = sweep

    def do(self, ctx: Context) -> None:
        """See `CleanStaleCNI.undo`."""
        self._sweep.undo(ctx)

    @property
    def made(self) -> Sequence[Change]:
        """What it has put back so far."""
        return self._sweep.made

    def plan(self, ctx: Context) -> Sequence[Change]:
        """See `CleanStaleCNI.plan_undo`."""
        return self._sweep.plan_undo(ctx)


def boot_files(config: HostRoutingConfig, *, host: Host | None = None) -> list[BootFile]:
    """The exact files that `Configure` installs for every boot; none for a config that asks for nothing.

    Of the machine it is only asked what the config leaves open: the device of the probes.
    """
    units: list[BootUnit] = []
    if config.static_routes.routes:
        units.append(routes_unit(config))
    if config.probe_snat.enabled:
        units.append(probe_unit(rules_to_install(config, host=host)))
    if config.route_overlap.expected_cidrs:
        units.append(overlap_unit(config))
    if not units:
        return []
    files = [file for unit in (*units, ready_unit()) for file in unit.files]
    return files + [gate_drop_in(gate) for gate in config.gates]


def installs_units(config: HostRoutingConfig) -> bool:
    """Whether gates would wait for anything."""
    return bool(config.static_routes.routes or config.probe_snat.enabled or config.route_overlap.expected_cidrs)


def node_findings(ctx: Context, config: HostRoutingConfig, *, host: Host) -> list[NodeFinding]:
    """What is not as the config wants it, beside the routing of expected CIDRs; changes nothing.

    Where one capability cannot be looked at, the others are all the same; the error is raised if they are fine.
    """
    findings: list[NodeFinding] = []
    problem: HostRoutingError | None = None
    for look in (check_stale_cni, check_probe_snat):
        try:
            findings += look(ctx, config, host)
        except HostRoutingError as error:
            problem = error
            _logger.warning("%s", error)
    if problem is not None and not findings:
        raise problem
    return findings


def _refuse_unbuilt(config: HostRoutingConfig) -> None:
    """Nobody should believe that a section is in force which this release cannot bring about."""
    if config.watch.enabled:
        message = "this release cannot do that yet; set it to false"
        raise InvalidConfigError([ConfigError("hostRouting.watch.enabled", message)])
