"""A config that drops the check of addresses makes none of them wrong in silence: by `Configure`, by
the tasks of the pair alone, and in any order.
"""

import threading
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.egress_oracle import KernelOracle, wrong_of
from support.kernel import host_of, kernel_of, needs_kernel, uplink
from support.patience import at_once
from support.printed import REFUSED_THEN, WOULD_LOSE
from support.run_nodes import gpu_node
from support.small_world import DEVICES

from hostrouting import (
    CheckRouteOverlap,
    Configure,
    ConfigureStaticRoutes,
    HostRoutingConfig,
    OverlapMode,
    Reset,
    node_status,
)
from hostrouting.boot.installed_config import NewConfig, config_over
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.exceptions import WorseRoutingError
from hostrouting.fleet import check_record, take_record
from hostrouting.host import Host
from hostrouting.net.addresses import IPV6, Prefix, outside
from hostrouting.node.check import check_node
from hostrouting.node.plan_report import planned_report
from hostrouting.testing import FakeHost, KernelNode
from phases import (
    Context,
    Parallel,
    Report,
    Serial,
    Task,
    TaskFailedError,
    plan,
    run,
    task,
    with_retry,
)
from phases.testing import ManualClock

WIDE = "172.16.8.0/28"
HALF = "172.16.8.0/29"
OTHER = "172.16.8.8/29"
_FIX = "hostrouting check new.json --fix | hostrouting apply -"
DROPPED = "the installed config has this, and the new one does not"
STEP = "first apply a config that only stops expecting them and keeps their routes, or correct the config"


class Turns(ManualClock):
    """A clock without waits, but that of a thread for the run lock, which gives way to its holder."""

    def wait(self, doorbell: threading.Lock, until: float | None) -> None:
        """See `phases.Clock`."""
        if until is not None and until - self.monotonic() < 0.11:
            doorbell.acquire(timeout=0.002)
        super().wait(doorbell, until)


def config(
    *routes: str, expected: tuple[str, ...] = (), mode: str = "STRICT", **section: Any
) -> HostRoutingConfig:
    sections: dict[str, Any] = {}
    if routes:
        listed = [{"destination": destination} for destination in routes]
        sections["staticRoutes"] = {"enabled": True, "routes": listed}
    if expected:
        sections["routeOverlap"] = {"expectedCidrs": [*expected], "mode": mode, **section}
    return HostRoutingConfig.from_mapping(sections)


def pair(wanted: HostRoutingConfig, host: Host) -> tuple[Task, Task]:
    return ConfigureStaticRoutes(wanted, host=host), CheckRouteOverlap(wanted, host=host)


def tried_twice(wanted: HostRoutingConfig, host: Host) -> Task:
    """Return a pipeline whose first attempt ends between the check and the routes."""
    routes, check = pair(wanted, host)
    failures = [OSError("busy")]

    @task("flaky")
    def flaky(_: object) -> None:
        if failures:
            raise failures.pop()

    return with_retry(Serial(check, flaky, routes), attempts=2, backoff=0)


PIPELINES: Mapping[str, Callable[[HostRoutingConfig, Host], Task]] = {
    "whole": lambda wanted, host: Configure(wanted, host=host),
    "routes": lambda wanted, host: pair(wanted, host)[0],
    "check": lambda wanted, host: pair(wanted, host)[1],
    "routes, check": lambda wanted, host: Serial(*pair(wanted, host)),
    "check, routes": lambda wanted, host: Serial(*reversed(pair(wanted, host))),
    "routes beside check": lambda wanted, host: Parallel(*pair(wanted, host)),
    "check beside routes": lambda wanted, host: Parallel(*reversed(pair(wanted, host))),
    "retried": tried_twice,
}


@pytest.fixture
def host() -> FakeHost:
    """A node that is right by an installed config under STRICT."""
    host = gpu_node()
    assert run(Configure(config(WIDE, expected=(WIDE,)), host=host), at_once()).ok
    return host


def own_routes(host: Host) -> list[str]:
    return [route.destination for route in host.routes.routes() if route.protocol == 142]


def causes(report: Report) -> list[type[BaseException]]:
    assert isinstance(report.error, TaskFailedError)
    return [type(cause) for cause in report.error.failures]


# --- a change of routes


def test_a_config_without_the_section_is_refused_as_a_whole(host: FakeHost) -> None:
    """An apply of other routes without the check is refused without a change, and the error has the
    addresses, the change, their owner and the next step; a plan has them, too.
    """
    before = host.routes.routes(), host.files.tree.snapshot()
    wanted = config("172.16.16.0/24")
    forecast = Configure(wanted, host=host).planned(at_once()).forecast
    line = (
        f"{WIDE}: overlap 172.16.8.0-172.16.8.15 through ib0 (172.16.0.0/16 dev ib0 proto kernel scope "
        f"link src 172.16.1.4), by the change '- {WIDE} via 10.224.0.1 dev eth0 proto 142', "
        "expected by the installed config"
    )
    planned = planned_report(wanted, forecast)
    assert planned.to_mapping()["worse"] == [line]
    assert planned.lines() == [f"worse than now: {line}", REFUSED_THEN]
    report = run(Configure(wanted, host=host), at_once())
    assert isinstance(report.error, TaskFailedError)
    [error] = report.error.failures
    assert isinstance(error, WorseRoutingError)
    assert str(error).splitlines() == [
        WOULD_LOSE,
        line,
        f"nothing was changed; {STEP}",
    ]
    assert [cidr for cidr, _ in error.report.findings] == [WIDE]
    assert [(each.fact.cidr, str(each.cause)[:2]) for each in error.worse] == [(WIDE, "- ")]
    assert not error.retryable
    assert (host.routes.routes(), host.files.tree.snapshot()) == before


def test_a_check_and_a_fleet_foresee_the_refusal(host: FakeHost) -> None:
    """A `check` of a config that would be refused names the fix, and the plan of a record names
    what is worse; an empty config is not refused.
    """
    record = take_record(at_once(), host)
    nothing = HostRoutingConfig.from_mapping({"hostRouting": {}})
    for wanted, command, worse in (
        (config("172.16.16.0/24"), _FIX, ["worse"]),
        (config(WIDE, "172.16.16.0/24"), "hostrouting apply new.json", []),
        (nothing, "hostrouting apply new.json", []),
    ):
        checked = check_node(at_once(), wanted, host, path="new.json")
        commands = {finding.command for finding in checked.findings if finding.apply}
        assert commands == {command}
        verdict = check_record(record, wanted, planned=True)
        assert verdict.report is not None
        assert [finding.kind for finding in verdict.report.findings] == worse


def test_two_applies_are_the_way_out(host: FakeHost) -> None:
    """A first apply that drops only the check is ok and degraded, and a second apply that drops the
    routes is ok.
    """
    first = run(Configure(config(WIDE, "172.16.16.0/24"), host=host), at_once())
    assert first.ok
    assert first.degraded
    assert own_routes(host) == [WIDE, "172.16.16.0/24"]
    second = run(Configure(config("172.16.16.0/24"), host=host), at_once())
    assert second.ok
    assert not second.degraded
    assert own_routes(host) == ["172.16.16.0/24"]


def test_the_mode_is_that_of_the_section_that_counts(host: FakeHost) -> None:
    """A wrong address that the new config expects under WARN degrades the run; one that the new
    config drops is refused by the installed STRICT.
    """
    wanted = config(OTHER, expected=(HALF,), mode="WARN")
    report = run(Configure(wanted, host=host), at_once())
    assert report.ok
    assert report.degraded
    assert own_routes(host) == [OTHER]
    host = gpu_node()
    run(Configure(config(WIDE, expected=(WIDE,)), host=host), at_once())
    report = run(Configure(config(HALF, expected=(HALF,), mode="WARN"), host=host), at_once())
    assert causes(report) == [WorseRoutingError]
    assert own_routes(host) == [WIDE]


def test_dropped_addresses_count_under_the_installed_devices(host: FakeHost) -> None:
    """The devices that a new section allows count for its own addresses, and not for addresses that
    only the installed section expects.
    """
    allowed = config(HALF, expected=(OTHER,), allowedDevs=["ib0"])
    narrowed = run(Configure(allowed, host=host), at_once())
    assert narrowed.ok
    assert narrowed.degraded
    assert own_routes(host) == [HALF]
    host = gpu_node()
    run(Configure(config(WIDE, expected=(WIDE,)), host=host), at_once())
    wanted = config(OTHER, expected=(OTHER,), allowedDevs=["ib0"])
    report = run(Configure(wanted, host=host), at_once())
    assert causes(report) == [WorseRoutingError]
    assert own_routes(host) == [WIDE]


def test_force_an_empty_config_and_reset_are_exempt(host: FakeHost) -> None:
    """An apply with `force` goes on, and is degraded; an empty config and a reset remove all
    routes, and are not degraded.
    """
    forced = run(Configure(config("172.16.16.0/24"), host=host, force=True), at_once())
    assert forced.ok
    assert forced.degraded
    assert own_routes(host) == ["172.16.16.0/24"]
    nothing = HostRoutingConfig.from_mapping({"hostRouting": {}})
    for remove in (Configure(nothing, host=host), Reset(nothing, host=host)):
        run(Configure(config(WIDE, expected=(WIDE,)), host=host, force=True), at_once())
        assert [change for change in plan(remove).changes if change.kind] == []
        report = run(remove, at_once())
        assert report.ok
        assert not report.degraded
        assert own_routes(host) == []


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"hostRouting": {"routeOverlap": {"expectedCidrs": ["10.96.0.0/16"], "mode": "WARN"}}}',
    ],
    ids=["damaged", "edited"],
)
def test_the_scripts_know_what_the_installed_config_has_lost(
    host: FakeHost, content: bytes
) -> None:
    """An installed config that was damaged or edited in place does not lift the check of its script: an apply
    that would make a right address wrong is refused, `check` names the fix, and `force` goes on.
    """
    host.files.write(CONFIG_PATH, content, mode=0o644)
    wanted = config("172.16.16.0/24", expected=("10.96.0.0/16",), mode="WARN")
    assert causes(run(Configure(wanted, host=host), at_once())) == [WorseRoutingError]
    assert causes(run(ConfigureStaticRoutes(wanted, host=host), at_once())) == [WorseRoutingError]
    assert own_routes(host) == [WIDE]
    assert check_node(at_once(), wanted, host, path="new.json").next == _FIX
    assert run(Configure(wanted, host=host, force=True), at_once()).ok
    assert own_routes(host) == ["172.16.16.0/24"]


def is_edited(host: FakeHost) -> bool:
    facts = node_status(at_once(), host).facts
    assert facts is not None
    return facts.edited


def test_a_status_names_a_config_that_was_edited(host: FakeHost) -> None:
    """A status reports an installed config that was edited, and whose scripts expect something else, until an
    apply writes both.
    """
    assert not is_edited(host)
    wanted = config(WIDE, expected=(HALF,))
    host.files.write(CONFIG_PATH, NewConfig(config=wanted).file.content, mode=0o644)
    assert is_edited(host)
    assert run(Configure(wanted, host=host, force=True), at_once()).ok
    assert not is_edited(host)


# --- the check alone


@pytest.mark.parametrize(
    ("expected", "dropped"),
    [((), WIDE), ((HALF,), OTHER), ((HALF, OTHER), ""), (("172.16.8.0/24",), "")],
)
def test_the_proof_alone_may_be_dropped(
    host: FakeHost, caplog: pytest.LogCaptureFixture, expected: tuple[str, ...], dropped: str
) -> None:
    """A check that is dropped while the routes stay is logged, stands in the plan, and degrades the
    run; the same addresses in other networks are not a loss.
    """
    wanted = config(WIDE, "172.16.8.0/24", expected=expected)
    run(ConfigureStaticRoutes(wanted, host=host), at_once())
    for make in (Configure, CheckRouteOverlap):
        run(CheckRouteOverlap(config(expected=(WIDE,)), host=host), at_once())
        caplog.clear()
        planned = [str(change) for change in plan(make(wanted, host=host)).changes if change.kind]
        report = run(make(wanted, host=host), at_once())
        assert report.ok
        assert report.degraded == bool(dropped)
        logged = [text for text in caplog.messages if DROPPED in text]
        if dropped:
            assert planned == [f"- check of {dropped} (expected by the installed config)"]
            assert logged == [f"the check of {dropped}: {DROPPED}"]
        else:
            assert planned == logged == []
        again = run(make(wanted, host=host), at_once())
        assert again.ok
        assert not again.degraded


def test_parts_of_an_ipv6_network_that_no_route_decides_are_not_missed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Link-local and multicast addresses inside an expected IPv6 network do not count as a dropped
    check.
    """
    host = gpu_node()
    wide = config(WIDE, expected=("fe00::/7", WIDE), mode="WARN")
    run(Configure(wide, host=host), at_once())
    caplog.clear()
    run(Configure(config(WIDE, expected=("fe00::/9", "fec0::/10", WIDE)), host=host), at_once())
    assert [text for text in caplog.messages if DROPPED in text] == []


# --- all pipelines, with the kernel as judge


def judged(
    oracle: KernelOracle, installed: HostRoutingConfig | None, wanted: HostRoutingConfig
) -> dict[int, tuple[bool, OverlapMode]]:
    """Return for each address that a section expects if it is wrong, and the mode that counts: of
    the new section, or of the installed one if the new one does not expect it.
    """
    found: dict[int, tuple[bool, OverlapMode]] = {}
    for section in (each.route_overlap for each in (installed, wanted) if each):
        devs = {*(section.expected_devs or oracle.expected())}
        for pattern in section.allowed_devs:
            devs |= {dev for dev in DEVICES if fnmatchcase(dev, pattern)}
        for cidr in section.cidrs:
            wrong = wrong_of(oracle, cidr, frozenset(devs))
            found |= {
                int(address): (int(address) in wrong, section.mode) for address in ip_network(cidr)
            }
    return found


def run_judged(
    name: str, oracle: KernelOracle, host: Host, wanted: HostRoutingConfig
) -> tuple[Report, set[int]]:
    """Run a pipeline; return its report, and the addresses of the installed section that went
    wrong. None of them goes wrong under STRICT, or if the run is ok and not degraded.
    """
    installed = config_over(host.files.read(CONFIG_PATH), wanted)
    before = judged(oracle, installed, wanted)
    report = run(PIPELINES[name](wanted, host), Context(clock=Turns(auto=True)))
    after = judged(oracle, installed, wanted)
    worse = {address for address in before if after[address][0] > before[address][0]}
    if name != "whole" or wanted.asks:
        assert report.degraded or not report.ok or not worse
        assert OverlapMode.STRICT not in {before[address][1] for address in worse}
    return report, worse


@needs_kernel
@pytest.mark.parametrize("name", PIPELINES)
def test_no_pipeline_makes_a_dropped_address_wrong_in_silence(name: str) -> None:
    """A pipeline that would make a dropped address wrong is refused under STRICT, and degraded
    under WARN, with a smaller section and without one.
    """
    for mode in "STRICT", "WARN":
        for expected in (), (HALF,):
            with KernelNode.made() as kernel:
                uplink(kernel, ib0="172.16.1.4/16")
                host = host_of(kernel_of(kernel), is_live=True)
                oracle = KernelOracle(kernel)
                earlier = config(WIDE, expected=(WIDE,), mode=mode)
                assert run(Configure(earlier, host=host), at_once()).ok
                # Without a route of the check alone.
                wanted = config(HALF, expected=expected, mode=mode)
                report, worse = run_judged(name, oracle, host, wanted)
                if name == "check":
                    assert report.ok
                    assert report.degraded
                    assert len(worse) == 0
                elif mode == "WARN":
                    assert report.ok
                    assert report.degraded
                    assert len(worse) == 8
                else:
                    assert WorseRoutingError in causes(report)
                    assert own_routes(host) == [WIDE]


# --- networks without others


def prefixes() -> st.SearchStrategy[Prefix]:
    """Networks of a small space, so that they meet."""
    return st.builds(
        lambda number, length: Prefix(IPV6, number, 128 - length).masked,
        st.integers(0, 31),
        st.integers(0, 5),
    )


@given(prefixes(), st.lists(prefixes()))
def test_outside_has_the_addresses_of_no_other_network(
    network: Prefix, others: list[Prefix]
) -> None:
    """`outside` returns each address of a network that the other networks lack, once."""

    def addresses(prefix: Prefix) -> range:
        return range(prefix.network, prefix.last + 1)

    found = [number for part in outside(network, sorted(others)) for number in addresses(part)]
    taken = {number for other in others for number in addresses(other)}
    assert found == [number for number in addresses(network) if number not in taken]
