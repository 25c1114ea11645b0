"""The files from which the fabric is read, and the reader of them."""

import os
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from hostrouting.host.files.store import RootedFiles
from hostrouting.net.addresses import format_ipv4
from hostrouting.route_overlap import fabric

NOW = 1_700_000_000

DATA = b"NUMPAIRS:2|00155D33FF1D:172.16.1.4|00155D33FF1E:172.17.1.4"
SWITCHED_ON = b"# The agent's settings\nProvisioning.Enabled=y\nOS.EnableRDMA=y\n"


def record(key: bytes, value: bytes) -> bytes:
    """Return a record of the pool."""
    return key.ljust(512, b"\0") + value.ljust(2048, b"\0")


class Files(NamedTuple):
    """The contents of the agent's files; None for an absent one. The folder stands for all folders."""

    configuration: bytes | None = SWITCHED_ON
    pool: bytes | None = record(b"HostName", b"a host") + record(b"IPoIB_Data", DATA)
    #: The pool was written so many seconds ago.
    age: int = 40

    def write(self, folder: Path) -> Path:
        """Write the files into a new folder."""
        folder.mkdir()
        for name, content in ("waagent.conf", self.configuration), (".kvp_pool_0", self.pool):
            if content is not None:
                (folder / name).write_bytes(content)
                os.utime(folder / name, (NOW - self.age, NOW - self.age))
        return folder


HOST = record(b"HostName", b"a host")


class Answer:
    """The answer of the reader for the files in a folder, which its texts call DIR."""

    def __init__(self, folder: Path) -> None:
        with (
            patch.object(fabric, "CONFIGURATION", f"{folder}/waagent.conf"),
            patch.object(fabric, "POOL", f"{folder}/.kvp_pool_0"),
        ):
            found = fabric.read_fabric(RootedFiles(), pause=lambda: None)
        self.macs = [mac for mac, _ in found.addresses]
        self.addresses = [format_ipv4(address) for _, address in found.addresses]
        self.source = found.source.replace(str(folder), "DIR")
        self.awaited = found.awaited
        self.notes = [note.replace(str(folder), "DIR") for note in found.notes]


def of_pool(folder: Path, *records: bytes) -> Answer:
    """Return the answer for a pool of these records."""
    return Answer(Files(pool=b"".join(records)).write(folder))


def announcing(announced: fabric.Fabric) -> dict[str, bytes]:
    """Return the contents of the files from which the agent takes this fabric, by their paths."""
    pairs = [f"{mac}:{format_ipv4(address)}" for mac, address in announced.addresses]
    value = "|".join([f"NUMPAIRS:{len(pairs)}", *pairs])
    return {"/etc/waagent.conf": SWITCHED_ON, fabric.POOL: record(b"IPoIB_Data", value.encode())}
