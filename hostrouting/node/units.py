"""The units of a node, read once for a command that changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.base.errors import NoSystemdError, UnitError
from hostrouting.boot.gates import CHECKED_SETTINGS, units_of
from hostrouting.boot.layout import HELD_TEMPLATE
from hostrouting.host.systemd.systemctl import CachedUnits, OfflineUnits, Systemctl
from phases import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host import Host
    from phases import Context


def read_units(ctx: Context, host: Host, gates: Sequence[str]) -> Host:
    """Return the host with a snapshot of its units; raise UnitError if systemd refuses."""
    services = host.services
    # Reading a fake, or the files of an image, takes no time.
    if not isinstance(services, Systemctl):
        return host
    units = units_of(gates)
    snapshot = CachedUnits.of(ctx, services, units, CHECKED_SETTINGS, marks=HELD_TEMPLATE)
    return attrs.evolve(host, services=snapshot)


def with_read_units(ctx: Context, host: Host, gates: Sequence[str]) -> Host:
    """Return the host with a snapshot of its units, or of their files if no systemd runs."""
    try:
        return read_units(ctx, host, gates)
    except NoSystemdError:
        return attrs.evolve(host, services=OfflineUnits("/"))
    except (UnitError, DeadlineExceededError):
        # Each check reports what systemd refuses.
        return host
