"""The answers on a node, as tests compare them: the boot script, run there, with its markers,
and the verdict of a report on each address.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

from support.printed import UNPROVEN
from support.processes import ended

from hostrouting import HostRoutingConfig, OverlapReport
from hostrouting.net.addresses import parse_ipv4
from hostrouting.route_overlap.proven import departure_of
from hostrouting.route_overlap.script import render_script
from hostrouting.testing import KernelNode

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


#: Runs a program where /run/netns has a file that is not a namespace, as a CNI that crashed leaves
#: it.
AMONG_DEBRIS = (
    *("unshare", "--mount", "sh", "-ec"),
    'mount -t tmpfs none /run/netns; touch /run/netns/stale; exec "$@"',
    "sh",
)


class ScriptRun(NamedTuple):
    """The exit status of the boot script, its output, and the content of its files."""

    status: int
    output: str
    markers: dict[str, str]

    @property
    def is_plain(self) -> bool:
        """True if the script itself has answered. Without the program there is no further answer."""
        assert self.status in {10, 12}, self.output
        assert (self.status == 12) == (UNPROVEN in self.output), self.output
        return self.status == 10

    def must_follow(self, report: OverlapReport) -> None:
        """Assert that a yes is one of the proof, too, in its words. It may name more devices: of
        routes that decide only under conditions.
        """
        if not self.is_plain:
            return
        assert report.ok, (self.output, report.lines())
        head = departure_of([part.cidr for part in report.cidrs])
        printed = self.markers["route-overlap.ok"].removeprefix(head).removesuffix("\n")
        assert {*printed.strip().split(", ")} >= {*(report.carriers or report.expected_devs)}


def run_script(
    node: KernelNode,
    folder: Path,
    cidrs: Sequence[str],
    *,
    mode: str = "STRICT",
    allowed: Sequence[str] = (),
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    waits: int = 0,
    second: float = 1,
    through: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    files: Path | None = None,
    after: Sequence[str] = (),
    program: Path | None = None,
) -> ScriptRun:
    """Run the rendered script, but with another folder for its files, and less patience.

    `through` is a command that runs the command which follows it. `options` are further keys of
    routeOverlap. The files of the cloud's agent and of devices are read below `files`. Each second
    that it waits is so long. `program` is a script of bash in the place of the program; without it,
    there is none, and no Python.
    """
    section = {
        "expectedCidrs": list(cidrs),
        "mode": mode,
        "allowedDevs": list(allowed),
        **(options or {}),
    }
    document = {"routeOverlap": section, "after": list(after)}
    text = render_script(HostRoutingConfig.from_mapping(document)).decode()
    places = {
        "/run/aks-flex-node": str(folder),
        "waits=30\n": f"waits={waits or ''}\n",
        "    sleep 1\n": f"    sleep {second}\n",
        "/etc/aks-flex-node/hostrouting.zip": str(program or "/nonexistent/hostrouting.zip"),
        "python=/usr/bin/python3": "python=/nonexistent/python3",
    }
    if program:
        places['"$python" -I -S "$file"'] = '"$program"'
        places["--kill-after=1 10 "] = "--kill-after=0.2 5 "
    if files:
        found = ("/etc/waagent.conf", "/var/lib/hyperv/", "/sys/class/net/", "/sys/class/infini")
        places |= {path: f"{files}{path}" for path in found}
    for place, value in places.items():
        assert place in text, place
        text = text.replace(place, value)
    # Found by the PATH of the tests, which may have another bash, and not by that of the script.
    bash = shutil.which("bash") or ""
    variables = [f"{name}={value}" for name, value in (environment or {}).items()]
    with NamedTemporaryFile("w", dir=folder.parent) as script:
        script.write(text)
        script.flush()
        Path(script.name).chmod(0o644)
        done = ended(
            *("nsenter", f"--net=/run/netns/{node.name}", *through, "env", *variables),
            *(bash, "-p", script.name, *arguments),
            timeout=200,
        )
    markers = (
        {path.name: verdict_of(path.name, path.read_text()) for path in sorted(folder.iterdir())}
        if folder.exists()
        else {}
    )
    return ScriptRun(done.returncode, done.stdout + done.stderr, markers)


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
