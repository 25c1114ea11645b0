"""A model of a node's routing: the decisions of the kernel, without a kernel.

tables    routing tables, and the routes to one network
rules     packets, and the policy rules that select them
model     a node, its lookups, the source address that the kernel chooses, and planned changes

The model is a value for routing that is not in a kernel: planned tables, announced networks,
recorded nodes. It decides packets of both families as the kernel does; a state machine compares the
two (`tests/testing/test_kernel_equivalence.py`). If a decision depends on something that the model
does not cover, the result is `UnknownDecisionError` or `Decision.unknown`. For IPv6 it covers only
the tables, not the state of gateways or the kernel's choice of a source address.
"""

from hostrouting.base.errors import UnknownDecisionError
from hostrouting.fib.model import Decision, Fib
from hostrouting.fib.rules import Packet

__all__ = ["Decision", "Fib", "Packet", "UnknownDecisionError"]
