"""Batches of neighbours and routes in which a change fails, an answer is lost, or a device vanishes."""

import errno
from collections.abc import Sequence
from typing import Any

import pytest

from hostrouting.exceptions import BackendError, RouteRejectedError
from hostrouting.host.netlink.batches import commit_neighbours
from hostrouting.host.netlink.commit import AnswersLostError, Failure, Step, missing_after
from hostrouting.net.links import Neighbour
from hostrouting.testing.memory_link_layer import MemoryLinkLayer

POD_MAC = "12:34:56:78:9a:bc"


def arranged() -> MemoryLinkLayer:
    """Three neighbours of pods."""
    layer = MemoryLinkLayer()
    layer.add_device("azure0", kind="bridge", addresses=["10.240.0.4/16", "fd00:1::4/64"])
    for last in (7, 8, 9):
        layer.add_neighbour(f"10.240.0.{last}", "azure0", POD_MAC)
    return layer


@pytest.mark.parametrize("change", range(1, 6))
def test_a_failure_at_any_change_takes_the_others_back(change: int) -> None:
    """If any change of a batch is refused, the others are rolled back, and the refused one is named."""
    layer = arranged()
    before = layer.neighbours()
    new = [Neighbour(f"10.240.0.{last}", "azure0", POD_MAC, permanent=True) for last in (4, 5)]
    layer.refuse_at(change)
    with pytest.raises(RouteRejectedError) as caught:
        layer.apply(remove=before, add=new)
    assert caught.value.rolled_back
    assert [refusal.errno for refusal in caught.value.refusals] == [errno.ENOBUFS]
    changes = [f"- {one}" for one in before] + [f"+ {one}" for one in new]
    assert [refusal.change for refusal in caught.value.refusals] == [changes[change - 1]]
    assert layer.neighbours() == before


def test_a_device_that_vanishes_midway_is_told() -> None:
    """A neighbour of a vanished device cannot be restored and is named; the rest is restored."""
    layer = arranged()
    layer.add_device("azv9")
    layer.add_neighbour("10.240.0.3", "azv9", POD_MAC)
    layer.add_neighbour("10.240.0.4", "azv9", POD_MAC)
    things = layer.neighbours()
    before = [neighbour for neighbour in layer.neighbours() if neighbour.dev == "azure0"]
    layer.steps.plan(5, lambda: layer.remove_device("azv9"))
    with pytest.raises(RouteRejectedError) as caught:
        layer.apply(remove=things)
    assert [refusal.errno for refusal in caught.value.refusals] == [errno.ENODEV]
    assert caught.value.left_behind == ["missing: 10.240.0.3 dev azv9 lladdr 12:34:56:78:9a:bc PERMANENT"]
    assert layer.neighbours() == before


def test_a_rollback_that_fails_names_the_missing_objects() -> None:
    """The error names every object that could not be restored."""
    layer = arranged()
    layer.refuse_at(3)
    layer.refuse_at(4)
    with pytest.raises(RouteRejectedError) as caught:
        layer.apply(remove=layer.neighbours())
    assert caught.value.rolled_back is False
    assert caught.value.left_behind == ["missing: 10.240.0.8 dev azure0 lladdr 12:34:56:78:9a:bc PERMANENT"]


def test_the_fake_fails_where_it_is_told_to() -> None:
    """`fail_at` counts the calls of the port, and not those that arrange the fake."""
    layer = arranged()
    layer.fail_at(2)
    layer.neighbours()
    with pytest.raises(BackendError, match="Operation not permitted"):
        layer.apply(remove=[Neighbour("10.240.0.9", "azure0", POD_MAC, permanent=True)])
    assert layer.operations.calls == [
        ("neighbours",),
        ("apply", "- 10.240.0.9 dev azure0 lladdr 12:34:56:78:9a:bc PERMANENT"),
    ]


class Script:
    """A conversation with planned answers; each reading takes the next one, and the last one repeats."""

    def __init__(self, readings: Sequence[Sequence[Any]], *, refusals: dict[int, Failure] | None = None) -> None:
        self.readings = [*readings]
        self.refusals = refusals
        self.sent: list[str] = []

    def standing(self) -> Sequence[Any]:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def send(self, steps: Sequence[Step[Neighbour]]) -> dict[int, Failure]:
        self.sent += [f"{verb} {thing}" for verb, thing, _ in steps]
        if self.refusals is None:
            raise AnswersLostError
        return self.refusals

    def unfulfilled(self, steps: Sequence[Step[Neighbour]]) -> dict[int, Failure]:
        return missing_after(steps, self.standing())


POD = Neighbour("10.240.0.9", "azure0", POD_MAC, permanent=True)


def test_lost_answers_are_found_out_by_reading() -> None:
    """If the answers are lost, reading back shows that the changes were made."""
    commit_neighbours(Script([[POD], []]), remove=[POD], add=[], devices={"azure0"})


def test_a_removal_that_does_not_last_is_a_refusal() -> None:
    """If another program restores a removed neighbour at once, the batch is refused."""
    script = Script([[POD], [POD]], refusals={})
    with pytest.raises(RouteRejectedError, match="is still there") as caught:
        commit_neighbours(script, remove=[POD], add=[], devices={"azure0"})
    assert caught.value.rolled_back
    assert script.sent == [f"remove {POD}", f"append {POD}"]


def test_an_addition_that_does_not_last_is_a_refusal() -> None:
    """An added neighbour that is absent on reading back is a refusal."""
    with pytest.raises(RouteRejectedError, match="not refused, but not there on reading back"):
        commit_neighbours(Script([[], []], refusals={}), remove=[], add=[POD], devices={"azure0"})
