"""The changes of a network namespace that the kernel announces.

Each has a `verb`. Devices and addresses are `set` (new, changed or unchanged) or `remove`d; rules
are `add`ed or `remove`d; for routes see `RouteEvent`. For nexthop objects and settings, the event
says only that something changed.

The kernel does not announce every change: see `NetworkEvents` in `hostrouting.host.ports`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.routes import ObservedRoute
from hostrouting.net.rules import Rule


class RouteEvent(NamedTuple):
    """A route that was added or removed.

    >>> from hostrouting.net.routes import ObservedRoute
    >>> event = RouteEvent("append", ObservedRoute.parse("172.16.0.0/16", "ib0", protocol=2))
    >>> f"{event.verb}: {event.route}"
    'append: 172.16.0.0/16 dev ib0 proto kernel'

    The verb says where a new route is among those with the same key (see `route_key`): `add`ed as
    the only one, `prepend`ed, `append`ed, or a `replace`ment of the first one.

    For IPv6 it is less exact: `append` may stand for another next hop of a multipath route, which
    the event shows with all next hops, `replace` may replace any of them, and `remove` may name a
    single removed next hop. Read the routes with this key to be sure.
    """

    verb: Literal["add", "prepend", "append", "replace", "remove"]
    #: If a nexthop object changes, the kernel announces each of its routes as `replace`, whatever
    #: its position.
    route: ObservedRoute
    #: The netlink port of the program that requested the change, usually its process id. 0 means
    #: the kernel, or unknown.
    sender: int = 0


class DeviceEvent(NamedTuple):
    """A device that was added, changed, renamed (with the same index) or removed."""

    verb: Literal["set", "remove"]
    #: Without neighbours and addresses; addresses have their own events.
    device: Device
    #: The name before, if this event is a rename.
    former: str = ""


class AddressEvent(NamedTuple):
    """An address that was added, renewed or removed, or whose device was renamed."""

    verb: Literal["set", "remove"]
    dev: str
    address: DeviceAddress


class RuleEvent(NamedTuple):
    """A policy rule that was removed, or added as the last one of its priority."""

    verb: Literal["add", "remove"]
    rule: Rule


class NexthopEvent(NamedTuple):
    """A nexthop object that changed; its routes may have changed without events of their own."""

    verb: Literal["set", "remove"]
    nexthop_id: int


class SettingEvent(NamedTuple):
    """A changed setting of one or all devices; routes may have died or revived without events."""

    verb: Literal["set"]
    name: Literal["ignore_routes_with_linkdown"]


NetworkEvent: TypeAlias = (
    RouteEvent | DeviceEvent | AddressEvent | RuleEvent | NexthopEvent | SettingEvent
)


class NothingChanges:
    """The events of a model, which never changes."""

    def take(self, names: Mapping[int, str]) -> list[NetworkEvent]:  # noqa: ARG002
        """Return no events."""
        return []
