"""The promises of `Supervisor`, as tests."""

import time
from collections.abc import Callable

import pytest

from hostrouting.host import Supervisor


class SupervisorContract:
    """The promises of `Supervisor`. A subclass has the fixtures `supervisor`, and `received`.

    It returns each message since its last call, as the manager reads it: assignments of
    sd_notify(3).
    """

    def test_each_sign_is_one_message(
        self, supervisor: Supervisor, received: Callable[[], list[dict[str, str]]]
    ) -> None:
        """The manager gets all signs, in their order."""
        supervisor.ready("2 routes")
        supervisor.status("3 routes")
        supervisor.alive()
        supervisor.stopping()
        assert received() == [
            {"READY": "1", "STATUS": "2 routes"},
            {"STATUS": "3 routes"},
            {"WATCHDOG": "1"},
            {"STOPPING": "1"},
        ]

    def test_a_reload_has_its_time(
        self, supervisor: Supervisor, received: Callable[[], list[dict[str, str]]]
    ) -> None:
        """The manager learns when the reload began, on the monotonic clock: an earlier message is
        none about it.
        """
        before = time.monotonic_ns() // 1000
        supervisor.reloading()
        [message] = received()
        assert message.pop("RELOADING") == "1"
        assert before <= int(message.pop("MONOTONIC_USEC")) <= time.monotonic_ns() // 1000
        assert message == {}

    @pytest.mark.parametrize(
        ("status", "line"),
        [("a\nREADY=1", "a READY=1"), ("\r\n\x85 \u2028", ""), ("\udcff = é", "\\udcff = é")],
    )
    def test_any_status_is_one_line(
        self,
        supervisor: Supervisor,
        received: Callable[[], list[dict[str, str]]],
        status: str,
        line: str,
    ) -> None:
        """A line break in a status begins no other assignment; bytes that are no text are written
        out.
        """
        supervisor.status(status)
        assert received() == [{"STATUS": line}]
