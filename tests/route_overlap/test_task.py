"""CheckRouteOverlap: the files that it installs, the markers that it writes, and its errors."""

import logging
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from support.kernel import connect
from support.overlap_answers import verdict_of
from support.printed import NO_FABRIC, NO_POOL_YET, NOT_ENDED, WAITING, WITHOUT_IT

from hostrouting import CheckRouteOverlap, HostRoutingConfig
from hostrouting.apply.check import AddressCheck
from hostrouting.boot.boot import Boot
from hostrouting.boot.layout import CONFIG_PATH, PROGRAM_PATH
from hostrouting.exceptions import RouteOverlapError
from hostrouting.host import IPV4, ObservedRoute, UnitState
from hostrouting.route_overlap.fabric import POOL
from hostrouting.route_overlap.waiting import unready_units
from hostrouting.testing import FakeHost, MemoryBackend
from phases import CancelledError, Change, Context
from phases.testing import ManualClock

SCRIPT = "/etc/aks-flex-node/check-route-overlap.sh"
UNIT = "/etc/systemd/system/check-route-overlap.service"
DETECTED = "/run/hostrouting/route-overlap.detected"
OK = "/run/hostrouting/route-overlap.ok"
LINE = (
    "172.16.8.0/22: overlap 172.16.8.0-172.16.11.255 through ib0 "
    "(172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4)"
)


def config(*cidrs: str, mode: str = "WARN", **section: Any) -> HostRoutingConfig:
    return HostRoutingConfig.from_mapping(
        {"routeOverlap": {"expectedCidrs": list(cidrs), "mode": mode, **section}}
    )


class SlowDHCP(MemoryBackend):
    """A backend that has its default route when the routes are read for the `arrival`-th time."""

    def __init__(self, arrival: int = 1) -> None:
        super().__init__()
        self.readings = 0
        self._arrival = arrival
        connect(self, eth0="10.224.0.4/16", ib0="172.16.1.4/16")

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        self.readings += 1
        if self.readings == self._arrival:
            self.add_route("default", gateway="10.224.0.1", dev="eth0")
        return super().routes(family)


@pytest.fixture
def host() -> FakeHost:
    return FakeHost(SlowDHCP())


def markers(host: FakeHost) -> dict[str, str]:
    return {
        path: verdict_of(path, text)
        for path, text in host.files.tree.snapshot().items()
        if path.startswith("/run/hostrouting/")
    }


def test_warn_logs_every_finding_and_leaves_the_marker(
    host: FakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    """A run under WARN logs a warning for each finding and one with the next step, writes the
    findings to the marker, and succeeds.
    """
    CheckRouteOverlap(config("172.16.8.0/22", "10.96.0.0/16"), host=host).do(Context())
    assert markers(host) == {DETECTED: LINE + "\n"}
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage().partition("\n")[0] for record in warnings] == [
        LINE,
        "To fix this, set the following in hostRouting in the agent's config, then apply that config again:",
    ]
    assert warnings[0].__dict__["kind"] == "overlap"
    assert warnings[0].__dict__["dev"] == "ib0"


def test_very_many_findings_are_a_hundred_lines_in_the_log(
    host: FakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the first hundred findings and the number of further ones, which the marker file
    has.
    """
    for number in range(150):
        host.routes.add_route(f"10.96.{number}.0/25", dev="ib0")
    CheckRouteOverlap(config("10.96.0.0/16"), host=host).do(Context())
    warnings = [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]
    assert len(warnings) == 102
    assert warnings[100] == f"50 more findings are in {DETECTED}"
    assert markers(host)[DETECTED].count("\n") == 150


def test_strict_raises_with_everything_in_place(host: FakeHost) -> None:
    """A run under STRICT raises its error after script, unit, link, gate and marker are installed,
    and the error is not retryable, as a wrong route does not go by itself.
    """
    with pytest.raises(RouteOverlapError) as caught:
        CheckRouteOverlap(config("172.16.8.0/22", mode="STRICT"), host=host).do(Context())
    assert [cidr.cidr for cidr in caught.value.report.cidrs] == ["172.16.8.0/22"]
    assert str(caught.value) == str(caught.value.report)
    assert not caught.value.retryable
    assert markers(host) == {DETECTED: LINE + "\n"}
    assert host.files.mode(DETECTED) == 0o644
    assert host.files.exists(
        "/etc/systemd/system/hostrouting-ready.service.requires/check-route-overlap.service"
    )
    assert host.files.exists("/etc/systemd/system/systemd-nspawn@.service.d/10-hostrouting.conf")


def test_a_marker_that_cannot_be_left_hides_no_overlap(host: FakeHost) -> None:
    """A run whose marker cannot be written raises the error for the overlap, and the marker of a
    right node is gone.
    """
    strict = config("172.16.8.0/22", mode="STRICT")
    task = CheckRouteOverlap(strict, host=host)
    proof = AddressCheck(strict, host, Boot(host), logging.getLogger())
    calls = host.files.operations.calls
    with pytest.raises(RouteOverlapError):
        task.do(Context())
    for number in range(1, 13):
        # A check whose marker is right already writes none.
        host.files.tree.remove(DETECTED)
        host.files.tree.write(OK, b"", mode=0o644)
        host.files.fail_at(number)
        before = len(calls)
        with pytest.raises(RouteOverlapError):
            proof.do(Context())
        if calls[before + number - 1] == ("write", DETECTED):
            assert markers(host) == {}
            return
    pytest.fail(f"no write failed: {calls}")


def test_a_unit_that_fails_while_it_is_queried(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit that fails while it is queried has not ended with success."""
    queries: list[str] = []

    def answer(_: Context, unit: str, *names: str) -> UnitState | dict[str, str]:
        queries.append(unit)
        if names:
            return dict.fromkeys(names, "5" if len(queries) > 1 else "0")
        if len(queries) > 1:
            return UnitState(unit, "loaded", "failed", result="exit-code")
        return UnitState(unit, "loaded")

    for query in "state", "settings":
        monkeypatch.setattr(host.services, query, answer)
    late = attrs.evolve(config("10.0.0.0/8"), after=("fabric.service",))
    [finding] = unready_units(Context(), late, host)
    assert finding.reason.startswith("is failed (exit-code)")


_DEAD = UnitState("fabric.service", "loaded", "inactive", "dead")
_LATE = "late-unit", f"is inactive (dead): {NOT_ENDED}"
_SPARED = "spared-unit", f"is skipped, {WITHOUT_IT}"


@pytest.mark.parametrize(
    ("moment", "shown", "state", "found"),
    [
        ("5", {}, _DEAD, []),
        # It failed and was reset, and its end with success was an earlier one.
        ("5", {"StateChangeTimestampMonotonic": "9"}, _DEAD, [_LATE]),
        # Its conditions are not tested yet.
        ("0", {"ConditionResult": "no"}, _DEAD, [_LATE]),
        # A program of its ExecCondition= has refused its start: it is down on purpose.
        (
            "5",
            {"ConditionResult": "yes"},
            _DEAD._replace(result="exec-condition"),
            [_SPARED],
        ),
        # Its start goes on.
        (
            "5",
            {},
            UnitState("fabric.service", "masked", "activating", "start"),
            [("late-unit", f"is activating (start): {NOT_ENDED}")],
        ),
    ],
)
def test_a_unit_that_is_not_up(
    host: FakeHost,
    monkeypatch: pytest.MonkeyPatch,
    *,
    moment: str,
    shown: dict[str, str],
    state: UnitState,
    found: list[tuple[str, str]],
) -> None:
    """A unit that is not up counts as late, as skipped, or as ended with success, by its last end
    and its conditions.
    """

    def answer(_: Context, __: str, *names: str) -> UnitState | dict[str, str]:
        return {**dict.fromkeys(names, moment), **shown} if names else state

    for query in "state", "settings":
        monkeypatch.setattr(host.services, query, answer)
    late = attrs.evolve(config("10.0.0.0/8"), after=("fabric.service",))
    findings = unready_units(Context(), late, host)
    assert [(one.kind, one.reason) for one in findings] == found


def test_a_late_default_route_is_waited_for() -> None:
    """A default route that comes after five seconds is waited for, and the node is right."""
    host = FakeHost(SlowDHCP(arrival=11))
    clock = ManualClock(auto=True)
    CheckRouteOverlap(config("10.96.0.0/16", mode="STRICT"), host=host).do(Context(clock=clock))
    assert list(markers(host)) == [OK]
    assert clock.monotonic() == pytest.approx(5.0)


@pytest.mark.parametrize(("timeout", "waited"), [(None, 30.0), (3.0, 3.0), (300.0, 30.0)])
def test_no_default_route_is_a_finding_after_the_wait(timeout: float | None, waited: float) -> None:
    """A missing default route is a finding after 30 s, or after the time of the context, and the
    error is retryable.
    """
    host = FakeHost(SlowDHCP(arrival=0))
    clock = ManualClock(auto=True)
    with pytest.raises(RouteOverlapError) as caught:
        CheckRouteOverlap(config("10.96.0.0/16", mode="STRICT"), host=host).do(
            Context(timeout=timeout, clock=clock)
        )
    assert caught.value.retryable
    assert markers(host) == {DETECTED: "10.96.0.0/16: no-route 10.96.0.0-10.96.255.255\n"}
    assert clock.monotonic() == pytest.approx(waited)


def test_each_run_waits_for_an_awaited_fabric(
    host: FakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    """Each run on a node with InfiniBand and an empty pool waits 30 s and then warns, though the
    routes are good.
    """
    files = {"/etc/waagent.conf": b"OS.EnableRDMA=y\n", "/sys/class/infiniband/mlx5_0": b""}
    for path, content in files.items():
        host.files.tree.write(path, content, mode=0o644)
    clock = ManualClock(auto=True)
    for number in 1, 2:
        caplog.clear()
        CheckRouteOverlap(config("10.96.0.0/16", mode="STRICT"), host=host).do(Context(clock=clock))
        assert list(markers(host)) == [OK]
        assert clock.monotonic() == pytest.approx(30.0 * number)
        assert caplog.messages[:2] == [
            f"{WAITING}RDMA is switched on, but {POOL} has no addresses for InfiniBand yet",
            f"routeOverlap: {NO_FABRIC}{POOL}{NO_POOL_YET}",
        ]


def test_a_cancelled_wait_is_not_an_answer() -> None:
    """A run that is cancelled during its wait writes no marker and leaves the installed files."""
    ctx = Context(clock=ManualClock(auto=True))

    class Cancelling(SlowDHCP):
        def routes(self, family: int = IPV4) -> list[ObservedRoute]:
            ctx.cancel("enough")
            return super().routes(family)

    host = FakeHost(Cancelling(arrival=0))
    with pytest.raises(CancelledError):
        CheckRouteOverlap(config("10.96.0.0/16", mode="STRICT"), host=host).do(ctx)
    assert markers(host) == {}
    assert host.files.exists(SCRIPT)


@pytest.mark.parametrize("before", [(), ("10.96.0.0/16",), ("172.16.8.0/22",)])
def test_without_expected_cidrs_nothing_is_installed(host: FakeHost, before: Sequence[str]) -> None:
    """A config without expected CIDRs installs nothing, and removes unit, script, gate and markers
    of an earlier one.
    """
    CheckRouteOverlap(config(*before), host=host).do(Context())
    # Left by the program of a boot.
    host.files.tree.write("/run/hostrouting/check-route-overlap.message", b"", mode=0o644)
    CheckRouteOverlap(config(), host=host).do(Context())
    assert host.files.tree.snapshot() == {}


def test_undo_leaves_nothing(host: FakeHost) -> None:
    """Undo removes files, links, gate and markers, also a second time; a second run before it
    changes nothing.
    """
    task = CheckRouteOverlap(config("172.16.8.0/22"), host=host)
    task.do(Context())
    before = host.files.tree.file(SCRIPT)
    assert task.plan(Context()) == []
    task.do(Context())
    assert host.files.tree.file(SCRIPT) == before
    # Left by the program of a boot.
    for name in "check-route-overlap.message", "waits-until":
        host.files.tree.write(f"/run/hostrouting/{name}", b"", mode=0o644)
    for _ in range(2):
        task.undo(Context())
        assert host.files.tree.snapshot() == {}


def test_a_plan_names_the_files_and_changes_nothing(host: FakeHost) -> None:
    """A plan names the files to add, or those to remove with the marker once the CIDRs left the
    config, and changes nothing.
    """
    task = CheckRouteOverlap(config("10.96.0.0/16"), host=host)
    assert task.plan(Context())[:4] == [
        Change("+", path) for path in (CONFIG_PATH, PROGRAM_PATH, SCRIPT, UNIT)
    ]
    assert host.files.tree.snapshot() == {}
    task.do(Context())
    removal = CheckRouteOverlap(config(), host=host).plan(Context())
    assert removal[:2] == [Change("-", OK), Change("-", CONFIG_PATH)]
    assert {Change("-", SCRIPT), Change("-", UNIT)} <= set(removal)
