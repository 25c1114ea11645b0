"""The rules for times: seconds in Python, Go's durations on the wire."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hostrouting.config.rules.kinds import number_in, string
from hostrouting.config.wire import accepting, describe

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["duration", "seconds", "write_duration"]

_LONGEST_DURATION: Final = 64
#: Digits, perhaps a fraction, and a unit; Go writes the micro sign and reads the Greek letter too.
_DURATION_PART: Final = r"(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)"
_NANOSECONDS: Final = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,
    "\u03bcs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}


def seconds(lowest: int, highest: int) -> Callable[[object], float]:
    """Return a rule for a number of seconds in a range, rounded to a nanosecond as in Go's durations."""

    @accepting({"type": "number", "minimum": lowest, "maximum": highest})
    def rule(value: object) -> float:
        number: float = number_in("a number of seconds", (int, float), lowest, highest, value)
        return round(number * 1e9) / 1e9

    return rule


def duration(lowest: int, highest: int) -> Callable[[object], float]:
    """Return a rule for a duration in a range, as Go writes it; it returns seconds.

    >>> duration(1, 86_400)("1m30s"), duration(1, 86_400)("1.5h")
    (90.0, 5400.0)
    """
    wanted = f"a duration from '{lowest}s' to '{highest}s'"

    @accepting({"type": "string", "pattern": f"^(?:{_DURATION_PART})+$", "maxLength": _LONGEST_DURATION})
    def read(value: object) -> float:
        text = string(value, wanted)
        # A float overflows with thousands of digits.
        if len(text) > _LONGEST_DURATION or not re.fullmatch(f"(?:{_DURATION_PART})+", text):
            raise ValueError(f"{text!r} is not a duration such as '60s' or '1m30s'")
        nanoseconds = 0
        for whole, fraction, unit in re.findall(_DURATION_PART, text):
            nanoseconds += int(whole + fraction) * _NANOSECONDS[unit] // int("1" + "0" * len(fraction))
        if not lowest * _NANOSECONDS["s"] <= nanoseconds <= highest * _NANOSECONDS["s"]:
            raise ValueError(f"expected {wanted}, found {describe(text)}")
        return nanoseconds / 1e9

    return read


def write_duration(value: float) -> str:
    """Return seconds in their wire form.

    >>> write_duration(60.0), write_duration(1.5)
    ('60s', '1.5s')
    """
    whole, fraction = divmod(round(value * 1e9), _NANOSECONDS["s"])
    return f"{whole}.{fraction:09}".rstrip("0").rstrip(".") + "s"
