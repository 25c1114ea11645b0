"""What the boot scripts of all capabilities share, as text to be put into each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["with_shared"]

_SHARED_FILE: Final = Path(__file__).parent / "assets" / "shared.sh"
_MARK: Final = "# @SHARED@\n"


def with_shared(template: str) -> str:
    """The template of a boot script with the functions that it needs."""
    return template.replace(_MARK, _SHARED_FILE.read_text(encoding="utf-8"))
