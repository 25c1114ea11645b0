"""Checks for mistakes that Python accepts: a TypeError names the mistake and the correct form.

Without them an `async def do` would be called, never run, and be reported as done.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NoReturn

from phases.arguments import Form, of, shown
from phases.context import Change, Context, Work
from phases.run_context import account_of, within

if TYPE_CHECKING:
    import logging


CONTEXT = of(Context, "a Context", "Context()")
#: Also those of other libraries; but not the module, which has the same functions.
LOGGER = Form(
    lambda logger: (
        callable(getattr(logger, "info", None)) and not isinstance(logger, (type, type(sys)))
    ),
    "a logging.Logger",
    "logging.getLogger('...')",
)
# Flags of a code object for generators, coroutines and asynchronous generators. `inspect` has names
# for them, but takes longer to import than all of this package.
_LAZY = 0x20 | 0x80 | 0x200

_PLAIN = "tasks are not awaited or iterated: write a plain function, which may use asyncio.run"
_CHANGES = "a plan is a list of Change, [] if there is nothing to change"


class NoTruth:
    """A result that is neither true nor false: `if report:` would be true of a failure."""

    __slots__ = ()
    #: The attributes to read.
    _tested: ClassVar[str] = ".ok"

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self.__class__.__name__} is neither true nor false: test {self._tested}, or whether "
            "it `is None`"
        )


def require_task(candidate: object) -> None:
    """Raise TypeError for anything that is not a task.

    >>> require_task("greet")
    Traceback (most recent call last):
    TypeError: 'greet' is not a task: a task has a name (a text, not empty) and do(ctx)
    """
    # Not by the protocol: it sees that there is a name, but not that it is a method; and it takes
    # ten times as long.
    name = getattr(candidate, "name", None)
    has_name = isinstance(name, str) and name != ""
    has_do = callable(getattr(candidate, "do", None))
    if has_name and has_do and not isinstance(candidate, type):
        return
    why = f"{shown(candidate)} is not a task: a task has a name (a text, not empty) and do(ctx)"
    if isinstance(candidate, type):
        why = f"{candidate.__name__} is a class, not a task: call it to make an instance"
    elif isinstance(candidate, Context):
        why = "a Context is not a task: the task comes first, as in execute(task, ctx)"
    elif candidate is None:
        why += "; does the function that makes it lack its `return`?"
    elif isinstance(candidate, list | tuple):
        why = f"a {type(candidate).__name__} is not a task: pass its tasks, as in Serial(*tasks)"
    elif callable(candidate) and not hasattr(candidate, "do"):
        why = f'{candidate!r} is a function, not a task: write @task("name"), or task("name")(it)'
    raise TypeError(why)


def require_runnable(candidate: object) -> None:
    """Raise TypeError for anything but a task, and for a task whose `do` would never run."""
    require_task(candidate)
    require_plain(candidate.do, f"{type(candidate).__name__}.do")  # type: ignore[attr-defined]  # it is a task


def require_plain(function: object, name: str) -> None:
    """Raise TypeError for anything but a function, and for an async function or a generator."""
    if not callable(function):
        raise TypeError(f"{name} must be a function (got {function!r})")
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if code and code.co_flags & _LAZY:
        raise TypeError(f"{name} is an async function or a generator, and {_PLAIN}")


def context_for(task: object, ctx: object, logger: logging.Logger | None = None) -> Context:
    """Return the context for a task, a new one for None, with the logger if there is one.

    Raise TypeError for anything else, and for anything that is not a task.
    """
    require_task(task)
    ctx = Context() if ctx is None else ctx
    if not isinstance(ctx, Context):
        raise TypeError(f"the second argument must be a Context, or left out (got {ctx!r})")
    LOGGER.or_none.require("logger", logger)
    return within(ctx, account_of(ctx), logger)


def call(method: Work, ctx: Context, name: str) -> object:
    """Call a `do`, `undo` or `plan`; raise TypeError if it returns a coroutine or an error.

    A Future that it returns must be done: its value, or its error, is that of the method.

    >>> call(lambda ctx: OSError("busy"), Context(), "do")
    Traceback (most recent call last):
    TypeError: do(ctx) returned an OSError, and a task that fails raises it
    """
    result = value_of(method(ctx), name)
    if isinstance(result, Awaitable | Generator | AsyncGenerator):
        # Without this a dropped coroutine writes a RuntimeWarning in addition to our error.
        if isinstance(result, Coroutine | Generator):
            result.close()
        raise TypeError(f"{name}(ctx) returned a {type(result).__name__}, and {_PLAIN}")
    if isinstance(result, BaseException):
        raise TypeError(
            f"{name}(ctx) returned an {type(result).__name__}, and a task that fails raises it"
        ) from result
    return result


def value_of(result: object, name: str) -> object:
    """Return the value of a Future that a method returned, or raise its error; or the result.

    Raise TypeError if the Future is not done.
    """
    # Only a program that has loaded the module, which takes a while, has such an object.
    futures = sys.modules.get("concurrent.futures")
    if futures is None or not isinstance(result, futures.Future):
        return result
    if not result.done():
        raise TypeError(
            f"{name}(ctx) returned a Future that is not done: return its result(), which waits"
        )
    return result.result()


def require_changes(planned: object) -> tuple[Change, ...]:
    """Return the changes that a `plan` returned; raise TypeError for anything else.

    >>> require_changes(["+ /etc/hosts"])
    Traceback (most recent call last):
    TypeError: plan(ctx) returned a list with '+ /etc/hosts' in it: a plan is a list of Change, \
[] if there is nothing to change
    """
    kind = type(planned).__name__
    if not isinstance(planned, Sequence):
        raise TypeError(f"plan(ctx) returned a {kind}: {_CHANGES}")
    for item in planned:
        if not isinstance(item, Change):
            raise TypeError(f"plan(ctx) returned a {kind} with {item!r} in it: {_CHANGES}")
    return tuple(planned)


def require_name(name: object, owner: str) -> None:
    """Raise ValueError for a name that cannot stand in a path.

    >>> require_name("certs/ca", "a task")
    Traceback (most recent call last):
    ValueError: a task cannot be named 'certs/ca': the slash parts the names of a path; use certs-ca
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"{owner} cannot be named {name!r}: give a text, or leave the name out")
    if "/" in name:
        better = name.replace("/", "-")
        raise ValueError(
            f"{owner} cannot be named {name!r}: the slash parts the names of a path; use {better}"
        )
