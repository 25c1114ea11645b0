"""What lies where on the machine, and the values that say what of it a capability wants; nothing here looks."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import attrs

from hostrouting.host.systemd.units import words

__all__ = [
    "BOOT_FOLDERS",
    "DROP_IN_NAME",
    "GATE_UNITS",
    "HELD_TEMPLATE",
    "READY_LINKS",
    "READY_UNIT",
    "READY_WANTS",
    "RETRY_UNIT",
    "RUNTIME_DIRECTORY",
    "SCRIPT_DIRECTORY",
    "UNFINISHED",
    "UNIT_DIRECTORY",
    "BootFile",
    "BootUnit",
    "Departure",
    "drop_in_of",
    "gate_drop_in",
    "links_of",
    "ready_unit",
    "unit_path",
]

SCRIPT_DIRECTORY: Final = "/etc/aks-flex-node"
UNIT_DIRECTORY: Final = "/etc/systemd/system"
#: Where everything lies that a boot needs.
BOOT_FOLDERS: Final = (f"{SCRIPT_DIRECTORY}/", f"{UNIT_DIRECTORY}/")
RUNTIME_DIRECTORY: Final = "/run/aks-flex-node"
READY_UNIT: Final = "hostrouting-ready.service"
#: Remembers a unit that its gate has refused; see its asset.
HELD_TEMPLATE: Final = "hostrouting-held@.service"
#: Starts what is remembered, once routing is right.
RETRY_UNIT: Final = "hostrouting-retry.service"

#: What comes and goes with the gates, whichever capability is installed.
GATE_UNITS: Final = frozenset({READY_UNIT, HELD_TEMPLATE, RETRY_UNIT})

#: The folder with a link to every unit that READY_UNIT requires.
READY_LINKS: Final = f"{UNIT_DIRECTORY}/{READY_UNIT}.requires"
#: The folder with a link to every unit that READY_UNIT starts and that no gate waits for.
READY_WANTS: Final = f"{UNIT_DIRECTORY}/{READY_UNIT}.wants"
#: A gate's drop-in; whatever has this name is ours.
DROP_IN_NAME: Final = "10-hostrouting.conf"
#: Exists while systemd may not have read what we changed: a run that finds it was preceded by one that was killed.
#: Under /run, for a boot reads everything; not in RUNTIME_DIRECTORY, which would then have to be made and removed.
UNFINISHED: Final = "/run/hostrouting.unfinished"

_ASSETS: Final = Path(__file__).parent / "assets"
_RETRY_SCRIPT: Final = "hostrouting-retry.sh"
_UNIT_MODE: Final = 0o644
_SCRIPT_MODE: Final = 0o755
_LINK_FOLDERS: Final = (("RequiredBy", "requires"), ("WantedBy", "wants"))


@attrs.frozen(kw_only=True)
class BootFile:
    """A file with its permission bits: 0o755 for a script, 0o644 for a unit."""

    path: str
    content: bytes
    mode: int


@attrs.frozen(kw_only=True)
class BootUnit:
    r"""A unit with all its files, in the order in which they are written: what is named by another comes before it.

    >>> text = b"[Service]\nType=oneshot\nExecStart=/bin/true\n[Install]\nRequiredBy=hostrouting-ready.service\n"
    >>> file = BootFile(path="/etc/systemd/system/a.service", content=text, mode=0o644)
    >>> BootUnit(name="a.service", files=(file,)).words("Install", "RequiredBy")
    ['hostrouting-ready.service']
    >>> BootUnit(name="b.service", files=(file,))
    Traceback (most recent call last):
    ValueError: among the files of b.service there must be its unit file /etc/systemd/system/b.service
    """

    name: str
    files: tuple[BootFile, ...]

    def __attrs_post_init__(self) -> None:
        """A unit without its unit file would be a gate that never opens."""
        if unit_path(self.name) not in [file.path for file in self.files]:
            raise ValueError(f"among the files of {self.name} there must be its unit file {unit_path(self.name)}")

    def words(self, section: str, key: str) -> list[str]:
        """The words of one setting of the unit file."""
        [text] = [file.content.decode() for file in self.files if file.path == unit_path(self.name)]
        return words([text], section, key)


class Departure(NamedTuple):
    """A unit that is not wanted any more, and the files that go with it."""

    name: str
    paths: tuple[str, ...]


def unit_path(name: str) -> str:
    """Where the unit file of one of our units is."""
    return f"{UNIT_DIRECTORY}/{name}"


def links_of(unit: BootUnit) -> list[str]:
    """The links that `systemctl enable` makes of a unit's [Install] section."""
    return [
        f"{UNIT_DIRECTORY}/{target}.{folder}/{unit.name}"
        for key, folder in _LINK_FOLDERS
        for target in unit.words("Install", key)
    ]


def drop_in_of(gate: str) -> str:
    """Where the drop-in of a gate is.

    >>> drop_in_of("systemd-nspawn@.service")
    '/etc/systemd/system/systemd-nspawn@.service.d/10-hostrouting.conf'
    """
    return f"{UNIT_DIRECTORY}/{gate}.d/{DROP_IN_NAME}"


def ready_unit() -> BootUnit:
    """hostrouting-ready.service with all that brings refused units back; the same on every machine."""
    script = BootFile(path=f"{SCRIPT_DIRECTORY}/{_RETRY_SCRIPT}", content=_asset(_RETRY_SCRIPT), mode=_SCRIPT_MODE)
    units = (
        BootFile(path=unit_path(name), content=_asset(name), mode=_UNIT_MODE)
        for name in (RETRY_UNIT, HELD_TEMPLATE, READY_UNIT)
    )
    return BootUnit(name=READY_UNIT, files=(script, *units))


def gate_drop_in(gate: str) -> BootFile:
    """The drop-in of a gate, the same in every folder."""
    return BootFile(path=drop_in_of(gate), content=_asset(DROP_IN_NAME), mode=_UNIT_MODE)


def _asset(name: str) -> bytes:
    return (_ASSETS / name).read_bytes()
