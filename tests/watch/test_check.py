"""The check of a watch on a fake node, by a clock that the test moves: alarms, flaps, markers
and losses.
"""

import errno
import logging

import attrs
import pytest
from support.overlap_answers import proven_at, verdict_of
from support.printed import LEAVE_AGAIN, OVER, leaves
from watch.checked_nodes import LINE, OVERLAP, ProvenNode, config_of

from hostrouting import Configure, HostRoutingConfig, Reset
from hostrouting.base.refused_files import why_refused
from hostrouting.exceptions import BackendError
from hostrouting.host import IPV4, Device, DeviceAddress, NetworkEvent, ObservedRoute, Route, Rule
from hostrouting.net.events import (
    AddressEvent,
    DeviceEvent,
    NexthopEvent,
    RouteEvent,
    RuleEvent,
    SettingEvent,
)
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK
from hostrouting.testing.contracts.routes import arrange
from phases import DeadlineExceededError, execute, run, task
from phases.testing import ManualClock

REMOUNT = why_refused(errno.EROFS, "/run/hostrouting", is_folder=bool)

FINE = leaves("172.16.0.0/16", "eth0")


@pytest.fixture
def watched(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> ProvenNode:
    caplog.set_level(logging.INFO)
    found = ProvenNode(getattr(request, "param", None) or config_of())
    found.run(0.1)
    assert found.marker() == "ok"
    assert not caplog.records
    return found


def test_a_run_keeps_no_list_of_the_markers() -> None:
    """The markers that a watch writes are not in the report of its run, which may last a year."""
    watched = ProvenNode(config_of())
    report = run(task("watch")(watched.reconciler.act), watched.ctx)
    assert report.error is None
    assert report.changes == ()
    assert watched.marker() == "ok"


def test_a_late_unit_is_an_alarm(caplog: pytest.LogCaptureFixture) -> None:
    """A unit of `after` that is down is an alarm under STRICT, with its marker, until the unit is
    up again.
    """
    watched = ProvenNode(attrs.evolve(config_of(mode="STRICT"), after=("fabric.service",)))
    path = "/etc/systemd/system/fabric.service"
    services = watched.host.services
    watched.host.files.write(path, b"[Service]\nExecStart=/bin/a", mode=0o644)
    services.start(watched.ctx, "fabric.service")
    watched.run(2)
    services.stop(watched.ctx, "fabric.service")
    watched.run(watched.installed.config.watch.interval + 2)
    text = "fabric.service: is inactive (dead): neither active"
    assert (watched.marker() or "").startswith(text)
    services.start(watched.ctx, "fabric.service")
    watched.run(watched.installed.config.watch.interval)
    assert watched.marker() == "ok"
    assert [message.startswith(text) for message in caplog.messages] == [True]


@pytest.mark.parametrize(
    ("watched", "seconds"),
    [(config_of(readings=1), 0), (config_of(), 1), (config_of(readings=5), 4)],
    indirect=["watched"],
)
def test_the_number_of_readings(
    watched: ProvenNode, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    """As many bad readings in a row as `watch.readings`, a second apart, are an alarm, which is
    logged with its fields and is in the marker.
    """
    watched.overlaps()
    if seconds:
        watched.run(seconds - 0.1)
        assert caplog.records == []
        assert watched.marker() == "ok"
    watched.run(0.2)
    assert caplog.messages[0] == LINE
    assert watched.marker() == f"{LINE}\n"
    assert caplog.records[0].levelno == logging.WARNING
    fields = {"cidr": "172.16.0.0/16", "kind": "overlap", "dev": "ib0"}
    assert fields.items() <= vars(caplog.records[0]).items()


def test_a_flap_is_not_an_alarm(watched: ProvenNode, caplog: pytest.LogCaptureFixture) -> None:
    """A finding that ends within the window is not logged, however often it comes."""
    for _ in range(20):
        watched.overlaps()
        watched.run(0.6)
        watched.mended()
        watched.run(0.6)
    assert not caplog.records


def test_a_changed_finding_is_logged_once(
    watched: ProvenNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Other findings during an alarm are logged once they last, and the same ones are not logged
    again.
    """
    watched.overlaps()
    watched.run(130)
    assert [message for message in caplog.messages if "overlap" in message] == [LINE]
    caplog.clear()
    arrange(watched.node, "172.16.9.0/24 dev ib0 proto dhcp")
    watched.run(130)
    lines = [message for message in caplog.messages if ": overlap" in message]
    assert lines == [LINE, LINE.replace("172.16.4.", "172.16.9.")]
    assert watched.marker() == "".join(f"{line}\n" for line in lines)


def change_every_second(watched: ProvenNode, *, seconds: int) -> list[Route]:
    """Let a routing daemon replace fifty overlaps every second; return their routes."""
    overlaps = [
        attrs.evolve(OVERLAP, network=OVERLAP.network + (number << 8)) for number in range(50)
    ]
    for second in range(seconds):
        for overlap in overlaps:
            route = attrs.evolve(overlap, protocol=16 + second % 3)
            watched.node.insert_route(route, verb="replace" if second else "add")
        watched.run(1)
    return overlaps


@pytest.mark.slow
def test_findings_that_change_all_the_time(
    watched: ProvenNode, caplog: pytest.LogCaptureFixture
) -> None:
    """A routing daemon that changes fifty overlaps every second does not fill the log, and its last
    findings are in the marker.
    """
    overlaps = change_every_second(watched, seconds=300)
    assert 100 <= caplog.text.count(": overlap") <= 350
    watched.run(100)
    assert watched.marker().count("proto keepalived") == 50
    # The end of an alarm waits for nothing, and neither does the next alarm.
    for overlap in overlaps:
        watched.node.delete_route(attrs.evolve(overlap, protocol=18))
    watched.run(0.1)
    assert watched.marker() == "ok"
    watched.overlaps()
    watched.run(2)
    assert watched.marker() == f"{LINE}\n"


def test_another_cidr_breaks_the_silence(caplog: pytest.LogCaptureFixture) -> None:
    """A CIDR that was good until now has its alarm at once, though other findings change all the
    time.
    """
    section = {"expectedCidrs": ["172.16.0.0/16", "172.31.0.0/16"]}
    watched = ProvenNode(HostRoutingConfig.from_mapping({"routeOverlap": section}))
    watched.run(3)
    change_every_second(watched, seconds=20)
    caplog.clear()
    arrange(watched.node, "172.31.4.0/24 dev ib0 proto dhcp")
    watched.run(2.5)
    assert caplog.text.count("172.31.0.0/16: overlap") == 1
    assert "alarm: 172.16.0.0/16, 172.31.0.0/16" in watched.reconciler.state


@pytest.mark.parametrize(
    ("event", "is_correct"),
    [
        (RouteEvent("add", ObservedRoute.parse("10.9.0.0/16", "ib0")), False),
        (RouteEvent("remove", ObservedRoute.parse("172.17.0.0/16", "ib0", table=100)), False),
        (
            RouteEvent("add", ObservedRoute.parse("10.9.0.1/32", "ib0", table=255, kind="local")),
            True,
        ),
        (RouteEvent("add", ObservedRoute.parse("172.16.255.255/32", "ib0", table=100)), True),
        (RouteEvent("replace", ObservedRoute.parse("0.0.0.0/0", "eth0")), True),
        (RuleEvent("add", Rule(100, table=100)), True),
        (AddressEvent("set", "ib0", DeviceAddress.parse("10.9.0.1/16")), True),
        (DeviceEvent("set", Device("ib0", 3, up=True, carrier=False)), True),
        (NexthopEvent("remove", 7), True),
        (SettingEvent("set", "ignore_routes_with_linkdown"), True),
    ],
)
def test_events_that_start_a_proof(
    watched: ProvenNode, event: NetworkEvent, *, is_correct: bool
) -> None:
    """An event starts a check, unless it is about a route outside table local and outside all
    expected CIDRs.
    """
    before = watched.node.readings
    watched.host.events.announce(event)
    watched.run(0.2)
    assert watched.node.readings == before + is_correct


def test_a_default_route_of_ipv4_starts_a_proof_of_ipv6() -> None:
    """A change of the IPv4 default route starts a check of IPv6 CIDRs, since it decides by which
    device they should leave.
    """
    section = {"expectedCidrs": ["fd09::/64"]}
    watched = ProvenNode(HostRoutingConfig.from_mapping({"routeOverlap": section}))
    watched.run(3)
    before = watched.node.readings
    watched.host.events.announce(RouteEvent("add", ObservedRoute.parse("10.9.0.0/16", "ib0")))
    watched.run(0.2)
    assert watched.node.readings == before
    watched.host.events.announce(RouteEvent("replace", ObservedRoute.parse("0.0.0.0/0", "eth0")))
    watched.run(0.2)
    assert watched.node.readings > before


@pytest.mark.parametrize(("carrier", "seconds"), [(True, 60), (False, 1)])
def test_a_loss_that_an_advertisement_may_mend(
    monkeypatch: pytest.MonkeyPatch, *, carrier: bool, seconds: float
) -> None:
    """A lost default route that a router advertised is an alarm after an interval, and after a
    second if its device has lost its carrier, by which an advertisement cannot come.
    """
    section = {"expectedCidrs": ["fd09::/64"]}
    watched = ProvenNode(HostRoutingConfig.from_mapping({"routeOverlap": section}))
    node = watched.node
    node.add_address("eth0", "fd00:9::4/64")
    learned = ObservedRoute.parse("::/0", "eth0", gateway="fe80::1", protocol=9)
    node.insert_route(learned)
    read = node.routes

    def with_lifetimes(family: int = IPV4) -> list[ObservedRoute]:
        return [
            route._replace(expires=1800) if route.protocol == 9 else route for route in read(family)
        ]

    monkeypatch.setattr(node, "routes", with_lifetimes)
    watched.run(3)
    assert watched.marker() == "ok"
    if carrier:
        node.delete_route(learned)
    else:
        node.set_up("eth0", up=False)
    watched.run(seconds - 0.1)
    assert watched.marker() == "ok"
    watched.run(2)
    assert watched.marker().startswith("fd09::/64: no-route ")


def test_events_that_come_together_have_one_proof(watched: ProvenNode) -> None:
    """A thousand changed routes are checked once, soon after the first one."""
    before = watched.node.readings
    for number in range(1000):
        route = Route.parse(
            f"172.16.{number // 250}.{number % 250}/32",
            gateway="10.224.0.1",
            dev="eth0",
            protocol=16,
        )
        watched.node.insert_route(route)
        watched.run(0.00003)
    watched.run(0.1)
    assert watched.node.readings == before + 1


def test_the_last_state_is_proven(watched: ProvenNode, caplog: pytest.LogCaptureFixture) -> None:
    """A route that comes while the routes are read leads to another check."""
    watched.node.after_reading = watched.overlaps
    watched.host.events.announce(RuleEvent("add", Rule(100, table=100)))
    watched.run(2)
    assert caplog.messages[0] == LINE


def test_the_proof_waits_for_an_apply(
    watched: ProvenNode, caplog: pytest.LogCaptureFixture
) -> None:
    """A check waits for the run lock, and does not read the changes of an apply on its way."""
    before = watched.node.readings
    watched.host.lock.holder = 1
    watched.overlaps()
    watched.reconciler.receive(watched.listener.take())
    with pytest.raises(DeadlineExceededError):
        watched.reconciler.act(watched.ctx.child(timeout=0))
    watched.mended()
    watched.host.lock.holder = None
    assert watched.node.readings == before
    watched.run(2)
    assert not caplog.records


def fail() -> None:
    raise BackendError("no memory", errno=errno.ENOMEM)


def test_a_proof_that_fails_is_made_again(
    watched: ProvenNode, caplog: pytest.LogCaptureFixture
) -> None:
    """A check that could not read the kernel is made again before the next interval."""
    watched.overlaps()
    watched.node.after_reading = fail
    with pytest.raises(BackendError, match="no memory"):
        watched.run(0.2)
    assert not caplog.records
    watched.due = watched.clock.monotonic()
    watched.run(2)
    assert caplog.messages[0] == LINE


def test_lost_events(watched: ProvenNode, caplog: pytest.LogCaptureFixture) -> None:
    """A finding whose event was lost is logged after the node is read again."""
    watched.host.events.most = 0
    watched.overlaps()
    watched.run(2)
    assert caplog.messages[0] == LINE


def test_a_change_without_an_event(watched: ProvenNode, caplog: pytest.LogCaptureFixture) -> None:
    """A change without an event is found by the check of the next interval."""
    listeners = watched.host.events.listeners
    watched.host.events.listeners = []
    watched.overlaps()
    watched.host.events.listeners = listeners
    watched.run(59)
    assert not caplog.records
    watched.run(3)
    assert caplog.messages[0] == LINE


def test_the_marker_of_another_run(watched: ProvenNode, caplog: pytest.LogCaptureFixture) -> None:
    """The marker that another run wrote during a flap is put right with the next reading, without
    an alarm.
    """
    watched.overlaps()
    watched.run(0.1)
    watched.host.files.write(MARKER_DETECTED, b"by an apply\n", mode=0o644)
    watched.host.files.remove(MARKER_OK)
    watched.mended()
    watched.run(0.1)
    assert watched.marker() == "ok"
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def proven_seconds(watched: ProvenNode) -> float:
    """Return the seconds from the start of the clock to the time that the marker names."""
    text = (watched.host.files.read(MARKER_OK) or b"").decode()
    assert verdict_of(MARKER_OK, text) == f"{FINE}\n"
    return proven_at(text).timestamp() - ManualClock.EPOCH


def test_the_marker_names_the_time_of_the_last_proof(watched: ProvenNode) -> None:
    """Each right check renews the time in the marker, at rest every interval, and a bad reading
    does not.
    """
    assert watched.installed.config.watch.interval == 60
    assert proven_seconds(watched) == 0
    watched.run(60)
    assert proven_seconds(watched) == 60
    watched.overlaps()
    watched.run(0.9)
    assert proven_seconds(watched) == 60
    watched.mended()
    watched.run(0.9)
    assert proven_seconds(watched) == 61


def test_a_time_that_cannot_be_renewed(
    watched: ProvenNode, caplog: pytest.LogCaptureFixture
) -> None:
    """A marker whose time cannot be renewed stays as it is; the failure is logged once, and so is
    its end.
    """
    began = proven_seconds(watched)
    watched.host.files.tree.read_only.add(MARKER_OK)
    watched.run(200)
    failure = "the marker of the expected CIDRs is not right now"
    reason = f"cannot write {MARKER_OK}: {REMOUNT}"
    assert caplog.messages == [f"{failure}: {reason}"]
    assert proven_seconds(watched) == began
    watched.host.files.tree.read_only.clear()
    watched.run(6)
    assert caplog.messages[1:] == [f"{OVER}{failure}"]
    assert proven_seconds(watched) > began + 200


def test_an_alarm_without_a_marker(watched: ProvenNode, caplog: pytest.LogCaptureFixture) -> None:
    """An alarm whose marker cannot be written is logged, and the marker of a right node is gone.

    The failure of the marker is logged once, however the findings change, and so is its end.
    """
    watched.host.files.tree.read_only.add(MARKER_DETECTED)
    watched.overlaps()
    watched.run(30)
    assert [message for message in caplog.messages if ": overlap" in message] == [LINE]
    assert not watched.host.files.exists(MARKER_OK)
    other = attrs.evolve(OVERLAP, network=OVERLAP.network + 256)
    watched.node.insert_route(other)
    watched.run(30)
    watched.node.delete_route(other)
    watched.run(30)
    failure = "the marker of the expected CIDRs is not right now"
    trouble = f"{failure}: cannot write {MARKER_DETECTED}: {REMOUNT}"
    assert [message for message in caplog.messages if "marker" in message] == [trouble]
    watched.host.files.tree.read_only.clear()
    caplog.clear()
    watched.run(6)
    assert watched.marker() == f"{LINE}\n"
    assert caplog.messages == [f"{OVER}{failure}"]


def test_a_marker_that_waits_for_a_full_disk_while_findings_change(
    watched: ProvenNode, caplog: pytest.LogCaptureFixture
) -> None:
    """A marker that waits for a full disk is written soon after there is room, also while changed
    findings are not logged yet.
    """
    for number in range(40):
        watched.node.insert_route(attrs.evolve(OVERLAP, network=OVERLAP.network + 512 * number))
    watched.host.files.tree.read_only.add(MARKER_DETECTED)
    watched.run(5)
    assert "cannot write" in watched.reconciler.state
    watched.node.insert_route(attrs.evolve(OVERLAP, network=OVERLAP.network + 256 * 81))
    watched.run(1)
    watched.host.files.tree.read_only.clear()
    caplog.clear()
    watched.run(6)
    assert len(watched.marker().splitlines()) > 40
    assert watched.reconciler.state == "alarm: 172.16.0.0/16"
    assert not [message for message in caplog.messages if ": overlap" in message]
    watched.run(40)
    assert len([message for message in caplog.messages if ": overlap" in message]) == 41


ANOTHER = HostRoutingConfig.from_mapping(
    {"routeOverlap": {"expectedCidrs": ["172.17.0.0/16"]}, "gates": []}
)


def test_readings_of_another_config_do_not_count(watched: ProvenNode) -> None:
    """The first bad reading under a new config is not an alarm, though one under the former config
    came before it.
    """
    watched.overlaps()
    watched.run(0.5)
    execute(Configure(ANOTHER, host=watched.host))
    arrange(watched.node, "172.17.4.0/24 dev ib0 proto dhcp")
    watched.run(1)
    assert watched.marker() == "ok"
    watched.run(1)
    assert watched.marker() != "ok"


def test_the_config_of_an_apply_counts(
    watched: ProvenNode, caplog: pytest.LogCaptureFixture
) -> None:
    """An alarm is about the config in force: bad readings under a former config, or after a reset,
    lead to none.
    """
    watched.overlaps()
    watched.run(0.5)
    execute(Configure(ANOTHER, host=watched.host))
    caplog.clear()
    watched.run(70)
    assert watched.marker() == "ok"
    assert not caplog.records
    execute(Reset(ANOTHER, host=watched.host))
    arrange(watched.node, "172.17.4.0/24 dev ib0 proto dhcp")
    watched.run(3)
    assert watched.installed.is_reset
    assert not watched.host.files.exists(MARKER_DETECTED)


def test_without_expected_cidrs_nothing_is_kept() -> None:
    """A config without expected CIDRs leads to neither a check nor a marker."""
    watched = ProvenNode(HostRoutingConfig())
    watched.run(130)
    watched.overlaps()
    watched.run(130)
    assert watched.acts <= 5
    assert not watched.node.readings
    assert not watched.host.files.exists(MARKER_OK)


def test_the_end_of_an_alarm_of_the_boot(caplog: pytest.LogCaptureFixture) -> None:
    """A good first reading of a watch ends the alarm of the boot, which is logged and replaces its
    marker.
    """
    caplog.set_level(logging.INFO)
    watched = ProvenNode(config_of())
    watched.host.files.write(MARKER_DETECTED, b"by the boot\n", mode=0o644)
    watched.run(0.1)
    assert caplog.messages == [LEAVE_AGAIN + FINE]
    assert watched.marker() == "ok"
