"""Show the problem, the finding and the repair on a GPU node, in a new network namespace.

Run it with `make demo`. It creates a namespace (as an ordinary user if the system allows user namespaces), adds eth0
and eight InfiniBand interfaces, and runs the real tasks. Without a namespace it uses the model in memory, and says so.
Files and units are in memory; the machine is not changed.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from hostrouting import Configure, Host, HostRoutingConfig, prove_egress
from hostrouting.exceptions import RouteOverlapError
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import parse_ipv4
from hostrouting.route_overlap.explain import explain
from hostrouting.testing import FakeHost, MemoryBackend
from phases import TaskFailedError, execute

if TYPE_CHECKING:
    from hostrouting.host import RouteBackend

INSIDE = "HOSTROUTING_DEMO_INSIDE"
CLUSTER = "172.16.8.0/22"
OVERLAP = {"expectedCidrs": [CLUSTER], "mode": "STRICT"}


def main() -> None:
    """Run the demo in a namespace, or else in memory."""
    if os.environ.get(INSIDE):
        tell(a_node_in_the_kernel())
        return
    if not enter_a_namespace():
        print("(a network namespace cannot be created here: this runs on a model of the kernel, in memory)")
        tell(a_node_in_memory())


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
    told = subprocess.run([*entering, sys.executable, __file__], check=False, env={**os.environ, INSIDE: "1"})
    if told.returncode != 0:
        sys.exit(told.returncode)
    return True


def a_node_in_the_kernel() -> Host:
    """Return a node with the kernel's routes of this namespace; files and units are in memory."""
    lines = ["link set lo up"]
    for name, address in interfaces():
        lines += [f"link add {name} type ifb", f"address add {address} dev {name}", f"link set {name} up"]
    lines.append("route add default via 10.224.0.1 dev eth0 proto dhcp")
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    stage = FakeHost()
    return Host(routes=NetlinkBackend(), services=stage.services, files=stage.files, lock=stage.lock)


def a_node_in_memory() -> Host:
    """Return the same node on the model."""
    routes = MemoryBackend()
    for name, address in interfaces():
        routes.add_link(name)
        routes.add_address(name, address)
    routes.add_route("default", gateway="10.224.0.1", dev="eth0", protocol=16)
    return FakeHost(routes)


def interfaces() -> list[tuple[str, str]]:
    """Return eth0, and a /16 on each of eight InfiniBand interfaces."""
    return [("eth0", "10.224.0.4/16"), *((f"ib{number}", f"172.{16 + number}.1.4/16") for number in range(8))]


def configure(host: Host, **sections: object) -> None:
    """Configure the host, as `hostrouting apply` does."""
    config = HostRoutingConfig.from_mapping({"routeOverlap": OVERLAP, "gates": [], **sections})
    execute(Configure(config, host=host))


def tell(host: Host) -> None:
    """Run and print each act."""
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger("phases").disabled = True

    act("A node with eight InfiniBand interfaces joins. The cluster's services live in 172.16.8.0/22.")
    look(host.routes, "172.16.0.0/16")
    print("   The node is Ready. Its packets to the cluster are lost in the fabric.")

    act("hostrouting check")
    print(indented(str(prove_egress(host.routes, [CLUSTER]))))

    act("hostrouting apply, with mode STRICT and no route yet: the gate stays closed, with the reason.")
    try:
        configure(host)
    except TaskFailedError as error:
        (failure,) = error.failures
        assert isinstance(failure, RouteOverlapError)  # noqa: S101 - the subject of this act
        print(f"   refused: {error.path}")

    act("hostrouting apply, with the route that check suggested.")
    route = {"destination": CLUSTER, "gateway": "10.224.0.1", "dev": "eth0"}
    configure(host, staticRoutes={"enabled": True, "routes": [route]})
    look(host.routes, "172.16.0.0/16")

    act("hostrouting check")
    print(indented(str(prove_egress(host.routes, [CLUSTER]))))

    act("And the fabric's peers still leave by the fabric.")
    for peer in ("172.16.1.5", "172.17.1.5", "172.23.1.5"):
        (answer,) = host.routes.lookup([parse_ipv4(peer)])
        print(f"   {peer:12} {answer.route}")


def act(title: str) -> None:
    """Print the title of an act."""
    print(f"\n== {title}")


def indented(text: str) -> str:
    """Return the text indented, as part of an act."""
    return "\n".join(f"   {line}" for line in text.splitlines())


def look(routes: RouteBackend, asked: str) -> None:
    """Print the explanation, as `hostrouting explain` does."""
    (explanation,) = explain(routes, [asked])
    for line in explanation.lines(picture=sys.stdout.isatty() and not os.environ.get("NO_COLOR")):
        print(f"   {line}")


if __name__ == "__main__":
    main()
