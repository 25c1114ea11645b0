"""How a program manages a device, and the port of such a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import attrs

from hostrouting.base.values import LightValue

if TYPE_CHECKING:
    from hostrouting.host.ports import FileStore
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute

#: systemd keeps this link as long as the unit runs.
_INVOCATION: Final = "/run/systemd/units/invocation:{}"


@attrs.frozen
class Managed(LightValue):
    """A device as the program sees it that should give it its configuration."""

    program: str
    #: False if the program leaves the device alone.
    manages: bool = True
    #: False if the program is stopped.
    runs: bool = True
    #: The command by which the device gets its configuration again; empty if none helps.
    command: str = ""
    #: Why none helps, and what somebody has to do.
    advice: str = ""


class DeviceManager(Protocol):
    """A program that configures devices: systemd-networkd, NetworkManager or ifupdown."""

    def managed(self, device: Device, files: FileStore, family: int, /) -> Managed | None:
        """Return how it manages a device that lacks an address or default route of a family.

        None if it manages no device here.
        """

    def metric_step(
        self, device: Device, files: FileStore, route: ObservedRoute, metric: int, /
    ) -> str:
        """Return how a default route of a device gets this metric; "" if it does not set it."""


def runs(files: FileStore, unit: str) -> bool:
    """Return True if a unit of systemd is active."""
    return files.read_link(_INVOCATION.format(unit)) is not None


def value_of(files: FileStore, path: str, key: str) -> str:
    """Return the value of a key in a file of `key=value` lines; "" without one."""
    text = (files.read(path) or b"").decode(errors="replace")
    lines = (line.partition("=") for line in text.splitlines())
    return next((value.strip() for name, _, value in lines if name == key), "")
