"""Checks for mistakes that Python accepts: a TypeError names the mistake and the correct form.

Without them an `async def do` would be called, never run, and be reported as done.
"""

from __future__ import annotations

from typing import ClassVar, NoReturn

#: In a message; the whole of a config would hide the rest.
_LONGEST = 100
# Flags of a code object for generators, coroutines and asynchronous generators. `inspect` has names
# for them, but takes longer to import than all of this package.
_LAZY = 0x20 | 0x80 | 0x200

PLAIN = "tasks are not awaited or iterated: write a plain function, which may use asyncio.run"


def shown(value: object) -> str:
    """Return the text of a value for a message, in one line that is not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def wrong_argument(name: str, value: object, words: str, right: str) -> TypeError:
    """Return the error for an argument of another form.

    >>> print(wrong_argument("timeout", "30", "a number of seconds", "30"))
    timeout must be a number of seconds (got '30'); write timeout=30
    """
    return TypeError(f"{name} must be {words} (got {shown(value)}); write {name}={right}")


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
    """Raise TypeError for anything but a task, and for a task whose `do` would never run.

    >>> require_task("greet")
    Traceback (most recent call last):
    TypeError: 'greet' is not a task: a task has a name (a text, not empty) and do(ctx)
    """
    # Not by the protocol: it sees that there is a name, but not that it is a method; and it takes
    # ten times as long.
    name = getattr(candidate, "name", None)
    do = getattr(candidate, "do", None)
    if isinstance(candidate, type):
        why = f"{candidate.__name__} is a class, not a task: call it to make an instance"
    elif isinstance(candidate, list | tuple):
        why = f"{shown(candidate)} is a list, not a task: write Serial(*tasks), or Parallel(*tasks)"
    elif callable(candidate) and do is None:
        why = f'{candidate!r} is a function, not a task: write @task("name"), or task("name")(it)'
    elif isinstance(name, str) and name and callable(do):
        return require_plain(do, f"{type(candidate).__name__}.do")
    else:
        why = f"{shown(candidate)} is not a task: a task has a name (a text, not empty) and do(ctx)"
    raise TypeError(why)


def require_plain(function: object, name: str) -> None:
    """Raise TypeError for anything but a function, and for an async function or a generator."""
    if not callable(function) or hasattr(function, "do"):
        raise TypeError(f"{name} must be a function (got {function!r})")
    code = getattr(function, "__code__", None)
    if code and code.co_flags & _LAZY:
        raise TypeError(f"{name} is an async function or a generator, and {PLAIN}")


def require_no_method(function: object, name: str) -> None:
    """Raise TypeError for a method of a class, which would get the context as its `self`."""
    code = getattr(function, "__code__", None)
    optional = getattr(function, "__defaults__", None) or ()
    if code and code.co_argcount - len(optional) > 1 and not hasattr(function, "__self__"):
        right = f'task("{name}")(self.{code.co_name})'
        raise TypeError(f"do of task {name!r} takes the context alone; of a method write {right}")


def require_name(name: object, owner: str) -> None:
    """Raise ValueError for a name that cannot stand in a path.

    >>> require_name("certs/ca", "a task")
    Traceback (most recent call last):
    ValueError: a task cannot be named 'certs/ca': the slash parts the names of a path; use certs-ca
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"{owner} cannot be named {name!r}: give a text")
    if "/" in name:
        better = name.replace("/", "-")
        raise ValueError(
            f"{owner} cannot be named {name!r}: the slash parts the names of a path; use {better}"
        )
