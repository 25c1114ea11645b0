"""The product on other versions of systemd than that of this machine: 249 and 255 of Ubuntu 22.04
and 24.04, 257 of Debian 13.

And 247 of Debian 11, which is older than the supported ones.
"""

import os
import sysconfig
from pathlib import Path

import pytest
from support.needs import require
from support.processes import ended
from support.trees import build_packages, install_package, make_tree

_HERE = Path(__file__).parent
_PACKAGES = (
    "python3",
    "systemd",
    "systemd-container",
    "dbus",
    "iproute2",
    "nftables",
    "iptables",
    "procps",
)
_TESTS = (
    "host/test_systemd.py",
    "static_routes/test_unit.py",
    "system/test_after.py",
    "system/test_advertised_gates.py",
    "system/test_boots.py",
    "system/test_broken_nodes.py",
    "system/test_fabric.py",
    "system/test_gate.py",
    "system/test_gate_faults.py",
    "system/test_gates_wait.py",
    "system/test_lost_default.py",
    "system/test_marks.py",
    "system/test_matrix.py",
    "system/test_metric_owner.py",
    "system/test_networkd.py",
    "system/test_networkd_dhcp.py",
    "system/test_probe_snat.py",
    "system/test_program.py",
    "system/test_recovery.py",
    "system/test_routes_and_check.py",
    "system/test_tokens.py",
    "system/test_upgrade.py",
    "system/test_waiters.py",
    "system/test_watch_alarm.py",
    "system/test_watch_service.py",
    "system/test_watch_timer.py",
)
_LEFT_OUT_ON_BULLSEYE = (
    # Its Python is 3.9, too old for the command and for the program of a boot.
    "test_advertised_gates.py",
    "test_after.py",
    "test_boots.py",
    "test_broken_nodes.py",
    "test_fabric.py",
    "test_lost_default.py",
    "test_matrix.py",
    "test_probe_snat.py",
    "test_program.py",
    "test_routes_and_check.py",
    "test_tokens.py",
    "test_upgrade.py",
    "test_watch_alarm.py",
    "test_watch_service.py",
    "test_watch_timer.py",
    "test_no_payload_starts_on_a_node_that_is_wrong",
    "test_watch_repairs",
    # Its systemd logs each start and each end, whatever LogLevelMax= is.
    "test_a_start_that_passes_logs_nothing",
    "test_a_refusal_is_logged_once",
    "test_it_waits_and_works",
    # It warns of RestrictAddressFamilies=none, and ignores it.
    "test_the_order_on_an_absent_daemon",
)
#: The status of pytest if none of the tests is selected.
_NOTHING_TO_RUN = 5


@pytest.fixture(scope="module", params=["bullseye", "jammy", "noble", "trixie"])
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a fresh tree of a release, with the package if its Python can run that."""
    require("systemd", "debootstrap", "dpkg-deb", "rpmbuild")
    folder = tmp_path_factory.mktemp("other")
    made = make_tree(request.param, folder / request.param, *_PACKAGES)
    if made.name != "bullseye":
        install_package(made, build_packages(folder / "packages"))
    return made


@pytest.mark.soak
@pytest.mark.parametrize("name", _TESTS)
def test_another_release(tree: Path, name: str) -> None:
    """The tests on real systemd pass in machines of another release."""
    left_out = _LEFT_OUT_ON_BULLSEYE if tree.name == "bullseye" else ()
    selection = " and ".join(f"not {test}" for test in left_out)
    # The long tests of the soak profile would prove no more about systemd. A tree is complete: no
    # test may be skipped.
    settings = {
        "HOSTROUTING_BOX_ROOT": str(tree),
        "HYPOTHESIS_PROFILE": "default",
        "HOSTROUTING_NO_SKIP": "1",
    }
    pytest_here = Path(sysconfig.get_path("scripts"), "pytest")
    ran = ended(
        *(pytest_here, "-q", "-p", "no:cacheprovider", "-k", selection, _HERE.parent / name),
        env={**os.environ, **settings},
        cwd=_HERE.parents[1],
    )
    wanted = _NOTHING_TO_RUN if Path(name).name in left_out else 0
    assert ran.returncode == wanted, ran.stdout[-10000:]
