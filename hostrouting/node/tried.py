"""An apply that has failed: it is not offered again until the node is another one.

The same apply of the same config on the same node fails again, and whoever follows `next:` would
repeat it for ever. Only `hostrouting apply` writes the file; a boot forgets it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.base.errors import HostFileError, HostRoutingError
from hostrouting.base.findings import NodeFinding
from hostrouting.boot.intent import Intent
from hostrouting.boot.layout import STATE_DIRECTORY
from hostrouting.net.routes import OUR_PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.node.report import NodeReport

PATH: Final = f"{STATE_DIRECTORY}/tried"
_LEFT: Final = NodeFinding(
    "tried",
    "hostrouting apply",
    "has failed, and nothing that it depends on has changed since",
    "note",
    "change what is named above, and apply again",
)


class Tried(NamedTuple):
    """What failed: the apply of a config, on a node in some state."""

    config: str
    state: str


def remember(host: Host, config: HostRoutingConfig, report: NodeReport) -> None:
    """Remember that an apply of a config has failed; `report` is that of the node after it."""
    tried = Tried(_config(config), _state(host, report))
    # A full disk is a reason to fail, too.
    with suppress(HostRoutingError):
        host.files.write(PATH, json.dumps(tried._asdict()).encode(), mode=0o644)


def forget(host: Host) -> None:
    """Forget it after an apply that has not failed."""
    with suppress(HostFileError):
        host.files.remove(PATH)


def without_tried(
    host: Host,
    config: HostRoutingConfig,
    report: NodeReport,
    *,
    answer: HostRoutingConfig | None = None,
) -> NodeReport:
    """Return a report on a node without the step that has failed on it.

    Its step is an apply of `config`, or of the `answer` of `check --fix`.
    """
    tried = _read(host)
    if tried is None or tried.state != _state(host, report):
        return report
    step, is_fixable = report.step, report.is_fixable
    if tried.config == _config(config):
        step = None
    if answer is not None and tried.config == _config(answer):
        is_fixable = False
    if (step, is_fixable) == (report.step, report.is_fixable):
        return report
    left = (
        attrs.evolve(finding, command="") if finding.command == report.step else finding
        for finding in report.findings
    )
    findings = report.findings if step else (*left, _LEFT)
    return attrs.evolve(report, step=step, is_fixable=is_fixable, findings=findings)


def _read(host: Host) -> Tried | None:
    with suppress(HostFileError, ValueError, TypeError):
        return Tried(**json.loads(host.files.read(PATH) or b""))
    return None


def _config(config: HostRoutingConfig) -> str:
    return _digest(Intent(config=attrs.evolve(config, found_devs=())).file.content.decode())


def _state(host: Host, report: NodeReport) -> str:
    """Return what an apply depends on: devices, default routes, own routes, rules and findings."""
    with suppress(HostRoutingError):
        return _digest("\n".join(sorted(_facts(host, report))))
    return ""


def _facts(host: Host, report: NodeReport) -> Iterator[str]:
    for finding in report.findings:
        if finding.apply or finding.severity == "error":
            yield f"{finding.kind} {finding.subject}"
    yield from report.overlap.lines()
    routing = host.routes
    for link in routing.links():
        yield repr((link.name, link.up, link.carrier, link.master, link.addresses, link.failed))
    for family in routing.families:
        yield from map(str, routing.rules(family))
        for route in routing.routes(family):
            if not route.prefix_length or route.protocol == OUR_PROTOCOL:
                yield str(route)


def _digest(text: str) -> str:
    # Imported late: hashlib loads OpenSSL.
    import hashlib

    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
