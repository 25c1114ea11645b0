"""A bridge of azure-vnet with a live pod and a dead one's leftovers, in real namespaces."""

from support.needs import needs
from support.stale_cni_nodes import (
    LIVE,
    LIVE_MAC,
    NODE,
    REUSED,
    SOON,
    STALE,
    World,
    add_link,
)

from phases import Context

pytestmark = needs("kernel", "ebtables-nft")


def differences(
    before: dict[str, list[str]], after: dict[str, list[str]]
) -> tuple[list[str], list[str]]:
    """The lines that went and those that came, all else being in the same order."""
    gone = [line for tool in before for line in before[tool] if line not in after[tool]]
    come = [line for tool in before for line in after[tool] if line not in before[tool]]
    kept = {tool: [line for line in before[tool] if line in after[tool]] for tool in before}
    assert kept == {tool: [line for line in after[tool] if line in before[tool]] for tool in after}
    return gone, come


def test_leftovers_steal_packets_and_the_sweep_gives_them_back(world: World) -> None:
    """Packets to a reused address are lost before the sweep and arrive after it; the live pod and
    the node never lose one.
    """
    assert not world.reaches(REUSED, patience=SOON)
    with world.stream(LIVE) as lost_by_pod, world.stream(NODE) as lost_by_node:
        world.sweep().do(Context(timeout=60))
        assert world.reaches(REUSED)
    assert lost_by_pod == []
    assert lost_by_node == []


def test_the_sweep_removes_exactly_the_plan_and_undo_restores_it(world: World) -> None:
    """The sweep removes exactly the planned rules, neighbours and routes of both families, and undo
    restores them.
    """
    before = world.shown()
    task = world.sweep()
    planned = world.planned(task)
    assert planned == STALE
    assert world.shown() == before
    task.do(Context(timeout=60))
    gone, come = differences(before, world.shown())
    assert sorted(line.strip() for line in gone) == sorted(planned)
    assert come == []
    with world.stream(LIVE) as lost:
        task.undo(Context(timeout=60))
    assert world.shown() == before
    assert lost == []
    assert list((world.root / "var/lib").iterdir()) == []
    assert not world.reaches(REUSED, patience=SOON)


def test_routes_of_transparent_mode_go_and_come_back(world: World) -> None:
    """Routes on the veth of a dead pod are swept in both families, and restored by undo; those of a
    pod that answers stay.

    That the kernel once learned a neighbour there does not prove a live pod: such entries stay for
    as long as there is room.
    """
    ip = world.node.ip
    ip("link add azv7 type veth peer name peer7")
    for device in "azv7", "peer7":
        ip(f"link set {device} up")
    for number in 17, 18:
        ip(f"route add 10.240.0.{number}/32 dev azv7")
        ip(f"-6 route add fd00:10:240::{number}/128 dev azv7")
    ip("route add 10.240.0.19/32 dev azv7 proto 142")
    ip(f"neigh add 10.240.0.18 lladdr {LIVE_MAC} nud stale dev azv7")
    ip(f"neigh add fd00:10:240::18 lladdr {LIVE_MAC} nud stale dev azv7")
    # This one lives, but has not spoken yet.
    add_link(
        world.node,
        "azv8",
        "fe:00:00:00:00:20",
        there=world.live,
        peer="eth8",
        peer_mac="aa:bb:cc:00:00:20",
    )
    world.live.ip("address add 10.240.0.20/32 dev eth8")
    world.live.ip("address add fd00:10:240::20/128 dev eth8")
    ip("route add 10.240.0.20/32 dev azv8")
    ip("-6 route add fd00:10:240::20/128 dev azv8")
    before = world.shown()
    task = world.sweep()
    task.do(Context(timeout=60))
    gone, come = differences(before, world.shown())
    expected = ["10.240.0.17", "10.240.0.18", "fd00:10:240::17", "fd00:10:240::18"]
    assert [line.split()[0] for line in gone if "azv" in line] == expected
    assert come == []
    task.undo(Context(timeout=60))
    assert world.shown() == before


def test_an_address_that_the_nodes_router_has_now_is_given_back(world: World) -> None:
    """An address that Cilium's router took from the pods' pool is reached after the sweep of the
    dead pod's rules.
    """
    ip = world.node.ip
    ip(f"route delete {REUSED}/32 dev lxc1")
    ip("link add cilium_host type veth peer name cilium_net")
    ip(f"address add {REUSED}/32 dev cilium_host")
    for device in "cilium_host", "cilium_net":
        ip(f"link set {device} up")
    assert not world.reaches(REUSED, patience=SOON)
    before = world.shown()
    task = world.sweep()
    assert world.planned(task) == STALE
    with world.stream(LIVE) as lost:
        task.do(Context(timeout=60))
        assert world.reaches(REUSED)
    assert lost == []
    task.undo(Context(timeout=60))
    assert world.shown() == before
