"""The signs of life that a service sends to its manager."""

import os
import socket
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from hostrouting.host import Supervisor
from hostrouting.host.offline import NoSupervisor
from hostrouting.host.systemd.notify import NotifySocket, supervisor_of
from hostrouting.testing import MemorySupervisor


class SupervisorContract:
    """The promises of `Supervisor`. A subclass has the fixtures `supervisor`, and `received`, which
    returns each message since its last call, as the manager reads it: assignments of sd_notify(3).
    """

    def test_each_sign_is_one_message(
        self, supervisor: Supervisor, received: Callable[[], list[dict[str, str]]]
    ) -> None:
        """The manager receives each sign as one message, in their order."""
        supervisor.notify(READY="1", STATUS="2 routes")
        supervisor.notify(STOPPING="1")
        assert received() == [
            {"READY": "1", "STATUS": "2 routes"},
            {"STOPPING": "1"},
        ]

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
        """A line break in a status does not begin another assignment; undecodable bytes are written
        as escapes.
        """
        supervisor.notify(STATUS=status)
        assert received() == [{"STATUS": line}]


def read(manager: socket.socket) -> list[dict[str, str]]:
    """All datagrams that have arrived, each as the assignments in it."""
    messages: list[dict[str, str]] = []
    while True:
        try:
            text = manager.recv(4096, socket.MSG_DONTWAIT).decode()
        except BlockingIOError:
            return messages
        messages.append(dict(line.split("=", 1) for line in text.splitlines()))


class TestNotifySocket(SupervisorContract):
    @pytest.fixture(params=["path", "abstract"])
    def address(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        """The manager's address, as it is in the environment."""
        return str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path}/notify"

    @pytest.fixture
    def manager(self, address: str) -> Generator[socket.socket]:
        """The manager's end."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(address.replace("@", "\0", 1))
            yield manager

    @pytest.fixture
    def supervisor(self, address: str) -> Supervisor:
        """The manager of the contract."""
        return NotifySocket(address)

    @pytest.fixture
    def received(self, manager: socket.socket) -> Callable[[], list[dict[str, str]]]:
        """The messages of the contract."""
        return partial(read, manager)


class TestMemorySupervisor(SupervisorContract):
    @pytest.fixture
    def supervisor(self) -> Supervisor:
        """The manager of the contract."""
        return MemorySupervisor()

    @pytest.fixture
    def received(self, supervisor: MemorySupervisor) -> Callable[[], list[dict[str, str]]]:
        """The messages of the contract."""
        return lambda: supervisor.heard


@pytest.mark.parametrize(
    "address", ["/nowhere/at/all", "@", "/" + 200 * "x", "vsock:2:1", "/nul\0"]
)
def test_a_manager_that_cannot_be_notified_ends_nothing(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A sign that cannot be delivered is logged for debugging, and is not an error."""
    with caplog.at_level("DEBUG"):
        NotifySocket(address).notify(READY="1")
    assert [record.levelname for record in caplog.records] == ["DEBUG"]


def test_a_manager_whose_queue_is_full_keeps_nobody(tmp_path: Path) -> None:
    """A sign to a manager whose queue is full is given up, and the work goes on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
            suppress(BlockingIOError),
        ):
            while True:
                sender.sendto(b"WATCHDOG=1", socket.MSG_DONTWAIT, str(tmp_path / "notify"))
        NotifySocket(str(tmp_path / "notify")).notify(WATCHDOG="1")


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "9" * 5000}, None),
        ({"WATCHDOG_USEC": "\u0661"}, None),
    ],
)
def test_the_environment_has_the_interval(
    environment: dict[str, str], seconds: float | None
) -> None:
    """Signs are due at half of the manager's interval, if they are due from this process; a
    malformed interval is ignored.
    """
    supervisor = supervisor_of({"NOTIFY_SOCKET": "/run/systemd/notify", **environment})
    assert supervisor.seconds_between_signs == seconds


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"WATCHDOG_USEC": "60000000"}])
def test_without_a_manager_signs_are_for_nothing(environment: dict[str, str]) -> None:
    """A process without a manager has no signs due, and sends none."""
    supervisor = supervisor_of(environment)
    assert isinstance(supervisor, NoSupervisor)
    supervisor.notify(READY="1", STATUS="fine")
    assert supervisor.seconds_between_signs is None
