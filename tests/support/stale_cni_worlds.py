"""Nodes from which azure-vnet was removed, with its objects for live pods and for dead ones."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from support.memory_links import add_device, learn

from hostrouting import HostRoutingConfig, StaleCNIConfig
from hostrouting.host import EbtablesRule
from hostrouting.testing import FakeHost
from phases import Context
from phases.testing import ManualClock

NODE_ADDRESS = "10.240.0.4"
NODE_MAC = "00:0d:3a:00:00:04"
TUNNEL_MAC = "12:34:56:78:9a:bc"
POD_CIDRS = ("10.240.0.0/16", "fd00:10:240::/64")

#: The rules that the bridge needs for the node itself.
NODE_RULES = (
    f"-A POSTROUTING -s Unicast -o eth0 -j snat --to-src {NODE_MAC} --snat-arp --snat-target ACCEPT",
    f"-A PREROUTING -p ARP --arp-op Request --arp-ip-dst {NODE_ADDRESS} -j arpreply --arpreply-mac {NODE_MAC}",
    "-A PREROUTING -p ARP -i eth0 --arp-op Reply -j dnat --to-dst ff:ff:ff:ff:ff:ff --dnat-target ACCEPT",
)


def arp_reply(address: str, mac: str) -> str:
    """The rule by which a pod's address is answered for."""
    return f"-A PREROUTING -p ARP --arp-op Request --arp-ip-dst {address} -j arpreply --arpreply-mac {mac}"


def dnat(address: str, mac: str) -> str:
    """The rule by which packets to a pod's address get its hardware address."""
    family, option = ("IPv6", "--ip6-dst") if ":" in address else ("IPv4", "--ip-dst")
    return f"-A PREROUTING -p {family} -i eth0 {option} {address} -j dnat --to-dst {mac} --dnat-target ACCEPT"


def rules_of(*lines: str) -> tuple[EbtablesRule, ...]:
    """The rules of nft, as a reading has them."""
    return tuple(EbtablesRule.parse(line, backend="nft") for line in lines)


def state_of(endpoints: Mapping[str, Sequence[str]], mac: str = "EjRWeJq8") -> bytes:
    """azure-vnet's state with one endpoint for each device, which has these addresses."""
    records = {
        f"{number:08x}-eth0": {
            "Id": f"{number:08x}-eth0",
            "IfName": "eth0",
            "HostIfName": device,
            "MacAddress": mac,
            "IPAddresses": [{"IP": address, "Mask": "//8AAA=="} for address in addresses],
            "Gateways": ["10.240.0.1"],
        }
        for number, (device, addresses) in enumerate(endpoints.items())
    }
    interface = {
        "Name": "eth0",
        "BridgeName": "azure0",
        "Networks": {"azure": {"Id": "azure", "Endpoints": records}},
    }
    return json.dumps(
        {"Network": {"Version": "v1.4.0", "ExternalInterfaces": {"eth0": interface}}}
    ).encode()


def config_of(**section: Any) -> HostRoutingConfig:
    """A config with a cleanup of the pod networks of these worlds."""
    values = {"enabled": True, "pod_cidrs": POD_CIDRS, **section}
    return HostRoutingConfig(stale_cni=StaleCNIConfig(**values))


def context() -> Context:
    """Return a context in which waiting takes no time, at the start of 2026."""
    return Context(clock=ManualClock(auto=True))


def node_of(host: FakeHost) -> FakeHost:
    """Add the common parts of a node with azure-vnet's bridge: eth0 and a pod's veth on azure0, and
    its rules.
    """
    layer = host.link_layer
    add_device(layer, "azure0", mac=NODE_MAC, kind="bridge", addresses=(f"{NODE_ADDRESS}/16",))
    add_device(layer, "eth0", mac=NODE_MAC, master="azure0")
    learn(layer, NODE_MAC, "eth0", permanent=True)
    add_device(layer, "azv1", kind="veth", master="azure0")
    host.routes.add_route("default", gateway="10.240.0.1", dev="azure0", protocol=16)
    for line in NODE_RULES:
        host.ebtables.add(line)
    return host


def whole_state(host: FakeHost) -> tuple[object, ...]:
    """Return all that a cleanup might change, in its order."""
    ctx = Context()
    return (
        host.ebtables.read(ctx).rules,
        host.link_layer.neighbours(),
        host.files.tree.snapshot(),
    )
