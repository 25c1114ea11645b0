"""Show the problem, the finding and the repair on a GPU node, in a new network namespace.

Run it with `make demo`. It creates a namespace (as an ordinary user if the system allows user
namespaces), adds eth0 and eight devices of a fabric, and runs the real tasks. At first the devices
lack addresses: the files of the cloud's agent announce them, and the demo adds them at the end, as
the agent does after the boot. Without a namespace it uses the model in memory, with a notice. Files
and units are in memory; the machine is not changed.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from hostrouting import Configure, Host, HostRoutingConfig, check_node, explain_routing
from hostrouting.exceptions import RouteOverlapError
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import parse_ipv4
from hostrouting.route_overlap.fabric import CONFIGURATION, POOL, agent_mac
from hostrouting.testing import FakeHost, MemoryBackend, MemoryFiles
from phases import Context, TaskFailedError, execute

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.host import RouteBackend

INSIDE = "HOSTROUTING_DEMO_INSIDE"
CLUSTER = "172.16.8.0/22"
#: The devices of the fabric, with the addresses that the agent adds. Their hardware is Ethernet
#: here, so no `ib0`.
FABRIC = {f"fab{number}": f"172.{16 + number}.1.4" for number in range(8)}
OVERLAP = {"expectedCidrs": [CLUSTER], "mode": "STRICT"}


def main() -> None:
    """Run the demo in a namespace, or else in memory."""
    if os.environ.get(INSIDE):
        show(a_node_in_the_kernel(), connect_in_the_kernel)
        return
    if not enter_a_namespace():
        print("(a network namespace cannot be created here: this runs on a model of the kernel)")
        host = a_node_in_memory()
        show(host, lambda: connect_in_memory(host.routes))


def enter_a_namespace() -> bool:
    """Run this program again in a new namespace; return False if none can be created."""
    unshare = shutil.which("unshare")
    if unshare is None or shutil.which("ip") is None:
        return False
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    entering = [unshare, *as_root, "--net"]
    # Try the kind of link that the demo needs.
    trial = [*entering, "ip", "link", "add", "eth0", "type", "ifb"]
    if subprocess.run(trial, check=False, capture_output=True).returncode != 0:
        return False
    demo = [*entering, sys.executable, __file__]
    status = subprocess.run(demo, check=False, env={**os.environ, INSIDE: "1"}).returncode
    if status != 0:
        sys.exit(status)
    return True


def a_node_in_the_kernel() -> Host:
    """Return a node with the kernel's routes of this namespace; files and units are in memory."""
    lines = ["link set lo up", *(f"link add {name} type ifb" for name in ("eth0", *FABRIC))]
    lines += ["address add 10.224.0.4/16 dev eth0", "link set eth0 up"]
    batch([*lines, "route add default via 10.224.0.1 dev eth0 proto dhcp"])
    stage, routes = FakeHost(), NetlinkBackend()
    announce(stage.files, routes)
    return Host(routes=routes, services=stage.services, files=stage.files, lock=stage.lock)


def connect_in_the_kernel() -> None:
    """Set up each device of the fabric and add its address, as the agent does."""
    add = "link set {0} up\naddress add {1}/16 dev {0}"
    batch([add.format(name, address) for name, address in FABRIC.items()])


def batch(lines: Sequence[str]) -> None:
    """Run commands of ip."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


def a_node_in_memory() -> FakeHost:
    """Return the same node on the model."""
    routes = MemoryBackend()
    routes.add_link("eth0")
    routes.add_address("eth0", "10.224.0.4/16")
    routes.add_route("default", gateway="10.224.0.1", dev="eth0", protocol=16)
    for number, name in enumerate(FABRIC):
        routes.add_link(name, up=False, mac=f"00:15:5d:33:ff:1{number}")
    host = FakeHost(routes)
    announce(host.files, routes)
    return host


def connect_in_memory(routes: MemoryBackend) -> None:
    """Set up each device of the fabric and add its address, as the agent does."""
    for name, address in FABRIC.items():
        routes.set_up(name)
        routes.add_address(name, f"{address}/16")


def announce(files: MemoryFiles, routes: RouteBackend) -> None:
    """Write the files from which the agent takes the addresses; they are in memory."""
    macs = {device.name: agent_mac(device.name, device.mac) for device in routes.links()}
    pairs = [f"{macs[name]}:{address}" for name, address in FABRIC.items()]
    record = "|".join(["NUMPAIRS:8", *pairs]).encode()
    files.write(CONFIGURATION, b"OS.EnableRDMA=y\n", mode=0o644)
    content = b"IPoIB_Data".ljust(512, b"\0") + record.ljust(2048, b"\0")
    files.write(POOL, content, mode=0o644)
    files.tree.change(POOL, modified=time.time())


def as_config(**sections: object) -> HostRoutingConfig:
    """Return the config of the demo with more sections."""
    return HostRoutingConfig.from_mapping({"routeOverlap": OVERLAP, "gates": [], **sections})


def show(host: Host, connect: Callable[[], None]) -> None:
    """Run and print each act; `connect` adds the addresses of the fabric."""
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger("phases").disabled = True

    act("A node with eight InfiniBand devices boots. The cluster's services live in 172.16.8.0/22.")
    look(host.routes, as_config(), "172.16.0.0/16")
    print("   All is well. The cloud's agent will add the addresses of these devices later.")

    act("hostrouting check, which reads what the agent is going to do")
    check(host, as_config())

    act("hostrouting apply, with mode STRICT and no route yet: the gate stays closed.")
    try:
        execute(Configure(as_config(), host=host))
    except TaskFailedError as error:
        (failure,) = error.failures
        assert isinstance(failure, RouteOverlapError)  # noqa: S101 - the subject of this act
        print(f"   refused: {error.path}")

    act("hostrouting apply, with the route that check suggested.")
    route = {"destination": CLUSTER, "gateway": "10.224.0.1", "dev": "eth0"}
    config = as_config(staticRoutes={"enabled": True, "routes": [route]})
    execute(Configure(config, host=host))
    check(host, config)

    act("The agent adds the addresses with /16 routes; cluster traffic still leaves through eth0.")
    connect()
    look(host.routes, config, "172.16.0.0/16")
    check(host, config)

    act("Traffic to the fabric's peers leaves through the fabric.")
    for peer in ("172.16.1.5", "172.17.1.5", "172.23.1.5"):
        (answer,) = host.routes.lookup([parse_ipv4(peer)])
        print(f"   {peer:12} {answer.route}")


def check(host: Host, config: HostRoutingConfig) -> None:
    """Print the result of a check, like `hostrouting check`."""
    print(indented(str(check_node(Context(), config, host).overlap)))


def act(title: str) -> None:
    """Print the title of an act."""
    print(f"\n== {title}")


def indented(text: str) -> str:
    """Return the text indented, as part of an act."""
    return "\n".join(f"   {line}" for line in text.splitlines())


def look(routes: RouteBackend, config: HostRoutingConfig, network: str) -> None:
    """Print the explanation, as `hostrouting explain` does."""
    (explanation,) = explain_routing(routes, [network], overlap=config.route_overlap)
    for line in explanation.lines(picture=sys.stdout.isatty() and not os.environ.get("NO_COLOR")):
        print(f"   {line}")


if __name__ == "__main__":
    main()
