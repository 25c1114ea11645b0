"""A model that follows a node: the events of the kernel change it, and it names the parts that they changed."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import attrs

from hostrouting.fib import events
from hostrouting.fib.buckets import after
from hostrouting.fib.events import with_state
from hostrouting.fib.rules import Policy
from hostrouting.fib.tables import Tables, key_of
from hostrouting.net.events import AddressEvent, DeviceEvent, NexthopEvent, RouteEvent, RuleEvent, SettingEvent
from hostrouting.net.links import vrf_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hostrouting.fib.model import Fib
    from hostrouting.fib.tables import Bucket, Key
    from hostrouting.net.events import NetworkEvent
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute

__all__ = ["Effect", "LiveFib", "differences"]


@attrs.frozen
class Effect:
    """The parts of a model that events changed."""

    #: The tables' networks.
    keys: frozenset[Key] = frozenset()
    #: True if a device or an address changed.
    devices: bool = False
    #: True if a policy rule changed.
    rules: bool = False
    #: Why the model does not know the result, so that the node must be read again; empty if it does.
    unknown: str = ""


class LiveFib:
    """The routing of one node, from one reading of it, and kept current by all events since then, in their order.

    Neighbours are not followed, since no answer depends on them.

    >>> from hostrouting.fib import Fib
    >>> from hostrouting.net.routes import ObservedRoute
    >>> live = LiveFib(Fib.of([], []))
    >>> effect = live.apply([RouteEvent("add", ObservedRoute.parse("172.16.0.0/16", "ib0"))])
    >>> sorted(effect.keys), [str(route) for route in live.fib.routes()]
    ([(254, 2886729728, 16)], ['172.16.0.0/16 dev ib0 proto 0'])
    """

    def __init__(self, fib: Fib, *, keeps: Callable[[ObservedRoute], bool] | None = None) -> None:
        #: Only these routes are followed; None for all.
        self._keeps = keeps
        if keeps is not None:
            fib = attrs.evolve(fib, tables=Tables.of(filter(keeps, fib.tables)))
        #: The node as it is now.
        self.fib: Fib = fib
        #: The buckets that the events under way have changed.
        self._buckets: dict[Key, Bucket] = {}
        self._unknown = ""
        #: The nexthop objects that routes have used so far; None until one is announced.
        self._objects: set[int] | None = None

    @property
    def is_part(self) -> bool:
        """True if only some routes are followed."""
        return self._keeps is not None

    def apply(self, announced: Iterable[NetworkEvent]) -> Effect:
        """Make the changes of some events, with those that the kernel announces to no one."""
        keys: set[Key] = set()
        devices = rules = False
        self._unknown = ""
        for event in announced:
            if isinstance(event, RouteEvent):
                self._route(event)
                continue
            keys |= self._flush()
            before = self.fib.tables
            if isinstance(event, RuleEvent):
                rules = True
                self._rule(event)
            elif isinstance(event, DeviceEvent):
                devices = True
                self._device(event)
            elif isinstance(event, AddressEvent):
                devices = True
                self._address(event)
            elif isinstance(event, NexthopEvent):
                self._nexthop(event)
            elif isinstance(event, SettingEvent):
                self._unknown = f"the setting {event.name} changed"
            changed = self.fib.tables.differing(before)
            self._doubt_objects(route for key in changed for route in before.bucket(key))
            keys |= changed
        keys |= self._flush()
        return Effect(frozenset(keys), devices, rules, self._unknown)

    def _flush(self) -> set[Key]:
        """Store the changed buckets, all at once, because each change copies those before it."""
        changed, self._buckets = self._buckets, {}
        if changed:
            self.fib = attrs.evolve(self.fib, tables=self.fib.tables.with_buckets(changed))
        return set(changed)

    def _route(self, event: RouteEvent) -> None:
        route = event.route
        if self._keeps is not None and not self._keeps(route):
            return
        key = key_of(route)
        bucket = self._buckets[key] if key in self._buckets else self.fib.tables.bucket(key)
        self._buckets[key] = after(bucket, event.verb, route)
        if self._objects is not None and route.nexthop_id:
            self._objects.add(route.nexthop_id)

    def _nexthop(self, event: NexthopEvent) -> None:
        if self._objects is None:
            self._objects = {route.nexthop_id for route in self.fib.tables}
        if event.nexthop_id in self._objects:
            self._unknown = f"the nexthop object {event.nexthop_id} changed"

    def _doubt_objects(self, changed: Iterable[ObservedRoute]) -> None:
        """Nexthop objects go with a device, and stay with an address, otherwise than the next hops of a route."""
        if any(route.nexthop_id for route in changed):
            self._unknown = "the next hops of a route are nexthop objects, which follow other rules"

    def _device(self, event: DeviceEvent) -> None:
        new = event.device
        known = next((device for device in self.fib.devices.values() if device.ifindex == new.ifindex), None)
        if known is not None:
            self._doubt_vrf(known.name)
        if event.verb == "remove":
            if known is not None:
                self.fib = events.device_removed(self.fib, known.name)
            return
        if known is None:
            self._set_device(new)
            self._doubt_vrf(new.name)
            return
        if known.name != new.name:
            self.fib = events.device_renamed(self.fib, known.name, new.name)
        if known.up and not new.up:
            self.fib = events.device_down(self.fib, new.name)
        elif new.up and not known.up:
            self.fib = events.device_up(self.fib, new.name, carrier=new.carrier)
        now = self.fib.devices[new.name]
        self._set_device(new._replace(addresses=now.addresses, neighbours=now.neighbours))
        self._doubt_vrf(new.name)
        if known.up and new.up and known.carrier != new.carrier and self.fib.tables.use(new.name):
            # The kernel changes the state of the routes in silence, and whether they still decide, its settings say.
            self._unknown = f"the carrier of {new.name} changed"
        elif new.up and _announced_part(known) == _announced_part(new._replace(addresses=known.addresses)):
            self._settle_state(new)

    def _doubt_vrf(self, name: str) -> None:
        """The routes that the kernel removes in silence, with an address of a VRF, are not those of main."""
        vrf = vrf_of(name, self.fib.devices)
        if vrf is not None:
            self._unknown = f"the model does not follow the devices of VRFs, such as {name} of {vrf}"

    def _settle_state(self, device: Device) -> None:
        """Notice a carrier that a reading showed before the kernel announced it, and changed the device's routes."""
        if any(with_state(route, device) is not route for route in self.fib.tables if route.dev == device.name):
            self._unknown = f"the carrier of {device.name} changed"

    def _set_device(self, device: Device) -> None:
        """Store a device, in the order of the indexes."""
        devices = sorted({**self.fib.devices, device.name: device}.values(), key=attrgetter("ifindex"))
        self.fib = attrs.evolve(self.fib, devices={one.name: one for one in devices})

    def _address(self, event: AddressEvent) -> None:
        device = self.fib.devices.get(event.dev)
        if device is None:
            # It went before the reading.
            return
        self._doubt_vrf(event.dev)
        if event.verb == "set":
            self.fib = events.address_announced(self.fib, event.dev, event.address)
            if device.up and not device.carrier and self.fib.tables.use(event.dev):
                # Its next hops revive, or not, because there is no carrier: that is a setting.
                self._unknown = f"an address of {event.dev}, which has no carrier, changed"
        elif any(own[:3] == event.address[:3] for own in device.addresses):
            self.fib = events.address_withdrawn(self.fib, event.dev, event.address)

    def _rule(self, event: RuleEvent) -> None:
        rules = list(self.fib.policy.rules)
        if event.verb == "add":
            # The last of its priority: sorting keeps the order of the others.
            rules = sorted((*rules, event.rule), key=attrgetter("priority"))
        elif event.rule in rules:
            rules.remove(event.rule)
        self.fib = attrs.evolve(self.fib, policy=Policy(rules), merged=False)


def differences(model: Fib, reading: Fib) -> Iterator[str]:
    """Yield the differences between a reading of the node and the model that followed it, as text."""
    for key in sorted(model.tables.differing(reading.tables)):
        expected, found = ([*map(str, fib.tables.bucket(key))] for fib in (model, reading))
        yield f"routes {expected or 'none'}, read {found or 'none'}"
    if model.policy.rules != reading.policy.rules:
        expected, found = ([*map(str, fib.policy.rules)] for fib in (model, reading))
        yield f"rules {expected}, read {found}"
    for name in sorted({*model.devices, *reading.devices}):
        one, other = (_announced_part(fib.devices.get(name)) for fib in (model, reading))
        if one != other:
            yield f"device {one}, read {other}"


def _announced_part(device: Device | None) -> Device | None:
    """Return a device without that which the kernel does not announce: the group while it is down, and neighbours."""
    return device and device._replace(neighbours=(), group=device.group if device.up else 0)
