"""Expected devices, dead ends and carriers, in memory and in the kernel, where a boot has the
same answers.
"""

import pytest
from support.kernel import connect, needs_kernel, uplink
from support.printed import CHOSEN, DEFAULT_THROUGH, IF_RIGHT, NARROW, OWN_ADDRESS, leaves
from support.way_out_nodes import WayOutNode, dead_default

from hostrouting import OverlapReport, prove_egress
from hostrouting.base.findings import NodeFinding
from hostrouting.host import Rule
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import parse_cidr
from hostrouting.testing import KernelNode, MemoryBackend
from hostrouting.testing.contracts.routes import arrange

SERVICES = "10.96.0.0/16"


def shapes(report: OverlapReport) -> list[tuple[str, str, tuple[str, ...], str | None]]:
    return [(cidr, finding.kind, finding.devs, finding.dev) for cidr, finding in report.findings]


def suggested(report: OverlapReport) -> list[tuple[str, str, str]]:
    return [(route.destination, route.gateway, route.dev) for route in report.suggested_routes]


# --- expected devices


def test_a_default_route_by_the_wrong_device_at_a_lower_metric(prover: WayOutNode) -> None:
    """A default route through the wrong device is trusted without `expectedDevs`; with them it is an
    overlap, which a route by the right gateway fixes.
    """
    prover.links("ib0", "eth0")
    prover.default("ib0", metric=50)
    prover.default("eth0", metric=100)
    trusted = prover.prove(SERVICES)
    assert trusted.verdict == leaves(SERVICES, "ib0")
    [note] = trusted.notes
    assert str(note) == (
        f'note: chosen-exit: {DEFAULT_THROUGH}ib0: {CHOSEN}eth0; {IF_RIGHT}["ib0"] to routeOverlap'
    )
    report = prover.prove(SERVICES, expectedDevs=["eth0"])
    assert shapes(report) == [(SERVICES, "overlap", ("ib0",), "ib0")]
    assert suggested(report) == [(SERVICES, "10.224.0.1", "eth0")]
    assert report.notes == ()


@needs_kernel
def test_a_dead_default_route_is_not_a_choice() -> None:
    """The kernel passes over a default route without a carrier: that route is not a second exit, so
    `expectedDevs` need not name the one that decides.
    """
    with dead_default() as node:
        report = prove_egress(NetlinkBackend(netns=node.name), [SERVICES])
    assert report.verdict == leaves(SERVICES, "eth0")
    assert report.notes == ()


def test_a_default_route_over_two_devices(prover: WayOutNode) -> None:
    """A default route over two devices is an overlap by the wrong one, as a hash sends some of the
    flows by it.
    """
    prover.links("ib0", "eth0")
    prover.default("ib0", "eth0")
    assert prover.prove(SERVICES).verdict == leaves(SERVICES, "ib0", "eth0")
    report = prover.prove(SERVICES, expectedDevs=["eth0"])
    assert shapes(report) == [(SERVICES, "overlap", ("ib0", "eth0"), "ib0")]
    assert suggested(report) == [(SERVICES, "10.224.0.1", "eth0")]


def test_suggested_routes_go_by_an_expected_device(prover: WayOutNode) -> None:
    """A suggested route goes through an expected device, although a first default route goes by an
    allowed one.
    """
    prover.links("ib0", "eth1", "eth0")
    prover.default("eth1", metric=50)
    prover.default("eth0", metric=100)
    report = prover.prove("172.16.8.0/22", SERVICES, expectedDevs=["eth0"], allowedDevs=["eth1"])
    assert shapes(report) == [("172.16.8.0/22", "overlap", ("ib0",), "ib0")]
    assert suggested(report) == [("172.16.8.0/22", "10.224.0.1", "eth0")]


def test_without_any_default_route(prover: WayOutNode) -> None:
    """A node without a default route is right where other routes go by the expected device, and the
    cause of a missing route is named.
    """
    prover.links("eth0")
    prover.node.add_route(SERVICES, gateway="10.224.0.1", dev="eth0")
    report = prover.prove(SERVICES, "10.97.0.0/16", expectedDevs=["eth0"])
    assert shapes(report) == [("10.97.0.0/16", "no-route", (), None)]
    assert report.expected_devs == ("eth0",)
    [cause] = report.causes
    assert (cause.kind, cause.subject, cause.command) == ("lost-default", "eth0", "")
    prover.node.set_up("eth0", up=False)
    [cause] = prover.prove(SERVICES, expectedDevs=["eth0"]).causes
    assert (cause.kind, cause.subject) == ("device-down", "eth0")
    assert cause.command == "ip link set eth0 up"


def test_without_the_expected_device(prover: WayOutNode) -> None:
    """An expected device that the node does not have is reported, instead of a lease by it that cannot
    come.
    """
    prover.links("eth0", "eth1", dead="eth1")
    prover.default("eth0")
    advice = prover.prove(SERVICES, expectedDevs=["Eth0", "gone0"]).advice
    assert [line.partition(";")[0] for line in advice.splitlines()] == [
        "Eth0: is in expectedDevs, but this node has no such device",
        "gone0: is in expectedDevs, but this node has no such device",
    ]
    assert advice.endswith(
        "if eth0 (with a default route) is the right one, name it in expectedDevs"
    )
    assert "\nGive " not in advice
    advice = prover.prove(SERVICES, expectedDevs=["gone0", "eth1"]).advice
    # Beside a device that is there, the other one explains nothing.
    assert [line.partition(";")[0] for line in advice.splitlines()] == ["eth1: has no carrier"]


# --- dead ends


def test_the_default_device_without_carrier(prover: WayOutNode) -> None:
    """A default device without carrier is a dead end for all but the node's own address, without
    suggested routes or advice to allow it.

    An overlap next to it is still found.
    """
    prover.links("eth0", "ib0", dead="eth0")
    prover.default("eth0")
    for section in {}, {"allowedDevs": ["eth*"]}:
        report = prover.prove(SERVICES, **section)
        assert shapes(report) == [(SERVICES, "dead-end", ("eth0",), "eth0")]
        assert (
            "10.96.0.0 to 10.96.255.255: leaves through eth0, which carries no packets (default via 10.224.0.1 dev eth0"
            in str(report)
        )
        assert (
            report.advice
            == "eth0: has no carrier; check its cable, the port of its switch and its driver (ip link show)"
        )
    [(_, own)] = prover.prove("10.224.0.4/32", "10.224.0.4/31").findings
    assert own.first == "10.224.0.5"
    assert own.last == "10.224.0.5"
    report = prover.prove("172.16.8.0/22", SERVICES)
    assert shapes(report) == [
        ("172.16.8.0/22", "overlap", ("ib0",), "ib0"),
        (SERVICES, "dead-end", ("eth0",), "eth0"),
    ]
    assert suggested(report) == []
    # An overlap alone names the device, too, and not the main table, in which a route will help
    # once it is back.
    assert prover.prove("172.16.8.0/22").advice.startswith("eth0: has no carrier; ")


@pytest.mark.parametrize("prover", ["kernel"], indirect=True)
def test_its_own_address_is_carried_by_another(prover: WayOutNode) -> None:
    """A device that is down is not named for the sake of its own address, unless nothing else is
    expected.
    """
    prover.links("eth0", "eth1")
    prover.default("eth0", "eth1")
    prover.node.set_up("eth0", up=False)
    assert prover.prove("10.224.0.4/32", SERVICES).verdict == leaves(
        f"10.224.0.4/32, {SERVICES}", "eth1"
    )
    assert prover.prove("10.224.0.4/32").verdict == leaves("10.224.0.4/32", "eth0", "eth1")


@pytest.mark.parametrize(
    ("dead", "kind", "words"),
    [
        # The kernel goes on to send some of the flows by it.
        ("eth1", "dead-end", "leaves through eth1, which carries no packets, one of eth0, eth1 ("),
        # The carrier comes back by itself, the second device stays wrong.
        ("eth0", "overlap", "eth0: has no carrier; check its cable"),
    ],
)
def test_one_of_two_next_hops(prover: WayOutNode, dead: str, kind: str, words: str) -> None:
    """One of two expected next hops without carrier is a dead end; next to a next hop by a wrong
    device, the finding is an overlap by that device.
    """
    prover.links("eth0", "eth1", dead=dead)
    prover.default("eth0", "eth1")
    report = prover.prove(SERVICES, expectedDevs=["eth0", "eth1"] if dead == "eth1" else ["eth0"])
    assert shapes(report) == [(SERVICES, kind, ("eth0", "eth1"), "eth1")]
    assert words in f"{report}"


def test_an_allowed_device_may_be_dead(prover: WayOutNode) -> None:
    """An allowed device without carrier, as a CNI's bridge without pods, is a note and not a dead
    end.
    """
    prover.links("eth0", "cni0", dead="cni0")
    prover.default("eth0")
    report = prover.prove("10.244.0.0/16")
    assert report.verdict == leaves("10.244.0.0/16", "eth0", "cni0")
    reason = "carries expected addresses and is allowed to, but has no carrier"
    assert report.notes == (NodeFinding("idle-device", "cni0", reason, "note"),)
    assert prover.prove(SERVICES).notes == ()


@needs_kernel
def test_a_bridge_without_ports_may_be_left_over() -> None:
    """A bridge without ports that carries expected addresses is a note until it gets a port."""
    with KernelNode.made() as node:
        connect(node, eth0="10.224.0.4/16", veth1="10.9.0.1/24")
        node.ip("link add cni0 up type bridge")
        node.add_address("cni0", "10.244.0.1/24")
        node.ip("route append default via 10.224.0.1 dev eth0")
        kernel = NetlinkBackend(netns=node.name)
        [note] = prove_egress(kernel, ["10.244.0.0/16"]).notes
        trouble = "is a bridge without ports, perhaps left behind by a CNI that was removed"
        assert note.reason == f"carries expected addresses and is allowed to, but {trouble}"
        assert prove_egress(kernel, [SERVICES]).notes == ()
        node.ip("link set veth1 master cni0")
        assert prove_egress(kernel, ["10.244.0.0/16"]).notes == ()


# --- devices that carry


def test_the_device_of_a_local_address_may_be_allowed(prover: WayOutNode) -> None:
    """An own address on any device is a finding with its steps, and is right once the device is
    allowed.
    """
    prover.links("eth0", "mesh0 10.9.0.1/32")
    prover.default("eth0")
    report = prover.prove("10.9.0.0/24")
    assert shapes(report) == [("10.9.0.0/24", "local", ("mesh0",), "mesh0")]
    # In the kernel it is a virtual device, and in memory hardware.
    remedy = NARROW
    if report.commands:
        remedy = "narrow expectedCidrs, or run: ip address del 10.9.0.1/32 dev mesh0"
    assert report.advice == f"{OWN_ADDRESS}{remedy}"
    assert prover.prove("10.9.0.0/24", allowedDevs=["mesh0"]).ok


def test_all_that_carry_are_named(prover: WayOutNode) -> None:
    """The verdict names the devices that carry, the expected ones first and then the rest by name.

    A connection leaves through the device of the second answer, where a rule selects by source.
    """
    prover.links("weave 10.246.0.1/24", "flannel.1 10.245.0.1/32", "cni0", "eth1", "eth0")
    prover.default("eth0")
    arrange(prover.node, "10.97.0.0/16 via 10.225.0.1 dev eth1", "10.244.7.0/24 dev flannel.1")
    expected = ["eth1", "eth0"]
    report = prover.prove("10.244.0.0/16", "10.97.0.0/16", expectedDevs=expected)
    assert report.verdict == leaves(
        "10.244.0.0/16, 10.97.0.0/16", "eth1", "eth0", "cni0", "flannel.1"
    )
    assert prover.prove("10.244.0.0/24").verdict == leaves("10.244.0.0/24", "cni0")
    arrange(prover.node, "default via 10.244.0.2 dev cni0 table 77")
    prover.node.add_rule(Rule(50, table=77, source=parse_cidr("10.224.0.4/32")))
    assert prover.prove(SERVICES).verdict == leaves(SERVICES, "eth0", "cni0")


def test_devices_of_more_cnis_are_allowed_by_default(prover: WayOutNode) -> None:
    """Devices of several CNIs carry addresses of the cluster without an entry in the config."""
    devs = ["antrea-gw0", "genev_sys_6081", "localdns", "ovn-k8s-mp0", "weave"]
    prover.links("eth0", *(f"{dev} 10.244.{number}.1/24" for number, dev in enumerate(devs)))
    prover.default("eth0")
    assert prover.prove("10.244.0.0/16").verdict == leaves("10.244.0.0/16", "eth0", *devs)


@needs_kernel
@pytest.mark.parametrize(
    ("deciding", "idle"),
    [
        ("rule add pref 5 to 172.16.0.0/16 prohibit", "route add blackhole 172.16.8.0/24"),
        ("rule add pref 5 to 172.16.0.0/16 blackhole", "route add prohibit 172.16.8.0/24"),
        ("rule add pref 5 to 172.16.0.0/16 unreachable", "route add unreachable 172.16.8.0/24"),
        ("route add unreachable 172.16.8.0/24", "rule add pref 32800 to 172.16.8.0/24 unreachable"),
    ],
)
def test_what_refuses_is_named_by_the_kernels_message(deciding: str, idle: str) -> None:
    """The route or rule that refuses packets is named, and not a narrower one of another kind that
    refuses nothing.
    """
    with KernelNode.made() as node:
        prover = WayOutNode(node)
        prover.links("eth0")
        prover.default("eth0")
        for command in deciding, idle:
            node.ip(command)
        [(_, finding)] = prover.prove("172.16.8.0/24").findings
        assert deciding.rsplit(maxsplit=1)[-1] in str(finding.route)


@pytest.mark.parametrize(
    ("dev", "options", "command"),
    [
        ("docker0", {"kind": "bridge"}, "ip address del 172.16.8.1/22 dev docker0"),
        ("eth9", {}, None),
        ("ib9", {"mac": ":".join(["80"] * 20)}, None),
        ("lo", None, None),
    ],
    ids=["virtual", "hardware", "InfiniBand", "loopback"],
)
def test_only_the_address_of_a_virtual_device_has_a_command(
    node: MemoryBackend, dev: str, options: dict[str, str] | None, command: str | None
) -> None:
    """An own address has a command that deletes it only on a virtual device, as others may be
    needed.
    """
    if options is not None:
        node.add_link(dev, **options)  # type: ignore[arg-type]
    node.add_address(dev, "172.16.8.1/22")
    [finding] = prove_egress(node, ["172.16.8.1/32"]).cidrs[0].findings
    assert finding.kind == "local"
    assert finding.dev == dev
    assert finding.command == command


def test_an_address_of_two_devices_has_no_command(node: MemoryBackend) -> None:
    """An own address of two devices has no command, as the node would keep it with one of them."""
    for dev in "docker0", "docker1":
        node.add_link(dev, kind="bridge")
        node.add_address(dev, "172.16.8.1/22")
    [finding] = prove_egress(node, ["172.16.8.1/32"]).cidrs[0].findings
    assert finding.kind == "local"
    assert finding.command is None


@needs_kernel
@pytest.mark.parametrize(
    ("table", "words"), [("main", "scope host table main"), ("local", "table local scope host")]
)
def test_a_local_route_to_no_address_is_a_finding(table: str, words: str) -> None:
    """A local route by the outbound device keeps packets on the node, where no device has their
    address: they are a finding, and the advised command removes the route.
    """
    with KernelNode.made() as node:
        uplink(node)
        node.ip(f"route add local 172.16.9.0/24 dev eth0 table {table}")
        backend = NetlinkBackend(netns=node.name)
        report = prove_egress(backend, ["172.16.0.0/16"])
        [(_, finding)] = report.findings
        assert (finding.kind, finding.first, finding.last, finding.dev) == (
            "local",
            "172.16.9.0",
            "172.16.9.255",
            "eth0",
        )
        removal = f"ip route del local 172.16.9.0/24 dev eth0 {words}"
        assert report.commands == (removal,)
        node.ip(removal.removeprefix("ip "))
        assert prove_egress(backend, ["172.16.0.0/16"]).ok
        # An address of the device itself is fine.
        node.add_address("eth0", "172.16.9.7/32")
        assert prove_egress(backend, ["172.16.0.0/16"]).ok
