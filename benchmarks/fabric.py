"""The cost of an announced fabric: the boot check, with and without the agent's files."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from support.images import make_image

from benchmarks import world
from benchmarks.cases import Group, Result, Setting
from benchmarks.measure import BenchmarkError, Contender, contest, process
from hostrouting import HostRoutingConfig
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.route_overlap import script as route_overlap_script
from hostrouting.route_overlap.fabric import CONFIGURATION, POOL, agent_mac, read_fabric

BOOT = "boot check, announced fabric"
ANNOUNCED, WITHOUT = "announced", "without"

LEGEND = """\
The announced fabric: milliseconds of processor time, children included, of the rendered script of the boot check alone.
Two of four CIDRs lie in announced networks, and static routes cover them, so all is well.
  announced the files of the cloud's agent announce an address on each of eight devices
  without   the same node without these files"""

NETWORKS = 8
CIDRS = ("172.16.8.0/22", "172.17.64.0/18", "10.244.0.0/16", "10.96.0.0/12")
_RECORDS = tuple(f"Hosting{number}" for number in range(9))
MARKERS = Path("/run/aks-flex-node")


def fabric(setting: Setting) -> list[Result]:
    """Make the devices, and measure with a default route and the routes that the announcement
    needs.
    """
    world.demand_own_run()
    world.clean()
    with devices():
        world.ip_batch(
            f"route add {cidr} via {world.GATEWAY} dev {world.DEVICE}" for cidr in CIDRS[:2]
        )
        try:
            return [_boot(setting)]
        finally:
            world.ip_batch(f"route delete {cidr}" for cidr in CIDRS[:2])


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
    # STRICT, so that an exit status of 10 means that all is well.
    section = {"expectedCidrs": list(CIDRS), "mode": "STRICT"}
    config = HostRoutingConfig.from_mapping({"routeOverlap": section, "gates": []})
    script = route_overlap_script.render_script(config).decode()

    def of(root: Path) -> str:
        text = script
        for path in (CONFIGURATION, POOL):
            if path not in text:
                raise BenchmarkError(f"the boot script does not read {path}")
            text = text.replace(path, f"{root}{path}")
        file = root / "check-route-overlap.sh"
        file.write_text(text)
        return str(file)

    contenders = [
        Contender(name, partial(process, ["bash", of(root)]))
        for name, root in _roots(setting).items()
    ]
    measured = contest(
        contenders, NETWORKS, rounds=setting.rounds(NETWORKS), before=_no_markers, check=all_is_well
    )
    remark = f"{NETWORKS} networks, {len(_RECORDS) + 1} records and {len(CIDRS)} CIDRs"
    return Result(
        BOOT, [measured._replace(clock="cpu")], [(ANNOUNCED, WITHOUT)], remark, whole=True
    )


def _no_markers() -> None:
    shutil.rmtree(MARKERS, ignore_errors=True)


def all_is_well() -> None:
    """Fail unless the boot check has left its marker."""
    if not (MARKERS / "route-overlap.ok").exists():
        raise BenchmarkError("the boot check did not report that all is well")


def _roots(setting: Setting) -> dict[str, Path]:
    """Return a folder with the files of the agent, and one without them."""
    roots = {name: setting.folder / name for name in (ANNOUNCED, WITHOUT)}
    for root in roots.values():
        make_image(root)
    announce(roots[ANNOUNCED])
    found = read_fabric(RootedFiles(str(roots[ANNOUNCED])), pause=lambda: None)
    if len(found.addresses) != NETWORKS or found.notes:
        raise BenchmarkError(
            f"the files of the agent announce {len(found.addresses)} addresses: {found.notes}"
        )
    return roots


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
