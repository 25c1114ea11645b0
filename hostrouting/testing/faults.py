"""Records of a fake's operations, and faults that a test plans for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.host.netlink.commit import Failure

__all__ = ["Faulty", "Operations", "StepFaults"]


class Operations:
    """The operations of a fake, in order, and the faults planned for them.

    >>> operations = Operations()
    >>> operations.fail(2, OSError("unplugged"))
    >>> operations.record("read", "/etc/hosts")
    >>> operations.record("remove", "/etc/hosts")
    Traceback (most recent call last):
    OSError: unplugged
    >>> operations.calls
    [('read', '/etc/hosts'), ('remove', '/etc/hosts')]
    """

    def __init__(self) -> None:
        #: Every operation so far with its arguments, failed ones included.
        self.calls: list[tuple[str, ...]] = []
        self._planned: dict[int, BaseException] = {}

    def fail(self, number: int, error: BaseException) -> None:
        """Let the `number`-th operation from now (1 is the next) raise `error` and do nothing."""
        if number < 1:
            raise ValueError(f"the next operation is number 1, not {number}")
        self._planned[len(self.calls) + number] = error

    def record(self, *call: str) -> None:
        """Record an operation; raise the error that was planned for it."""
        self.calls.append(call)
        error = self._planned.pop(len(self.calls), None)
        if error is not None:
            raise error


class Faulty:
    """A fake that records its operations, and lets those fail that a test chooses."""

    def __init__(self, fault: BaseException) -> None:
        self.operations: Operations = Operations()
        self._fault = fault

    def fail_at(self, number: int, error: BaseException | None = None) -> None:
        """Let the `number`-th operation from now (1 is the next) fail, by default as the fake's description says."""
        self.operations.fail(number, error or self._fault)


class StepFaults:
    """The faults planned for the steps of batches, those of rollbacks counted in."""

    def __init__(self) -> None:
        self._steps = 0
        self._planned: dict[int, Callable[[], Failure | None]] = {}

    def plan(self, step: int, fault: Callable[[], Failure | None]) -> None:
        """Call `fault` just before the `step`-th step from now (1 is the next), which it may refuse."""
        self._planned[self._steps + step] = fault

    def next(self) -> Failure | None:
        """Count one step; return the refusal that was planned for it, if there is one."""
        self._steps += 1
        fault = self._planned.pop(self._steps, None)
        return fault() if fault else None
