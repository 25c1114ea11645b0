"""A node with a bridge of azure-vnet in real namespaces: a live pod on it, and a dead one's
leftovers.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from support.stale_cni_worlds import NODE_RULES, arp_reply, config_of, dnat, state_of

from hostrouting import CleanStaleCNI, Host
from hostrouting.azure.stale_cni.azure_vnet import STATE_PATH
from hostrouting.host import Ebtables
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.conversation import in_namespace
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from hostrouting.host.packets.ebtables import EbtablesCommand
from hostrouting.testing import KernelNode, MemoryFiles, MemoryLock, MemoryServices
from phases import Context

NODE, NODE_MAC = "10.240.0.4", "00:0d:3a:00:00:04"
CLIENT, CLIENT_MAC = "10.240.0.100", "02:00:00:00:01:00"
LIVE, LIVE_MAC = "10.240.0.10", "aa:bb:cc:00:00:10"
#: The address of a pod that is gone; a pod of another CNI has got it.
REUSED, DEAD_MAC = "10.240.0.9", "aa:bb:cc:00:00:09"
DEAD6 = "fd00:10:240::9"
PORT = 7
SOON = 0.2
#: Waits of the product, shorter: readings follow each other fast.
SHORT = {
    "azure.stale_cni.task.SECONDS_BETWEEN_SNAPSHOTS": SOON,
    "watch.worker.SECONDS_BETWEEN_RUNS": SOON,
}
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
#: The entries that a plan names, without the backend of rules.
STALE = [
    arp_reply(REUSED, DEAD_MAC),
    dnat(REUSED, DEAD_MAC),
    dnat(DEAD6, DEAD_MAC),
    f"{REUSED} dev azure0 lladdr {DEAD_MAC} PERMANENT",
    f"{DEAD6} dev azure0 lladdr {DEAD_MAC} PERMANENT",
]
_MAC = re.compile(r"\b[0-9a-f]{1,2}(?::[0-9a-f]{1,2}){5}\b")


def _in_full(line: str) -> str:
    """Return a rule in one spelling: only the legacy tool shortens hardware addresses, and prints
    implied options and double blanks.
    """
    line = _MAC.sub(lambda found: ":".join(part.zfill(2) for part in found[0].split(":")), line)
    return " ".join(line.replace(" --arpreply-target DROP", "").split())


def shown(node: KernelNode, backend: str) -> list[str]:
    """The rules of the table `nat`, in order, as `-A` lines.

    Not by ebtables-legacy-save: it calls plain `ebtables`, which may be that of nft, and then shows
    nothing.
    """
    if backend == "nft":
        lines = node.run("ebtables-nft-save").splitlines()
    else:
        lines = [
            line.removeprefix("ebtables -t nat ")
            for line in node.run("ebtables-legacy", "-t", "nat", "-L", "--Lx").splitlines()
        ]
    return [_in_full(line) for line in lines if line.startswith("-A")]


class World:
    """Four namespaces: the fabric, the node, azure-vnet's live pod, and Cilium's pod with the
    reused address.
    """

    def __init__(self, nodes: Sequence[KernelNode], root: Path, backend: str) -> None:
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
        with ExitStack() as stack:
            world = cls([stack.enter_context(KernelNode.made()) for _ in range(4)], root, backend)
            with world.stack:
                world._wire()
                world._leave_behind()
                world._listen()
                world.record({"azv1": [LIVE]}, LIVE_MAC)
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

    def sweep(self, ebtables: Ebtables | None = None) -> CleanStaleCNI:
        return CleanStaleCNI(config_of(), host=self.host(ebtables))

    def record(self, endpoints: dict[str, list[str]], mac: str) -> None:
        """Write azure-vnet's state; all pods have this hardware address."""
        path = self.root / STATE_PATH.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(state_of(endpoints, mac))

    def shown(self) -> dict[str, list[str]]:
        """Return the output of the tools without entries that the kernel learns by itself, and
        without dates.
        """
        ip = self.node.ip
        return {
            "ebtables": shown(self.node, self.backend),
            # In the order of a hash table.
            "neigh": sorted(line.strip() for line in ip("neigh show nud permanent").splitlines()),
            "route": ip("-4 route show table all").splitlines(),
            "route6": ip("-6 route show table all").splitlines(),
        }

    def rule(self, line: str) -> None:
        """Add a rule at the end of its chain."""
        self.node.run(f"ebtables-{self.backend}", "-t", "nat", *line.split())

    def planned(self, task: CleanStaleCNI) -> list[str]:
        """Return the subjects of a plan in the words of `shown`."""
        prefix = f"ebtables {self.backend} nat: "
        subjects = [change.subject for change in task.plan(Context(timeout=60))]
        return [_in_full(subject.removeprefix(prefix)) for subject in subjects]

    def reaches(self, address: str, *, patience: float = 5.0) -> bool:
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
        """Send datagrams to the address, one after another, while the block runs, and ten at least.

        The list has those that were lost.
        """
        lost: list[int] = []
        sent = 0
        stop = threading.Event()
        client = self.stack.enter_context(self._socket(self.fabric))
        client.settimeout(10.0)

        def run() -> None:
            nonlocal sent
            while not stop.wait(0.002) or sent <= 10:
                sent += 1
                client.sendto(str(sent).encode(), (address, PORT))
                try:
                    answered = 0
                    while answered != sent:
                        answered = int(client.recv(16))
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
            for which in "default", "all":
                node.run("sysctl", "-qw", f"net.ipv6.conf.{which}.accept_dad=0")
        for dev, mac, there, peer, peer_mac in (
            ("eth0", NODE_MAC, self.fabric, "wire", CLIENT_MAC),
            ("azv1", "fe:00:00:00:00:10", self.live, "eth0", LIVE_MAC),
            ("lxc1", "fe:00:00:00:00:09", self.other, "eth0", "0a:00:00:00:00:09"),
        ):
            add_link(self.node, dev, mac, there=there, peer=peer, peer_mac=peer_mac)
        ip = self.node.ip
        # As azure-vnet does it: the bridge takes over address and hardware address of eth0.
        ip(f"link add azure0 address {NODE_MAC} type bridge")
        for port in ("eth0", "azv1"):
            ip(f"link set {port} master azure0")
        ip("link set azure0 up")
        ip(f"address add {NODE}/16 dev azure0")
        ip(f"route add default via {CLIENT} dev azure0")
        self.node.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        # As Cilium does it: a route to each pod.
        ip(f"route add {REUSED}/32 dev lxc1")
        self.other.ip(f"address add {REUSED}/32 dev eth0")
        self.other.ip("route add default dev eth0")
        self.other.ip(f"neigh add {CLIENT} lladdr fe:00:00:00:00:09 nud permanent dev eth0")
        self.live.ip(f"address add {LIVE}/16 dev eth0")
        self.fabric.ip(f"address add {CLIENT}/16 dev wire")
        # The fabric has one hardware address for all that is on the node.
        for address in (NODE, LIVE, REUSED):
            self.fabric.ip(f"neigh add {address} lladdr {NODE_MAC} nud permanent dev wire")

    def _leave_behind(self) -> None:
        for line in ARRANGEMENT:
            self.rule(line)
        for address, mac in ((REUSED, DEAD_MAC), (LIVE, LIVE_MAC), (DEAD6, DEAD_MAC)):
            self.node.ip(f"neigh add {address} lladdr {mac} nud permanent dev azure0")

    def _listen(self) -> None:
        """Answer datagrams on the node and in both pods, until the world ends."""
        for node in (self.node, self.live, self.other):
            self.answer(node)

    def answer(self, node: KernelNode) -> None:
        """Answer datagrams in a namespace, until the world ends."""
        server = self._socket(node)
        server.bind(("0.0.0.0", PORT))  # noqa: S104 - in a separate namespace
        thread = threading.Thread(target=_echo, args=(server,), name=f"echo in {node.name}")
        thread.start()
        self.stack.callback(thread.join)
        self.stack.callback(_wake, server)

    def _socket(self, node: KernelNode) -> socket.socket:
        return in_namespace(node.name, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))


def add_link(
    here: KernelNode, name: str, mac: str, *, there: KernelNode, peer: str, peer_mac: str
) -> None:
    """A veth pair between two namespaces, both ends up."""
    words = ("type", "veth", "peer", "name", peer, "address", peer_mac, "netns", there.name)
    here.ip(f"link add {name} address {mac}", *words)
    here.set_up(name)
    there.set_up(peer)


def _wake(server: socket.socket) -> None:
    """Shut a socket down, so that a thread that waits on it ends; the kernel raises ENOTCONN."""
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
