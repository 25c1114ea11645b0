"""The gate and its recovery on another systemd than that of this machine: 257, of Debian 13."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
from support.needs import require

_HERE = Path(__file__).parent
_PACKAGES = "systemd,systemd-container,dbus,iproute2,nftables,procps"


@pytest.mark.soak
def test_debian_13(tmp_path: Path) -> None:
    """The same tests pass in machines that are copies of a fresh Debian 13."""
    require("systemd", "debootstrap")
    tree = tmp_path / "trixie"
    command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "trixie", str(tree)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-2000:]
    tests = [_HERE / name for name in ("test_gate.py", "test_gate_faults.py", "test_networkd.py", "test_recovery.py")]
    tests.append(_HERE.parent / "host/test_systemd.py")
    ran = subprocess.run(
        [Path(sysconfig.get_path("scripts"), "pytest"), "-q", "-p", "no:cacheprovider", *tests],
        env={**os.environ, "HOSTROUTING_BOX_ROOT": str(tree)},
        cwd=_HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-10000:]
