"""Each object that a sweep may take away, as JSON has it: in every detail that it takes to put it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostrouting.host.packets.ebtables_rules import EbtablesRule
from hostrouting.net.links import Neighbour
from hostrouting.net.mappings import (
    neighbour_from_mapping,
    neighbour_to_mapping,
    route_from_mapping,
    route_to_mapping,
)
from hostrouting.stale_cni.sweep import subject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostrouting.stale_cni.sweep import Leftover

__all__ = ["from_mapping", "to_mapping"]


def to_mapping(leftover: Leftover) -> dict[str, Any]:
    """What JSON can hold; `text` is for people: the object as its own tool shows it."""
    if isinstance(leftover, EbtablesRule):
        name, values = "ebtables rule", leftover._asdict()
    elif isinstance(leftover, Neighbour):
        name, values = "neighbour", neighbour_to_mapping(leftover)
    else:
        name, values = "route", route_to_mapping(leftover)
    return {"object": name, "text": subject(leftover), **values}


def from_mapping(mapping: Mapping[str, Any]) -> Leftover:
    """Read what `to_mapping` made; ValueError, KeyError or TypeError for anything else."""
    kind = mapping["object"]
    if kind == "neighbour":
        return neighbour_from_mapping(mapping)
    # Earlier releases had IPv6 routes under a name of their own.
    if kind in {"route", "ipv6 route"}:
        route = route_from_mapping(mapping)
        if route.nexthops:
            raise ValueError(f"'{route}' has several next hops, and a route to one pod has one")
        return route
    if kind != "ebtables rule":
        raise ValueError(f"{kind!r} is no kind of object")
    backend, chain, position, spec = (mapping[name] for name in ("backend", "chain", "position", "spec"))
    words = (chain, *spec)
    if type(position) is not int or not all(isinstance(word, str) and word.isprintable() for word in words):
        raise ValueError(f"{spec!r} is no rule")
    return EbtablesRule(backend=str(backend), chain=chain, position=position, spec=tuple(spec))
