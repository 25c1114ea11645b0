"""Fakes for your tests and programs; they need no test tools.

    MemoryBackend   a node's routing in memory, with handles to arrange it and to inject faults
    KernelNode      the same handles on a real network namespace
    Node            the protocol of these handles
    FakeHost        a machine in memory: MemoryBackend, MemoryFiles, MemoryServices, MemoryLock,
                    MemoryLinkLayer, MemoryEvents, MemoryNftables, MemoryEbtables, MemoryMetadata
                    and MemorySupervisor

Two modules need the extra `testing`:

    hostrouting.testing.contracts     the promises of `RouteBackend`, as a pytest class
    hostrouting.testing.strategies    Hypothesis strategies for configs and the values in them
"""

from hostrouting.testing.host_fakes import FakeHost, MemoryLock, MemoryMetadata, MemorySupervisor
from hostrouting.testing.memory import MemoryBackend
from hostrouting.testing.memory_events import MemoryEvents
from hostrouting.testing.memory_files import MemoryFiles
from hostrouting.testing.memory_link_layer import MemoryLinkLayer
from hostrouting.testing.memory_packets import MemoryEbtables, MemoryNftables
from hostrouting.testing.memory_services import MemoryServices
from hostrouting.testing.node import KernelNode, Node

__all__ = [
    "FakeHost",
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
]
