"""A node whose ib0 shadows part of the cluster's addresses, a path for the files of a fabric, and a
node whose outbound devices a test arranges.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kernel import connect
from support.needs import require
from support.routers import WiredNode
from support.way_out_nodes import WayOutNode

from hostrouting.testing import MemoryBackend


@pytest.fixture
def node() -> MemoryBackend:
    made = MemoryBackend()
    connect(made, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
    made.add_route("default", gateway="10.224.0.1", dev="eth0", protocol=16)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A path for the files."""
    return tmp_path / "node"


@pytest.fixture(params=["memory", "kernel"])
def prover(request: pytest.FixtureRequest) -> Iterator[WayOutNode]:
    """A node without routes, in memory and in the kernel."""
    if request.param == "memory":
        yield WayOutNode(MemoryBackend())
    else:
        require("kernel")
        with WiredNode.made() as node:
            yield WayOutNode(node)
