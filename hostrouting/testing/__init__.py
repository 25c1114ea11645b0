"""Fakes, contract suites and strategies: what our own tests stand on, for yours. Needs the extra `testing`.

MemoryBackend   a node's IPv4 routing in memory, arranged and broken by you
KernelNode      the same handles on a real network namespace
Node            those handles
FakeHost        a whole machine in memory: MemoryBackend, MemoryFiles, MemoryServices, MemoryLock
*Contract       what each port promises, as test classes to derive from
strategies      Hypothesis strategies for addresses, routes, changes, rules and configs
"""

from __future__ import annotations

import pytest

# Before it is imported, or pytest would report a bare AssertionError where it could show both sides.
pytest.register_assert_rewrite("hostrouting.testing.route_contract")

from hostrouting.testing import strategies  # noqa: E402 - as said above
from hostrouting.testing.host_contracts import (  # noqa: E402 - same
    FileStoreContract,
    LiveServiceManagerContract,
    RunLockContract,
    ServiceManagerContract,
)
from hostrouting.testing.host_fakes import FakeHost, MemoryFiles, MemoryLock, MemoryServices  # noqa: E402 - same
from hostrouting.testing.kernel_node import KernelNode  # noqa: E402 - same
from hostrouting.testing.memory import MemoryBackend  # noqa: E402 - same
from hostrouting.testing.node import Node  # noqa: E402 - same
from hostrouting.testing.route_contract import RouteBackendContract  # noqa: E402 - same

__all__ = [
    "FakeHost",
    "FileStoreContract",
    "KernelNode",
    "LiveServiceManagerContract",
    "MemoryBackend",
    "MemoryFiles",
    "MemoryLock",
    "MemoryServices",
    "Node",
    "RouteBackendContract",
    "RunLockContract",
    "ServiceManagerContract",
    "strategies",
]
