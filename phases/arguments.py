"""The arguments of public functions: a TypeError names the argument, its value and the right form.

Python refuses a misspelled option by its name alone, and a wrong value somewhere inside, by words
about other values. `checked` compares both where the call is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from phases.exceptions import most_similar

if TYPE_CHECKING:
    from types import CodeType

F = TypeVar("F", bound=Callable[..., Any])

#: In a message; the whole of a config would hide the rest.
_LONGEST = 100
#: Flags of a code object with `*arguments`, and with `**options`.
_MORE, _ANY = 0x04, 0x08


class Form(NamedTuple):
    """What an argument must be: a test of the value, its words, and a correct value as written.

    >>> SECONDS.require("timeout", "30")
    Traceback (most recent call last):
    TypeError: timeout must be a number of seconds (got '30'); write timeout=30
    """

    fits: Callable[[Any], bool]
    words: str
    right: str

    def require(self, name: str, value: object) -> None:
        """Raise TypeError for a value of another form."""
        if not self.fits(value):
            raise self.refusal(name, value)

    def refusal(self, name: str, value: object) -> TypeError:
        """Return the error for a value of another form."""
        # A text in place of a list is its only member.
        right = self.right.replace("{}", shown(value) if isinstance(value, str) else "...")
        got = f"{name} must be {self.words} (got {shown(value)})"
        return TypeError(f"{got}; write {name}={right}")

    @property
    def or_none(self) -> Form:
        """The same, or None."""
        return self._replace(fits=lambda value: value is None or self.fits(value))


def of(kind: type | tuple[type, ...], words: str, right: str) -> Form:
    """Return the form of the values of a type."""
    return Form(lambda value: isinstance(value, kind), words, right)


def is_list(value: object) -> bool:
    """Return True for a list, a tuple and the like, but not for a text."""
    # Each letter of a text would count.
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


SECONDS = of((int, float), "a number of seconds", "30")
NUMBER = of(int, "a whole number", "1")
TEXT = of(str, "a text", "'...'")
FUNCTION = Form(callable, "a function", "print")
BYTES = of(bytes, "bytes", "b'...'")
LIST = Form(is_list, "a list", "[{}]")
TEXTS = Form(
    lambda value: is_list(value) and all(isinstance(each, str) for each in value),
    "a list of texts",
    "[{}]",
)


def checked(**forms: Form) -> Callable[[F], F]:
    """Return a decorator of a function or a class: refuse wrong options, places and forms.

    It is for functions that are called now and then: it adds about a microsecond.

    >>> @checked(seconds=SECONDS)
    ... def nap(seconds, *, quietly=False):
    ...     return seconds
    >>> nap(3, quiet=True)
    Traceback (most recent call last):
    TypeError: nap has no quiet=True; did you mean quietly=...?
    >>> nap(3, True)
    Traceback (most recent call last):
    TypeError: nap has no place for True; write nap(seconds, quietly=...)
    """

    def decorate(function: F) -> F:
        if isinstance(function, type):
            function.__init__ = decorate(function.__init__)  # type: ignore[misc]  # as written
            return function
        code = function.__code__
        places = _places(code)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        known = frozenset(names)
        takes_any, takes_more = code.co_flags & _ANY, code.co_flags & _MORE

        @wraps(function)
        def call(*given: Any, **options: Any) -> Any:
            if not (takes_any or known.issuperset(options)):
                raise _unknown(_owner(function, given), options, [*names])
            if len(given) > len(places) and not takes_more:
                raise _misplaced(_owner(function, given), given[len(places)], code)
            for name, form in forms.items():
                place = places.get(name, len(given))
                if name in options:
                    form.require(name, options[name])
                elif place < len(given):
                    form.require(name, given[place])
            return function(*given, **options)

        return cast("F", call)

    return decorate


def no_option(owner: str, name: str, value: object, known: Iterable[str]) -> TypeError:
    """Return the error for an option that does not exist.

    >>> print(no_option("run", "time_out", 30, ["timeout", "skip"]))
    run has no time_out=30; did you mean timeout=...?
    >>> print(no_option("run", "x", 30, ["timeout", "skip"]))
    run has no x=30; it has timeout=, skip=
    """
    known = [*known]
    guess = most_similar(name, known)
    step = f"did you mean {guess}=...?" if guess else "it has no options"
    if known and not guess:
        step = f"it has {', '.join(f'{each}=' for each in known)}"
    return TypeError(f"{owner} has no {name}={shown(value)}; {step}")


def no_place(owner: str, value: object, right: Iterable[str]) -> TypeError:
    """Return the error for an argument too many by position.

    >>> print(no_place("Context", 30, ["timeout=...", "clock=..."]))
    Context has no place for 30; write Context(timeout=..., clock=...)
    """
    return TypeError(f"{owner} has no place for {shown(value)}; write {owner}({', '.join(right)})")


def shown(value: object) -> str:
    """Return the text of a value for a message, in one line that is not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _places(code: CodeType) -> dict[str, int]:
    return {name: place for place, name in enumerate(code.co_varnames[: code.co_argcount])}


def _is_bound(code: CodeType) -> bool:
    """Return True for a method: its first argument is not written."""
    return code.co_varnames[:1] in {("self",), ("cls",)}


def _owner(function: Callable[..., Any], given: tuple[Any, ...]) -> str:
    """Return the name of a function, a class or a method as a caller writes it."""
    name: str = function.__name__
    if not _is_bound(function.__code__):
        return name
    cls = given[0] if isinstance(given[0], type) else type(given[0])
    return cls.__name__ if name == "__init__" else f"{cls.__name__}.{name}"


def _unknown(owner: str, options: dict[str, Any], names: list[str]) -> TypeError:
    name = next(each for each in options if each not in names)
    known = [each for each in names if each not in {"self", "cls"}]
    return no_option(owner, name, options[name], known)


def _misplaced(owner: str, value: object, code: CodeType) -> TypeError:
    by_position = code.co_varnames[_is_bound(code) : code.co_argcount]
    by_name = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    return no_place(owner, value, [*by_position, *(f"{name}=..." for name in by_name)])
