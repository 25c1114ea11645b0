"""Stand-ins for parts of a `Host`: missing ones, which refuse every call, and lazy ones."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from hostrouting.base.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable


def absent(part: str) -> Any:
    """Return the stand-in for a missing part that only some tasks need.

    >>> absent("link_layer").devices()
    Traceback (most recent call last):
    hostrouting.base.errors.BackendError: this Host has no link_layer; make it with Host.live(), ...
    """
    return _Absent(f"this Host has no {part}; make it with Host.live(), or give it one: {part}=...")


def offline_routes() -> Any:
    """Return the stand-in for the routes of an image.

    It refuses every call, because an empty answer would look like that of a kernel. Tasks check
    `Host.is_live` first.
    """
    return _Absent(
        "an offline image has no kernel whose routes could be read or changed; "
        "use Host.live() on a machine"
    )


def late(module: str, name: str) -> Any:
    """Return a stand-in for an adapter that is imported and created on first use.

    >>> late("netlink", "NetlinkBackend").lookup([])
    []
    """
    return _Late(f"hostrouting.host.{module}", name)


class NoSupervisor:
    """The `Supervisor` of a process that was started without one."""

    seconds_between_signs: float | None = None

    def notify(self, **assignments: str) -> None:
        """Do nothing."""


class _Late:
    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name == "_part":
            self._part = getattr(import_module(self._module), self._name)()
            return self._part
        return getattr(self._part, name)


class _Absent:
    def __init__(self, refusal: str) -> None:
        self._refusal = refusal

    def __repr__(self) -> str:
        return f"<{self._refusal}>"

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        # Python itself looks up such names, for example to copy or compare.
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse

    def _refuse(self, *_args: object, **_options: object) -> NoReturn:
        raise BackendError(self._refusal)
