"""A node whose ib0 shadows part of the cluster's addresses, and a path for the files of a fabric."""

from pathlib import Path

import pytest
from support.kernel import connect

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
