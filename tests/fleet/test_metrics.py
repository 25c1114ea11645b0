"""`check --format prometheus` prints lines about a node, which promtool and the real node_exporter
accept.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.command_line import CHECKED, run
from support.in_process import run_here
from support.kernel import connect
from support.needs import needs
from support.patience import at_once
from support.run_nodes import node as node_in_memory

from hostrouting import Configure, HostRoutingConfig, OverlapMode, OverlapReport, __version__
from hostrouting.base.findings import NodeFinding
from hostrouting.fleet.metrics import exposition
from hostrouting.host import OUR_PROTOCOL, Host, RouteChange
from hostrouting.node.check import check_node
from hostrouting.node.report import NodeReport
from hostrouting.testing import FakeHost, KernelNode
from phases import execute

NSPAWN = "systemd-nspawn@.service"
ROUTES = [{"destination": "172.16.8.0/22"}, {"destination": "172.20.0.0/16"}]
CONFIG = HostRoutingConfig.from_mapping(
    {
        "staticRoutes": {"enabled": True, "routes": ROUTES},
        "routeOverlap": CHECKED["routeOverlap"],
        "watch": {"enabled": True},
        "gates": [NSPAWN],
    }
)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    host = node_in_memory()
    connect(host.routes, ib0="172.16.1.4/16")
    monkeypatch.setattr(Host, "live", lambda: host)
    return host


def samples(host: FakeHost, config: HostRoutingConfig = CONFIG) -> dict[str, str]:
    """Return each sample with its value, but that of the time."""
    report = check_node(at_once(), config, host)
    lines = exposition(report, config, now=7.5).splitlines()
    shown = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert shown.pop("hostrouting_checked_timestamp_seconds{}") == "7.5"
    assert shown.pop(f'hostrouting_build_info{{version="{__version__}"}}') == "1"
    return {name.removeprefix("hostrouting_"): value for name, value in shown.items()}


def of_routes(in_force: int, lost: int, left: int = 0) -> dict[str, str]:
    counts = {"in_force": in_force, "lost": lost, "not_of_this_config": left}
    return {f'routes{{state="{state}"}}': str(count) for state, count in counts.items()}


def test_a_node_from_the_first_check_to_an_overlap(host: FakeHost) -> None:
    """The metrics of a node have the counts of `check` before an apply, after it, with another
    config and without routes, and the gate is open or shut; with the break glass it is open.
    """
    overlap = 'findings{cidr="172.16.8.0/22",kind="overlap",severity="error"}'
    shut = f'gate{{unit="{NSPAWN}",state="shut"}}'
    is_open = f'gate{{unit="{NSPAWN}",state="open"}}'
    not_applied = 'findings{cidr="",kind="not-applied",severity="warning"}'
    assert samples(host) == {not_applied: "1", overlap: "1", **of_routes(0, 2), shut: "1"}
    execute(Configure(CONFIG, host=host), at_once())
    assert samples(host) == {**of_routes(2, 0), is_open: "1"}
    section = attrs.evolve(CONFIG.static_routes, routes=CONFIG.static_routes.routes[:1])
    fewer = attrs.evolve(CONFIG, static_routes=section)
    shown = samples(host, fewer)
    assert of_routes(1, 0, 1).items() <= shown.items()
    assert shown[is_open] == "1"
    host.routes.apply([RouteChange.remove(route) for route in host.routes.routes_of(OUR_PROTOCOL)])
    lost = 'findings{cidr="",kind="lost-route",severity="error"}'
    assert samples(host) == {lost: "2", overlap: "1", **of_routes(0, 2), shut: "1"}
    host.files.write("/run/hostrouting.disabled", b"", mode=0o644)
    assert samples(host)[is_open] == "1"


def test_a_cidr_of_a_preset_is_labelled_by_its_address(host: FakeHost) -> None:
    """The label of a preset's CIDR is the CIDR alone, so that it joins with other metrics."""
    host.routes.add_route("169.254.169.254/32", dev="ib0")
    config = HostRoutingConfig.from_mapping(
        {"routeOverlap": {"expected": ["gcp"], "mode": "STRICT"}, "gates": []}
    )
    assert (
        samples(host, config).get(
            'findings{cidr="169.254.169.254/32",kind="overlap",severity="error"}'
        )
        == "1"
    )


@given(subject=st.text(), kind=st.sampled_from(["held", "gate-down"]))
@example(subject='"', kind="held")
def test_any_name_is_a_label_in_one_line(subject: str, kind: str) -> None:
    """Any name is a printable label in one line, from which a printable name reads back."""
    nothing = OverlapReport()
    report = NodeReport(
        overlap=nothing, mode=OverlapMode.WARN, findings=(NodeFinding(kind, subject, "reason"),)
    )
    shown = exposition(report, HostRoutingConfig(gates=()), now=1)
    label = re.search(
        r'^hostrouting_gate\{unit="((?:[^"\\\n]|\\["\\])*)",state="\w+"\} 1$', shown, re.MULTILINE
    )
    assert label is not None
    read = re.sub(r"\\(.)", r"\1", label[1])
    assert read.isprintable()
    assert read == subject or not subject.isprintable()
    shown.encode()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (path := tmp_path / "config.json").write_text(json.dumps(CHECKED))
    return path


def test_the_command_writes_a_file_or_stdout(
    host: FakeHost, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check --format prometheus` has the exit status of `check`; its file is readable by all, and
    stays as it is if nothing could be read.
    """
    words = "check", config, "--format", "prometheus"
    shown = run_here(*words)
    assert shown.returncode == 1
    assert shown.stdout.startswith("# HELP hostrouting_findings ")
    assert [run_here(*words, "--out", name).stdout[:19] for name in ("-", "/dev/stdout")] == [
        "# HELP hostrouting_"
    ] * 2
    monkeypatch.chdir(config.parent)
    written = run_here(*words, "--out", "routing.prom")
    assert written.returncode == 1
    assert written.stdout == run_here("check", config).stdout
    out = str(config.with_name("routing.prom"))
    before = host.files.read(out) or b""
    assert re.sub("seconds{}.*", "", before.decode()) == re.sub("seconds{}.*", "", shown.stdout)
    assert host.files.mode(out) == 0o644
    config.write_text("{")
    assert run_here(*words, "--out", out).returncode == 2
    assert host.files.read(out) == before


@pytest.mark.usefixtures("host")
def test_only_a_file_is_replaced(config: Path) -> None:
    """`--out` replaces a plain file alone: a pipe or a link in its place is refused, and stays."""
    special = config.with_name("pipe")
    link = config.with_name("link")
    os.mkfifo(special)
    link.symlink_to(config)
    for path in special, link:
        refused = run_here("check", config, "--format", "prometheus", "--out", path)
        assert refused.returncode == 3
        assert f"{path} is not a plain file to replace" in refused.stderr
    assert special.is_fifo()
    assert link.is_symlink()


@needs("kernel", "promtool", "prometheus-node-exporter")
def test_node_exporter_takes_the_file(node: KernelNode, config: Path, tmp_path: Path) -> None:
    """Promtool accepts the file, and node_exporter shows the overlap of a node of the kernel
    without an error.
    """
    (out := tmp_path / "textfiles/hostrouting.prom").parent.mkdir()
    node.add_route("default", gateway="10.224.0.1", dev="eth0")
    assert run("check", config, "--format=prometheus", "--out", out, inside=node).returncode == 1
    linted = subprocess.run(
        ["promtool", "check", "metrics"], input=out.read_bytes(), capture_output=True, check=True
    )
    assert linted.stdout == b""
    assert linted.stderr == b""
    assert out.stat().st_mode & 0o777 == 0o644
    inside = ["nsenter", f"--net=/run/netns/{node.name}"]
    collectors = "prometheus-node-exporter --collector.disable-defaults --collector.textfile"
    options = f"--collector.textfile.directory={out.parent} --web.listen-address=127.0.0.1:9100"
    words = [*inside, *f"{collectors} {options}".split()]
    code = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:9100/metrics').read().decode())"
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as exporter:
        try:
            next(line for line in exporter.stderr or () if "Listening on" in line)
            scraped = subprocess.check_output([*inside, sys.executable, "-c", code], text=True)
        finally:
            exporter.kill()
    assert "\nnode_textfile_scrape_error 0\n" in scraped
    assert (
        '\nhostrouting_findings{cidr="172.16.8.0/22",kind="overlap",severity="error"} 1\n'
        in scraped
    )
