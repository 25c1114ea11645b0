"""The fabric that the cloud's agent will connect: the addresses that it is going to add.

On Azure, WALinuxAgent gives the InfiniBand devices their addresses, each with a connected /16
route, possibly minutes after the boot check. If its configuration enables RDMA, it reads them from
the key-value pool of Hyper-V. The functions here read the agent's files like the agent does.

A file may contain anything, so none of its text except addresses gets into a result.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.base.errors import HostFileError
from hostrouting.net.addresses import parse_ipv4
from phases import Context, DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.host import FileStore, Host

CONFIGURATION: Final = "/etc/waagent.conf"
POOL: Final = "/var/lib/hyperv/.kvp_pool_0"
#: The device of the routes that a fabric will bring: the name of a real device has no slash.
FABRIC: Final = "the/fabric"

_SWITCHES = ("OS.EnableRDMA", "OS.UpdateRdmaDriver", "OS.CheckRdmaDriver")
#: Bytes of a line of the configuration; a longer one sets nothing that matters here.
_LONGEST_LINE = 1024

#: Bytes of a key and of a value in the pool.
_KEY = 512
_RECORD = _KEY + 2048
_DATA = b"IPoIB_Data"
_DRIVER = b"NdDriverVersion"

#: The most bytes of a file. The pool of a node has about ten records, and the configuration a few
#: kilobytes.
_LARGEST = 256 * 1024
#: A daemon writes the pool in less time.
_SECONDS_TO_WRITE = 0.1
#: How often the pool is read if it is empty or ends within a record, because its daemon empties it
#: before it writes.
_READINGS = 3

_PAIR = rb"([^:]+):([0-9]+\.[0-9]+\.[0-9]+\.[0-9]+)"


class _NothingError(Exception):
    """Why no fabric is announced; `awaited` as in `Fabric`."""

    awaited = False


class _AwaitedError(_NothingError):
    awaited = True


class FabricAddress(NamedTuple):
    """An address that the agent will add, with a /16 network."""

    #: As `agent_mac` returns it; empty if no device can have it.
    mac: str
    address: int


class Fabric(NamedTuple):
    """The networks that are going to be connected, and how this is known."""

    #: In the order in which the agent reads them.
    addresses: tuple[FabricAddress, ...] = ()
    #: CIDRs of the operator's config.
    networks: tuple[str, ...] = ()
    #: The file and when it was written, or the key of the config; empty without a fabric.
    source: str = ""
    #: Why no fabric is announced, and anything unusual: one sentence each.
    notes: tuple[str, ...] = ()
    #: True if only the addresses are missing, which the daemon of the pool may write any time.
    awaited: bool = False


def announced_fabric(ctx: Context, setting: str | tuple[str, ...], host: Host) -> Fabric:
    """Return the announced fabric."""
    if setting != "auto":
        networks = () if setting == "off" else tuple(setting)
        return Fabric(networks=networks, source="routeOverlap.fabric")

    def pause() -> None:
        with suppress(DeadlineExceededError):
            ctx.sleep(_SECONDS_TO_WRITE)

    return read_fabric(host.files, pause=pause)


def read_fabric(files: FileStore, *, pause: Callable[[], object]) -> Fabric:
    """Return the fabric that this machine's agent will connect; an unreadable file is a note.

    `pause` is called before the pool is read again, because its daemon may be writing it.
    """
    notes: list[str] = []
    try:
        if not _is_switched_on(files):
            return Fabric()
        addresses = _read_addresses(files, pause, notes)
    except _NothingError as reason:
        return Fabric(notes=(f"no fabric is announced: {reason}", *notes), awaited=reason.awaited)
    source = POOL
    with suppress(HostFileError):
        modified = files.modified(POOL)
        if modified is not None:
            # A date instead of an age: the text of an unchanged verdict must not change, or it
            # would be logged again.
            source += time.strftime(", written %Y-%m-%d %H:%M UTC", time.gmtime(int(modified)))
    return Fabric(addresses=addresses, source=source, notes=tuple(notes))


# --- the files


def _is_switched_on(files: FileStore) -> bool:
    """Return False without an agent, and raise _NothingError if its settings leave RDMA off."""
    content = _read(files, CONFIGURATION)
    if content is None:
        return False
    text = _text(content)
    _check_size(CONFIGURATION, text)
    settings = parse_configuration(text)
    if not any(settings.get(name, "").lower() == "y" for name in _SWITCHES):
        raise _NothingError(
            f"{', '.join(_SWITCHES[:-1])} and {_SWITCHES[-1]} are off in {CONFIGURATION}"
        )
    return True


def _read_addresses(
    files: FileStore, pause: Callable[[], object], notes: list[str]
) -> tuple[FabricAddress, ...]:
    pool = _read(files, POOL)
    if pool is None:
        raise _AwaitedError(f"{POOL} does not exist yet")
    for _ in range(_READINGS - 1):
        if (pool and len(pool) % _RECORD == 0) or len(pool) > _LARGEST:
            break
        pause()
        pool = _read(files, POOL) or b""
    _check_size(POOL, pool)
    records = parse_records(pool)
    if records.get(_DRIVER):
        raise _NothingError(
            f"{_DRIVER.decode()} in {POOL} selects a driver that takes no addresses from there"
        )
    if _DATA not in records:
        raise _AwaitedError(f"{POOL} has no {_DATA.decode()} yet")
    name = f"{_DATA.decode()} in {POOL}"
    try:
        pairs = parse_pairs(records[_DATA])
    except ValueError as error:
        raise _NothingError(f"{name} {error}") from None
    invalid = [str(number) for number, pair in enumerate(pairs, 1) if pair is None]
    if invalid:
        notes.append(
            f"{name} has no IPv4 address in these of its pairs, which do not count: "
            + ", ".join(invalid)
        )
    addresses = tuple(filter(None, pairs))
    if not addresses:
        raise _NothingError(f"{name} has no addresses")
    return addresses


def _read(files: FileStore, path: str) -> bytes | None:
    """Return the content, None for an absent file; raise _NothingError if it cannot be read."""
    try:
        if files.mode(path) is not None:
            return files.read(path, limit=_LARGEST + 1) or b""
        if files.exists(path):
            raise _NothingError(f"{path} is not a regular file")
    except HostFileError:
        raise _NothingError(f"{path} cannot be read") from None
    return None


def _check_size(path: str, content: bytes) -> None:
    if len(content) > _LARGEST:
        raise _NothingError(f"{path} is larger than {_LARGEST // 1024} KiB")


# --- parsers


def parse_configuration(content: bytes) -> dict[str, str]:
    r"""Return the settings of waagent.conf that matter here, as the agent reads them.

    >>> parse_configuration(b'OS.EnableRDMA=n\n#OS.EnableRDMA=n\n OS.EnableRDMA = "y" # on\n')
    {'OS.EnableRDMA': 'y'}
    """
    settings: dict[str, str] = {}
    for line in content.split(b"\n"):
        key, equals, value = line.partition(b"=")
        name = key.strip().decode("latin-1")
        if (
            line.startswith(b"#")
            or not equals
            or name not in _SWITCHES
            or len(line) > _LONGEST_LINE
        ):
            continue
        settings[name] = value.partition(b"#")[0].strip(b'" ').strip().decode("latin-1")
    return settings


def parse_records(pool: bytes) -> dict[bytes, bytes]:
    """Return the values of a pool by key: the first value of a key, without incomplete records."""
    records: dict[bytes, bytes] = {}
    for start in range(0, len(pool) - _RECORD + 1, _RECORD):
        value = start + _KEY
        records.setdefault(_text(pool[start:value]), _text(pool[value : start + _RECORD]))
    return records


def _text(padded: bytes) -> bytes:
    """Return the bytes before the first NUL, or all of them."""
    return padded.partition(b"\0")[0]


def parse_pairs(data: bytes) -> list[FabricAddress | None]:
    """Return the pairs of a value of IPoIB_Data, with None for one without an IPv4 address.

    Raise ValueError if the agent would use none of them; the message continues a sentence that
    begins with the name of the value.

    >>> parse_pairs(b"NUMPAIRS:2|00155D33FF1D:172.16.1.4|00155D33FF1E:172.16.1.400")
    [FabricAddress(mac='00155D33FF1D', address=2886729988), None]
    >>> parse_pairs(b"NUMPAIRS:2|00155D33FF1D:172.16.1.4")
    Traceback (most recent call last):
    ValueError: has another number of pairs (1) than its NUMPAIRS says
    """
    head, *words = data.split(b"|")
    number = re.match(rb"NUMPAIRS:([0-9]+)", head)
    if number is None:
        raise ValueError("does not begin with NUMPAIRS and a number")
    # As text: the number may have a thousand digits.
    if (number[1].lstrip(b"0") or b"0") != b"%d" % len(words):
        raise ValueError(f"has another number of pairs ({len(words)}) than its NUMPAIRS says")
    pairs = [re.match(_PAIR, word) for word in words]
    if None in pairs:
        raise ValueError(
            f"has no hardware address with an IPv4 address in its pair {pairs.index(None) + 1}"
        )
    return [_address(*pair.groups()) for pair in filter(None, pairs)]


def _address(mac: bytes, quad: bytes) -> FabricAddress | None:
    try:
        address = parse_ipv4(quad.decode())
    except ValueError:
        return None
    if address == 0:
        # The kernel accepts it but adds nothing.
        return None
    is_mac = re.fullmatch(rb"[0-9A-F]{12}", mac)
    return FabricAddress(mac.decode() if is_mac else "", address)


def agent_mac(name: str, mac: str) -> str | None:
    """Return a device's hardware address as the pool writes it; None if the agent ignores it.

    >>> agent_mac("ib0", "80:00:01:48:fe:80:00:00:00:00:00:00:00:15:5d:ff:fd:33:ff:1d")
    '00155D33FF1D'
    >>> agent_mac("eth1", "00:15:5d:33:ff:1d"), agent_mac("ib0", "00:15:5d:33:ff:1d")
    ('00155D33FF1D', None)
    """
    octets = mac.upper().split(":")
    if re.match(r"ib\w", name, re.ASCII):
        # The agent's pattern requires something before the last eight octets.
        return "".join(octets[-8:-5] + octets[-3:]) if len(octets) > 8 else None
    return "".join(octets) if len(octets) == 6 else None


def is_present(dev: str | None) -> bool:
    """Return False for the device of an announced fabric."""
    return dev != FABRIC


def has_infiniband(host: Host) -> bool:
    """Return True if the node has InfiniBand hardware, or a device for IP over it."""
    with suppress(HostFileError):
        if host.files.names("/sys/class/infiniband"):
            return True
    return any(device.infiniband for device in host.routes.links())
