"""Records of a fake's operations, and faults that a test plans for them."""

from __future__ import annotations

import errno
import os
from functools import partial, wraps
from inspect import getmembers, isfunction
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import attrs

from hostrouting.base.errors import BackendError
from hostrouting.fib import UnknownDecisionError
from hostrouting.host.netlink.frames import Failure
from phases import Context
from phases.exceptions import most_similar
from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


@attrs.define
class _Fault:
    """What happens before an operation: the number of those until then, and their name."""

    left: int
    of: str | None
    happens: Callable[[], object]

    def is_next(self, call: tuple[str, ...]) -> bool:
        """Count an operation; return True if it is the one."""
        if self.of is None or call[:1] == (self.of,):
            self.left -= 1
        return not self.left


class Operations:
    """The operations of a fake, in order, and the faults planned for them.

    `names` are their names, as far as they have any.

    >>> operations = Operations("read", "remove")
    >>> operations.fail(2, OSError("unplugged"))
    >>> operations.record("read", "/etc/hosts")
    >>> operations.record("remove", "/etc/hosts")
    Traceback (most recent call last):
    OSError: unplugged
    >>> operations.calls
    [('read', '/etc/hosts'), ('remove', '/etc/hosts')]
    >>> operations.fail(1, OSError("unplugged"), of="raed")
    Traceback (most recent call last):
    ValueError: of must be 'read' (got 'raed')
    """

    def __init__(self, *names: str) -> None:
        #: Every operation so far with its arguments, including failed operations.
        self.calls: list[tuple[str, ...]] = []
        self._names = names
        self._planned: list[_Fault] = []

    def plan(self, number: int, fault: Callable[[], object], *, of: str | None = None) -> None:
        """Call `fault`, which may raise, before the `number`-th operation from now (1: next).

        With `of` only operations of this name count.
        """
        if number < 1:
            raise ValueError(f"the next operation is number 1, not {number}")
        if of is not None and of not in self._names:
            guess = most_similar(of, self._names)
            known = repr(guess) if guess else " or ".join(self._names) or None
            raise ValueError(f"of must be {known} (got {of!r})")
        self._planned.append(_Fault(number, of, fault))

    def fail(self, number: int, error: BaseException, *, of: str | None = None) -> None:
        """Let the `number`-th operation from now, see `plan`, raise `error` and do nothing."""

        def fault() -> None:
            raise error

        self.plan(number, fault, of=of)

    def record(self, *call: str) -> None:
        """Record an operation, and run its planned fault."""
        self.calls.append(call)
        for fault in [planned for planned in self._planned if planned.is_next(call)]:
            self._planned.remove(fault)
            fault.happens()

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
    """A fake that records the calls of its `ports`, and fails those that a test chooses."""

    #: The methods of its ports.
    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, ports: Sequence[type] = ()) -> None:
        super().__init_subclass__()
        if not ports:
            return
        methods = (name for port in ports for name, _ in getmembers(port, isfunction))
        cls._names = tuple(sorted(name for name in methods if not name.startswith("_")))
        # A listener has methods of its own.
        for name in filter(partial(hasattr, cls), cls._names):
            setattr(cls, name, _recorded(getattr(cls, name)))

    def __init__(self, fault: BaseException) -> None:
        self.operations: Operations = Operations(*self._names)
        self._fault = fault

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.operations.calls)} calls>"

    def fail_at(
        self, number: int, error: BaseException | None = None, *, of: str | None = None
    ) -> None:
        """Let the `number`-th operation from now (1: the next) fail, by default as described.

        An operation is a call of a method of the port, to read or to change. With `of`, the name of
        a method, the calls of this one count.
        """
        if not (error is None or isinstance(error, BaseException)):
            raise wrong_argument("error", error, "an error", "OSError('...')")
        self.operations.fail(number, error or self._fault, of=of)

    def _begin(self, name: str, *arguments: object) -> None:
        """Begin a call, which its context may end; the names in it are recorded."""
        for argument in arguments:
            if isinstance(argument, Context):
                argument.check()
        self.operations.record(name, *(each for each in arguments if isinstance(each, str)))


def _recorded(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Faulty, *arguments: object, **options: object) -> Any:
        self._begin(method.__name__, *arguments)
        return method(self, *arguments, **options)

    return call


class FaultyBatches(Faulty):
    """A fake that makes changes in batches, each change a step that a test may refuse."""

    def __init__(self, fault: BaseException) -> None:
        super().__init__(fault)
        #: The changes of batches, one by one, including rollbacks.
        self.steps: Operations = Operations()

    def refuse_at(self, step: int, *, number: int = errno.ENOBUFS) -> None:
        """Refuse the `step`-th change from now (1: the next), by this errno."""
        self.steps.fail(step, Refused(number, "injected fault"))
