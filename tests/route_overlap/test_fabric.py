"""The announced fabric: when the agent would act and what it would add, as both readers say."""

from __future__ import annotations

import os
import random
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fabric_files import (
    DATA,
    NOW,
    SHARED,
    SWITCHED_ON,
    Files,
    answer_of_python,
    answers_of_bash,
    damaged,
    damaged_pool,
    record,
    run_reader,
)

from hostrouting.boot import layout
from hostrouting.exceptions import HostFileError
from hostrouting.host.files.store import RootedFiles
from hostrouting.net.addresses import format_ipv4
from hostrouting.route_overlap import fabric
from hostrouting.testing import MemoryFiles

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = "no fabric is announced: "
OFF = f"{NOTHING}OS.EnableRDMA, OS.UpdateRdmaDriver and OS.CheckRdmaDriver are off in DIR/waagent.conf"
UNREAD = "DIR/SharedConfig.xml cannot be read, so its RDMA addresses count as there"
WITHOUT_ADDRESSES = f"{NOTHING}DIR/SharedConfig.xml has no rdmaIPv4Address and rdmaMacAddress in its first Instance"
NO_KEY = f"{NOTHING}DIR/.kvp_pool_0 has no IPoIB_Data yet"
TORN = "DIR/.kvp_pool_0 ends within a record, which does not count"
HOST = record(b"HostName", b"a host")


class Answer:
    """What both readers say of the files in a folder, after they were found to agree."""

    def __init__(self, folder: Path, *, uptime: str = "300.5 9.1") -> None:
        text = answer_of_python(folder, uptime=float(uptime.split(maxsplit=1)[0]) if uptime else None)
        assert answers_of_bash([folder], uptime=uptime) == [text]
        rows = [line.partition(" ") for line in text.replace(str(folder), "DIR").splitlines()]
        values = {key: value for key, _, value in rows}
        self.macs = values["macs"].split(",") if values["addresses"] else []
        self.addresses = [format_ipv4(int(number)) for number in values["addresses"].split(",") if number]
        self.source = values["source"]
        self.awaited = values["awaited"] == "yes"
        self.notes = [value for key, _, value in rows if key == "note"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A path for the files."""
    return tmp_path / "node"


def of_pool(folder: Path, *records: bytes) -> Answer:
    """Return the answer for a pool of these records."""
    return Answer(Files(pool=b"".join(records)).write(folder))


def of_data(folder: Path, data: bytes) -> Answer:
    """Return the answer for this value of IPoIB_Data."""
    return of_pool(folder, HOST, record(b"IPoIB_Data", data))


class TestAnnounced:
    def test_what_the_agent_would_add(self, folder: Path) -> None:
        """Every pair, in its order, with the source and its date; nothing is odd and nothing is awaited."""
        answer = Answer(Files().write(folder))
        assert answer.macs == ["00155D33FF1D", "00155D33FF1E"]
        assert answer.addresses == ["172.16.1.4", "172.17.1.4"]
        assert (answer.source, answer.notes) == ("DIR/.kvp_pool_0, written 2023-11-14 22:12 UTC", [])
        assert not answer.awaited

    @pytest.mark.parametrize(
        ("age", "uptime", "words"),
        [
            (0, "300.5 9.1", "2023-11-14 22:13 UTC"),
            (300, "300.5 9.1", "2023-11-14 22:08 UTC"),
            (301, "300.5 9.1", "2023-11-14 22:08 UTC, in an earlier boot"),
            (3 * 86400, "90000.0 9.1", "2023-11-11 22:13 UTC, in an earlier boot"),
            (3 * 86400, "", "2023-11-11 22:13 UTC"),
            (-50, "300.5 9.1", "2023-11-14 22:14 UTC"),
        ],
    )
    def test_its_date_is_said(self, folder: Path, age: int, uptime: str, words: str) -> None:
        """A pool of an earlier boot counts; without a known uptime, the boot is not mentioned."""
        answer = Answer(Files(age=age).write(folder), uptime=uptime)
        assert answer.source == f"DIR/.kvp_pool_0, written {words}"
        assert len(answer.addresses) == 2

    def test_the_first_record_of_a_key_counts(self, folder: Path) -> None:
        """The second one is as good as absent, whatever it holds."""
        answer = of_pool(folder, record(b"IPoIB_Data", b"NUMPAIRS:1|x:10.0.0.1"), record(b"IPoIB_Data", DATA))
        assert answer.addresses == ["10.0.0.1"]
        assert of_pool(folder / "other", record(b"NdDriverVersion", b""), HOST).notes == [NO_KEY]

    @pytest.mark.parametrize("data", [DATA, DATA + b"|" + b"7" * (2047 - len(DATA))])
    def test_rests_of_older_text_do_not_count(self, folder: Path, data: bytes) -> None:
        """Bytes after the first NUL of a key or value, which a shorter text leaves, change nothing."""
        odd = b"IPoIB_Data\0old".ljust(511, b"\0") + b"x" + (DATA + b"\0|9").ljust(2047, b"\0") + b"\n"
        answer = of_pool(folder, record(b"Old", b"1")[:600] + HOST[600:], odd)
        assert answer.addresses == ["172.16.1.4", "172.17.1.4"]

    def test_a_key_and_a_value_may_fill_their_places(self, folder: Path) -> None:
        """Neither needs a NUL at its end."""
        value = b"NUMPAIRS:1|00155D33FF1D:10.0.0.1".ljust(2048, b"x")
        assert of_pool(folder, record(b"k" * 512, b"v" * 2048), record(b"IPoIB_Data", value), HOST).addresses == [
            "10.0.0.1"
        ]

    def test_text_after_a_pair_or_number_is_ignored(self, folder: Path) -> None:
        """The agent reads only what it expects of the beginning."""
        assert of_data(folder, b"NUMPAIRS:002x|a:10.0.0.1/24|b:10.0.0.2.3").addresses == ["10.0.0.1", "10.0.0.2"]

    def test_a_mac_that_no_device_can_have_is_left_out(self, folder: Path) -> None:
        """Its address counts all the same; the text, which may be anything, goes nowhere."""
        answer = of_data(folder, b"NUMPAIRS:3|00155d33ff1d:10.0.0.1|$(id)\n`id`:10.0.0.2|00155D33FF1E:10.0.0.3")
        assert answer.macs == ["", "", "00155D33FF1E"]
        assert answer.addresses == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]

    def test_a_pair_without_an_address_fails_alone(self, folder: Path) -> None:
        """An octet that is too large or has a leading zero, and the address 0.0.0.0, are said by their number."""
        bad = [b"10.0.0.256", b"10.0.01.1", b"0.0.0.0", b"9" * 99 + b".0.0.1"]
        answer = of_data(folder, b"NUMPAIRS:5|a:10.0.0.1|" + b"|".join(b"a:" + quad for quad in bad))
        assert answer.addresses == ["10.0.0.1"]
        start = "IPoIB_Data in DIR/.kvp_pool_0 has no IPv4 address in these of its pairs, which do not count"
        assert answer.notes == [f"{start}: 2, 3, 4, 5"]


class TestSwitchedOff:
    @pytest.mark.parametrize("damage", ["none", "link"])
    def test_without_the_agent_there_is_nothing_to_say(self, folder: Path, damage: str) -> None:
        """No configuration, no note; a link to nothing is a note."""
        Files(configuration=None).write(folder)
        if damage == "link":
            (folder / "waagent.conf").symlink_to("nowhere")
        answer = Answer(folder)
        assert (answer.addresses, answer.source, answer.awaited) == ([], "", False)
        assert answer.notes == ([f"{NOTHING}DIR/waagent.conf is no regular file"] if damage == "link" else [])

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"OS.EnableRDMA=n\nOS.UpdateRdmaDriver=n\nOS.CheckRdmaDriver=n\n",
            b"#OS.EnableRDMA=y\n",
            b"OS.EnableRDMA=#y\n",
            b"OS.EnableRDMA=y\nOS.EnableRDMA=n\n",
            b"OS.EnableRDMA=y\nOS.EnableRDMA=None\n",
            b"OS.EnableRDMA=yes\n",
            b'OS.EnableRDMA=\t"y"\n',
            b"xOS.EnableRDMA=y\nOS_EnableRDMA=y\nos.enablerdma=y\nOS.EnableRDMA y=y\n",
            b"OS.EnableRDMA=y".ljust(1025) + b"\n",
            b"\0OS.EnableRDMA=y\n",
            b"OS.EnableRDMA=$(echo y)\nOS.EnableRDMA=`echo y`\na[$(touch here)]=y\n",
        ],
    )  # fmt: skip
    def test_off(self, folder: Path, text: bytes) -> None:
        """Only a switch that the agent would read as on counts, and the last line of a key decides."""
        answer = Answer(Files(configuration=text).write(folder))
        assert (answer.addresses, answer.notes, answer.awaited) == ([], [OFF], False)

    @pytest.mark.parametrize(
        "text",
        [
            b"OS.EnableRDMA=y\n",
            b"OS.UpdateRdmaDriver=Y\n",
            b"OS.CheckRdmaDriver=y",
            b' \tOS.EnableRDMA\t= "y" # on = on\r\n',
            b"OS.EnableRDMA=n\n # no\nOS.EnableRDMA=y\r\n",
            b"OS.EnableRDMA=y".ljust(1024) + b"\n",
        ],
    )  # fmt: skip
    def test_on(self, folder: Path, text: bytes) -> None:
        """One of the three is enough; blanks, quotes and comments do not matter."""
        assert len(Answer(Files(configuration=text).write(folder)).addresses) == 2

    def test_then_nothing_else_is_read(self) -> None:
        """The pool and SharedConfig.xml are not touched."""
        files = MemoryFiles()
        files.tree.write(fabric.CONFIGURATION, b"OS.EnableRDMA=n\n", mode=0o644)
        fabric.read_fabric(files, now=NOW, uptime=None, pause=lambda: None)
        assert {path for _, path in files.operations.calls} == {fabric.CONFIGURATION}


class TestNothingInThePool:
    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b"", "does not begin with NUMPAIRS and a number"),
            (b"NUMPAIRS:|a:10.0.0.1", "does not begin with NUMPAIRS and a number"),
            (b" NUMPAIRS:1|a:10.0.0.1", "does not begin with NUMPAIRS and a number"),
            (b"NUMPAIRS:2|a:10.0.0.1", "has another number of pairs (1) than its NUMPAIRS says"),
            (b"NUMPAIRS:1|a:10.0.0.1|", "has another number of pairs (2) than its NUMPAIRS says"),
            (b"NUMPAIRS:" + b"9" * 2000 + b"|a:1.1.1.1", "has another number of pairs (1) than its NUMPAIRS says"),
            (b"NUMPAIRS:18446744073709551617|a:1.1.1.1", "has another number of pairs (1) than its NUMPAIRS says"),
            (b"NUMPAIRS:2|a:10.0.0.1|a:10.0.0", "has no hardware address with an IPv4 address in its pair 2"),
            (b"NUMPAIRS:1|:10.0.0.1", "has no hardware address with an IPv4 address in its pair 1"),
            (b"NUMPAIRS:1|00:15:5D:33:FF:1D:10.0.0.1", "has no hardware address with an IPv4 address in its pair 1"),
            (b"NUMPAIRS:1|", "has no hardware address with an IPv4 address in its pair 1"),
            (b"NUMPAIRS:0", "has no addresses"),
        ],
    )
    def test_one_fault_is_enough(self, folder: Path, data: bytes, reason: str) -> None:
        """The agent takes all pairs or none."""
        answer = of_data(folder, data)
        assert answer.notes == [f"{NOTHING}IPoIB_Data in DIR/.kvp_pool_0 {reason}"]
        assert (answer.addresses, answer.source, answer.awaited) == ([], "", False)

    def test_another_driver(self, folder: Path) -> None:
        """With a version of Network Direct, the agent does not look at the addresses of the pool."""
        answer = of_pool(folder, record(b"IPoIB_Data", DATA), record(b"NdDriverVersion", b"144.0"))
        reason = "NdDriverVersion in DIR/.kvp_pool_0 selects a driver that takes no addresses from there"
        assert (answer.notes, answer.awaited) == ([NOTHING + reason], False)

    @pytest.mark.parametrize(
        "pool",
        [
            b"",
            HOST,
            record(b"zIPoIB_Data", DATA),
            record(b"IPoIB_Data2", DATA),
            record(b"IPoIB_Data\n", DATA),
            record(b"Old", b"x") + record(b"", b"IPoIB_Data"),
            record(b"x" * 502 + b"IPoIB_Data", DATA),
            b"x" * 512 + record(b"IPoIB_Data", DATA)[:2048],
            record(b"Old\0IPoIB_Data", DATA),
        ],
    )
    def test_the_key_is_awaited(self, folder: Path, pool: bytes) -> None:
        """A longer key, or the text in another place, is not the key; the daemon may write it later."""
        answer = Answer(Files(pool=pool).write(folder))
        assert (answer.notes, answer.awaited) == ([NO_KEY], True)

    def test_an_absent_pool_is_awaited(self, folder: Path) -> None:
        """Its daemon may not have started yet."""
        answer = Answer(Files(pool=None).write(folder))
        assert (answer.notes, answer.awaited) == ([f"{NOTHING}DIR/.kvp_pool_0 does not exist yet"], True)


class TestSharedConfig:
    @pytest.mark.parametrize(
        "text",
        [
            SHARED,
            b"<Instance\trdmaIPv4Address\n=\r'1'  rdmaMacAddress=\"'\"/>",
            b"<?p <Instance/> ?><![CDATA[ <Instance> ]]><Instance rdmaMacAddress='1' rdmaIPv4Address='>'>",
            b"<!-- > <Instance> --><Instance rdmaMacAddress='1' rdmaIPv4Address='1'>",
            b"<Instances x='' /><InstanceOf/><Instance rdmaMacAddress='1' rdmaIPv4Address='1'/><Instance/>",
        ],
    )
    def test_has_the_addresses(self, folder: Path, text: bytes) -> None:
        """The first Instance has both, however it is written."""
        answer = Answer(Files(shared=text).write(folder))
        assert (len(answer.addresses), answer.notes) == (2, [])

    @pytest.mark.parametrize(
        "text",
        [
            b"<SharedConfig></SharedConfig>",
            b"<SharedConfig><Instances/></SharedConfig>\n",
            b"<Instance/><Instance rdmaIPv4Address='1' rdmaMacAddress='1'/>",
            b"<Instance rdmaIPv4Address='1'/>",
            b"<Instance rdmaIPv4Address='1' rdmaMacAddress=''/>",
            b'<Instance rdmaIPv4Address="" rdmaMacAddress="1"/>',
            b"<Instance xrdmaIPv4Address='1' rdmaMacAddress='1'/>",
            b"<!-- <Instance rdmaIPv4Address='1' rdmaMacAddress='1'/> --></SharedConfig>",
        ],
    )
    def test_has_none(self, folder: Path, text: bytes) -> None:
        """The agent does nothing, so that nothing is awaited either."""
        answer = Answer(Files(shared=text).write(folder))
        assert (answer.addresses, answer.notes, answer.awaited) == ([], [WITHOUT_ADDRESSES], False)
        without_key = Answer(Files(shared=text, pool=HOST).write(folder / "other"))
        assert (without_key.notes, without_key.awaited) == ([WITHOUT_ADDRESSES], False)

    @pytest.mark.parametrize(
        "text",
        [
            None,
            b"",
            b"\0" + SHARED,
            b"no xml",
            SHARED[:40],
            SHARED[:100],
            SHARED[:200],
            b"<SharedConfig/>",
            b"<a></a>",
            b"<a><!-- >",
            b"<a><!-- </SharedConfig",
            SHARED.ljust(262145),
        ],
    )
    def test_cannot_be_read(self, folder: Path, text: bytes | None) -> None:
        """An absent, torn or huge one counts as if it had them, and is said."""
        answer = Answer(Files(shared=text).write(folder))
        assert (len(answer.addresses), answer.notes) == (2, [UNREAD])

    def test_is_in_the_folder_of_the_agent(self, folder: Path) -> None:
        """A path that is relative, too long or not printable is not followed, and not shown."""
        usual = Files(configuration=SWITCHED_ON + b'Lib.Dir="%b/b/" # there\n' % str(folder).encode()).write(folder)
        (usual / "b").mkdir()
        (usual / "b/SharedConfig.xml").write_bytes(b"</SharedConfig>")
        assert Answer(folder).notes == [WITHOUT_ADDRESSES.replace("DIR/", "DIR/b//")]
        for number, path in enumerate((b"", b"b", b"/" + b"x" * 255, b"/\x1b[31m", b"/\xff")):
            there = Files(configuration=SWITCHED_ON + b"Lib.Dir=%b\n" % path).write(folder / str(number))
            start = "SharedConfig.xml in Lib.Dir of DIR/waagent.conf cannot be read"
            assert Answer(there).notes == [f"{start}, so its RDMA addresses count as there"]


class TestOddFiles:
    @pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
    @pytest.mark.parametrize("name", ["waagent.conf", ".kvp_pool_0", "SharedConfig.xml"])
    def test_what_is_no_file_is_said(self, folder: Path, name: str, kind: str) -> None:
        """A folder, a fifo and a broken link keep no reader waiting, and nothing is awaited."""
        path = Files().write(folder) / name
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to("nowhere")
        answer = Answer(folder)
        no_file = f"{NOTHING}DIR/{name} is no regular file"
        assert (answer.notes, answer.awaited) == ([UNREAD if name == "SharedConfig.xml" else no_file], False)

    @pytest.mark.parametrize("name", [".kvp_pool_0", "waagent.conf"])
    def test_a_huge_file_is_not_read(self, folder: Path, name: str) -> None:
        """Over 256 KiB; one byte less is read."""
        path = Files().write(folder) / name
        path.write_bytes(path.read_bytes().ljust(262145, b"\0" if name == ".kvp_pool_0" else b"\n"))
        answer = Answer(folder)
        assert (answer.addresses, answer.awaited) == ([], False)
        assert answer.notes == [f"{NOTHING}DIR/{name} is larger than 256 KiB"]
        os.truncate(path, 262144)
        answer = Answer(folder)
        assert (len(answer.addresses), answer.notes) == (2, [TORN] if name == ".kvp_pool_0" else [])

    @pytest.mark.parametrize(
        ("name", "note"),
        [
            ("waagent.conf", OFF),
            (".kvp_pool_0", f"{NOTHING}DIR/.kvp_pool_0 is larger than 256 KiB"),
            ("SharedConfig.xml", UNREAD),
        ],
    )
    def test_ten_gigabytes_of_nothing_take_no_time(self, folder: Path, name: str, note: str) -> None:
        """A sparse file is neither read to its end nor held in memory."""
        path = Files().write(folder) / name
        path.write_bytes(b"")
        os.truncate(path, 10**10)
        assert Answer(folder).notes == [note]

    @pytest.mark.parametrize("length", [1, 100, 512, 2559])
    def test_a_torn_end_is_said(self, folder: Path, length: int) -> None:
        """The whole records count, if the pool is still torn when it was read again."""
        answer = of_pool(folder, HOST, record(b"IPoIB_Data", DATA), record(b"NdDriverVersion", b"1")[:length])
        assert (len(answer.addresses), answer.notes) == (2, [TORN])

    def test_a_pool_that_is_being_written_is_read_again(self, folder: Path) -> None:
        """Up to three times, with a pause before; the last reading counts."""
        path = Files().write(folder) / ".kvp_pool_0"
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        grow = """
        calls=0
        pool_status() {
          calls=$((calls + 1))
          ((calls == 3)) && printf '\\0' >>"$fabric_pool"
          REPLY=$(stat -Lc '%s %Y' "$fabric_pool")
        }"""
        assert "note" not in answers_of_bash([folder], before=grow)[0]
        assert path.read_bytes() == whole

        pauses: list[int] = []
        files = MemoryFiles()
        for name, content in {fabric.CONFIGURATION: SWITCHED_ON, fabric.POOL: whole[:-1]}.items():
            files.tree.write(name, content, mode=0o644)

        def pause() -> None:
            pauses.append(len(pauses))
            files.tree.write(fabric.POOL, whole[: len(whole) - 2 + len(pauses)], mode=0o644)

        assert len(fabric.read_fabric(files, now=NOW, uptime=None, pause=pause).addresses) == 2
        assert len(pauses) == 2

    def test_an_emptied_pool_is_read_again(self, folder: Path) -> None:
        """The daemon empties the pool before it writes it anew, so an empty one is no answer yet."""
        path = Files(pool=b"").write(folder) / ".kvp_pool_0"
        whole = record(b"IPoIB_Data", DATA)
        fill = f"""
        calls=0
        pool_status() {{
          REPLY=$(stat -Lc '%s %Y' "$fabric_pool")
          calls=$((calls + 1))
          ((calls == 1)) && cat {folder}/whole >"$fabric_pool"
        }}"""
        (folder / "whole").write_bytes(whole)
        assert "note" not in answers_of_bash([folder], before=fill)[0]
        assert path.read_bytes() == whole

        files = MemoryFiles()
        for name, content in {fabric.CONFIGURATION: SWITCHED_ON, fabric.POOL: b""}.items():
            files.tree.write(name, content, mode=0o644)

        def pause() -> None:
            files.tree.write(fabric.POOL, whole, mode=0o644)

        assert len(fabric.read_fabric(files, now=NOW, uptime=None, pause=pause).addresses) == 2

    def test_a_pool_may_vanish_while_it_is_read(self, folder: Path) -> None:
        """The boot script says no more than that it has no addresses."""
        Files().write(folder)
        vanish = """parse_records() { return 1; }
        pool_status() { REPLY=$(stat -Lc '%s %Y' "$fabric_pool"); }
        mapfile() { rm -f "$fabric_pool"; builtin mapfile "$@" <"$fabric_pool"; }"""
        assert "note no fabric is announced" in answers_of_bash([folder], before=vanish)[0]

    @pytest.mark.parametrize("path", [fabric.CONFIGURATION, fabric.POOL, "/var/lib/waagent/SharedConfig.xml"])
    @pytest.mark.parametrize("number", range(1, 9))
    def test_any_operation_may_fail(self, number: int, path: str) -> None:
        """A file that cannot be read, or looked at, is a note."""
        files = MemoryFiles()
        for name, content in zip(
            (fabric.CONFIGURATION, fabric.POOL, "/var/lib/waagent/SharedConfig.xml"),
            (SWITCHED_ON, HOST, SHARED),
            strict=True,
        ):
            files.tree.write(name, content, mode=0o644)
        files.fail_at(number, HostFileError("no luck"))
        found = fabric.read_fabric(files, now=NOW, uptime=None, pause=lambda: None)
        assert found.notes


# --- properties ------------------------------------------------------------------------------------------------------

MACS = st.text("0123456789ABCDEF", min_size=12, max_size=12)
PAIRS = st.lists(st.tuples(MACS, st.integers(1, 2**32 - 1)), min_size=1, max_size=60)
TEXTS = st.binary(max_size=40).map(lambda text: text.replace(b"\0", b""))


def rendered(pairs: list[tuple[str, int]]) -> bytes:
    """Return a value of IPoIB_Data."""
    return b"|".join(
        [b"NUMPAIRS:%d" % len(pairs), *(f"{mac}:{format_ipv4(address)}".encode() for mac, address in pairs)]
    )


@given(PAIRS)
def test_every_pair_is_read(pairs: list[tuple[str, int]]) -> None:
    """In its order, with its address."""
    assert fabric.parse_pairs(rendered(pairs)) == pairs


@given(PAIRS, st.integers(0), st.sampled_from([b"", b"x", b"00155D33FF1D", b"a:1.2.3", b":1.2.3.4", b"a:b:1.2.3.4"]))
def test_one_bad_pair_spoils_all(pairs: list[tuple[str, int]], at: int, bad: bytes) -> None:
    """A pair that is none is refused by its number."""
    words = rendered(pairs).split(b"|")
    number = at % len(pairs) + 1
    words[number] = bad
    with pytest.raises(ValueError, match=rf" in its pair {number}$"):
        fabric.parse_pairs(b"|".join(words))


@given(st.binary(max_size=400))
def test_any_value_is_pairs_or_refused(data: bytes) -> None:
    """Every other text is a ValueError; a value in its place is a pair."""
    with suppress(ValueError):
        assert len(fabric.parse_pairs(data)) == data.count(b"|")


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=6), st.binary(max_size=2559))
def test_of_equal_keys_the_first_counts(pairs: list[tuple[bytes, bytes]], torn: bytes) -> None:
    """Every record is found, and a torn one at the end is none."""
    pool = b"".join(record(key, value) for key, value in pairs)
    assert fabric.parse_records(pool + torn) == dict(reversed(pairs))


@given(st.binary(max_size=300))
def test_any_configuration_is_settings(content: bytes) -> None:
    """Only those that matter are returned, and none is missed for what precedes it."""
    assert set(fabric.parse_configuration(content)) <= {
        "OS.EnableRDMA", "OS.UpdateRdmaDriver", "OS.CheckRdmaDriver", "Lib.Dir"
    }  # fmt: skip
    assert fabric.parse_configuration(content + b"\nOS.EnableRDMA=y\n")["OS.EnableRDMA"] == "y"


@given(st.integers(0))
def test_a_torn_shared_config_is_never_one_without_addresses(length: int) -> None:
    """It counts as one that cannot be read until its first Instance is whole."""
    end = SHARED.index(b">", SHARED.index(b'<Instance id="a"'))
    cut = SHARED[: length % len(SHARED)]
    assert fabric.has_rdma_addresses(cut) is (True if len(cut) > end else None)


# --- devices ---------------------------------------------------------------------------------------------------------

IPOIB = "80:00:01:48:fe:80:00:00:00:00:00:00:00:15:5d:ff:fd:33:ff:1d"
DEVICES = [
    ("ib0", IPOIB, "00155D33FF1D"),
    ("ibp12s0", IPOIB, "00155D33FF1D"),
    ("ib_fabric", IPOIB, "00155D33FF1D"),
    ("ib0.8001", "20:00:01:48:fe:80:00:00:00:00:00:00:00:15:5d:ff:fd:33:ff:2e", "00155D33FF2E"),
    ("ib0", "00:15:5d:33:ff:1d", ""),
    ("ib0", "fe:80:00:15:5d:33:ff:1d", ""),
    ("ib0", "01:fe:80:00:15:5d:33:ff:1d", "FE8000" + "33FF1D"),
    ("ib", IPOIB, ""),
    ("ib", "00:15:5d:33:ff:1d", "00155D33FF1D"),
    ("ib-x", "00:15:5d:33:ff:1d", "00155D33FF1D"),
    ("fab0", "00:15:5d:33:ff:1d", "00155D33FF1D"),
    ("fab0", IPOIB, ""),
    ("eth1", "00:0d:3a:ab:cd:ef", "000D3AABCDEF"),
    ("xib0", "00:0d:3a:ab:cd:ef", "000D3AABCDEF"),
    ("IB0", "00:0d:3a:ab:cd:ef", "000D3AABCDEF"),
    ("tun0", "", ""),
    ("gre0", "10.0.0.1", ""),
]


def test_devices_have_the_form_of_the_pool() -> None:
    """Of an IPoIB address, which has 20 octets, both halves of the last eight; of others all six; in both languages."""
    assert [fabric.agent_mac(name, mac) or "" for name, mac, _ in DEVICES] == [form for *_, form in DEVICES]
    calls = "".join(f"agent_mac '{name}' '{mac}'\nprintf '%s\\n' \"$REPLY\"\n" for name, mac, _ in DEVICES)
    assert run_reader(calls).splitlines() == [form for *_, form in DEVICES]


# --- both readers ----------------------------------------------------------------------------------------------------


def differences(folders: list[Path]) -> list[tuple[str, str]]:
    """Return the answers that differ."""
    answers = zip(map(answer_of_python, folders), answers_of_bash(folders, with_stat=False), strict=True)
    return [(one, other) for one, other in answers if one != other]


@pytest.mark.thorough
def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    """Of the reader in bash, apart from results that a program may leave unused."""
    program = [layout.read_asset(layout.__file__, "shared.sh"), layout.read_asset(fabric.__file__, "fabric.sh")]
    (tmp_path / "script.sh").write_bytes(b"".join(program))
    subprocess.run(["shellcheck", "--shell=bash", "--exclude=SC2034", tmp_path / "script.sh"], check=True)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(5))
def test_damaged_pools_have_one_answer(tmp_path: Path, seed: int) -> None:
    """2,000 pools each time: no reader fails, and both say the same to the letter."""
    source = random.Random(seed)
    folders = [Files(pool=damaged_pool(source)).write(tmp_path / str(number)) for number in range(2000)]
    assert differences(folders) == []


@pytest.mark.thorough
def test_damaged_text_files_have_one_answer(tmp_path: Path) -> None:
    """Configurations and SharedConfig.xml, 1,000 of each."""
    source = random.Random(0)
    configuration = SWITCHED_ON + b' OS.CheckRdmaDriver = "Y" # on\nLib.Dir=None\nOS.EnableRDMA=n\n'
    texts = [
        *(Files(configuration=damaged(source, configuration, source.choice((1, 2, 5)))) for _ in range(1000)),
        *(Files(shared=damaged(source, SHARED, source.choice((1, 2, 5)))) for _ in range(1000)),
    ]
    assert differences([files.write(tmp_path / str(number)) for number, files in enumerate(texts)]) == []


def test_a_few_damaged_pools(tmp_path: Path) -> None:
    """As above, for a quick run."""
    source = random.Random(99)
    assert differences([Files(pool=damaged_pool(source)).write(tmp_path / str(number)) for number in range(60)]) == []


def test_the_files_of_an_image_are_read_below_its_root(tmp_path: Path) -> None:
    """Absolute paths have their meaning in the image."""
    files = RootedFiles(str(tmp_path))
    files.write(fabric.CONFIGURATION, SWITCHED_ON, mode=0o644)
    files.write(fabric.POOL, record(b"IPoIB_Data", DATA), mode=0o644)
    found = fabric.read_fabric(files, now=NOW, uptime=None, pause=lambda: None)
    assert [format_ipv4(address) for _, address in found.addresses] == ["172.16.1.4", "172.17.1.4"]
    unread = "/var/lib/waagent/SharedConfig.xml cannot be read, so its RDMA addresses count as there"
    assert found.notes == (unread,)
