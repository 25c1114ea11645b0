"""Each object that a sweep may take away, as JSON has it: in every detail that it takes to put it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hostrouting.host.packets.ebtables_rules import EbtablesRule
from hostrouting.net.links import IPv6Route, Neighbour
from hostrouting.net.routes import ObservedRoute
from hostrouting.stale_cni.sweep import subject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hostrouting.stale_cni.sweep import Leftover

__all__ = ["from_mapping", "to_mapping"]


def to_mapping(leftover: Leftover) -> dict[str, Any]:
    """What JSON can hold; `text` is for people: the object as its own tool shows it."""
    values = leftover._asdict()
    if "extra" in values:
        values["extra"] = [[number, payload.hex()] for number, payload in values["extra"]]
    name = next(name for name, schema in _SCHEMAS.items() if isinstance(leftover, schema.kind))
    return {"object": name, "text": subject(leftover), **values}


def from_mapping(mapping: Mapping[str, Any]) -> Leftover:
    """Read what `to_mapping` made; ValueError, KeyError or TypeError for anything else."""
    schema = _SCHEMAS[mapping["object"]]
    return schema.kind(**{field: read(mapping[field]) for field, read in schema.fields.items()})


def _of_type(wanted: type) -> Callable[[Any], Any]:
    def read(value: object) -> object:
        # Not isinstance: True is no number.
        if type(value) is not wanted:
            raise TypeError(f"{value!r} where {wanted.__name__} belongs")
        return value

    return read


_text: Final = _of_type(str)
_number: Final = _of_type(int)
_flag: Final = _of_type(bool)


def _optional_text(value: object) -> Any:
    return None if value is None else _text(value)


def _optional_number(value: object) -> Any:
    return None if value is None else _number(value)


def _words(value: list[object]) -> tuple[Any, ...]:
    return tuple(map(_text, value))


def _extra(value: list[tuple[object, str]]) -> tuple[tuple[Any, bytes], ...]:
    return tuple((_number(number), bytes.fromhex(payload)) for number, payload in value)


def _no_hops(value: list[object]) -> tuple[()]:
    # Whatever leads to one pod has none.
    if value:
        raise ValueError(f"{value!r} where no next hops belong")
    return ()


class _Schema(NamedTuple):
    kind: type[Leftover]
    fields: Mapping[str, Callable[[Any], Any]]


_SCHEMAS: Final = {
    "ebtables rule": _Schema(EbtablesRule, {"backend": _text, "chain": _text, "position": _number, "spec": _words}),
    "neighbour": _Schema(
        Neighbour,
        {"address": _text, "dev": _text, "mac": _text, "permanent": _flag, "flags": _number, "protocol": _number},
    ),
    "route": _Schema(
        ObservedRoute,
        {
            **dict.fromkeys(
                ("network", "prefix_length", "metric", "table", "protocol", "scope", "tos", "flags"), _number
            ),
            "gateway": _optional_number,
            "dev": _optional_text,
            "kind": _text,
            "source": _optional_number,
            "nexthops": _no_hops,
            "extra": _extra,
        },
    ),
    "ipv6 route": _Schema(
        IPv6Route,
        {
            **dict.fromkeys(("metric", "table", "protocol", "flags", "expires"), _number),
            **dict.fromkeys(("dev", "gateway", "source", "from_prefix"), _optional_text),
            "destination": _text,
            "kind": _text,
            "extra": _extra,
        },
    ),
}
