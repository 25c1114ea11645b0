"""A fake machine's files with scripts under their well-known names, instead of the folders that the
link leads to.
"""

from hostrouting.boot.generation import GENERATION_LINK, LINKED_PATHS, generation_folders
from hostrouting.testing.memory_files import MemoryTree


def seen(tree: MemoryTree) -> dict[str, str]:
    """The text of each file, and the target of each link but those to scripts, by path."""
    folders = tuple(f"{folder}/" for folder in generation_folders(tree))
    shown = {
        path: text
        for path, text in tree.snapshot().items()
        if path != GENERATION_LINK and not path.startswith(folders or "\0")
    }
    return {
        path: (tree.read(path) or b"").decode(errors="replace") if path in LINKED_PATHS else text
        for path, text in shown.items()
    }
