"""Stand-ins for the parts that a `Host` does not have: they refuse every question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from hostrouting.exceptions import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NoSupervisor", "absent", "offline_routes"]


def absent(part: str) -> Any:
    """Return the stand-in for a part that only some tasks need.

    >>> absent("link_layer").devices()
    Traceback (most recent call last):
    hostrouting.exceptions.BackendError: this Host has no link_layer; make it with Host.live(), or give it one: \
link_layer=...
    """
    return _Absent(part, f"this Host has no {part}; make it with Host.live(), or give it one: {part}=...")


def offline_routes() -> Any:
    """Return the stand-in for the routes of an image; those of the machine that prepares it mean nothing.

    An empty answer would let a task believe that it has seen a kernel. Tasks check `Host.is_live` first.
    """
    return _Absent(
        "routes", "an offline image has no kernel to ask for routes or to change; use Host.live() on a machine"
    )


class NoSupervisor:
    """Stands for the manager of a process that none waits for. It implements `Supervisor`."""

    seconds_between_signs: float | None = None

    def ready(self, status: str) -> None:
        """See `Supervisor.ready`."""

    def status(self, status: str) -> None:
        """See `Supervisor.status`."""

    def reloading(self) -> None:
        """See `Supervisor.reloading`."""

    def alive(self) -> None:
        """See `Supervisor.alive`."""

    def stopping(self) -> None:
        """See `Supervisor.stopping`."""


class _Absent:
    def __init__(self, part: str, refusal: str) -> None:
        self._part = part
        self._refusal = refusal

    def __repr__(self) -> str:
        return f"<no {self._part}>"

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        # Names that Python itself looks up (for copying or comparing) are absent.
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse

    def _refuse(self, *_args: object, **_options: object) -> NoReturn:
        raise BackendError(self._refusal)
