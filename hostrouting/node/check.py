"""The check of a node: addresses, all other findings, and the commands that help."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from hostrouting.base.errors import HostFileError
from hostrouting.base.findings import NodeFinding
from hostrouting.config.sections import HostRoutingConfig, require_config
from hostrouting.host import Host
from hostrouting.host.files.lock import LOCK
from hostrouting.net.routes import OUR_PROTOCOL
from hostrouting.node.boot_files import obstacles
from hostrouting.node.findings import NodeChecks, Unchecked
from hostrouting.node.remedies import Advisor, Remedies, lacks_routes
from hostrouting.node.report import NodeReport
from hostrouting.route_overlap.report import OverlapReport
from hostrouting.static_routes.entries import checked_now
from phases import Context
from phases.hosting import require_context

if TYPE_CHECKING:
    from hostrouting.net.routes import ObservedRoute
    from hostrouting.static_routes.plan import RoutePlan

#: For all checks except that of the addresses; requests to the cloud have another limit.
_MOST_SECONDS = 30.0


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

    It waits only for a router that does not answer, for 2.5 s, and for the cloud. If `queries` is
    false, the cloud is not asked about optional rules that are installed.

    `path` and `root` are arguments of the command in the next step: `apply`, or `plan` for a config
    that an apply would refuse. `applied` is the report of a `Configure` that has just applied the
    config: its addresses and routes are not checked again.

    An image has no routes, so its files, links, gates and programs are checked.

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
        overlap = checked_now(ctx, config, host)
    else:
        overlap = OverlapReport()
    # The report names what there was no time for.
    limited = ctx.child(timeout=_MOST_SECONDS).expiring()
    spared: list[dict[str, object]] = []
    checks = NodeChecks(limited, config, host, overlap, applied, queries, spared.append)
    report = _report(checks, path, root)
    passing = _runs(host) if "error" in report.severities else []
    return attrs.evolve(report, findings=(*passing, *report.findings), spared=tuple(spared))


def check_after_apply(
    ctx: Context,
    config: HostRoutingConfig,
    host: Host,
    *,
    overlap: OverlapReport | None = None,
    node: Host | None = None,
    left: RoutePlan | None = None,
) -> NodeReport:
    """Return the part of `check_node` that decides if a config is in force, without a next step.

    `overlap` is the check of the apply, `node` the snapshot that it checked, and `left` the routes
    that this does not have. They are made again if they are None, or if another program has changed
    a route of ours since.
    """
    if node is not None and own_routes(node) != own_routes(host):
        node = None
        overlap = None
    if overlap is None:
        # If nothing is expected, reading all routes would be a waste.
        is_checked = host.is_live and config.route_overlap.cidrs
        overlap = checked_now(ctx, config, host) if is_checked else OverlapReport()
    checks = NodeChecks(ctx.expiring(), config, host, overlap)
    found = [*checks.applied_routes(None if node is None else left), *checks.programs()]
    return NodeReport(
        overlap=overlap,
        mode=config.route_overlap.mode,
        findings=tuple(each for each in found if isinstance(each, NodeFinding)),
        not_asked=tuple(str(each) for each in found if isinstance(each, Unchecked)),
    )


def own_routes(node: Host) -> list[ObservedRoute]:
    """Return the routes of hostrouting that are in force."""
    routing = node.routes
    by_family = (routing.routes_of(OUR_PROTOCOL, family) for family in routing.families)
    return [route for routes in by_family for route in routes]


def _report(checks: NodeChecks, path: str, root: str | None) -> NodeReport:
    """Make all checks, and find the commands that help."""
    overlap, host = checks.overlap, checks.host
    found = [*checks.all()]
    findings = (*overlap.notes, *(each for each in found if isinstance(each, NodeFinding)))
    needs_apply = any(each.apply or each.kind == "boot-file" for each in findings)
    if host.is_live and (needs_apply or lacks_routes(overlap)):
        findings = (*obstacles(host.files), *findings)
    remedies = Remedies(findings)
    if path:
        is_applied = checks.applied is not None

        def check_under(config: HostRoutingConfig) -> NodeReport:
            now = checked_now(checks.ctx, config, host)
            return _report(NodeChecks(checks.ctx, config, host, now), "CONFIG", None)

        advisor = Advisor(checks.ctx, checks.config, host, overlap, is_applied, check_under)
        remedies = advisor.remedies(findings, path, root)
    unchecked = [each for each in found if isinstance(each, Unchecked)]
    return NodeReport(
        overlap=overlap,
        mode=checks.config.route_overlap.mode,
        findings=remedies.findings,
        reapply=remedies.reapply,
        command=remedies.command,
        edit=remedies.edit,
        fix=remedies.fix,
        not_asked=tuple(dict.fromkeys(map(str, unchecked))),
        unread=tuple(each.name for each in unchecked if each.is_late),
        unanswered=tuple(each.name for each in unchecked if each.name),
    )


def _runs(host: Host) -> list[NodeFinding]:
    """Return a note about another run that is changing the node; only root can read of it."""
    with suppress(HostFileError):
        pid = (host.files.read(LOCK) or b"").decode(errors="replace").strip()
        # A run that was killed has left its file.
        if pid.isdecimal() and int(pid) != os.getpid() and host.files.exists(f"/proc/{pid}"):
            reason = "changes this node just now, by an apply, a reset or a repair"
            wait = "hostrouting status --wait 60"
            return [NodeFinding("under-way", f"process {pid}", reason, "note", command=wait)]
    return []
