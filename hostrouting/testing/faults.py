"""What the fakes have in common: they remember what was asked of them, and fail where a test wants them to."""

from __future__ import annotations

__all__ = ["Operations"]


class Operations:
    """The operations asked of a fake, in order, and the one that is to fail.

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
        #: Every operation so far with its arguments, those that failed included.
        self.calls: list[tuple[str, ...]] = []
        self._planned: dict[int, BaseException] = {}

    def fail(self, number: int, error: BaseException) -> None:
        """Let the `number`-th operation from now (1 is the next) raise `error` and do nothing."""
        if number < 1:
            raise ValueError(f"the next operation is number 1, not {number}")
        self._planned[len(self.calls) + number] = error

    def record(self, *call: str) -> None:
        """Note an operation; raise what was planned for it."""
        self.calls.append(call)
        error = self._planned.pop(len(self.calls), None)
        if error is not None:
            raise error
