"""A taste of hostrouting, in memory: a GPU node whose fabric swallows the cluster's addresses, and the way out.

Run it with `make demo`. Everything happens on `MemoryBackend`, a model of the kernel's routing that passes the same
contract suite as the kernel itself; nothing of this machine is touched.
"""

from __future__ import annotations

from hostrouting import HostRoutingConfig
from hostrouting.addresses import parse_ipv4
from hostrouting.exceptions import InvalidConfigError, RouteRejectedError
from hostrouting.host import Route, RouteChange
from hostrouting.testing import MemoryBackend

API_SERVER = "172.16.8.1"


def title(text: str) -> None:
    """A line between the acts."""
    print(f"\n== {text}")


def who_decides(node: MemoryBackend, address: str) -> None:
    """Ask as the kernel would."""
    (answer,) = node.lookup([parse_ipv4(address)])
    print(f"   {address:14} -> {answer.route}")


def a_gpu_node() -> MemoryBackend:
    """One Ethernet interface with the default route, and eight InfiniBand ones with a /16 each."""
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    node.add_route("default", gateway="10.224.0.1", dev="eth0", protocol=16)
    for number in range(8):
        node.add_link(f"ib{number}")
        node.add_address(f"ib{number}", f"172.{16 + number}.1.4/16")
    return node


def main() -> None:
    """The story."""
    node = a_gpu_node()
    title("A node comes up. Its fabric owns 172.16.0.0/16, and so does the cluster's API server.")
    who_decides(node, API_SERVER)
    print("   The node says Ready and reaches nothing: that packet dies in the fabric.")

    title("An operator writes the fix, with two typing mistakes. Both are named, and nothing is changed.")
    try:
        HostRoutingConfig.from_mapping(
            {
                "hostRouting": {
                    "staticRoutes": {
                        "enabled": True,
                        "routes": [{"destination": "172.16.8.5/22", "gatway": "10.224.0.1"}],
                    }
                }
            }
        )
    except InvalidConfigError as error:
        for each in error.errors:
            print(f"   {each}")

    title("A batch in which one gateway is wrong: all or nothing.")
    fix = RouteChange.add(Route.parse("172.16.8.0/22", gateway="10.224.0.1", dev="eth0"))
    wrong = RouteChange.add(Route.parse("172.17.8.0/22", gateway="10.9.9.9", dev="eth0"))
    try:
        node.apply([fix, wrong])
    except RouteRejectedError as error:
        print("   " + str(error).replace("\n", "\n   "))

    title("The right one.")
    node.apply([fix])
    who_decides(node, API_SERVER)
    title("And the fabric's own peers still leave by the fabric.")
    who_decides(node, "172.16.1.5")
    who_decides(node, "172.17.1.5")


if __name__ == "__main__":
    main()
