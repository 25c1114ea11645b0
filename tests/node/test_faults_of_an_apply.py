"""A fault at every step of an apply, by each port: the node is in the state that the run names."""

from unittest.mock import Mock

import pytest
from support.patience import in_time
from support.run_nodes import gpu_node

from hostrouting import Configure, HostFileError, HostRoutingConfig
from hostrouting.boot import Boot
from hostrouting.testing import FakeHost
from phases import execute, run

INSTALLED = "this config is installed all the same; gated units start once this is fixed"
CHANGED = "the config is changed all the same; see which units are held: hostrouting status"
UNDONE = "undone: the earlier config is in force, live and for the next boot"


def config(*routes: str) -> HostRoutingConfig:
    return HostRoutingConfig.from_mapping(
        {
            "staticRoutes": {"enabled": True, "routes": [{"destination": text} for text in routes]},
            "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"},
        }
    )


EARLIER = config("172.16.8.0/22")
NEW = config("172.16.8.0/21", "172.16.16.0/24")


def node() -> FakeHost:
    """A node that is right by an installed config."""
    host = gpu_node()
    execute(Configure(EARLIER, host=host), in_time())
    return host


def state(host: FakeHost) -> tuple[list[str], dict[str, str]]:
    """Our routes, and the files below /etc."""
    files = host.files.tree.snapshot()
    routes = [str(route) for route in host.routes.routes() if route.protocol == 142]
    return routes, {path: text for path, text in files.items() if path.startswith("/etc/")}


def calls(host: FakeHost, port: str) -> int:
    operations = {
        "files": host.files.operations,
        "services": host.services.operations,
        "routes": host.routes.steps,
    }
    return len(operations[port].calls)


@pytest.mark.slow
@pytest.mark.parametrize("port", ["files", "services", "routes"])
def test_the_node_is_in_the_state_that_the_run_names(
    port: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that fails leaves the earlier config in force, unless it logs that the new one is, and
    then that is whole; so is that of a run without failure.
    """
    host = node()
    before, first = state(host), calls(host, port)
    execute(Configure(NEW, host=host), in_time())
    after, steps = state(host), calls(host, port) - first
    assert steps
    for step in range(1, steps + 1):
        host = node()
        caplog.clear()
        getattr(host, port).fail_at(step)
        report = run(Configure(NEW, host=host), in_time())
        is_new = report.ok or not {INSTALLED, CHANGED}.isdisjoint(caplog.messages)
        assert state(host) == (after if is_new else before), (step, str(report.error))
        assert (UNDONE in caplog.messages) <= (not is_new), step


def test_a_disk_that_fails_between_commit_and_cleaning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the earlier config are removed all the same, or that task has the failure."""
    host, undisturbed = node(), node()
    execute(Configure(NEW, host=undisturbed), in_time())
    monkeypatch.setattr(Boot, "is_right", Mock(side_effect=HostFileError("cannot read /etc/x")))
    assert run(Configure(NEW, host=host), in_time()).ok
    assert state(host) == state(undisturbed)


def test_a_disk_that_fails_after_the_last_task(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails, and says that the config is changed."""
    host = node()
    monkeypatch.setattr(Boot, "release", Mock(side_effect=HostFileError("cannot read /etc/x")))
    report = run(Configure(NEW, host=host), in_time())
    assert str(report.error) == "configure: cannot read /etc/x"
    assert CHANGED in caplog.messages
    assert state(host)[0] == [
        "172.16.8.0/21 via 10.224.0.1 dev eth0 proto 142",
        "172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142",
    ]
