"""A plan that another program has overtaken is made again, and at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
#: The number of tries after which a program that keeps changing the same places has won.
_MOST = 24


class ConflictError(Exception):
    """Another program has changed what a plan stands on; of its change nothing was made."""


def until_settled(
    plan: _T, plan_again: Callable[[_T], _T], carry_out: Callable[[_T, bool], object]
) -> _T:
    """Carry out a plan, and a new one after each `ConflictError`; return the one that was.

    `plan_again` receives the last plan, and `carry_out` True for the last try: then the plan need
    not be compared once more.
    """
    for left in reversed(range(_MOST)):
        try:
            carry_out(plan, left == 0)
        except ConflictError:
            if left == 0:
                raise
        else:
            break
        plan = plan_again(plan)
    return plan
