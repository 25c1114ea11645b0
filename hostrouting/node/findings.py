"""The findings about a node or an image, apart from those about addresses.

The checks are independent: one that cannot be made is reported, and the others go on.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import attrs

from hostrouting.base.commands import command_line
from hostrouting.base.errors import HostFileError, HostRoutingError, PermissionDeniedError
from hostrouting.base.findings import NodeFinding, Severity, boot_file
from hostrouting.boot.boot import Boot
from hostrouting.boot.capability import Inquiry
from hostrouting.boot.installed_config import NewConfig, as_installed, mode_of
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.config.sections import RouteOverlapConfig
from hostrouting.net.addresses import is_network
from hostrouting.node.boot_files import boot_parts, installs_units, missing_programs, unmasking
from hostrouting.node.capabilities import CAPABILITIES, optional_units
from hostrouting.node.kubelet import off_outbound_device
from hostrouting.node.report import NO_PROGRAM
from hostrouting.route_overlap.check import silent_routers
from hostrouting.static_routes.entries import findings
from hostrouting.static_routes.plan import plan_routes
from phases import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hostrouting.boot.capability import Capability
    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.node.report import NodeReport
    from hostrouting.route_overlap.report import OverlapReport
    from hostrouting.static_routes.plan import RoutePlan
    from phases import Context

    _Check: TypeAlias = Callable[[Context], Iterable[NodeFinding]]


@attrs.frozen
class Unchecked:
    """What could not be checked, and why."""

    reason: str
    #: The name of the check; empty if there is no check for it.
    name: str = ""
    #: True if there was no time left.
    is_late: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.is_late else self.reason


Found: TypeAlias = "NodeFinding | Unchecked"


def _forget(_spared: dict[str, object]) -> None:
    """Do nothing with an object that a cleanup would leave alone."""


@attrs.frozen(eq=False, repr=False)
class NodeChecks:
    """All checks of a node, or of an image, under a config."""

    ctx: Context
    config: HostRoutingConfig
    host: Host
    overlap: OverlapReport
    #: The report of `check_after_apply`, if a run has just applied the config.
    applied: NodeReport | None = None
    #: False if the cloud must not be asked about what is installed.
    queries: bool = False
    #: Gets each object that a cleanup would leave alone.
    spare: Callable[[dict[str, object]], None] = _forget

    @property
    def boot(self) -> Boot:
        """The boot files of the host."""
        return Boot(self.host, gates=self.config.gates)

    def all(self) -> Iterator[Found]:
        """Make all checks, the most important first; of an image, those that matter at a boot."""
        if not self.host.has_boot:
            # Nothing is installed for a boot, which is as it should be.
            yield from self._about_routes()
            yield from self._about_addresses()
            return
        config = self.config
        is_live = self.host.is_live
        # If the files cannot be read, each check reports what it could not read.
        has_traces = True
        with suppress(HostFileError):
            has_traces = self.boot.has_traces
        yield from self._make(foreign=lambda _: self.boot.foreign(NewConfig(config=config)))
        is_new = not has_traces and installs_units(self.ctx, config, self.host)
        if is_new:
            yield self._not_applied()
        if is_live:
            routes = self._about_routes()
            yield from _without_repairs(routes) if is_new else routes
        files = [] if is_new else [*self._make(files=self._files)]
        yield from files
        if has_traces:
            gates = partial(self.boot.findings, mode=mode_of(config))
            yield from self._make(gates=gates, **(self._of_units(files) if is_live else {}))
        yield from self._make(exposed=self._exposed)
        yield from self.programs()
        if is_live:
            yield from self._about_addresses()
        # Last, because they may query the cloud, or look for pods on the link.
        for capability in CAPABILITIES:
            yield from self._of_capability(capability, is_new=is_new)
        if not is_live:
            yield from map(Unchecked, self._left_to_a_boot())

    def programs(self) -> Iterator[Found]:
        """Check for the programs that a boot needs."""
        return self._make(programs=lambda _: missing_programs(self.config, self.host))

    def applied_routes(self, left: RoutePlan | None) -> Iterator[Found]:
        """Check the routes of a config that was just applied."""
        if self.host.is_live:
            plan = partial(plan_routes, self.config, self.host)
            yield from self._make(routes=lambda _: findings(left or plan()))

    def _make(self, trouble: NodeFinding | None = None, /, **checks: _Check) -> Iterator[Found]:
        """Make checks by their names; yield `trouble` if one fails, or that it could not be made.

        Errors of the same kind as the trouble get its severity: those of an optional feature are
        warnings.
        """
        for name, check in checks.items():
            try:
                # One by one, because findings before a failure count.
                for finding in check(self.ctx):
                    if trouble and (finding.kind, finding.severity) == (trouble.kind, "error"):
                        yield attrs.evolve(finding, severity=trouble.severity)
                    else:
                        yield finding
            except (HostRoutingError, DeadlineExceededError) as error:
                if self.ctx.cancelled:
                    self.ctx.check()
                reason = str(error).partition("\n")[0]
                is_late = self.ctx.over
                is_unknown = is_late or isinstance(error, PermissionDeniedError)
                if trouble is None or is_unknown:
                    yield Unchecked(reason, name, is_late)
                else:
                    yield attrs.evolve(trouble, reason=reason)

    # --- routes and addresses

    def _about_routes(self) -> Iterator[Found]:
        """Check the routes, or return what the check after their apply found."""
        if self.applied is None:
            yield from self._make(routes=self._routes)
        else:
            yield from (found for found in self.applied.findings if found.kind != NO_PROGRAM)
            yield from map(Unchecked, self.applied.not_asked)

    def _routes(self, ctx: Context) -> Iterable[NodeFinding]:
        ctx.check()
        return findings(plan_routes(self.config, self.host))

    def _about_addresses(self) -> Iterator[Found]:
        """Check what the addresses depend on, apart from routes."""
        config = self.config
        if config.route_overlap.cidrs:
            devs = self.overlap.expected_devs
            yield from self._make(routers=lambda ctx: silent_routers(ctx, self.host, devs))
            yield from self._make(kubelet=self._kubelet)
        elif config.after or config.route_overlap != RouteOverlapConfig():
            reason = "it names no addresses, so nothing is checked, now or at a boot"
            step = "give expectedCidrs or expected"
            yield NodeFinding("nothing-proven", "routeOverlap", reason, "warning", step)

    def _kubelet(self, _ctx: Context) -> Iterable[NodeFinding]:
        links = self.host.routes.links()
        return off_outbound_device(self.host.files, links, dict(self.overlap.outbound_devs))

    # --- files

    def _not_applied(self) -> NodeFinding:
        is_live = self.host.is_live
        place = " for the next boot" if is_live else " in the image"
        severity: Severity = "warning" if is_live else "error"
        reason = f"nothing of this config is installed{place}"
        return NodeFinding("not-applied", "hostRouting", reason, severity, apply="now")

    def _files(self, ctx: Context) -> Iterator[NodeFinding]:
        config = as_installed(self.config, self.host)
        parts = (*boot_parts(config), NewConfig(config=config))
        for change in self.boot.drift(ctx, *parts):
            # A change that a mask prevents has a kind.
            is_masked = change.kind and self.host.is_live
            command = unmasking(change.subject) if is_masked else ""
            yield attrs.evolve(boot_file(change), command=command)

    def _exposed(self, _ctx: Context) -> Iterator[NodeFinding]:
        units = optional_units(self.config, self.host)
        for exposure in self.boot.exposed(*boot_parts(self.config), *units):
            # An apply is refused until then.
            yield NodeFinding(
                "exposed",
                "hostRouting",
                exposure.reason,
                step=exposure.step,
                command=exposure.command,
            )

    def _left_to_a_boot(self) -> Iterator[str]:
        """Yield what cannot be checked in an image."""
        config = self.config
        if config.route_overlap.cidrs or config.static_routes.routes:
            step = command_line("check", CONFIG_PATH)
            yield f"an image has no routes to be checked; on a node made of it, run: {step}"
        for dev in filter(is_network, config.route_overlap.expected_devs):
            yield f"the device with an address in {dev} (expectedDevs): each boot finds it"

    # --- units

    def _of_units(self, files: Iterable[Found]) -> dict[str, _Check]:
        """Return the checks of units on a running node, given the findings about its files."""
        # Gates do not read the installed config, which somebody may have edited.
        differing = (each.subject for each in files if isinstance(each, NodeFinding))
        awaited = "routing is"
        if any(subject != CONFIG_PATH for subject in differing):
            # Without the scripts, nothing checks the routing.
            is_ok = self.overlap.ok
            awaited = "the boot files are" if is_ok else "routing and the boot files are"
        held = partial(self._held, awaited)
        return {"held": held, "down": self.boot.gates.down, "units": self._units}

    def _held(self, awaited: str, ctx: Context) -> Iterator[NodeFinding]:
        """Yield the units that are held; `awaited` is what has to be right before they start."""
        gates = self.boot.gates
        for gate in gates.held(ctx):
            refused = gates.is_refused_now(ctx, gate)
            if refused and not gates.is_crashing(ctx, self.host.services.state(ctx, gate)):
                seconds = gates.held_since(ctx, gate)
                began = ctx.clock.time() - ctx.clock.monotonic() + seconds
                shown = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(began))
                reason = (
                    f"is held by its gate since {shown}, and starts by itself once {awaited} right"
                )
                step = f"see: systemctl status {gate}"
                yield NodeFinding("held", gate, reason, step=step, since=began)
            elif refused is None:
                yield NodeFinding("held", gate, "is starting, and checks the routing now", "note")

    def _units(self, ctx: Context) -> Iterator[NodeFinding]:
        sections = self.config.sections.values()
        optional = {unit for each in sections if not each.required for unit in each.units}
        for name in self.boot.installed_units():
            state = self.host.services.state(ctx, name)
            if state.active_state == "failed":
                severity: Severity = "warning" if name in optional else "error"
                reason = f"its last run failed ({state.result})"
                step = f"see: journalctl -b -u {name}"
                yield NodeFinding("failed-unit", name, reason, severity, step)

    # --- optional features

    def _of_capability(self, capability: Capability, *, is_new: bool) -> Iterator[Found]:
        section = capability.in_config(self.config)
        severity: Severity = "error" if section.required else "warning"
        inquiry = Inquiry(self.config, self.host, self.queries, self.spare)
        for name, check in {**capability.findings, **capability.warnings}.items():
            trouble = None
            if capability.subject:
                trouble = NodeFinding(name, capability.subject, "", severity)
            found = self._make(trouble, **{name: lambda ctx, check=check: check(ctx, inquiry)})
            yield from _without_repairs(found) if is_new and section.part_names() else found


def _without_repairs(found: Iterable[Found]) -> Iterator[Found]:
    """Leave out what the first apply repairs."""
    return (each for each in found if isinstance(each, Unchecked) or not each.apply)
