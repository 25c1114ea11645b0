"""The plan of a config's routes: what an apply would change on a node, by one reading of it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import attrs

from hostrouting.base.findings import AWAITED, REFUSED, NodeFinding, hindered
from hostrouting.net.routes import ObservedRoute, Place, Route, RouteChange, place
from hostrouting.static_routes.account import described
from hostrouting.static_routes.observed import read, resolved
from hostrouting.static_routes.reconcile import (
    Reconciliation,
    Resolution,
    Routes,
    Unresolved,
    reconcile,
)
from hostrouting.static_routes.refusals import (
    all_in_the_way,
    lack,
    no_device,
    why_merged,
    without_gateway,
)
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostrouting.config import StaticRoutesConfig
    from hostrouting.host.ports import RouteBackend
    from hostrouting.net.exits import Exits
    from hostrouting.net.links import Device


@attrs.frozen(eq=False, repr=False, slots=False)
class RoutePlan:
    """The changes that a config makes to the routes of a node, by one reading.

    A value that is missing counts as one that can be looked up later.
    """

    section: StaticRoutesConfig
    resolution: Resolution
    #: The changes, and their consequences for other routes.
    outcome: Reconciliation
    _observed: Routes
    _links: Sequence[Device]

    @classmethod
    def of(cls, section: StaticRoutesConfig, routing: RouteBackend, exits: Exits) -> RoutePlan:
        """Return the plan for a node as it is; `exits` are those of the config."""
        observed = read(routing, section.routes)
        resolution = resolved(section.routes, observed, routing, exits)
        undecided = {route.place for route, _ in resolution.missing}
        outcome = reconcile(resolution.routes, observed, undecided=undecided)
        return cls(section, resolution, outcome, observed, routing.links())

    @property
    def changes(self) -> list[RouteChange]:
        """The changes in their order."""
        return self.outcome.changes

    @property
    def is_empty(self) -> bool:
        """True if the node has the routes of the config, and nothing is left to change or say."""
        return not (self.changes or self.resolution.missing or self.outcome.merged)

    @cached_property
    def entries(self) -> list[Foreseen]:
        """The changes as entries of a report, with those that the kernel certainly refuses."""
        return foresee(self.outcome, self.resolution.missing, self._links, self._observed)

    @property
    def stuck(self) -> list[Foreseen]:
        """The entries of routes that are refused or incomplete."""
        return [each for each in self.entries if each.is_refused or each.is_incomplete]

    @property
    def accepted(self) -> StaticRoutesConfig:
        """The section without the routes that the kernel certainly refuses."""
        refused = {
            each.place for each in self.entries if each.is_refused and not each.is_incomplete
        }
        routes = tuple(route for route in self.section.routes if route.place not in refused)
        return attrs.evolve(self.section, routes=routes)

    def findings(self) -> Iterator[NodeFinding]:
        """Yield the findings of `check` about the routes."""
        return findings_of((each.entry for each in self.entries), self.outcome.connected)


class Foreseen(NamedTuple):
    """A planned change as an entry of a report, and the place of its route."""

    entry: Change
    place: Place
    #: True if the route waits for a default route.
    is_incomplete: bool = False

    @property
    def is_refused(self) -> bool:
        """True if the kernel certainly refuses it."""
        return self.entry.kind == REFUSED

    def __str__(self) -> str:
        return str(self.entry)


def foresee(
    outcome: Reconciliation,
    missing: Sequence[Unresolved],
    links: Sequence[Device],
    observed: Routes,
) -> list[Foreseen]:
    """Return the changes of a reconciliation and of missing routes, with the certain refusals."""
    devices = {link.name: link for link in links}
    no_gateway, in_the_way = without_gateway(outcome.changes, observed), all_in_the_way(outcome)
    planned = []
    for change in outcome.changes:
        entry, route = described(change, outcome.hidden), change.after
        reason = in_the_way.get(change)
        if reason is None and route and route.dev:
            device = devices.get(route.dev)
            if device is None:
                reason = no_device(route)
            elif needed := lack(device, route):
                waits = f"waits up to 30 s, since {device.name} {needed}"
                entry = entry._replace(detail=waits, kind=AWAITED)
            else:
                reason = no_gateway.get(change)
        if reason:
            entry = hindered(entry.action, entry.subject, reason)
        planned.append(Foreseen(entry, place(change.route)))
    unresolved = []
    for lacking, reason in missing:
        entry = hindered("+", str(lacking), no_device(lacking))
        if lacking.dev in {None, *devices}:
            waits = f"looked up when a default route is there: {reason}"
            entry = Change("+", str(lacking), waits, AWAITED)
        unresolved.append(Foreseen(entry, lacking.place, is_incomplete=True))
    merged = [
        Foreseen(hindered("-", str(route), why_merged(route)), place(route))
        for route in outcome.merged
    ]
    return [*unresolved, *merged, *planned]


def findings_of(
    changes: Iterable[Change], connected: Mapping[Route, ObservedRoute]
) -> Iterator[NodeFinding]:
    """Yield the findings of `check` on planned changes, and on routes before the kernel's own."""
    states = {
        "+": "is not in force",
        "-": "has protocol 142, but is not in this config",
        "~": "is another one now",
    }
    for change in changes:
        state = states[change.action]
        reason = f"{state} ({change.detail})" if change.detail else state
        apply: Literal["", "now", "later"] = "later" if change.kind == AWAITED else "now"
        if change.kind == REFUSED:
            apply = ""
        yield NodeFinding("lost-route", change.subject, reason, apply=apply, action=change.action)
    for route, own in connected.items():
        reason = (
            f"comes before the kernel's own route '{own}', which hostrouting would not hide if it "
            f"had to add its route now"
        )
        step = "configure narrower destinations"
        yield NodeFinding("hides-connected", str(route), reason, "warning", step)
