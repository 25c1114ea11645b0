"""A network inside 127.0.0.0/8 is refused in a new config, and stays valid in an installed one."""

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from support.in_process import run_here
from support.kernel import uplink
from support.printed import NARROW, OWN_ADDRESS
from support.run_nodes import put_in_force

from hostrouting import (
    CheckRouteOverlap,
    Configure,
    Host,
    HostRoutingConfig,
    check_node,
    node_status,
)
from hostrouting.boot.installed_config import read_installed_config
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.fleet import check_record, take_record
from hostrouting.node.at_boot import answer
from hostrouting.testing import FakeHost
from phases import Context, TaskFailedError, plan, run

REASON = (
    "'127.0.0.0/8' is in 127.0.0.0/8, the node's own loopback; no packet for it leaves the "
    "node; remove it"
)
REFUSAL = f"hostRouting.routeOverlap.expectedCidrs: {REASON}"
WARNING = f"warning: local-network: routeOverlap.expectedCidrs: {REASON}"
OLD = {"expectedCidrs": ["10.96.0.0/16", "127.0.0.0/8"], "allowedDevs": ["lo"], "mode": "STRICT"}


@pytest.fixture
def host() -> FakeHost:
    host = FakeHost()
    uplink(host.routes)
    return host


def config_of(**overlap: Any) -> HostRoutingConfig:
    return HostRoutingConfig.from_mapping({"gates": [], "routeOverlap": overlap})


def install_old(host: FakeHost) -> None:
    """Install a config with a loopback network, as an earlier release did."""
    good = config_of(**OLD | {"expectedCidrs": ["10.96.0.0/16"]})
    assert run(Configure(good, host=host)).ok
    installed = json.dumps({"hostRouting": {"gates": [], "routeOverlap": OLD}}).encode()
    put_in_force(host, installed)


@pytest.mark.parametrize("kind", [Configure, CheckRouteOverlap])
@pytest.mark.parametrize("boot", [True, False])
def test_a_new_config_is_refused(kind: type[Configure], *, boot: bool) -> None:
    """An apply and the task of the check alone refuse a new config with a loopback network, with and
    without boot files, and so do their plans; nothing is installed.
    """
    host = FakeHost(boot=boot)
    task = kind(config_of(**OLD), host=host)
    failed = run(task).error
    assert isinstance(failed, TaskFailedError)
    assert str(failed.cause) == REFUSAL
    with pytest.raises(TaskFailedError) as refused:
        plan(task, Context())
    assert str(refused.value.cause) == REFUSAL
    assert read_installed_config(host.files) is None


def test_an_apply_over_an_installed_one(host: FakeHost) -> None:
    """An apply over a config with a loopback network accepts the same network, and refuses another
    one.
    """
    install_old(host)
    more = ["10.96.0.0/16", "127.0.0.0/8", "127.1.0.0/16"]
    refused = run(Configure(config_of(expectedCidrs=more), host=host))
    assert isinstance(refused.error, TaskFailedError)
    assert str(refused.error.cause) == (
        "hostRouting.routeOverlap.expectedCidrs: '127.1.0.0/16' is in 127.0.0.0/8, the node's "
        "own loopback; no packet for it leaves the node; remove it"
    )
    assert run(Configure(config_of(**OLD), host=host)).ok
    assert read_installed_config(host.files) == attrs.evolve(config_of(**OLD), found_devs=("eth0",))


def test_an_installed_one_stays_valid(host: FakeHost) -> None:
    """With an installed loopback network, an apply, a boot, `check`, `status` and the check of a
    record are right, and `check` has a warning.
    """
    install_old(host)
    assert run(Configure(config_of(**OLD), host=host)).ok
    assert answer(["ask", "STRICT"], host)[0] == 10
    report = check_node(Context(), config_of(**OLD), host, path=CONFIG_PATH)
    assert report.ok
    assert [line for line in report.lines() if "local" in line] == [WARNING]
    status = node_status(Context(), host)
    assert status.ok
    assert status.check.verdict == "right"
    proven = check_record(take_record(Context(), host)).report
    assert proven is not None
    assert proven.ok


def test_commands(host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check`, `plan`, `apply` and `render` refuse a file with a loopback network, until that is
    installed; `init` refuses such a network as a CIDR.
    """
    monkeypatch.setattr(Host, "live", lambda: host)
    (config := tmp_path / "c.json").write_text(json.dumps({"routeOverlap": OLD}))
    for command in "check", "plan", "apply", "render":
        answered = run_here(command, config)
        assert answered.returncode == 2
        assert answered.stderr == f"hostrouting: {REFUSAL}\n"
    answered = run_here("init", "--cidr", "127.0.0.0/8")
    step = "give --cidr once for each expected CIDR"
    assert answered.returncode == 2
    assert answered.stderr == f"hostrouting: {REASON}; {step}\n"
    install_old(host)
    for command in "apply", "check", "plan", "render":
        answered = run_here(command, config)
        assert answered.returncode == 0, answered


def test_each_list_has_its_own(host: FakeHost) -> None:
    """An installed loopback network in `fabric` does not let a new config expect the network."""
    assert run(Configure(config_of(expectedCidrs=["10.96.0.0/16"]), host=host)).ok
    overlap = {"expectedCidrs": ["10.96.0.0/16"], "fabric": ["127.0.0.0/8"]}
    installed = json.dumps({"hostRouting": {"gates": [], "routeOverlap": overlap}}).encode()
    put_in_force(host, installed)
    both = overlap | {"expectedCidrs": ["10.96.0.0/16", "127.0.0.0/8"]}
    failed = run(Configure(config_of(**both), host=host)).error
    assert failed is not None
    assert REFUSAL in str(failed)


def test_no_step_removes_the_loopback(host: FakeHost) -> None:
    """The step for an expected loopback address is to take it out of expectedCidrs, and not to
    narrow the node's network.
    """
    config = config_of(expectedCidrs=["127.0.0.1/32"])
    report = check_node(Context(), config, host)
    assert f"{OWN_ADDRESS}take it out of expectedCidrs." in (report.lines())
    assert NARROW not in report.overlap.steps
