"""The boot check of IPv6, and of both families, beside that of as much IPv4."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from benchmarks import world
from benchmarks.cases import Group, Result, Setting
from benchmarks.fabric import MARKERS, all_is_well
from benchmarks.measure import Contender, Sample, contest, printed, process
from hostrouting import HostRoutingConfig
from hostrouting.route_overlap import script as route_overlap_script

BOOT = "boot check, by family"
NAMES = (BOOT,)
IPV4, IPV6, MIXED = "ipv4", "ipv6", "mixed"

LEGEND = """\
The boot check by family: milliseconds of processor time, children included, of the rendered script of the check alone,
with 8 static routes in force and 4 CIDRs.
  ipv4, ipv6  all of one family
  mixed       half of each"""

ROUTES = 8
_CIDRS = {
    IPV4: ("11.0.0.0/16", "172.16.0.0/12", "10.244.0.0/16", "10.96.0.0/12"),
    IPV6: ("fd01::/32", "fd02::/16", "fd03::/48", "2001:db8::/32"),
}
_ROUTES = {
    IPV4: [f"11.0.{number}.0/24" for number in range(ROUTES)],
    IPV6: [f"fd01:0:{number}::/48" for number in range(1, ROUTES + 1)],
}
IPV6_GATEWAY = "fd00:1::1"
_ADDRESS = "fd00:1::4/64"


def families(setting: Setting) -> list[Result]:
    """Give the node a default route of each family, and measure the three."""
    world.demand_own_run()
    world.clean()
    contenders = [_contender(setting, name) for name in (IPV4, IPV6, MIXED)]
    with defaults():
        measured = contest(contenders, ROUTES, rounds=setting.rounds(ROUTES), check=all_is_well)
    ratios = [(IPV6, IPV4), (MIXED, IPV4)]
    return [Result(BOOT, [measured._replace(clock="cpu")], ratios, "and 4 CIDRs", whole=True)]


def _contender(setting: Setting, name: str) -> Contender:
    cidrs, routes = (_of(name, table) for table in (_CIDRS, _ROUTES))
    section = {"expectedCidrs": cidrs, "mode": "STRICT", "fabric": "off"}
    script = setting.folder / f"check-{name}.sh"
    script.write_bytes(
        route_overlap_script.render_script(
            HostRoutingConfig.from_mapping({"routeOverlap": section})
        )
    )

    def run() -> Sample:
        shutil.rmtree(MARKERS, ignore_errors=True)
        for family in "-4", "-6":
            _ip(f"{family} route flush proto 142")
        for route in routes:
            gateway = IPV6_GATEWAY if ":" in route else world.GATEWAY
            _ip(f"route add {route} via {gateway} dev {world.DEVICE} proto 142")
        return process(["bash", str(script)])

    return Contender(name, run)


def _of(name: str, table: Mapping[str, Sequence[str]]) -> list[str]:
    if name != MIXED:
        return list(table[name])
    return [one for each in table.values() for one in each[: len(each) // 2]]


@contextmanager
def defaults() -> Iterator[None]:
    """Give the node a default route of each family, until the end of the block."""
    ways = [("-4", world.GATEWAY), ("-6", IPV6_GATEWAY)]
    _ip(f"-6 address add {_ADDRESS} dev {world.DEVICE} nodad")
    # As in `world.build`.
    _ip(f"neigh add {IPV6_GATEWAY} lladdr 02:00:00:00:00:01 nud permanent dev {world.DEVICE}")
    for family, gateway in ways:
        _ip(f"{family} route add default via {gateway} dev {world.DEVICE}")
    try:
        yield
    finally:
        for family, _ in ways:
            _ip(f"{family} route flush proto 142")
            _ip(f"{family} route delete default dev {world.DEVICE}")
        _ip(f"neigh delete {IPV6_GATEWAY} dev {world.DEVICE}")
        _ip(f"-6 address delete {_ADDRESS} dev {world.DEVICE}")


def _ip(words: str) -> None:
    printed("ip", *words.split())


GROUP = Group(NAMES, families, LEGEND)
