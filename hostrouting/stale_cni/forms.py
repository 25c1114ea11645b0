"""What azure-vnet writes into the nat table of ebtables, rule by rule, and how it names pods' devices; pure.

A form is exact: a rule with one option more or less, or with a negated one, is somebody else's, whatever it looks like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.net.addresses import parse_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostrouting.host import EbtablesRule

__all__ = ["POD_DEVICE", "TUNNEL_MAC", "PodRule", "is_of_node", "read_pod_rule"]

#: How azure-vnet names the host's end of a pod's veth pair.
POD_DEVICE: Final = "azv"
#: That of the fabric's router, which azure-vnet gives to every pod in tunnel mode, and ip-masq-agent to other nodes.
TUNNEL_MAC: Final = "12:34:56:78:9a:bc"
_BROADCAST: Final = "ff:ff:ff:ff:ff:ff"
_HEX_DIGITS: Final = frozenset("0123456789abcdef")

_ARP_REPLY: Final = {"-p": "ARP", "--arp-op": "Request", "-j": "arpreply", "--arpreply-target": "DROP"}
_FORWARDED_REPLY: Final = {
    "-p": "ARP",
    "--arp-op": "Reply",
    "-j": "dnat",
    "--to-dst": _BROADCAST,
    "--dnat-target": "ACCEPT",
}
#: Tunnel mode sends all that pods and the bridge send to the fabric.
_TO_FABRIC: Final = {"-j": "dnat", "--to-dst": TUNNEL_MAC, "--dnat-target": "ACCEPT"}
_TO_NODE: Final = {"-s": "unicast", "-j": "snat", "--snat-arp": "", "--snat-target": "ACCEPT"}
#: Protocol and the option that has the pod's address.
_FAMILIES: Final = (("IPv4", "--ip-dst"), ("IPv6", "--ip6-dst"))


class PodRule(NamedTuple):
    """A rule that azure-vnet makes for one address of a pod: it answers for it, or leads to it."""

    address: str
    mac: str


def read_pod_rule(rule: EbtablesRule) -> PodRule | None:
    """The address and the hardware address in a rule made for one pod; None for any other rule.

    >>> from hostrouting.host import EbtablesRule
    >>> line = "-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.240.0.9 -j dnat --to-dst aa:bb:cc:0:0:9 --dnat-target ACCEPT"
    >>> read_pod_rule(EbtablesRule.parse(line, backend="nft"))
    PodRule(address='10.240.0.9', mac='aa:bb:cc:00:00:09')
    """
    options = _options(rule)
    if rule.chain != "PREROUTING" or options is None:
        return None
    if _has(options, _ARP_REPLY, frozenset({"--arp-ip-dst", "--arpreply-mac"})):
        return _pod_rule(options["--arp-ip-dst"], options["--arpreply-mac"])
    for protocol, option in _FAMILIES:
        fixed = {"-p": protocol, "-j": "dnat", "--dnat-target": "ACCEPT"}
        # It comes in by the uplink: by no pod's device, and not by one of several.
        if _has(options, fixed, frozenset({option, "--to-dst", "-i"})) and _is_uplink(options["-i"]):
            return _pod_rule(options[option], options["--to-dst"])
    return None


def is_of_node(rule: EbtablesRule) -> bool:
    """Whether this is one of the rules by which the bridge stands for the node; all its pods need them."""
    options = _options(rule)
    if options is None:
        return False
    if rule.chain == "POSTROUTING":
        return _has(options, _TO_NODE, frozenset({"-o", "--to-src"}))
    return rule.chain == "PREROUTING" and any(
        _has(options, fixed, frozenset({"-i"})) for fixed in (_FORWARDED_REPLY, _TO_FABRIC)
    )


def _options(rule: EbtablesRule) -> Mapping[str, str] | None:
    """The rule's options; None where one is repeated or negated, which azure-vnet never does."""
    options = dict(rule.normal)
    if len(options) != len(rule.normal) or any(value.startswith("!") for value in options.values()):
        return None
    return options


def _has(options: Mapping[str, str], fixed: Mapping[str, str], free: frozenset[str]) -> bool:
    """Whether these are the options: `fixed` with their values, and `free` with any."""
    return options.keys() == fixed.keys() | free and fixed.items() <= options.items()


def _is_uplink(device: str) -> bool:
    return bool(device) and not device.endswith("+") and not device.startswith(POD_DEVICE)


def _pod_rule(address: str, mac: str) -> PodRule | None:
    # A masked address is a network.
    return PodRule(address, mac) if parse_address(address) is not None and _is_unicast(mac) else None


def _is_unicast(mac: str) -> bool:
    """Whether one device can have it; a name (`Broadcast`) and a masked one are none."""
    digits = mac.replace(":", "")
    if len(mac) != 17 or len(digits) != 12 or not _HEX_DIGITS.issuperset(digits):
        return False
    number = int(digits, 16)
    return number != 0 and not number >> 40 & 1
