"""The script and the unit that check the routing at a boot."""

import subprocess
from pathlib import Path

import pytest
from support.boot_units import assert_systemd_accepts
from support.kernel import needs_kernel
from support.needs import needs
from support.without_python import NO_PYTHON, run, run_program

from hostrouting import HostRoutingConfig
from hostrouting.boot.layout import units_in
from hostrouting.route_overlap.script import boot_part
from hostrouting.testing import KernelNode

CONFIG = HostRoutingConfig.from_mapping({"routeOverlap": {"expectedCidrs": ["10.0.0.0/8"]}})
[UNIT] = units_in([boot_part(CONFIG)])
SCRIPT = UNIT.files[0].content
KILLED = (
    "<3>routing is unknown: the check ended with 137; run: "
    "hostrouting apply /etc/aks-flex-node/hostrouting.json"
)


@pytest.mark.slow
def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    """ShellCheck finds nothing in the script."""
    (tmp_path / "script.sh").write_bytes(SCRIPT)
    subprocess.run(["shellcheck", tmp_path / "script.sh"], check=True)


@needs("systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` prints nothing for the unit, whose exposure is 3.2 at most."""
    assert_systemd_accepts(UNIT, tmp_path)


@needs_kernel
def test_without_python_nothing_is_known(tmp_path: Path) -> None:
    """Without Python the script names what is missing, removes the markers of the last check and
    their copies, and leaves the routing unknown.
    """
    folders = "/run/hostrouting /run/aks-flex-node"
    commands = f"""
        mkdir -p {folders}
        for folder in {folders}; do touch $folder/route-overlap.ok $folder/other; done
        run; ls {folders}
    """
    with KernelNode.made() as node:
        assert run(node, SCRIPT, tmp_path, commands) == [
            *(NO_PYTHON, "12", "/run/aks-flex-node:", "other", "", "/run/hostrouting:", "other"),
        ]


@needs_kernel
@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("echo right; exit 10", ["right", "10"]),
        ("echo wrong; exit 11", ["wrong", "11"]),
        ("echo why; exit 12", ["why", "12"]),
        ("kill -9 $$", [KILLED, "12"]),
    ],
)
def test_the_program_answers(tmp_path: Path, program: str, lines: list[str]) -> None:
    """The script has the answer of the program; a program that was killed leaves the routing
    unknown.
    """
    with KernelNode.made() as node:
        assert run_program(node, SCRIPT, tmp_path, program) == lines
