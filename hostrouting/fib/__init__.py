"""The model of a node's routing: the kernel's decisions, without a kernel.

tables    routing tables that share what did not change
rules     packets, and the policy rules that select them
sources   the source address that the kernel chooses
model     a node, its lookups and its planned changes
events    what goes with a device or an address, mostly in silence

It decides IPv4 packets as the kernel does: a state machine holds the two together
(`tests/testing/test_kernel_equivalence.py`). Where it cannot know, it says so (`UnknownDecisionError`,
`Decision.unknown`).
"""

from hostrouting.fib.model import Decision, Fib, UnknownDecisionError
from hostrouting.fib.rules import Packet

__all__ = ["Decision", "Fib", "Packet", "UnknownDecisionError"]
