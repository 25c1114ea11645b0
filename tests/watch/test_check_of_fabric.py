"""The check of a watch under an announced fabric, whose files change, and are read while they
are being written.
"""

import logging

import pytest
from support.fabric_files import record
from support.printed import LEAVE_AGAIN, leaves
from watch.checked_nodes import ProvenNode, config_of

from hostrouting.testing.contracts.routes import arrange


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> ProvenNode:
    caplog.set_level(logging.INFO)
    found = ProvenNode(config_of())
    found.run(1)
    return found


def test_an_announced_fabric(watched: ProvenNode, caplog: pytest.LogCaptureFixture) -> None:
    """A pool that announces a network of expected addresses, with the device event that wakes the
    check, is an alarm after two readings.
    """
    watched.announces_fabric()
    watched.run(2)
    assert [vars(record)["kind"] for record in caplog.records if "cidr" in vars(record)] == [
        "announced"
    ]
    # An event is answered on the model as it will be.
    caplog.clear()
    arrange(watched.node, "172.16.0.0/17 via 10.224.0.1 dev eth0 proto dhcp")
    watched.run(3)
    lines = [message.split(" (")[0] for message in caplog.messages if ": announced 172" in message]
    assert lines == [
        "172.16.0.0/16: announced 172.16.1.4-172.16.1.4",
        "172.16.0.0/16: announced 172.16.128.0-172.16.255.255",
    ]


def test_a_pool_on_a_node_of_many_routes(
    watched: ProvenNode, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool of the fabric is read every interval, also where the next reading of many routes is
    minutes away.
    """
    monkeypatch.setattr("hostrouting.watch.check._SHARE", 1e-9)
    watched.run(61)
    # Without an event.
    watched.announces_fabric(wakes=False)
    watched.run(62)
    assert "announced 172.16.0.0" in caplog.text


@pytest.mark.parametrize(
    "torn", [b"", record(b"HostName", b"a host"), record(b"IPoIB_Data", b"NUMPAIRS:1|0015")]
)
def test_a_pool_that_is_being_written(
    watched: ProvenNode, caplog: pytest.LogCaptureFixture, torn: bytes
) -> None:
    """A pool that does not have its addresses for less than a second, while it is written, does not end an
    alarm; one that has lost them does.
    """
    watched.announces_fabric()
    watched.run(2)
    caplog.clear()
    for _ in range(5):
        watched.writes_pool(torn)
        watched.run(0.5)
        watched.announces_fabric()
        watched.run(5)
    assert not caplog.records
    assert "announced 172.16.0.0" in watched.marker()
    watched.writes_pool(torn)
    watched.run(1.1)
    assert caplog.messages == [LEAVE_AGAIN + leaves("172.16.0.0/16", "eth0")]
    assert watched.marker() == "ok"
