"""CleanStaleCNI on a fake machine: several readings, the last one, and the log."""

import logging

import pytest
from support.memory_links import add_device, add_neighbour, remove_device
from support.printed import OTHER_RULES
from support.stale_cni_sweeps import (
    DEAD,
    DEAD_MAC,
    FOREIGN,
    LIVE,
    RECORD,
    made_host,
    refusal,
    sweep,
    sweep_now,
    there,
)
from support.stale_cni_worlds import config_of, context, dnat

from hostrouting.exceptions import BackendError
from phases import CancelledError, DeadlineExceededError, run


@pytest.mark.parametrize("confirmations", [1, 2, 5])
def test_as_many_readings_as_configured(confirmations: int) -> None:
    """A sweep makes the configured number of readings, a second apart, and a last one."""
    host = made_host()
    ctx = context()
    sweep(host, config_of(confirmations=confirmations)).do(ctx)
    assert ctx.clock.monotonic() == confirmations
    assert there(host) == []


def test_objects_that_change_between_readings_are_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A rule that comes between two readings is left alone, as another program is changing it, and
    all else is swept.
    """
    host = made_host()
    late = dnat("10.240.0.12", "aa:bb:cc:00:00:12")
    host.ebtables.operations.plan(2, lambda: host.ebtables.add(late))
    sweep_now(host)
    assert (
        f"ebtables nft nat: {late} is left alone: it changed between readings, so another program is changing it"
        in caplog.messages
    )
    assert there(host) == [f"ebtables nft nat: {late}"]


def test_rules_that_are_added_again_are_reported_and_not_fought(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rules that another program adds again after the sweep are an error that names them; they are
    left alone, and the record stays.
    """
    host = made_host()
    line = dnat(DEAD, DEAD_MAC)
    host.ebtables.operations.plan(4, lambda: host.ebtables.add(line))
    assert refusal(host) == (
        f"another program adds them again: 1 of 8 removed objects are back, the first is 'ebtables nft nat: {line}'. "
        f"They are left alone; find the program that makes them (azure-vnet, its monitor, a script?), stop it, and "
        f"run this again"
    )
    assert f"another program added it again: ebtables nft nat: {line}" in caplog.messages
    assert [call[0] for call in host.ebtables.operations.calls].count("delete") == 1
    assert host.files.tree.exists(RECORD)


def test_a_last_look_that_fails_is_an_error() -> None:
    """A last reading that fails is an error: the stale objects are gone, and the record stays."""
    host = made_host()
    host.ebtables.fail_at(4)
    assert "Cannot allocate memory" in refusal(host, kind=BackendError)
    assert there(host) == []
    assert host.files.tree.exists(RECORD)


@pytest.mark.parametrize("error", [CancelledError("SIGTERM"), DeadlineExceededError(1.0)])
def test_a_run_cancelled_after_the_sweep_has_swept(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that is cancelled after its deletion leaves the objects removed and recorded, and warns
    that no later reading looked for them.
    """
    host = made_host()
    # Two readings, the deletion, and then the last look.
    host.ebtables.fail_at(4, error)
    sweep_now(host)
    assert there(host) == []
    assert host.files.tree.exists(RECORD)
    assert (
        f"no time to check if they are added again ({error}); they are recorded in {RECORD}"
        in caplog.messages
    )


def test_a_deadline_after_the_sweep_does_not_fail_its_run(caplog: pytest.LogCaptureFixture) -> None:
    """A run whose deadline ends its last reading is ok, as all stale objects are removed."""
    host = made_host()
    report = run(sweep(host), context(), timeout=1.5)
    assert report.status == "ok"
    assert there(host) == []
    assert "no time to check if they are added again (deadline" in caplog.text


@pytest.mark.parametrize(("up", "words"), [(False, "azv2 is down"), (True, "azv2 has no carrier")])
def test_a_silent_device_is_given_time(
    *, up: bool, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A device that is down or without carrier gets five more readings and a message; then its
    leftovers are swept.
    """
    host = made_host()
    add_device(host.link_layer, "azv2", kind="veth", master="azure0", up=up, carrier=False)
    ctx = context()
    began = ctx.clock.monotonic()
    sweep(host).do(ctx)
    assert [line for line in host.ebtables.lines() if DEAD in line] == []
    # Seven readings, and the last look.
    assert ctx.clock.monotonic() - began == 7
    assert f"{words}: its pod gets 5 more readings to answer" in caplog.messages


def test_a_pod_whose_link_comes_back_in_that_time_keeps_everything() -> None:
    """A pod whose link comes back within the further readings keeps all its objects."""
    host = made_host()
    add_device(host.link_layer, "azv2", kind="veth", master="azure0", up=False, carrier=False)

    def link_comes_back() -> None:
        remove_device(host.link_layer, "azv2")
        add_device(host.link_layer, "azv2", kind="veth", master="azure0")
        host.link_layer.alive.add(("azv2", DEAD))

    host.ebtables.operations.plan(4, link_comes_back)
    sweep_now(host)
    assert dnat(DEAD, DEAD_MAC) in host.ebtables.lines()


def test_every_reading_finds_the_same_and_it_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning that a plan and all readings of a sweep have in common is logged once."""
    host = made_host()
    host.ebtables.notes.append("ebtables (legacy) is not installed")
    task = sweep(host)
    with caplog.at_level("INFO"):
        task.plan(context())
        task.do(context())
    lines = caplog.messages
    assert lines.count("ebtables rules may go unseen: ebtables (legacy) is not installed") == 1


# --- the log


def test_unknown_objects_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Each unknown object is logged once as a warning with its reason, however many readings find
    it.
    """
    caplog.set_level(logging.DEBUG)
    host = made_host()
    add_neighbour(host.link_layer, "192.168.0.9", "azure0", DEAD_MAC)
    sweep_now(host)
    left = [record for record in caplog.records if "is left alone" in record.getMessage()]
    logged = [record for record in left if record.levelname != "DEBUG"]
    assert {record.levelname for record in logged} == {"WARNING"}
    assert len(logged) == 2
    debugged = {(record.kind, record.address) for record in left if record.levelname == "DEBUG"}  # type: ignore[attr-defined]
    assert debugged == {("node", None), ("node", "10.240.0.4"), ("live", LIVE)}
    assert {record.object: record.reason for record in logged} == {  # type: ignore[attr-defined]
        f"ebtables nft nat: {FOREIGN}": OTHER_RULES,
        f"192.168.0.9 dev azure0 lladdr {DEAD_MAC} PERMANENT": "192.168.0.9 is outside podCidrs",
    }


def test_of_many_that_are_not_understood_the_first_ten_are_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ten of many unknown objects are logged as warnings; the others are counted, and logged for
    -v.
    """
    caplog.set_level(logging.DEBUG)
    host = made_host()
    for number in range(30):
        host.ebtables.add(f"-A PREROUTING -p IPv4 -i eth{number} -j ACCEPT")
    task = sweep(host)
    task.plan(context())
    task.do(context())
    left = [record for record in caplog.records if "is left alone" in record.getMessage()]
    levels = [record.levelname for record in left if record.kind == "unknown"]  # type: ignore[attr-defined]
    assert levels.count("WARNING") == 10
    assert levels.count("DEBUG") == 21
    assert caplog.messages.count("and 21 more are left alone (shown by -v)") == 1
