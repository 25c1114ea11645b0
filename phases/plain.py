"""The result of a task as JSON can hold it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from math import isfinite
from typing import Any

#: Of lists in lists; what lies deeper is shown by its text.
_DEEPEST = 50


def as_result(value: object) -> dict[str, Any]:
    """Return the value as `result`; with `repr` if a text stands for a part or for the whole of it.

    What JSON can hold stays as it is. An attrs class, a dataclass and a NamedTuple are mappings of
    their fields, an enum is its value, a path and a date are their text, and what has `to_mapping`
    is that mapping.

    >>> as_result({"ports": (80, 443)}), as_result(7j)
    ({'result': {'ports': [80, 443]}}, {'result': '7j', 'repr': True})
    """
    shown: list[object] = []
    plain = _plain(value, (), shown)
    return {"result": plain, "repr": True} if shown else {"result": plain}


def _plain(value: object, around: tuple[int, ...], shown: list[object]) -> Any:
    """Return the value for JSON; add to `shown` what is there by its text."""
    # Any method of any object may fail.
    with suppress(Exception):
        if id(value) not in around and len(around) < _DEEPEST:
            inside = (*around, id(value))
            return _form(value, lambda part: _plain(part, inside, shown))
    shown.append(value)
    with suppress(Exception):
        return str(repr(value))
    return f"<{type(value).__name__}>"


def _form(value: Any, plain: Any) -> Any:
    """Return one value by its usual form; raise an error if it has none."""
    if isinstance(value, Enum):
        return plain(value.value)
    # JSON has no infinity, and no NaN.
    is_finite = isinstance(value, float) and isfinite(value)
    if value is None or is_finite or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        # Python refuses to write a number of more than 4,300 digits.
        return int(str(value))
    if isinstance(value, type):
        raise TypeError("a class is shown by its text")
    if callable(getattr(value, "to_mapping", None)):
        return plain(value.to_mapping())
    if isinstance(value, Mapping):
        return {_key(key, plain): plain(inner) for key, inner in value.items()}
    if names := _fields(type(value)):
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    return value.isoformat()


def _key(key: object, plain: Any) -> str:
    """Return the key of a mapping, which is a text in JSON."""
    return key if type(key) is str else str(plain(key))


def _fields(kind: Any) -> list[str]:
    """Return the names of the fields of an attrs class, a dataclass or a NamedTuple."""
    if hasattr(kind, "__attrs_attrs__"):
        return [field.name for field in kind.__attrs_attrs__]
    return [*getattr(kind, "__dataclass_fields__", ()), *getattr(kind, "_fields", ())]
