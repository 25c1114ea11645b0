"""The JSON form of values as they are: an object for each, with a field for each part that is not as usual.

Addresses are text and payloads are hexadecimal. The readers are made of the types that a class names for its parts.
They refuse what no kernel can have shown, with the path of the part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import attrs

from hostrouting.net.addresses import FAMILY_NAMES, IPV4, Address, Prefix, address_bits, mask_of
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.mappings import encapsulation, extra, typed
from hostrouting.net.routes import DEVICELESS_KINDS, KIND_NUMBERS, NextHop, ObservedRoute
from hostrouting.net.rules import Range, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import TypeAlias

    Reader: TypeAlias = Callable[[Any], Any]

T = TypeVar("T")
#: Characters of a text; no name that the kernel gives is as long.
_LONGEST: Final = 4096
_BYTE: Final = range(1 << 8)
_WORD: Final = range(1 << 32)
#: The numbers that may not be any of 32 bits. A route whose time is below zero has ended.
_NUMBERS: Final[dict[str, Container[int]]] = {
    **dict.fromkeys(("protocol", "scope", "tos", "ip_protocol", "prefix_length"), _BYTE),
    "weight": range(1, 257),
    "expires": range(-1 << 31, 1 << 31),
    "tun_id": range(1 << 64),
    "family": FAMILY_NAMES,
}
#: Numbers that are addresses of the family of the whole, and pairs that are its networks.
_OWN: Final = frozenset({"network", "local", "peer", "broadcast", "source", "destination", "address"})


def text(value: Any) -> str:
    """Read a text; a name of the kernel is bytes, which may be no characters."""
    # The usual one first, for speed.
    if type(value) is not str or not value.isascii():
        typed(value, str, "it").encode(errors="surrogateescape")
    if len(value) > _LONGEST:
        raise ValueError(f"it has more than {_LONGEST} characters")
    return value  # type: ignore[no-any-return]


def several(read: Reader) -> Reader:
    """Return the reader of a list, as a tuple."""
    return lambda value: tuple(_at(f"[{place}]", read, each) for place, each in enumerate(typed(value, list, "it")))


def _number(among: Container[int]) -> Reader:
    def read(value: Any) -> int:
        if typed(value, int, "it") not in among:
            raise ValueError(f"{value} is not in {among}")
        return value  # type: ignore[no-any-return]

    return read


def _at(step: str, read: Reader, value: Any) -> Any:
    """Read a part; raise ValueError with its path for what is wrong."""
    try:
        return read(value)
    except (LookupError, TypeError, ValueError) as error:
        reason = str(error)
        raise ValueError(f"{step}{'' if reason[:1] in {'.', '['} else ': '}{reason}") from None


#: By the names of types; forms are added when they are made.
_READERS: Final[dict[str, Reader]] = {
    "str": text,
    "bool": lambda value: typed(value, bool, "it"),
    "Address": lambda value: Address.parse(text(value)),
    "Prefix": lambda value: Prefix.parse(text(value)),
    "Extra": extra,
    "Encapsulation": encapsulation,
}
_FORMS: Final[dict[type, Form[Any]]] = {}


def _reader(name: str, hint: str) -> Reader:
    if name in _OWN:
        hint = "Address" if hint == "int" else "Prefix"
    # Tuples of a fixed length are not among these.
    inner = hint.removeprefix("tuple[").removesuffix(", ...]")
    read = _READERS[inner] if inner != "int" else _number(_NUMBERS.get(name, _WORD))
    return read if inner == hint else several(read)


def _unknown(_value: object) -> None:
    raise ValueError("is no field of this version")


class Form(Generic[T]):
    """The JSON objects of a class of values: a NamedTuple, or an attrs class whose parts all have defaults.

    >>> form = Form(Range)
    >>> form.brief(Range(1, 2)), form.read({"first": 1, "last": 2})
    ({'first': 1, 'last': 2}, Range(first=1, last=2))
    >>> form.read({"first": -1})
    Traceback (most recent call last):
    ValueError: .first: -1 is not in range(0, 4294967296)
    """

    def __init__(self, kind: type[T], check: Callable[[T], object] = bool, **readers: Reader) -> None:
        """`check` raises ValueError for parts that do not go together; `readers` are those of some parts, by name."""
        self._kind = kind
        self._check = check
        self._usual: dict[str, Any] = getattr(kind, "_field_defaults", {})
        if attrs.has(kind):
            self._usual = attrs.asdict(kind(), recurse=False)
        self._readers = {
            name: readers.get(name)
            or _reader(name, str(getattr(hint, "__forward_arg__", hint)).removesuffix(" | None"))
            for name, hint in kind.__annotations__.items()
        }
        _READERS[kind.__name__] = self.read
        _FORMS[kind] = self

    def brief(self, value: T) -> dict[str, Any]:
        """Return the object without the parts that are as usual."""
        family = getattr(value, "family", IPV4)
        parts = ((name, getattr(value, name)) for name in self._readers)
        return {
            name: _written(part, family if name in _OWN else 0)
            for name, part in parts
            if part != self._usual.get(name, self)
        }

    def read(self, value: Any) -> T:
        """Read an object; raise ValueError for a part that is wrong, unknown or not there, after its path."""
        values = {
            name: _at(f".{name}", self._readers.get(name, _unknown), each)
            for name, each in typed(value, dict, "it").items()
        }
        family = values.get("family", IPV4)
        for name in _OWN & values.keys():
            if values[name].family != family:
                raise ValueError(f".{name}: is of another family")
            values[name] = values[name][1] if isinstance(values[name], Address) else values[name][1:]
        made = self._kind(**values)
        self._check(made)
        return made


def _written(part: Any, family: int = 0) -> Any:
    if family:
        return str(Prefix(family, *part) if isinstance(part, tuple) else Address(family, part))
    if type(part) in _FORMS:
        return _FORMS[type(part)].brief(part)
    if isinstance(part, Address | Prefix):
        return str(part)
    if isinstance(part, tuple):
        return [*map(_written, part)]
    return part.hex() if isinstance(part, bytes) else part


def _check_prefix(value: DeviceAddress | ObservedRoute) -> None:
    if value.prefix_length > address_bits(value.family):
        raise ValueError(".prefix_length: is more than an address has bits")


def _check_route(route: ObservedRoute) -> None:
    _check_prefix(route)
    if route.network & ~mask_of(route.family, route.prefix_length):
        raise ValueError(".network: has host bits")
    if route.kind not in KIND_NUMBERS:
        raise ValueError(".kind: is none of the kernel's")
    if route.dev is None and not (route.nexthops or route.nexthop_id or route.kind in DEVICELESS_KINDS):
        raise ValueError(".dev: is missing, and there are no nexthops")


Form(NextHop)
Form(Range)
Form(DeviceAddress, _check_prefix)
Form(Device)
Form(Rule)
Form(ObservedRoute, _check_route)
