"""Prove that every address of a CIDR leaves by a device that may carry it; the kernel answers.

A lookup returns the deciding route with all its next hops. A hash assigns each flow to one of them, so all must be
allowed. If a rule selects by source, the part is looked up again with the source that the kernel chooses after the
first answer. Both answers must be fine: the second one decides for a connected socket, the first one for a datagram
from an unconnected socket.

The proof is made under the assumption that an announced fabric is connected already: see `assumed`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from hostrouting.config import DEFAULT_ALLOWED_DEVS
from hostrouting.findings import NodeFinding
from hostrouting.net.addresses import Prefix, bounds, format_ipv4
from hostrouting.net.default_route import default_route, leads_out_by
from hostrouting.route_overlap.parts import AllowedDevices, DecidedPart, Node, adjacent, looked_up
from hostrouting.route_overlap.report import CidrReport, Finding, OverlapReport

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from hostrouting.host.ports import Routing
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute
    from hostrouting.route_overlap.assumed import Announcement, Assumed
    from hostrouting.route_overlap.fabric import Fabric
    from hostrouting.route_overlap.parts import Part
    from hostrouting.route_overlap.report import SuggestedRoute

__all__ = ["Findings", "allowed_now", "prove_egress", "without_default"]


def prove_egress(
    backend: Routing,
    cidrs: Sequence[str],
    *,
    allowed_devs: Sequence[str] = DEFAULT_ALLOWED_DEVS,
    expected_devs: Sequence[str] | None = None,
    fabric: Fabric | None = None,
) -> OverlapReport:
    """Prove for every address of `cidrs` that it leaves by an expected device, or by one that a pattern allows.

    `expected_devs=None` means the devices of the default route; without one, every CIDR is `no-route` as a whole. An
    address that will leave by an announced `fabric` is a finding, too. It changes nothing and needs no privilege. It
    raises `BackendError` if the kernel cannot be asked.
    """
    assumed = None
    if fabric and (fabric.addresses or fabric.networks):
        # Imported late: most nodes have no announced fabric.
        from hostrouting.route_overlap.assumed import Assumed

        assumed = Assumed(backend, fabric)
    node = Node(assumed or backend)
    allowed = allowed_now(node.backend.links(), node.routes, allowed_devs=allowed_devs, expected_devs=expected_devs)
    suggested: Sequence[Sequence[SuggestedRoute]] = [()] * len(cidrs)
    carriers: tuple[str, ...] = ()
    dead_ends: tuple[str, ...] = ()
    if allowed is None:
        findings: list[tuple[Finding, ...]] = [(without_default(cidr),) for cidr in cidrs]
    else:
        expected_devs = allowed.expected
        if assumed:
            # Those that it is asked about here carry nothing by that.
            assumed = assumed.with_last(AllowedDevices(expected_devs, allowed_devs).__getitem__)
            node = Node(assumed)
        bad = [_bad(parts, allowed, node) for parts in looked_up(node, cidrs, allowed=allowed)]
        carriers = allowed.carriers
        if not leads_out_by(node.routes, [dev for dev in expected_devs if allowed.leads_out(dev)]):
            dead_ends = tuple(dev for dev in expected_devs if dev in allowed.dead_ends)
        if any(bad):
            # Imported late: a node without findings does not need it.
            from hostrouting.route_overlap.suggest import suggestions

            suggested = suggestions(node, bad, allowed)
        found = Findings(allowed, assumed)
        findings = [found.of(parts) for parts in bad]
    return OverlapReport(
        expected_devs=tuple(expected_devs or ()),
        carriers=carriers,
        notes=tuple(_notes(backend.links(), set(carriers).difference(expected_devs or ()))),
        lacks_default=not leads_out_by(node.routes, expected_devs or ()),
        dead_ends=dead_ends,
        absent_devs=tuple(dev for dev in expected_devs or () if dev not in {link.name for link in backend.links()}),
        cidrs=tuple(
            CidrReport(cidr=str(Prefix.parse(cidr).masked), findings=found, suggested_routes=tuple(mending))
            for cidr, found, mending in zip(cidrs, findings, suggested, strict=True)
        ),
        not_covered=tuple(str(rule) for rule in node.rules if rule.other_selectors),
    )


def _notes(links: Sequence[Device], allowed: Container[str]) -> Iterator[NodeFinding]:
    """Yield a note on each device that carries expected addresses because it is allowed to, but leads nowhere."""
    masters = {link.master for link in links}
    for link in links:
        if link.name in allowed and not (link.carrier and (link.kind != "bridge" or link.name in masters)):
            trouble = "has no carrier"
            if link.kind == "bridge" and link.name not in masters:
                trouble = "is a bridge without ports, perhaps left behind by a CNI that was removed"
            reason = f"carries expected addresses, as it is allowed to, but {trouble}"
            yield NodeFinding("idle-device", link.name, reason, "note")


def allowed_now(
    links: Iterable[Device],
    routes: Iterable[ObservedRoute],
    *,
    allowed_devs: Sequence[str],
    expected_devs: Sequence[str] | None,
) -> AllowedDevices | None:
    """Return the devices that may carry expected traffic; None if neither a default route nor the config names one."""
    if expected_devs is None:
        default = default_route(routes)
        if default is None:
            return None
        expected_devs = default.devs
    # The agent sets the devices of an announced fabric up.
    without_carrier = [device.name for device in links if not (device.up and device.carrier)]
    return AllowedDevices(expected_devs, allowed_devs, without_carrier=without_carrier)


def without_default(cidr: str) -> Finding:
    """Return the finding of a whole CIDR on a node without a default route."""
    first, last = map(format_ipv4, bounds(cidr))
    return Finding(kind="no-route", first=first, last=last)


def _bad(parts: Iterable[Part], allowed: AllowedDevices, node: Node) -> list[DecidedPart]:
    """Return the parts with an answer that is not fine; of several such answers the one that a connection gets."""
    bad = []
    for part in parts:
        found = next((pair for pair in part.answers if not allowed.answer_is_fine(pair[0])), None)
        if found is not None:
            bad.append(DecidedPart(part, found[0], node.decider(*found)))
    return bad


@attrs.frozen
class Findings:
    """Makes findings of bad parts."""

    _allowed: AllowedDevices
    _assumed: Assumed | None = None

    def of(self, bad: Iterable[DecidedPart]) -> tuple[Finding, ...]:
        """Return the findings: adjacent parts with the same answer are one."""
        return tuple(self._finding(group, group[0]) for group in adjacent(bad, same=self._answer))

    def _answer(self, one: DecidedPart) -> tuple[object, ...]:
        return self._announcement(one) or one.answer[1:]

    def _announcement(self, one: DecidedPart) -> Announcement | None:
        return self._assumed.announcement(one.answer.route) if self._assumed and one.answer.route else None

    def _finding(self, group: Sequence[DecidedPart], one: DecidedPart) -> Finding:
        make = partial(Finding, first=format_ipv4(one.part.first), last=format_ipv4(group[-1].part.last))
        announced = self._announcement(one)
        if announced:
            own = [
                format_ipv4(other.part.first)
                for other in group
                if other.answer.route and other.answer.route.kind != "unicast"
            ]
            return make(kind="announced", dev=next(iter(announced.devs), None), own=tuple(own), **announced._asdict())
        refused = self._allowed.refused(one.answer.route) if one.answer.route else ()
        wrong = [dev for dev in refused if dev not in self._allowed.dead_ends]
        is_dead_end = one.kind == "overlap" and not wrong
        # Adjacent blackholes have one answer, but are different routes.
        texts = dict.fromkeys(str(other.decider) for other in group if other.decider)
        return make(
            kind="dead-end" if is_dead_end else one.kind,
            devs=one.devs,
            dev=next(iter(wrong or refused), None),
            route="; ".join(texts) or None,
        )
