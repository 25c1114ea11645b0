"""The fabrics that the boot script takes for plain, and the networks whose device it finds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from support.fabric_files import DATA, SWITCHED_ON, record
from support.kernel import kernel_of, needs_kernel
from support.overlap_answers import ScriptRun, run_script
from support.printed import UNPROVEN
from support.routers import add_pair

from hostrouting import HostRoutingConfig
from hostrouting.host.files.store import RootedFiles
from hostrouting.route_overlap.fabric import CONFIGURATION, POOL, read_fabric
from hostrouting.route_overlap.proof import prove_families
from hostrouting.testing import KernelNode

pytestmark = needs_kernel

CIDR = "172.16.8.0/22"
ROUTE = "route add 172.16.8.0/22 via 10.224.0.1 dev e0"
#: 172.16.1.4 and 172.17.1.4, whose devices come later.
POOLED = record(b"HostName", b"a host") + record(b"IPoIB_Data", DATA)


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as made:
        for dev in "e0", "e1":
            add_pair(made, dev, carrier=True)
        made.add_address("e0", "10.224.0.4/16")
        made.add_address("e1", "10.225.0.4/16")
        made.ip("route add default via 10.224.0.1 dev e0")
        yield made


class Case(NamedTuple):
    """Commands of `ip`, the word for what is not plain, the expected CIDR, and the agent's files."""

    commands: str = ROUTE
    word: str = ""
    cidr: str = CIDR
    configuration: bytes = SWITCHED_ON
    pool: bytes | None = POOLED
    is_right: bool = False


def run(
    node: KernelNode, folder: Path, case: Case, options: Mapping[str, Sequence[str]] | None = None
) -> ScriptRun:
    """Make the node so, and run the script without the program."""
    for command in filter(None, case.commands.split("; ")):
        node.ip(command)
    files = RootedFiles(str(folder))
    files.write(CONFIGURATION, case.configuration, mode=0o644)
    if case.pool is not None:
        files.write(POOL, case.pool, mode=0o644)
    ran = run_script(node, folder / "run", [case.cidr], files=folder, options=options)
    fabric = read_fabric(files, pause=lambda: None)
    expected = (options or {}).get("expectedDevs")
    report = prove_families(
        kernel_of(node), [case.cidr], HostRoutingConfig(), fabric=fabric, expected_devs=expected
    )
    ran.must_follow(report)
    assert report.ok == case.is_right, report.lines()
    return ran


PLAIN: dict[str, Case] = {
    "routes in front": Case(),
    "another network": Case("", cidr="10.96.0.0/16"),
    "no pool, and no InfiniBand": Case("", pool=None),
    "no addresses in the pool, and no InfiniBand": Case("", pool=record(b"HostName", b"a host")),
}


@pytest.mark.parametrize("case", PLAIN.values(), ids=PLAIN)
def test_it_is_plain(node: KernelNode, tmp_path: Path, case: Case) -> None:
    """The script accepts a node if each announced network leaves the CIDR as it is."""
    ran = run(node, tmp_path, case._replace(is_right=True))
    assert ran.is_plain, ran.output


NOT_PLAIN: dict[str, Case] = {
    "no route in front": Case("", "fabric"),
    "RDMA is off": Case("", "fabric", configuration=b"OS.EnableRDMA=n\n", is_right=True),
    "an equal route, with a metric": Case(
        "route add 172.16.0.0/16 via 10.224.0.1 dev e0 metric 9", "fabric"
    ),
    "a route to a part": Case("route add 172.16.8.0/24 via 10.224.0.1 dev e0", "fabric"),
    "after a record that nothing parts from it": Case(
        "", "fabric", pool=record(b"HostName", b"x" * 2048) + record(b"IPoIB_Data", DATA)
    ),
    "the address itself": Case("route add 172.16.1.0/24 dev e0", "fabric", "172.16.1.0/24"),
    "its broadcast address": Case("route add 172.16.255.0/24 dev e0", "fabric", "172.16.255.0/24"),
    "the second pair": Case("", "fabric", "172.17.8.0/22"),
    "a rule by a source that comes": Case(
        f"{ROUTE}; rule add pref 9 from 172.16.1.4 lookup 100; route add 172.16.9.0/24 dev e1 table 100",
        "fabric",
    ),
    "table local is not first": Case(
        "address add 172.16.9.1/32 dev e0; rule add pref 9 lookup local; rule del pref 0; " + ROUTE,
        "fabric",
    ),
    "a network of a device that is down": Case(
        "link set e1 down; address add 172.18.1.4/24 brd + dev e1; "
        "route add 172.18.1.0/24 dev e0 metric 9",
        "carrier",
        "172.18.1.64/26",
    ),
    "an idle bridge elsewhere": Case(
        f"{ROUTE}; link add docker0 type bridge; address add 172.18.0.1/16 dev docker0",
        "carrier",
        is_right=True,
    ),
    "a pool that is being written": Case(ROUTE, "fabric", pool=POOLED[:-1], is_right=True),
    "an empty pool": Case(ROUTE, "fabric", pool=b"", is_right=True),
}


@pytest.mark.parametrize("case", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_it_is_not_plain(node: KernelNode, tmp_path: Path, case: Case) -> None:
    """The script leaves a node to the program if the fabric may take addresses."""
    ran = run(node, tmp_path, case)
    assert not ran.is_plain
    assert ran.output.startswith(f"{UNPROVEN}{case.word}"), ran.output


def test_a_device_without_carrier(node: KernelNode, tmp_path: Path) -> None:
    """A device without carrier whose network covers the CIDR is not plain, as its route comes with
    the carrier.
    """
    add_pair(node, "f0", carrier=False)
    node.run("sysctl", "-qw", "net.ipv4.conf.f0.ignore_routes_with_linkdown=1")
    commands = "address add 172.18.1.4/24 dev f0; route add 172.18.1.64/26 dev e0; route append 172.18.1.0/24 dev e0"
    ran = run(node, tmp_path, Case(commands, cidr="172.18.1.0/24"))
    assert ran.output.startswith(UNPROVEN), ran.output


def test_addresses_may_come_where_there_is_infiniband(node: KernelNode, tmp_path: Path) -> None:
    """A node with InfiniBand and without a pool is not plain, as the program waits for
    addresses.
    """
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    ran = run(node, tmp_path, Case(pool=None, is_right=True))
    assert ran.output.startswith(f"{UNPROVEN}awaited (/"), ran.output


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_what_is_not_a_file(node: KernelNode, tmp_path: Path, kind: str) -> None:
    """A pool that is a folder or a fifo is left to the program without a wait."""
    run(node, tmp_path, Case(is_right=True))
    file = tmp_path / POOL[1:]
    file.unlink()
    if kind == "folder":
        file.mkdir()
    else:
        os.mkfifo(file)
    ran = run_script(node, tmp_path / "run", [CIDR], files=tmp_path)
    assert ran.output.startswith(f"{UNPROVEN}fabric;"), ran.output


@pytest.mark.parametrize(
    ("word", "options"),
    [("fabric", {"options": {"fabric": ["10.9.0.0/16"]}}), ("after", {"after": ["a.service"]})],
)
def test_what_only_the_program_judges(
    node: KernelNode, tmp_path: Path, word: str, options: dict[str, object]
) -> None:
    """A fabric of the config, and units that connect networks, are left to the program."""
    ran = run_script(node, tmp_path / "run", ["10.96.0.0/16"], **options)  # type: ignore[arg-type]
    assert ran.output.startswith(f"{UNPROVEN}{word};"), ran.output


def hardware(folder: Path, dev: str) -> None:
    """Make a device hardware, as /sys shows it."""
    (folder / f"sys/class/net/{dev}/device").mkdir(parents=True)


class NoNetwork(NamedTuple):
    """A network in `expectedDevs`, and commands of `ip`."""

    network: str
    commands: str = ""
    is_virtual: bool = False
    is_right: bool = False


_SECOND = "route add default via 10.225.0.1 dev e1 metric 9"
NO_NETWORKS = {
    "virtual": NoNetwork("10.224.0.0/16", is_virtual=True, is_right=True),
    "an address of another device": NoNetwork(
        "10.224.0.0/16", "address add 10.224.9.9/32 dev e1", is_right=True
    ),
    "of another default route": NoNetwork("10.225.0.0/16", _SECOND),
    "of two default routes": NoNetwork("10.0.0.0/8", _SECOND),
    "of no default route": NoNetwork("10.225.0.0/16"),
    "of no device": NoNetwork("10.9.0.0/16"),
}


class TestNetworks:
    """A network in `expectedDevs`, which stands for the device of the default route."""

    def test_it_is_plain(self, node: KernelNode, tmp_path: Path) -> None:
        """A network in `expectedDevs` is plain if one device, which is hardware, has an address in
        it, also for IPv6.
        """
        hardware(tmp_path, "e0")
        options = {"expectedDevs": ["10.224.0.0/16", "e1"]}
        ran = run(node, tmp_path, Case("", cidr="10.96.0.0/16", pool=None, is_right=True), options)
        assert ran.is_plain, ran.output
        node.ip("-6 address add fd00:1::1/64 dev e0 nodad")
        node.ip("-6 route add fd09::/64 dev e0")
        ran = run(node, tmp_path, Case("", cidr="fd09::/64", pool=None, is_right=True), options)
        assert ran.is_plain, ran.output
        node.ip("-6 route add fd09::/80 dev e1")
        options = {"expectedDevs": ["10.224.0.0/16"]}
        assert not run(node, tmp_path, Case("", cidr="fd09::/64", pool=None), options).is_plain

    @pytest.mark.parametrize("case", NO_NETWORKS.values(), ids=NO_NETWORKS)
    def test_it_is_not_plain(self, node: KernelNode, tmp_path: Path, case: NoNetwork) -> None:
        """A network in `expectedDevs` whose device the script cannot find is left to the
        program.
        """
        for dev in () if case.is_virtual else ("e0", "e1"):
            hardware(tmp_path, dev)
        of_node = Case(case.commands, cidr="10.96.0.0/16", pool=None, is_right=case.is_right)
        ran = run(node, tmp_path, of_node, {"expectedDevs": [case.network]})
        assert ran.output.startswith(f"{UNPROVEN}carrier ({case.network}"), ran.output
