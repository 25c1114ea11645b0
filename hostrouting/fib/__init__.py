"""The model of a node's routing: the kernel's decisions, without a kernel.

tables    routing tables and the routes to one network
rules     packets, and the policy rules that select them
model     a node, its lookups, the source address that the kernel chooses, and its planned changes

It is a value, for routing that is in no kernel: planned tables, announced networks, recorded nodes.
It decides packets of both families as the kernel does; a state machine compares the two
(`tests/testing/test_kernel_equivalence.py`). Where a decision depends on more than the model holds,
the result is `UnknownDecisionError` or `Decision.unknown`. For IPv6 it models the tables alone,
without the state of gateways and without the kernel's choice of a source.
"""

from hostrouting.base.errors import UnknownDecisionError
from hostrouting.fib.model import Decision, Fib
from hostrouting.fib.rules import Packet

__all__ = ["Decision", "Fib", "Packet", "UnknownDecisionError"]
