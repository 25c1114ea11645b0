"""A node in a network namespace whose ib0 shadows part of the cluster."""

from collections.abc import Iterator

import pytest
from support.kernel import connect

from hostrouting.testing import KernelNode


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        connect(node, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
        yield node
