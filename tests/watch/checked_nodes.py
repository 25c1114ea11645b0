"""A fake node with the check of a watch, by a clock that the test moves."""

import logging
from collections.abc import Callable
from math import inf
from typing import Any

from support.fabric_files import SWITCHED_ON, record
from support.kept_routes import CountedNode
from support.kernel import uplink

from hostrouting import HostRoutingConfig
from hostrouting.boot.reconciler import InstalledConfig
from hostrouting.exceptions import EventsLostError
from hostrouting.host import IPV4, ObservedRoute, Route
from hostrouting.net.events import DeviceEvent
from hostrouting.route_overlap.fabric import CONFIGURATION, POOL
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK
from hostrouting.testing import FakeHost
from hostrouting.watch.check import RoutingCheck
from phases import Context
from phases.testing import ManualClock

OVERLAP = Route.parse("172.16.4.0/24", dev="ib0", protocol=16)
LINE = "172.16.0.0/16: overlap 172.16.4.0-172.16.4.255 through ib0 (172.16.4.0/24 dev ib0 proto dhcp scope link)"


def config_of(**fields: Any) -> HostRoutingConfig:
    watch = {"enabled": True, "readings": fields.pop("readings", 2)}
    return HostRoutingConfig.from_mapping(
        {"routeOverlap": {"expectedCidrs": ["172.16.0.0/16"], **fields}, "watch": watch}
    )


class ReadBackend(CountedNode):
    """A node that may change after a reading."""

    #: Called once, after the routes were read.
    after_reading: Callable[[], object] = int

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        read, act, self.after_reading = super().routes(family), self.after_reading, int
        act()
        return read


class ProvenNode:
    """A fake node and its check, with the loop of `Watch` around it."""

    def __init__(self, config: HostRoutingConfig) -> None:
        self.node = ReadBackend()
        uplink(self.node, ib0="10.225.0.4/16")
        self.host = FakeHost(self.node)
        self.clock = ManualClock()
        self.ctx = Context(clock=self.clock)
        logger = logging.getLogger("watch")
        self.installed = InstalledConfig(config, self.host.files, logger)
        self.reconciler = RoutingCheck(self.host, logger, self.installed)
        self.due = -inf
        self.acts = 0
        self._listening = self.host.events.listen(self.ctx)
        self.listener = self._listening.__enter__()

    def run(self, seconds: float = 0) -> None:
        """Let the check take events and act for some seconds."""
        end = self.clock.monotonic() + seconds
        while True:
            now = self.clock.monotonic()
            if self.due <= now:
                self.acts += 1
                self.due = now + self.reconciler.act(self.ctx)
            try:
                self.due = min(self.due, now + self.reconciler.receive(self.listener.take()))
            except EventsLostError:
                self.reconciler.lose()
                self.due = now
            if self.due > now:
                self.clock.advance(min(self.due, end) - now)
                if self.due > end:
                    return

    def overlaps(self) -> None:
        self.node.insert_route(OVERLAP)

    def mended(self) -> None:
        self.node.delete_route(OVERLAP)

    def announces_fabric(self, *, wakes: bool = True) -> None:
        self.host.files.write(CONFIGURATION, SWITCHED_ON, mode=0o644)
        self.writes_pool(record(b"IPoIB_Data", b"NUMPAIRS:1|00155D33FF1D:172.16.1.4"), wakes=wakes)

    def writes_pool(self, content: bytes, *, wakes: bool = True) -> None:
        """Write the pool of the fabric, and let a device change: then the check looks at the date
        of the pool.
        """
        self.host.files.write(POOL, content, mode=0o644)
        # The date, which is part of a finding, stays the same to the minute.
        self.host.files.tree.change(POOL, modified=self.clock.monotonic() / 1000)
        if wakes:
            self.host.events.announce(
                DeviceEvent("set", self.node.fib.devices["ib0"]._replace(addresses=()))
            )

    def marker(self) -> str:
        exists = self.host.files.exists
        assert exists(MARKER_OK) != exists(MARKER_DETECTED)
        return (self.host.files.read(MARKER_DETECTED) or b"ok").decode()
