"""A bridge of azure-vnet with a live pod, a dead one's leftovers, and a pod of another CNI on an
lxc* device that has the dead one's address; in real namespaces, for each backend of ebtables.

If one of these fails, a cleanup cuts off pods that live, or leaves what cuts them off.
"""

from pathlib import Path

import pytest
from support.needs import needs
from support.stale_cni_nodes import (
    DEAD6,
    DEAD_MAC,
    LIVE,
    LIVE_MAC,
    NODE,
    REUSED,
    SOON,
    STALE,
    World,
)
from support.stale_cni_worlds import TUNNEL_MAC, arp_reply, dnat

from hostrouting.exceptions import StaleCNIError
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


def forget(world: World) -> None:
    """Let the bridge forget the live pod, as after five silent minutes."""
    world.node.run("bridge", "fdb", "delete", LIVE_MAC, "dev", "azv1", "master")


def clean(world: World) -> None:
    world.sweep().do(Context(timeout=60))


def test_leftovers_steal_packets_until_they_are_removed(world: World) -> None:
    """Packets to a reused address are lost before the cleanup and arrive after it; the live pod and
    the node never lose one.
    """
    assert not world.reaches(REUSED, patience=SOON)
    with world.stream(LIVE) as lost_by_pod, world.stream(NODE) as lost_by_node:
        clean(world)
        assert world.reaches(REUSED)
    assert lost_by_pod == []
    assert lost_by_node == []


def test_exactly_the_plan_is_removed_and_the_backup_adds_it_again(world: World) -> None:
    """The cleanup removes exactly the planned rules and neighbours of both families, and the script
    in its backup adds them again.
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
    assert not world.planned(task)
    backup = next((world.root / "var/lib/hostrouting/stale-cni").iterdir())
    with world.stream(LIVE) as lost:
        world.node.run("sh", str(backup))
    assert lost == []
    again = {tool: sorted(lines) for tool, lines in world.shown().items()}
    assert again == {tool: sorted(lines) for tool, lines in before.items()}
    assert not world.reaches(REUSED, patience=SOON)


def test_an_address_that_the_nodes_router_has_now_is_given_back(world: World) -> None:
    """An address that Cilium's router took from the pods' pool is reached after the rules of the
    dead pod are removed.
    """
    ip = world.node.ip
    ip(f"route delete {REUSED}/32 dev lxc1")
    ip("link add cilium_host type veth peer name cilium_net")
    ip(f"address add {REUSED}/32 dev cilium_host")
    for device in "cilium_host", "cilium_net":
        ip(f"link set {device} up")
    assert not world.reaches(REUSED, patience=SOON)
    with world.stream(LIVE) as lost:
        clean(world)
        assert world.reaches(REUSED)
    assert lost == []


def test_a_silent_pod_keeps_what_its_record_accounts_for(world: World) -> None:
    """A pod that the bridge has forgotten keeps its rules, also while its device is down, and of
    its hardware address those of a second family, which its record does not list.
    """
    world.rule(dnat("fd00:10:240::10", LIVE_MAC))
    world.node.ip("link set azv1 down")
    assert world.planned(world.sweep()) == STALE
    # A port that goes down forgets what it learned.
    world.node.ip("link set azv1 up")
    clean(world)
    assert world.reaches(LIVE)
    assert world.reaches(REUSED)
    assert any("fd00:10:240::10" in line for line in world.shown()["ebtables"])


def test_a_heard_pod_without_a_record_of_its_own_keeps_its_rules(world: World) -> None:
    """A pod whose record lists another address and no hardware address keeps its rules, since the
    bridge has learned where it is.
    """
    world.record({"azv1": ["10.240.0.77", "fd00:10:240::77"]}, "")
    assert world.reaches(LIVE)
    assert world.planned(world.sweep()) == STALE
    clean(world)
    assert world.reaches(LIVE)


@pytest.mark.parametrize("kind", ["state", "device", "configuration", "lock"])
def test_what_is_unclear_is_left_alone(world: World, tmp_path: Path, kind: str) -> None:
    """Nothing is removed while a record cannot be read, no record names an azv* device, azure-vnet
    is configured, or it holds its lock; the live pod keeps its packets.
    """
    state = tmp_path / "var/run/azure-vnet.json"
    if kind == "state":
        state.write_text("{")
    elif kind == "device":
        state.unlink()
        forget(world)
    elif kind == "configuration":
        path = tmp_path / "etc/cni/net.d/10-azure.conflist"
        path.parent.mkdir(parents=True)
        path.write_text('{"plugins": [{"type": "azure-vnet"}]}')
    else:
        state.with_name("azure-vnet.lock").write_text("1")
        (tmp_path / "proc/1").mkdir(parents=True)
    before = world.shown()
    with world.stream(LIVE) as lost, pytest.raises(StaleCNIError):
        clean(world)
    assert world.shown() == before
    assert lost == []
    assert not (tmp_path / "var/lib/hostrouting").exists()


def test_in_tunnel_mode_the_address_decides(world: World) -> None:
    """In tunnel mode all pods share one hardware address: rules for a recorded address stay, those
    for others go.
    """
    dead = arp_reply("10.240.0.11", TUNNEL_MAC)
    for line in arp_reply(LIVE, TUNNEL_MAC), dead:
        world.rule(line)
    world.record({"azv1": [LIVE, "fd00:10:240::10"]}, TUNNEL_MAC)
    assert world.reaches(LIVE)
    before = world.shown()
    clean(world)
    gone, come = differences(before, world.shown())
    assert sorted(line.strip() for line in gone) == sorted([*STALE, dead])
    assert come == []
    assert world.reaches(LIVE)


def test_a_record_without_hardware_address_accounts_for_its_families(world: World) -> None:
    """While the pod of a record without hardware address may have an IPv6 address, IPv6 entries
    stay, and IPv4 entries of other addresses go.
    """
    world.record({"azv1": [LIVE]}, "")
    forget(world)
    clean(world)
    left = [line for lines in world.shown().values() for line in lines if DEAD_MAC in line]
    assert left
    assert all(DEAD6 in line for line in left)
    assert world.reaches(LIVE)
    assert world.reaches(REUSED)
