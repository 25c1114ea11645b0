"""The handles of the link-layer contract on a real network namespace."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from support import bpf

from hostrouting.testing import KernelNode


class KernelLinks:
    """The arrangements of `MemoryLinkLayer`, made in the kernel. A device that is no bridge is one
    end of a veth pair.

    Each pod has a namespace, which is removed at the end of a `with` block.
    """

    def __init__(self, kernel: KernelNode) -> None:
        self.kernel = kernel
        self.name = kernel.name
        # No link-local addresses: a far end would solicit from its own some time after the start,
        # and a bridge learn its MAC.
        kernel.run("sysctl", "-qw", "net.ipv6.conf.default.addr_gen_mode=1")
        #: By the device that leads to it; in it, that device's other end is `eth0`.
        self.pods: dict[str, KernelNode] = {}
        self._stack = ExitStack()
        self._with_clsact: set[str] = set()
        self._priorities = itertools.count(1)

    def __enter__(self) -> KernelLinks:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add_device(
        self,
        name: str,
        *,
        mac: str = "",
        kind: str = "",
        master: str | None = None,
        addresses: Sequence[str] = (),
        up: bool = True,
        carrier: bool = True,
    ) -> None:
        """`ip link add`, with the other end in the same namespace; without carrier that end is
        down.
        """
        words = ["address", mac] if mac else []
        if kind == "bridge":
            self.kernel.ip(f"link add {name}", *words, "type bridge")
        else:
            self.kernel.ip(f"link add {name}", *words, f"type veth peer name {name}-far")
            self.kernel.ip(f"link set {name}-far", "up" if carrier else "down")
        if master is not None:
            self.kernel.ip(f"link set {name} master {master}")
        if up:
            self.kernel.ip(f"link set {name} up")
        for address in addresses:
            self.add_address(name, address)

    def add_pod(
        self, dev: str, *addresses: str, master: str | None = None, up: bool = True
    ) -> None:
        """Make a veth pair into a new namespace, in which nothing happens by itself."""
        pod = self._stack.enter_context(KernelNode.made())
        self.pods[dev] = pod
        pod.run("sysctl", "-qw", "net.ipv6.conf.default.addr_gen_mode=1")
        self.kernel.ip(f"link add {dev} type veth peer name eth0 netns {pod.name}")
        if master is not None:
            self.kernel.ip(f"link set {dev} master {master}")
        if up:
            self.kernel.ip(f"link set {dev} up")
        pod.set_up("eth0")
        for address in addresses:
            length, *nodad = ("64", "nodad") if ":" in address else ("16",)
            pod.ip(f"address add {address}/{length} dev eth0", *nodad)

    def silence(self, dev: str, address: str) -> None:
        """Nothing is to be arranged: no pod has the address."""

    def add_address(self, dev: str, address: str) -> None:
        """`ip address add`, usable at once."""
        self.kernel.ip(f"address add {address} dev {dev}", *(["nodad"] if ":" in address else []))

    def remove_device(self, name: str) -> None:
        """`ip link delete`."""
        self.kernel.ip(f"link delete {name}")

    def add_neighbour(
        self,
        address: str,
        dev: str,
        mac: str,
        *,
        permanent: bool = True,
        flags: int = 0,
        protocol: int = 0,
    ) -> None:
        """`ip neigh add`."""
        words = ["nud", "permanent" if permanent else "reachable"]
        words += ["router"] if flags & 0x80 else []
        words += ["extern_learn"] if flags & 0x10 else []
        words += ["protocol", str(protocol)] if protocol else []
        self.kernel.ip(f"neigh add {address} lladdr {mac}", *words, f"dev {dev}")

    def learn(self, mac: str, dev: str, *, permanent: bool = False) -> None:
        """`bridge fdb add`."""
        self.kernel.run(
            "bridge", "fdb", "add", mac, "dev", dev, "master", "static" if permanent else "dynamic"
        )

    def attach(self, dev: str, direction: str, program: str) -> None:
        """`tc filter add`, with the first one its qdisc, too."""
        if dev not in self._with_clsact:
            self.kernel.run("tc", "qdisc", "add", "dev", dev, "clsact")
            self._with_clsact.add(dev)
        bpf.attach(self.name, dev, direction, program, priority=next(self._priorities))

    def shown(self, *words: str) -> Any:
        """Return the output of `ip -j`."""
        return json.loads(self.kernel.ip("-j", *words) or "[]")

    def listed(self, *words: str) -> list[str]:
        """The lines that `ip` prints, sorted: the order of neighbours is that of a hash."""
        return sorted(self.kernel.ip(*words).splitlines())
