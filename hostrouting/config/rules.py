"""The rules for the fields of the config: functions that return the normalised value or raise.

A rule takes a value from Python or JSON. Its ValueError continues a sentence that begins with the
path of the field: the expected value, the value found, and the correction. Rules are independent of
each other; conditions between fields are checked in `sections`.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from hostrouting.base.errors import ConfigMistake, InvalidConfigError
from hostrouting.config.wire import accepting, describe, errors_under, schema_of
from hostrouting.net.addresses import (
    IPV4,
    IPV6,
    SHELL_ACTIVE,
    Address,
    Prefix,
    address_bits,
    check_device_name,
    is_network,
    mask_of,
    parse_address,
    parse_cidr,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

#: By family and first byte: the leading bits, how many there are, and their meaning. No static
#: route may lead there, and no gateway can have such an address.
_NOT_UNICAST = {
    (IPV4, 0): (0, 8, "0.0.0.0/8, which means 'this network'"),
    (IPV4, 127): (127, 8, "127.0.0.0/8, the node's own loopback"),
    **dict.fromkeys(
        ((IPV4, byte) for byte in range(224, 240)), (0xE, 4, "224.0.0.0/4, which is multicast")
    ),
    (IPV4, 255): (0xFFFFFFFF, 32, "the broadcast address"),
    # No IPv6 route applies to IPv4 addresses in IPv6 notation, such as ::ffff:10.0.0.1.
    (IPV6, 0): (0, 80, "::/80, the node's own loopback and the IPv4 addresses written as IPv6"),
    (IPV6, 0xFE): (0x3FA, 10, "fe80::/10, the link-local addresses"),
    (IPV6, 0xFF): (0xFF, 8, "ff00::/8, which is multicast"),
}
#: Patterns for JSON Schema, which cannot express everything that a rule checks.
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_LENGTH = "(?:3[0-2]|[12]?[0-9])"
_ADDRESS = "[0-9A-Fa-f:.]+"
_IPV6 = "[0-9A-Fa-f]*:[0-9A-Fa-f:.]+"
_IPV6_LENGTH = "(?:12[0-8]|1[01][0-9]|[1-9]?[0-9])"


@accepting(
    {"type": "string", "pattern": f"^(?:{_IPV4}/(?!0$){_LENGTH}|{_IPV6}/(?!0$){_IPV6_LENGTH})$"}
)
def destination(value: object) -> str:
    """Return a routable network of either family without host bits, for a static route."""
    if value is None:
        raise ValueError(
            "is required: the network that the route leads to, such as '172.16.0.0/16'"
        )
    text = _address_text(value, "a network such as '172.16.0.0/16' or 'fd00::/64'")
    prefix = Prefix.parse(text)
    if not prefix.length:
        raise ValueError(
            f"{text!r} is the default route, which cannot be configured; name the networks that "
            "need a route"
        )
    _refuse_inside(text, prefix, "no route leads there; remove it")
    if prefix.network & ~mask_of(prefix.family, prefix.length):
        raise ValueError(f"{text!r} has host bits; the network is {str(prefix.masked)!r}")
    # An IPv4 network has only one notation.
    return text if prefix.family == IPV4 else str(prefix)


@accepting({"type": "string", "pattern": f"^(?:{_IPV4}|{_IPV6})?$"})
def gateway(value: object) -> str | None:
    """Return the address of a gateway, or None if it is absent or empty."""
    if value is None or value == "":
        return None
    return _gateway(_address_text(value, "an address such as '10.224.0.1' or 'fd00::1'"))


# Thousands of routes name the same few gateways and devices.
@lru_cache(64)
def _gateway(text: str) -> str:
    _refuse_zone(text)
    if "/" in text:
        raise ValueError(
            f"{text!r} has a prefix length; give the address alone: {text.partition('/')[0]}"
        )
    address = Address.parse(text)
    # Routers advertise themselves with such addresses.
    if not address.is_link_local:
        _refuse_inside(
            text,
            Prefix(*address, address_bits(address.family)),
            "a gateway is a single host; give the address of the router",
        )
    return str(address)


def _refuse_zone(text: str) -> None:
    if "%" in text:
        raise ValueError(f"{text!r} has a zone; name the device in 'dev' instead")


def _refuse_inside(text: str, prefix: Prefix, consequence: str) -> None:
    family, network, length = prefix
    bits = address_bits(family)
    reserved = _NOT_UNICAST.get((family, network >> bits - 8))
    if reserved is None:
        return
    start, count, name = reserved
    if length >= count and network >> (bits - count) == start:
        raise ValueError(f"{text!r} {'is' if count == 32 else 'is in'} {name}; {consequence}")


@accepting({"type": "string", "pattern": f"^{_IPV4}/{_LENGTH}$"})
def ipv4_cidr(value: object) -> str:
    """Return an IPv4 network with its host bits masked, as upstream does.

    >>> ipv4_cidr("10.0.0.255/24")
    '10.0.0.0/24'
    """
    text = _address_text(value, "an IPv4 CIDR such as '172.16.0.0/16'")
    return str(Prefix(IPV4, *parse_cidr(text)).masked)


@accepting({"type": "string", "pattern": f"^(?:{_IPV4}/{_LENGTH}|{_IPV6}/{_IPV6_LENGTH})$"})
def expected_cidr(value: object) -> str:
    """Return a network of either family with its host bits masked.

    IPv6 addresses whose device is not chosen by routes alone are refused.

    >>> expected_cidr("10.0.0.255/24"), expected_cidr("FD00:0::1/64")
    ('10.0.0.0/24', 'fd00::/64')
    """
    text = _address_text(value, "a CIDR such as '172.16.0.0/16' or 'fd00::/64'")
    prefix = Prefix.parse(text).masked
    if prefix.family == IPV6:
        _refuse_inside(text, prefix, "routes alone do not choose the device for it; remove it")
    return str(prefix)


def refuse_local(cidr: str) -> None:
    """Refuse a masked network in the loopback range; `expected_cidr` does so for IPv6.

    >>> refuse_local("127.1.0.0/16")
    Traceback (most recent call last):
    ValueError: '127.1.0.0/16' is in 127.0.0.0/8, the node's own loopback; \
no packet for it leaves the node; remove it
    """
    if cidr.startswith("127."):
        _refuse_inside(cidr, Prefix.parse(cidr), "no packet for it leaves the node; remove it")


@accepting({"type": "string", "pattern": f"^{_ADDRESS}/(?!0$){_IPV6_LENGTH}$"})
def cidr(value: object) -> str:
    """Return a network of either family with its host bits masked; refuse a length of 0.

    >>> cidr("10.240.3.1/16"), cidr("FD00:0::1/64")
    ('10.240.0.0/16', 'fd00::/64')
    """
    text = _address_text(value, "a CIDR such as '10.240.0.0/16' or 'fd00::/64'")
    prefix = Prefix.parse(text).masked
    if not prefix.length:
        raise ValueError(f"{text!r} covers every address; name a smaller range")
    return str(prefix)


def ipv6_address(prefix: int, length: int, wanted: str) -> Callable[[object], str]:
    """Return a rule for an IPv6 address whose first `length` bits are `prefix`."""

    @accepting({"type": "string", "pattern": f"^{_ADDRESS}$"})
    def rule(value: object) -> str:
        text = _address_text(value, wanted)
        _refuse_zone(text)
        address = parse_address(text)
        if address is None or address.family != IPV6 or address.number >> (128 - length) != prefix:
            raise ValueError(f"{text!r} is not {wanted}")
        return str(address)

    return rule


T = TypeVar("T")

_LONGEST_STRING = 1024


def whole_number(lowest: int, highest: int) -> Callable[[object], int]:
    """Return a rule for an integer in a range; it refuses booleans, `1.0` and `"1"`."""
    rule = partial(number_in, "a whole number", int, lowest, highest)
    return accepting({"type": "integer", "minimum": lowest, "maximum": highest})(rule)


def number_in(
    noun: str,
    kind: type[int] | tuple[type[int], type[float]],
    lowest: int,
    highest: int,
    value: object,
) -> Any:
    """Return a number of a kind in a range; `noun` describes it in errors."""
    # No NaN is in any range.
    if isinstance(value, bool) or not isinstance(value, kind) or not lowest <= value <= highest:
        raise ValueError(f"expected {noun} from {lowest} to {highest}, found {describe(value)}")
    return value


def string(value: object, wanted: str) -> str:
    """Return a string of limited length; errors say that `wanted` was expected."""
    if not isinstance(value, str) or len(value) > _LONGEST_STRING:
        raise ValueError(f"expected {wanted}, found {describe(value)}")
    return value


def _address_text(value: object, wanted: str) -> str:
    """Return the text of an address or network; values of `ipaddress` are accepted."""
    if type(value).__module__ == "ipaddress":
        value = str(value)
    return string(value, wanted)


def list_of(
    rule: Callable[[object], T],
    *,
    key: Callable[[T], Hashable] = lambda member: member,
    clash: Callable[[T, T, int], str] | None = None,
) -> Callable[[object], tuple[T, ...]]:
    """Return a rule for a list whose members have unique keys.

    A member with the same key as an earlier one is dropped, or refused if there is a `clash`
    function, which returns the reason for a member, the earlier one and its index.
    """

    @accepting({"type": "array", "items": schema_of(rule)})
    def list_rule(value: object) -> tuple[T, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected a list, found {describe(value)}")  # noqa: TRY004 (a rule raises ValueError)
        members: dict[Hashable, tuple[T, int]] = {}
        errors: list[ConfigMistake] = []
        for index, item in enumerate(value):
            try:
                member = rule(item)
            except ValueError as error:
                errors += errors_under(f"[{index}]", error)
                continue
            earlier, place = members.setdefault(key(member), (member, index))
            if clash and place != index:
                errors.append(ConfigMistake(f"[{index}]", clash(member, earlier, place)))
        if errors:
            raise InvalidConfigError(errors)
        return tuple(member for member, _ in members.values())

    return list_rule


def one_of(*choices: str) -> Callable[[object], str]:
    """Return a rule for one of a few words, ignoring case."""
    wanted = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
    known = {choice.lower(): choice for choice in choices}
    pattern = "|".join(
        "".join(f"[{letter.upper()}{letter.lower()}]" for letter in choice) for choice in choices
    )

    # The words come first, so that editors suggest them.
    @accepting({"anyOf": [{"enum": [*choices]}, {"type": "string", "pattern": f"^(?:{pattern})$"}]})
    def rule(value: object) -> str:
        # Not upper(), which turns a long s into S.
        choice = known.get(string(value, wanted).lower())
        if choice is None:
            raise ValueError(f"expected {wanted}, found {describe(value)}")
        return choice

    return rule


_LONGEST_DURATION = 64
#: A number and a unit, as Go formats durations of a second or more.
_DURATION_PART = r"([0-9]+(?:\.[0-9]+)?)([hms])"
_SECONDS = {"h": 3600, "m": 60, "s": 1}


def seconds(lowest: int, highest: int) -> Callable[[object], float]:
    """Return a rule for a number of seconds in a range, rounded to a nanosecond as in Go."""

    @accepting({"type": "number", "minimum": lowest, "maximum": highest})
    def rule(value: object) -> float:
        number: float = number_in("a number of seconds", (int, float), lowest, highest, value)
        return round(number * 1e9) / 1e9

    return rule


def duration(lowest: int, highest: int) -> Callable[[object], float]:
    """Return a rule for a duration in Go's format and in a range; it returns seconds.

    >>> duration(1, 86_400)("1m30s"), duration(1, 86_400)("1.5h")
    (90.0, 5400.0)
    """
    wanted = f"a duration from '{lowest}s' to '{highest}s'"

    @accepting(
        {"type": "string", "pattern": f"^(?:{_DURATION_PART})+$", "maxLength": _LONGEST_DURATION}
    )
    def read(value: object) -> float:
        text = string(value, wanted)
        # Thousands of digits would overflow a float.
        if len(text) > _LONGEST_DURATION or not re.fullmatch(f"(?:{_DURATION_PART})+", text):
            raise ValueError(f"{text!r} is not a duration such as '60s' or '1m30s'")
        parts = re.findall(_DURATION_PART, text)
        total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        if not lowest <= total <= highest:
            raise ValueError(f"expected {wanted}, found {describe(text)}")
        return round(total * 1e9) / 1e9

    return read


def write_duration(value: float) -> str:
    """Return seconds in their wire form.

    >>> write_duration(60.0), write_duration(1.5)
    ('60s', '1.5s')
    """
    return f"{value:.9f}".rstrip("0").rstrip(".") + "s"


# --- names of devices, units and folders


_UNIT_TYPES = "service|socket|target|device|mount|automount|swap|timer|path|slice|scope"
_UNIT_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:_.\\@-")
_DEVICE_PATTERN = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-+@*?[]!"
)
#: systemd allows 255 characters, and hostrouting-held@<gate>.service needs 25 of them.
_LONGEST_UNIT = 230
_LONGEST_DEVICE_PATTERN = 64


#: The characters escaped for a character class; ECMAScript has fewer escapes than Python.
_ESCAPED = "".join(f"\\{char}" if char in "[]\\^-" else char for char in sorted(SHELL_ACTIVE))
#: A device name in JSON Schema, which cannot count bytes.
_DEVICE = rf"(?!-|\.{{1,2}}$)[^/:\s{_ESCAPED}]{{1,15}}"


@accepting({"type": "string", "pattern": f"^{_DEVICE}$"})
def device(value: object) -> str:
    """Return a device name that is valid and has no special meaning to a shell."""
    return _device_name(string(value, "a device name such as 'eth0'"))


_device_name = lru_cache(64)(check_device_name)


@accepting({"type": "string", "pattern": f"^(?:(?!{_IPV4}$){_DEVICE}|{_IPV4}/(?!0$){_LENGTH})$"})
def expected_device(value: object) -> str:
    """Return a device name, or an IPv4 network that stands for the devices with an address in it.

    >>> expected_device("eth0"), expected_device("10.224.0.4/16")
    ('eth0', '10.224.0.0/16')
    """
    text = str(value)
    # A device could be named like an address, but more likely the prefix length is missing.
    is_numeric = is_network(text) or parse_address(text)
    return destination(cidr(ipv4_cidr(value))) if is_numeric else device(value)


@accepting({"type": "string", "pattern": f"^(?:{_DEVICE})?$"})
def optional_device(value: object) -> str | None:
    """Return a device name, or None if it is absent or empty."""
    return None if value is None or value == "" else device(value)


@accepting(
    {
        "type": "string",
        "pattern": r"^(?!-)[A-Za-z0-9_.+@*?!\[\]-]+$",
        "maxLength": _LONGEST_DEVICE_PATTERN,
    }
)
def device_pattern(value: object) -> str:
    """Return a pattern of device names that bash (in the C locale) and fnmatch match alike.

    >>> device_pattern("mesh*"), device_pattern("veth[0-9]?")
    ('mesh*', 'veth[0-9]?')
    """
    text = string(value, "a pattern of device names such as 'mesh*'")
    problem = _name_problem(text, _DEVICE_PATTERN, _LONGEST_DEVICE_PATTERN) or _class_problem(text)
    if problem:
        raise ValueError(f"{text!r} is not a pattern of device names: {problem}")
    return text


def _name_problem(text: str, allowed: frozenset[str], longest: int) -> str | None:
    if not text:
        return "it is empty"
    if len(text) > longest:
        return f"it has {len(text)} characters, the limit is {longest}"
    if text.startswith("-"):
        return "a leading '-' looks like an option"
    outside = [character for character in text if character not in allowed]
    return f"{outside[0]!r} is not allowed" if outside else None


def _class_problem(text: str) -> str | None:
    while "[" in text:
        members, closed, text = text.partition("[")[2].partition("]")
        members = members.removeprefix("!")
        # Unlike bash, fnmatch drops descending ranges and may take the next '!' for a negation.
        rising = all(first <= last for first, last in re.findall(r"(.)-(.)", members))
        if not (closed and rising and re.fullmatch(r"(\w-\w|[\w.])+", members, re.ASCII)):
            return (
                "'[' must be followed by characters or ascending ranges and a ']', as in '[0-9a-f]'"
            )
    return None


def gate(own: Collection[str]) -> Callable[[object], str]:
    """Return the rule for the name of a service, template or instance that is not one of `own`."""

    @accepting(_unit_schema(r"^(?![-@.]|[^@]*-(?:@|\.service$))[A-Za-z0-9:_.\\@-]+\.service$", own))
    def rule(value: object) -> str:
        text = string(value, "the name of a .service unit such as 'kubelet.service'")
        problem = _unit_problem(text, own)
        if not text.endswith(".service"):
            problem = "it does not end in '.service'"
        elif re.match(r"[^@]*-(@|\.service$)", text):
            # foo-.service.d also applies to foo-bar.service, so hostrouting could wait for itself.
            problem = (
                "a name that ends in '-' stands for all units that begin with it; name each of them"
            )
        if problem:
            raise ValueError(
                f"{text!r} is not the name of a .service unit that can be a gate: {problem}"
            )
        return text

    return rule


def awaited_unit(own: Collection[str]) -> Callable[[object], str]:
    """Return the rule for the name of a unit that is neither a template nor one of `own`.

    Without a suffix it is a service, as for systemctl.

    >>> rule = awaited_unit(())
    >>> rule("ib_rdma_configure"), rule("ib.setup"), rule("a.target")
    ('ib_rdma_configure.service', 'ib.setup.service', 'a.target')
    """

    @accepting(_unit_schema(r"^(?![-@.]|.*@\.)[A-Za-z0-9:_.\\@-]+$", own))
    def rule(value: object) -> str:
        text = string(value, "the name of a unit such as 'ib_rdma_configure.service'")
        name = text if re.search(rf"\.({_UNIT_TYPES})$", text) else f"{text}.service"
        problem = _unit_problem(name, own)
        if "@." in name:
            problem = "it is a template; name an instance of it, such as 'ib@1.service'"
        if problem:
            raise ValueError(f"{text!r} is not a unit that routing can wait for: {problem}")
        return name

    return rule


def _unit_schema(pattern: str, own: Collection[str]) -> dict[str, Any]:
    return {
        "type": "string",
        "pattern": pattern,
        "maxLength": _LONGEST_UNIT,
        "not": {"enum": sorted(own)},
    }


def _unit_problem(name: str, own: Collection[str]) -> str | None:
    prefix, at, _ = name.partition("@")
    # systemd does not load hidden files.
    if name.startswith(("@", ".")):
        return "there is nothing before '@' or '.'"
    if name in own or (at and f"{prefix}@.service" in own):
        return "hostrouting installs this unit, and it cannot wait for itself; name another unit"
    return _name_problem(name, _UNIT_NAME, _LONGEST_UNIT)


@accepting({"type": "string", "pattern": r"^(?!.*/\.\.(?:/|$))/[^\u0000-\u001f]*$"})
def folder(value: object) -> str:
    """Return an absolute, printable path without `..`."""
    text = string(value, "an absolute path such as '/var/lib/hostrouting/stale-cni'")
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is not an absolute path; it must begin with '/'")
    if ".." in text.split("/"):
        raise ValueError(f"{text!r} contains '..'; give the path of the folder without it")
    if not text.isprintable():
        raise ValueError(
            f"{text!r} contains a character that cannot be printed; choose another folder"
        )
    return text
