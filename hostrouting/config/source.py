"""The bytes of a config: of a file, a pipe or stdin, within a time and a size."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST: Final = 1 << 20
_CHUNK: Final = 1 << 16


def read_source(source: str | os.PathLike[str] | int, *, timeout: float | None = None) -> bytes:
    """Return all that a path or an open descriptor has; OSError and ValueError say why not.

    It has at most 1 MiB. A device is never opened, since that may do something, as with a watchdog. `timeout` is for
    the whole of it, in seconds.

    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile() as file:
    ...     read_source(file.name)
    b''
    """
    if isinstance(source, int):
        return _read(source, timeout)
    mode = os.stat(source).st_mode  # noqa: PTH116 (pathlib would be loaded for this line alone)
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise ValueError("it is a device, and a config is a file or a pipe")
    # To open a pipe would wait for its writer, without an end.
    descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _read(descriptor, timeout)
    finally:
        os.close(descriptor)


def _read(descriptor: int, timeout: float | None) -> bytes:
    content = b"".join(_chunks(descriptor, timeout))
    if len(content) > _MOST:
        raise ValueError("it has more than 1 MiB, and a config has less")
    return content


def _chunks(descriptor: int, timeout: float | None) -> Iterator[bytes]:
    """Yield what comes, until its end or a little beyond the limit."""
    import select
    from time import monotonic

    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    end, size = monotonic() + (timeout or 0), 0
    while size <= _MOST:
        if not waiting.poll(None if timeout is None else max(0, end - monotonic()) * 1000):
            raise TimeoutError(f"its writer has not closed it within {timeout:g} s")
        if not (chunk := os.read(descriptor, _CHUNK)):
            return
        size += len(chunk)
        yield chunk
