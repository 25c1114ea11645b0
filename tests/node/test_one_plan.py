"""An apply carries out one plan: what it reads, checks and compares, and when it is made again."""

import pkgutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import Mock

import attrs
import pytest
from support.boot_units import install_upstream
from support.fabric_files import Files
from support.patience import at_once
from support.run_nodes import gpu_node, lose_our_routes, routed

from hostrouting import Configure, HostRoutingConfig, OverlapMode, RouteOverlapConfig
from hostrouting.apply.carry_out import Apply
from hostrouting.boot.installed_config import require_installed_config
from hostrouting.boot.layout import GATE_LOCK, UNFINISHED
from hostrouting.exceptions import BackendError, WorseRoutingError
from hostrouting.host import IPV4, OUR_PROTOCOL, ObservedRoute, RouteChange
from hostrouting.node.configure import plan_of
from hostrouting.route_overlap.fabric import CONFIGURATION, POOL
from hostrouting.testing import FakeHost
from phases import Context, TaskFailedError, run

SMALL = routed("172.16.8.0/22")
MORE = routed("172.16.8.0/22", "172.16.16.0/24")


@pytest.fixture
def host() -> FakeHost:
    host = gpu_node()
    host.routes.add_address("eth0", "2001:db8::4/64")
    host.routes.add_route("::/0", gateway="2001:db8::1", dev="eth0")
    return host


#: Counted by their calls: runs, plans of routes, checks, and comparisons of files.
CALLS = {
    "runs": "hostrouting.apply.carry_out.Apply.__init__",
    "reconciles": "hostrouting.static_routes.plan.reconcile",
    "proofs": "hostrouting.route_overlap.check.report_on",
    "files": "hostrouting.boot.steps.Steps.between",
}


class Counts:
    """Counts the readings of routes, and `CALLS`."""

    def __init__(self, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counted: Counter[str] = Counter()
        self._is_applying = False
        routes = host.routes.routes
        apply = host.routes.apply

        def read(family: int = IPV4) -> list[ObservedRoute]:
            # The fake reads its own routes to verify a batch.
            if not self._is_applying:
                self.counted["IPv4" if family == IPV4 else "IPv6"] += 1
            return routes(family)

        def change(changes: Sequence[RouteChange], *, verify: bool = True) -> None:
            self._is_applying = True
            apply(changes, verify=verify)
            self._is_applying = False

        monkeypatch.setattr(host.routes, "routes", read)
        monkeypatch.setattr(host.routes, "apply", change)
        for name, path in CALLS.items():
            monkeypatch.setattr(path, self._counting(name, pkgutil.resolve_name(path)))

    def _counting(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **options: Any) -> Any:
            self.counted[name] += 1
            return work(*given, **options)

        return counting

    def of(self, whole: Configure) -> dict[str, int]:
        """Run a task, and return what it needed."""
        self.counted.clear()
        report = run(whole, at_once())
        assert report.ok, str(report.error)
        return dict(self.counted)


def test_what_an_apply_needs(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apply without interference carries out one plan, and makes one for the check and the
    report.

    The checks are those before, as planned and after. The routes are read for the plan, directly
    before a batch, and for the last check; files are compared once.
    """
    counts = Counts(host, monkeypatch)
    one = {"runs": 1, "reconciles": 2, "files": 1}
    assert counts.of(Configure(SMALL, host=host)) == {**one, "IPv4": 3, "proofs": 3}
    assert counts.of(Configure(SMALL, host=host)) == {**one, "IPv4": 2, "proofs": 2}
    assert counts.of(Configure(MORE, host=host)) == {**one, "IPv4": 3, "proofs": 3}


def test_what_an_apply_of_ipv6_needs(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apply of IPv6 routes needs what one of IPv4 routes does, and reads those of IPv4 as often."""
    small = routed("fd00:8::/64")
    more = routed("fd00:8::/64", "fd00:9::/64")
    counts = Counts(host, monkeypatch)
    first, again, changed = (counts.of(Configure(each, host=host)) for each in (small, small, more))
    one = {"runs": 1, "reconciles": 2, "files": 1}
    assert first == {**one, "IPv4": 3, "IPv6": 3, "proofs": 3}
    assert again == {**one, "IPv4": 2, "IPv6": 2, "proofs": 2}
    assert changed == {**one, "IPv4": 3, "IPv6": 3, "proofs": 3}


def test_what_upstreams_files_need(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apply over upstream's files needs what a first one does: hostrouting has not installed them."""
    install_upstream(host.files)
    counts = Counts(host, monkeypatch)
    one = {"runs": 1, "reconciles": 2, "files": 1}
    assert counts.of(Configure(SMALL, host=host)) == {**one, "IPv4": 3, "proofs": 3}


def test_what_a_plan_needs(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forecast and the changes of all tasks are made of one reading and one check."""
    counts = Counts(host, monkeypatch)
    whole = Configure(SMALL, host=host)
    planned = whole.planned(at_once())
    for subtask in whole.subtasks:
        plan_of(subtask, at_once(), planned)
    assert planned.forecast.report is not None
    assert planned.forecast.report.ok
    assert counts.counted == {"reconciles": 1, "IPv4": 1, "proofs": 1, "files": 1}


# --- when it is made again


def gateway_moves(host: FakeHost) -> None:
    """The lease is renewed with another router."""
    [default] = [route for route in host.routes.routes() if not route.prefix_length]
    host.routes.delete_route(default)
    host.routes.add_route("default", gateway="10.224.0.9", dev="eth0")


def network_is_connected(host: FakeHost, address: str) -> None:
    """A device gets an address, and the kernel a route of its own."""
    host.routes.add_link("eth1")
    host.routes.add_address("eth1", address)


def gateways(host: FakeHost) -> list[str]:
    """Return the gateway of each installed route."""
    return [str(route.gateway) for route in host.routes.routes_of(OUR_PROTOCOL)]


def test_the_default_route_changes_while_the_first_files_are_installed(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first apply whose lease changes while its files are installed gives the routes the gateway
    of the present lease.
    """
    monkeypatch.setattr(host.services, "daemon_reload", lambda _: gateway_moves(host))
    assert run(Configure(SMALL, host=host), at_once()).ok
    assert gateways(host) == ["10.224.0.9"]


def test_a_fabric_is_announced_while_the_first_files_are_installed(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fabric that is announced while a first apply installs its files fails the run, and the
    changes of the run stay.
    """

    def announce(_: Context) -> None:
        announced = Files()
        host.files.write(CONFIGURATION, announced.configuration or b"", mode=0o644)
        host.files.write(POOL, announced.pool or b"", mode=0o644)

    section = RouteOverlapConfig(expected_cidrs=("172.17.0.0/16",), mode=OverlapMode.STRICT)
    config = attrs.evolve(SMALL, route_overlap=section)
    monkeypatch.setattr(host.services, "daemon_reload", announce)
    report = run(Configure(config, host=host), at_once())
    assert "not undone" not in str(report.error)
    assert "through the fabric" in str(report.error)
    assert gateways(host) == ["10.224.0.1"]


def change_while_a_gate_checks(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]
) -> None:
    """Make a change while a run waits for a gate, after its plan is checked."""
    hold = host.lock.hold_file

    def wait(ctx: Context, path: str) -> AbstractContextManager[object]:
        change()
        return hold(ctx, path)

    monkeypatch.setattr(host.lock, "hold_file", wait)


def test_the_default_route_changes_while_a_gate_checks(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply whose lease changes while a gate checks gives all routes the gateway of the present
    lease, those of the earlier config, too.
    """
    assert run(Configure(SMALL, host=host), at_once()).ok
    change_while_a_gate_checks(host, monkeypatch, lambda: gateway_moves(host))
    assert run(Configure(MORE, host=host), at_once()).ok
    assert gateways(host) == ["10.224.0.9", "10.224.0.9"]


def test_a_network_is_connected_while_a_gate_checks(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply fails if a network is connected in the place of its new route while a gate checks,
    and the earlier config stays in force.
    """
    assert run(Configure(SMALL, host=host), at_once()).ok
    change_while_a_gate_checks(
        host, monkeypatch, lambda: network_is_connected(host, "172.16.16.1/24")
    )
    report = run(Configure(MORE, host=host), at_once())
    assert "the kernel's own route '172.16.16.0/24 dev eth1" in str(report.error)
    assert gateways(host) == ["10.224.0.1"]
    assert require_installed_config(host).static_routes == SMALL.static_routes


def test_a_right_node_waits_for_no_gate(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apply on a right node does not take the lock of the gates, as it does not need an undo."""
    assert run(Configure(SMALL, host=host), at_once()).ok
    monkeypatch.setattr(host.lock, "hold_file", None)
    assert run(Configure(SMALL, host=host), at_once()).ok


def test_gates_wait_if_right_files_are_read_by_systemd_alone(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply that only lets systemd read right files restores a route that is lost during the
    reload, and gates wait meanwhile.
    """
    assert run(Configure(SMALL, host=host), at_once()).ok
    host.files.write(UNFINISHED, b"", mode=0o644)
    apply = host.routes.apply
    held = []

    def change(changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        held.append(set(host.lock.locked_files))
        apply(changes, verify=verify)

    def lose(_: Context) -> None:
        lose_our_routes(host)
        monkeypatch.setattr(host.routes, "apply", change)

    monkeypatch.setattr(host.services, "daemon_reload", lose)
    assert run(Configure(SMALL, host=host), at_once()).ok
    assert gateways(host) == ["10.224.0.1"]
    assert held == [{GATE_LOCK}]


def test_routes_are_lost_while_a_gate_checks(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply that changes only the gates restores routes that are lost while a gate checks."""
    assert run(Configure(SMALL, host=host), at_once()).ok
    change_while_a_gate_checks(host, monkeypatch, lambda: lose_our_routes(host))
    assert run(Configure(attrs.evolve(SMALL, gates=("b.service",)), host=host), at_once()).ok
    assert gateways(host) == ["10.224.0.1"]


# --- the verdict


def route_is_lost(host: FakeHost) -> None:
    """Another program deletes a route of the config; its addresses leave through another metric."""
    host.routes.delete_route(host.routes.routes_of(OUR_PROTOCOL)[1])


@pytest.mark.parametrize(("trouble", "kinds"), [(route_is_lost, "+"), (gateway_moves, "~~")])
@pytest.mark.parametrize("is_installed", [False, True])
def test_what_the_last_reading_shows_is_in_the_verdict(
    host: FakeHost,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[FakeHost], None],
    kinds: str,
    *,
    is_installed: bool,
) -> None:
    """A run is ok and degraded if another program deletes a route of the config, or moves the
    gateway, directly before the check that commits.
    """
    routes = [{"destination": "172.16.8.0/22", "metric": metric} for metric in (0, 50)]
    config = HostRoutingConfig.from_mapping(
        {
            "staticRoutes": {"enabled": True, "routes": routes},
            "routeOverlap": {"mode": "STRICT", "expectedCidrs": ["172.16.8.0/22"]},
        }
    )
    if is_installed:
        assert run(Configure(config, host=host), at_once()).ok
    after = Apply._check

    def prove(apply: Apply, *given: Any) -> object:
        trouble(host)
        return after(apply, *given)

    monkeypatch.setattr(Apply, "_check", prove)
    report = run(Configure(config, host=host), at_once())
    assert report.ok
    assert report.degraded
    actions = [finding.action for finding in report.result.findings]
    assert "".join(actions) == kinds


def test_a_network_that_is_connected_during_the_proof_is_not_blamed_on_the_changes(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run fails, and keeps its changes, if a network that is connected between the reading and
    the lookups of its last check makes addresses wrong.
    """
    lookup = host.routes.lookup
    after = Apply._check

    def connect_first(destinations: Sequence[int], **options: Any) -> object:
        if not any(link.name == "eth1" for link in host.routes.links()):
            network_is_connected(host, "10.96.0.1/25")
            host.routes.add_address("eth1", "10.96.0.129/25")
        return lookup(destinations, **options)

    def prove(apply: Apply, *given: Any) -> object:
        monkeypatch.setattr(host.routes, "lookup", connect_first)
        return after(apply, *given)

    monkeypatch.setattr(Apply, "_check", prove)
    report = run(Configure(routed("10.96.0.0/24"), host=host), at_once())
    assert isinstance(report.error, TaskFailedError)
    [failure] = report.error.failures
    assert not isinstance(failure, WorseRoutingError)
    assert "1 of 1 expected CIDRs do not leave entirely through eth0" in str(failure)
    assert gateways(host) == ["10.224.0.1"]


def test_a_proof_that_the_kernel_refuses_has_the_name_of_its_task(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose last check fails in the kernel is undone, and its error has the name of the task
    of the check.
    """
    assert run(Configure(SMALL, host=host), at_once()).ok
    monkeypatch.setattr(Apply, "_check", Mock(side_effect=BackendError("no answer")))
    report = run(Configure(MORE, host=host), at_once())
    assert str(report.error) == "configure/check-route-overlap: no answer"
    assert require_installed_config(host).static_routes == SMALL.static_routes
