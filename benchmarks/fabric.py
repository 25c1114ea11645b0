"""The devices of a fabric, and the files in which the cloud's agent announces their addresses."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import world
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.route_overlap.fabric import CONFIGURATION, POOL, agent_mac

NETWORKS = 8
CIDRS = ("172.16.8.0/22", "172.17.64.0/18", "10.244.0.0/16", "10.96.0.0/12")
_RECORDS = tuple(f"Hosting{number}" for number in range(9))


@contextmanager
def devices() -> Iterator[None]:
    """Give the node the devices of a fabric and a default route, until the end of the block."""
    pairs = [(f"fab{number}", f"fab{number + 1}") for number in range(0, NETWORKS, 2)]
    world.ip_batch(f"link add {one} type veth peer name {other}" for one, other in pairs)
    try:
        with world.default_route():
            yield
    finally:
        world.ip_batch(f"link delete {one}" for one, _ in pairs)


def announce(root: Path) -> None:
    """Write the files of the agent, which announce an address on each device of the fabric."""
    files = {
        CONFIGURATION: b"OS.EnableRDMA=y\n",
        POOL: b"".join(_record(key, "value") for key in _RECORDS) + _record("IPoIB_Data", _data()),
    }
    for path, content in files.items():
        file = root / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _record(key: str, value: str) -> bytes:
    return key.encode().ljust(512, b"\0") + value.encode().ljust(2048, b"\0")


def _data() -> str:
    # Not from /sys, which shows the devices of the namespace in which it was mounted.
    macs = {device.name: agent_mac(device.name, device.mac) for device in NetlinkBackend().links()}
    pairs = [f"{macs[f'fab{number}']}:172.{16 + number}.1.4" for number in range(NETWORKS)]
    return f"NUMPAIRS:{NETWORKS}|{'|'.join(pairs)}"
