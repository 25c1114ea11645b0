"""CleanStaleCNI on a fake machine: every reason to refuse a sweep, reported by plan and check
beforehand.
"""

from functools import partial

import pytest
from support.printed import IN_USE, MAY_CHANGE, NO_ENDPOINT
from support.stale_cni_sweeps import (
    CONFLIST,
    DEAD,
    DEAD6,
    STALE,
    made_host,
    planned,
    refusal,
    refused,
    sweep,
    sweep_now,
    there,
)
from support.stale_cni_worlds import config_of, context, whole_state

from hostrouting import HostRoutingConfig
from hostrouting.azure.stale_cni.azure_vnet import ENDPOINTS_PATH, STATE_PATH
from hostrouting.base.findings import LEFT, REFUSED
from hostrouting.exceptions import PermissionDeniedError
from hostrouting.testing import FakeHost


def test_without_privilege_nothing_is_begun() -> None:
    """A sweep without privilege is refused before anything is written or deleted."""
    host = made_host()
    host.ebtables.may_read = False
    before = whole_state(host)
    with pytest.raises(PermissionDeniedError, match="nothing was changed"):
        sweep_now(host)
    assert whole_state(host) == before


def test_it_refuses_while_azure_vnet_is_configured() -> None:
    """A sweep is refused while azure-vnet is configured; the error names the file and the ways out,
    and the plan reports it.
    """
    host = made_host()
    host.files.tree.write(CONFLIST, b'{"plugins": [{"type": "azure-vnet"}]}', mode=0o644)
    before = whole_state(host)
    assert refusal(host) == (
        f"{IN_USE}: /etc/cni/net.d/10-azure.conflist names azure-vnet. Nothing was changed. Remove "
        "azure-vnet first; if none of its pods is alive, staleCni.force (its switches conflist and lock) sweeps all "
        "the same"
    )
    assert whole_state(host) == before
    assert {change.detail for change in planned(host)} == {
        f"will be left out: {IN_USE}: /etc/cni/net.d/10-azure.conflist names azure-vnet; "
        f"{NO_ENDPOINT}{address}"
        for address in (DEAD, DEAD6, "10.240.0.11", "fd00:10:240::11")
    }
    # An optional sweep fails no apply, so the plan as a whole is none that will be refused; a
    # required one does.
    assert {change.kind for change in planned(host)} == {LEFT}
    assert {change.kind for change in planned(host, config_of(required=True))} == {REFUSED}


def test_there_is_nothing_to_refuse_where_nothing_is_stale() -> None:
    """A node without leftovers passes, although its image still has azure-vnet's configuration."""
    host = made_host()
    sweep_now(host)
    host.files.tree.write(CONFLIST, b'{"plugins": [{"type": "azure-vnet"}]}', mode=0o644)
    host.files.tree.write("/var/run/azure-vnet.json", b"", mode=0o600)
    sweep_now(host)
    assert there(host) == []


def test_it_refuses_when_azure_vnet_shows_up_between_readings() -> None:
    """A sweep is refused if azure-vnet is configured during a reading."""
    host = made_host()
    write = partial(host.files.tree.write, CONFLIST, b'{"type": "azure-vnet"}', mode=0o644)
    host.ebtables.operations.plan(1, write)
    # With one reading, only the look after it can see the file.
    refusal(host, config_of(confirmations=1))
    assert there(host) == STALE


LOCKS = [
    "/var/run/azure-vnet.json.lock",
    "/var/run/azure-vnet/azure-vnet-ipam.json.lock",
    "/var/run/azure-vnet/azure-vnet.lock",
    "/var/lock/azure-vnet/azure-vnet.json.lock",
    "/var/lock/azure-vnet/any.lock",
]


@pytest.mark.parametrize("lock", LOCKS)
def test_it_refuses_while_a_lock_of_any_version_is_held(lock: str) -> None:
    """A sweep is refused while a lock of any version of azure-vnet is held, as a lock or as a file
    with the id of a process.
    """
    host = made_host()
    host.files.tree.write(lock, b"", mode=0o600)
    host.files.tree.locked.add(lock)
    before = whole_state(host)
    assert f"{IN_USE}: a process holds the lock {lock}. " in refusal(host)
    assert whole_state(host) == before
    host.files.tree.locked.clear()
    host.files.tree.write(lock, b"4711", mode=0o600)
    host.files.tree.write("/proc/4711/comm", b"azure-vnet\n", mode=0o444)
    assert f"process 4711 holds the lock {lock}" in refusal(host)
    host.files.tree.write(lock, b"4712", mode=0o600)
    sweep_now(host)
    assert there(host) == []


def test_locks_of_cns_are_not_a_sign_of_azure_vnet() -> None:
    """Held locks of CNS, which always runs, do not prevent a sweep."""
    host = made_host()
    for lock in (
        "/var/lock/azure-vnet/azure-cns.json.lock",
        "/var/lock/azure-vnet/azure-endpoints.json.lock",
        "/var/run/azure-vnet/azure-endpoints.lock",
    ):
        host.files.tree.write(lock, b"", mode=0o600)
        host.files.tree.locked.add(lock)
    sweep_now(host)
    assert there(host) == []


@pytest.mark.parametrize(
    ("force", "reason"),
    [
        ({"conflist": True}, f"a process holds the lock {LOCKS[2]}"),
        ({"lock": True}, "/etc/cni/net.d/10-azure.conflist names azure-vnet"),
        ({"conflist": True, "lock": True}, None),
    ],
)
def test_each_switch_of_force_overlooks_one_thing(
    force: dict[str, bool], reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Each switch of force overrides one reason to refuse; an override is logged once."""
    host = made_host()
    host.files.tree.write(CONFLIST, b'{"type": "azure-vnet"}', mode=0o644)
    host.files.tree.write(LOCKS[2], b"", mode=0o600)
    host.files.tree.locked.add(LOCKS[2])
    config = config_of(force=force)
    if reason is None:
        why = f"{NO_ENDPOINT}{DEAD}"
        assert next(change.detail for change in planned(host, config)) == why
        caplog.clear()
        sweep_now(host, config)
        assert there(host) == []
        conflist = "/etc/cni/net.d/10-azure.conflist names azure-vnet"
        both = f"{IN_USE}: {conflist}; a process holds the lock {LOCKS[2]}"
        overrides = [text for text in caplog.messages if "force overrides" in text]
        assert overrides == [f"staleCni.force overrides: {both}"]
    else:
        assert refusal(host, config).startswith(f"{IN_USE}: {reason}. Nothing was changed.")
        assert there(host) == STALE


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("path", "content"), [(STATE_PATH, b"{"), (ENDPOINTS_PATH, b'{"Endpoint": {}}')]
)
def test_it_refuses_a_state_that_it_does_not_understand(
    path: str, content: bytes, *, force: bool
) -> None:
    """A sweep is refused, with any switch, if the state of azure-vnet or of CNS cannot be
    understood.
    """
    host = made_host()
    before = whole_state(host)
    host.files.tree.write(path, content, mode=0o600)
    config = config_of(force={"conflist": force, "lock": force})
    text = refusal(host, config)
    assert text.startswith(f"cannot read azure-vnet's state in {path}: ")
    assert "live pods cannot be distinguished" in text
    host.files.tree.remove(path)
    assert whole_state(host) == before


def assert_announced(host: FakeHost, config: HostRoutingConfig, why: str) -> None:
    changes = planned(host, config)
    assert changes
    assert all(str(change.detail).startswith(f"will be left out: {why}; ") for change in changes)
    findings = sweep(host, config).findings(context())[0]
    assert {finding.step for finding in findings} == {f"cannot be removed now: {why}"}


def test_a_bridge_of_another_name_is_refused() -> None:
    """A sweep with another bridge than the pods' is refused, as all pods would look dead; plan and
    check report it.
    """
    host = made_host()
    config = config_of(bridge="azure1", force={"conflist": True, "lock": True})
    before = whole_state(host)
    why = "staleCni.bridge must name the bridge of azure-vnet's pods: azure1 does not exist, and azv1 is a port of azure0"
    assert refusal(host, config) == f"{why}. Nothing was changed"
    assert whole_state(host) == before
    assert_announced(host, config, why)


def test_a_folder_of_records_that_others_can_write_is_reported_beforehand() -> None:
    """A sweep whose records would lie in a folder that others can write to is refused; plan and
    check report it.
    """
    host = made_host()
    config = config_of(backup_dir="/srv/records")
    host.files.tree.write("/srv/of-others", b"", mode=0o644)
    host.files.tree.change("/srv", mode=0o1777)
    before = whole_state(host)
    failed = refusal(host, config)
    why = failed.removeprefix("nothing was changed: ")
    assert f"{MAY_CHANGE}/srv (owner 0, mode 1777)" in why
    assert whole_state(host) == before
    assert_announced(host, config, why)
    assert sweep(host, config).obstacle() == why


def test_objects_that_cannot_be_recorded_stay() -> None:
    """A sweep whose record cannot be written is an error before anything is removed."""
    host = made_host()
    before = whole_state(host)
    task = sweep(host)
    host.files.operations.calls.clear()
    task.do(context())
    write = [call[0] for call in host.files.operations.calls].index("write") + 1
    task.undo(context())
    host.files.fail_at(write)
    assert refused(lambda: task.do(context())) == (
        "nothing was changed: no record of it can be written: cannot use the disk: No space left on device; "
        "see staleCni.backupDir"
    )
    assert whole_state(host) == before
