"""The model of a node's routing: the kernel's decisions, without a kernel.

packed    routes in little memory
buckets   the routes to one network, and their changes
tables    routing tables; a copy shares all unchanged routes
rules     packets, and the policy rules that select them
sources   the source address that the kernel chooses
model     a node, its lookups and its planned changes
live      a model that follows a node by its events
events    the routes that the kernel removes with a device or an address, mostly without a message

It decides for IPv4 packets as the kernel does; a state machine compares the two
(`tests/testing/test_kernel_equivalence.py`). If it cannot know the decision, it says so (`UnknownDecisionError`,
`Decision.unknown`).
"""

from hostrouting.fib.model import Decision, Fib, UnknownDecisionError
from hostrouting.fib.rules import Packet

__all__ = ["Decision", "Fib", "Packet", "UnknownDecisionError"]
