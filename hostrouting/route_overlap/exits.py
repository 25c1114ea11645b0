"""A moved exit: another default route decides than when the last apply found the node right."""

from __future__ import annotations

from typing import Any

import attrs

from hostrouting.base.commands import FIX, quoted
from hostrouting.base.findings import NodeFinding
from hostrouting.base.values import LightValue
from hostrouting.net.addresses import FAMILY_NAMES, IPV6
from hostrouting.net.routes import PROTOCOL_NAMES, ObservedRoute


@attrs.frozen(kw_only=True)
class MovedExit(LightValue):
    """Another default route decides than when the last apply found the node right.

    The device `before` still works: it is up, with a carrier, and the gateway of its default route
    is not FAILED. Packets should leave by the devices `after` since then, by the `route`.
    """

    family: int
    before: str
    after: tuple[str, ...]
    route: ObservedRoute | None = None
    #: How its owner gives it a higher metric; "" if unknown.
    owner: str = ""

    @property
    def subject(self) -> str:
        """Whose exit it is."""
        return f"the {FAMILY_NAMES[self.family]} exit"

    @property
    def protocol(self) -> str:
        """The protocol of the route, by which its owner may be found."""
        number = self.route.protocol if self.route else 0
        return PROTOCOL_NAMES.get(number, str(number))

    @property
    def reason(self) -> str:
        """The move as a sentence."""
        moved = f"has moved from {self.before}, which still works, to {' and '.join(self.after)}"
        by = f", by '{self.route}' of protocol {self.protocol}" if self.route else ""
        return f"{moved}{by}"

    @property
    def deletion(self) -> str:
        """The command that deletes the route; "" without one."""
        if self.route is None:
            return ""
        words = ["ip", *(["-6"] if self.route.family == IPV6 else []), "route", "del"]
        return quoted(*words, *str(self.route.to_route()).split())

    @property
    def step(self) -> str:
        """The two commands to choose from, and the third way."""
        after = ", ".join(f'"{dev}"' for dev in self.after)
        lasting = self.owner or "give it a higher metric"
        delete = f"{self.deletion} (or {lasting}); " if self.deletion else ""
        return (
            f"run one of these: {delete}{FIX} (which names {self.before} in expectedDevs); or, if "
            f'the move is meant, add "expectedDevs": [{after}] to routeOverlap'
        )

    @property
    def note(self) -> NodeFinding:
        """The warning of `check`."""
        return NodeFinding("moved-exit", self.subject, self.reason, "warning", self.step)

    def to_mapping(self) -> dict[str, Any]:
        """Return the move for JSON."""
        return {
            "family": FAMILY_NAMES[self.family],
            "from": self.before,
            "to": [*self.after],
            "route": str(self.route) if self.route else None,
            "protocol": self.protocol,
        }
