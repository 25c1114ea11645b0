"""Stand-ins for the kernel of an image: they refuse every question."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from hostrouting.exceptions import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.net.changes import RouteChange

__all__ = ["Absent", "OfflineRoutes"]


class OfflineRoutes:
    """Refuses every question: an image has no routes, and those of the machine that prepares it mean nothing.

    An empty answer would let a task believe that it has seen a kernel. Tasks check `Host.is_live` first.
    """

    def links(self) -> NoReturn:
        """Refuse."""
        self._refuse()

    def routes(self) -> NoReturn:
        """Refuse."""
        self._refuse()

    def rules(self) -> NoReturn:
        """Refuse."""
        self._refuse()

    def lookup(
        self,
        destinations: Sequence[int],  # noqa: ARG002 - the port asks with these
        *,
        sources: Sequence[int | None] | None = None,  # noqa: ARG002 - same
        resolve: bool = False,  # noqa: ARG002 - same
    ) -> NoReturn:
        """Refuse."""
        self._refuse()

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> NoReturn:  # noqa: ARG002 - same
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise BackendError(
            "an offline image has no kernel to ask for routes or to change; use Host.live() on a machine"
        )


class Absent:
    """Stands for a part that a `Host` does not have, and refuses every question to it.

    >>> Absent("imds").read
    Traceback (most recent call last):
    hostrouting.exceptions.BackendError: this Host has no imds; make it with Host.live(), or give it one: imds=...
    """

    def __init__(self, part: str) -> None:
        self._part = part

    def __repr__(self) -> str:
        return f"<no {self._part}>"

    def __getattr__(self, name: str) -> NoReturn:
        # Names that Python itself looks up (for copying or comparing) are absent.
        if name.startswith("__"):
            raise AttributeError(name)
        raise BackendError(f"this Host has no {self._part}; make it with Host.live(), or give it one: {self._part}=...")
