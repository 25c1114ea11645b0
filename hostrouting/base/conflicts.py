"""Plan again, at once, if another program changed the node in the meantime."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
#: Give up after this many attempts: the other program keeps changing the same objects.
_MOST = 24


class ConflictError(Exception):
    """Another program changed what a plan is based on; nothing of the plan was carried out."""


def until_settled(
    plan: _T, plan_again: Callable[[_T], _T], carry_out: Callable[[_T, bool], object]
) -> _T:
    """Carry out a plan, replanning after each `ConflictError`; return the plan that succeeded.

    `plan_again` receives the previous plan. `carry_out` receives True on the last attempt, when the
    plan need not be compared again.
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
