"""Configure and Reset on a host whose boot files are left alone: routes until the next boot."""

from typing import Any

import pytest
from support.patience import at_once
from support.run_nodes import own_routes

from hostrouting import (
    CheckRouteOverlap,
    Configure,
    ConfigureProbeSNAT,
    ConfigureStaticRoutes,
    Host,
    HostRoutingConfig,
    OverlapReport,
    Reset,
    check_node,
)
from hostrouting.boot.layout import CONFIG_PATH, LIVE_RECORD
from hostrouting.exceptions import HostFileError, HostInUseError
from hostrouting.testing import FakeHost, MemoryBackend
from phases import Report, TaskFailedError, plan, run

ROUTE = "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"
OTHER = "172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142"
LEFT_OUT = "on this host, only routes are changed and checked"


def machine(*, boot: bool = False) -> FakeHost:
    links = {"eth0": ["10.224.0.4/16"], "ib0": ["172.16.1.4/16"]}
    return FakeHost(
        MemoryBackend(links=links, routes=["default via 10.224.0.1 dev eth0"]), boot=boot
    )


def config(*destinations: str, **sections: Any) -> HostRoutingConfig:
    routes = [{"destination": destination} for destination in destinations]
    expected = {"expectedCidrs": [*destinations], "mode": "STRICT"}
    return HostRoutingConfig.from_mapping(
        {
            "staticRoutes": {"enabled": True, "routes": routes},
            "routeOverlap": expected,
            **sections,
        }
    )


FIRST = config("172.16.8.0/22")
SECOND = config("172.16.16.0/24")


def configured(host: FakeHost, wanted: HostRoutingConfig) -> Report:
    return run(Configure(wanted, host=host), at_once())


def changed_files(host: FakeHost) -> list[tuple[str, ...]]:
    looks = {"exists", "mode", "names", "read", "read_link"}
    return [call for call in host.files.operations.calls if call[0] not in looks]


def refusal(report: Report) -> HostInUseError:
    assert isinstance(report.error, TaskFailedError)
    assert isinstance(report.error.cause, HostInUseError)
    return report.error.cause


def test_routes_are_changed_and_checked_and_the_rest_is_skipped_with_its_reason() -> None:
    """Configure on a host without boot files changes and checks routes, and writes nothing but its
    record: what it leaves out is skipped, with the reason, and the run is not degraded.
    """
    host = machine()
    wanted = config(
        "172.16.8.0/22", probeSnat={"enabled": True}, gates=["kubelet.service"], after=["a.service"]
    )
    report = configured(host, wanted)
    assert report.ok
    assert not report.degraded
    assert own_routes(host) == [ROUTE]
    proof = report.result_of(OverlapReport)
    assert proof is not None
    assert proof.ok
    assert {each.name: each.reasons for each in report.walk() if each.status == "skipped"} == {
        "install-boot-files": [LEFT_OUT],
        "clean-stale-cni": ["not in the config"],
        "configure-probe-snat": [LEFT_OUT],
        "configure-watch": ["not in the config"],
    }
    assert changed_files(host) == [("write", LIVE_RECORD)]


def test_the_check_of_such_a_host_is_about_its_routes() -> None:
    """A check finds no fault with missing boot files where nobody installs any, and reports a lost
    route.
    """
    host = machine()
    assert configured(host, FIRST).ok
    assert check_node(at_once(), FIRST, host).findings == ()
    [own] = [each for each in host.routes.routes() if each.protocol == 142]
    host.routes.delete_route(own)
    report = check_node(at_once(), FIRST, host)
    assert report.verdict == "wrong"
    assert "lost-route" in [finding.kind for finding in report.findings]


def test_a_later_run_may_have_another_config() -> None:
    """A second run of the same config changes nothing; one of another config replaces the routes of
    the first; a reset removes them, and the record.
    """
    host = machine()
    assert configured(host, FIRST).ok
    assert configured(host, FIRST).changes == ()
    report = configured(host, SECOND)
    assert report.ok
    assert sorted(map(str, report.changes)) == [f"+ {OTHER}", f"- {ROUTE}"]
    report = run(Reset(SECOND, host=host), at_once())
    assert report.ok
    assert own_routes(host) == []
    assert not host.files.exists(LIVE_RECORD)
    assert report.find("install-boot-files").reasons == [LEFT_OUT]


def test_a_route_that_was_removed_is_no_longer_ours() -> None:
    """A run forgets the routes that earlier ones removed: one that comes back belongs to somebody."""
    host = machine()
    for wanted in FIRST, SECOND, SECOND:
        assert configured(host, wanted).ok
    host.routes.add_route("172.16.8.0/22", gateway="10.224.0.1", dev="eth0", protocol=142)
    assert refusal(configured(host, SECOND)).routes == (ROUTE,)


@pytest.mark.parametrize("task", [Configure, ConfigureStaticRoutes, CheckRouteOverlap, Reset])
def test_an_installed_config_is_never_touched(task: type[Configure]) -> None:
    """Each task is refused before its first change where a config is installed, and so is its plan:
    the installed config would undo it.
    """
    host = machine(boot=True)
    assert configured(host, FIRST).ok
    object.__setattr__(host, "has_boot", False)
    before = own_routes(host), host.files.tree.snapshot()
    error = refusal(run(task(SECOND, host=host), at_once()))
    assert (error.code, error.routes) == ("config-installed", ())
    assert CONFIG_PATH in str(error)
    assert (own_routes(host), host.files.tree.snapshot()) == before


@pytest.mark.parametrize("task", [Configure, ConfigureStaticRoutes, Reset])
def test_routes_that_no_such_run_has_added_are_not_removed(task: type[Configure]) -> None:
    """A route of hostrouting that neither the config nor the record has is a refusal before the
    first change, with the route as a value; in a plan, too.
    """
    host = machine()
    host.routes.add_route("172.16.16.0/24", gateway="10.224.0.1", dev="eth0", protocol=142)
    error = refusal(run(task(FIRST, host=host), at_once()))
    assert (error.code, error.routes) == ("other-routes", (OTHER,))
    assert own_routes(host) == [OTHER]
    if task.name != "reset":
        with pytest.raises(TaskFailedError, match="neither in this config"):
            plan(task(FIRST, host=host), at_once())
        assert run(task(SECOND, host=host), at_once()).ok


def test_a_run_that_is_undone_keeps_the_record_of_the_one_before() -> None:
    """After a run that was cancelled, the routes and the record are those of the run before, so
    that the next config is accepted.
    """
    host = machine()
    assert configured(host, FIRST).ok

    ctx = at_once()
    host.routes.steps.plan(2, lambda: ctx.cancel("SIGTERM"))
    report = run(Configure(SECOND, host=host), ctx)
    assert report.status == "cancelled"
    assert report.undo == "complete"
    assert own_routes(host) == [ROUTE]
    assert configured(host, SECOND).ok
    assert own_routes(host) == [OTHER]


def test_a_damaged_record_removes_nothing() -> None:
    """A record that cannot be read counts as none: a changed config is refused."""
    host = machine()
    assert configured(host, FIRST).ok
    host.files.write(LIVE_RECORD, b"{", mode=0o644)
    assert refusal(configured(host, SECOND)).code == "other-routes"


def test_an_optional_feature_alone_is_skipped() -> None:
    """A task that needs boot files is skipped where there are none to change."""
    host = machine()
    wanted = config("172.16.8.0/22", probeSnat={"enabled": True})
    report = run(ConfigureProbeSNAT(wanted, host=host), at_once())
    assert (report.status, report.reasons) == ("skipped", [LEFT_OUT])
    assert changed_files(host) == []


def test_the_root_is_for_a_host_whose_boot_files_are_left_alone() -> None:
    """A root is refused without boot=False, and so is one that is not a folder."""
    with pytest.raises(TypeError, match=r"write Host\.live\(boot=False, root=\.\.\.\)"):
        Host.live(root="/host")
    for root in "", "host", "/no/such/folder":
        with pytest.raises(HostFileError, match="cannot use the host's files in"):
            Host.live(boot=False, root=root)
    assert repr(Host.live(boot=False)) == "<Host: live without boot files, NetlinkBackend>"
