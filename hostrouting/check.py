"""The checks of `hostrouting check`: the proof, everything that a plan would change, and the state of the gates."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import attrs

from hostrouting.boot import INTENT_PATH, WATCH_UNITS, Boot, Intent, held_gates, is_refused_now
from hostrouting.boot_files import PROBE_UNIT, boot_parts, installs_units, missing_tools, watch_units
from hostrouting.commands import command_line
from hostrouting.config import OverlapMode, RouteOverlapConfig
from hostrouting.exceptions import HostRoutingError, PermissionDeniedError
from hostrouting.findings import APPLY, NodeFinding, is_refused
from hostrouting.route_overlap import OverlapReport, check_now, silent_routers
from phases import CommandFailedError, DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hostrouting.config import HostRoutingConfig
    from hostrouting.findings import Severity
    from hostrouting.host import Host
    from phases import Change, Context

#: Seconds for all checks except the proof; requests to the cloud have another limit.
_LONGEST_LOOK: Final = 30.0
_NO_ROUTES: Final = "an image has no routes to be asked; on a node made of it, run: "
#: The protocol of the kernel's own routes.
_KERNEL: Final = 2
#: When a unit ran last, in microseconds of the monotonic clock; 0 if it has not run since the boot.
_RAN: Final = "ActiveExitTimestampMonotonic"


@attrs.frozen(kw_only=True)
class NodeReport:
    """The proof, the other findings, and the checks that could not be made."""

    overlap: OverlapReport
    mode: OverlapMode
    findings: tuple[NodeFinding, ...] = ()
    not_asked: tuple[str, ...] = ()
    #: The objects that a sweep would leave alone: object, address, kind and reason of each.
    spared: tuple[dict[str, object], ...] = ()

    @property
    def severities(self) -> frozenset[Severity]:
        """The severities of all findings."""
        found: set[Severity] = {finding.severity for finding in self.findings}
        if not self.overlap.ok:
            # A node without a default route reaches nothing, in either mode.
            is_error = self.mode is OverlapMode.STRICT or not self.overlap.expected_devs
            found.add("error" if is_error else "warning")
        return frozenset(found)

    @property
    def ok(self) -> bool:
        """True if there is no error."""
        return "error" not in self.severities

    def to_mapping(self) -> dict[str, Any]:
        """Return the report for `check --json`; `findings`, `not_asked` and `spared` are left out if empty."""
        more = {
            "findings": [finding.to_mapping() for finding in self.findings],
            "not_asked": list(self.not_asked),
            "spared": list(self.spared),
        }
        answer = {**self.overlap.to_mapping(mode=self.mode), "ok": self.ok}
        return answer | {name: found for name, found in more.items() if found}

    def lines(self, *, verbose: bool = False) -> list[str]:
        """Return the report as text lines; `verbose` offers to silence findings, too."""
        proof = (str(self.overlap), self.overlap.allowance if verbose else "")
        notes = [f"note: not looked at: {reason}" for reason in self.not_asked]
        return [*filter(None, proof), *map(str, self.findings), *notes] or ["no findings"]


def check_node(
    ctx: Context,
    config: HostRoutingConfig,
    host: Host,
    *,
    seconds: float | None = None,
    apply: str = APPLY,
    is_applied: bool = False,
) -> NodeReport:
    """Make all checks, which change nothing and need no root.

    `seconds` bounds the wait, and with 0 no router is asked, nor the cloud about optional rules that are installed.

    `apply` is the step to take. If the config `is_applied`, by a run that has just read its routes back, they are not
    compared again.

    An image has no routes: the checks are of files, links, gates and programs, which a boot needs.
    """
    if host.is_live:
        overlap = check_now(ctx.child(timeout=seconds), config, host)
    else:
        overlap = OverlapReport(expected_devs=(), cidrs=())
    look = _Look(ctx.child(timeout=_LONGEST_LOOK), config, host, overlap.expected_devs, is_applied=is_applied)
    findings = (*overlap.notes, *(look.everything(asks_routers=seconds != 0) if host.is_live else look.image()))
    return NodeReport(
        overlap=overlap,
        mode=config.route_overlap.mode,
        findings=tuple(attrs.evolve(each, reason=each.reason.replace(APPLY, apply)) for each in findings),
        not_asked=tuple(dict.fromkeys(look.not_asked)),
        spared=tuple(look.spared),
    )


class _Look:
    """Makes each check by itself: one that cannot be made does not stop the others."""

    def __init__(
        self, ctx: Context, config: HostRoutingConfig, host: Host, expected_devs: Sequence[str], *, is_applied: bool
    ) -> None:
        self._ctx = ctx
        self._config = config
        self._host = host
        self._expected_devs = expected_devs
        self._is_applied = is_applied
        self._boot = Boot(host, gates=config.gates)
        self.not_asked: list[str] = []
        self.spared: list[dict[str, object]] = []

    def everything(self, *, asks_routers: bool) -> Iterator[NodeFinding]:
        """Yield all findings, the most important first."""
        if waiting := self._is_to_be_applied():
            reason = f"nothing of this config is installed, live or for the next boot; {APPLY}"
            yield NodeFinding("not-applied", "hostRouting", reason, "warning")
        else:
            yield from self._ask(self._routes, self._files)
            if self._boot.has_traces:
                yield from self._ask(self._gates, self._held, self._down, self._units)
        siblings = [*self._ask(self._watch)]
        if self._config.probe_snat.enabled:
            siblings += self._ask(
                lambda: self._probes(asks=asks_routers), trouble=self._finding("probe-snat", "IPv6 probes")
            )
        # The first apply mends the others.
        yield from (each for each in siblings if not (waiting and APPLY in each.reason))
        yield from self._ask(self._exposed)
        if self._config.static_routes.routes:
            yield from self._ask(self._networkd)
        if self._config.route_overlap.cidrs:
            yield from self._ask(*[self._routers] * asks_routers)
        elif self._config.route_overlap != RouteOverlapConfig():
            reason = "it names no addresses, so nothing is proven, now or at a boot; give expectedCidrs or expected"
            yield NodeFinding("nothing-proven", "routeOverlap", reason, "warning")
        if self._config.stale_cni.enabled:
            yield from self._ask(self._leftovers, trouble=self._finding("stale-cni", "leftovers of azure-vnet"))

    def _is_to_be_applied(self) -> bool:
        return not self._boot.has_traces and installs_units(self._ctx, self._config, self._host)

    def image(self) -> Iterator[NodeFinding]:
        """Yield the differences between the image and this config that matter at a boot."""
        if self._config.route_overlap.cidrs or self._config.static_routes.routes:
            self.not_asked.append(f"{_NO_ROUTES}{command_line('check', INTENT_PATH)}")
        if self._is_to_be_applied():
            yield NodeFinding(
                "not-applied", "hostRouting", f"nothing of this config is installed in the image; {APPLY}"
            )
        else:
            yield from self._ask(self._files)
            if self._config.probe_snat.enabled:
                yield from self._ask(self._probe_files, trouble=self._finding("probe-snat", "IPv6 probes"))
            yield from self._ask(self._watch)
        yield from self._ask(self._exposed, self._tools)
        if self._boot.has_traces:
            yield from self._ask(self._gates)

    def _probe_files(self) -> Iterator[NodeFinding]:
        from hostrouting.probe_snat import ConfigureProbeSNAT

        for change in ConfigureProbeSNAT(self._config, host=self._host).plan(self._ctx):
            yield self._boot_file(change)

    def _tools(self) -> list[NodeFinding]:
        return missing_tools(self._config, self._host.files)

    def _finding(self, kind: str, subject: str) -> NodeFinding:
        """Return a finding of a sibling; it is an error only if the section is `required`."""
        section = self._config.probe_snat if kind == "probe-snat" else self._config.stale_cni
        return NodeFinding(kind, subject, "", "error" if section.required else "warning")

    def _ask(
        self, *looks: Callable[[], Iterable[NodeFinding]], trouble: NodeFinding | None = None
    ) -> Iterator[NodeFinding]:
        """Yield the findings of each look; for one that fails, add a note or yield `trouble`."""
        for look in looks:
            try:
                # One by one: findings before a failure count.
                yield from look()
            except PermissionDeniedError as error:
                self.not_asked.append(str(error).partition("\n")[0])
            except (HostRoutingError, DeadlineExceededError) as error:
                self._ctx.check()
                reason = _reason(error)
                if trouble is None:
                    self.not_asked.append(reason)
                else:
                    yield attrs.evolve(trouble, reason=reason)

    # --- the pair

    def _routes(self) -> Iterable[NodeFinding]:
        from hostrouting.static_routes import ConfigureStaticRoutes

        if self._is_applied:
            prefixes = {route.prefix for route in self._config.static_routes.routes}
            # A finding tells of those that come before the kernel's own.
            if not any(own[:2] in prefixes for own in self._host.routes.routes_of(_KERNEL)):
                return ()
        return ConfigureStaticRoutes(self._config, host=self._host).findings(self._ctx)

    def _routers(self) -> Iterable[NodeFinding]:
        return silent_routers(self._ctx, self._host, self._expected_devs)

    def _files(self) -> Iterator[NodeFinding]:
        for change in self._boot.drift(self._ctx, *boot_parts(self._config), Intent(config=self._config)):
            yield self._boot_file(change)

    def _boot_file(self, change: Change) -> NodeFinding:
        state = {"+": "is missing", "-": "is not of this config", "~": "is not as this config wants it"}
        told = change.detail or state[change.action]
        return NodeFinding("boot-file", change.subject, told if is_refused(told) else f"{told}; {APPLY}")

    def _exposed(self) -> Iterator[NodeFinding]:
        if reasons := self._boot.exposed(*boot_parts(self._config), *watch_units(self._config, self._host)):
            yield NodeFinding("exposed", "hostRouting", reasons)

    # --- the gates

    def _gates(self) -> Iterator[NodeFinding]:
        return self._boot.findings(self._ctx)

    def _held(self) -> Iterator[NodeFinding]:
        for gate in held_gates(self._ctx, self._host.services):
            refused = is_refused_now(self._ctx, self._host.services, gate)
            if refused:
                # Its marker is set anew at each restart by systemd, so it does not say since when.
                ran = int(self._host.services.settings(self._ctx, gate, _RAN)[_RAN] or 0) / 1e6
                clock = self._ctx.clock
                then = time.localtime(clock.time() - clock.monotonic() + ran)
                since = time.strftime("%Y-%m-%d %H:%M %Z", then)
                step = f"starts by itself once routing is right; see: systemctl status {gate}"
                yield NodeFinding("held", gate, f"is held by its gate since {since}, and {step}")
            elif refused is None:
                yield NodeFinding("held", gate, "is starting, and checks the routing now", "note")

    def _down(self) -> Iterator[NodeFinding]:
        return self._boot.down(self._ctx)

    def _units(self) -> Iterator[NodeFinding]:
        optional = WATCH_UNITS if self._config.probe_snat.required else {*WATCH_UNITS, PROBE_UNIT}
        for name in self._boot.installed_units():
            state = self._host.services.state(self._ctx, name)
            if state.active_state == "failed":
                reason = f"its last run failed ({state.result}); see: journalctl -b -u {name}"
                yield NodeFinding("failed-unit", name, reason, "warning" if name in optional else "error")

    # --- the siblings

    def _probes(self, *, asks: bool) -> Iterable[NodeFinding]:
        from hostrouting.probe_snat import ConfigureProbeSNAT

        return self._weighed(ConfigureProbeSNAT(self._config, host=self._host).findings(self._ctx, asks=asks))

    def _watch(self) -> Iterable[NodeFinding]:
        if not (self._config.watch.enabled or WATCH_UNITS & set(self._boot.installed_units())):
            return []
        from hostrouting.watch.unit import ConfigureWatch

        return ConfigureWatch(self._config, host=self._host).findings(self._ctx)

    def _networkd(self) -> Iterable[NodeFinding]:
        from hostrouting.watch.networkd import networkd_findings

        return networkd_findings(self._ctx, self._config, self._host)

    def _leftovers(self) -> Iterable[NodeFinding]:
        from hostrouting.stale_cni import CleanStaleCNI

        task = CleanStaleCNI(self._config, host=self._host)
        findings, spared = task.findings(self._ctx)
        self.spared += [verdict.to_mapping() for verdict in spared]
        return self._weighed(findings)

    def _weighed(self, findings: Iterable[NodeFinding]) -> list[NodeFinding]:
        return [
            attrs.evolve(self._finding(each.kind, each.subject), reason=each.reason)
            if each.severity == "error"
            else each
            for each in findings
        ]


def _reason(error: Exception) -> str:
    """Return one line; for a failed command its stderr."""
    cause = error.__cause__
    said = cause.stderr.strip() if isinstance(cause, CommandFailedError) else ""
    told = f"{cause.argv[0]}: {said}" if isinstance(cause, CommandFailedError) and said else str(error)
    return told.partition("\n")[0]
