"""Calls of the C library that Python does not offer; importing ctypes takes 5 ms."""

from __future__ import annotations

import ctypes
import os


def call_libc(name: str, *arguments: object) -> int:
    """Call a function of the C library."""
    answer: int = getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer
