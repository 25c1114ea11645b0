"""Helpers of tests of the real kernel."""

import itertools
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import note
from hypothesis.control import currently_in_test_context

from hostrouting.host import Address, Host, Route, RouteBackend, RouteChange
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.events import NetlinkEvents
from hostrouting.testing import FakeHost, KernelNode, Node

needs_kernel = pytest.mark.usefixtures("needs_kernel")


def powerless(*capabilities: str) -> tuple[str, ...]:
    """Return a command prefix for a process with these capabilities alone. It may read every file,
    even our own code.

    (A checkout in /root, or in the home of the user that ran sudo, is closed to other users.)
    """
    kept = "".join(f",+{capability}" for capability in ("dac_read_search", *capabilities))
    return ("setpriv", f"--bounding-set=-all{kept}", "--inh-caps=-all")


class _VRFNode(KernelNode):
    in_vrf: Collection[str] = ()

    def add_link(self, name: str, *, up: bool = True, carrier: bool = True) -> None:
        super().add_link(name, up=up, carrier=carrier)
        if name in self.in_vrf:
            self.ip(f"link set {name} master blue")


@contextmanager
def node_with_vrf(devs: Collection[str]) -> Iterator[KernelNode]:
    """Make a namespace with the VRF `blue`, whose table is 10; put each of these devices into it
    when it is added.
    """
    with _VRFNode.made() as node:
        assert isinstance(node, _VRFNode)
        node.ip("link add blue type vrf table 10")
        node.set_up("blue")
        node.in_vrf = devs
        yield node


def kernel_of(node: KernelNode) -> NetlinkBackend:
    """Return the backend for a node."""
    return NetlinkBackend(netns=node.name)


def host_of(routes: RouteBackend, fake: FakeHost | None = None, **ports: Any) -> Host:
    """Return a host with these routes; the rest of it is in memory."""
    fake = fake or FakeHost()
    return Host(routes=routes, services=fake.services, files=fake.files, lock=fake.lock, **ports)


def kernel_host(node: KernelNode) -> Host:
    """Return a host with the routes and events of a namespace, and a disk in memory."""
    return host_of(kernel_of(node), events=NetlinkEvents(netns=node.name))


def connect(node: Node, **addresses: str) -> None:
    """Add devices, each with an address."""
    for dev, address in addresses.items():
        node.add_link(dev)
        node.add_address(dev, address)


def uplink(node: Node, **addresses: str) -> None:
    """Add eth0 with 10.224.0.4/16 and the default route by 10.224.0.1, and more devices."""
    connect(node, eth0="10.224.0.4/16", **addresses)
    node.add_route("default", gateway="10.224.0.1", dev="eth0")


def many(count: int, *, every: int = 0) -> list[RouteChange]:
    """Return additions by eth0; each `every`-th has a gateway that is off the link."""
    near, far = map(Address.parse, ("10.224.0.1", "192.0.2.1"))
    return [
        RouteChange.add(
            Route(
                network=20 << 24 | number << 8,
                prefix_length=24,
                gateway=far if every and number % every == 0 else near,
                dev="eth0",
            )
        )
        for number in range(count)
    ]


def batch(
    namespace: str, *options: str, commands: Sequence[str]
) -> tuple[Iterator[str], dict[int, str]]:
    """Run commands of `ip`; return the lines of the output, and each refusal by the number of its
    command.
    """
    argv = ["ip", "-n", namespace, *options, "-force", "-batch", "-"]
    text = "".join(f"{command}\n" for command in commands)
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    # At words that `ip` cannot parse, and at a refused neighbour, it ends, and leaves out all
    # commands behind that one.
    last = done.stderr.splitlines()[-1:]
    assert all(line.startswith("Command failed -:") for line in last), f"{done.stderr}{text}"
    errors = {
        int(line.rpartition(":")[2]): before.partition(": ")[2]
        for before, line in itertools.pairwise(done.stderr.splitlines())
        if line.startswith("Command failed -:")
    }
    return iter(done.stdout.splitlines()), errors


def do(node: KernelNode, *options: str, commands: Sequence[str]) -> None:
    """Run commands of `ip` in one process; each must succeed."""
    _print_if_red(*options, commands=commands)
    _, refusals = batch(node.name, *options, commands=commands)
    assert not refusals, refusals


def make(node: KernelNode, *options: str, commands: Sequence[str]) -> None:
    """Run the commands of `ip` that make a world; the kernel may refuse any of them."""
    _print_if_red(*options, commands=commands)
    batch(node.name, *options, commands=commands)


def _print_if_red(*options: str, commands: Sequence[str]) -> None:
    """Let a property that fails print the commands."""
    if currently_in_test_context():
        head = " ".join(["ip", *options, "-force -batch - <<END"])
        note("\n".join([head, *commands, "END"]))
