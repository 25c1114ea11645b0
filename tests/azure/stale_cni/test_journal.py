"""The journal of sweeps: its records are complete and only root's are trusted; damaged ones stay in
place and are reported.
"""

import json
from collections.abc import Callable

import pytest
from support.printed import MAY_CHANGE
from support.stale_cni_worlds import arp_reply, dnat, rules_of

from hostrouting.azure.stale_cni.journal import (
    SweepRecord,
    Sweeps,
    from_json,
    to_json,
)
from hostrouting.exceptions import HostFileError
from hostrouting.host import Neighbour, ObservedRoute
from hostrouting.testing import MemoryFiles

FOLDER = "/var/lib/hostrouting/stale-cni"
SWEEP = f"{FOLDER}/sweep-20260101T000000Z-1.json"
NOW = 1767225600.0  # 2026
BOOT_ID = "/proc/sys/kernel/random/boot_id"
ANOTHER_USER = 65534

SWEEP_RECORD = SweepRecord(
    boot_id="b",
    time="t",
    objects=(
        *rules_of(arp_reply("10.240.0.9", "a")),
        Neighbour("10.240.0.9", "d", "02:00:00:00:00:09", permanent=True),
        ObservedRoute.parse("10.0.0.1/32", "d"),
        ObservedRoute.parse("::1/128", "d", metric=1),
    ),
    texts=(("nft", "*nat\n"), ("legacy", "")),
)


def test_nothing_is_lost() -> None:
    """A record is read as it was written; net/test_mappings.py has any route."""
    assert from_json(to_json(SWEEP_RECORD)) == SWEEP_RECORD


def test_a_record_is_readable() -> None:
    """A record has each object also as its own tool prints it, and the output of ebtables-save."""
    line = dnat("10.240.0.9", "aa:bb:cc:00:00:09")
    neighbour = Neighbour("10.240.0.9", "azure0", "aa:bb:cc:00:00:09", permanent=True)
    route = ObservedRoute.parse("172.16.1.0/24", "eth0", "10.224.0.9", protocol=4)
    files = MemoryFiles()
    record = Sweeps(files, FOLDER).add(
        [*rules_of(line), neighbour, route], texts=[("nft", "*nat\n")], now=NOW
    )
    written = json.loads(files.read(record.path) or b"")
    rule_, neighbour_, route_ = written["objects"]
    assert written["time"] == "2026-01-01T00:00:00Z"
    assert written["ebtables-save"] == {"nft": "*nat\n"}
    assert rule_["ebtables rule"] == f"ebtables nft nat: {line}"
    assert neighbour_["neighbour"] == "10.240.0.9 dev azure0 lladdr aa:bb:cc:00:00:09 PERMANENT"
    assert route_["route"] == "172.16.1.0/24 via 10.224.0.9 dev eth0 proto static"


# --- records of sweeps


def added(sweeps: Sweeps) -> SweepRecord:
    return sweeps.add([], texts=[], now=NOW)


def test_the_newest_comes_first() -> None:
    """Records are returned by their number, the newest first, even if the clock is set back."""
    sweeps = Sweeps(MemoryFiles(), FOLDER)
    made = [sweeps.add([], texts=[], now=NOW - number // 6) for number in range(12)]
    assert [record.path for record in sweeps.read().current] == [
        record.path for record in reversed(made)
    ]


def test_only_root_can_read_a_record() -> None:
    """A record contains the addresses of a cluster: its file has the mode 0600."""
    files = MemoryFiles()
    assert files.mode(added(Sweeps(files, FOLDER)).path) == 0o600


def test_a_record_never_takes_the_place_of_another() -> None:
    """A record that is added in the same second in which an older one is removed is numbered after
    the newest.
    """
    sweeps = Sweeps(MemoryFiles(), FOLDER)
    older, newer = (sweeps.add([], texts=[], now=NOW) for _ in range(2))
    sweeps.remove(older)
    newest = sweeps.add([], texts=[], now=NOW)
    assert [record.path for record in sweeps.read().current] == [newest.path, newer.path]
    assert newest.path == f"{FOLDER}/sweep-20260101T000000Z-3.json"


def test_records_of_other_boots_are_distinguished() -> None:
    """Records of earlier boots, whose objects are gone, are returned apart from those of this
    boot.
    """
    files = MemoryFiles()
    sweeps = Sweeps(files, FOLDER)
    files.write(BOOT_ID, b"boot-1\n", mode=0o444)
    old = added(sweeps)
    files.write(BOOT_ID, b"boot-2\n", mode=0o444)
    new = added(sweeps)
    assert sweeps.read() == ([new], [old], [])


def test_other_files_in_the_folder_are_left_alone() -> None:
    """Files with other names in the folder of records are ignored and kept."""
    files = MemoryFiles()
    for name in (
        "notes.txt",
        "sweep-.json",
        "sweep-x.json",
        "sweep-1-2.json.orig",
        "sweep-2026-٣.json",
    ):
        files.write(f"{FOLDER}/{name}", b"?", mode=0o644)
    sweeps = Sweeps(files, FOLDER)
    assert sweeps.read() == ([], [], [])
    sweeps.remove(added(sweeps))
    assert len(files.names(FOLDER)) == 5


@pytest.mark.parametrize(
    ("folder", "left"), [(FOLDER, "/var/lib"), ("/srv/backups/cni/", "/srv/backups")]
)
def test_the_last_record_takes_the_folder_with_it(folder: str, left: str) -> None:
    """The removal of the last record removes its folder, and keeps the folder above one that an
    operator has chosen.
    """
    files = MemoryFiles()
    sweeps = Sweeps(files, folder)
    first, second = (added(sweeps) for _ in range(2))
    sweeps.remove(first)
    assert files.exists(second.path)
    sweeps.remove(second)
    assert files.exists(left)
    assert files.names(left) == []


class FullDisk(MemoryFiles):
    """A disk on which folders can be made and nothing can be written."""

    def write(self, path: str, content: bytes, *, mode: int) -> bool:
        self.tree.make_directory(path.rpartition("/")[0])
        raise HostFileError(f"cannot write {path}: No space left on device")


@pytest.mark.parametrize("was_there", [False, True])
def test_a_record_that_cannot_be_written_leaves_no_folder(*, was_there: bool) -> None:
    """A record that cannot be written leaves only the folders that existed before."""
    files = FullDisk()
    files.tree.make_directory(FOLDER if was_there else "/var/lib")
    with pytest.raises(HostFileError, match="No space left"):
        Sweeps(files, FOLDER).add([], texts=[], now=NOW)
    assert files.tree.exists("/var/lib/hostrouting") == was_there


class BrokenDisk(FullDisk):
    """A disk on which no file can be written and no folder be removed."""

    def remove_directory_if_empty(self, path: str) -> bool:
        raise HostFileError(f"cannot remove {path}: Input/output error")


def test_a_folder_that_stays_does_not_hide_why_a_record_was_not_written() -> None:
    """The error for a record that cannot be written is that of the write, even if its folder cannot
    be removed.
    """
    files = BrokenDisk()
    files.tree.make_directory("/var/lib")
    with pytest.raises(HostFileError) as caught:
        Sweeps(files, FOLDER).add([], texts=[], now=NOW)
    assert str(caught.value) == f"cannot write {SWEEP}: No space left on device"


# --- damage

SWEPT: dict[str, object] = json.loads(to_json(SWEEP_RECORD))


def broken(number: int, **fields: object) -> bytes:
    """Return the record with one object that differs from our form."""
    entries: list[dict[str, object]] = SWEPT["objects"]  # type: ignore[assignment]
    objects = [
        {**entry, **(fields if index == number else {})} for index, entry in enumerate(entries)
    ]
    return json.dumps({**SWEPT, "objects": objects}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"\xff",
        b'{"objects": []}',
        b'{"objects": 7, "time": "t", "boot_id": "b", "ebtables-save": {}}',
        json.dumps({**SWEPT, "objects": [{"file": "a"}]}).encode(),
        json.dumps({**SWEPT, "ebtables-save": 7}).encode(),
        broken(0, position="1"),
        broken(0, backend="iptables"),
        broken(0, spec=["-j", "DR\0P"]),
        broken(0, spec=["\ud800"]),
        broken(1, protocol=256),
        broken(1, address="10.240.0"),
        broken(1, permanent="yes"),
        broken(1, mac=None),
        broken(2, destination="10.0.0.1/8"),
        broken(2, tos=999),
        broken(2, scope=1e999),
        broken(2, gateway="300.1.1.1"),
        broken(2, extra=[[1, "00" * 65536]]),
        broken(2, kind="teleport"),
        broken(2, nexthops=[["a", "b"]]),
        broken(3, metric=1 << 32),
        broken(3, destination="fd00::/129x"),
        broken(3, destination=None),
        broken(3, extra=[1]),
    ],
)
def test_a_damaged_sweep_is_not_restored(content: bytes) -> None:
    """A damaged record is reported with its file and the next step, stays as it is, and does not
    keep other records from being read.
    """
    files = MemoryFiles()
    files.write(SWEEP, content, mode=0o600)
    sweeps = Sweeps(files, FOLDER)
    good = added(sweeps)
    current, outlived, (damaged,) = sweeps.read()
    assert current == [good]
    assert outlived == []
    assert damaged.path == SWEEP
    assert damaged.damage.startswith(f"{SWEEP} is damaged: ")
    assert damaged.damage.endswith("; restore by hand the objects that are missing, then delete it")
    assert files.read(SWEEP) == content


def test_a_folder_with_the_name_of_a_record_hides_no_record() -> None:
    """A folder with the name of a record counts as a damaged record."""
    files = MemoryFiles()
    files.tree.make_directory(SWEEP)
    sweeps = Sweeps(files, FOLDER)
    good = added(sweeps)
    assert sweeps.read().current == [good]
    assert "it is not a file" in sweeps.read().damaged[0].damage


def _give_to_another_user(files: MemoryFiles, record: SweepRecord, _good: SweepRecord) -> None:
    files.tree.change(record.path, owner=ANOTHER_USER)


def _open_to_others(files: MemoryFiles, record: SweepRecord, _good: SweepRecord) -> None:
    files.write(record.path, to_json(record), mode=0o666)


def _link_to_a_good_one(files: MemoryFiles, record: SweepRecord, good: SweepRecord) -> None:
    files.link(record.path, good.path)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_give_to_another_user, "(owner 65534,"),
        (_open_to_others, "(owner 0, mode 0666)"),
        (_link_to_a_good_one, "it is a symbolic link"),
    ],
)
def test_a_record_that_others_can_change_is_not_trusted(
    spoil: Callable[[MemoryFiles, SweepRecord, SweepRecord], None], reason: str
) -> None:
    """A record that another user could have written, or that is a link, counts as damaged, since
    root would restore its objects.
    """
    files = MemoryFiles()
    sweeps = Sweeps(files, FOLDER)
    good = added(sweeps)
    spoiled = added(sweeps)
    spoil(files, spoiled, good)
    recorded = sweeps.read()
    assert [record.path for record in recorded.current] == [good.path]
    [damaged] = recorded.damaged
    assert damaged.path == spoiled.path
    assert reason in damaged.damage


@pytest.mark.parametrize("exposed", ["/var/lib/hostrouting/stale-cni", "/var/lib", "/"])
def test_a_folder_that_others_can_write_has_no_records(exposed: str) -> None:
    """A folder that another user can write to, itself or through one above, is refused for writing
    and for reading records.
    """
    files = MemoryFiles()
    files.tree.make_directory("/var/lib")
    sweeps = Sweeps(files, FOLDER)
    if exposed != FOLDER:
        files.tree.change(exposed, mode=0o1777)
        with pytest.raises(
            HostFileError,
            match=f"stale-cni is not safe .* {MAY_CHANGE}{exposed} ",
        ):
            added(sweeps)
        assert files.names("/var/lib") == []
        files.tree.change(exposed, mode=0o755)
    added(sweeps)
    files.tree.change(exposed, owner=ANOTHER_USER)
    with pytest.raises(
        HostFileError, match=rf"stale-cni is not safe .* {exposed} \(owner 65534, mode "
    ):
        sweeps.read()
