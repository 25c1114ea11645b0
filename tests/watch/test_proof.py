"""The keeper of the proof on a fake node, by a clock that the test moves: alarms, flaps, markers and losses."""

from __future__ import annotations

import logging
from math import inf
from typing import Any

import pytest
from support.fabric_files import SHARED, SWITCHED_ON, record

from hostrouting import Configure, HostRoutingConfig, Reset
from hostrouting.exceptions import EventsLostError, HostFileError
from hostrouting.fib.events import with_device
from hostrouting.host import DeviceEvent, Route, Rule
from hostrouting.route_overlap.fabric import CONFIGURATION, POOL
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK
from hostrouting.testing import FakeHost, MemoryBackend
from hostrouting.watch.installed import InstalledConfig
from hostrouting.watch.proof import ProofKeeper
from phases import Context, execute
from phases.testing import ManualClock

OVERLAP = Route.parse("172.16.4.0/24", dev="ib0", protocol=16)
LINE = "172.16.0.0/16: overlap 172.16.4.0-172.16.4.255 by ib0 (172.16.4.0/24 dev ib0 proto dhcp scope link)"


def config_of(**fields: Any) -> HostRoutingConfig:
    watch = {"enabled": True, "readings": fields.pop("readings", 2)}
    return HostRoutingConfig.from_mapping(
        {"routeOverlap": {"expectedCidrs": ["172.16.0.0/16"], **fields}, "watch": watch}
    )


class Watched:
    """A fake node and its keeper, with the loop of `Watch` around it."""

    def __init__(self, config: HostRoutingConfig) -> None:
        self.node = MemoryBackend()
        for name, address in ("eth0", "10.224.0.4/16"), ("ib0", "10.225.0.4/16"):
            self.node.add_link(name)
            self.node.add_address(name, address)
        self.node.add_route("default", gateway="10.224.0.1", dev="eth0")
        self.host = FakeHost(self.node)
        self.clock = ManualClock()
        self.ctx = Context(clock=self.clock)
        logger = logging.getLogger("keeper")
        self.installed = InstalledConfig(config, self.host.files, logger)
        self.keeper = ProofKeeper(self.host, logger, self.installed)
        self.due = -inf
        self.acts = 0
        self._listening = self.host.events.listen(self.ctx)
        self.listener = self._listening.__enter__()

    def run(self, seconds: float = 0) -> None:
        """Let the keeper hear and act for some seconds."""
        end = self.clock.monotonic() + seconds
        while True:
            now = self.clock.monotonic()
            if self.due <= now:
                self.acts += 1
                self.due = now + self.keeper.act(self.ctx)
            try:
                self.due = min(self.due, now + self.keeper.hear(self.listener.take()))
            except EventsLostError:
                self.keeper.lose()
                self.due = now
            if self.due > now:
                self.clock.advance(min(self.due, end) - now)
                if self.due > end:
                    return

    def overlaps(self) -> None:
        self.node.insert_route(OVERLAP)

    def mended(self) -> None:
        self.node.delete_route(OVERLAP)

    def marker(self) -> str:
        exists = self.host.files.exists
        assert exists(MARKER_OK) != exists(MARKER_DETECTED)
        return (self.host.files.read(MARKER_DETECTED) or b"ok").decode()


@pytest.fixture
def watched(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Watched:
    caplog.set_level(logging.INFO)
    found = Watched(getattr(request, "param", None) or config_of())
    found.run(0.1)
    assert found.marker() == "ok"
    assert not caplog.records
    return found


def test_two_bad_readings_are_an_alarm(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """A second after the first bad reading the finding is told, with its fields, and the marker has it."""
    watched.overlaps()
    watched.run(0.9)
    assert not caplog.records
    assert watched.marker() == "ok"
    watched.run(0.2)
    assert caplog.messages[0] == LINE
    assert vars(caplog.records[0]).items() >= {"cidr": "172.16.0.0/16", "kind": "overlap", "dev": "ib0"}.items()
    assert caplog.records[0].levelno == logging.WARNING
    assert watched.marker() == f"{LINE}\n"


@pytest.mark.parametrize("watched", [config_of(mode="STRICT")], indirect=True)
def test_a_finding_of_a_strict_config_is_an_error(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """In mode STRICT an alarm is an error, which ends nothing."""
    watched.overlaps()
    watched.run(2)
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


@pytest.mark.parametrize(
    ("watched", "seconds"), [(config_of(readings=1), 0), (config_of(readings=5), 4)], indirect=["watched"]
)
def test_the_number_of_readings(watched: Watched, seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    """`watch.readings` bad readings in a row are an alarm, and one less is none."""
    watched.overlaps()
    if seconds:
        watched.run(seconds - 0.1)
        assert not caplog.records
    watched.run(0.2)
    assert caplog.messages[0] == LINE


def test_the_alarm_ends_at_once(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """The first good reading is told, and the marker follows."""
    watched.overlaps()
    watched.run(2)
    caplog.clear()
    watched.mended()
    watched.run(0.1)
    assert caplog.messages == ["the expected addresses leave as they should again: 172.16.0.0/16 leaves by eth0"]
    assert watched.marker() == "ok"


def test_a_flap_is_no_alarm(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """A finding that ends within the window is not told, however often it comes."""
    for _ in range(20):
        watched.overlaps()
        watched.run(0.6)
        watched.mended()
        watched.run(0.6)
    assert not caplog.records


def test_a_changed_finding_is_told_once(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """During an alarm, other findings are told when they last, and the same ones are not told again."""
    watched.overlaps()
    watched.run(130)
    assert [message for message in caplog.messages if "overlap" in message] == [LINE]
    caplog.clear()
    watched.node.insert_route(Route.parse("172.16.9.0/24", dev="ib0", protocol=16))
    watched.run(130)
    lines = [message for message in caplog.messages if ": overlap" in message]
    assert lines == [LINE, LINE.replace("172.16.4.", "172.16.9.")]
    assert watched.marker() == "".join(f"{line}\n" for line in lines)


def test_an_event_elsewhere_wakes_nothing(watched: Watched) -> None:
    """A route without expected addresses lets the keeper do nothing until the next interval."""
    before = watched.acts
    for number in range(50):
        watched.node.insert_route(Route.parse(f"10.{number}.0.0/16", dev="ib0", protocol=16))
        watched.run(0.1)
    assert watched.acts == before


def test_lost_events(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """After a loss the node is read, and the finding whose event was lost is told."""
    watched.host.events.most = 0
    watched.overlaps()
    watched.run(2)
    assert caplog.messages[0] == LINE


def test_a_model_that_missed_a_change(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """A change without an event is an error at the next interval, and the kernel's answer counts from then on."""
    watched.node.fib = watched.node.fib.changed([])
    listeners, watched.host.events._listeners = watched.host.events._listeners, []
    watched.overlaps()
    watched.host.events._listeners = listeners
    watched.run(62)
    assert caplog.messages[0].startswith(
        "the model of the routing differs from the kernel, which counts: routes none, read"
    )
    assert caplog.messages[1] == LINE
    caplog.clear()
    watched.mended()
    watched.run(120)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_carrier_that_is_announced_late(
    watched: Watched, caplog: pytest.LogCaptureFixture, *, is_announced: bool
) -> None:
    """The kernel may announce a carrier a second after it shows it; only one that it never announces is an error."""
    gone = watched.node.fib.devices["ib0"]._replace(carrier=False)
    watched.node.fib = with_device(watched.node.fib, gone)
    watched.run(60.5)
    assert not caplog.records
    if is_announced:
        watched.host.events.announce(DeviceEvent("set", gone._replace(addresses=())))
    watched.run(3)
    assert [message.partition(":")[0] for message in caplog.messages] == (
        [] if is_announced else ["the model of the routing differs from the kernel, which counts"]
    )


def test_a_carrier_that_flaps(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """While the kernel announces changes of devices, a carrier that it has not announced yet is no error."""
    gone = watched.node.fib.devices["ib0"]._replace(carrier=False)
    watched.node.fib = with_device(watched.node.fib, gone)
    watched.run(60.5)
    for _ in range(5):
        watched.host.events.announce(DeviceEvent("set", watched.node.fib.devices["eth0"]._replace(addresses=())))
        watched.run(1)
    assert not caplog.records
    watched.run(5)
    assert len(caplog.records) == 1


def test_events_from_before_the_reading(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """Events that are heard after a later reading end in what that shows, in a place of several routes, too."""
    routes = [
        Route.parse("172.16.4.0/24", gateway=f"10.224.0.{number}", dev="eth0", protocol=16) for number in range(1, 5)
    ]
    watched.run(59.8)
    for route, verb in zip(routes, ("add", "append", "replace", "append"), strict=True):
        watched.node.insert_route(route, verb=verb)
    watched.node.delete_route(routes[2])
    watched.clock.advance(1)
    watched.run(200)
    assert not caplog.records
    assert watched.keeper._view.fib is not None
    assert watched.keeper._view.fib.routes() == watched.node.routes()


def test_many_routes(watched: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit, the model has only the routes that can decide an expected address, and finds the same."""
    monkeypatch.setattr("hostrouting.watch.view.MOST_ROUTES", 50)
    for number in range(100):
        watched.node.insert_route(Route.parse(f"9.{number}.0.0/16", dev="ib0", protocol=16))
    watched.run(70)
    assert watched.keeper._view.fib is not None
    assert len(watched.keeper._view.fib.routes()) < 20
    watched.overlaps()
    watched.run(130)
    assert next(message for message in caplog.messages if "172.16" in message) == LINE
    watched.mended()
    for number in range(100):
        watched.node.delete_route(Route.parse(f"9.{number}.0.0/16", dev="ib0", protocol=16))
    watched.run(130)
    assert watched.keeper._view.fib.routes() == watched.node.routes()
    assert not [message for message in caplog.messages if "model" in message]


@pytest.mark.parametrize("watched", [None], indirect=True)
def test_a_device_loses_its_carrier(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """The way out without carrier for two seconds is an alarm, and its end."""
    watched.node.set_up("eth0", up=False)
    watched.run(3)
    assert caplog.records
    caplog.clear()
    watched.node.set_up("eth0")
    watched.node.add_route("default", gateway="10.224.0.1", dev="eth0")
    watched.run(0.1)
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    watched.run(130)
    assert len(caplog.records) == 1


def test_rules_and_unknown_decisions(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """A rule that takes expected addresses away is an alarm, also where the model does not know its selector."""
    watched.node.insert_route(Route.parse("172.16.0.0/16", dev="ib0", protocol=16, table=100))
    watched.run(2)
    assert not caplog.records
    watched.node.add_rule(Rule(100, table=100))
    watched.run(2)
    assert caplog.messages[0].startswith("172.16.0.0/16: overlap 172.16.0.0-172.16.255.255 by ib0")


def test_the_marker_of_another_run(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """A marker that another run wrote during a flap is put right with the next reading, without a line of an alarm."""
    watched.overlaps()
    watched.run(0.1)
    watched.host.files.write(MARKER_DETECTED, b"by an apply\n", mode=0o644)
    watched.host.files.remove(MARKER_OK)
    watched.mended()
    watched.run(0.1)
    assert watched.marker() == "ok"
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_an_alarm_without_a_marker(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """Where its marker cannot be written, an alarm is told all the same, once, and no marker says that all is well."""
    watched.host.files.tree.read_only.add(MARKER_DETECTED)
    watched.overlaps()
    for _ in range(3):
        with pytest.raises(HostFileError, match=MARKER_DETECTED):
            watched.run(10)
    assert [message for message in caplog.messages if ": overlap" in message] == [LINE]
    assert not watched.host.files.exists(MARKER_OK)
    watched.host.files.tree.read_only.clear()
    caplog.clear()
    watched.run(0.1)
    assert watched.marker() == f"{LINE}\n"
    assert not caplog.records


def test_the_config_of_an_apply_counts(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """The alarm is made for the config in force, which is read under the run lock: another one begins anew."""
    watched.overlaps()
    watched.run(0.5)
    other = HostRoutingConfig.from_mapping({"routeOverlap": {"expectedCidrs": ["172.17.0.0/16"]}, "gates": []})
    execute(Configure(other, host=watched.host))
    caplog.clear()
    watched.run(70)
    assert watched.marker() == "ok"
    assert not caplog.records
    execute(Reset(other, host=watched.host))
    watched.node.insert_route(Route.parse("172.17.4.0/24", dev="ib0", protocol=16))
    watched.run(3)
    assert watched.installed.is_reset
    assert not watched.host.files.exists(MARKER_DETECTED)


def test_without_expected_cidrs_nothing_is_kept() -> None:
    """A config without expected CIDRs costs no reading, no model and no marker."""
    watched = Watched(HostRoutingConfig())
    watched.run(130)
    watched.overlaps()
    watched.run(130)
    assert watched.acts <= 5
    assert watched.keeper._view.fib is None
    assert not watched.host.files.exists(MARKER_OK)


def test_an_announced_fabric(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """A pool that announces a network of expected addresses is an alarm within two readings of the next interval."""
    mac = "00155D33FF1D"
    watched.run(1)
    watched.host.files.write(CONFIGURATION, SWITCHED_ON, mode=0o644)
    watched.host.files.write("/var/lib/waagent/SharedConfig.xml", SHARED, mode=0o644)
    watched.host.files.write(POOL, record(b"IPoIB_Data", f"NUMPAIRS:1|{mac}:172.16.1.4".encode()), mode=0o644)
    watched.run(61)
    assert [vars(record)["kind"] for record in caplog.records if "cidr" in vars(record)] == ["announced"]
    # An event is answered on the model as it will be.
    caplog.clear()
    watched.node.insert_route(Route.parse("172.16.0.0/17", gateway="10.224.0.1", dev="eth0", protocol=16))
    watched.run(3)
    lines = [message.split(" (")[0] for message in caplog.messages if ": announced 172" in message]
    assert lines == [
        "172.16.0.0/16: announced 172.16.1.4-172.16.1.4",
        "172.16.0.0/16: announced 172.16.128.0-172.16.255.255",
    ]
