"""The situation itself, in real namespaces: a bridge of azure-vnet, a live pod on it, and a dead one's leftovers."""

import pytest
from support.needs import needs
from support.stale_cni_nodes import (
    CLIENT,
    CLIENT_MAC,
    DEAD6,
    LIVE,
    LIVE_MAC,
    NODE,
    REUSED,
    SOON,
    STALE,
    World,
    add_link,
    differences,
)
from support.stale_cni_worlds import TUNNEL_MAC, arp_reply, dnat, state_of

from hostrouting.azure.stale_cni.azure_vnet import STATE_PATH
from phases import Context

pytestmark = needs("kernel", "ebtables-nft")


def test_leftovers_steal_packets_and_the_sweep_gives_them_back(world: World) -> None:
    """Before, packets to the reused address are lost; after, they arrive; the live pod and the node never lose one."""
    assert not world.asks(REUSED, patience=SOON)
    with world.stream(LIVE) as lost_by_pod, world.stream(NODE) as lost_by_node:
        world.sweep().do(Context(timeout=60))
        assert world.asks(REUSED)
    assert (lost_by_pod, lost_by_node) == ([], [])


def test_the_sweep_removes_exactly_the_plan_and_undo_restores_it(world: World) -> None:
    """Rules, neighbours and routes of both families differ by the plan alone; after undo they are the same again."""
    before = world.shown()
    task = world.sweep()
    planned = world.planned(task)
    assert planned == STALE
    assert world.shown() == before
    task.do(Context(timeout=60))
    gone, come = differences(before, world.shown())
    assert (sorted(line.strip() for line in gone), come) == (sorted(planned), [])
    with world.stream(LIVE) as lost:
        task.undo(Context(timeout=60))
    assert (world.shown(), lost) == (before, [])
    assert list((world.root / "var/lib").iterdir()) == []
    assert not world.asks(REUSED, patience=SOON)


def test_tunnel_mode_is_decided_by_the_state(world: World) -> None:
    """All pods have one hardware address there, and it is learned: only azure-vnet's state tells them apart."""
    world.node.run(f"ebtables-{world.backend}", "-t", "nat", "-F", "PREROUTING")
    for address in (REUSED, LIVE):
        world.node.ip("neigh", "delete", address, "dev", "azure0")
        world.rule(arp_reply(address, TUNNEL_MAC))
        world.rule(dnat(address, TUNNEL_MAC))
    world.live.ip("link", "set", "eth0", "address", TUNNEL_MAC)
    world.live.ip("neigh", "add", CLIENT, "lladdr", CLIENT_MAC, "nud", "permanent", "dev", "eth0")
    state = world.root / STATE_PATH.removeprefix("/")
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_bytes(state_of({"azv1": [LIVE], "azv2": [REUSED]}))
    assert world.asks(LIVE)
    assert not world.asks(REUSED, patience=SOON)
    with world.stream(LIVE) as lost:
        world.sweep().do(Context(timeout=60))
        assert world.asks(REUSED)
    assert lost == []
    left = [line.split()[7] for line in world.shown()["ebtables"] if "arpreply" in line]
    assert left == [LIVE]


def test_an_address_that_the_nodes_router_has_now_is_given_back(world: World) -> None:
    """Cilium's router takes an address from the pods' pool: the dead pod's rules take its packets."""
    ip = world.node.ip
    ip("route", "delete", f"{REUSED}/32", "dev", "lxc1")
    ip("link", "add", "cilium_host", "type", "veth", "peer", "name", "cilium_net")
    ip("address", "add", f"{REUSED}/32", "dev", "cilium_host")
    for device in ("cilium_host", "cilium_net"):
        ip("link", "set", device, "up")
    assert not world.asks(REUSED, patience=SOON)
    before = world.shown()
    task = world.sweep()
    assert world.planned(task) == STALE
    with world.stream(LIVE) as lost:
        task.do(Context(timeout=60))
        assert world.asks(REUSED)
    assert lost == []
    task.undo(Context(timeout=60))
    assert world.shown() == before


def test_dead_rules_before_a_live_pods_own_go_alone(world: World) -> None:
    """The rules were made for an earlier pod with its address: the first rule of two decides, and leads to no pod."""
    before = world.shown()
    dead = [arp_reply(LIVE, "aa:bb:cc:00:00:77"), dnat(LIVE, "aa:bb:cc:00:00:77")]
    for line in reversed(dead):
        world.rule(line, first=True)
    assert not world.asks(LIVE, patience=SOON)
    task = world.sweep()
    assert world.planned(task) == [*dead, *STALE]
    task.do(Context(timeout=60))
    assert world.asks(LIVE)
    gone, come = differences(before, world.shown())
    assert (sorted(gone), come) == (sorted(STALE), [])
    task.undo(Context(timeout=60))
    assert world.shown()["ebtables"] == [*dead, *before["ebtables"]]


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_dead_record_that_shares_a_live_pods_device_protects_nothing(world: World, *, is_heard: bool) -> None:
    """azure-vnet names devices after pods, so one that came back has the device of its old record: it is asked."""
    state = world.root / STATE_PATH.removeprefix("/")
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_bytes(state_of([("azv1", [REUSED, DEAD6]), ("azv1", [LIVE])]))
    if not is_heard:
        world.node.run("bridge", "fdb", "delete", LIVE_MAC, "dev", "azv1", "master")
    assert not world.asks(REUSED, patience=SOON)
    with world.stream(LIVE) as lost:
        world.sweep().do(Context(timeout=60))
        assert world.asks(REUSED)
    assert lost == []
    own = [dnat(LIVE, LIVE_MAC), arp_reply(LIVE, LIVE_MAC)]
    assert [line for line in world.shown()["ebtables"] if f"{LIVE} " in line] == own


def test_routes_of_transparent_mode_go_and_come_back(world: World) -> None:
    """Routes on a pod's veth that still exists, whose pod is gone, of both families; one that answers keeps its own.

    That the kernel once learned a neighbour there is no sign of life: such entries stay for as long as there is room.
    """
    ip = world.node.ip
    ip("link", "add", "azv7", "type", "veth", "peer", "name", "peer7")
    for device in ("azv7", "peer7"):
        ip("link", "set", device, "up")
    for number in (17, 18):
        ip("route", "add", f"10.240.0.{number}/32", "dev", "azv7")
        ip("-6", "route", "add", f"fd00:10:240::{number}/128", "dev", "azv7")
    ip("route", "add", "10.240.0.19/32", "dev", "azv7", "proto", "142")
    ip("neigh", "add", "10.240.0.18", "lladdr", LIVE_MAC, "nud", "stale", "dev", "azv7")
    ip("neigh", "add", "fd00:10:240::18", "lladdr", LIVE_MAC, "nud", "stale", "dev", "azv7")
    # This one lives, but has not spoken yet.
    add_link(world.node, "azv8", "fe:00:00:00:00:20", there=world.live, peer="eth8", peer_mac="aa:bb:cc:00:00:20")
    world.live.ip("address", "add", "10.240.0.20/32", "dev", "eth8")
    world.live.ip("address", "add", "fd00:10:240::20/128", "dev", "eth8")
    ip("route", "add", "10.240.0.20/32", "dev", "azv8")
    ip("-6", "route", "add", "fd00:10:240::20/128", "dev", "azv8")
    before = world.shown()
    task = world.sweep()
    task.do(Context(timeout=60))
    gone, come = differences(before, world.shown())
    expected = ["10.240.0.17", "10.240.0.18", "fd00:10:240::17", "fd00:10:240::18"]
    assert ([line.split()[0] for line in gone if "azv" in line], come) == (expected, [])
    task.undo(Context(timeout=60))
    assert world.shown() == before
