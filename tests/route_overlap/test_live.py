"""The findings that follow events, against a whole proof on the same model after each of them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from support import small_world
from support.overlap_worlds import World, worlds
from support.small_world import selecting_rules

from hostrouting.config import DEFAULT_ALLOWED_DEVS, RouteOverlapConfig
from hostrouting.exceptions import BackendError
from hostrouting.fib import UnknownDecisionError, events
from hostrouting.fib.live import LiveFib
from hostrouting.host import Route
from hostrouting.net.addresses import parse_ipv4
from hostrouting.route_overlap import prove_egress
from hostrouting.route_overlap.assumed import model_of
from hostrouting.route_overlap.fabric import Fabric, FabricAddress
from hostrouting.route_overlap.live import LiveProof
from hostrouting.testing import MemoryBackend
from phases import Context

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from hostrouting.fib import Fib
    from hostrouting.testing.node import Node

#: The address that the second device gets; some nodes have it already.
ANNOUNCED = FabricAddress("00155D33FF1D", parse_ipv4("10.1.0.2"))
FABRICS = st.sampled_from(
    [
        Fabric(),
        Fabric(),
        Fabric(networks=("10.1.0.0/24",), source="config"),
        Fabric(addresses=(ANNOUNCED,), source="pool"),
        Fabric(addresses=(ANNOUNCED,), source="pool"),
    ]
)


def deletions(draw: st.DrawFn, node: MemoryBackend) -> Callable[[Node], None]:
    held = [route for route in node.routes() if route.prefix_length or draw(st.booleans())]
    route = draw(st.sampled_from(held or node.routes()))
    return lambda world: world.delete_route(route)


@st.composite
def steps(draw: st.DrawFn, node: MemoryBackend) -> Callable[[Node], None]:
    """A change of the node: mostly of routes, as on real ones."""
    kind = draw(st.sampled_from(["route"] * 6 + ["delete"] * 4 + ["up", "address", "withdraw", "rule", "rename"]))
    dev = draw(small_world.devices())
    if kind == "delete":
        return deletions(draw, node)
    if kind == "route":
        route = draw(small_world.routes(protocols=(3,)))
        verb = draw(st.sampled_from(["add", "append", "prepend", "replace"]))
        return lambda world: world.insert_route(route, verb=verb)
    if kind == "up":
        up = draw(st.booleans())
        return lambda world: world.set_up(dev, up=up)
    address, peer = draw(small_world.addresses())
    if kind == "address":
        return lambda world: world.add_address(dev, address, peer=peer)
    if kind == "withdraw":
        return lambda world: world.remove_address(dev, address, peer=peer)
    if kind == "rule":
        rule = draw(small_world.rules() | selecting_rules())
        return lambda world: world.add_rule(rule)
    return partial(renamed_and_back, dev)


def renamed_and_back(dev: str, world: Node) -> None:
    world.rename_link(dev, "renamed")
    world.rename_link("renamed", dev)


def test_routes_inside_each_other_in_one_batch() -> None:
    """A new address brings its network and itself at once: what holds for the address holds for no other."""
    node = MemoryBackend()
    for dev, address in ("e0", "10.1.0.1/16"), ("e1", "192.168.7.1/24"):
        node.add_link(dev)
        node.add_address(dev, address)
    node.add_route("default", gateway="10.1.0.200", dev="e0")
    with node.events.listen(Context()) as listener:
        live, proof = LiveFib(model_of(node)), LiveProof(RouteOverlapConfig(expected_cidrs=("10.1.0.0/24",)))
        assert proof.findings(live.fib, Fabric()) == ((),)
        node.add_address("e1", "10.1.0.2/16")
        effect = live.apply(listener.take())
        assert len(effect.keys) == 3
        assert proof.hear(live.fib, effect)
        [[finding]] = proof.findings(live.fib, Fabric())
        assert (finding.kind, finding.first, finding.last) == ("local", "10.1.0.2", "10.1.0.2")


def test_more_cuts_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of new routes are answered by a whole proof, which has no cuts of routes that are gone."""
    monkeypatch.setattr("hostrouting.route_overlap.live._MOST_CUTS", 10)
    node = MemoryBackend()
    node.add_link("e0")
    node.add_address("e0", "10.1.0.1/16")
    node.add_route("default", gateway="10.1.0.200", dev="e0")
    with node.events.listen(Context()) as listener:
        live, proof = LiveFib(model_of(node)), LiveProof(RouteOverlapConfig(expected_cidrs=("172.16.0.0/16",)))
        for number in range(20):
            assert proof.findings(live.fib, Fabric()) == ((),)
            route = Route.parse(f"172.16.{number}.0/24", dev="e0", protocol=16)
            node.insert_route(route)
            node.delete_route(route)
            for event in listener.take():
                effect = live.apply([event])
                proof.hear(live.fib, effect)
        assert proof._parts is None or len(proof._parts[0].starts) <= 11


def whole(fib: Fib, world: World, fabric: Fabric) -> object:
    allowed = (*DEFAULT_ALLOWED_DEVS, *world.allowed)
    return tuple(one.findings for one in prove_egress(fib, world.cidrs, allowed_devs=allowed, fabric=fabric).cidrs)


@given(world=worlds(), fabric=FABRICS, data=st.data())
def test_what_follows_events_is_a_whole_proof(world: World, fabric: Fabric, data: st.DataObject) -> None:
    """After any change, the findings are those of a whole proof on the model; an event that says so changed none."""
    node = MemoryBackend()
    world.arrange(node)
    if fabric.addresses:
        node.fib = events.with_device(node.fib, node.fib.devices["e1"]._replace(mac="00:15:5d:33:ff:1d"))
        if data.draw(st.booleans()):
            with suppress(BackendError):
                node.add_address("e1", "10.1.0.2/16")
    section = RouteOverlapConfig(expected_cidrs=tuple(world.cidrs), allowed_devs=tuple(world.allowed))
    with node.events.listen(Context()) as listener:
        live, proof = LiveFib(model_of(node)), LiveProof(section)
        for _ in range(data.draw(st.integers(1, 8))):
            try:
                before: object = proof.findings(live.fib, fabric)
            except UnknownDecisionError:
                before = None
            try:
                data.draw(steps(node))(node)
            except BackendError:
                continue
            effect = live.apply(listener.take())
            assert not live.fib.tables.differing(model_of(node).tables) or effect.unknown
            may_differ = proof.hear(live.fib, effect)
            try:
                expected = whole(live.fib, world, fabric)
            except UnknownDecisionError:
                assert may_differ
                continue
            assert proof.findings(live.fib, fabric) == expected
            assert may_differ or before == expected
