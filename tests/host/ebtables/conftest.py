"""A namespace, and the adapter of ebtables in it."""

from collections.abc import Iterator

import pytest
from host.ebtables.nodes import Table

from hostrouting.host.packets.ebtables import EbtablesCommand
from hostrouting.testing import KernelNode
from phases import Context


@pytest.fixture
def node() -> Iterator[KernelNode]:
    """A namespace for a test."""
    with KernelNode.made() as node:
        yield node


@pytest.fixture
def ctx() -> Context:
    return Context()


@pytest.fixture
def legacy_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the adapter run the legacy tool on any kernel; for tests that replace the tool with a
    stand-in.
    """
    monkeypatch.setattr("hostrouting.host.packets.ebtables.legacy_may_have_rules", lambda: True)


@pytest.fixture
def ebtables(node: KernelNode) -> EbtablesCommand:
    """The adapter in the namespace."""
    return EbtablesCommand(("ip", "netns", "exec", node.name))


@pytest.fixture
def table(node: KernelNode) -> Table:
    """The rules in the namespace."""
    return Table(node.name)


@pytest.fixture
def command(node: KernelNode) -> tuple[str, ...]:
    """The command prefix for the namespace."""
    return "ip", "netns", "exec", node.name
