"""Random mixes of live, stale, node-level and foreign objects: only the stale ones go, and every
failure is undone. test_evidence.py and test_owners.py have all that shows that a pod lives.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stale_cni_worlds import (
    NODE_RULES,
    arp_reply,
    config_of,
    context,
    dnat,
    node_of,
    whole_state,
    write_state,
)

from hostrouting import BackendError, CleanStaleCNI, HostRoutingError
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
    """A pod of azure-vnet; `alive` is the evidence that it lives, if it does.

    The device of one that is `down` is there, and stays down: no sign of life.
    """

    number: int
    alive: str
    kinds: frozenset[str]

    @property
    def is_alive(self) -> bool:
        return self.alive not in {"", "down"}

    @property
    def device(self) -> str:
        return f"azv{self.number + 10}"

    @property
    def addresses(self) -> tuple[str, str]:
        return f"10.240.1.{self.number}", f"fd00:10:240::{self.number:x}"

    @property
    def mac(self) -> str:
        return f"aa:bb:cc:00:00:{self.number:02x}"

    def lines(self) -> list[str]:
        v4, v6 = self.addresses
        made = {"arp": arp_reply(v4, self.mac), "ip": dnat(v4, self.mac), "ip6": dnat(v6, self.mac)}
        return [line for kind, line in made.items() if kind in self.kinds]

    def others(self) -> list[str]:
        v4, v6 = self.addresses
        made = {
            "neighbour": f"{v4} dev azure0 lladdr {self.mac} PERMANENT",
            "neighbour6": f"{v6} dev azure0 lladdr {self.mac} PERMANENT",
            "route": f"{v4} dev {self.device} scope link",
            "route6": f"{v6} dev {self.device} metric 1024",
        }
        return [text for kind, text in made.items() if kind in self.kinds]


KINDS = ["arp", "ip", "ip6", "neighbour", "neighbour6", "route", "route6"]


class World(NamedTuple):
    """Pods, and in which order and backend their rules stand among others."""

    pods: list[Pod]
    rules: list[tuple[str, str]]

    def make(self) -> FakeHost:
        host = FakeHost()
        node_of(host)
        for pod in self.pods:
            host.link_layer.add_device(pod.device, master="azure0", up=pod.alive != "down")
            if pod.alive in {"silent", "down"}:
                host.link_layer.alive.update((pod.device, address) for address in pod.addresses)
            for address, suffix, length in zip(pod.addresses, ("", "6"), (32, 128), strict=True):
                if f"neighbour{suffix}" in pod.kinds:
                    host.link_layer.add_neighbour(address, "azure0", pod.mac)
                if f"route{suffix}" in pod.kinds:
                    host.routes.add_route(f"{address}/{length}", dev=pod.device)
        write_state(host, {pod.device: pod.addresses for pod in self.pods if pod.alive == "state"})
        for line, backend in self.rules:
            host.ebtables.add(line, backend=backend)
        return host

    def stale(self) -> set[str]:
        """The subjects of all objects that no live pod has."""
        gone = [pod for pod in self.pods if not pod.is_alive]
        lines = {line for pod in gone for line in pod.lines()}
        rules = {f"ebtables {made} nat: {line}" for line, made in self.rules if line in lines}
        return rules | {text for pod in gone for text in pod.others()}


@st.composite
def worlds(draw: st.DrawFn) -> World:
    those = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        alive = draw(st.sampled_from(["", "", "down", "state", "silent"]))
        # The kernel drops the routes of a device that goes down.
        kinds = KINDS[:5] if alive == "down" else KINDS
        those.append(Pod(number, alive, draw(st.frozensets(st.sampled_from(kinds)))))
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
    before = whole_state(host)
    seen = objects(host)
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
    "route": lambda host, k: host.routes.refuse_at(k),
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
    pod = Pod(1, alive="", kinds=frozenset(KINDS))
    host = World([pod], [(line, "nft") for line in pod.lines()]).make()
    FAULTS[fault](host, k)
    with pytest.raises(HostRoutingError):
        sweep(host).do(context())
