"""Removals of neighbours of which one fails, is not answered, or does not last."""

import errno

import pytest
from support.memory_links import add_device

from hostrouting.exceptions import BackendError, PermissionDeniedError
from hostrouting.host import Neighbour
from hostrouting.host.netlink.frames import Failure
from hostrouting.host.netlink.neighbours import refuse_failed
from hostrouting.testing import MemoryLinkLayer

POD = Neighbour("10.240.0.9", "azure0", "12:34:56:78:9a:bc", permanent=True)
PODS = [POD._replace(address=f"10.240.0.{last}") for last in (7, 8, 9)]
ABSENT = Failure(errno.ENOENT, "No such file or directory")


@pytest.mark.parametrize("change", [1, 2, 3])
def test_a_failure_names_the_entry_that_stays(change: int) -> None:
    """A removal that fails for one neighbour removes the others, and the error names the one."""
    layer = MemoryLinkLayer()
    add_device(layer, "azure0", kind="bridge")
    layer.table.extend(PODS)
    layer.refuse_at(change)
    failed = PODS[change - 1]
    with pytest.raises(BackendError, match=f"'{failed}' was not removed") as caught:
        layer.remove_neighbours(PODS)
    assert caught.value.errno == errno.ENOBUFS
    assert layer.neighbours() == [failed]


def test_the_reading_after_decides() -> None:
    """A removal counts as made exactly if the neighbour is gone on reading back, whatever the
    kernel has answered.
    """
    refuse_failed([POD], {}, [])
    refuse_failed([POD], {0: ABSENT}, [])
    with pytest.raises(BackendError, match="another program added it again"):
        refuse_failed([POD], {}, [POD])
    with pytest.raises(PermissionDeniedError):
        refuse_failed([POD], {0: Failure(errno.EPERM, "Operation not permitted")}, [POD])
