"""Random mixes of live, stale, node-level and foreign objects: only the stale ones go, and every
failure is undone.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stale_cni_worlds import (
    NODE_RULES,
    TUNNEL_MAC,
    arp_reply,
    config_of,
    context,
    dnat,
    node_of,
    whole_state,
    write_state,
)

from hostrouting.azure.stale_cni import CleanStaleCNI
from hostrouting.exceptions import BackendError, HostRoutingError
from hostrouting.testing import FakeHost
from hostrouting.testing.faults import Operations

FOREIGN = (
    "-A PREROUTING -p IPv4 --ip-dst 10.240.0.9 -j DROP",
    "-A PREROUTING -p IPv4 -i eth0 --ip-dst 192.168.0.9 -j dnat --to-dst aa:00:00:00:00:01 --dnat-target ACCEPT",
    "-A PREROUTING -p IPv4 -i eth0 --ip-dst ! 10.240.0.9 -j dnat --to-dst aa:00:00:00:00:01 --dnat-target ACCEPT",
    "-A PREROUTING -i az+ -j dnat --to-dst 12:34:56:78:9a:bc --dnat-target ACCEPT",
    "-A OUTPUT -p ARP -j ACCEPT",
)


class Pod(NamedTuple):
    """A pod of azure-vnet; `alive` is how one knows that it lives, if it does.

    The device of one that is `down` is there, and stays down: no sign of life. One that is
    `outdated` is gone, but the kernel still knows its neighbours.
    """

    number: int
    alive: str
    is_tunnel: bool
    kinds: frozenset[str]
    #: Its hardware address is now a device's of the node.
    is_node: bool = False

    @property
    def is_gone(self) -> bool:
        return self.alive in ("", "outdated", "down")

    @property
    def device(self) -> str:
        return f"azv{self.number + 10}"

    @property
    def addresses(self) -> tuple[str, str]:
        return f"10.240.1.{self.number}", f"fd00:10:240::{self.number:x}"

    @property
    def mac(self) -> str:
        return TUNNEL_MAC if self.is_tunnel else f"aa:bb:cc:00:00:{self.number:02x}"

    def lines(self) -> list[str]:
        v4, v6 = self.addresses
        made = {"arp": arp_reply(v4, self.mac), "ip": dnat(v4, self.mac), "ip6": dnat(v6, self.mac)}
        return [line for kind, line in made.items() if kind in self.kinds]


@st.composite
def pods(draw: st.DrawFn, number: int) -> Pod:
    is_tunnel = draw(st.booleans())
    # A hardware address that all pods have is no evidence.
    ways = ["", "", "outdated", "down", "state", "unnamed", "silent"] + (
        [] if is_tunnel else ["learned"]
    )
    kinds = draw(
        st.sets(st.sampled_from(["arp", "ip", "ip6", "neighbour", "neighbour6", "route", "route6"]))
    )
    is_node = not is_tunnel and draw(st.integers(0, 4)) == 0
    alive = draw(st.sampled_from(ways))
    # The kernel drops the routes of a device that goes down.
    kinds -= {"route", "route6"} if alive == "down" else set()
    return Pod(number, alive, is_tunnel, frozenset(kinds), is_node)


class World(NamedTuple):
    """Pods, and in which order and backend their rules stand among others."""

    pods: list[Pod]
    rules: list[tuple[str, str]]

    def make(self) -> FakeHost:
        host = FakeHost()
        node_of(host)
        for pod in self.pods:
            self._arrange(host, pod)
        alive = {p.device: p.addresses for p in self.pods if p.alive == "state"}
        # An endpoint without a device counts as alive; one that names a device that is gone does
        # not.
        unnamed = {"": [a for p in self.pods if p.alive == "unnamed" for a in p.addresses]}
        dead = {
            f"azv{p.number + 100}": p.addresses for p in self.pods if p.is_gone and p.number % 2
        }
        write_state(host, {**alive, **unnamed, **dead})
        for line, backend in self.rules:
            host.ebtables.add(line, backend=backend)
        return host

    def _arrange(self, host: FakeHost, pod: Pod) -> None:
        device = pod.device
        host.link_layer.add_device(device, master="azure0", up=pod.alive != "down")
        if pod.is_node:
            host.link_layer.add_device(f"lan{pod.number}", mac=pod.mac)
        v4, v6 = pod.addresses
        if pod.alive == "learned" and {"arp", "ip", "neighbour"} & pod.kinds:
            host.link_layer.learn(pod.mac, device)
        if pod.alive in ("silent", "down"):
            host.link_layer.alive.update((device, address) for address in pod.addresses)
        if pod.alive == "outdated":
            host.link_layer.add_neighbour(v4, device, pod.mac, permanent=False)
            host.link_layer.add_neighbour(v6, device, pod.mac, permanent=False)
        for kind, address in (("neighbour", v4), ("neighbour6", v6)):
            if kind in pod.kinds:
                host.link_layer.add_neighbour(address, "azure0", pod.mac)
        if "route" in pod.kinds:
            host.routes.add_route(f"{v4}/32", dev=device)
        if "route6" in pod.kinds:
            host.routes.add_route(f"{v6}/128", dev=device)

    def stale(self) -> set[str]:
        """The subjects of all objects that no live pod has."""
        subjects = set()
        for pod in self.pods:
            v4, v6 = pod.addresses
            saved = self._saved(pod)
            device = pod.device
            if "route" in pod.kinds and v4 not in saved:
                subjects.add(f"{v4} dev {device} scope link")
            if "route6" in pod.kinds and v6 not in saved:
                subjects.add(f"{v6} dev {device} metric 1024")
            # All else has a hardware address.
            if pod.is_node:
                continue
            subjects |= {
                f"ebtables {backend} nat: {line}"
                for line, backend in self.rules
                if line in pod.lines() and (v6 if "--ip6-dst" in line else v4) not in saved
            }
            others = {
                "neighbour": (v4, f"{v4} dev azure0 lladdr {pod.mac} PERMANENT"),
                "neighbour6": (v6, f"{v6} dev azure0 lladdr {pod.mac} PERMANENT"),
            }
            # Those of tunnel mode's hardware address are ip-masq-agent's.
            if not pod.is_tunnel:
                subjects |= {
                    text
                    for kind, (v, text) in others.items()
                    if kind in pod.kinds and v not in saved
                }
        return subjects

    def _saved(self, pod: Pod) -> set[str]:
        v4, v6 = pod.addresses
        if pod.alive != "learned":
            return set() if pod.is_gone else {v4, v6}
        # By its hardware address only those are known that something names together with it.
        with_mac = {line for line, _ in self.rules if line in pod.lines()}
        saved = {v4} if {"arp", "ip", "neighbour"} & pod.kinds else set()
        is_v6_named = "neighbour6" in pod.kinds or any("--ip6-dst" in line for line in with_mac)
        return saved | ({v6} if saved and is_v6_named else set())


@st.composite
def worlds(draw: st.DrawFn) -> World:
    those = [draw(pods(number)) for number in range(1, draw(st.integers(1, 6)) + 1)]
    lines = [*NODE_RULES, *FOREIGN, *(line for pod in those for line in pod.lines())]
    twice = draw(st.lists(st.sampled_from(lines), max_size=2))
    ordered = draw(st.permutations([*lines, *twice]))
    backends = draw(
        st.lists(st.sampled_from(["nft", "legacy"]), min_size=len(ordered), max_size=len(ordered))
    )
    return World(those, list(zip(ordered, backends, strict=True)))


def sweep(host: FakeHost) -> CleanStaleCNI:
    return CleanStaleCNI(config_of(), host=host)


def objects(host: FakeHost) -> list[str]:
    """Return all objects that a sweep might remove, as reports name them, without those that the
    kernel makes.
    """
    rules, neighbours, routes6, routes, _ = whole_state(host)
    texts = [f"ebtables {rule.backend} nat: {rule.line}" for rule in rules]  # type: ignore[attr-defined]
    return texts + [str(other) for others in (neighbours, routes6, routes) for other in others]  # type: ignore[attr-defined]


@given(worlds())
def test_exactly_the_stale_objects_are_removed_and_restored(world: World) -> None:
    """In any order of objects: the plan is exactly the set of removed objects, and undo leaves no
    trace.
    """
    host = world.make()
    before, seen = whole_state(host), objects(host)
    planned = [change.subject for change in sweep(host).plan(context())]
    assert set(planned) == world.stale()
    sweep(host).do(context())
    assert objects(host) == [text for text in seen if text not in planned]
    assert sweep(host).plan(context()) == []
    sweep(host).undo(context())
    assert whole_state(host) == before


def fail_deletion(host: FakeHost) -> None:
    """Let the deletion of rules fail: it follows two readings. Without a rule to delete, a third
    reading does.
    """

    def fault() -> None:
        if host.ebtables.operations.calls[-1][0] == "delete":
            raise BackendError("not deleted")

    host.ebtables.operations.plan(3, fault)


FAULTS: dict[str, Callable[[FakeHost, int], None]] = {
    "reading": lambda host, k: host.ebtables.fail_at(k % 2 + 1),
    "rules": lambda host, _: fail_deletion(host),
    "neighbour": lambda host, k: host.link_layer.refuse_at(k),
    "route": lambda host, k: host.routes.fail_at(k),
}


@given(worlds(), st.sampled_from(sorted(FAULTS)), st.integers(1, 12))
def test_a_failure_at_any_deletion_restores_everything(world: World, fault: str, k: int) -> None:
    """If the k-th deletion of any sort is refused, the earlier state is restored; otherwise the
    sweep succeeds.
    """
    host = world.make()
    before = whole_state(host)
    FAULTS[fault](host, k)
    try:
        sweep(host).do(context())
    except HostRoutingError:
        assert whole_state(host) == before
    else:
        host.ebtables.operations = Operations()  # without the fault, if it is still to come
        assert not world.stale() & set(objects(host))


@pytest.mark.parametrize(
    ("fault", "k"), [("rules", 1), ("reading", 1), ("neighbour", 1), ("route", 1)]
)
def test_faults_are_met(fault: str, k: int) -> None:
    """The property above is not empty: with a pod that has left something of every sort each fault
    stops the run.
    """
    everything = frozenset(["arp", "ip", "ip6", "neighbour", "neighbour6", "route", "route6"])
    pod = Pod(1, "", is_tunnel=False, kinds=everything)
    host = World([pod], [(line, "nft") for line in pod.lines()]).make()
    FAULTS[fault](host, k)
    with pytest.raises(HostRoutingError):
        sweep(host).do(context())
