"""Find the route or rule that refuses a packet: the kernel answers such a lookup only with an errno."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from hostrouting.net.addresses import format_cidr, format_ipv4, netmask
from hostrouting.net.routes import DEVICELESS_KINDS, MAIN_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.net.routes import ObservedRoute
    from hostrouting.net.rules import Rule

__all__ = ["Blockers", "rule_text", "select_by_source"]

_REFUSING_ACTIONS: Final = frozenset({"blackhole", "unreachable", "prohibit"})
_TABLE_NAMES: Final = {253: "default", 254: "main", 255: "local"}


class Blockers:
    """The routes and rules of a node that refuse packets.

    Use it only for addresses that the kernel refuses. No table that the kernel tries before the refusing one has a
    route that forwards them, so the refusing routes are enough.
    """

    def __init__(self, routes: Iterable[ObservedRoute], rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._all_routes = routes
        #: True if an answer may depend on the source.
        self.by_source: bool = select_by_source(rules)

    @cached_property
    def _routes(self) -> dict[tuple[int, int, int], ObservedRoute]:
        """The refusing routes by table, prefix length and network: the first of each, with the lowest metric."""
        found: dict[tuple[int, int, int], ObservedRoute] = {}
        # By position, which is faster than by name: this line reads every route of a full table.
        for route in [route for route in self._all_routes if route[7] in DEVICELESS_KINDS]:
            if not route.tos:
                found.setdefault((route.table, route.prefix_length, route.network), route)
        return found

    def find(self, destination: int, source: int) -> ObservedRoute | Rule | None:
        """Return the route or rule that refuses this packet; None if no route matches it."""
        for rule in self._rules:
            selected = _selects(rule.destination, destination) and _selects(rule.source, source)
            if selected == rule.inverted or rule.other_selectors:
                continue
            if rule.action in _REFUSING_ACTIONS:
                return rule
            route = self._longest(rule.table, destination) if rule.action == "lookup" else None
            if route is not None and route.kind != "throw":
                return route
        return None

    def held_in_main(self, candidates: Iterable[ObservedRoute]) -> set[ObservedRoute]:
        """Return those in the main table: before the first rule, the kernel reports local ones as part of it, too."""
        by_network: dict[int, list[ObservedRoute]] = {}
        for candidate in candidates:
            by_network.setdefault(candidate.network, []).append(candidate)
        held = [route for route in self._all_routes if route[0] in by_network and route.table == MAIN_TABLE]
        return {one for route in held for one in by_network[route.network] if route.fulfils(one)}

    def _longest(self, table: int, address: int) -> ObservedRoute | None:
        for length in range(32, -1, -1):
            route = self._routes.get((table, length, address & netmask(length)))
            if route is not None:
                return route
        return None


def select_by_source(rules: Iterable[Rule]) -> bool:
    """Return True if any rule selects by the source of a packet."""
    return any(rule.source[1] for rule in rules)


def _selects(selector: tuple[int, int], address: int) -> bool:
    network, length = selector
    return not (network ^ address) & netmask(length)


def rule_text(rule: Rule) -> str:
    """Return a rule as `ip rule show` prints it; other selectors than addresses only by name.

    >>> from hostrouting.net.rules import Rule
    >>> rule_text(Rule(70, table=88, source=(0x0AE00004, 32), mark=1, mark_mask=1))
    '70: from 10.224.0.4 fwmark ... lookup 88'
    """
    words = [f"{rule.priority}:", *(["not"] if rule.inverted else []), "from", _selector(rule.source)]
    if rule.destination[1]:
        words += ["to", _selector(rule.destination)]
    for name in rule.other_selectors:
        words += [name, "..."]
    words.append(rule.action)
    if rule.action == "lookup":
        words.append(_TABLE_NAMES.get(rule.table, str(rule.table)))
    if rule.goto is not None:
        words.append(str(rule.goto))
    return " ".join(words)


def _selector(selector: tuple[int, int]) -> str:
    network, length = selector
    return "all" if length == 0 else format_ipv4(network) if length == 32 else format_cidr(network, length)
