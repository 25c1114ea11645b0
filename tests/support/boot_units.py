"""Units for tests of the boot side: stand-ins for ours, and those that upstream leaves on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot import SCRIPT_DIRECTORY, UNIT_DIRECTORY, BootFile, BootUnit, Departure

if TYPE_CHECKING:
    from hostrouting.host import FileStore

__all__ = ["CHECK", "NSPAWN", "STATIC", "UPSTREAM_LINKS", "departure_of", "install_upstream", "stand_in"]

NSPAWN: Final = "systemd-nspawn@.service"
STATIC: Final = "static-routes"
CHECK: Final = "check-route-overlap"
#: The links that `systemctl enable` makes for upstream's units.
UPSTREAM_LINKS: Final = (
    f"{UNIT_DIRECTORY}/{NSPAWN}.requires/{STATIC}.service",
    f"{UNIT_DIRECTORY}/{NSPAWN}.requires/{CHECK}.service",
    f"{UNIT_DIRECTORY}/multi-user.target.wants/{CHECK}.service",
)


def stand_in(
    name: str, program: str = "exit 0\n", *, unit: str = "After=network.target", service: str = ""
) -> BootUnit:
    """Return a unit shaped like that of a capability, which runs `program`, a few lines of bash."""
    script = f"{SCRIPT_DIRECTORY}/{name}.sh"
    text = f"""\
[Unit]
{unit}
Before=hostrouting-ready.service
StartLimitIntervalSec=0
[Service]
Type=oneshot
RemainAfterExit=no
ExecStart=flock --timeout 10 {SCRIPT_DIRECTORY} {script}
RuntimeDirectory=aks-flex-node
RuntimeDirectoryPreserve=yes
{service}
[Install]
RequiredBy=hostrouting-ready.service
"""
    return BootUnit(
        name=f"{name}.service",
        files=(
            BootFile(path=script, content=f"#!/bin/bash\n{program}".encode(), mode=0o755),
            BootFile(path=f"{UNIT_DIRECTORY}/{name}.service", content=text.encode(), mode=0o644),
        ),
    )


def departure_of(unit: BootUnit) -> Departure:
    """Return the unit with its files, as a capability names them for their removal."""
    return Departure(unit.name, tuple(file.path for file in unit.files))


def install_upstream(files: FileStore) -> None:
    """Write upstream's units, scripts and links, as `systemctl enable` makes them."""
    for name, after, wanted_by in ((STATIC, "", ""), (CHECK, f"{STATIC}.service", "WantedBy=multi-user.target")):
        script = f"{SCRIPT_DIRECTORY}/{name}.sh"
        text = f"""\
[Unit]
Before={NSPAWN}
After=network-online.target {after}
Wants=network-online.target
[Service]
Type=oneshot
ExecStart={script}
RemainAfterExit=yes
[Install]
RequiredBy={NSPAWN}
{wanted_by}
"""
        files.write(script, f"#!/bin/bash\necho upstream >> /run/{name}.ran\n".encode(), mode=0o755)
        files.write(f"{UNIT_DIRECTORY}/{name}.service", text.encode(), mode=0o644)
    for link in UPSTREAM_LINKS:
        files.link(link, f"{UNIT_DIRECTORY}/{link.rpartition('/')[2]}")
