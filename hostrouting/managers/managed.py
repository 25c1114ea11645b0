"""How a program manages a device, and the interface of the modules for such programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import attrs

from hostrouting.base.values import LightValue

if TYPE_CHECKING:
    from hostrouting.host.ports import FileStore
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute

#: This link exists as long as the unit is active.
_INVOCATION: Final = "/run/systemd/units/invocation:{}"


@attrs.frozen
class Managed(LightValue):
    """The state of a device according to the program that should configure it."""

    program: str
    #: False if the program leaves the device alone.
    manages: bool = True
    #: False if the program is stopped.
    runs: bool = True
    #: The command that configures the device again; empty if no command helps.
    command: str = ""
    #: Why no command helps, and what a person has to do.
    advice: str = ""


class DeviceManager(Protocol):
    """A program that configures devices: systemd-networkd, NetworkManager or ifupdown."""

    def managed(self, device: Device, files: FileStore, family: int, /) -> Managed | None:
        """Return how it manages a device that has no address or default route of a family.

        None if it manages no device on this node.
        """

    def metric_step(
        self, device: Device, files: FileStore, route: ObservedRoute, metric: int, /
    ) -> str:
        """Return how to give a default route this metric; "" if the program does not set it."""


def runs(files: FileStore, unit: str) -> bool:
    """Return True if a systemd unit is active."""
    return files.read_link(_INVOCATION.format(unit)) is not None


def value_of(files: FileStore, path: str, key: str) -> str:
    """Return the value of a key in a file of `key=value` lines; "" if it is missing."""
    text = (files.read(path) or b"").decode(errors="replace")
    lines = (line.partition("=") for line in text.splitlines())
    return next((value.strip() for name, _, value in lines if name == key), "")
