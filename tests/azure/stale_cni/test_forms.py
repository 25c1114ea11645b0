"""The ebtables rules that azure-vnet made for one pod, those that it made for the node, and
others.
"""

import pytest
from support.stale_cni_worlds import NODE_RULES, arp_reply, dnat

from hostrouting.azure.stale_cni.leftovers import is_of_node, read_pod_rule
from hostrouting.host import EbtablesRule

MAC = "aa:bb:cc:00:00:09"
REPLY = arp_reply("10.240.0.9", MAC)
DNAT = dnat("10.240.0.9", MAC)
NO_UNICAST = (
    "ff:ff:ff:ff:ff:ff",
    "Broadcast",
    "Multicast",
    "01:00:5e:0:0:9",
    "0:0:0:0:0:0",
    f"{MAC}/ff:ff:ff:0:0:0",
)


def rule(line: str, backend: str = "nft") -> EbtablesRule:
    return EbtablesRule.parse(line, backend=backend)


@pytest.mark.parametrize(
    "line",
    [
        REPLY,
        f"{REPLY} --arpreply-target DROP",
        REPLY.replace(MAC, "aa:bb:cc:0:0:9"),
        DNAT,
        DNAT.replace("eth0", "enP1s1"),
        DNAT.replace(" --dnat-target ACCEPT", ""),
        DNAT.replace("-p IPv4", "-p 0x0800"),
        DNAT.replace("10.240.0.9", "10.240.0.9/32"),
        DNAT.replace(MAC, "aa:bb:cc:0:0:9"),
    ],
)
@pytest.mark.parametrize("backend", ["nft", "legacy"])
def test_rules_of_a_pod_are_known_in_every_spelling(line: str, backend: str) -> None:
    """A rule for one pod's address is read as the same in every spelling of ebtables' versions."""
    assert read_pod_rule(rule(line, backend)) == ("10.240.0.9", MAC)


def test_rules_of_ipv6_pods_are_known() -> None:
    """A rule for an IPv6 pod is read like one for an IPv4 pod, and its address is compressed."""
    line = dnat("fd00:10:240:0:0:0:0:9", MAC)
    assert read_pod_rule(rule(line)) == ("fd00:10:240::9", MAC)


@pytest.mark.parametrize(
    "line",
    [
        # one option more
        f"{DNAT} -s 02:00:00:00:00:01",
        f"{DNAT} --ip-proto tcp",
        f"{REPLY} -i eth0",
        DNAT.replace("-j", "--logical-in azure0 -j"),
        # one less, or another value
        "-A PREROUTING -p IPv4 -i eth0 -j dnat --to-dst aa:bb:cc:00:00:09 --dnat-target ACCEPT",
        DNAT.replace("--dnat-target ACCEPT", "--dnat-target CONTINUE"),
        REPLY.replace("--arp-op Request ", ""),
        REPLY.replace("Request", "Reply"),
        DNAT.replace("-j dnat --to-dst aa:bb:cc:00:00:09 --dnat-target ACCEPT", "-j DROP"),
        # negated, or not one address
        DNAT.replace("--ip-dst", "--ip-dst !"),
        DNAT.replace("-i eth0", "-i ! eth0"),
        DNAT.replace("-i eth0", "! -i eth0"),
        DNAT.replace("eth0", "eth+"),
        DNAT.replace("eth0", "az+"),
        DNAT.replace("10.240.0.9", "10.240.0.0/24"),
        DNAT.replace("10.240.0.9", "10.240.0.9/255.255.0.255"),
        # by no uplink
        DNAT.replace(" -i eth0", ""),
        DNAT.replace("eth0", "azv1234"),
        # to more than one device, or to none
        *(made.replace(MAC, mac) for made in (DNAT, REPLY) for mac in NO_UNICAST),
        # a packet that goes on
        f"{REPLY} --arpreply-target ACCEPT",
        f"{REPLY} --arpreply-target CONTINUE",
        # another chain
        DNAT.replace("PREROUTING", "OUTPUT"),
        REPLY.replace("PREROUTING", "POSTROUTING"),
        DNAT.replace("PREROUTING", "azure"),
        # tunnel mode's own, but to a device that is not the fabric's router
        "-A PREROUTING -i az+ -j dnat --to-dst aa:bb:cc:00:00:09 --dnat-target ACCEPT",
        "-A PREROUTING",
    ],
)
def test_anything_else_is_not_a_rule_of_a_pod(line: str) -> None:
    """A rule with one option more, less or negated, for a network, or without an uplink or a
    unicast address is not a pod's.
    """
    assert read_pod_rule(rule(line)) is None
    assert not is_of_node(rule(line))


# NODE_RULES[1] has the form of a pod's rule.
@pytest.mark.parametrize(
    "line", [NODE_RULES[0], NODE_RULES[2], NODE_RULES[0].replace("Unicast", "unicast")]
)
def test_rules_of_the_node_are_known(line: str) -> None:
    """A rule that the bridge needs for the node itself is neither foreign nor a pod's."""
    assert is_of_node(rule(line))
    assert read_pod_rule(rule(line)) is None


@pytest.mark.parametrize(
    "line",
    [
        NODE_RULES[0].replace(" --snat-arp", ""),
        NODE_RULES[0].replace("-s Unicast", "-s Multicast"),
        NODE_RULES[2].replace("ff:ff:ff:ff:ff:ff", MAC),
        NODE_RULES[2].replace("PREROUTING", "OUTPUT"),
        f"{NODE_RULES[2]} --arp-ip-dst 10.240.0.9",
        REPLY,
    ],
)
def test_a_rule_that_resembles_one_of_the_node_is_none(line: str) -> None:
    """A rule that only resembles one of the node is not the node's."""
    assert not is_of_node(rule(line))
