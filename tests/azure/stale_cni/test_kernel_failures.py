"""A sweep in real namespaces that meets other programs, and refusals of the kernel."""

import threading
from collections.abc import Sequence

import attrs
import pytest
from support.needs import needs
from support.stale_cni_nodes import DEAD6, DEAD_MAC, LIVE, REUSED, World
from support.stale_cni_worlds import config_of, dnat

from hostrouting.azure.stale_cni import CleanStaleCNI
from hostrouting.exceptions import HostRoutingError, StaleCNIError
from hostrouting.host import EbtablesRule, Neighbour
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from hostrouting.host.packets.ebtables import EbtablesCommand
from phases import Context

pytestmark = needs("kernel", "ebtables-nft")


def test_a_program_that_restores_rules_is_reported_and_not_fought(world: World) -> None:
    """A script that keeps adding a rule is reported, and its rule stays."""
    line = dnat(REUSED, DEAD_MAC)
    stop, is_back = threading.Event(), threading.Event()

    def reconcile() -> None:
        while not stop.is_set():
            if line not in [shown.strip() for shown in world.shown()["ebtables"]]:
                world.rule(line)
                is_back.set()

    class Watched(EbtablesCommand):
        def delete(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
            super().delete(ctx, rules)
            assert is_back.wait(10)

    thread = threading.Thread(target=reconcile, name="reconciler")
    thread.start()
    try:
        # The adapter notices a program that is faster than its own reading, the task all others.
        with pytest.raises(HostRoutingError, match=r"another program adds them again|something alive undoes it"):
            world.sweep(ebtables=Watched(world.prefix)).do(Context(timeout=60))
    finally:
        stop.set()
        thread.join()
    assert line in [shown.strip() for shown in world.shown()["ebtables"]]


def test_without_ebtables_the_rest_is_cleaned(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Without ebtables a message says that rules may remain, and neighbours are removed nevertheless."""
    empty = world.root / "empty"
    empty.mkdir()
    absent = EbtablesCommand((*world.prefix, "/usr/bin/env", f"PATH={empty}"))
    before = world.shown()
    task = world.sweep(ebtables=absent)
    task.do(Context(timeout=60))
    after = world.shown()
    assert (after["ebtables"], len(after["neigh"])) == (before["ebtables"], len(before["neigh"]) - 2)
    notes = [record for record in caplog.records if "may go unseen" in record.getMessage()]
    assert notes
    assert {record.levelname for record in notes} == {"WARNING"}
    task.undo(Context(timeout=60))
    assert world.shown() == before


def test_a_refusal_of_the_kernel_leaves_everything_as_it_was(world: World) -> None:
    """The rules had gone when a neighbour is refused: they are back, in place and order, and there is no record."""
    before = world.shown()

    class Refused(NetlinkLinkLayer):
        def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
            absent = Neighbour("10.240.0.99", "azure0", DEAD_MAC, permanent=True)
            super().remove_neighbours([*neighbours, absent])

    host = attrs.evolve(world.host(), link_layer=Refused(netns=world.node.name))
    with world.stream(LIVE) as lost, pytest.raises(StaleCNIError, match=r"removed before that are back$"):
        CleanStaleCNI(config_of(), host=host).do(Context(timeout=60))
    assert (world.shown(), lost, list((world.root / "var/lib").iterdir())) == (before, [], [])


def test_an_object_that_another_program_removed_comes_back(world: World) -> None:
    """A neighbour vanishes at the last moment and is refused: the node is as it was when it was read."""
    before = world.shown()

    class Vanishing(EbtablesCommand):
        def delete(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
            super().delete(ctx, rules)
            world.node.ip("neigh", "delete", DEAD6, "dev", "azure0")

    with pytest.raises(StaleCNIError, match=r"removed before that are back$"):
        world.sweep(ebtables=Vanishing(world.prefix)).do(Context(timeout=60))
    assert world.shown() == before
