"""The JSON form of routes and neighbours, for records on disk and for machine-readable output.

Addresses are text and payloads are hexadecimal. The readers refuse values that no kernel can have shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from hostrouting.net.addresses import Address, Prefix
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import Encapsulation, NextHop, ObservedRoute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostrouting.net.routes import Extra

T = TypeVar("T")
_KINDS: Final[dict[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    bool: "true or false",
}

#: The numbers of a route, each with the number of its bits.
_NUMBERS: Final = {
    "metric": 32,
    "table": 32,
    "protocol": 8,
    "scope": 8,
    "tos": 8,
    "flags": 32,
    "nexthop_id": 32,
    "expires": 32,
}


def route_to_mapping(route: ObservedRoute) -> dict[str, Any]:
    """Return every detail that it takes to restore the route; `route` is the text that `ip` prints, for people."""
    source = None if route.source is None else Address(route.family, route.source)
    return {
        "route": str(route),
        "destination": route.destination,
        "kind": route.kind,
        "gateway": _text(route.gateway),
        "dev": route.dev,
        "source": _text(source),
        "from": _text(route.from_prefix),
        **{name: getattr(route, name) for name in _NUMBERS},
        "encapsulation": _encapsulation_to_json(route.encapsulation),
        "nexthops": [
            {
                "gateway": _text(hop.gateway),
                "dev": hop.dev,
                "weight": hop.weight,
                "onlink": hop.onlink,
                "encapsulation": _encapsulation_to_json(hop.encapsulation),
                "extra": _extra_to_json(hop.extra),
            }
            for hop in route.nexthops
        ],
        "extra": _extra_to_json(route.extra),
    }


def route_from_mapping(mapping: Mapping[str, Any]) -> ObservedRoute:
    """Read a route that `route_to_mapping` wrote; raise ValueError, KeyError or TypeError.

    >>> route = ObservedRoute.parse("fd00:1::9/128", "azv1234", metric=1024, protocol=3)
    >>> route_from_mapping(route_to_mapping(route)) == route
    True
    """
    prefix, source, origin = Prefix.parse(mapping["destination"]), _address(mapping["source"]), mapping["from"]
    if source is not None and source.family != prefix.family:
        raise ValueError(f"{prefix} cannot send from {source}, which is of the other family")
    route = ObservedRoute(
        prefix.network,
        prefix.length,
        gateway=_address(mapping["gateway"]),
        dev=None if mapping["dev"] is None else typed(mapping["dev"], str),
        kind=typed(mapping["kind"], str),
        source=None if source is None else source.number,
        nexthops=tuple(map(_hop, mapping["nexthops"])),
        extra=extra(mapping["extra"]),
        encapsulation=encapsulation(mapping["encapsulation"]),
        family=prefix.family,
        from_prefix=None if origin is None else Prefix.parse(origin),
        **{name: number(name, mapping[name], bits) for name, bits in _NUMBERS.items()},
    )
    # It checks the rest.
    route.to_route()
    return route


def neighbour_from_mapping(mapping: Mapping[str, Any]) -> Neighbour:
    """Read the fields of a neighbour; raise ValueError, KeyError or TypeError."""
    return Neighbour(
        address=str(Address.parse(typed(mapping["address"], str))),
        dev=typed(mapping["dev"], str),
        mac=bytes.fromhex(typed(mapping["mac"], str).replace(":", "")).hex(":"),
        permanent=typed(mapping["permanent"], bool),
        flags=number("flags", mapping["flags"], 32),
        protocol=number("protocol", mapping["protocol"], 8),
    )


# --- values ----------------------------------------------------------------------------------------------------------


def _text(value: Address | Prefix | None) -> str | None:
    return None if value is None else str(value)


def typed(value: object, kind: type[T], name: str = "") -> T:
    """Return a value of a JSON document if it is of this type; raise ValueError, which names it, for any other.

    >>> typed([], dict, "routes[0]")
    Traceback (most recent call last):
    ValueError: routes[0] should be an object, not list
    """
    # Not isinstance: True is no number.
    if type(value) is not kind:
        raise ValueError(f"{name or repr(value)} should be {_KINDS[kind]}, not {type(value).__name__}")
    return value


def typed_or_null(value: object, kind: type[T], name: str) -> T:
    """Return a value of a JSON document as `typed` does, and an empty one for null."""
    return kind() if value is None else typed(value, kind, name)


def number(name: str, value: object, bits: int) -> Any:
    """Return a whole number of a JSON document that has at most so many bits."""
    if not 0 <= typed(value, int) < 1 << bits:
        raise ValueError(f"{name} {value} is not from 0 to {(1 << bits) - 1}")
    return value


def _address(text: str | None) -> Address | None:
    return None if text is None else Address.parse(typed(text, str))


def _hop(mapping: Mapping[str, Any]) -> NextHop:
    return NextHop(
        _address(mapping["gateway"]),
        typed(mapping["dev"], str),
        1 + number("weight - 1 =", mapping["weight"] - 1, 8),
        typed(mapping["onlink"], bool),
        extra(mapping["extra"]),
        encapsulation(mapping["encapsulation"]),
    )


def _encapsulation_to_json(encapsulation: Encapsulation | None) -> list[int | str] | None:
    return None if encapsulation is None else [encapsulation.kind, encapsulation.payload.hex()]


def encapsulation(value: tuple[int, str] | None) -> Encapsulation | None:
    """Read a tunnel header."""
    return None if value is None else Encapsulation(number("encapsulation", value[0], 16), bytes.fromhex(value[1]))


def _extra_to_json(extra: Extra) -> list[list[int | str]]:
    return [[number, payload.hex()] for number, payload in extra]


def extra(pairs: list[tuple[int, str]]) -> Extra:
    """Read attributes that are carried without being understood."""
    # The upper two bits of an attribute's number are flags, and four of its bytes are its head.
    found = tuple((number("attribute", key, 14), bytes.fromhex(payload)) for key, payload in pairs)
    for key, payload in found:
        number(f"length of attribute {key}", len(payload) + 4, 16)
    return found
