"""The JSON form of values, for records on disk and for machine-readable output.

Addresses are text, and payloads are hexadecimal. How to read a class is derived from its
annotations. A value that no kernel could have is refused, and the error names its path.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import attrs

from hostrouting.net.addresses import FAMILY_NAMES, IPV4, Address, Prefix, address_bits, mask_of
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.routes import KIND_NUMBERS, KINDS, Encapsulation, NextHop, ObservedRoute
from hostrouting.net.rules import Range, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    Reader: TypeAlias = Callable[[Any], Any]

T = TypeVar("T")
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    bool: "true or false",
}
#: The most characters of a string; names from the kernel are shorter.
_LONGEST = 4096
_BYTE = range(1 << 8)
_WORD = range(1 << 32)
#: The fields whose range differs from 32 bits. A route whose `expires` is negative has expired.
_NUMBERS: Final[dict[str, Container[int]]] = {
    **dict.fromkeys(("protocol", "scope", "tos", "ip_protocol"), _BYTE),
    "weight": range(1, 257),
    "expires": range(-1 << 31, 1 << 31),
    "tun_id": range(1 << 64),
    "dscp": range(1 << 6),
    "family": FAMILY_NAMES,
}
#: Fields that hold addresses (numbers) or networks (pairs) of the value's own family.
OWN = frozenset({"network", "local", "peer", "broadcast", "source", "destination", "address"})
_OWN_TYPES = {"int": "Address", "tuple[int, int]": "Prefix"}


def typed(value: object, kind: type[T], name: str = "it") -> T:
    """Return a value of a JSON document; raise ValueError if it has another type.

    >>> typed([], dict, "routes[0]")
    Traceback (most recent call last):
    ValueError: routes[0] should be an object, not list
    """
    # Not isinstance, which accepts True as a number.
    if type(value) is not kind:
        raise ValueError(f"{name} should be {_KINDS[kind]}, not {type(value).__name__}")
    return value


def typed_or_null(value: object, kind: type[T], name: str) -> T:
    """Do as `typed`, but return an empty value for null."""
    return kind() if value is None else typed(value, kind, name)


def _text(value: Any) -> str:
    """Read a string; a name from the kernel may have bytes that are not UTF-8."""
    # Fast path for the usual case.
    if type(value) is not str or not value.isascii():
        typed(value, str).encode(errors="surrogateescape")
    if len(value) > _LONGEST:
        raise ValueError(f"it has more than {_LONGEST} characters")
    return value  # type: ignore[no-any-return]


def _number(among: Container[int]) -> Reader:
    def read(value: Any) -> int:
        if type(value) is not int or value not in among:
            raise ValueError(f"{typed(value, int)} is not in {among}")
        return value

    return read


def _under(step: str, error: Exception) -> ValueError:
    """Return the error of a field with its path in front."""
    reason = str(error)
    if isinstance(error, KeyError):
        reason += " is not known"
    is_path = reason.startswith((".", "["))
    return ValueError(f"{step}{reason}" if is_path else f"{step}: {reason}")


def _several(read: Reader) -> Reader:
    def read_all(value: Any) -> tuple[Any, ...]:
        members: list[Any] = []
        try:
            for member in typed(value, list):
                members.append(read(member))  # noqa: PERF401 (its length is the index of an error)
        except (LookupError, TypeError, ValueError) as error:
            raise _under(f"[{len(members)}]", error) from None
        return tuple(members)

    return read_all


def _attribute(value: Any) -> tuple[int, bytes]:
    key, payload = typed(value, list)
    # The upper two bits of the number are flags.
    return _number(range(1 << 14))(key), bytes.fromhex(_text(payload))


# The nodes of a fleet repeat most addresses.
_address = lru_cache(1 << 14)(Address.parse)
#: By the names of types; each `Form` adds itself.
_READERS: Final[dict[str, Reader]] = {
    "str": _text,
    "bool": lambda value: typed(value, bool),
    "bytes": lambda value: bytes.fromhex(_text(value)),
    "Address": lambda value: _address(_text(value)),
    "Prefix": lambda value: Prefix.parse(_text(value)),
    "Extra": _several(_attribute),
}
#: By class.
FORMS: Final[dict[type, Form[Any]]] = {}


def _reader(name: str, hint: str) -> Reader:
    inner = hint.removeprefix("tuple[").removesuffix(", ...]")
    read = _READERS[inner] if inner != "int" else _number(_NUMBERS.get(name, _WORD))
    return read if inner == hint else _several(read)


class Form(Generic[T]):
    """The JSON form of a NamedTuple, or of an attrs class whose fields all have defaults.

    Fields that have their default are left out.

    >>> form = FORMS[Range]
    >>> form.brief(Range(1, 2)), form.read({"first": 1, "last": 2})
    ({'first': 1, 'last': 2}, Range(first=1, last=2))
    >>> form.read({"first": -1})
    Traceback (most recent call last):
    ValueError: .first: -1 is not in range(0, 4294967296)
    """

    def __init__(
        self, kind: type[T], check: Callable[[T], object] = bool, /, **readers: Reader
    ) -> None:
        """`check` raises ValueError if fields contradict each other; `readers` go by field name."""
        self._kind = kind
        self._check = check
        self._usual: dict[str, Any] = getattr(kind, "_field_defaults", {})
        if attrs.has(kind):
            self._usual = attrs.asdict(kind(), recurse=False)
        self._optional: dict[str, Any] = {}
        self._own: set[str] = set()
        self._readers: dict[str, Reader] = {}
        for name, annotation in kind.__annotations__.items():
            text = str(getattr(annotation, "__forward_arg__", annotation))
            hint = text.removesuffix(" | None")
            if hint != text:
                self._optional[name] = None
            if name in OWN and hint in _OWN_TYPES:
                self._own.add(name)
                hint = _OWN_TYPES[hint]
            self._readers[name] = readers.get(name) or _reader(name, hint)
        _READERS[kind.__name__] = self.read
        FORMS[kind] = self

    def brief(self, value: T) -> dict[str, Any]:
        """Return the JSON object of a value."""
        family = getattr(value, "family", IPV4)
        parts: dict[str, Any] = {}
        for name in self._readers:
            part = getattr(value, name)
            if part is None or part == self._usual.get(name, self):
                continue
            if name in self._own:
                parts[name] = _written_address(part, family)
            else:
                parts[name] = _written(part)
        return parts

    def read(self, value: Any) -> T:
        """Read a JSON object; raise ValueError, with the path, for an invalid or unknown field."""
        values: dict[str, Any] = self._optional.copy()
        name = ""
        readers = self._readers
        try:
            for name, part in typed(value, dict).items():
                values[name] = readers[name](part)
        except (LookupError, TypeError, ValueError) as error:
            raise _under(f".{name}" if name else "", error) from None
        for name in self._own:
            if part := values.get(name):
                if part.family != values.get("family", IPV4):
                    raise ValueError(f".{name}: is of another family")
                values[name] = part.number if isinstance(part, Address) else part[1:]
        made = self._kind(**values)
        self._check(made)
        return made


def _written_address(part: Any, family: int) -> str:
    """Return an address (a number), or a network (a pair), as text."""
    if isinstance(part, tuple):
        return str(Prefix(family, *part))
    return str(Address(family, part))


def _written(part: Any) -> Any:
    if type(part) in FORMS:
        return FORMS[type(part)].brief(part)
    if isinstance(part, Address | Prefix):
        return str(part)
    if isinstance(part, tuple):
        return [*map(_written, part)]
    return part.hex() if isinstance(part, bytes) else part


def _check_network(value: Any) -> None:
    if value.prefix_length > address_bits(value.family):
        raise ValueError(".prefix_length: is more than an address has bits")
    if getattr(value, "network", 0) & ~mask_of(value.family, value.prefix_length):
        raise ValueError(".network: has host bits")


Form(Range)
Form(Rule)
Form(Encapsulation)
Form(NextHop)
Form(ObservedRoute, _check_network, kind=lambda value: KINDS[KIND_NUMBERS[value]])
Form(DeviceAddress, _check_network)
Form(Device)
