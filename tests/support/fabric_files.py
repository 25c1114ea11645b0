"""The files from which the fabric is read, whole and damaged, and the reader of them."""

import os
import random
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


def answer_of_python(folder: Path) -> str:
    """Return the answer for the files of a folder, as text."""
    with (
        patch.object(fabric, "CONFIGURATION", f"{folder}/waagent.conf"),
        patch.object(fabric, "POOL", f"{folder}/.kvp_pool_0"),
    ):
        found = fabric.read_fabric(RootedFiles(), pause=lambda: None)
    macs, addresses = ([str(pair[column]) for pair in found.addresses] for column in (0, 1))
    awaited = "yes" if found.awaited else ""
    lines = [
        f"macs {','.join(macs)}",
        f"addresses {','.join(addresses)}",
        f"source {found.source}",
        f"awaited {awaited}",
    ]
    return "\n".join([*lines, *(f"note {note}" for note in found.notes), ""])


# --- damage
# ----------------------------------------------------------------------------------------------------------

_KEYS = (
    *(b"IPoIB_Data",) * 9,
    b"zIPoIB_Data",
    b"IPoIB_Dat",
    b"IPoIB_Data2",
    b"NdDriverVersion",
    b"",
    b"IPoIB_Data".ljust(512, b"x"),
    b"x" * 502 + b"IPoIB_Data",
    b"x" * 511,
)
_PAIRS = (
    *(b"00155D33FF1D:172.16.1.4", b"00155D33FF1E:172.17.1.4", b"00155D33FF2D:172.18.1.4") * 3,
    b"00155d33ff1d:172.16.1.4",
    b"x:10.0.0.1",
    b"00155D33FF1D0:10.0.0.1",
    b"$(id):10.0.0.1",
    b"\n:10.0.0.1",
    b"x:0.0.0.0",
    b"x:1.16.172.255",
    b"x:1.256.3.4",
    b"x:1.2.010.4",
    b"x:1.2.3",
    b"x:" + b"9" * 30 + b".2.3.4",
    b"x:1.2.3.4x",
    b"x:1.2.3.4/16",
    b"x:1.2.3.4.5",
    b"x:1.2.3.4\n",
)
_HOSTILE = (
    b"\0",
    b"\n",
    b"\0\0\0",
    b"|",
    b":",
    b"'",
    b'"',
    b"\\",
    b"*",
    b" ",
    b"\r",
    b"\t",
    b"=",
    b"#",
    b"\1",
    b"\xff\xfe",
    b"`touch here`",
    b"$(touch here)",
    b"a[$(touch here)]",
    b"%s%n",
    b"9" * 40,
    b"0" * 40,
    b"IPoIB_Data",
    b"NdDriverVersion",
    b"OS.EnableRDMA=y\n",
    b"Lib.Dir=/\n",
    b"OS.CheckRdmaDriver = N\n",
    b"None",
)


def damaged_pool(source: random.Random) -> bytes:
    """Return a pool of few records, often with a fault."""
    records = []
    for _ in range(source.choice((1, 1, 1, 2, 2, 3))):
        pairs = source.choices(_PAIRS, k=source.choice((0, 1, 1, 2, 2, 3, 8)))
        number = len(pairs) + (source.random() < 0.1)
        value = b"|".join(
            [
                b"NUMPAIRS:%b%d" % (source.choice((b"", b"", b"", b"0", b"000", b"1")), number),
                *pairs,
            ]
        )
        # The rest of an older, longer value, or a value that fills its place.
        rest = source.choice(
            (b"", b"", b"", b"", b"|", b"\0IPoIB_Data", b"\0|AB:1.2.3.4", b"|" + b"7" * 2048)
        )
        records.append(record(source.choice(_KEYS), (value + rest)[:2048]))
    return damaged(source, b"".join(records), source.choice((0, 0, 0, 1, 1, 3)))


def damaged(source: random.Random, content: bytes, faults: int) -> bytes:
    """Return the content with this many faults: bytes that are replaced, left out, inserted or
    repeated near text.
    """
    for _ in range(faults):
        mark = content.find(
            source.choice((b"IPoIB_Data", b"NUMPAIRS", b"|", b":", b".", b"=", b"\n"))
        )
        near = source.random() < 0.7 and mark >= 0
        at = (
            min(len(content), mark + source.randrange(12))
            if near
            else source.randrange(len(content) + 1)
        )
        length = source.choice((0, 1, 1, 2, 512, 2048, 2560))
        again = content[at : at + length]
        new = source.choice(
            (b"", bytes([source.randrange(256)]), source.choice(_HOSTILE), again + again)
        )
        content = content[:at] + new + content[at + length :]
    return content


NOTHING = "no fabric is announced: "
OFF = f"{NOTHING}OS.EnableRDMA, OS.UpdateRdmaDriver and OS.CheckRdmaDriver are off in DIR/waagent.conf"
NO_KEY = f"{NOTHING}DIR/.kvp_pool_0 has no IPoIB_Data yet"
HOST = record(b"HostName", b"a host")


class Answer:
    """The answer of the reader for the files in a folder."""

    def __init__(self, folder: Path) -> None:
        text = answer_of_python(folder)
        rows = [line.partition(" ") for line in text.replace(str(folder), "DIR").splitlines()]
        values = {key: value for key, _, value in rows}
        self.macs = values["macs"].split(",") if values["addresses"] else []
        self.addresses = [
            format_ipv4(int(number)) for number in values["addresses"].split(",") if number
        ]
        self.source = values["source"]
        self.awaited = values["awaited"] == "yes"
        self.notes = [value for key, _, value in rows if key == "note"]


def of_pool(folder: Path, *records: bytes) -> Answer:
    """Return the answer for a pool of these records."""
    return Answer(Files(pool=b"".join(records)).write(folder))


def of_data(folder: Path, data: bytes) -> Answer:
    """Return the answer for this value of IPoIB_Data."""
    return of_pool(folder, HOST, record(b"IPoIB_Data", data))


def write_files(root: Path, announced: fabric.Fabric) -> None:
    """Write the files from which the agent takes this fabric."""
    pairs = [f"{mac}:{format_ipv4(address)}" for mac, address in announced.addresses]
    value = "|".join([f"NUMPAIRS:{len(pairs)}", *pairs])
    for path, content in {
        "/etc/waagent.conf": b"OS.EnableRDMA=y\n",
        fabric.POOL: b"IPoIB_Data".ljust(512, b"\0") + value.encode().ljust(2048, b"\0"),
    }.items():
        file = root / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
