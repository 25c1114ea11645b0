"""The machine -> a snapshot of all that the sweep decides by; what was found, and what could not be seen, is said."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.exceptions import PermissionDeniedError
from hostrouting.stale_cni.state import read_endpoints
from hostrouting.stale_cni.sweep import Snapshot, judge, pod_devices, questions, subject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.config import StaleCNIConfig
    from hostrouting.host import Device, EbtablesReading, Host, Station
    from hostrouting.stale_cni.sweep import Verdict
    from phases import Context

__all__ = ["Observer", "Reading", "fields_of", "observe", "wrong_bridge"]

#: More of what is not understood is not read by anybody.
_MOST_SHOWN: Final = 10


class Reading(NamedTuple):
    """One look at the machine, judged."""

    verdicts: tuple[Verdict, ...]
    #: What could not be seen of ebtables, and the text for the backup.
    ebtables: EbtablesReading
    #: For lack of privilege nobody was asked: whatever may be of a silent pod is `unknown`.
    may_not_ask: bool = False
    #: Devices of pods on which nobody hears us ask, each with the reason.
    deaf: tuple[str, ...] = ()


def observe(ctx: Context, host: Host) -> tuple[Snapshot, EbtablesReading]:
    """All but what azure-vnet itself says, and who answers when asked."""
    # What may be stale first, and then who is alive: of a pod that comes in between nothing was seen.
    reading = host.ebtables.read(ctx)
    ipv4_routes = tuple(host.routes.routes())
    ipv6_routes = tuple(host.link_layer.routes())
    neighbours = tuple(host.link_layer.neighbours())
    ctx.check()
    devices = tuple(host.link_layer.devices())
    snapshot = Snapshot(
        rules=reading.rules,
        neighbours=neighbours,
        ipv4_routes=ipv4_routes,
        ipv6_routes=ipv6_routes,
        devices=devices,
        stations=_stations(host, devices),
    )
    return snapshot, reading


def _stations(host: Host, devices: Iterable[Device]) -> tuple[Station, ...]:
    """What every bridge has learned: a pod is alive behind whichever has heard it."""
    bridges = (device.name for device in devices if device.kind == "bridge")
    return tuple(station for bridge in bridges for station in host.link_layer.stations(bridge))


def wrong_bridge(host: Host, bridge: str) -> str | None:
    """Why `staleCni.bridge` cannot be the bridge of this node's pods; None if it can."""
    devices = {device.name: device for device in host.link_layer.devices()}
    if bridge in devices:
        return None
    for pod in pod_devices(Snapshot(devices=tuple(devices.values()))):
        master = devices.get(pod.master or "")
        if master is not None and master.kind == "bridge":
            return f"there is no device {bridge}, but {pod.name} is a port of {master.name}"
    return None


class Observer:
    """Reads as often as it is asked to; what every reading finds again is said after the first one only."""

    def __init__(self, section: StaleCNIConfig, logger: logging.Logger) -> None:
        self._section = section
        self._logger = logger
        self._said: set[str] = set()
        self._shown = 0

    def read(self, ctx: Context, host: Host, *, may_guess: bool = False) -> Reading:
        """One reading. `may_guess`: without the privilege to ask on the link, say so and go on."""
        ctx.check()
        snapshot, ebtables = observe(ctx, host)
        # After all else, for the same reason as there.
        snapshot = attrs.evolve(snapshot, endpoints=read_endpoints(host.files))
        verdicts = self._judged(snapshot)
        may_not_ask = False
        # A pod that has been silent for long is known to nobody, and answers all the same.
        if asked := questions(snapshot, verdicts, bridge=self._section.bridge):
            try:
                answered = host.link_layer.answering(ctx, asked)
                # From its answer a bridge learns which hardware address a pod has.
                stations = _stations(host, snapshot.devices)
                snapshot = attrs.evolve(snapshot, answered=answered, stations=stations)
            except PermissionDeniedError as error:
                if not may_guess:
                    raise
                self.say_once(
                    logging.WARNING, f"{error}; so pods that have been silent for long cannot be told from those gone"
                )
                may_not_ask = True
                unasked = frozenset(device.name for device in pod_devices(snapshot))
                snapshot = attrs.evolve(snapshot, unasked=unasked)
            verdicts = self._judged(snapshot)
        self._tell(verdicts, ebtables)
        return Reading(verdicts, ebtables, may_not_ask, _deaf(snapshot))

    def say_once(self, level: int, line: str, **fields: object) -> None:
        """Log a line that has not been logged before."""
        if line not in self._said:
            self._said.add(line)
            self._logger.log(level, "%s", line, extra=fields)

    def _judged(self, snapshot: Snapshot) -> tuple[Verdict, ...]:
        return judge(snapshot, pod_cidrs=self._section.pod_cidrs, bridge=self._section.bridge)

    def _tell(self, verdicts: Iterable[Verdict], ebtables: EbtablesReading) -> None:
        """Say what was not seen, and what was seen but not understood."""
        for note in ebtables.notes:
            # That one of the two backends is missing is how most nodes are.
            level = logging.INFO if ebtables.texts else logging.WARNING
            self.say_once(level, f"ebtables rules may go unseen: {note}", note=note)
        more = 0
        for verdict in verdicts:
            line = f"{subject(verdict.object)} is left alone: {verdict.reason}"
            if verdict.kind == "stale" or line in self._said:
                continue
            if verdict.kind != "unknown":
                # What is in use is what most nodes have; why it is taken to be, only some want to know.
                level = logging.DEBUG
            elif self._shown < _MOST_SHOWN:
                self._shown += 1
                level = logging.WARNING
            else:
                more += 1
                level = logging.DEBUG
            self.say_once(level, line, **fields_of(verdict))
        if more:
            self._logger.warning("and %d more are left alone (shown by -v)", more, extra={"unknown": more})


def fields_of(verdict: Verdict) -> dict[str, object]:
    """A verdict for who reads the log by machine."""
    object_, address, reason = subject(verdict.object), verdict.address, verdict.reason
    return {"object": object_, "address": address, "kind": verdict.kind, "reason": reason}


def _deaf(snapshot: Snapshot) -> tuple[str, ...]:
    """The pods' devices on which nobody hears us ask, each with the reason."""
    reasons = ((device.name, _why_deaf(device)) for device in pod_devices(snapshot))
    return tuple(f"{name} {reason}" for name, reason in reasons if reason is not None)


def _why_deaf(device: Device) -> str | None:
    if not device.up:
        return "is down"
    return None if device.carrier else "has no carrier"
