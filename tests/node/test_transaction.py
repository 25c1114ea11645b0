"""An apply never makes a node worse: the check of the plan, the refusal before a change, and the
undo after one.
"""

import copy
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any
from unittest.mock import Mock

import attrs
import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from support import node_worlds, overlap_answers
from support.egress_oracle import KernelOracle, wrong_of
from support.kernel import host_of, kernel_of, needs_kernel
from support.patience import at_once
from support.printed import NOTHING_CHANGED, UNDONE, WOULD_LOSE
from support.run_nodes import gpu_node, lose_the_default_route
from support.small_world import DEVICES

from hostrouting import (
    CheckRouteOverlap,
    Configure,
    ConfigureStaticRoutes,
    HostRoutingConfig,
    OverlapMode,
    OverlapReport,
    Reset,
    RouteOverlapConfig,
)
from hostrouting.apply.plan import Wanted, decide
from hostrouting.boot.layout import UNFINISHED
from hostrouting.exceptions import HostFileError, HostRoutingError, WorseRoutingError
from hostrouting.fib import Fib, UnknownDecisionError
from hostrouting.host import Host, ObservedRoute, Route, RouteChange, Rule
from hostrouting.net.addresses import IPV6, parse_ipv4
from hostrouting.route_overlap.check import check_egress
from hostrouting.route_overlap.expectation import expectation_on
from hostrouting.route_overlap.fabric import Fabric
from hostrouting.static_routes.forecast import Forecast
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend
from hostrouting.testing.contracts.routes import arrange
from hostrouting.testing.route_texts import route
from phases import (
    CancelledError,
    Context,
    Report,
    Serial,
    Task,
    TaskFailedError,
    execute,
    plan,
    run,
)

RIGHT = {"destination": "172.16.8.0/22"}
FABRIC = route("172.16.8.0/24 dev ib0 proto kernel")
CONNECTED = "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4"
ROUTE = "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"
#: A selector that the model does not have.
FLOW_LABEL = ((26, b"\0\0\0\x04"),)


def config(*routes: Mapping[str, object], mode: str = "STRICT") -> HostRoutingConfig:
    return HostRoutingConfig.from_mapping(
        {
            "staticRoutes": {"enabled": bool(routes), "routes": list(routes)},
            "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": mode},
        }
    )


def state(host: FakeHost) -> tuple[list[ObservedRoute], dict[str, str]]:
    """Our routes, in their order, and the files below /etc."""
    files = {
        path: text for path, text in host.files.tree.snapshot().items() if path.startswith("/etc/")
    }
    return [route for route in host.routes.routes() if route.protocol == 142], files


#: Another one that is right, with a route more.
MORE = config(RIGHT, {"destination": "172.16.16.0/24"})


@pytest.fixture
def host() -> FakeHost:
    """A node that is right by an installed config."""
    host = gpu_node()
    execute(Configure(config(RIGHT), host=host), at_once())
    return host


# --- before any change


def composed(wanted: HostRoutingConfig, *, host: Host) -> Task:
    """Return a pipeline of the two tasks, as an agent writes it."""
    routes = ConfigureStaticRoutes(wanted, host=host)
    check = CheckRouteOverlap(wanted, host=host)
    return Serial(routes, check, name="configure")


def test_a_task_alone_refuses_what_makes_the_node_worse(
    host: FakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    """The task of the routes is refused if it makes the node worse, as judged by the section of its
    config, or by the installed one; its plan shows the refusal.

    Under WARN, and with `force`, the task goes on; an undo is never refused.
    """
    before = state(host)
    without = attrs.evolve(config(), route_overlap=RouteOverlapConfig())

    def refusals(task: ConfigureStaticRoutes) -> list[tuple[str, str]]:
        changes = [change for change in plan(task).changes if change.subject == task.name]
        return [(change.action, change.kind) for change in changes]

    for wanted in config(), without:
        assert refusals(ConfigureStaticRoutes(wanted, host=host)) == [("~", "refused")]
        error = run(composed(wanted, host=host), at_once()).error
        assert isinstance(error, TaskFailedError)
        assert [type(cause) for cause in error.failures] == [WorseRoutingError]
        assert state(host) == before
    forced = ConfigureStaticRoutes(without, host=host, force=True)
    assert refusals(forced) == []
    execute(forced, at_once())
    assert state(host)[0] == []
    execute(Configure(config(RIGHT), host=host), at_once())
    ConfigureStaticRoutes(config(RIGHT), host=host).undo(at_once())
    assert state(host)[0] == []
    execute(Configure(config(RIGHT, mode="WARN"), host=host), at_once())
    report = run(ConfigureStaticRoutes(without, host=host), at_once())
    assert report.ok
    assert report.degraded
    assert report.reasons[0].startswith("worse than before: 172.16.8.0/22: overlap")
    assert "routed correctly without this config" in caplog.text


def test_a_config_that_makes_a_node_worse_is_refused(host: FakeHost) -> None:
    """A config that makes a node worse is refused without a change; the error has each range with
    its change, and the next step.
    """
    before = state(host)
    with pytest.raises(TaskFailedError) as caught:
        execute(Configure(config(), host=host), at_once())
    [error] = caught.value.failures
    assert isinstance(error, WorseRoutingError)
    assert str(error).splitlines() == [
        WOULD_LOSE,
        f"172.16.8.0/22: overlap 172.16.8.0-172.16.11.255 through ib0 ({CONNECTED}), by the change '- {ROUTE}'",
        NOTHING_CHANGED,
    ]
    [worse] = error.worse
    assert worse.fact.cidr == "172.16.8.0/22"
    assert worse.fact.finding.kind == "overlap"
    assert worse.fact.finding.devs == ("ib0",)
    assert worse.fact.finding.first == "172.16.8.0"
    assert worse.fact.finding.last == "172.16.11.255"
    assert worse.cause.after is None
    assert str(worse.cause.before) == ROUTE
    assert copy.copy(error).worse == (worse,)
    assert state(host) == before


def test_the_cause_is_the_most_specific_change() -> None:
    """Of several changes around a lost address, the error names the one with the longest prefix."""
    host = gpu_node()
    wide = {"destination": "172.16.0.0/20"}
    execute(Configure(config(wide, RIGHT), host=host), at_once())
    report = run(Configure(config(), host=host), at_once())
    assert isinstance(report.error, TaskFailedError)
    [error] = report.error.failures
    assert str(error).splitlines()[1] == (
        f"172.16.8.0/22: overlap 172.16.8.0-172.16.11.255 through ib0 ({CONNECTED}), by the change '- {ROUTE}'"
    )


def test_of_changes_of_one_prefix_the_last_is_the_cause() -> None:
    """For a route that moves to another metric, the error names its removal, which comes after the
    addition.
    """
    host = gpu_node()
    execute(Configure(config(RIGHT), host=host), at_once())
    wrong = RIGHT | {"gateway": "172.16.0.9", "dev": "ib0", "metric": 7}
    report = run(Configure(config(wrong), host=host), at_once())
    assert isinstance(report.error, TaskFailedError)
    [error] = report.error.failures
    assert isinstance(error, WorseRoutingError)
    assert [str(worse.cause) for worse in error.worse] == [f"- {ROUTE}"]


def test_a_run_without_the_proof_refuses_nothing(host: FakeHost) -> None:
    """A run that skips the check makes addresses wrong, and is ok and degraded."""
    report = run(Configure(config(), host=host), at_once(), skip=["check-route-overlap"])
    assert report.ok
    assert report.degraded
    assert state(host)[0] == []


def test_dropped_parts_are_logged(host: FakeHost, caplog: pytest.LogCaptureFixture) -> None:
    """Checked addresses and gates of the installed config that the new one drops are logged."""
    wanted = HostRoutingConfig.from_mapping(
        {"staticRoutes": {"enabled": True, "routes": [RIGHT]}, "gates": []}
    )
    assert run(Configure(wanted, host=host), at_once()).ok
    dropped = "the installed config has this, and the new one does not"
    assert f"the check of 172.16.8.0/22: {dropped}" in caplog.messages
    assert f"the gates systemd-nspawn@.service, kubelet.service: {dropped}" in caplog.messages


def test_a_node_that_stays_as_wrong_is_installed() -> None:
    """A run on a node that stays as wrong as before fails, and its boot files are installed."""
    host = gpu_node()
    for _ in range(2):
        assert run(Configure(config(), host=host), at_once()).status == "failed"
        assert host.files.exists("/etc/systemd/system/check-route-overlap.service")


def test_an_address_that_the_model_cannot_decide_is_judged_by_the_kernel(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An apply whose plan is undecided is undone if the check after the change finds an address
    wrong by its route.
    """
    before = state(host)
    wanted = config(RIGHT | {"gateway": "172.16.0.1", "dev": "ib0"})

    def lookup(destinations: Sequence[int], **options: Any) -> object:
        # The kernel has packets of another class.
        return Fib.of(host.routes.links(), host.routes.routes()).lookup(destinations, **options)

    host.routes.insert_route(attrs.evolve(FABRIC, table=78))
    host.routes.add_rule(Rule(10, table=78, unknown=FLOW_LABEL))
    monkeypatch.setattr(host.routes, "lookup", lookup)
    assert "flowlabel" in Configure(wanted, host=host).planned(at_once()).forecast.undecided
    with pytest.raises(TaskFailedError, match=r"by the change '[-+] 172\.16\.8\.0/22 via"):
        execute(Configure(wanted, host=host), at_once())
    assert state(host) == before
    assert UNDONE in caplog.messages


def test_routes_of_a_first_apply_are_proven_though_its_files_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A first apply whose plan is undecided, and whose files cannot be written, removes routes that
    take an address which left right.
    """
    host = gpu_node()
    wanted = HostRoutingConfig.from_mapping(
        {
            "staticRoutes": {
                "enabled": True,
                "routes": [{"destination": "172.17.8.0/22", "gateway": "172.16.0.1", "dev": "ib0"}],
            },
            "routeOverlap": {"mode": "STRICT", "expectedCidrs": ["172.17.8.0/22"]},
        }
    )

    def lookup(destinations: Sequence[int], **options: Any) -> object:
        return Fib.of(host.routes.links(), host.routes.routes()).lookup(destinations, **options)

    host.routes.insert_route(attrs.evolve(FABRIC, network=FABRIC.network + 0x10000, table=78))
    host.routes.add_rule(Rule(10, table=78, unknown=FLOW_LABEL))
    before = host.routes.routes()
    monkeypatch.setattr(host.routes, "lookup", lookup)
    monkeypatch.setattr(
        host.files, "write", Mock(side_effect=HostFileError("No space left on device"))
    )
    report = run(Configure(wanted, host=host), at_once())
    failures = report.error.failures  # type: ignore[union-attr]
    assert [type(failure) for failure in failures] == [HostFileError, WorseRoutingError]
    assert host.routes.routes() == before


def test_a_fabric_that_came_meanwhile_undoes_nothing(host: FakeHost) -> None:
    """A fabric that is connected while an apply works does not undo the apply, since the node would
    be as wrong without its changes.
    """
    wanted = MORE
    host.routes.steps.plan(1, lambda: host.routes.insert_route(FABRIC))
    report = run(Configure(wanted, host=host), at_once())
    assert [type(failure) for failure in report.error.failures] != [WorseRoutingError]  # type: ignore[union-attr]
    assert b"172.16.16.0/24" in (host.files.read("/etc/aks-flex-node/static-routes.sh") or b"")


@pytest.mark.parametrize("announced", [True, False])
def test_a_fault_that_is_only_announced_excuses_no_real_one(announced: bool) -> None:
    """A route into the fabric that takes addresses which leave right is refused, whether or not a
    fabric is announced for them.
    """
    host = gpu_node()
    document = config(
        {"destination": "172.20.8.0/24", "gateway": "172.16.0.1", "dev": "ib0"}
    ).to_mapping()
    fabric = {"fabric": ["172.20.0.0/16"]} if announced else {}
    document["routeOverlap"] = {
        **document["routeOverlap"],
        "expectedCidrs": ["172.20.8.0/22"],
        **fabric,
    }
    report = run(Configure(HostRoutingConfig.from_mapping(document), host=host), at_once())
    assert isinstance(report.error, TaskFailedError)
    assert [type(failure) for failure in report.error.failures] == [WorseRoutingError]
    assert "172.20.8.0/22: overlap 172.20.8.0-172.20.8.255 through ib0" in str(report.error)


def test_what_an_announced_fabric_would_take_is_foreseen() -> None:
    """A plan that removes the route of an address counts as worse if an announced fabric would take
    the address.
    """
    host = gpu_node()
    mapping = config(RIGHT | {"destination": "172.20.8.0/22"}).to_mapping()
    mapping["routeOverlap"] |= {"expectedCidrs": ["172.20.8.0/22"], "fabric": ["172.20.0.0/16"]}
    assert run(Configure(HostRoutingConfig.from_mapping(mapping), host=host), at_once()).ok
    mapping["staticRoutes"]["routes"] = []
    without = Configure(HostRoutingConfig.from_mapping(mapping), host=host)
    [worse] = without.planned(at_once()).forecast.worse
    assert "announced" in str(worse)


def test_a_gateway_that_no_link_has_leaves_the_plan_undecided(host: FakeHost) -> None:
    """A route whose gateway cannot be reached leaves the forecast of its plan undecided, as the
    kernel will refuse the route, and with it the batch.
    """
    host.routes.add_rule(Rule(100, action="prohibit", destination=(0x0AE00100, 24)))
    wanted = config(
        RIGHT, {"destination": "172.16.16.0/24", "gateway": "10.224.1.1", "dev": "eth0"}
    )
    found = Configure(wanted, host=host).planned(at_once()).forecast
    assert found.undecided == (
        "routes of the config cannot be added now: + 172.16.16.0/24 via 10.224.1.1 dev eth0 proto 142"
    )


# --- an interrupt


def test_a_gate_that_starts_meanwhile_brings_no_route_back(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply ends with the routes of its config, even if a gate runs the earlier script before
    the files are exchanged.
    """
    [earlier] = state(host)[0]
    link = host.files.link

    def start(path: str, target: str) -> bool:
        if path == "/etc/aks-flex-node/hostrouting":
            [now] = state(host)[0]
            host.routes.apply([RouteChange.add(earlier.to_route()), RouteChange.remove(now)])
        return link(path, target)

    monkeypatch.setattr(host.files, "link", start)
    execute(Configure(config({"destination": "172.16.16.0/24"}, mode="WARN"), host=host), at_once())
    assert [route.destination for route in state(host)[0]] == ["172.16.16.0/24"]


def test_foreign_changes_meanwhile_are_not_reported_as_undone(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run whose new route was changed before an interrupt reports in its last line that it was
    undone only in part.
    """
    ctx = at_once()
    reload = host.services.daemon_reload

    def change(given: Context) -> None:
        monkeypatch.setattr(host.services, "daemon_reload", reload)
        new = next(route for route in state(host)[0] if route.destination == "172.16.16.0/24")
        other = Route.parse("172.16.16.0/24", dev="ib0", protocol=142)
        host.routes.apply([RouteChange.replace(new, other)])
        ctx.cancel("SIGINT")
        reload(given)

    monkeypatch.setattr(host.services, "daemon_reload", change)
    run(Configure(MORE, host=host), ctx)
    assert [line for line in caplog.messages if "undone" in line] == [
        "undone: only in part; a warning names what is not as before, and why"
    ]


def test_a_first_apply_installs_all_files_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first apply on a disk that becomes full leaves none of its files, and its routes are in
    force.
    """
    host = gpu_node()
    write = host.files.write

    def full(path: str, content: bytes, *, mode: int) -> bool:
        if path.endswith("hostrouting-ready.service"):
            raise HostFileError(f"cannot write {path}: No space left on device")
        return write(path, content, mode=mode)

    monkeypatch.setattr(host.files, "write", full)
    assert run(Configure(config(RIGHT), host=host), at_once()).status == "failed"
    routes, files = state(host)
    assert [str(route) for route in routes] == [ROUTE]
    assert not files


def test_a_commit_is_not_interrupted(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is cancelled while it removes a unit of the earlier config lets systemd read the
    removal before it ends.
    """
    ctx = at_once()
    remove = host.files.remove

    def interrupt(path: str) -> bool:
        if path.endswith("/check-route-overlap.service"):
            ctx.cancel("SIGTERM")
        return remove(path)

    monkeypatch.setattr(host.files, "remove", interrupt)
    without_check = attrs.evolve(MORE, route_overlap=RouteOverlapConfig())
    report = run(Configure(without_check, host=host), ctx)
    assert isinstance(report.error, CancelledError)
    assert not host.files.exists(UNFINISHED)


def test_two_threads_run_one_task() -> None:
    """Two threads that run one task each report its failure: the second run does not clear that of
    the first.
    """
    host = gpu_node()
    task = Configure(config(), host=host)
    reports: list[Report] = []
    second = threading.Thread(target=lambda: reports.append(run(task, timeout=60)))
    waits = threading.Event()

    class Watcher(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (
                record.getMessage().startswith("failed task=configure/check-route-overlap")
                and not second.ident
            ):
                host.lock.operations.plan(1, waits.set)
                second.start()
                assert waits.wait(60)

    logging.getLogger().addHandler(watcher := Watcher())
    try:
        reports.append(run(task, timeout=60))
        second.join()
    finally:
        logging.getLogger().removeHandler(watcher)
    assert [report.status for report in reports] == ["failed", "failed"]


@pytest.mark.parametrize(("routes", "is_refused"), [([RIGHT], False), ([], True)])
def test_without_a_default_route_the_present_way_is_right(
    routes: list[dict[str, str]], is_refused: bool
) -> None:
    """Without a default route an address may keep its next hop by another route, and an apply that
    would take it away is refused.
    """
    host = gpu_node()
    given = {"gateway": "10.224.0.1", "dev": "eth0"}
    execute(Configure(config({**RIGHT, **given}), host=host), at_once())
    lose_the_default_route(host)
    wanted = config(*({**each, **given, "destination": "172.16.0.0/20"} for each in routes))
    report = run(Configure(wanted, host=host), at_once())
    assert isinstance(report.error, TaskFailedError)
    assert isinstance(report.error.failures[0], WorseRoutingError) == is_refused


@pytest.mark.parametrize(
    ("method", "path", "reason"),
    [
        (
            "refuse_unwritable",
            "",
            "refused; nothing was changed, neither now nor for the next boot",
        ),
        ("remove", ".d/10-hostrouting.conf", "refused"),
    ],
)
def test_a_reset_that_cannot_remove_a_file_changes_nothing(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, method: str, path: str, reason: str
) -> None:
    """A reset that cannot write /etc, or cannot remove a file, leaves the files and the routes as
    they are.
    """
    before = state(host)
    call = getattr(host.files, method)

    def refuse(given: str, **options: object) -> object:
        if given.endswith(path):
            raise HostFileError("refused")
        return call(given, **options)

    monkeypatch.setattr(host.files, method, refuse)
    with pytest.raises(TaskFailedError, match=reason):
        execute(Reset(HostRoutingConfig(), host=host), at_once())
    assert state(host) == before


# --- random nodes


@st.composite
def configs(draw: st.DrawFn, world: node_worlds.World) -> HostRoutingConfig:
    """A config of the small world for its CIDRs."""
    routes = draw(node_worlds.static_route_configs()).static_routes
    section = RouteOverlapConfig(
        expected_cidrs=tuple(world.cidrs), allowed_devs=world.allowed, mode=OverlapMode.STRICT
    )
    return HostRoutingConfig(static_routes=routes, route_overlap=section)


worlds = st.shared(node_worlds.worlds() | node_worlds.announced_worlds(), key="world")


def verdict(report: OverlapReport) -> list[object]:
    return [
        (one.cidr, [attrs.evolve(each, route=None) for each in one.findings])
        for one in report.cidrs
    ]


def compare_plan(host: Host, wanted: HostRoutingConfig) -> None:
    """Assert that the forecast is the verdict after `apply --force`."""
    task = Configure(wanted, host=host, force=True)
    found = task.planned(at_once()).forecast
    report = run(task, at_once())
    has_all = not any(
        each.name == "configure-static-routes" and not each.ok for each in report.walk()
    )
    if found.report is None:
        assert found.undecided
    elif has_all:
        assert verdict(found.report) == verdict(
            check_egress(host, expectation_on(host, wanted, Fabric()))
        )


@needs_kernel
@pytest.mark.parametrize("priority", ["0", "32766"])
def test_a_forecast_without_a_built_in_rule_is_undecided(priority: str) -> None:
    """The kernel searches local and main although a built-in IPv6 rule is missing, until a first
    rule is added: a forecast is undecided until then, and a task that makes an address wrong is
    undone.
    """
    with KernelNode.made() as kernel:
        for dev, address in ("eth0", "fd00:1::4/64"), ("ib0", "fd00:2::4/64"):
            kernel.add_link(dev)
            kernel.add_address(dev, address)
        arrange(kernel, "::/0 via fd00:1::1 dev eth0 metric 1024")
        kernel.ip("-6 route add fd00:5::/65 dev eth0 table local")
        host, _ = on(kernel)
        route = {"destination": "fd00:5::/64", "gateway": "fd00:2::1", "dev": "ib0"}
        section = {"expectedCidrs": ["fd00:5::/64"], "expectedDevs": ["eth0"], "mode": "STRICT"}
        wanted = attrs.evolve(config(route), route_overlap=RouteOverlapConfig.from_mapping(section))
        kernel.ip("-6 rule del pref", priority)
        task = ConfigureStaticRoutes(wanted, host=host)
        before = host.routes.routes(IPV6)
        forecast = forecast_of(wanted, host)
        assert "until another rule is added" in forecast.undecided
        with pytest.raises(TaskFailedError, match="would misroute addresses"):
            execute(task, at_once())
        assert host.routes.routes(IPV6) == before
        kernel.ip("-6 rule add pref 9 to fd00:9::/64 lookup 88")
        forecast = forecast_of(wanted, host)
        assert not forecast.undecided


def forecast_of(config: HostRoutingConfig, host: Host) -> Forecast:
    """Return the check of a node as an apply would change it."""
    return decide(at_once(), Wanted(config), host).forecast


def on(kernel: KernelNode) -> tuple[Host, FakeHost]:
    """A host with the routes of a kernel, and the fake that has the rest of it."""
    fake = FakeHost()
    return host_of(kernel_of(kernel), fake, is_live=True), fake


@needs_kernel
@given(worlds, st.data())
def test_a_plan_foresees_the_kernel(world: node_worlds.World, data: st.DataObject) -> None:
    """The forecast is the verdict after the apply, where a kernel decides about each route."""
    with KernelNode.made() as kernel:
        world.arrange(kernel)
        host, _ = on(kernel)
        for _ in range(2):
            compare_plan(host, data.draw(configs(world)))


@needs_kernel
@pytest.mark.parametrize("make", [Configure, composed])
@given(world=node_worlds.worlds(), data=st.data(), number=st.integers(1, 60), fails=st.booleans())
def test_no_address_that_the_kernel_sent_right_goes_wrong(
    make: Callable[..., Task],
    world: node_worlds.World,
    data: st.DataObject,
    number: int,
    fails: bool,
) -> None:
    """An address that the kernel sent right before an apply is right after it, whether the apply
    ends, is interrupted, or cannot write.
    """
    world = world._replace(down=None)
    with KernelNode.made() as kernel:
        world.arrange(kernel)
        host, fake = on(kernel)
        oracle = KernelOracle(kernel)
        allowed = {
            dev for dev in DEVICES if any(fnmatchcase(dev, pattern) for pattern in world.allowed)
        }
        run(Configure(data.draw(configs(world)), host=host, force=True), at_once())

        def wrong() -> set[tuple[str, int]]:
            devs = frozenset(allowed.union(oracle.expected()))
            return {
                (cidr, address) for cidr in world.cidrs for address in wrong_of(oracle, cidr, devs)
            }

        assume(oracle.expected())
        before = wrong()
        ctx = at_once()
        if fails:
            fake.files.fail_at(number)
        else:
            fake.files.operations.plan(number, lambda: ctx.cancel("SIGTERM"))
        run(make(data.draw(configs(world)), host=host), ctx)
        assert wrong() <= before


def right_addresses(report: OverlapReport) -> set[tuple[str, int]]:
    """Return the addresses of the CIDRs, all small, without a finding."""
    right = set()
    for one in report.cidrs:
        wrong = overlap_answers.claimed(report, one.cidr)
        network, length = one.cidr.split("/")
        first = parse_ipv4(network)
        right |= {
            (one.cidr, address) for address in range(first, first + (1 << 32 - int(length)))
        } - {(one.cidr, address) for address in wrong}
    return right


@given(
    worlds,
    st.data(),
    st.integers(1, 120),
    st.sampled_from(["signal", "routes", "files", "services"]),
)
def test_an_apply_never_makes_a_node_worse(
    world: node_worlds.World, data: st.DataObject, number: int, trouble: str
) -> None:
    """Whatever ends an apply, each address that left right still does, and a failed apply over an
    installed config leaves one of the two configs as a whole.
    """
    earlier = data.draw(st.none() | configs(world))
    wanted = data.draw(configs(world))

    def prepared() -> FakeHost:
        host = FakeHost(MemoryBackend())
        try:
            world.arrange(host.routes)
        except UnknownDecisionError:
            # Only a kernel decides which next hops stay when a device goes down.
            reject()
        if earlier is not None:
            run(Configure(earlier, host=host, force=True), at_once())
        return host

    host = prepared()
    twin = prepared()
    is_installed = host.files.exists("/etc/systemd/system/hostrouting-ready.service")
    before = state(host)
    was = check_egress(host, expectation_on(host, wanted, Fabric()))
    assume(was.expected_devs)
    ctx = at_once()
    ports: dict[str, Any] = {
        "signal": host.files,
        "routes": host.routes,
        "files": host.files,
        "services": host.services,
    }
    if trouble == "signal":
        host.files.operations.plan(number, lambda: ctx.cancel("SIGTERM"))
    else:
        ports[trouble].fail_at(number)
    report = run(Configure(wanted, host=host), ctx)
    # A fault that the run did not reach happens now, in an operation that does nothing.
    for _ in range(number):
        with suppress(HostRoutingError):
            ports[trouble].operations.record("nothing")
    assert right_addresses(was) <= right_addresses(
        check_egress(host, expectation_on(host, wanted, Fabric()))
    )
    run(Configure(wanted, host=twin, force=True), at_once())
    if is_installed and not report.ok:
        assert state(host) in (before, state(twin))
