"""The cost of an announced fabric: the check of a boot, with and without the agent's files."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import nodes, world
from benchmarks.cases import Group, Result, Setting
from benchmarks.measure import BenchmarkError, Contender, Sample, contest, process
from hostrouting.boot.layout import SCRIPT_DIRECTORY
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.route_overlap.fabric import CONFIGURATION, POOL, agent_mac, read_fabric

BOOT = "boot check, announced fabric"
ANNOUNCED, WITHOUT = "announced", "without"

LEGEND = """\
The announced fabric: milliseconds of processor time, children included, of the check of a boot. Two of four CIDRs are in
announced networks, and static routes cover them, so all is well.
  announced the files of the cloud's agent announce an address on each of eight devices
  without   the same node without these files"""

NETWORKS = 8
CIDRS = ("172.16.8.0/22", "172.17.64.0/18", "10.244.0.0/16", "10.96.0.0/12")
_RECORDS = tuple(f"Hosting{number}" for number in range(9))


def fabric(setting: Setting) -> list[Result]:
    """Make the devices, and measure with a default route and the routes that the announcement
    needs.
    """
    world.demand_own_run()
    world.clean()
    routes = [f"{cidr} via {world.GATEWAY} dev {world.DEVICE}" for cidr in CIDRS[:2]]
    with devices():
        config = nodes.config_file(setting, (), CIDRS)
        with nodes.in_force(nodes.applied(setting, config, "fabric")):
            world.ip_batch(f"route add {route}" for route in routes)
            try:
                return [_boot(setting)]
            finally:
                world.ip_batch(f"route delete {route}" for route in routes)


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


def _boot(setting: Setting) -> Result:
    contenders = [Contender(name, partial(_checked, name)) for name in (ANNOUNCED, WITHOUT)]
    measured = contest(contenders, NETWORKS, rounds=setting.rounds(NETWORKS))
    remark = f"{NETWORKS} networks, {len(_RECORDS) + 1} records and {len(CIDRS)} CIDRs"
    return Result(
        BOOT, [measured._replace(clock="cpu")], [(ANNOUNCED, WITHOUT)], remark, whole=True
    )


def _checked(name: str) -> Sample:
    """Check with or without the files of the agent, which are in folders of this run."""
    expected = 0
    if name == ANNOUNCED:
        expected = NETWORKS
        announce(Path("/"))
    try:
        found = read_fabric(RootedFiles(), pause=lambda: None)
        if len(found.addresses) != expected or found.notes:
            raise BenchmarkError(f"{len(found.addresses)} addresses are announced: {found.notes}")
        return process(["bash", "-p", f"{SCRIPT_DIRECTORY}/check-route-overlap.sh"])
    finally:
        for path in (CONFIGURATION, POOL):
            Path(path).unlink(missing_ok=True)


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


GROUP = Group((BOOT,), fabric, LEGEND)
