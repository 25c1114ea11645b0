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

__all__ = ["read_record", "refuse_unsafe_folder", "set_aside"]

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


def _useless(path: str, reason: str) -> HostFileError:
    return HostFileError(
        f"{path} is not what we wrote ({reason}), so what it names cannot be put back; put back by hand what you "
        f"recognise in it, then delete it"
    )
