"""Routes that a test writes as `ip route` shows them."""

from __future__ import annotations

from typing import Any, Final

from hostrouting.net.routes import (
    KINDS,
    PROTOCOL_NAMES,
    SCOPE_NAMES,
    TABLE_NAMES,
    Route,
)

_NUMBERS: Final[dict[str, dict[str, int]]] = {
    "proto": {name: number for number, name in PROTOCOL_NAMES.items()},
    "table": {name: number for number, name in TABLE_NAMES.items()},
    "scope": {name: number for number, name in SCOPE_NAMES.items()},
    "metric": {},
}
_FIELDS: Final = {
    "via": "gateway",
    "dev": "dev",
    "src": "source",
    "proto": "protocol",
    "table": "table",
    "scope": "scope",
    "metric": "metric",
}
_EXAMPLE: Final = "default via 10.224.0.1 dev eth0"


def route(text: str, **fields: Any) -> Route:
    """Read a route as `ip route` shows it, with further fields.

    As for `ip`, a route is of the protocol boot, and one of IPv6 has the metric 1024, unless the
    text has another.

    >>> route("default via 10.224.0.1 dev eth0")
    <Route default via 10.224.0.1 dev eth0>
    >>> route("default via 10.224.0.1 eth0")
    Traceback (most recent call last):
    ValueError: cannot read the route 'default via 10.224.0.1 eth0': 'eth0' is not one of via, ...
    """
    if not isinstance(text, str):
        raise TypeError(
            f"a route is text such as {_EXAMPLE!r} (got {text!r}); insert_route takes a Route"
        )
    try:
        return _parsed(text.split(), ":" in text, fields)
    except ValueError as error:
        step = f"write it as {_EXAMPLE!r}; insert_route takes any other route"
        raise ValueError(f"cannot read the route {text!r}: {error}; {step}") from error


def _parsed(words: list[str], is_ipv6: bool, fields: dict[str, Any]) -> Route:
    kind = words.pop(0) if words and words[0] in KINDS else "unicast"
    if not words:
        raise ValueError("it has no destination")
    destination, *rest = words
    given = _given(rest)
    if destination == "default":
        destination = "::/0" if is_ipv6 else "0.0.0.0/0"
    elif "/" not in destination:
        destination += "/128" if is_ipv6 else "/32"
    metric = 1024 if is_ipv6 else 0
    usual: dict[str, Any] = {"kind": kind, "protocol": _NUMBERS["proto"]["boot"], "metric": metric}
    return Route.parse(destination, **(usual | given | fields))


def _given(words: list[str]) -> dict[str, Any]:
    """Return the fields of a route by pairs of words."""
    given: dict[str, Any] = {}
    # `via inet6 fe80::1` is a router of the other family.
    pairs = iter(word for word in words if word != "inet6")
    for word in pairs:
        if word not in _FIELDS:
            raise ValueError(f"{word!r} is not one of {', '.join(_FIELDS)}")
        value = next(pairs, None)
        if value is None:
            raise ValueError(f"{word!r} has no value")
        given[_FIELDS[word]] = _number(word, value) if word in _NUMBERS else value
    return given


def _number(word: str, value: str) -> int:
    number = _NUMBERS[word].get(value)
    if number is None and not value.isdecimal():
        raise ValueError(f"{value!r} is not a {word}")
    return int(value) if number is None else number
