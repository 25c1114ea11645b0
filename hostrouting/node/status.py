"""The verdict on a node in one sentence, with the facts that it is made of: `hostrouting status`.

It is based on the findings of `hostrouting check` under the installed config.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from hostrouting.base.commands import CHECK
from hostrouting.base.errors import HostRoutingError, InvalidConfigError, UnitError
from hostrouting.base.findings import NodeFinding, Severity, first_of
from hostrouting.boot.boot import Boot
from hostrouting.boot.gates import STATUS_TEXT
from hostrouting.boot.installed_config import (
    NewConfig,
    installed_checksum,
    is_edited,
    not_installed,
    read_installed_config,
    without_config,
)
from hostrouting.boot.layout import CONFIG_PATH, FREE_UNITS, drop_in_of, unit_path
from hostrouting.config.optional import OptionalSection
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.host import Host
from hostrouting.net.routes import is_merged
from hostrouting.node.boot_files import boot_parts
from hostrouting.node.check import check_after_apply, check_node, own_routes
from hostrouting.node.report import NodeReport
from hostrouting.node.status_report import NodeFacts, StatusReport
from hostrouting.node.units import read_units
from hostrouting.route_overlap.script import MARKERS
from hostrouting.static_routes.refusals import why_merged
from phases import Context
from phases.exceptions import CONTEXT_OVER, DeadlineExceededError
from phases.hosting import require_context

if TYPE_CHECKING:
    from hostrouting.net.routes import ObservedRoute


def node_status(
    ctx: Context,
    host: Host | None = None,
    *,
    config: HostRoutingConfig | None = None,
    applied: NodeReport | None = None,
) -> StatusReport:
    """Return what `hostrouting status` prints; change nothing, and need no root.

    It waits for nothing but a router that does not answer, for 2.5 s.

    If a run has just applied the installed config, `config` is that config, and `applied` the
    report of its `Configure`: reading and comparing 10,000 routes again takes 0.2 s. If nothing is
    installed, `absence` says so, and a finding has it as an error. Raises `InvalidConfigError` for
    a damaged config.

    >>> from hostrouting import Configure, StaticRoute, StaticRoutesConfig
    >>> from phases import Context, run
    >>> from hostrouting.testing import FakeHost
    >>> host = FakeHost()
    >>> node_status(Context(), host).sentence.partition("; ")[0]
    'no config is installed: there is no /etc/aks-flex-node/hostrouting.json'
    >>> host.routes.add_link("eth0")
    >>> host.routes.add_address("eth0", "10.224.0.4/16")
    >>> route = StaticRoute(destination="172.16.8.0/22", gateway="10.224.0.1", dev="eth0")
    >>> section = StaticRoutesConfig(enabled=True, routes=(route,))
    >>> run(Configure(HostRoutingConfig(static_routes=section), host=host)).ok
    True
    >>> status = node_status(Context(), host)
    >>> status.ok, status.facts.routes, status.facts.lost_routes
    (True, 1, 0)
    """
    require_context(ctx)
    host = Host.given_or_live(host)
    # What could not be read in time is unknown, which is an answer.
    ctx = ctx.expiring()
    if config is not None:
        applied = check_after_apply(ctx, config, host) if applied is None else applied
    else:
        # A dangling link does not count as a config.
        config = read_installed_config(host.files)
        if config is None:
            return _status_without_config(ctx, host)
    # Each check reports what systemd refuses.
    with suppress(UnitError, DeadlineExceededError):
        host = read_units(ctx, host, config.gates)
    report = check_node(ctx, config, host, path=CONFIG_PATH, queries=False, applied=applied)
    return StatusReport(check=report, facts=_facts_of(ctx, config, host, report))


def _facts_of(ctx: Context, config: HostRoutingConfig, host: Host, report: NodeReport) -> NodeFacts:
    """Return what a status shows in addition to the findings."""
    errors = [finding.kind for finding in report.findings if finding.severity == "error"]
    differing = errors.count("boot-file") + errors.count("foreign-file")
    features = {
        name: _feature(ctx, host, section.unit) if section.enabled else None
        for name, section in config.sections.items()
        if isinstance(section, OptionalSection) and section.unit in FREE_UNITS
    }
    # A run that repairs a unit or a gate leaves the config as it is.
    boot = Boot(host)
    paths = [CONFIG_PATH, *map(unit_path, boot.installed_units()), *map(drop_in_of, config.gates)]
    return NodeFacts(
        is_live=host.is_live,
        checksum=installed_checksum(host.files),
        edited=is_edited(host.files),
        at=ctx.clock.time(),
        changed_at=max(host.files.modified(path) or 0 for path in paths),
        routes=len(config.static_routes.routes),
        lost_routes=None if "routes" in report.unanswered else report.lost_routes(config),
        differing_files=None if "files" in report.unanswered else differing,
        features=features,
        gates=None if "held" in report.unanswered else _gates(ctx, config, host, report),
    )


def _feature(ctx: Context, host: Host, unit: str) -> dict[str, str]:
    """Return the state of a feature's unit, and what its service says about itself."""
    feature = {"unit": unit, "active_state": _active_state(ctx, host, unit)}
    with suppress(HostRoutingError, DeadlineExceededError):
        if text := host.services.settings(ctx, unit, STATUS_TEXT)[STATUS_TEXT]:
            feature["status"] = text
    return feature


def _gates(
    ctx: Context, config: HostRoutingConfig, host: Host, report: NodeReport
) -> dict[str, dict[str, str]]:
    """Return the state of each gate, or of its instances."""
    return {
        name: {"state": word, "reason": reason, "active_state": _active_state(ctx, host, name)}
        for unit, (word, reason) in report.gates(config).items()
        for name in _instances(ctx, host, unit)
    }


def _instances(ctx: Context, host: Host, unit: str) -> list[str]:
    """Return the loaded instances of a template, which itself never runs, or else the unit."""
    names: list[str] = []
    with suppress(HostRoutingError, DeadlineExceededError):
        names = [state.name for state in host.services.loaded(ctx, unit)]
    return names or [unit]


def _active_state(ctx: Context, host: Host, unit: str) -> str:
    try:
        state = host.services.state(ctx, unit)
    except (HostRoutingError, DeadlineExceededError):
        return "unknown"
    return state.active_state if state.exists else "no such unit"


def _status_without_config(ctx: Context, host: Host) -> StatusReport:
    absence = _remains(ctx, host) or without_config(host)
    severity: Severity = "error"
    kept: list[ObservedRoute] = []
    # As after an `apply --live`.
    if host.is_live and not _left_files(ctx, host) and (kept := own_routes(host)):
        severity = "warning"
        count = "1 route is" if len(kept) == 1 else f"{len(kept)} routes are"
        absence = f"no config is installed; {count} in force until the next boot"
    foreign = Boot(host).foreign(NewConfig(config=HostRoutingConfig()))
    absence = "; ".join([absence, *(f"{found.subject} {found.reason}" for found in foreign)])
    # As of a recorded node without a config.
    findings = (NodeFinding("not-applied", "hostRouting", absence, severity), *foreign)
    facts = NodeFacts(is_live=host.is_live, routes=len(kept), kept=tuple(map(str, kept)))
    shown = f"warning: {absence}" if kept else absence
    return StatusReport(check=NodeReport(findings=findings), facts=facts, absence=shown)


def verdict_now(
    ctx: Context,
    host: Host,
    config: HostRoutingConfig | None = None,
    applied: NodeReport | None = None,
) -> StatusReport:
    """Return the report of `status` on a node, or why its state is unknown."""
    try:
        is_installed = host.files.mode(CONFIG_PATH) is not None
        absence = "" if is_installed else _remains(ctx, host) or not_installed(host)
        if absence and config is None:
            return StatusReport(absence=absence)
        report = node_status(ctx, host, config=config, applied=applied)
        if absence:
            # A config that only has a sweep installs nothing.
            check = attrs.evolve(report.check, command=None)
            report = attrs.evolve(report, check=check, absence=absence)
    except (HostRoutingError, *CONTEXT_OVER) as error:
        reason = " ".join(str(error).split())
        state = "the state of the node is unknown" if host.is_live else "unknown"
        # A check has the same error of a damaged config, which names its step.
        is_damaged = isinstance(error, InvalidConfigError)
        command = CHECK if host.is_live and not is_damaged else None
        check = NodeReport(unread=("node",), command=command)
        report = StatusReport(check=check, absence=f"{state}: {reason}")
    return report


def _remains(ctx: Context, host: Host) -> str:
    """Return a sentence on what a run has left without a config; "" if it has left nothing."""
    left = _left_files(ctx, host)
    step = "a reset with --root removes that"
    if host.is_live:
        routes = own_routes(host)
        step = "apply your config again: hostrouting apply CONFIG"
        step += "; a reset would take its routes away" if routes else ", or run: hostrouting reset"
        left += filter(host.files.exists, MARKERS)
        for route in routes:
            left.append(str(route))
            # A reset leaves it.
            step = why_merged(route) if is_merged(route) else step
    return f"{not_installed(host)}, but a run has left {first_of(left)}; {step}" if left else ""


def _left_files(ctx: Context, host: Host) -> list[str]:
    boot = Boot(host)
    nothing = HostRoutingConfig(gates=())
    planned = boot.drift(ctx, *boot_parts(nothing), NewConfig(config=nothing))
    left = [change.subject for change in planned if change.action == "-"] or boot.installed_units()
    # The sentence begins with the config, whose link may be left.
    return sorted(left, key=lambda path: path == CONFIG_PATH)
