"""Configs for the command, and a node in a network namespace whose ib0 shadows part of the cluster."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import CHECKED, MENDED
from support.kernel import uplink

from hostrouting.testing import KernelNode


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hostRouting": MENDED, "kubelet": {}}))
    return path


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    path = tmp_path / "checked.json"
    path.write_text(json.dumps({"hostRouting": CHECKED}))
    return path


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        uplink(node, ib0="172.16.1.4/16")
        yield node
