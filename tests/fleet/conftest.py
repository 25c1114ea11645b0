"""A node in a network namespace whose ib0 shadows part of the cluster."""

from collections.abc import Iterator

import pytest

from hostrouting.testing import KernelNode


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        for dev, address in ("eth0", "10.224.0.4/16"), ("ib0", "172.16.1.4/16"):
            node.add_link(dev)
            node.add_address(dev, address)
        yield node
