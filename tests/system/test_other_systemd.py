"""Gates, recovery, watch and networkd on other systemds than that of this machine: 247 and 257, of Debian 11 and 13."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
from support.needs import require

_HERE = Path(__file__).parent
_PACKAGES = "systemd,systemd-container,dbus,iproute2,nftables,procps"
_TESTS = (
    "system/test_gate.py",
    "system/test_gate_faults.py",
    "system/test_networkd.py",
    "system/test_networkd_dhcp.py",
    "system/test_recovery.py",
    "system/test_watch_proof.py",
    "system/test_watch_timer.py",
    "host/test_systemd.py",
)
#: The tree has no Python, which watch as a service needs.
_WITHOUT_PYTHON = "not test_watch_repairs"
#: 247 logs each start, whatever LogLevelMax= says.
_OF_SILENCE = " and not TestWhatIsSaid"
_SUITES = {"bullseye": _WITHOUT_PYTHON + _OF_SILENCE, "trixie": _WITHOUT_PYTHON}


@pytest.mark.soak
@pytest.mark.parametrize("suite", _SUITES)
def test_another_debian(tmp_path: Path, suite: str) -> None:
    """The same tests pass in machines that are copies of a fresh tree of this Debian."""
    require("systemd", "debootstrap")
    tree = tmp_path / suite
    command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", suite, str(tree)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-2000:]
    tests = [_HERE.parent / name for name in _TESTS]
    ran = subprocess.run(
        [Path(sysconfig.get_path("scripts"), "pytest"), "-q", "-p", "no:cacheprovider", "-k", _SUITES[suite], *tests],
        env={**os.environ, "HOSTROUTING_BOX_ROOT": str(tree)},
        cwd=_HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-10000:]
