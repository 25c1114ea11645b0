"""The situation itself, in real namespaces: a bridge of azure-vnet, a live pod on it, and a dead one's leftovers."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import attrs
import pytest
from support.ebtables_backends import BACKENDS, in_full, shown
from support.needs import needs
from support.probe_worlds import inside
from support.stale_cni_worlds import NODE_RULES, TUNNEL_MAC, arp_reply, config_of, dnat, state_of

from hostrouting.exceptions import HostRoutingError, PermissionDeniedError, StaleCNIError
from hostrouting.host import Host, Neighbour
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from hostrouting.host.packets.ebtables import EbtablesCommand
from hostrouting.stale_cni import CleanStaleCNI
from hostrouting.stale_cni.azure_vnet import STATE_PATH
from hostrouting.testing import MemoryFiles, MemoryLock, MemoryServices
from hostrouting.testing.kernel_node import KernelNode
from phases import Context, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Ebtables, EbtablesReading

pytestmark = needs("kernel", "ebtables-nft")

NODE, NODE_MAC = "10.240.0.4", "00:0d:3a:00:00:04"
CLIENT, CLIENT_MAC = "10.240.0.100", "02:00:00:00:01:00"
LIVE, LIVE_MAC = "10.240.0.10", "aa:bb:cc:00:00:10"
#: The address of a pod that is gone; a pod of another CNI has got it.
REUSED, DEAD_MAC = "10.240.0.9", "aa:bb:cc:00:00:09"
DEAD6 = "fd00:10:240::9"
PORT = 7
SOON = 0.2

ARRANGEMENT = (
    *NODE_RULES[1:],
    arp_reply(REUSED, DEAD_MAC),
    dnat(LIVE, LIVE_MAC),
    dnat(REUSED, DEAD_MAC),
    "-A PREROUTING -p IPv4 -i eth9 -j ACCEPT",
    dnat(DEAD6, DEAD_MAC),
    arp_reply(LIVE, LIVE_MAC),
    NODE_RULES[0],
)
#: The objects that a plan names, without the backend of rules.
STALE = [
    arp_reply(REUSED, DEAD_MAC),
    dnat(REUSED, DEAD_MAC),
    dnat(DEAD6, DEAD_MAC),
    f"{REUSED} dev azure0 lladdr {DEAD_MAC} PERMANENT",
    f"{DEAD6} dev azure0 lladdr {DEAD_MAC} PERMANENT",
]


class World:
    """Four namespaces: the fabric, the node, azure-vnet's live pod, and Cilium's pod with the reused address."""

    def __init__(
        self, nodes: tuple[KernelNode, KernelNode, KernelNode, KernelNode], root: Path, backend: str = "nft"
    ) -> None:
        #: Which ebtables the rules are of.
        self.backend = backend
        self.fabric, self.node, self.live, self.other = nodes
        self.root = root
        #: The command prefix that runs a program on the node.
        self.prefix = ("ip", "netns", "exec", self.node.name)
        self.stack = ExitStack()

    @classmethod
    @contextmanager
    def made(cls, root: Path, backend: str = "nft") -> Iterator[World]:
        with (
            KernelNode.made() as fabric,
            KernelNode.made() as node,
            KernelNode.made() as live,
            KernelNode.made() as other,
        ):
            world = cls((fabric, node, live, other), root, backend)
            with world.stack:
                world._wire()
                world._leave_behind()
                world._listen()
                yield world

    def host(self, ebtables: Ebtables | None = None) -> Host:
        """The node, with files below the test's folder."""
        return Host(
            routes=NetlinkBackend(netns=self.node.name),
            link_layer=NetlinkLinkLayer(netns=self.node.name),
            ebtables=ebtables or EbtablesCommand(self.prefix),
            files=RootedFiles(str(self.root)),
            services=MemoryServices(MemoryFiles().tree),
            lock=MemoryLock(),
        )

    def sweep(self, config: HostRoutingConfig | None = None, ebtables: Ebtables | None = None) -> CleanStaleCNI:
        return CleanStaleCNI(config or config_of(), host=self.host(ebtables))

    def shown(self) -> dict[str, list[str]]:
        """Return the output of the tools without entries that the kernel learns by itself, and without dates."""
        ip = self.node.ip
        return {
            "ebtables": shown(self.node, self.backend),
            # In the order of a hash table.
            "neigh": sorted(line.strip() for line in ip("neigh", "show", "nud", "permanent").splitlines()),
            "route": ip("-4", "route", "show", "table", "all").splitlines(),
            "route6": ip("-6", "route", "show", "table", "all").splitlines(),
        }

    def rule(self, line: str, *, first: bool = False) -> None:
        """Add a rule at the end of its chain, or before all others."""
        words = line.replace("-A ", "-I ", 1) if first else line
        self.node.run(f"ebtables-{self.backend}", "-t", "nat", *words.split())

    def planned(self, task: CleanStaleCNI) -> list[str]:
        """Return the subjects of a plan in the words of `shown`."""
        prefix = f"ebtables {self.backend} nat: "
        subjects = [change.subject for change in task.plan(Context(timeout=60))]
        return [in_full(subject.removeprefix(prefix)) for subject in subjects]

    def asks(self, address: str, *, patience: float = 5.0) -> bool:
        """Return True if an answer comes to a datagram that the fabric sends to the address."""
        with self._socket(self.fabric) as client:
            client.settimeout(patience)
            client.sendto(b"?", (address, PORT))
            try:
                return client.recv(16) == b"?"
            except TimeoutError:
                return False

    @contextmanager
    def stream(self, address: str) -> Iterator[list[int]]:
        """Datagrams to the address, one after the other, while the block runs, and ten at least.

        The list has those that were lost.
        """
        lost: list[int] = []
        sent = 0
        stop = threading.Event()
        client = self.stack.enter_context(self._socket(self.fabric))
        client.settimeout(2.0)

        def run() -> None:
            nonlocal sent
            while not stop.wait(0.002) or sent <= 10:
                sent += 1
                client.sendto(str(sent).encode(), (address, PORT))
                try:
                    while int(client.recv(16)) != sent:
                        pass
                except TimeoutError:
                    lost.append(sent)

        thread = threading.Thread(target=run, name=f"stream to {address}")
        thread.start()
        try:
            yield lost
        finally:
            stop.set()
            thread.join()

    def _wire(self) -> None:
        for node in (self.fabric, self.node, self.live, self.other):
            # Addresses are good at once, and routes do not change by themselves.
            node.run("sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.all.accept_dad=0")
        _link(self.node, "eth0", NODE_MAC, there=self.fabric, peer="wire", peer_mac=CLIENT_MAC)
        _link(self.node, "azv1", "fe:00:00:00:00:10", there=self.live, peer="eth0", peer_mac=LIVE_MAC)
        _link(self.node, "lxc1", "fe:00:00:00:00:09", there=self.other, peer="eth0", peer_mac="0a:00:00:00:00:09")
        ip = self.node.ip
        # As azure-vnet does it: the bridge takes over address and hardware address of eth0.
        ip("link", "add", "azure0", "address", NODE_MAC, "type", "bridge")
        for port in ("eth0", "azv1"):
            ip("link", "set", port, "master", "azure0")
        ip("link", "set", "azure0", "up")
        ip("address", "add", f"{NODE}/16", "dev", "azure0")
        ip("route", "add", "default", "via", CLIENT, "dev", "azure0")
        self.node.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        # As Cilium does it: a route to each pod.
        ip("route", "add", f"{REUSED}/32", "dev", "lxc1")
        self.other.ip("address", "add", f"{REUSED}/32", "dev", "eth0")
        self.other.ip("route", "add", "default", "dev", "eth0")
        self.other.ip("neigh", "add", CLIENT, "lladdr", "fe:00:00:00:00:09", "nud", "permanent", "dev", "eth0")
        self.live.ip("address", "add", f"{LIVE}/16", "dev", "eth0")
        self.fabric.ip("address", "add", f"{CLIENT}/16", "dev", "wire")
        # The fabric knows one hardware address for all that is on the node.
        for address in (NODE, LIVE, REUSED):
            self.fabric.ip("neigh", "add", address, "lladdr", NODE_MAC, "nud", "permanent", "dev", "wire")

    def _leave_behind(self) -> None:
        for line in ARRANGEMENT:
            self.rule(line)
        for address, mac in ((REUSED, DEAD_MAC), (LIVE, LIVE_MAC), (DEAD6, DEAD_MAC)):
            self.node.ip("neigh", "add", address, "lladdr", mac, "nud", "permanent", "dev", "azure0")

    def _listen(self) -> None:
        """Answer datagrams on the node and in both pods, until the world ends."""
        for node in (self.node, self.live, self.other):
            server = self._socket(node)
            server.bind(("0.0.0.0", PORT))  # noqa: S104 - in a separate namespace
            thread = threading.Thread(target=_echo, args=(server,), name=f"echo in {node.name}")
            thread.start()
            self.stack.callback(thread.join)
            self.stack.callback(_wake, server)

    def _socket(self, node: KernelNode) -> socket.socket:
        return inside(node, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))


def _link(here: KernelNode, name: str, mac: str, *, there: KernelNode, peer: str, peer_mac: str) -> None:
    """A veth pair between two namespaces, both ends up."""
    words = ("type", "veth", "peer", "name", peer, "address", peer_mac, "netns", there.name)
    here.ip("link", "add", name, "address", mac, *words)
    here.set_up(name)
    there.set_up(peer)


def _wake(server: socket.socket) -> None:
    """A program that waits on it gets nothing and ends; the kernel says that no one is connected."""
    with suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)


def _echo(server: socket.socket) -> None:
    with server:
        while True:
            try:
                data, sender = server.recvfrom(2048)
                if not data:
                    return
                server.sendto(data, sender)
            except OSError:
                return


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings follow each other fast."""
    monkeypatch.setattr("hostrouting.stale_cni.task.SECONDS_BETWEEN_READINGS", SOON)


@pytest.fixture(params=BACKENDS)
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-1\n")
    (tmp_path / "var/lib").mkdir(parents=True)
    with World.made(tmp_path, request.param) as world:
        # The bridge learns the address of each pod that sends.
        assert world.asks(LIVE)
        yield world


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    """The lines that went and those that came, all else being in the same order."""
    gone = [line for tool in before for line in before[tool] if line not in after[tool]]
    come = [line for tool in before for line in after[tool] if line not in before[tool]]
    kept = {tool: [line for line in before[tool] if line in after[tool]] for tool in before}
    assert kept == {tool: [line for line in after[tool] if line in before[tool]] for tool in after}
    return gone, come


def test_leftovers_steal_packets_and_the_sweep_gives_them_back(world: World) -> None:
    """Before, packets to the reused address are lost; after, they arrive; the live pod and the node never lose one."""
    assert not world.asks(REUSED, patience=SOON)
    with world.stream(LIVE) as lost_by_pod, world.stream(NODE) as lost_by_node:
        world.sweep().do(Context(timeout=60))
        assert world.asks(REUSED)
    assert (lost_by_pod, lost_by_node) == ([], [])


def test_the_sweep_removes_exactly_the_plan_and_undo_restores_it(world: World) -> None:
    """Rules, neighbours and routes of both families differ by the plan alone; after undo they are the same again."""
    before = world.shown()
    task = world.sweep()
    planned = world.planned(task)
    assert planned == STALE
    assert world.shown() == before
    task.do(Context(timeout=60))
    gone, come = differences(before, world.shown())
    assert (sorted(line.strip() for line in gone), come) == (sorted(planned), [])
    with world.stream(LIVE) as lost:
        task.undo(Context(timeout=60))
    assert (world.shown(), lost) == (before, [])
    assert list((world.root / "var/lib").iterdir()) == []
    assert not world.asks(REUSED, patience=SOON)


def test_tunnel_mode_is_decided_by_the_state(world: World) -> None:
    """All pods have one hardware address there, and it is learned: only azure-vnet's state tells them apart."""
    world.node.run(f"ebtables-{world.backend}", "-t", "nat", "-F", "PREROUTING")
    for address in (REUSED, LIVE):
        world.node.ip("neigh", "delete", address, "dev", "azure0")
        world.rule(arp_reply(address, TUNNEL_MAC))
        world.rule(dnat(address, TUNNEL_MAC))
    world.live.ip("link", "set", "eth0", "address", TUNNEL_MAC)
    world.live.ip("neigh", "add", CLIENT, "lladdr", CLIENT_MAC, "nud", "permanent", "dev", "eth0")
    state = world.root / STATE_PATH.removeprefix("/")
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_bytes(state_of({"azv1": [LIVE], "azv2": [REUSED]}))
    assert world.asks(LIVE)
    assert not world.asks(REUSED, patience=SOON)
    with world.stream(LIVE) as lost:
        world.sweep().do(Context(timeout=60))
        assert world.asks(REUSED)
    assert lost == []
    left = [line.split()[7] for line in world.shown()["ebtables"] if "arpreply" in line]
    assert left == [LIVE]


def test_an_address_that_the_nodes_router_has_now_is_given_back(world: World) -> None:
    """Cilium's router takes an address from the pods' pool: the dead pod's rules take its packets."""
    ip = world.node.ip
    ip("route", "delete", f"{REUSED}/32", "dev", "lxc1")
    ip("link", "add", "cilium_host", "type", "veth", "peer", "name", "cilium_net")
    ip("address", "add", f"{REUSED}/32", "dev", "cilium_host")
    for device in ("cilium_host", "cilium_net"):
        ip("link", "set", device, "up")
    assert not world.asks(REUSED, patience=SOON)
    before = world.shown()
    task = world.sweep()
    assert world.planned(task) == STALE
    with world.stream(LIVE) as lost:
        task.do(Context(timeout=60))
        assert world.asks(REUSED)
    assert lost == []
    task.undo(Context(timeout=60))
    assert world.shown() == before


def test_dead_rules_before_a_live_pods_own_go_alone(world: World) -> None:
    """The rules were made for an earlier pod with its address: the first rule of two decides, and leads to no pod."""
    before = world.shown()
    dead = [arp_reply(LIVE, "aa:bb:cc:00:00:77"), dnat(LIVE, "aa:bb:cc:00:00:77")]
    for line in reversed(dead):
        world.rule(line, first=True)
    assert not world.asks(LIVE, patience=SOON)
    task = world.sweep()
    assert world.planned(task) == [*dead, *STALE]
    task.do(Context(timeout=60))
    assert world.asks(LIVE)
    gone, come = differences(before, world.shown())
    assert (sorted(gone), come) == (sorted(STALE), [])
    task.undo(Context(timeout=60))
    assert world.shown()["ebtables"] == [*dead, *before["ebtables"]]


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_dead_record_that_shares_a_live_pods_device_protects_nothing(world: World, *, is_heard: bool) -> None:
    """azure-vnet names devices after pods, so one that came back has the device of its old record: it is asked."""
    state = world.root / STATE_PATH.removeprefix("/")
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_bytes(state_of([("azv1", [REUSED, DEAD6]), ("azv1", [LIVE])]))
    if not is_heard:
        world.node.run("bridge", "fdb", "delete", LIVE_MAC, "dev", "azv1", "master")
    assert not world.asks(REUSED, patience=SOON)
    with world.stream(LIVE) as lost:
        world.sweep().do(Context(timeout=60))
        assert world.asks(REUSED)
    assert lost == []
    own = [dnat(LIVE, LIVE_MAC), arp_reply(LIVE, LIVE_MAC)]
    assert [line for line in world.shown()["ebtables"] if f"{LIVE} " in line] == own


def test_routes_of_transparent_mode_go_and_come_back(world: World) -> None:
    """Routes on a pod's veth that still exists, whose pod is gone, of both families; one that answers keeps its own.

    That the kernel once learned a neighbour there is no sign of life: such entries stay for as long as there is room.
    """
    ip = world.node.ip
    ip("link", "add", "azv7", "type", "veth", "peer", "name", "peer7")
    for device in ("azv7", "peer7"):
        ip("link", "set", device, "up")
    for number in (17, 18):
        ip("route", "add", f"10.240.0.{number}/32", "dev", "azv7")
        ip("-6", "route", "add", f"fd00:10:240::{number}/128", "dev", "azv7")
    ip("route", "add", "10.240.0.19/32", "dev", "azv7", "proto", "142")
    ip("neigh", "add", "10.240.0.18", "lladdr", LIVE_MAC, "nud", "stale", "dev", "azv7")
    ip("neigh", "add", "fd00:10:240::18", "lladdr", LIVE_MAC, "nud", "stale", "dev", "azv7")
    # This one lives, but has not spoken yet.
    _link(world.node, "azv8", "fe:00:00:00:00:20", there=world.live, peer="eth8", peer_mac="aa:bb:cc:00:00:20")
    world.live.ip("address", "add", "10.240.0.20/32", "dev", "eth8")
    world.live.ip("address", "add", "fd00:10:240::20/128", "dev", "eth8")
    ip("route", "add", "10.240.0.20/32", "dev", "azv8")
    ip("-6", "route", "add", "fd00:10:240::20/128", "dev", "azv8")
    before = world.shown()
    task = world.sweep()
    task.do(Context(timeout=60))
    gone, come = differences(before, world.shown())
    expected = ["10.240.0.17", "10.240.0.18", "fd00:10:240::17", "fd00:10:240::18"]
    assert ([line.split()[0] for line in gone if "azv" in line], come) == (expected, [])
    task.undo(Context(timeout=60))
    assert world.shown() == before


def test_a_pod_that_was_silent_for_long_is_asked(world: World) -> None:
    """The bridge has forgotten it, and there is no state: it answers on its veth, and keeps its rules."""
    world.node.run("bridge", "fdb", "delete", LIVE_MAC, "dev", "azv1", "master")
    task = world.sweep()
    assert world.planned(task) == STALE
    world.node.run("bridge", "fdb", "delete", LIVE_MAC, "dev", "azv1", "master")
    task.do(Context(timeout=60))
    assert world.asks(LIVE)
    assert world.asks(REUSED)


def test_pods_on_a_bridge_of_another_name_are_not_taken_for_dead(world: World) -> None:
    """The config names a bridge that is not there: refused, both are named, and the live pod loses nothing."""
    before = world.shown()
    task = world.sweep(config_of(bridge="azure1"))
    with pytest.raises(StaleCNIError, match=r"no device azure1, .* a port of azure0"):
        task.do(Context(timeout=60))
    assert world.shown() == before
    assert world.asks(LIVE)


def test_a_pod_on_a_second_bridge_keeps_its_rules(world: World) -> None:
    """It has been heard by a bridge that is not the config's; it need not answer, and there is no state."""
    ip = world.node.ip
    ip("link", "add", "azure9", "type", "bridge")
    ip("link", "set", "azure9", "up")
    _link(world.node, "azv9", "fe:00:00:00:00:19", there=world.live, peer="eth9", peer_mac="aa:bb:cc:00:00:19")
    ip("link", "set", "azv9", "master", "azure9")
    line = dnat("10.240.0.19", "aa:bb:cc:00:00:19")
    world.rule(line)
    world.node.run("bridge", "fdb", "replace", "aa:bb:cc:00:00:19", "dev", "azv9", "master", "dynamic")
    world.sweep().do(Context(timeout=60))
    assert line in [shown.strip() for shown in world.shown()["ebtables"]]
    assert world.asks(REUSED)


# The usual kernel of the tests cannot filter VLANs; `.ci/kernel` has one that can.
if "legacy" in BACKENDS:

    def test_a_bridge_that_filters_vlans_has_heard_the_same_pods(world: World) -> None:
        """Its stations are in VLAN 1 then, and permanent ones are shown twice; the verdicts are the same."""
        world.node.ip("link", "set", "azure0", "type", "bridge", "vlan_filtering", "1")
        assert world.asks(LIVE)
        stations = world.host().link_layer.stations("azure0")
        assert 1 in {station.vlan for station in stations if station.mac == LIVE_MAC and not station.permanent}
        before = world.shown()
        task = world.sweep()
        assert world.planned(task) == STALE
        with world.stream(LIVE) as lost:
            task.do(Context(timeout=60))
            assert world.asks(REUSED)
            task.undo(Context(timeout=60))
        assert (world.shown(), lost) == (before, [])


@pytest.mark.parametrize(("node", "device"), [("node", "azv1"), ("live", "eth0")])
def test_a_pod_whose_link_is_down_for_a_moment_keeps_its_rules(world: World, node: str, device: str) -> None:
    """The bridge forgets it, and it cannot be asked: it is given time, and is there again with its link."""
    before = world.shown()
    there: KernelNode = getattr(world, node)
    there.ip("link", "set", device, "down")

    class ComesBack(NetlinkLinkLayer):
        looked = 0

        def neighbours(self) -> list[Neighbour]:
            self.looked += 1
            if self.looked == 3:
                there.ip("link", "set", device, "up")
            return super().neighbours()

    task = CleanStaleCNI(config_of(), host=attrs.evolve(world.host(), link_layer=ComesBack(netns=world.node.name)))
    report = run(task, timeout=60)
    report.raise_for_failure()
    assert not any(LIVE in change.subject for change in report.changes)
    after = world.shown()
    for sort in "ebtables", "neigh":
        assert [line for line in after[sort] if f"{LIVE} " in line] == [
            line for line in before[sort] if f"{LIVE} " in line
        ]
    assert world.asks(LIVE)


def test_without_privilege_no_silent_pod_is_stale(world: World) -> None:
    """Without CAP_NET_RAW a pod that was silent for long is not in the plan, and a check says that it cannot tell."""
    world.node.run("bridge", "fdb", "delete", LIVE_MAC, "dev", "azv1", "master")

    class Denied(NetlinkLinkLayer):
        def answering(self, ctx: Context, asked: Sequence[tuple[str, str]]) -> frozenset[tuple[str, str]]:
            raise PermissionDeniedError("asking needs CAP_NET_RAW")

    host = attrs.evolve(world.host(), link_layer=Denied(netns=world.node.name))
    assert CleanStaleCNI(config_of(), host=host).plan(Context(timeout=60)) == []
    with pytest.raises(PermissionDeniedError, match="cannot tell if a removed CNI left anything"):
        CleanStaleCNI(config_of(), host=host).findings(Context(timeout=60))


def test_a_program_that_restores_rules_is_reported_and_not_fought(world: World) -> None:
    """A script that keeps adding a rule is reported, and its rule stays."""
    line = dnat(REUSED, DEAD_MAC)
    stop, is_back = threading.Event(), threading.Event()

    def reconcile() -> None:
        while not stop.is_set():
            if line not in [shown.strip() for shown in world.shown()["ebtables"]]:
                world.rule(line)
                is_back.set()

    class Watched(EbtablesCommand):
        def delete(self, ctx: Context, rules: object, *, progress: Callable[[int], None] | None = None) -> None:
            super().delete(ctx, rules, progress=progress)  # type: ignore[arg-type]
            assert is_back.wait(10)

    thread = threading.Thread(target=reconcile, name="reconciler")
    thread.start()
    try:
        # The adapter notices a program that is faster than its own reading, the task all others.
        with pytest.raises(HostRoutingError, match=r"another program adds them again|something alive undoes it"):
            world.sweep(ebtables=Watched(world.prefix)).do(Context(timeout=60))
    finally:
        stop.set()
        thread.join()
    assert line in [shown.strip() for shown in world.shown()["ebtables"]]


def test_without_ebtables_the_rest_is_cleaned(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Without ebtables a message says that rules may remain, and neighbours are removed nevertheless."""
    empty = world.root / "empty"
    empty.mkdir()
    absent = EbtablesCommand((*world.prefix, "/usr/bin/env", f"PATH={empty}"))
    before = world.shown()
    task = world.sweep(ebtables=absent)
    task.do(Context(timeout=60))
    after = world.shown()
    assert (after["ebtables"], len(after["neigh"])) == (before["ebtables"], len(before["neigh"]) - 2)
    notes = [record for record in caplog.records if "may go unseen" in record.getMessage()]
    assert notes
    assert {record.levelname for record in notes} == {"WARNING"}
    task.undo(Context(timeout=60))
    assert world.shown() == before


def test_a_refusal_of_the_kernel_leaves_everything_as_it_was(world: World) -> None:
    """The rules had gone when a neighbour is refused: they are back, in place and order, and there is no record."""
    before = world.shown()

    class Refused(NetlinkLinkLayer):
        def apply(self, *, remove: Sequence[Any] = (), add: Sequence[Any] = ()) -> None:
            super().apply(remove=[*remove, Neighbour("10.240.0.99", "azure0", DEAD_MAC, permanent=True)], add=add)

    host = attrs.evolve(world.host(), link_layer=Refused(netns=world.node.name))
    with world.stream(LIVE) as lost, pytest.raises(StaleCNIError, match=r"removed before that are back$"):
        CleanStaleCNI(config_of(), host=host).do(Context(timeout=60))
    assert (world.shown(), lost, list((world.root / "var/lib").iterdir())) == (before, [], [])


def test_an_object_that_another_program_removed_is_named(world: World) -> None:
    """A neighbour vanishes at the last moment: the rules are back, the neighbour is named, and undo knows it."""
    before = world.shown()

    class Vanishing(EbtablesCommand):
        def delete(self, ctx: Context, rules: object, *, progress: Callable[[int], None] | None = None) -> None:
            super().delete(ctx, rules, progress=progress)  # type: ignore[arg-type]
            world.node.ip("neigh", "delete", DEAD6, "dev", "azure0")

    with pytest.raises(StaleCNIError, match="THE ROLLBACK IS INCOMPLETE") as caught:
        world.sweep(ebtables=Vanishing(world.prefix)).do(Context(timeout=60))
    gone, come = differences(before, world.shown())
    assert (len(gone), come) == (1, [])
    assert f"\n  {STALE[4]}\n" in str(caught.value)
    world.sweep().undo(Context(timeout=60))
    assert world.shown() == before


def test_without_privilege_a_run_is_refused(world: World) -> None:
    """Without privilege the plan shows the visible objects, and a run that would change something is refused."""
    unprivileged = (*world.prefix, "setpriv", "--reuid=65534", "--clear-groups")
    before = world.shown()
    task = world.sweep(ebtables=EbtablesCommand(unprivileged))
    assert world.planned(task) == STALE[3:]

    class Reading(EbtablesCommand):
        def read(self, ctx: Context) -> EbtablesReading:
            return EbtablesCommand(world.prefix).read(ctx)

    with pytest.raises(PermissionDeniedError):
        world.sweep(ebtables=Reading(unprivileged)).do(Context(timeout=60))
    assert world.shown() == before
