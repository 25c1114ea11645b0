"""Files of the fabric that are odd, or change while they are read."""

import os
from pathlib import Path

import pytest
from support.fabric_files import DATA, HOST, SWITCHED_ON, Answer, Files, of_pool, record
from support.printed import NO_FABRIC

from hostrouting.exceptions import HostFileError
from hostrouting.route_overlap import fabric
from hostrouting.testing import MemoryFiles


class TestOddFiles:
    @pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
    @pytest.mark.parametrize("name", ["waagent.conf", ".kvp_pool_0"])
    def test_what_is_not_a_file_is_reported(self, folder: Path, name: str, kind: str) -> None:
        """A folder, a fifo or a broken link in the place of a file is reported at once, and is not
        awaited.
        """
        path = Files().write(folder) / name
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to("nowhere")
        answer = Answer(folder)
        assert answer.notes == [f"{NO_FABRIC}DIR/{name} is not a regular file"]
        assert not answer.awaited

    @pytest.mark.parametrize("name", [".kvp_pool_0", "waagent.conf"])
    def test_a_huge_file_is_not_read(self, folder: Path, name: str) -> None:
        """A file over 256 KiB is not read, and one byte less is; a sparse file of 10 GB takes no
        time.
        """
        path = Files().write(folder) / name
        path.write_bytes(path.read_bytes().ljust(262145, b"\0" if name == ".kvp_pool_0" else b"\n"))
        for size in 262145, 10**10:
            os.truncate(path, size)
            answer = Answer(folder)
            assert answer.addresses == []
            assert not answer.awaited
            assert answer.notes == [f"{NO_FABRIC}DIR/{name} is larger than 256 KiB"]
        os.truncate(path, 262144)
        answer = Answer(folder)
        assert len(answer.addresses) == 2
        assert answer.notes == []

    @pytest.mark.parametrize("length", [1, 100, 512, 2559])
    def test_a_torn_end_does_not_count(self, folder: Path, length: int) -> None:
        """The whole records of a pool with a torn end count."""
        answer = of_pool(
            folder, HOST, record(b"IPoIB_Data", DATA), record(b"NdDriverVersion", b"1")[:length]
        )
        assert len(answer.addresses) == 2
        assert answer.notes == []

    def test_a_pool_that_is_being_written_is_read_again(self) -> None:
        """A torn pool is read up to three times in all, with a pause before each further reading,
        and the last reading counts.
        """
        whole = HOST + record(b"IPoIB_Data", DATA)
        pauses: list[int] = []
        files = MemoryFiles()
        for name, content in {fabric.CONFIGURATION: SWITCHED_ON, fabric.POOL: whole[:-1]}.items():
            files.tree.write(name, content, mode=0o644)

        def pause() -> None:
            pauses.append(len(pauses))
            files.tree.write(fabric.POOL, whole[: len(whole) - 2 + len(pauses)], mode=0o644)

        assert len(fabric.read_fabric(files, pause=pause).addresses) == 2
        assert len(pauses) == 2

    def test_a_pool_that_stays_torn_is_read_three_times(self) -> None:
        """A pool that stays torn is read three times, and its torn record does not count."""
        files = MemoryFiles()
        torn = HOST + record(b"IPoIB_Data", DATA)[:-1]
        for name, content in {fabric.CONFIGURATION: SWITCHED_ON, fabric.POOL: torn}.items():
            files.tree.write(name, content, mode=0o644)
        found = fabric.read_fabric(files, pause=lambda: None)
        assert found.notes == (f"{NO_FABRIC}{fabric.POOL} has no IPoIB_Data yet",)
        assert files.operations.calls.count(("read", fabric.POOL)) == 3

    def test_an_emptied_pool_is_read_again(self) -> None:
        """An empty pool is read again, as the daemon empties the pool before it writes it."""
        whole = record(b"IPoIB_Data", DATA)
        files = MemoryFiles()
        for name, content in {fabric.CONFIGURATION: SWITCHED_ON, fabric.POOL: b""}.items():
            files.tree.write(name, content, mode=0o644)

        def pause() -> None:
            files.tree.write(fabric.POOL, whole, mode=0o644)

        assert len(fabric.read_fabric(files, pause=pause).addresses) == 2

    @pytest.mark.parametrize("number", range(1, 9))
    def test_any_operation_may_fail(self, number: int) -> None:
        """A file that cannot be read or looked at is reported as a note."""
        files = MemoryFiles()
        for name, content in (fabric.CONFIGURATION, SWITCHED_ON), (fabric.POOL, HOST):
            files.tree.write(name, content, mode=0o644)
        files.fail_at(number, HostFileError("no luck"))
        assert fabric.read_fabric(files, pause=lambda: None).notes
