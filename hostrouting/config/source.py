"""The bytes of a config: of a file, a pipe or stdin, within a time and a size."""

from __future__ import annotations

import os
import stat

_MOST = 1 << 20
_CHUNK = 1 << 16


def read_source(source: str | os.PathLike[str] | int, *, timeout: float) -> bytes:
    """Return all content of a path or an open descriptor, at most 1 MiB.

    OSError and ValueError name the reason of a refusal. A device is never opened, since that may
    have an effect, as with a watchdog. `timeout` limits the whole call, in seconds.

    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile() as file:
    ...     read_source(file.name, timeout=1)
    b''
    """
    import select
    from time import monotonic

    mode = os.stat(source).st_mode  # noqa: PTH116 (pathlib would be loaded for this line alone)
    if not isinstance(source, int) and (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
        raise ValueError("it is a device, and a config is a file or a pipe")
    waiting, end, content = select.poll(), monotonic() + timeout, b""
    # Without O_NONBLOCK, opening a pipe would wait for its writer forever.
    with open(
        source,
        "rb",
        0,
        opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK),
        closefd=not isinstance(source, int),
    ) as file:
        waiting.register(file, select.POLLIN)
        while len(content) <= _MOST:
            if not waiting.poll(max(0, end - monotonic()) * 1000):
                raise TimeoutError(f"its writer has not closed it within {timeout:g} s")
            if not (chunk := file.read(_CHUNK)):
                return content
            content += chunk
    raise ValueError("it has more than 1 MiB, and a config has less")
