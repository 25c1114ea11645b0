"""Errors of pyroute2's socket, which are not answers of the kernel."""

import errno
from typing import Any

import pytest

from hostrouting.host.netlink.frames import AnswersLostError, message
from hostrouting.host.pyroute import Pyroute2Conversation

REQUEST = message(26, 1, bytes(12))


class _Broken:
    """A socket that sends, and from which no answer can be received."""

    def nlm_request_batch(self, messages: list[Any]) -> list[Any]:
        raise TimeoutError(errno.ETIMEDOUT, "timed out")


def test_a_lookup_without_an_answer_is_an_error() -> None:
    with pytest.raises(TimeoutError):
        Pyroute2Conversation(_Broken()).ask_many(memoryview(REQUEST), 1, "ip route get")


def test_a_change_without_an_answer_is_not_refused() -> None:
    """A change whose answer pyroute2's socket does not deliver raises AnswersLostError once all
    batches are packed, as the kernel may have made the change.
    """
    batches = iter([REQUEST, REQUEST])
    with pytest.raises(AnswersLostError):
        Pyroute2Conversation(_Broken()).deliver(batches, 2)
    assert list(batches) == []
