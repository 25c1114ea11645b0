"""The reconciler of a node without stale objects, over a fake node that azure-vnet has left; waiting
takes no time.
"""

import logging
from typing import Any

import attrs
import pytest
from support.printed import IN_USE
from support.stale_cni_sweeps import CONFLIST, DEAD, DEAD_MAC, LIVE, STALE, made_host, there
from support.stale_cni_worlds import config_of, context, dnat, whole_state

from hostrouting.azure.stale_cni.reconciler import StaleObjectReconciler
from hostrouting.boot.installed_config import NewConfig
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.boot.reconciler import InstalledConfig
from hostrouting.testing import FakeHost
from phases import Context, run, task

ANOTHER = dnat("10.240.0.12", "aa:bb:cc:00:00:12")


@attrs.define
class Kept:
    """A reconciler with its node and its time."""

    host: FakeHost
    reconciler: StaleObjectReconciler
    ctx: Context = attrs.field(factory=context)

    def looks(self) -> int:
        """How often the node was read."""
        return len([call for call in self.host.ebtables.operations.calls if call[0] == "read"])

    def acts(self, times: int = 1) -> float:
        """Let the reconciler act and wait as long as it returns, that many times; return the last wait,
        which is not waited for.
        """
        seconds = self.reconciler.act(self.ctx)
        for _ in range(times - 1):
            self.ctx.sleep(seconds)
            seconds = self.reconciler.act(self.ctx)
        return seconds


def kept(host: FakeHost | None = None, **section: Any) -> Kept:
    host = host or made_host()
    logger = logging.getLogger("test")
    return Kept(
        host,
        StaleObjectReconciler(
            host, logger, InstalledConfig(config_of(**section), host.files, logger)
        ),
    )


def named(caplog: pytest.LogCaptureFixture, beginning: str) -> list[str]:
    """Return the objects in the lines that begin so; of one that names no stale object the line."""
    lines = [message for message in caplog.messages if message.startswith(beginning)]
    return [object_in(line.removeprefix(beginning)) for line in lines]


def object_in(line: str) -> str:
    """Return the stale object with which a line begins, or the line."""
    for stale in STALE:
        if line.startswith(stale):
            return stale
    return line


def test_each_object_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each stale object has one line, with the next step, when two looks agree, and the node is not
    changed.
    """
    node = kept()
    before = whole_state(node.host)
    assert node.acts() == 0
    assert named(caplog, "stale: ") == []
    node.acts(6)
    assert named(caplog, "stale: ") == STALE
    step = "hostrouting sweep /etc/aks-flex-node/hostrouting.json"
    lines = [record for record in caplog.records if record.getMessage().startswith("stale")]
    assert all(line.getMessage().endswith(f"run: {step}") for line in lines)
    assert {vars(line)["command"] for line in lines} == {step}
    assert whole_state(node.host) == before
    assert not node.host.lock.operations.calls


def test_objects_that_go_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """A stale object that another program deletes has one line more, and is named again if it comes
    back.
    """
    caplog.set_level(logging.INFO)
    node = kept()
    node.acts(2)
    gone = next(rule for rule in node.host.ebtables.read(Context()).rules if str(rule) == STALE[1])
    node.host.ebtables.delete(Context(), [gone])
    node.acts(2)
    assert named(caplog, "no longer stale: ") == [STALE[1]]
    node.host.ebtables.add(dnat(DEAD, DEAD_MAC))
    node.acts(3)
    assert named(caplog, "stale: ") == [*STALE, STALE[1]]


def test_objects_for_a_moment_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    """An object that is stale at a single look is not named, since azure-vnet removes the rules of
    a pod soon after its device.
    """
    node = kept()
    node.acts(2)
    caplog.clear()
    node.host.ebtables.add(ANOTHER)
    node.ctx.sleep(2)
    node.acts()
    added = next(
        rule for rule in node.host.ebtables.read(Context()).rules if "10.240.0.12" in str(rule)
    )
    node.host.ebtables.delete(Context(), [added])
    node.acts(3)
    assert [message for message in caplog.messages if "10.240.0.12" in message] == []


def test_stale_objects_are_removed(caplog: pytest.LogCaptureFixture) -> None:
    """A sweep removes all stale objects in one act, with a line each and a backup, and leaves the
    rules of a live pod.
    """
    node = kept(sweep="clean")
    node.acts()
    assert there(node.host) == []
    assert named(caplog, "removed: ") == STALE
    assert any(LIVE in str(rule) for rule in node.host.ebtables.read(Context()).rules)
    assert len(node.host.files.names("/var/lib/hostrouting/stale-cni")) == 1


def test_a_run_keeps_no_list_of_the_sweeps() -> None:
    """What a watch sweeps is not in the report of its run, which may last for a year."""
    node = kept(sweep="clean")
    report = run(task("watch")(node.reconciler.act), node.ctx)
    assert report.error is None
    assert report.changes == ()
    assert there(node.host) == []


def test_without_stale_objects_nothing_is_locked() -> None:
    """A look at a node without stale objects reads it once, and does not take the run lock."""
    node = kept(sweep="clean")
    node.acts()
    node.host.lock.operations.calls.clear()
    before = node.looks()
    node.ctx.sleep(5)
    node.acts()
    assert node.looks() == before + 1
    assert node.host.lock.operations.calls == []


def test_while_azure_vnet_is_configured(caplog: pytest.LogCaptureFixture) -> None:
    """Stale objects stay and are named with the reason while azure-vnet is configured; a look after
    that removes them.
    """
    node = kept(sweep="clean")
    node.host.files.write(CONFLIST, b'{"plugins": [{"type": "azure-vnet"}]}', mode=0o644)
    node.acts(3)
    assert named(caplog, "stale: ") == STALE
    assert caplog.text.count(f"cannot be removed now: {IN_USE}") == len(STALE)
    assert not any(hasattr(record, "command") for record in caplog.records)
    assert there(node.host) == STALE
    node.host.files.remove(CONFLIST)
    node.ctx.sleep(node.acts())
    node.acts()
    assert there(node.host) == []


def test_the_config_is_read_under_the_lock() -> None:
    """A reconciler removes nothing if the installed config only reports."""
    node = kept(sweep="clean")
    text = '{"hostRouting": {"staleCni": {"enabled": true, "podCidrs": ["10.240.0.0/16"]}}}'
    node.host.files.write(CONFIG_PATH, text.encode(), mode=0o644)
    before = whole_state(node.host)
    node.acts(2)
    assert whole_state(node.host) == before


def test_after_a_reset_nothing_is_removed() -> None:
    """A reconciler removes nothing if a reset came between its look and the lock."""
    host = made_host()
    host.files.write(
        CONFIG_PATH, NewConfig(config=config_of(sweep="clean")).file.content, mode=0o644
    )
    node = kept(host, sweep="clean")
    host.files.remove(CONFIG_PATH)
    node.acts()
    assert there(host) == STALE


def test_a_program_that_adds_them_again(caplog: pytest.LogCaptureFixture) -> None:
    """An object that comes back is left after three sweeps within an hour, with one error, and is
    swept again an hour later.
    """
    node = kept(sweep="clean")
    for _ in range(5):
        node.acts()
        node.ctx.sleep(61)
        if STALE[1] not in there(node.host):
            node.host.ebtables.add(dnat(DEAD, DEAD_MAC))
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [f"'{STALE[1]}' came back after 3 sweeps" in error for error in errors] == [True]
    assert STALE[1] in there(node.host)
    node.ctx.sleep(3600)
    node.acts()
    assert STALE[1] not in there(node.host)
