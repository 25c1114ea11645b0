"""Fakes, contract suites and strategies: what our own tests stand on, for yours. Needs the extra `testing`.

MemoryBackend   a node's IPv4 routing in memory, arranged and broken by you
KernelNode      the same handles on a real network namespace
Node            those handles
FakeHost        a whole machine in memory: MemoryBackend, MemoryFiles, MemoryServices, MemoryLock, and for the sibling
                tasks MemoryIPv6, MemoryLinkLayer, MemoryNftables, MemoryEbtables, MemoryMetadata
FakeIMDS        the cloud's metadata service, on loopback
*Contract       what each port promises, as test classes to derive from; IPv6Node, LinkNode: handles that they turn
strategies      Hypothesis strategies for addresses, routes, changes, rules and configs
"""

from __future__ import annotations

import pytest

# Before it is imported, or pytest would report a bare AssertionError where it could show both sides.
pytest.register_assert_rewrite("hostrouting.testing.route_contract")

from hostrouting.testing import strategies  # noqa: E402 - as said above
from hostrouting.testing.host_contracts import (  # noqa: E402 - same
    EbtablesContract,
    FileStoreContract,
    IPv6BackendContract,
    IPv6Node,
    LinkLayerContract,
    LinkNode,
    LiveServiceManagerContract,
    NftablesContract,
    RunLockContract,
    ServiceManagerContract,
)
from hostrouting.testing.host_fakes import FakeHost, MemoryFiles, MemoryLock, MemoryServices  # noqa: E402 - same
from hostrouting.testing.imds import FakeIMDS, IMDSAnswer, IMDSRequest  # noqa: E402 - same
from hostrouting.testing.kernel_node import KernelNode  # noqa: E402 - same
from hostrouting.testing.memory import MemoryBackend  # noqa: E402 - same
from hostrouting.testing.memory_ebtables import MemoryEbtables  # noqa: E402 - same
from hostrouting.testing.memory_ipv6 import MemoryIPv6  # noqa: E402 - same
from hostrouting.testing.memory_link_layer import MemoryLinkLayer  # noqa: E402 - same
from hostrouting.testing.memory_metadata import MemoryMetadata, network_interface  # noqa: E402 - same
from hostrouting.testing.memory_nftables import MemoryNftables  # noqa: E402 - same
from hostrouting.testing.node import Node  # noqa: E402 - same
from hostrouting.testing.route_contract import RouteBackendContract  # noqa: E402 - same

__all__ = [
    "EbtablesContract",
    "FakeHost",
    "FakeIMDS",
    "FileStoreContract",
    "IMDSAnswer",
    "IMDSRequest",
    "IPv6BackendContract",
    "IPv6Node",
    "KernelNode",
    "LinkLayerContract",
    "LinkNode",
    "LiveServiceManagerContract",
    "MemoryBackend",
    "MemoryEbtables",
    "MemoryFiles",
    "MemoryIPv6",
    "MemoryLinkLayer",
    "MemoryLock",
    "MemoryMetadata",
    "MemoryNftables",
    "MemoryServices",
    "NftablesContract",
    "Node",
    "RouteBackendContract",
    "RunLockContract",
    "ServiceManagerContract",
    "network_interface",
    "strategies",
]
