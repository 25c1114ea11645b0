"""Records of a fake's operations, and faults that a test plans for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from hostrouting.exceptions import BackendError
from hostrouting.fib import UnknownDecisionError
from hostrouting.host.netlink.refusals import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from phases import Context

T = TypeVar("T")


class Refused(Exception):  # noqa: N818 - the kernel's answer, which the fakes translate
    """The kernel's refusal: an errno, and its sentence where it has one."""

    def __init__(self, number: int, sentence: str = "") -> None:
        self.errno = number
        text = os.strerror(number)
        self.reason: str = f"{sentence} ({text})" if sentence else text
        super().__init__(self.reason)

    def of(self, call: str) -> BackendError:
        """Return the error for the caller of a handle."""
        return BackendError(f"{call}: {self.reason}", errno=self.errno)


def unknown(question: str) -> UnknownDecisionError:
    """Return the error of a fake for a question that only a kernel can answer."""
    return UnknownDecisionError(
        f"only a kernel can answer {question}: test it on a hostrouting.testing.KernelNode"
    )


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
        #: Every operation so far with its arguments, including failed operations.
        self.calls: list[tuple[str, ...]] = []
        self._planned: dict[int, Callable[[], object]] = {}

    def plan(self, number: int, fault: Callable[[], object]) -> None:
        """Call `fault`, which may raise, before the `number`-th operation from now (1: next)."""
        if number < 1:
            raise ValueError(f"the next operation is number 1, not {number}")
        self._planned[len(self.calls) + number] = fault

    def fail(self, number: int, error: BaseException) -> None:
        """Let the `number`-th operation from now raise `error` and do nothing."""

        def fault() -> None:
            raise error

        self.plan(number, fault)

    def record(self, *call: str) -> None:
        """Record an operation, and run its planned fault."""
        self.calls.append(call)
        if fault := self._planned.pop(len(self.calls), None):
            fault()

    def each(self, change: Callable[[T], None], changes: Iterable[T]) -> dict[int, Failure]:
        """Make the changes, each an operation; return the refusals by their number."""
        failures = {}
        for number, wanted in enumerate(changes):
            try:
                self.record()
                change(wanted)
            except Refused as refused:
                failures[number] = Failure(refused.errno, refused.reason)
        return failures


class Faulty:
    """A fake that records its operations, and fails those that a test chooses."""

    def __init__(self, fault: BaseException) -> None:
        self.operations: Operations = Operations()
        self._fault = fault

    def fail_at(self, number: int, error: BaseException | None = None) -> None:
        """Let the `number`-th operation from now (1: the next) fail, by default as described."""
        self.operations.fail(number, error or self._fault)

    def _begin(self, ctx: Context, *call: str) -> None:
        """Begin an operation that its context may end."""
        ctx.check()
        self.operations.record(*call)
