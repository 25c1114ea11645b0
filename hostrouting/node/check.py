"""The checks of `hostrouting check`: the proof, the changes of a plan, and the gates."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import attrs

from hostrouting.base.commands import FIX, command_line
from hostrouting.base.errors import (
    HostFileError,
    HostRoutingError,
    PermissionDeniedError,
)
from hostrouting.base.findings import NodeFinding, Severity, boot_file
from hostrouting.boot.boot import Boot
from hostrouting.boot.capability import Inquiry
from hostrouting.boot.installed_config import (
    NewConfig,
    as_installed,
    edited_config,
    installed_over,
    is_edited,
    mode_of,
)
from hostrouting.boot.layout import APPLIED_PATH, CONFIG_PATH
from hostrouting.config.sections import (
    HostRoutingConfig,
    OverlapMode,
    RouteOverlapConfig,
    require_config,
)
from hostrouting.host import Host
from hostrouting.host.files.lock import LOCK
from hostrouting.net.addresses import is_network
from hostrouting.net.routes import OUR_PROTOCOL
from hostrouting.node.boot_files import (
    boot_parts,
    installs_units,
    missing_programs,
    obstacles,
    unmasking,
)
from hostrouting.node.capabilities import CAPABILITIES, sibling_units
from hostrouting.node.kubelet import off_the_exit
from hostrouting.node.report import NO_PROGRAM, NodeReport
from hostrouting.node.sentences import sentence_of
from hostrouting.route_overlap.proof import silent_routers
from hostrouting.route_overlap.proven import OverlapReport
from hostrouting.static_routes.entries import findings, proven_now
from hostrouting.static_routes.plan import plan_routes
from phases import Context, DeadlineExceededError
from phases.hosting import require_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hostrouting.boot.capability import Capability
    from hostrouting.net.routes import ObservedRoute
    from hostrouting.static_routes.plan import RoutePlan

    _Findings: TypeAlias = Iterable[NodeFinding]
    _Looker: TypeAlias = Callable[[Context], _Findings]

#: Puts the config in force back in the place of an edited one, which is kept.
_RESTORE = f"cp -p {CONFIG_PATH} {CONFIG_PATH}.rejected && hostrouting apply {APPLIED_PATH}"
#: Seconds for all checks except the proof; requests to the cloud have another limit.
_LONGEST_LOOK = 30.0


def check_node(
    ctx: Context,
    config: HostRoutingConfig,
    host: Host | None = None,
    *,
    path: str = "",
    root: str | None = None,
    queries: bool = True,
    applied: NodeReport | None = None,
) -> NodeReport:
    """Make all checks of `hostrouting check`, which change nothing and need no root.

    It waits for nothing but a router that does not answer, for 2.5 s, and for the cloud's answer,
    which without `queries` is not requested about optional rules that are installed.

    `path` and `root` are those of the command to run: `apply`, or `plan` for a config that an apply
    would refuse. `applied` is that of a `Configure` which has just applied the
    config: its proof and its routes are not looked at again.

    An image lacks routes: the checks are of files, links, gates and programs, which a boot needs.

    >>> from hostrouting.config.sections import RouteOverlapConfig
    >>> from hostrouting.testing import FakeHost
    >>> host = FakeHost()
    >>> host.routes.add_link("eth0")
    >>> host.routes.add_address("eth0", "10.224.0.4/16")
    >>> expected = RouteOverlapConfig(expected_cidrs=("172.16.0.0/16",), expected_devs=("eth0",))
    >>> report = check_node(Context(), HostRoutingConfig(route_overlap=expected), host)
    >>> report.ok, report.overlap.ok, [finding.kind for finding in report.findings]
    (True, False, ['lost-default', 'not-applied'])
    """
    require_context(ctx)
    require_config(config)
    host = Host.given_or_live(host)
    if applied is not None:
        overlap = applied.overlap
    elif host.is_live:
        overlap = proven_now(ctx, config, host)
    else:
        overlap = OverlapReport()
    # What no time is left for is named in the report.
    limited = ctx.child(timeout=_LONGEST_LOOK).expiring()
    look = _Look(limited, config, host, overlap, queries=queries, applied=applied)
    report = look.report(path, root)
    passing = _runs(host) if "error" in report.severities else []
    return attrs.evolve(report, findings=(*passing, *report.findings))


def _runs(host: Host) -> list[NodeFinding]:
    """Return a note on another run that changes the node just now; only root reads of it."""
    with suppress(HostFileError):
        pid = (host.files.read(LOCK) or b"").decode(errors="replace").strip()
        # A run that was killed has left its file.
        if pid.isdecimal() and int(pid) != os.getpid() and host.files.exists(f"/proc/{pid}"):
            reason = "changes this node just now, by an apply, a reset or a repair"
            wait = "hostrouting status --wait 60"
            return [NodeFinding("under-way", f"process {pid}", reason, "note", command=wait)]
    return []


def look_after_apply(
    ctx: Context,
    config: HostRoutingConfig,
    host: Host,
    *,
    overlap: OverlapReport | None = None,
    node: Host | None = None,
    left: RoutePlan | None = None,
) -> NodeReport:
    """Return the part of `check_node` that decides if an apply has reached its aim, without `next`.

    `overlap` is the proof of the apply, `node` the reading of which it was made, and `left` what
    that lacks of the config; None makes new ones, and so does another program that has changed a
    route of hostrouting since.
    """
    if node is not None and own_routes(node) != own_routes(host):
        node = None
        overlap = None
    if overlap is None:
        # A config that expects no addresses has nothing to prove, and many routes to read.
        is_proven = host.is_live and config.route_overlap.cidrs
        overlap = proven_now(ctx, config, host) if is_proven else OverlapReport()
    look = _Look(ctx.expiring(), config, host, overlap)
    return NodeReport(
        overlap=overlap,
        mode=config.route_overlap.mode,
        findings=(*look.applied_routes(None if node is None else left), *look.programs()),
        not_asked=tuple(look.not_asked),
    )


def own_routes(node: Host) -> list[ObservedRoute]:
    """Return the routes of hostrouting that are in force."""
    routing = node.routes
    readings = (routing.routes_of(OUR_PROTOCOL, family) for family in routing.families)
    return [route for reading in readings for route in reading]


def fix_line(path: str) -> str:
    """Return the command line that applies the answer of `check --fix`."""
    if path == CONFIG_PATH:
        return FIX
    return f"{command_line('check', path)} --fix | {command_line('apply', '-')}"


def _with_command(
    findings: Iterable[NodeFinding], command: str, step: str, moment: Literal["now", "later"]
) -> tuple[NodeFinding, ...]:
    """Return the findings, with the command or step and its moment for those of an apply."""
    return tuple(
        attrs.evolve(finding, command=command, step=step, apply=moment)
        if finding.apply
        else finding
        for finding in findings
    )


def _without_edit(findings: Iterable[NodeFinding], refusal: str) -> Iterator[NodeFinding]:
    """Yield the findings; no apply helps against an edit whose apply would be refused."""
    step = (
        f"its apply would fail: {refusal}; correct it, or put the config in force back: {_RESTORE}"
    )
    for finding in findings:
        is_edit = (finding.kind, finding.subject) == ("boot-file", CONFIG_PATH)
        yield attrs.evolve(finding, step=step, apply="") if is_edit else finding


class _Edit(NamedTuple):
    """An edit of the installed config, which is not in force."""

    #: Why its apply would fail; empty if it would not.
    refusal: str = ""


class _Remedies(NamedTuple):
    """Findings, each with the command or step that helps against it, and those of a report."""

    findings: tuple[NodeFinding, ...]
    #: The apply, whether or not it helps now.
    apply: str | None = None
    command: str | None = None
    edit: str | None = None
    fix: str | None = None


@attrs.define(eq=False, repr=False)
class _Look:
    """Makes each check by itself: one that cannot be made does not stop the rest."""

    ctx: Context
    #: The config that the node is compared with; the node, or an image.
    config: HostRoutingConfig
    host: Host
    overlap: OverlapReport
    #: The report of `look_after_apply`.
    applied: NodeReport | None = None
    #: False if the cloud is not to be queried about what is installed.
    queries: bool = False
    not_asked: list[str] = attrs.field(factory=list)
    unread: list[str] = attrs.field(factory=list)
    unanswered: list[str] = attrs.field(factory=list)
    spared: list[dict[str, object]] = attrs.field(factory=list)
    #: True once a boot file has turned out to differ.
    has_drift: bool = False

    @property
    def boot(self) -> Boot:
        """The boot files of the host."""
        return Boot(self.host, gates=self.config.gates)

    @property
    def _is_strict(self) -> bool:
        return self.config.route_overlap.mode is OverlapMode.STRICT

    @property
    def _is_new(self) -> bool:
        """True for a config that is not in force."""
        return installed_over(self.host.files, self.config) is not self.config

    @property
    def lacks_routes(self) -> bool:
        """True if routes of a config would resolve findings of the proof."""
        return any(report.suggested_routes for report in self.overlap.cidrs)

    def report(self, path: str, root: str | None) -> NodeReport:
        """Return the report with all findings, and the commands that help against them."""
        findings = (*self.overlap.notes, *self.findings())
        needs_apply = any(found.apply or found.kind == "boot-file" for found in findings)
        if self.host.is_live and (needs_apply or self.lacks_routes):
            findings = (*obstacles(self.host.files), *findings)
        remedies = self._remedies(findings, path, root) if path else _Remedies(findings)
        # Of another config, only a check without causes knows if its apply helps.
        reapplies = path == CONFIG_PATH and not root and self.config.static_routes.routes
        return NodeReport(
            overlap=self.overlap,
            mode=self.config.route_overlap.mode,
            findings=remedies.findings,
            reapply=remedies.apply if reapplies else None,
            command=remedies.command,
            edit=remedies.edit,
            fix=remedies.fix,
            not_asked=tuple(dict.fromkeys(self.not_asked)),
            unread=tuple(self.unread),
            unanswered=tuple(self.unanswered),
            spared=tuple(self.spared),
        )

    def _remedies(
        self, findings: tuple[NodeFinding, ...], path: str, root: str | None
    ) -> _Remedies:
        """Return the commands that help.

        An apply is no such command if it would be refused, or would make the node worse.
        """
        apply, plan = (command_line(verb, path, root=root) for verb in ("apply", "plan"))
        edit = self._edit() if path == CONFIG_PATH and not root else None
        if edit and edit.refusal:
            findings = tuple(_without_edit(findings, edit.refusal))
            apply = _RESTORE
        applies = any(finding.apply for finding in findings)
        # An edit that works was judged already, and an apply brings that into force.
        works = edit is not None and not edit.refusal
        is_worse = applies and not works and self.is_worse()
        is_refused = any(finding.is_refused for finding in findings)
        is_foreign = any(found.kind == "foreign-file" for found in findings if found.is_refused)
        # An apply of the answer would be refused, too.
        is_fixable = not is_foreign and self._is_fixable(is_worse=is_worse)
        fix = fix_line(path) if is_fixable else None
        command = fix if is_worse else apply
        if not applies or (is_refused and not is_worse):
            command = None
        # An apply waits for each route, and fails without it, unless it is refused at once.
        waits = not is_refused and any(finding.apply == "later" for finding in findings)
        step = "" if command else f"see why: {plan}"
        findings = _with_command(findings, command or "", step, "later" if waits else "now")
        return _Remedies(findings, apply, command, command if works else None, fix)

    def _edit(self) -> _Edit | None:
        """Return the edit of the installed config, and why its apply would fail; None without one.

        Where a lower layer fails, the apply of no config helps.
        """
        try:
            if not is_edited(self.host.files):
                return None
            edited = edited_config(self.host.files)
            overlap = proven_now(self.ctx, edited, self.host)
            report = _Look(self.ctx, edited, self.host, overlap).report("CONFIG", None)
        except (HostRoutingError, DeadlineExceededError) as error:
            return _Edit(str(error).partition("\n")[0])
        if report.command == command_line("apply", "CONFIG") and not report.causes:
            return _Edit()
        refused = [finding.text for finding in report.findings if finding.is_refused]
        worse = "it would make addresses wrong, or shut the gates"
        causes = [sentence_of(cause) for cause in report.causes]
        return _Edit(next(iter([*refused, *causes]), worse))

    def findings(self) -> _Findings:
        """Yield all findings, the most important first; of an image those that matter at a boot."""
        if not self.host.has_boot:
            # Nothing is installed for a boot, and that is right.
            yield from self._make(routes=self._routes)
            yield from self._proven_addresses()
            return
        config = self.config
        is_live = self.host.is_live
        # Where that cannot be read it is unknown, and each look names what it lacks.
        has_traces = True
        with suppress(HostFileError):
            has_traces = self.boot.has_traces
        yield from self._make(foreign=lambda _: self.boot.foreign(NewConfig(config=config)))
        if waiting := not has_traces and installs_units(self.ctx, config, self.host):
            place = " for the next boot" if is_live else " in the image"
            severity: Severity = "warning" if is_live else "error"
            reason = f"nothing of this config is installed{place}"
            yield NodeFinding("not-applied", "hostRouting", reason, severity, apply="now")
        if is_live:
            yield from _lasting(self._make(routes=self._routes), waiting)
        if not waiting:
            yield from self._make(files=self._files)
        if has_traces:
            looks = {"held": self._held, "down": self.boot.gates.down, "units": self._units}
            gates = partial(self.boot.findings, mode=mode_of(config))
            yield from self._make(gates=gates, **(looks if is_live else {}))
        yield from self._make(exposed=self._exposed)
        yield from self.programs()
        if is_live:
            yield from self._proven_addresses()
        # Last: they may query the cloud, or ask on the link for pods.
        for capability in CAPABILITIES:
            yield from self._of_capability(capability, waiting)
        if not is_live:
            self.not_asked += self._left_to_a_boot()

    def _proven_addresses(self) -> _Findings:
        """Yield what the proof of a node depends on, besides its routes."""
        config = self.config
        if config.route_overlap.cidrs:
            devs = self.overlap.expected_devs
            yield from self._make(routers=lambda ctx: silent_routers(ctx, self.host, devs))
            yield from self._make(kubelet=self._kubelet)
        elif config.after or config.route_overlap != RouteOverlapConfig():
            reason = "it names no addresses, so nothing is proven, now or at a boot"
            step = "give expectedCidrs or expected"
            yield NodeFinding("nothing-proven", "routeOverlap", reason, "warning", step)

    def _left_to_a_boot(self) -> Iterator[str]:
        """Yield what cannot be looked at in an image."""
        config = self.config
        if config.route_overlap.cidrs or config.static_routes.routes:
            step = command_line("check", CONFIG_PATH)
            yield f"an image has no routes to be checked; on a node made of it, run: {step}"
        for dev in filter(is_network, config.route_overlap.expected_devs):
            yield f"the device with an address in {dev} (expectedDevs): each boot finds it"

    def programs(self) -> _Findings:
        """Yield a finding for each program that a boot lacks."""
        return self._make(programs=lambda _: missing_programs(self.config, self.host))

    def applied_routes(self, left: RoutePlan | None) -> _Findings:
        """Yield the findings about the routes of a config that was just applied."""
        if not self.host.is_live:
            return ()
        return self._make(routes=lambda _: findings(left or plan_routes(self.config, self.host)))

    def _is_fixable(self, *, is_worse: bool) -> bool:
        """Return True if `check --fix` may help, and has an answer."""
        if not (self.lacks_routes or is_worse):
            return False
        stays = any(finding.stays for _, finding in self.overlap.findings)
        if is_worse and stays and self._is_strict and self._is_new:
            # The answer would shut the gates, too.
            return False
        # Imported late: most nodes need no other config.
        from hostrouting.node.fix import fixed

        try:
            answer = fixed(self.ctx, self.config, self.host, now=self.overlap)
        except (HostRoutingError, DeadlineExceededError):
            return False
        return isinstance(answer, HostRoutingConfig)

    def is_worse(self) -> bool:
        """Return True if an apply would be refused, make addresses worse, or shut the gates.

        A config that is not in force yet shuts them where its addresses would leave wrong under
        STRICT.
        """
        if self.applied is not None or not self.host.is_live:
            return False
        left = [finding for _, finding in self.overlap.findings]
        with suppress(HostRoutingError, DeadlineExceededError):
            if left and self._is_strict and all(each.stays for each in left):
                return not self.boot.has_traces
            # Imported late: only a wrong node needs the forecast.
            from hostrouting.static_routes.forecast import Forecaster

            # `{}` is meant to drop all addresses.
            is_counted = self.config.asks
            earlier = installed_over(self.host.files, self.config) if is_counted else None
            forecaster = Forecaster(
                self.ctx, self.config, self.host, earlier=earlier, now=self.overlap
            )
            # Where nothing is expected, a forecast would read all routes in vain.
            if forecaster.expects:
                forecast = forecaster.of(plan_routes(self.config, forecaster.node))
                foreseen = forecast.report
                is_wrong = foreseen is not None and not foreseen.is_proven
                shuts_gates = is_wrong and self._is_strict and is_counted and self._is_new
                return shuts_gates or bool(forecast.lost or forecast.worse)
        return False

    def _of_capability(self, capability: Capability, waiting: bool) -> _Findings:
        section = capability.in_config(self.config)
        severity: Severity = "error" if section.required else "warning"
        inquiry = Inquiry(self.config, self.host, self.queries, self.spared.append)
        for name, look in {**capability.findings, **capability.warnings}.items():
            trouble = None
            if capability.subject:
                trouble = NodeFinding(name, capability.subject, "", severity)
            findings = self._make(trouble, **{name: lambda ctx, look=look: look(ctx, inquiry)})
            yield from _lasting(findings, waiting and bool(section.part_names()))

    def _make(self, trouble: NodeFinding | None = None, /, **looks: _Looker) -> _Findings:
        """Yield the findings of each look; for one that fails, add a note or yield `trouble`.

        Errors of its kind are as severe as the trouble itself: those of an optional sibling are
        warnings.
        """
        for name, look in looks.items():
            try:
                # One by one: findings before a failure count.
                for finding in look(self.ctx):
                    if trouble and (finding.kind, finding.severity) == (trouble.kind, "error"):
                        finding = attrs.evolve(finding, severity=trouble.severity)  # noqa: PLW2901
                    yield finding
            except (HostRoutingError, DeadlineExceededError) as error:
                if self.ctx.cancelled:
                    self.ctx.check()
                reason = str(error).partition("\n")[0]
                self.unanswered.append(name)
                if self.ctx.over:
                    self.unread.append(name)
                    self.not_asked.append(f"{name}: {reason}")
                elif trouble is None or isinstance(error, PermissionDeniedError):
                    self.not_asked.append(reason)
                else:
                    yield attrs.evolve(trouble, reason=reason)

    # --- the pair

    def _routes(self, ctx: Context) -> _Findings:
        if self.applied is not None:
            self.not_asked += self.applied.not_asked
            return [found for found in self.applied.findings if found.kind != NO_PROGRAM]
        ctx.check()
        return findings(plan_routes(self.config, self.host))

    def _kubelet(self, _ctx: Context) -> _Findings:
        links = self.host.routes.links()
        return off_the_exit(self.host.files, links, dict(self.overlap.exits))

    @property
    def _awaited(self) -> str:
        """What the held units wait for, as the subject of a sentence with its verb."""
        # Nothing proves the routing without its scripts.
        if not self.has_drift:
            return "routing is"
        return "the boot files are" if self.overlap.ok else "routing and the boot files are"

    def _files(self, ctx: Context) -> _Findings:
        config = as_installed(self.config, self.host)
        parts = (*boot_parts(config), NewConfig(config=config))
        for change in self.boot.drift(ctx, *parts):
            # What a mask prevents has a kind.
            is_masked = change.kind and self.host.is_live
            command = unmasking(change.subject) if is_masked else ""
            # A gate does not read the config for people, which somebody has edited.
            self.has_drift |= change.subject != CONFIG_PATH
            yield attrs.evolve(boot_file(change), command=command)

    def _exposed(self, _ctx: Context) -> _Findings:
        units = sibling_units(self.config, self.host)
        for exposure in self.boot.exposed(*boot_parts(self.config), *units):
            # An apply is refused until then.
            yield NodeFinding(
                "exposed",
                "hostRouting",
                exposure.reason,
                step=exposure.step,
                command=exposure.command,
            )

    # --- the gates

    def _held(self, ctx: Context) -> _Findings:
        services = self.host.services
        gates = self.boot.gates
        for gate in gates.held(ctx):
            refused = gates.is_refused_now(ctx, gate)
            if refused and not gates.is_crashing(ctx, services.state(ctx, gate)):
                seconds = gates.held_since(ctx, gate)
                began = ctx.clock.time() - ctx.clock.monotonic() + seconds
                shown = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(began))
                reason = (
                    f"is held by its gate since {shown}, and starts by itself once {self._awaited} "
                    "right"
                )
                step = f"see: systemctl status {gate}"
                yield NodeFinding("held", gate, reason, step=step, since=began)
            elif refused is None:
                yield NodeFinding("held", gate, "is starting, and checks the routing now", "note")

    def _units(self, ctx: Context) -> _Findings:
        sections = self.config.sections.values()
        optional = {unit for each in sections if not each.required for unit in each.units}
        for name in self.boot.installed_units():
            state = self.host.services.state(ctx, name)
            if state.active_state == "failed":
                severity: Severity = "warning" if name in optional else "error"
                reason = f"its last run failed ({state.result})"
                step = f"see: journalctl -b -u {name}"
                yield NodeFinding("failed-unit", name, reason, severity, step)


def _lasting(findings: _Findings, waiting: bool) -> _Findings:
    """Leave out what the first apply repairs, if that is `waiting`."""
    return (finding for finding in findings if not (waiting and finding.apply))
