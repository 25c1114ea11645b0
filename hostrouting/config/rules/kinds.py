"""The rules for JSON's kinds of values: numbers, strings, lists and words."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hostrouting.config.wire import accepting, describe, errors_under, schema_of
from hostrouting.exceptions import ConfigError, InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["list_of", "number_in", "one_of", "string", "whole_number"]

T = TypeVar("T")

_LONGEST_STRING: Final = 1024


def whole_number(lowest: int, highest: int) -> Callable[[object], int]:
    """Return a rule for an integer in a range; it refuses booleans, `1.0` and `"1"`."""
    rule = partial(number_in, "a whole number", int, lowest, highest)
    return accepting({"type": "integer", "minimum": lowest, "maximum": highest})(rule)


def number_in(
    noun: str, kind: type[int] | tuple[type[int], type[float]], lowest: int, highest: int, value: object
) -> Any:
    """Return a number of a kind in a range; an error calls it by `noun`."""
    # No NaN is in any range.
    if isinstance(value, bool) or not isinstance(value, kind) or not lowest <= value <= highest:
        raise ValueError(f"expected {noun} from {lowest} to {highest}, found {describe(value)}")
    return value


def string(value: object, wanted: str) -> str:
    """Return a string of limited length; an error says that `wanted` is expected."""
    if not isinstance(value, str) or len(value) > _LONGEST_STRING:
        raise ValueError(f"expected {wanted}, found {describe(value)}")
    return value


def list_of(
    rule: Callable[[object], T],
    *,
    key: Callable[[T], Hashable] = lambda member: member,
    clash: Callable[[T, T, int], str] | None = None,
) -> Callable[[object], tuple[T, ...]]:
    """Return a rule for a list of which each `key` is kept once, or is refused the second time.

    `clash` returns the reason for the refusal of a member, given the earlier member and its index.
    """

    @accepting({"type": "array", "items": schema_of(rule)})
    def list_rule(value: object) -> tuple[T, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected a list, found {describe(value)}")  # noqa: TRY004 (a rule raises ValueError)
        members: dict[Hashable, tuple[T, int]] = {}
        errors: list[ConfigError] = []
        for index, item in enumerate(value):
            try:
                member = rule(item)
            except ValueError as error:
                errors += errors_under(f"[{index}]", error)
                continue
            earlier, place = members.setdefault(key(member), (member, index))
            if clash and place != index:
                errors.append(ConfigError(f"[{index}]", clash(member, earlier, place)))
        if errors:
            raise InvalidConfigError(errors)
        return tuple(member for member, _ in members.values())

    return list_rule


def one_of(*choices: str) -> Callable[[object], str]:
    """Return a rule for one of a few words."""
    wanted = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"

    @accepting({"enum": [*choices]})
    def rule(value: object) -> str:
        if string(value, wanted) not in choices:
            raise ValueError(f"expected {wanted}, found {describe(value)}")
        return str(value)

    return rule
