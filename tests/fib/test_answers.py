"""Single answers of the model, which the kernel's contract and the random histories prove as
well.
"""

from inspect import getattr_static

import attrs
import pytest
from support.kernel import connect

from hostrouting.fib import Fib, Packet
from hostrouting.host import IPV4, IPV6, Address, RouteChange, Rule
from hostrouting.testing import MemoryBackend
from hostrouting.testing.contracts.routes import arrange
from hostrouting.testing.route_texts import route


@pytest.fixture
def node() -> MemoryBackend:
    node = MemoryBackend()
    connect(node, e0="10.1.0.1/16", e1="192.168.7.1/24")
    return node


def model(node: MemoryBackend, *rules: Rule) -> Fib:
    families = [*node.routes(), *node.routes(IPV6)]
    return Fib.of(node.links(), families, [*rules, *node.rules(), *node.rules(IPV6)])


def device(fib: Fib, address: str, source: str | None = None) -> str | None:
    family, number = Address.parse(address)[:2]
    sources = [Address.parse(source).number if source else None]
    [answer] = fib.lookup([number], sources=sources, family=family)
    return answer.route and answer.route.dev


def test_a_rule_suppresses_prefixes_of_its_length_and_shorter_ones(node: MemoryBackend) -> None:
    """A rule with `suppress_prefixlength 8` passes over a route to a /8, and accepts one to a
    /9.
    """
    arrange(node, "9.0.0.0/8 dev e0", "9.128.0.0/9 dev e0")
    arrange(node, "9.0.0.0/8 dev e1 table 88", "9.128.0.0/9 dev e1 table 88")
    fib = model(node, Rule(10, table=88, suppress_prefix_length=8))
    assert [device(fib, address) for address in ("9.1.1.1", "9.129.1.1")] == ["e0", "e1"]


def test_a_throw_leaves_the_decision_to_the_next_rule(node: MemoryBackend) -> None:
    """A throw route ends the search in its own table only."""
    arrange(node, "9.0.0.0/8 dev e0", "throw 9.0.0.0/8 table 88")
    assert device(model(node, Rule(10, table=88)), "9.1.1.1") == "e0"


def test_a_gateway_need_not_be_on_the_link_if_its_route_is_onlink(node: MemoryBackend) -> None:
    """A route whose gateway is not on the link is accepted only with `onlink`."""
    off_link = route("9.0.0.0/8 via 11.0.0.1 dev e0")
    assert not model(node).accepts(off_link)
    assert model(node).accepts(attrs.evolve(off_link, onlink=True))


@pytest.mark.parametrize(("verb", "dev"), [("append", "e0"), ("prepend", "e1")])
def test_an_appended_route_is_the_last_of_its_place(
    node: MemoryBackend, verb: str, dev: str
) -> None:
    """An appended route leaves the decision to the first one of its place; a prepended route
    decides.
    """
    arrange(node, "9.0.0.0/8 dev e0")
    added = getattr(RouteChange, verb)(route("9.0.0.0/8 dev e1 proto 142"))
    assert device(model(node).changed([added]), "9.1.1.1") == dev


def test_a_type_of_service_selects_whatever_the_congestion_bits_are(node: MemoryBackend) -> None:
    """A route and a rule for a type of service decide packets of that type with ECN bits as well."""
    arrange(node, "9.0.0.0/8 dev e0", "9.0.0.0/8 dev e1 table 88")
    by_rule = model(node, Rule(10, table=88, tos=0x10))
    added = RouteChange.add(attrs.evolve(route("9.0.0.0/8 dev e1"), tos=0x10))
    by_route = model(node).changed([added])
    packet = Packet(Address.parse("9.1.1.1").number, tos=0x13)
    decided = [fib.decide(packet).route for fib in (by_rule, by_route)]
    assert [each and each.dev for each in decided] == ["e1", "e1"]


def test_a_model_has_its_families_as_the_port_has_them() -> None:
    """`Fib.families` is a property, as in the port: pyright would refuse a model with a ClassVar
    where a port is expected.
    """
    assert isinstance(getattr_static(Fib, "families"), property)
    assert Fib.of([], []).families == (IPV4, IPV6)
