"""The files from which the fabric is read, whole and damaged, and both readers of them."""

import os
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from unittest.mock import patch

from hostrouting.boot import layout
from hostrouting.host.files.store import RootedFiles
from hostrouting.route_overlap import fabric

NOW: Final = 1_700_000_000

DATA: Final = b"NUMPAIRS:2|00155D33FF1D:172.16.1.4|00155D33FF1E:172.17.1.4"
SWITCHED_ON: Final = b"# The agent's settings\nProvisioning.Enabled=y\nOS.EnableRDMA=y\n"


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


# --- the two readers -------------------------------------------------------------------------------------------------


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


_PROGRAM: Final = r"""
fabric_pause=0
[[ $1 ]] && stat() { echo "$status"; }
while read -r folder status; do
  fabric_configuration=$folder/waagent.conf fabric_pool=$folder/.kvp_pool_0
  read_fabric
  date_fabric_source
  IFS=,
  printf '%s\n' "macs ${fabric_macs[*]}" "addresses ${fabric_addresses[*]}" "source $fabric_source" \
    "awaited $fabric_awaited" "${fabric_notes[@]/#/note }"
  printf '\0'
  IFS=$' \t\n'
done
"""


def answers_of_bash(folders: Sequence[Path], *, with_stat: bool = True, before: str = "") -> list[str]:
    """Return the answer for each folder, from one process that prints nothing else; it runs `before` first.

    Without `stat` it starts no other process; every folder has a pool then.
    """
    rows = [f"{folder}{'' if with_stat else _status(folder)}\n" for folder in folders]
    said = run_reader(f"{before}\n{_PROGRAM}", "" if with_stat else "told", text="".join(rows))
    answers = said.split("\0")[:-1]
    assert len(answers) == len(folders)
    return answers


def run_reader(program: str, *words: str, text: str = "") -> str:
    """Return the output of a program in bash that has the functions of the reader; it prints no error."""
    assets = [layout.read_asset(layout.__file__, "shared.sh"), layout.read_asset(fabric.__file__, "fabric.sh")]
    command = b"set -fu\nexport LC_ALL=C\n%b%b%b" % (*assets, program.encode())
    done = subprocess.run(
        ["bash", "-pc", command, "bash", *words], input=text.encode(), capture_output=True, check=True
    )
    assert done.stderr == b""
    return done.stdout.decode("latin-1")


def _status(folder: Path) -> str:
    status = (folder / ".kvp_pool_0").stat()
    return f" {int(status.st_mtime)}"


# --- damage ----------------------------------------------------------------------------------------------------------


def damaged_pool(source: random.Random) -> bytes:
    """Return a pool of few records, with a fault or more."""
    records = [_record(source) for _ in range(source.choice((1, 1, 1, 2, 2, 3)))]
    for _ in range(source.choice((0, 0, 1, 1, 2))):
        records[source.randrange(len(records))] = _dirty(source, records[source.randrange(len(records))])
    return damaged(source, b"".join(records), source.choice((0, 0, 0, 1, 1, 3)))


def damaged(source: random.Random, content: bytes, faults: int) -> bytes:
    """Return the content with this many faults: flipped bytes, cuts, insertions, shifts and repetitions."""
    for _ in range(faults):
        content = source.choice(_FAULTS)(source, content)
    return content


def _flip(source: random.Random, content: bytes) -> bytes:
    at = _place(source, content)
    return content[:at] + bytes([source.randrange(256)]) + content[at + 1 :]


def _cut_off(source: random.Random, content: bytes) -> bytes:
    return content[: _place(source, content)]


def _insert(source: random.Random, content: bytes) -> bytes:
    at = _place(source, content)
    return content[:at] + source.choice(_HOSTILE) + content[at:]


def _leave_out(source: random.Random, content: bytes) -> bytes:
    at = _place(source, content)
    return content[:at] + content[at + source.choice((1, 2, 512, 2048, 2560)) :]


def _repeat(source: random.Random, content: bytes) -> bytes:
    at = _place(source, content)
    return content[: at + source.choice((1, 512, 2560))] + content[at:]


_FAULTS: Final = (_flip, _flip, _flip, _cut_off, _insert, _leave_out, _repeat)


def _place(source: random.Random, content: bytes) -> int:
    """Return a place in the content: any, or more often one with text near it."""
    at = source.randrange(len(content) + 1)
    near = content.find(source.choice(_MARKS), at if source.random() < 0.5 else 0)
    return at if near < 0 or source.random() < 0.3 else min(len(content), near + source.randrange(12))


_MARKS: Final = (b"IPoIB_Data", b"NUMPAIRS", b"NdDriver", b"|", b":", b".", b"=", b"\n", b"Rdma", b'"')
_HOSTILE: Final = (
    *(b"\0", b"\n", b"\0\0\0", b"|", b":", b"'", b'"', b"\\", b"*", b" ", b"\r", b"\t", b"=", b"#", b"\1", b"\xff\xfe"),
    *(b"`touch here`", b"$(touch here)", b"a[$(touch here)]", b"%s%n", b"9" * 40, b"0" * 40),
    *(b"IPoIB_Data", b"NdDriverVersion", b"OS.EnableRDMA=y\n", b"Lib.Dir=/\n", b"OS.CheckRdmaDriver = N\n", b"None"),
)


def _record(source: random.Random) -> bytes:
    return record(_key(source), _value(source))


def _key(source: random.Random) -> bytes:
    odd: Sequence[Callable[[], bytes]] = (
        lambda: b"zIPoIB_Data",
        lambda: b"IPoIB_Dat",
        lambda: b"IPoIB_Data2",
        lambda: b"NdDriverVersion",
        lambda: b"",
        lambda: b"IPoIB_Data".ljust(512, b"x"),
        lambda: b"x" * 502 + b"IPoIB_Data",
        lambda: b"x" * 511,
        lambda: source.randbytes(source.choice((3, 512))),
    )
    return b"IPoIB_Data" if source.random() < 0.6 else source.choice(odd)()


def _value(source: random.Random) -> bytes:
    if source.random() < 0.08:
        return source.choice((b"", b"144.0", source.randbytes(2048), b"IPoIB_Data".ljust(2048, b"\1"), b"\n" * 2048))
    pairs = [_pair(source) for _ in range(source.choice((0, 1, 1, 2, 2, 3, 8)))]
    number = source.choice((b"", b"", b"", b"0", b"000", b"1")) + b"%d" % (len(pairs) + (source.random() < 0.1))
    value = b"|".join([b"NUMPAIRS:" + number + source.choice((b"",) * 8 + (b"x", b"|", b" ")), *pairs])
    if source.random() < 0.15:
        # A value may end without a NUL.
        value += (b"|" if source.random() < 0.3 else b"") + b"7" * 2048
    return value[:2048]


def _pair(source: random.Random) -> bytes:
    mac = source.choice((b"00155D33FF1D", b"00155D33FF1E", b"00155d33ff1d", b"x", b"00155D33FF1D0", b"$(id)", b"\n"))
    octets = [source.choice((b"0", b"1", b"16", b"172", b"255", b"256", b"010", b"9" * 30)) for _ in range(4)]
    usual = (
        (mac if source.random() < 0.5 else b"00155D33FF%02X" % source.randrange(256)),
        b"172.%d.1.4" % source.randrange(256),
    )
    quad = usual[1] if source.random() < 0.7 else b".".join(octets[: source.choice((3, 4, 4, 4, 4, 4))])
    return usual[0] + b":" + quad + source.choice((b"",) * 9 + (b"x", b"/16", b".5", b"\n"))


def _dirty(source: random.Random, whole: bytes) -> bytes:
    """Return the record with rests of older text after a NUL, as a shorter value leaves them."""
    at = source.choice((511, 2559, 600, 2000))
    rest = source.choice((b"x", b"\n", b"IPoIB_Data", b"0|AB:1.2.3.4"))
    start = at - len(rest) + 1
    return whole[:start] + rest + whole[at + 1 :]
