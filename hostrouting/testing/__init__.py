"""Fakes for your tests and programs; they need no test tools.

    MemoryBackend   a node's IPv4 routing in memory, with handles to arrange it and to inject faults
    KernelNode      the same handles on a real network namespace
    Node            the protocol of these handles
    FakeHost        a machine in memory: MemoryBackend, MemoryFiles, MemoryServices, MemoryLock,
                    MemoryLinkLayer, MemoryEvents, MemoryNftables, MemoryEbtables, MemoryMetadata
                    and MemorySupervisor
    FakeIMDS        the cloud's metadata service, on loopback

Two modules need the extra `testing`:

    hostrouting.testing.contracts     the promises of each port, as pytest classes to derive from
    hostrouting.testing.strategies    Hypothesis strategies for configs and the values in them
"""

from hostrouting.testing.host_fakes import FakeHost, MemoryLock
from hostrouting.testing.imds import FakeIMDS, IMDSAnswer, IMDSRequest
from hostrouting.testing.kernel_node import KernelNode
from hostrouting.testing.memory import MemoryBackend
from hostrouting.testing.memory_ebtables import MemoryEbtables
from hostrouting.testing.memory_events import MemoryEvents
from hostrouting.testing.memory_files import MemoryFiles
from hostrouting.testing.memory_link_layer import MemoryLinkLayer
from hostrouting.testing.memory_metadata import MemoryMetadata, network_interface
from hostrouting.testing.memory_nftables import MemoryNftables
from hostrouting.testing.memory_services import MemoryServices
from hostrouting.testing.memory_supervisor import MemorySupervisor
from hostrouting.testing.node import Node

__all__ = [
    "FakeHost",
    "FakeIMDS",
    "IMDSAnswer",
    "IMDSRequest",
    "KernelNode",
    "MemoryBackend",
    "MemoryEbtables",
    "MemoryEvents",
    "MemoryFiles",
    "MemoryLinkLayer",
    "MemoryLock",
    "MemoryMetadata",
    "MemoryNftables",
    "MemoryServices",
    "MemorySupervisor",
    "Node",
    "network_interface",
]
