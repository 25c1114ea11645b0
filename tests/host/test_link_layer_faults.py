"""Changes of neighbours of which one fails, is not answered, or does not last."""

import errno

import pytest
from support.memory_links import add_device

from hostrouting.exceptions import NeighbourRejectedError
from hostrouting.host import Neighbour, NeighbourChange
from hostrouting.host.netlink.frames import Failure
from hostrouting.host.netlink.neighbours import check_changes
from hostrouting.testing import MemoryLinkLayer

POD = Neighbour("10.240.0.9", "azure0", "12:34:56:78:9a:bc", permanent=True)
PODS = [POD._replace(address=f"10.240.0.{last}") for last in (7, 8, 9)]


@pytest.fixture
def layer() -> MemoryLinkLayer:
    """Three neighbours of pods."""
    layer = MemoryLinkLayer()
    add_device(layer, "azure0", kind="bridge", addresses=["10.240.0.4/16", "fd00:1::4/64"])
    layer.change_neighbours("add", PODS)
    return layer


@pytest.mark.parametrize("change", [1, 2, 3])
def test_a_failure_names_those_that_went(layer: MemoryLinkLayer, change: int) -> None:
    """A removal that fails for one neighbour removes the others; the error names the failed one and
    the removed ones.
    """
    layer.refuse_at(change)
    with pytest.raises(NeighbourRejectedError) as caught:
        layer.change_neighbours("remove", PODS)
    failed = PODS[change - 1]
    assert [(refusal.change, refusal.errno) for refusal in caught.value.refusals] == [
        (NeighbourChange("remove", failed), errno.ENOBUFS)
    ]
    assert caught.value.made == [pod for pod in PODS if pod != failed]
    assert layer.neighbours() == [failed]


def test_lost_answers_are_found_out_by_reading() -> None:
    """A change whose answer is lost counts as made exactly if the neighbours on reading back are as
    wanted.
    """
    check_changes("remove", [POD], {}, [])
    check_changes("add", [POD], {}, [POD])
    with pytest.raises(NeighbourRejectedError, match="not in force on reading back"):
        check_changes("remove", [POD], {}, [POD])
    with pytest.raises(NeighbourRejectedError, match="not in force on reading back"):
        check_changes("add", [POD], {}, [])


def test_a_refusal_that_another_program_made_good() -> None:
    """A refused removal is not an error if the neighbour is gone on reading back."""
    check_changes("remove", [POD], {0: Failure(errno.ENOENT, "No such file or directory")}, [])
