"""The record of a sweep on the disk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stale_cni_worlds import arp_reply, dnat, rules_of

from hostrouting.exceptions import HostFileError
from hostrouting.host import EbtablesRule, Neighbour, ObservedRoute
from hostrouting.journal import set_aside
from hostrouting.net.addresses import Address, Prefix, netmask
from hostrouting.net.routes import KINDS
from hostrouting.stale_cni.backup import Backup, boot_id, from_json, read_backups, remove_backup, to_json, write_backup
from hostrouting.testing import MemoryFiles

if TYPE_CHECKING:
    from hostrouting.stale_cni.sweep import Leftover

FOLDER = "/var/lib/hostrouting/stale-cni"
NOW = 1767225600.0  # 2026
NUMBERS = st.integers(0, 0xFFFFFFFF)
TEXTS = st.text(max_size=12)
EXTRA = st.lists(st.tuples(st.integers(1, 40), st.binary(max_size=20)), max_size=2).map(tuple)

BYTES = st.integers(0, 0xFF)
WORDS = st.text(st.characters(categories=["L", "N", "P"]), max_size=12)
TEXTS4 = st.ip_addresses(v=4).map(str)
TEXTS6 = st.ip_addresses(v=6).map(str)
PREFIXES6 = (
    st.tuples(TEXTS6, st.integers(0, 128)).map("{0[0]}/{0[1]}".format).map(Prefix.parse).map(lambda it: it.masked)
)
MACS = st.binary(min_size=6, max_size=6).map(lambda octets: octets.hex(":"))
PREFIXES = st.tuples(NUMBERS, st.integers(0, 32)).map(lambda drawn: (drawn[0] & netmask(drawn[1]), drawn[1]))

leftovers: st.SearchStrategy[Leftover] = st.one_of(
    st.builds(EbtablesRule, TEXTS, WORDS, NUMBERS, st.lists(WORDS).map(tuple)),
    st.builds(Neighbour, TEXTS4 | TEXTS6, TEXTS, MACS, st.booleans(), NUMBERS, BYTES),
    st.builds(
        lambda prefix, **fields: ObservedRoute(*prefix, **fields),
        PREFIXES,
        gateway=st.none() | TEXTS4.map(Address.parse),
        dev=TEXTS,
        metric=NUMBERS,
        table=st.integers(1, 0xFFFFFFFF),
        protocol=BYTES,
        kind=st.sampled_from(KINDS[1:]),
        scope=BYTES,
        source=st.none() | NUMBERS,
        tos=BYTES,
        flags=NUMBERS,
        nexthops=st.just(()),
        extra=EXTRA,
    ),
    st.builds(
        ObservedRoute.parse,
        PREFIXES6.map(str),
        TEXTS,
        gateway=st.none() | TEXTS6,
        metric=NUMBERS,
        table=st.integers(1, 0xFFFFFFFF),
        protocol=BYTES,
        kind=st.sampled_from(KINDS[1:]),
        source=st.none() | TEXTS6,
        flags=NUMBERS,
        extra=EXTRA,
        from_prefix=st.none() | PREFIXES6.map(str),
        expires=NUMBERS,
    ),
)


@given(st.lists(leftovers, max_size=4), st.dictionaries(st.sampled_from(["nft", "legacy"]), TEXTS))
def test_nothing_is_lost(objects: list[Leftover], texts: dict[str, str]) -> None:
    """Whatever an object carries, understood or not, is read back as it was, and so is the text of ebtables."""
    backup = Backup(boot_id="b", time="t", objects=tuple(objects), texts=tuple(texts.items()))
    assert from_json(to_json(backup)) == backup


def test_it_is_readable() -> None:
    """Each object is there as its own tool shows it, too, and so is all that ebtables-save printed."""
    objects: list[Leftover] = [
        *rules_of(dnat("10.240.0.9", "aa:bb:cc:00:00:09")),
        Neighbour("10.240.0.9", "azure0", "a", permanent=True),
    ]
    files = MemoryFiles()
    backup = write_backup(files, FOLDER, objects, texts=[("nft", "*nat\n")], now=NOW)
    written = json.loads(files.read(backup.path) or b"")
    assert (written["time"], written["ebtables-save"]) == ("2026-01-01T00:00:00Z", {"nft": "*nat\n"})
    assert [entry["text"] for entry in written["objects"]] == [
        f"ebtables nft nat: {dnat('10.240.0.9', 'aa:bb:cc:00:00:09')}",
        "10.240.0.9 dev azure0 lladdr a PERMANENT",
    ]


def test_only_root_may_read_it() -> None:
    """It has the addresses of a cluster in it."""
    files = MemoryFiles()
    backup = write_backup(files, FOLDER, [], texts=[], now=NOW)
    file = files.tree.file(backup.path)
    assert (backup.path, file and file.mode) == (f"{FOLDER}/sweep-20260101T000000Z-1.json", 0o600)


def test_the_newest_comes_first() -> None:
    """In whatever second they were made: they are numbered on, past nine, too."""
    files = MemoryFiles()
    files.write("/proc/sys/kernel/random/boot_id", b"boot-1\n", mode=0o444)
    made = [write_backup(files, FOLDER, [], texts=[], now=NOW + number // 6) for number in range(12)]
    backups = read_backups(files, FOLDER)
    assert [backup.path for backup in backups.current] == [backup.path for backup in reversed(made)]
    assert (backups.outlived, backups.bad) == ([], [])
    assert {backup.boot_id for backup in made} == {boot_id(files)} == {"boot-1"}


def test_other_files_in_the_folder_are_left_alone() -> None:
    """What does not have our name is somebody else's."""
    files = MemoryFiles()
    for name in ("notes.txt", "sweep-.json", "sweep-x.json", "sweep-1-2.json.orig", "sweep-2026-٣.json"):
        files.write(f"{FOLDER}/{name}", b"?", mode=0o644)
    assert read_backups(files, FOLDER) == ([], [], [])
    backup = write_backup(files, FOLDER, [], texts=[], now=NOW)
    remove_backup(files, FOLDER, backup)
    assert len(files.names(FOLDER)) == 5


@pytest.mark.parametrize(("folder", "left"), [(FOLDER, "/var/lib"), ("/srv/backups/cni/", "/srv/backups")])
def test_the_last_record_takes_the_folder_with_it(folder: str, left: str) -> None:
    """Nothing of ours remains; a folder above that an operator has chosen does."""
    files = MemoryFiles()
    first, second = (write_backup(files, folder, [], texts=[], now=NOW) for _ in range(2))
    remove_backup(files, folder, first)
    assert files.exists(second.path)
    remove_backup(files, folder, second)
    assert (files.exists(left), files.names(left)) == (True, [])


RECORD = json.loads(
    to_json(
        Backup(
            boot_id="b",
            time="t",
            objects=(
                *rules_of(arp_reply("10.240.0.9", "a")),
                Neighbour("10.240.0.9", "d", "02:00:00:00:00:09", permanent=True),
                ObservedRoute(1, 32, dev="d"),
                ObservedRoute.parse("::1/128", "d"),
            ),
        )
    )
)


def broken(number: int, **fields: object) -> bytes:
    """The record with one object that is not as we wrote it."""
    objects = [{**entry, **(fields if index == number else {})} for index, entry in enumerate(RECORD["objects"])]
    return json.dumps({**RECORD, "objects": objects}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"\xff",
        json.dumps({**RECORD, "objects": [{}]}).encode(),
        json.dumps({**RECORD, "objects": None}).encode(),
        json.dumps({**RECORD, "ebtables-save": []}).encode(),
        broken(0, object="file"),
        broken(0, spec="-j DROP", position="1"),
        broken(0, spec=[1]),
        broken(0, position=True),
        broken(0, spec=["-j", "DR\0P"]),
        broken(0, spec=["\ud800"]),
        broken(1, protocol=256),
        broken(1, address="10.240.0"),
        broken(2, destination="10.0.0.1/8"),
        broken(2, tos=999),
        broken(2, scope=-1),
        broken(2, gateway="10.0.0.256"),
        broken(2, table=0),
        broken(2, extra=[[1 << 14, "00"]]),
        broken(2, extra=[[1, "00" * 65536]]),
        broken(3, metric=1 << 32),
        broken(3, destination="fd00::/129x"),
        broken(1, permanent="yes"),
        broken(1, mac=None),
        broken(2, destination="10.0.0.1"),
        broken(2, gateway=1),
        broken(2, nexthops=[["a", "b"]]),
        broken(2, extra=[[1, "xyz"]]),
        broken(3, destination=None),
        broken(3, extra=[1]),
    ],
)
def test_a_record_that_is_not_ours_is_refused(content: bytes) -> None:
    """The error names the file and what to do; nothing of it is taken for an object."""
    files = MemoryFiles()
    path = f"{FOLDER}/sweep-20260101T000000Z-1.json"
    files.write(path, content, mode=0o600)
    good = write_backup(files, FOLDER, [], texts=[], now=NOW)
    current, outlived, ((damaged, reason),) = read_backups(files, FOLDER)
    assert (current, outlived, damaged) == ([good], [], path)
    assert reason.startswith(f"{path} is not what we wrote (")
    assert reason.endswith("put back by hand what you recognise in it, then delete it")


def test_a_folder_of_that_name_hides_no_record() -> None:
    """What cannot be read at all is like what cannot be understood."""
    files = MemoryFiles()
    files.tree.make_directory(f"{FOLDER}/sweep-20260101T000000Z-1.json")
    good = write_backup(files, FOLDER, [], texts=[], now=NOW)
    assert read_backups(files, FOLDER).current == [good]
    assert "Is a directory" in read_backups(files, FOLDER).bad[0].reason


def test_a_record_of_another_user_is_not_believed() -> None:
    """Nor is a link, nor one that others may write to: what it lists would be put back by root."""
    files = MemoryFiles()
    good, theirs, opened, linked = (write_backup(files, FOLDER, [], texts=[], now=NOW) for _ in range(4))
    files.tree.owners[theirs.path] = 65534
    files.write(opened.path, to_json(opened), mode=0o666)
    files.link(linked.path, good.path)
    backups = read_backups(files, FOLDER)
    assert backups.current == [good]
    assert [damaged.path for damaged in backups.bad] == [linked.path, opened.path, theirs.path]
    said = ("it is a symbolic link", "others than root may write to it", "it belongs to the user 65534")
    assert all(words in damaged.reason for words, damaged in zip(said, backups.bad, strict=True))


@pytest.mark.parametrize("exposed", ["/var/lib/hostrouting/stale-cni", "/var/lib", "/"])
def test_a_folder_that_others_can_write_has_no_records(exposed: str) -> None:
    """Neither is one written there, nor is one believed that lies there; also where a folder above is theirs."""
    files = MemoryFiles()
    files.tree.make_directory("/var/lib")
    if exposed != FOLDER:
        files.tree.folder_modes[exposed] = 0o1777
        with pytest.raises(HostFileError, match=f"stale-cni is no place .* others may write to {exposed} "):
            write_backup(files, FOLDER, [], texts=[], now=NOW)
        assert files.names("/var/lib") == []
        files.tree.folder_modes.clear()
    write_backup(files, FOLDER, [], texts=[], now=NOW)
    files.tree.owners[exposed] = 65534
    with pytest.raises(HostFileError, match=f"stale-cni is no place .* {exposed} belongs to the user 65534"):
        read_backups(files, FOLDER)


@pytest.mark.parametrize("damage", [b"", b"{", b"[" * 100_000, None])
def test_a_damaged_record_is_set_aside(damage: bytes | None) -> None:
    """It is there under another name, as it was; no run meets it again, and it stands in nobody's way."""
    files = MemoryFiles()
    path = f"{FOLDER}/sweep-20260101T000000Z-1.json"
    for number in (1, 2):
        if damage is None:
            files.tree.make_directory(f"{path}/sub")
        else:
            files.write(path, damage, mode=0o600)
        assert set_aside(files, path) == f"it was set aside as {path}.damaged-{number}"
        assert read_backups(files, FOLDER) == ([], [], [])
    assert files.read_link(path) is None
    if damage is not None:
        assert files.read(f"{path}.damaged-2") == damage


def test_records_of_other_boots_are_told_apart() -> None:
    """What they list went with that boot."""
    files = MemoryFiles()
    files.write("/proc/sys/kernel/random/boot_id", b"boot-1\n", mode=0o444)
    old = write_backup(files, FOLDER, [], texts=[], now=NOW)
    files.write("/proc/sys/kernel/random/boot_id", b"boot-2\n", mode=0o444)
    new = write_backup(files, FOLDER, [], texts=[], now=NOW)
    assert read_backups(files, FOLDER) == ([new], [old], [])


class FullDisk(MemoryFiles):
    """Folders can still be made, but nothing can be written."""

    def write(self, path: str, content: bytes, *, mode: int) -> bool:
        self.tree.make_directory(path.rpartition("/")[0])
        raise HostFileError(f"cannot write {path}: No space left on device")


@pytest.mark.parametrize("was_there", [False, True])
def test_a_record_that_cannot_be_written_leaves_no_folder(*, was_there: bool) -> None:
    """Only what was there before is there afterwards."""
    files = FullDisk()
    files.tree.make_directory(FOLDER if was_there else "/var/lib")
    with pytest.raises(HostFileError, match="No space left"):
        write_backup(files, FOLDER, [], texts=[], now=NOW)
    assert files.tree.exists("/var/lib/hostrouting") == was_there
