"""`explain` names the route or rule that decides each part."""

import pytest

from hostrouting.route_overlap.explain import explain
from hostrouting.testing import MemoryBackend


@pytest.fixture
def node() -> MemoryBackend:
    """A node with a default route."""
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    node.add_route("default", gateway="10.224.0.1", dev="eth0")
    return node


@pytest.mark.parametrize("kind", ["blackhole", "unreachable", "prohibit"])
def test_a_refusing_route_is_named(node: MemoryBackend, kind: str) -> None:
    """The kernel answers only with an errno, which is the same for every route of the kind."""
    node.add_route("172.16.8.0/24", kind=kind)
    [explanation] = explain(node, ["172.16.8.0/23"])
    heading, refused, fine = explanation.lines()
    assert heading == "172.16.8.0/23"
    assert refused.split() == f"nowhere 172.16.8.0 - 172.16.8.255 {kind} 172.16.8.0/24".split()
    assert fine.split() == ["eth0", "172.16.9.0", "-", "172.16.9.255", "default", "via", "10.224.0.1", "dev", "eth0"]
    assert str(explanation.to_mapping()["parts"][0]["reason"]).startswith("a route or rule refuses it (")
