"""Shortcuts of the tests of `Boot`, and the files of a fake machine by short names."""

from support.boot_units import NSPAWN, stand_in

from hostrouting.boot.boot import Boot
from hostrouting.boot.installed_config import BootPart
from hostrouting.testing import FakeHost
from phases import Context

UNITS = "/etc/systemd/system"
READY = f"{UNITS}/hostrouting-ready.service"
DROP_IN = f"{UNITS}/{NSPAWN}.d/10-hostrouting.conf"
UNFINISHED = "/run/hostrouting.unfinished"


def boot(host: FakeHost, *gates: str) -> Boot:
    return Boot(host, gates=gates or (NSPAWN,))


def install(host: FakeHost, *parts: BootPart | str) -> bool:
    """Install these parts, or the stand-ins of these names, before the usual gate."""
    return boot(host).install(Context(timeout=60), *map(_part, parts))


def planned(host: FakeHost, *parts: BootPart | str) -> list[str]:
    """Return the plan of an installation of these parts, or of the stand-ins of these names."""
    return [*map(str, boot(host).plan_install(Context(timeout=60), *map(_part, parts)))]


def _part(part: BootPart | str) -> BootPart:
    return stand_in(part) if isinstance(part, str) else part
