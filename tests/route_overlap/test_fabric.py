"""The announced fabric: when the agent would act, and what it would add."""

from pathlib import Path

import pytest
from support.fabric_files import (
    DATA,
    HOST,
    SWITCHED_ON,
    Answer,
    Files,
    of_pool,
    record,
)
from support.printed import NO_FABRIC, NO_POOL_YET

from hostrouting.route_overlap import fabric
from hostrouting.testing import MemoryFiles

NO_KEY = f"{NO_FABRIC}DIR/.kvp_pool_0 has no IPoIB_Data yet"
OFF = f"{NO_FABRIC}OS.EnableRDMA, OS.UpdateRdmaDriver and OS.CheckRdmaDriver are off in DIR/waagent.conf"


def of_data(folder: Path, data: bytes) -> Answer:
    """Return the answer for this value of IPoIB_Data."""
    return of_pool(folder, HOST, record(b"IPoIB_Data", data))


class TestAnnounced:
    def test_what_the_agent_would_add(self, folder: Path) -> None:
        """Every pair of the pool is read in its order, with the source and its date, and without
        notes.
        """
        answer = Answer(Files().write(folder))
        assert answer.macs == ["00155D33FF1D", "00155D33FF1E"]
        assert answer.addresses == ["172.16.1.4", "172.17.1.4"]
        assert answer.source == "DIR/.kvp_pool_0, written 2023-11-14 22:12 UTC"
        assert answer.notes == []
        assert not answer.awaited

    def test_the_first_record_of_a_key_counts(self, folder: Path) -> None:
        """The first record of a key counts, whatever the second one holds."""
        answer = of_pool(
            folder, record(b"IPoIB_Data", b"NUMPAIRS:1|x:10.0.0.1"), record(b"IPoIB_Data", DATA)
        )
        assert answer.addresses == ["10.0.0.1"]
        assert of_pool(folder / "other", record(b"NdDriverVersion", b""), HOST).notes == [NO_KEY]

    def test_a_key_and_a_value_may_fill_their_places(self, folder: Path) -> None:
        """A key and a value may fill their places without a NUL at the end."""
        value = b"NUMPAIRS:1|00155D33FF1D:10.0.0.1".ljust(2048, b"x")
        assert of_pool(
            folder, record(b"k" * 512, b"v" * 2048), record(b"IPoIB_Data", value), HOST
        ).addresses == ["10.0.0.1"]

    def test_a_mac_that_no_device_can_have_is_left_out(self, folder: Path) -> None:
        """A pair counts without its hardware address if no device can have that; text after a pair
        or number is ignored.
        """
        answer = of_data(
            folder,
            b"NUMPAIRS:003x|00155d33ff1d:10.0.0.1/24|$(id)\n`id`:10.0.0.2.3|00155D33FF1E:10.0.0.3",
        )
        assert answer.macs == ["", "", "00155D33FF1E"]
        assert answer.addresses == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]

    def test_a_pair_without_an_address_fails_alone(self, folder: Path) -> None:
        """A pair with a malformed address, or with 0.0.0.0, is reported by its number, and the
        other pairs count.
        """
        bad = [b"10.0.0.256", b"10.0.01.1", b"0.0.0.0", b"9" * 99 + b".0.0.1"]
        answer = of_data(
            folder, b"NUMPAIRS:5|a:10.0.0.1|" + b"|".join(b"a:" + quad for quad in bad)
        )
        assert answer.addresses == ["10.0.0.1"]
        start = "IPoIB_Data in DIR/.kvp_pool_0 has no IPv4 address in these of its pairs, which do not count"
        assert answer.notes == [f"{start}: 2, 3, 4, 5"]


class TestSwitchedOff:
    def test_without_the_agent_nothing_is_reported(self, folder: Path) -> None:
        """A node without the agent's configuration has neither addresses nor notes."""
        answer = Answer(Files(configuration=None).write(folder))
        assert answer.addresses == []
        assert answer.source == ""
        assert not answer.awaited
        assert answer.notes == []

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
        """RDMA is off unless the last line of a switch is one that the agent would read as on."""
        answer = Answer(Files(configuration=text).write(folder))
        assert answer.addresses == []
        assert answer.notes == [OFF]
        assert not answer.awaited

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
        """RDMA is on if one of its three switches is; blanks, quotes and comments do not matter."""
        assert len(Answer(Files(configuration=text).write(folder)).addresses) == 2

    @pytest.mark.parametrize(
        ("text", "read"),
        [(b"", [fabric.CONFIGURATION]), (SWITCHED_ON, [fabric.CONFIGURATION, fabric.POOL])],
    )
    def test_what_is_read(self, text: bytes, read: list[str]) -> None:
        """The pool is read only with RDMA on, and SharedConfig.xml never, since the agent works
        without it.
        """
        files = MemoryFiles()
        files.tree.write(fabric.CONFIGURATION, text, mode=0o644)
        fabric.read_fabric(files, pause=lambda: None)
        assert list(dict.fromkeys(path for _, path in files.operations.calls)) == read


class TestNothingInThePool:
    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b"", "does not begin with NUMPAIRS and a number"),
            (b"NUMPAIRS:|a:10.0.0.1", "does not begin with NUMPAIRS and a number"),
            (b" NUMPAIRS:1|a:10.0.0.1", "does not begin with NUMPAIRS and a number"),
            (b"NUMPAIRS:2|a:10.0.0.1", "has another number of pairs (1) than its NUMPAIRS says"),
            (b"NUMPAIRS:1|a:10.0.0.1|", "has another number of pairs (2) than its NUMPAIRS says"),
            (
                b"NUMPAIRS:" + b"9" * 2000 + b"|a:1.1.1.1",
                "has another number of pairs (1) than its NUMPAIRS says",
            ),
            (
                b"NUMPAIRS:18446744073709551617|a:1.1.1.1",
                "has another number of pairs (1) than its NUMPAIRS says",
            ),
            (
                b"NUMPAIRS:2|a:10.0.0.1|a:10.0.0",
                "has no hardware address with an IPv4 address in its pair 2",
            ),
            (b"NUMPAIRS:1|:10.0.0.1", "has no hardware address with an IPv4 address in its pair 1"),
            (
                b"NUMPAIRS:1|00:15:5D:33:FF:1D:10.0.0.1",
                "has no hardware address with an IPv4 address in its pair 1",
            ),
            (b"NUMPAIRS:1|", "has no hardware address with an IPv4 address in its pair 1"),
            (b"NUMPAIRS:0", "has no addresses"),
        ],
    )
    def test_one_fault_is_enough(self, folder: Path, data: bytes, reason: str) -> None:
        """One fault in the value of IPoIB_Data makes it announce nothing, as the agent takes all
        pairs or none.
        """
        answer = of_data(folder, data)
        assert answer.notes == [f"{NO_FABRIC}IPoIB_Data in DIR/.kvp_pool_0 {reason}"]
        assert answer.addresses == []
        assert answer.source == ""
        assert not answer.awaited

    def test_another_driver(self, folder: Path) -> None:
        """A pool with a version of Network Direct announces nothing, as that driver does not take
        addresses from it.
        """
        answer = of_pool(folder, record(b"IPoIB_Data", DATA), record(b"NdDriverVersion", b"144.0"))
        reason = (
            "NdDriverVersion in DIR/.kvp_pool_0 selects a driver that takes no addresses from there"
        )
        assert answer.notes == [NO_FABRIC + reason]
        assert not answer.awaited

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
        """A pool without the exact key is awaited, as the daemon may write the key later."""
        answer = Answer(Files(pool=pool).write(folder))
        assert answer.notes == [NO_KEY]
        assert answer.awaited is True

    def test_an_absent_pool_is_awaited(self, folder: Path) -> None:
        """An absent pool is awaited, as its daemon may not have started yet."""
        answer = Answer(Files(pool=None).write(folder))
        assert answer.notes == [f"{NO_FABRIC}DIR/.kvp_pool_0{NO_POOL_YET}"]
        assert answer.awaited is True
