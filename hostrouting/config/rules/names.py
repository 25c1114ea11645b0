"""The rules for names: of devices, units and folders."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from hostrouting.config.rules.addresses import string
from hostrouting.config.wire import accepting
from hostrouting.net.addresses import SHELL_ACTIVE, check_device_name

#: Units that hostrouting installs. None of them may be a gate, for it would wait for itself.
OWN_UNITS: Final = frozenset(
    {
        "check-route-overlap.service",
        "hostrouting-held@.service",
        "hostrouting-ready.service",
        "hostrouting-retry.service",
        "hostrouting-watch.service",
        "hostrouting-watch.timer",
        "probe-snat.service",
        "static-routes.service",
    }
)
_UNIT_NAME: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:_.\\@-")
_DEVICE_PATTERN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-+@*?[]!")
#: A file name has 255 bytes, and the gate's drop-in folder is named `<gate>.d`.
_LONGEST_GATE: Final = 253
_LONGEST_DEVICE_PATTERN: Final = 64


#: The characters for a class of a pattern; ECMAScript has fewer escapes than Python.
_ESCAPED: Final = "".join(f"\\{char}" if char in "[]\\^-" else char for char in sorted(SHELL_ACTIVE))
#: A device name for JSON Schema, which cannot count bytes.
_DEVICE: Final = rf"(?!-|\.{{1,2}}$)[^/:\s{_ESCAPED}]{{1,15}}"


@accepting({"type": "string", "pattern": f"^{_DEVICE}$"})
def device(value: object) -> str:
    """Return a device name that the kernel accepts and a shell cannot misread."""
    return _device_name(string(value, "a device name such as 'eth0'"))


_device_name = lru_cache(64)(check_device_name)


@accepting({"type": "string", "pattern": f"^(?:{_DEVICE})?$"})
def optional_device(value: object) -> str | None:
    """Return a device name, or None if it is absent or empty."""
    return None if value is None or value == "" else device(value)


@accepting({"type": "string", "pattern": r"^(?!-)[A-Za-z0-9_.+@*?!\[\]-]+$", "maxLength": _LONGEST_DEVICE_PATTERN})
def device_pattern(value: object) -> str:
    """Return a shell-style pattern of device names that bash (in the C locale) and fnmatch read alike.

    >>> device_pattern("mesh*"), device_pattern("veth[0-9]?")
    ('mesh*', 'veth[0-9]?')
    """
    text = string(value, "a pattern of device names such as 'mesh*'")
    problem = _device_pattern_problem(text)
    if problem:
        raise ValueError(f"{text!r} is not a pattern of device names: {problem}")
    return text


def _device_pattern_problem(text: str) -> str | None:
    if not text:
        return "it is empty"
    if len(text) > _LONGEST_DEVICE_PATTERN:
        return f"it has {len(text)} characters, the limit is {_LONGEST_DEVICE_PATTERN}"
    if text.startswith("-"):
        return "a leading '-' reads as an option"
    if not _DEVICE_PATTERN.issuperset(text):
        return f"{_first_outside(text, _DEVICE_PATTERN)!r} is not allowed in it"
    rest = text
    while "[" in rest:
        members, closed, rest = rest.partition("[")[2].partition("]")
        members = members.removeprefix("!")
        # fnmatch drops a falling range, and may then read the next '!' as a negation; bash does not.
        rising = all(first <= last for first, last in re.findall(r"(.)-(.)", members))
        if not (closed and rising and re.fullmatch(r"(\w-\w|[\w.])+", members, re.ASCII)):
            return "after a '[' it needs characters or rising ranges, and a ']', as in '[0-9a-f]'"
    return None


@accepting(
    {
        "type": "string",
        "pattern": r"^(?![-@]|[^@]*-(?:@|\.service$))[A-Za-z0-9:_.\\@-]+\.service$",
        "maxLength": _LONGEST_GATE,
        "not": {"enum": sorted(OWN_UNITS)},
    }
)
def gate(value: object) -> str:
    """Return the name of a service unit, template or instance; refuse `OWN_UNITS`."""
    text = string(value, "the name of a .service unit such as 'kubelet.service'")
    problem = _gate_problem(text)
    if problem:
        raise ValueError(f"{text!r} is not the name of a .service unit that can be a gate: {problem}")
    prefix, at, _ = text.partition("@")
    if text in OWN_UNITS or (at and f"{prefix}@.service" in OWN_UNITS):
        raise ValueError(
            f"{text!r} is installed by hostrouting and cannot wait for itself; name the unit that must wait"
        )
    return text


def _gate_problem(text: str) -> str | None:
    prefix = text.removesuffix(".service").partition("@")[0]
    if not text.endswith(".service"):
        return "it does not end in '.service'"
    if not _UNIT_NAME.issuperset(text):
        return f"{_first_outside(text, _UNIT_NAME)!r} is not allowed in it"
    if len(text) > _LONGEST_GATE:
        return f"it has {len(text)} characters, and its drop-in folder leaves room for {_LONGEST_GATE}"
    if not prefix:
        return "nothing stands before '@' or '.service'"
    if text.startswith("-"):
        return "a leading '-' reads as an option"
    if prefix.endswith("-"):
        # foo-.service.d applies to foo-bar.service too, and could so make a unit of hostrouting wait for itself.
        return "systemd reads a name that ends in '-' as all units that begin so; name each of them"
    return None


def _first_outside(text: str, allowed: frozenset[str]) -> str:
    return next(character for character in text if character not in allowed)


@accepting({"type": "string", "pattern": r"^(?!.*/\.\.(?:/|$))/[^\u0000-\u001f]*$"})
def folder(value: object) -> str:
    """Return an absolute, printable path without `..`."""
    text = string(value, "an absolute path such as '/var/lib/hostrouting/stale-cni'")
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is not an absolute path; begin it with '/'")
    if ".." in text.split("/"):
        raise ValueError(f"{text!r} has a '..' in it; write out the folder that is meant")
    if not text.isprintable():
        raise ValueError(f"{text!r} has a character in it that cannot be printed; name a plain folder")
    return text
