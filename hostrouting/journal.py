"""Records of what was displaced or taken away: whose word is taken, and what becomes of one that is of no use.

A record says what root is to put back, so nobody else may have written it. One that is damaged is named and set aside:
it keeps nothing else from coming back, and waits for somebody who recognises what is in it.
"""

from __future__ import annotations

import os
import struct
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

from hostrouting.exceptions import HostFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.host import FileStore
    from hostrouting.net.routes import Extra, ObservedRoute

__all__ = ["read_record", "refuse_impossible_route", "refuse_unsafe_folder", "set_aside"]

Record = TypeVar("Record")

#: What decoders raise for JSON that is not as we write it, down to brackets that are nested too deeply.
_DAMAGE: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
_BYTE: Final = 0xFF
_WORD: Final = 0xFFFFFFFF
_OTHERS_MAY_WRITE: Final = 0o022


def read_record(files: FileStore, path: str, decode: Callable[[bytes], Record]) -> Record | None:
    """Return what we wrote at `path`, decoded; None where there is nothing.

    HostFileError says why it is of no use: another user's, a link, unreadable, or not what we wrote.
    """
    owner = files.owner(path)
    if owner is None:
        return None
    if owner not in {0, os.geteuid()}:
        raise _useless(path, f"it belongs to the user {owner}, and only root's word is taken")
    if files.read_link(path) is not None:
        raise _useless(path, "it is a symbolic link, and we make none there")
    if (files.mode(path) or 0) & _OTHERS_MAY_WRITE:
        raise _useless(path, "others than root may write to it")
    try:
        return decode(files.read(path) or b"")
    except HostFileError as error:
        raise _useless(path, str(error)) from error
    except _DAMAGE as error:
        raise _useless(path, repr(error)) from error


def set_aside(files: FileStore, path: str) -> str:
    """Rename a record that is of no use, so that no run meets it again; return a sentence that says where it lies."""
    names = (f"{path}.damaged-{number}" for number in count(1))
    try:
        aside = next(name for name in names if not files.exists(name))
        files.rename(path, aside.rpartition("/")[2])
    except HostFileError as error:
        return f"it could not be set aside: {error}"
    return f"it was set aside as {aside}"


def refuse_unsafe_folder(files: FileStore, folder: str) -> None:
    """Raise HostFileError if others than root can put records into the folder, or put another one in its place."""
    reason = files.exposed(folder)
    if reason is not None:
        raise HostFileError(
            f"{folder} is no place for records of what root puts back: {reason}; use a folder that, with all above "
            f"it, belongs to root and that nobody else may write to"
        )


def refuse_impossible_route(route: ObservedRoute) -> None:
    """Raise ValueError for a route that no kernel can have shown.

    >>> from hostrouting.net.routes import ObservedRoute
    >>> refuse_impossible_route(ObservedRoute(0x0A000000, 8, dev="eth0", tos=999))
    Traceback (most recent call last):
    ValueError: tos 999 is not from 0 to 255
    """
    route.to_route()
    _refuse_beyond(_BYTE, tos=route.tos, scope=route.scope)
    _refuse_beyond(_WORD, flags=route.flags, gateway=route.gateway or 0, source=route.source or 0)
    _refuse_impossible_extra(route.extra)
    for hop in route.nexthops:
        _refuse_beyond(_WORD, gateway=hop.gateway or 0)
        _refuse_beyond(_BYTE, weight=hop.weight - 1)
        _refuse_impossible_extra(hop.extra)


def _refuse_beyond(most: int, **numbers: int) -> None:
    for name, number in numbers.items():
        if not 0 <= number <= most:
            raise ValueError(f"{name} {number} is not from 0 to {most}")


def _refuse_impossible_extra(extra: Extra) -> None:
    for number, payload in extra:
        # The upper two bits of an attribute's number are flags, and four of its bytes are its head.
        _refuse_beyond(0x3FFF, attribute=number)
        _refuse_beyond(0xFFFF - 4, length=len(payload))


def _useless(path: str, reason: str) -> HostFileError:
    return HostFileError(
        f"{path} is not what we wrote ({reason}), so what it names cannot be put back; put back by hand what you "
        f"recognise in it, then delete it"
    )
