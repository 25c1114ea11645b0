"""Ask the kernel of a namespace how it routes packets, with every field that `ip route get` knows."""

import re
from collections.abc import Sequence

from support.egress_oracle import batch

from hostrouting.fib import Packet
from hostrouting.net.addresses import IPV4, format_address
from hostrouting.testing import KernelNode

#: Forward, and take packets whose source the node holds itself or reaches by another device: only
#: the tables decide.
_SETTINGS = {"forwarding": 1, "accept_local": 1, "rp_filter": 0, "send_redirects": 0}


def let_packets_in(node: KernelNode) -> None:
    """Switch off the kernel's checks of packets that come in; for devices that are added later,
    too.
    """
    settings = [
        f"net.ipv4.conf.{which}.{name}={value}"
        for which in ("all", "default")
        for name, value in _SETTINGS.items()
    ]
    node.run("sysctl", "-qw", *settings, "net.ipv6.conf.all.forwarding=1")


#: What the kernel says of the state of a link, and of IPv6 what says nothing.
_STATES = re.compile(r" (dead|linkdown|pref medium|metric 0|iif \S+)(?= |$)")


def decisions(node: KernelNode, packets: Sequence[Packet]) -> list[str]:
    """Return for each packet the deciding route as `ip` prints it, or the words of the refusal."""
    family = "-4" if not packets or packets[0].family == IPV4 else "-6"
    commands = [f"route get fibmatch {_words(packet)}" for packet in packets]
    lines, refusals = batch(node.name, family, "-o", commands=commands)
    # With -o `ip` joins the lines of several next hops by a backslash.
    answers = (_plain(" ".join(line.replace("\\", " ").split())) for line in lines)
    return [
        refusals[number].split(": ")[-1] if number in refusals else next(answers)
        for number in range(1, len(packets) + 1)
    ]


def _plain(answer: str) -> str:
    """Return an answer without the state of links; of IPv6 the next hops are in no order."""
    if "pref medium" not in answer:
        return answer
    first, *hops = _STATES.sub("", answer).split(" nexthop ")
    return " nexthop ".join([first, *sorted(hops)])


def _words(packet: Packet) -> str:
    words = [format_address(packet.family, packet.destination)]
    words += ["from", format_address(packet.family, packet.source)] if packet.source else []
    words += ["iif", packet.iif] if packet.iif != "lo" else ["uid", str(packet.uid)]
    words += ["oif", packet.oif] if packet.oif else []
    words += ["mark", str(packet.mark), "tos", f"{packet.tos:#04x}"]
    protocol = {6: "tcp", 17: "udp"}[packet.ip_protocol]
    words += [
        "ipproto",
        protocol,
        "sport",
        str(packet.source_port),
        "dport",
        str(packet.destination_port),
    ]
    return " ".join(words)
