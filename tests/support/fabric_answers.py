"""The answer of the reader of the fabric, and its notes."""

from pathlib import Path

from support.fabric_files import Files, answer_of_python, record

from hostrouting.net.addresses import format_ipv4

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
