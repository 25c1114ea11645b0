"""The answers on a node, as tests compare them: that of a boot's program, the text of a marker,
and the verdict of a report on each address.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from support.kernel import kernel_of

from hostrouting import Host, HostRoutingConfig, OverlapReport
from hostrouting.boot.installed_config import NewConfig
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.host import FileStore
from hostrouting.net.addresses import parse_ipv4
from hostrouting.node.at_boot import RIGHT, WRONG, answer
from hostrouting.testing import FakeHost, KernelNode

_DATED = re.compile(r"(.*\n)proven (.{20})\n", re.DOTALL)


def verdict_of(path: str, text: str) -> str:
    """Return the text of a marker; that of a right node must name the time of its proof."""
    if not path.endswith("route-overlap.ok"):
        return text
    dated = _DATED.fullmatch(text)
    assert dated, text
    proven_at(text)
    return dated[1]


def proven_at(text: str) -> datetime:
    """Return the time of the proof that the marker of a right node names."""
    dated = _DATED.fullmatch(text)
    assert dated, text
    return datetime.strptime(dated[2], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)


def may_start(
    node: KernelNode,
    cidrs: Sequence[str],
    *,
    allowed: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    files: FileStore | None = None,
) -> bool:
    """Return the answer of a boot's program to a gate in STRICT mode: True if the gate may start.

    `options` are further keys of routeOverlap.
    """
    section = {"expectedCidrs": list(cidrs), "allowedDevs": list(allowed), **(options or {})}
    config = HostRoutingConfig.from_mapping({"routeOverlap": section})
    fake = FakeHost()
    host = Host(
        routes=kernel_of(node),
        files=files or fake.files,
        services=fake.services,
        lock=fake.lock,
    )
    host.files.write(CONFIG_PATH, NewConfig(config=config).file.content, mode=0o644)
    status, lines = answer(["ask", "STRICT"], host)
    assert status in {RIGHT, WRONG}, lines
    return status == RIGHT


def claimed(report: OverlapReport, cidr: str) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Return the verdict of a report on each address of a CIDR: kind and devices; every address at
    most once.
    """
    verdicts: dict[int, tuple[str, tuple[str, ...]]] = {}
    [one] = [one for one in report.cidrs if one.cidr == cidr]
    for finding in one.findings:
        for address in range(parse_ipv4(finding.first), parse_ipv4(finding.last) + 1):
            assert address not in verdicts
            verdicts[address] = finding.kind, finding.devs
    return verdicts
