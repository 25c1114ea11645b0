"""The changes of a network namespace, as the kernel announces them.

Each has a `verb`. Devices and addresses are `set` (new, changed or as before) or `remove`d; rules
are `add`ed or `remove`d; for routes see `RouteEvent`. Nexthop objects and settings have changed in
some way.

The kernel does not announce every change: see `NetworkEvents` of `hostrouting.host.ports`.
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

    The verb of a new route gives its position: `add` alone in its place, `prepend` before the
    routes there, `append` after them, and `replace` instead of the first of them.

    For IPv6 it is less exact: `append` may be a further next hop of a multipath route, which the
    event shows as a whole, `replace` may be instead of any, and `remove` may name one removed next
    hop. Read the routes of the place.
    """

    verb: Literal["add", "prepend", "append", "replace", "remove"]
    #: If a nexthop object changes, the kernel announces each of its routes as `replace`, wherever
    #: the route stands.
    route: ObservedRoute
    #: The netlink port of the program that asked for the change: mostly the id of its process. 0 is
    #: the kernel, or unknown.
    sender: int = 0


class DeviceEvent(NamedTuple):
    """A device that was added, changed, renamed (its index stays) or removed."""

    verb: Literal["set", "remove"]
    #: Without neighbours, and without addresses, which have separate events.
    device: Device
    #: The name before, if this event is a rename.
    former: str = ""


class AddressEvent(NamedTuple):
    """An address that was added, renewed or removed, or whose device was renamed."""

    verb: Literal["set", "remove"]
    dev: str
    address: DeviceAddress


class RuleEvent(NamedTuple):
    """A policy rule that was added (as the last of its priority) or removed."""

    verb: Literal["add", "remove"]
    rule: Rule


class NexthopEvent(NamedTuple):
    """A nexthop object that was added, changed or removed: its routes may change without events."""

    verb: Literal["set", "remove"]
    nexthop_id: int


class SettingEvent(NamedTuple):
    """A setting of a device, or of all, that changed: its routes may live or die without events."""

    verb: Literal["set"]
    name: Literal["ignore_routes_with_linkdown"]


NetworkEvent: TypeAlias = (
    RouteEvent | DeviceEvent | AddressEvent | RuleEvent | NexthopEvent | SettingEvent
)


class NothingChanges:
    """The changes of a model, which is a value."""

    def take(self, names: Mapping[int, str]) -> list[NetworkEvent]:  # noqa: ARG002
        """Return no events."""
        return []
