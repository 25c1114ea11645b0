"""CleanStaleCNI on a fake machine: the objects that a sweep removes and leaves alone, its readings,
and its log.
"""

import logging

import pytest
from support.memory_links import remove_device
from support.printed import NO_ENDPOINT, NOT_ASKED
from support.stale_cni_sweeps import (
    DEAD,
    STALE,
    made_host,
    planned,
    refusal,
    sweep,
    sweep_now,
    there,
)
from support.stale_cni_worlds import config_of, context, node_of, whole_state

from hostrouting import HostRoutingConfig
from hostrouting.base.findings import NodeFinding
from hostrouting.exceptions import PermissionDeniedError
from hostrouting.testing import FakeHost
from phases import Change


def test_the_plan_names_each_object_and_why_it_goes() -> None:
    """The plan has one line with a reason for each stale object, and changes nothing."""
    host = made_host()
    before = whole_state(host)
    changes = planned(host)
    assert [change.subject for change in changes] == STALE
    assert changes[0] == Change("-", STALE[0], f"{NO_ENDPOINT}{DEAD}")
    assert whole_state(host) == before


def test_a_check_finds_the_objects_that_the_plan_removes() -> None:
    """Each stale object is a finding of the kind `stale-cni`."""
    host = made_host()
    findings = sweep(host).findings(context())[0]
    assert [finding.subject for finding in findings] == STALE
    why = f"{NO_ENDPOINT}{DEAD}"
    assert findings[0] == NodeFinding("stale-cni", STALE[0], why, apply="now")


def test_without_privilege_a_check_never_passes() -> None:
    """A check that may not read the rules reports its other findings and does not pass."""
    host = made_host()
    host.ebtables.may_read = False
    assert {each.kind for each in sweep(host).findings(context())[0]} == {"stale-cni"}
    bare = FakeHost()
    bare.ebtables.may_read = False
    with pytest.raises(PermissionDeniedError, match="cannot check if a removed CNI left anything"):
        sweep(bare).findings(context())


def test_without_privilege_there_is_a_plan_and_no_sweep(caplog: pytest.LogCaptureFixture) -> None:
    """A plan without the privilege to probe leaves the sweep out; check and run are refused."""
    host = made_host()
    before = whole_state(host)
    host.link_layer.may_probe = False
    assert planned(host) == []
    denied = NOT_ASKED
    assert caplog.messages == [f"the sweep is not planned: {denied}"]
    with pytest.raises(PermissionDeniedError, match="cannot check if a removed CNI left anything"):
        sweep(host).findings(context())
    refusal(host, kind=PermissionDeniedError)
    assert whole_state(host) == before


def test_a_clean_node_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A node without leftovers is read once, and gets no record."""
    caplog.set_level(logging.INFO)
    host = node_of(FakeHost())
    before = whole_state(host)
    ctx = context()
    sweep(host).do(ctx)
    assert whole_state(host) == before
    assert ctx.clock.monotonic() == 0
    assert "nothing stale of azure-vnet was found" in caplog.messages


@pytest.mark.parametrize("config", [HostRoutingConfig(), config_of(enabled=False)])
def test_without_the_section_nothing_happens(config: HostRoutingConfig) -> None:
    """A task without an enabled section in the config reads, changes and restores nothing."""
    host = made_host()
    sweep_now(host)
    after = whole_state(host)
    calls = len(host.ebtables.operations.calls)
    sweep_now(host, config)
    assert planned(host, config) == []
    assert sweep(host, config).findings(context()) == ([], [])
    assert len(host.ebtables.operations.calls) == calls
    assert whole_state(host) == after


def test_an_image_has_nothing_to_sweep() -> None:
    """Every verb does nothing in an image."""
    host = FakeHost(is_live=False)
    task = sweep(host)
    task.do(context())
    task.undo(context())
    assert task.plan(context()) == []
    assert task.plan_undo(context()) == []
    assert sweep(host).findings(context()) == ([], [])


def test_no_bridge_at_all_is_fine() -> None:
    """A sweep on a node without the bridge removes all stale objects, as no pod can be on it."""
    host = made_host()
    remove_device(host.link_layer, "azure0")
    sweep_now(host)
    assert there(host) == []
