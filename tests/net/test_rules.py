"""Policy rules as the kernel shows them. If a selector is misread, a check calls packets healthy
that a rule sends elsewhere.
"""

import struct

from hostrouting.fib.rules import Packet, Policy
from hostrouting.host.netlink.rule_codec import parse_rule


def test_a_rule_by_dscp() -> None:
    """A rule by DSCP, which `ip rule` of a newer kernel adds, selects the packets with all six of
    its bits, and a lookup, whose packets have none, only by DSCP 0.
    """

    def attribute(number: int, content: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(content), number) + content + bytes(-len(content) % 4)

    for dscp, chosen in ((8, None), (0, "blackhole")):
        # The family, the table and the action of a blackhole; FRA_PRIORITY, FRA_DSCP and its mask.
        head = struct.pack("=8BI", 2, 0, 0, 0, 0, 0, 0, 6, 0)
        number = attribute(6, struct.pack("=I", 100))
        rule = parse_rule(head + number + attribute(25, bytes([dscp])) + attribute(30, b"\x3f"))
        assert str(rule) == f"100: from all dscp {dscp:#04x} blackhole"
        assert not rule.is_unclear
        policy = Policy([rule])
        [*selected] = policy.selected(Packet(1))
        assert [found.action for found, _ in selected] == [chosen] * (chosen is not None)
        assert [found for found, _ in policy.selected(Packet(1, tos=dscp << 2 | 3))] == [rule]
