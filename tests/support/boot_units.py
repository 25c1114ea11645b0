"""Units for tests of the boot side: stand-ins for those of hostrouting, and those
that upstream leaves on a machine.
"""

import os
import subprocess
from pathlib import Path

from hostrouting import Host
from hostrouting.boot.layout import (
    SCRIPT_DIRECTORY,
    UNIT_DIRECTORY,
    BootFile,
    BootUnit,
    UnitRemoval,
)
from hostrouting.boot.program import wanted_program as real_program
from hostrouting.host import FileStore

NSPAWN = "systemd-nspawn@.service"
STATIC = "static-routes"
CHECK = "check-route-overlap"
#: The links that `systemctl enable` makes for upstream's units.
UPSTREAM_LINKS = (
    f"{UNIT_DIRECTORY}/{NSPAWN}.requires/{STATIC}.service",
    f"{UNIT_DIRECTORY}/{NSPAWN}.requires/{CHECK}.service",
    f"{UNIT_DIRECTORY}/multi-user.target.wants/{CHECK}.service",
)


#: Where this file exists, an installation gets the stand-in for the program.
STANDS_IN = "/etc/stand-in"
#: Answers by the scripts of the stand-ins, in the order of their units.
_PROGRAM = b"""\
#!/usr/bin/python3 -IS
import os, subprocess, sys, time
verb, *words = sys.argv[1:]
if verb == "try":
    sys.exit(10)
began = time.clock_gettime(time.CLOCK_BOOTTIME)
status, fact = 10, ""
for name in ("static-routes", "check-route-overlap"):
    path = f"/etc/aks-flex-node/{name}.sh"
    if status == 10 and os.path.exists(f"/etc/systemd/system/{name}.service"):
        ran = subprocess.run(["/bin/bash", "-p", path, "now"], capture_output=True, text=True)
        status = ran.returncode if ran.returncode in (10, 11, 12) else 12
        text = (ran.stdout + ran.stderr).strip()
        if status != 10:
            fact = f"{name}: {text}"
            print(fact)
try:
    with open("/run/hostrouting/answer.new", "w") as file:
        file.write(f"{int(began * 100) / 100:.2f} {words[0]} {status}\\n{fact}\\n")
    os.rename("/run/hostrouting/answer.new", "/run/hostrouting/answer")
except OSError:
    pass
sys.exit(status)
"""


def stand_in_program(files: FileStore) -> None:
    """Have installations on these files write the stand-in for the program, which runs the scripts
    of the stand-ins.
    """
    files.write(STANDS_IN, b"", mode=0o644)


def wanted_program(host: Host, installed: bytes | None, *, is_planned: bool = False) -> bytes:
    """Return the stand-in where it is wanted, and the program of hostrouting elsewhere."""
    if host.files.exists(STANDS_IN):
        return _PROGRAM
    return real_program(host, installed, is_planned=is_planned)


def stand_in(name: str, program: str = "", *, unit: str = "After=network.target") -> BootUnit:
    """Return a unit shaped like that of a capability, which runs `program`, a few lines of bash,
    and then lets gates start.
    """
    script = f"{SCRIPT_DIRECTORY}/{name}.sh"
    text = f"""\
[Unit]
{unit}
Before=hostrouting-ready.service
StartLimitIntervalSec=0
[Service]
Type=oneshot
RemainAfterExit=no
ExecStart=/bin/bash -pc '/bin/bash -p {script}; [[ $$? == 10 ]]'
RuntimeDirectory=hostrouting
RuntimeDirectoryPreserve=yes
[Install]
RequiredBy=hostrouting-ready.service
"""
    return BootUnit(
        name=f"{name}.service",
        files=(
            BootFile(script, f"#!/bin/bash\n{program}exit 10\n".encode()),
            BootFile(f"{UNIT_DIRECTORY}/{name}.service", text.encode()),
        ),
    )


def departure_of(unit: BootUnit | str) -> UnitRemoval:
    """Return a unit, or a stand-in of this name, with its files, as a capability names them for
    their removal.
    """
    if isinstance(unit, str):
        unit = stand_in(unit)
    return UnitRemoval(unit.name, tuple(file.path for file in unit.files))


def install_upstream(files: FileStore, *, program: str = "") -> None:
    """Write upstream's units, scripts and links, as `systemctl enable` makes them; each
    script records that it ran.
    """
    for name, after, wanted_by in (
        (STATIC, "", ""),
        (CHECK, f"{STATIC}.service", "WantedBy=multi-user.target"),
    ):
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
        text_of_script = program or f"echo upstream >> /run/{name}.ran"
        files.write(script, f"#!/bin/bash\n{text_of_script}\n".encode(), mode=0o755)
        files.write(f"{UNIT_DIRECTORY}/{name}.service", text.encode(), mode=0o644)
    for link in UPSTREAM_LINKS:
        files.link(link, f"{UNIT_DIRECTORY}/{link.rpartition('/')[2]}")


def assert_systemd_accepts(unit: BootUnit, folder: Path, *, most: int = 32) -> None:
    """Assert that `systemd-analyze verify` prints nothing, and that the unit is exposed to so many
    tenths at most.
    """
    script, service = (folder / file.path.rpartition("/")[2] for file in unit.files[:2])
    script.write_bytes(unit.files[0].content)
    script.chmod(0o755)
    service.write_bytes(unit.files[1].content.replace(b"/etc/aks-flex-node", str(folder).encode()))
    assert_verified(service)
    assert_exposed_at_most(service, most)


def assert_verified(*services: Path, **environment: str) -> None:
    """Assert that `systemd-analyze verify` prints nothing about these files."""
    command = ["systemd-analyze", "verify", "--man=no", *map(str, services)]
    env = {**os.environ, **environment}
    ended = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    assert (ended.stdout, ended.stderr) == ("", "")


def assert_exposed_at_most(service: Path, most: int) -> None:
    """Assert that `systemd-analyze security` counts so many tenths of exposure at most."""
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={most}"]
    subprocess.run([*command, "--no-pager", str(service)], check=True, capture_output=True)
