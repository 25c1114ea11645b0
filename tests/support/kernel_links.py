"""The handles of the link-layer contract on a real network namespace, and a BPF programme that does
nothing, attached to a device as tc does, or by tcx.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import platform
import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from hostrouting.host.netlink.conversation import Adapter, in_namespace
from hostrouting.host.netlink.frames import attribute, message
from hostrouting.net.links import Neighbour
from hostrouting.testing import KernelNode


class KernelLinks:
    """The arrangements of `MemoryLinks`, made in the kernel. A device that is no bridge is one
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
        """`ip link add`, with both ends in the same namespace; without carrier the far end is
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

    def add_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """`ip -batch`, for many permanent neighbours."""
        lines = [
            f"neigh add {each.address} lladdr {each.mac} nud permanent dev {each.dev}"
            for each in neighbours
        ]
        self.kernel.run("sh", "-c", 'printf "$1" | ip -batch -', "sh", "\\n".join([*lines, ""]))

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
        attach(self.name, dev, direction, program, priority=next(self._priorities))

    def shown(self, *words: str) -> Any:
        """Return the output of `ip -j`."""
        return json.loads(self.kernel.ip("-j", *words) or "[]")

    def listed(self, *words: str) -> list[str]:
        """The lines that `ip` prints, sorted: the order of neighbours is that of a hash."""
        return sorted(self.kernel.ip(*words).splitlines())


_BPF_NUMBERS = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH, _SCHED_CLS = 5, 8, 3
_TCX = {"in": 46, "out": 47}
#: `r0 = -1; exit`, which lets the packet pass.
_PROGRAM = struct.pack("=BBhi", 0xB7, 0, 0, -1) + struct.pack("=BBhi", 0x95, 0, 0, 0)
_NEWTFILTER, _REQUEST_CREATE_EXCL = 44, 0x601
_DIRECTIONS = {"in": 0xFFFFFFF2, "out": 0xFFFFFFF3}
_ETH_P_ALL = 0x0003


def why_no_tcx() -> str | None:
    """Why no programme can be attached by tcx here; None if one can."""
    reason = _why_no_bpf()
    if reason is not None:
        return reason
    try:
        _bpf(16, struct.pack("=IIIIQIIQQQQ", 1, 46, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    except OSError as error:
        return f"tcx does not work here (needs Linux 6.6): {error}"
    return None


def _why_no_bpf() -> str | None:
    """Why no programme can be loaded here; None if one can."""
    try:
        os.close(load())
    except OSError as error:
        return f"bpf(2) does not work here: {error}"
    return None


def needs_bpf() -> pytest.MarkDecorator:
    """Mark a test to be skipped unless a BPF programme can be loaded here."""
    reason = _why_no_bpf()
    return pytest.mark.skipif(reason is not None, reason=str(reason))


def load(name: str = "loaded_as") -> int:
    """Load the programme; its descriptor."""
    code, licence = ctypes.create_string_buffer(_PROGRAM), ctypes.create_string_buffer(b"GPL")
    request = struct.pack(
        "=IIQQIIQII16s",
        *(_SCHED_CLS, len(_PROGRAM) // 8, ctypes.addressof(code), ctypes.addressof(licence)),
        *(0, 0, 0, 0, 0, name.encode()),
    )
    return _bpf(_PROG_LOAD, request)


def _bpf(command: int, request: bytes) -> int:
    number = _BPF_NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(f"the number of bpf(2) on {platform.machine()} is not listed")
    libc = ctypes.CDLL(None, use_errno=True)
    answer: int = libc.syscall(number, command, ctypes.create_string_buffer(request), len(request))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def attach_by_tcx(netns: str, dev: str, direction: str, name: str) -> None:
    """Let tcx run the programme, loaded under that name; OSError (EINVAL) on kernels before 6.6."""
    descriptor = load(name)

    def attach_here() -> None:
        index = socket.if_nametoindex(dev)
        _bpf(_PROG_ATTACH, struct.pack("=IIIIIIQ", index, descriptor, _TCX[direction], 0, 0, 0, 0))

    try:
        in_namespace(netns, attach_here)
    finally:
        os.close(descriptor)


def attach(netns: str, dev: str, direction: str, name: str, *, priority: int) -> None:
    """Let tc run the programme under that name; the device has a clsact qdisc."""
    descriptor = load()
    try:
        with Adapter(netns=netns)._open() as kernel:
            index = {name: index for index, name in kernel.names().items()}[dev]
            info = priority << 16 | int.from_bytes(struct.pack(">H", _ETH_P_ALL), "little")
            options = attribute(6, struct.pack("=I", descriptor)) + attribute(
                7, name.encode() + b"\0"
            )
            payload = struct.pack("=BxxxiIII", 0, index, 0, _DIRECTIONS[direction], info)
            payload += attribute(1, b"bpf\0") + attribute(2, options)
            failures = kernel.deliver(
                [message(_NEWTFILTER, _REQUEST_CREATE_EXCL, payload, sequence=1 << 24)], 1
            )
            if failures:
                raise OSError(failures[0].errno, failures[0].reason)
    finally:
        os.close(descriptor)
