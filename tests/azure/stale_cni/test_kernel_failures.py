"""A sweep in real namespaces that meets other programs, and refusals of the kernel."""

from collections.abc import Sequence

import pytest
from support.needs import needs
from support.stale_cni_nodes import DEAD6, World

from hostrouting.exceptions import StaleCNIError
from hostrouting.host import EbtablesRule
from hostrouting.host.packets.ebtables import EbtablesCommand
from phases import Context

pytestmark = needs("kernel", "ebtables-nft")


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
