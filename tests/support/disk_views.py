"""A fake machine's files as people see them: scripts under their well-known names, not the folders behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.boot.generation import GENERATION_LINK, SCRIPT_PATHS

if TYPE_CHECKING:
    from hostrouting.testing import MemoryTree

__all__ = ["seen"]


def seen(tree: MemoryTree) -> dict[str, str]:
    """The text of each file, and the target of each link but those to scripts, by path."""
    snapshot = tree.snapshot()
    scripts = {path: (tree.read(path) or b"").decode() for path in SCRIPT_PATHS if path in snapshot}
    return {path: text for path, text in snapshot.items() if not path.startswith(GENERATION_LINK)} | scripts
