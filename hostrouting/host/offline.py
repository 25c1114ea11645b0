"""Stand-ins for parts of a `Host`: absent ones, which refuse every call, and those made late."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from hostrouting.base.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable


def absent(part: str) -> Any:
    """Return the stand-in for a part that only some tasks need.

    >>> absent("link_layer").devices()
    Traceback (most recent call last):
    hostrouting.base.errors.BackendError: this Host has no link_layer; make it with Host.live(), ...
    """
    return _Absent(f"this Host has no {part}; make it with Host.live(), or give it one: {part}=...")


def offline_routes() -> Any:
    """Return the stand-in for an image's routes; the preparing machine's routes mean nothing.

    An empty answer would let a task believe that it has seen a kernel. Tasks check `Host.is_live`
    first.
    """
    return _Absent(
        "an offline image has no kernel to ask for routes or to change; "
        "use Host.live() on a machine"
    )


def late(module: str, name: str) -> Any:
    """Return a stand-in for an adapter, which is imported and made on first use.

    >>> late("netlink", "NetlinkBackend").lookup([])
    []
    """
    return _Late(f"hostrouting.host.{module}", name)


class Signs(ABC):
    """The signs of `Supervisor`, as the assignments of sd_notify(3)."""

    def ready(self, status: str) -> None:
        """See `Supervisor.ready`."""
        self._send(READY="1", STATUS=status)

    def status(self, status: str) -> None:
        """See `Supervisor.status`."""
        self._send(STATUS=status)

    def reloading(self) -> None:
        """See `Supervisor.reloading`."""
        # systemd compares it with the time of the signal that it sent: CLOCK_MONOTONIC of this
        # machine, no test's.
        self._send(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))

    def alive(self) -> None:
        """See `Supervisor.alive`."""
        self._send(WATCHDOG="1")

    def stopping(self) -> None:
        """See `Supervisor.stopping`."""
        self._send(STOPPING="1")

    def _send(self, **assignments: str) -> None:
        # A line is an assignment, so a value is one line.
        lines = (f"{name}={' '.join(value.split())}\n" for name, value in assignments.items())
        self._deliver("".join(lines).encode(errors="backslashreplace"))

    @abstractmethod
    def _deliver(self, message: bytes) -> None:
        """Deliver a message of one or more lines."""


class NoSupervisor(Signs):
    """The `Supervisor` of a process that was started without one."""

    seconds_between_signs: float | None = None

    def _deliver(self, message: bytes) -> None:
        """Drop the message."""


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
        # Names that Python itself looks up (for copying or comparing) are absent.
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse

    def _refuse(self, *_args: object, **_options: object) -> NoReturn:
        raise BackendError(self._refusal)
