"""A short word for what strategies of random worlds do most."""

from typing import TypeVar

from hypothesis import strategies as st

_T = TypeVar("_T")


def pick(draw: st.DrawFn, *choices: _T) -> _T:
    """Draw one of the choices; one that is named twice is drawn twice as often."""
    return draw(st.sampled_from(choices))
