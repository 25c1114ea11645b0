"""Names of a room that are imported on first use."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def on_first_use(room: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return the function `__getattr__` of a room, for the names of each of its modules.

    >>> on_first_use("hostrouting.base", {"commands": ("CHECK",)})("CHECK")
    'hostrouting check'
    """

    def import_name(name: str) -> object:
        for home, names in homes.items():
            if name in names:
                return getattr(import_module(f"{room}.{home}"), name)
        raise AttributeError(f"module {room!r} has no attribute {name!r}")

    return import_name
