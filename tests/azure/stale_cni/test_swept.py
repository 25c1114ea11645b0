"""`hostrouting sweep`: its reports for people and programs, and its exit status."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

import pytest
from support.kernel import connect, powerless
from support.memory_links import add_device
from support.needs import needs
from support.patience import at_once
from support.printed import IN_USE
from support.stale_cni_sweeps import record
from support.stale_cni_worlds import arp_reply, config_of, context, dnat, node_of, whole_state

from hostrouting import CleanStaleCNI, HostRoutingConfig, check_node
from hostrouting.azure.stale_cni.sweep_report import SweepReport, sweep_node
from hostrouting.boot.installed_config import NOT_INSTALLED
from hostrouting.cli import parsed
from hostrouting.exceptions import InvalidConfigError, LockHeldError
from hostrouting.host import EbtablesRule, Host
from hostrouting.node.status import verdict_now
from hostrouting.testing import FakeHost, KernelNode
from phases import Context

DEAD = "10.240.0.9"
DEAD_MAC = "aa:bb:cc:00:00:09"
LIVE = "10.240.0.10"
LIVE_MAC = "aa:bb:cc:00:00:10"
FOREIGN = "-A PREROUTING -p IPv4 -i eth1 -j mark --mark-set 0x1 --mark-target ACCEPT"
WHY = f"no record of a live pod, bridge port or device has {DEAD_MAC}"
RULES = [
    f"ebtables nft nat: {arp_reply(DEAD, DEAD_MAC)}",
    f"ebtables nft nat: {dnat(DEAD, DEAD_MAC)}",
]
OTHER_RULES = "it is not one of the rules that azure-vnet adds for a pod"


def made_host() -> FakeHost:
    """A node with a live pod, a dead one, and a rule that is not azure-vnet's."""
    host = node_of(FakeHost())
    host.files.tree.make_directory("/var/lib")
    for line in arp_reply(DEAD, DEAD_MAC), dnat(DEAD, DEAD_MAC), dnat(LIVE, LIVE_MAC), FOREIGN:
        host.ebtables.add(line)
    record(host, {"azv1": [LIVE]}, LIVE_MAC)
    return host


def lines_of(report: SweepReport, *, verbose: bool = False) -> list[str]:
    return list(report.lines(verbose=verbose))


def test_removed_entries_are_reported_by_reason_with_the_backup() -> None:
    """A report prints removed entries under their shared reason. Its JSON has the command that adds
    each one again, and the entries that were left alone.
    """
    host = made_host()
    report = sweep_node(context(), config_of(), host)
    backup = (host.files.read(str(report.backup)) or b"").decode().splitlines()
    assert lines_of(report) == [
        f"{WHY}:",
        *(f"  - {rule}" for rule in RULES),
        f"removed 2 stale entries; `sh {report.backup}` adds them again",
        "left alone: 1 of live pods, 3 of the node, 1 not understood (-v lists them)",
    ]
    assert f"  = ebtables nft nat: {FOREIGN}: {OTHER_RULES}" in lines_of(report, verbose=True)
    answer = report.to_mapping()
    assert json.loads(json.dumps(answer)) == answer
    assert answer["ok"] is True
    assert answer["dry_run"] is False
    assert answer["backup"] == report.backup
    assert [(each["object"], each["reason"]) for each in answer["removed"]] == [
        (rule, WHY) for rule in RULES
    ]
    commands = [each["restore"] for each in answer["removed"]]
    assert commands[0] == f"ebtables-nft -t nat {arp_reply(DEAD, DEAD_MAC)}"
    assert [line for line in backup if not line.startswith("#")] == commands
    assert answer["unknown"] == [
        {
            "object": f"ebtables nft nat: {FOREIGN}",
            "address": None,
            "kind": "unknown",
            "reason": OTHER_RULES,
        }
    ]
    assert [(each["kind"], each["address"]) for each in answer["spared"]] == [
        ("node", "10.240.0.4"),
        ("node", None),
        ("live", LIVE),
        ("node", None),
    ]


def test_a_device_that_no_record_names_is_in_the_report() -> None:
    """A forecast says which device keeps everything unknown, and is not ok."""
    host = made_host()
    add_device(host.link_layer, "azv7", kind="veth")
    report = sweep_node(context(), config_of(), host, dry_run=True)
    assert not report.ok
    assert report.verdict.startswith("nothing can be removed: no record of azure-vnet or CNS names")
    assert "azv7" in report.verdict
    assert report.changes == ()


def test_a_check_lists_the_objects_left_alone_in_its_json() -> None:
    """The JSON of a check has the objects that a sweep leaves alone, with their reasons, and does not have
    the key if there are none.
    """
    host = made_host()
    config = config_of()
    expected = sweep_node(context(), config, made_host(), dry_run=True).to_mapping()
    answer = check_node(context(), config, host).to_mapping()
    by_object = itemgetter("object")
    assert sorted(answer["spared"], key=by_object) == sorted(
        expected["spared"] + expected["unknown"], key=by_object
    )
    assert "spared" not in check_node(context(), HostRoutingConfig(), host).to_mapping()


def test_a_run_leaves_nothing_on_its_task() -> None:
    """A run leaves no state on its task, which may run twice: a later verdict reads the node."""
    host = made_host()
    config = config_of()
    task = CleanStaleCNI(config, host=host)
    before = {**vars(task)}
    task.do(context())
    assert vars(task) == before
    report = verdict_now(context(), host, config)
    assert report.absence == NOT_INSTALLED
    assert [*report.check.spared] == check_node(context(), config, host).to_mapping()["spared"]


def test_a_dry_run_changes_nothing_and_lists_stale_objects() -> None:
    """A dry run changes nothing, and shows if a sweep would be refused."""
    host = made_host()
    before = whole_state(host)
    report = sweep_node(context(), config_of(), host, dry_run=True)
    assert whole_state(host) == before
    assert report.ok
    assert lines_of(report)[-2] == "would remove 2 stale entries"
    assert [each["object"] for each in report.to_mapping()["would_remove"]] == RULES
    assert "removed" not in report.to_mapping()
    host.files.tree.write("/etc/cni/net.d/10-azure.conflist", b'{"type": "azure-vnet"}', mode=0o644)
    report = sweep_node(context(), config_of(), host, dry_run=True)
    why = f"{IN_USE}: /etc/cni/net.d/10-azure.conflist names azure-vnet"
    assert not report.ok
    assert report.to_mapping()["obstacle"] == why
    assert lines_of(report)[-2] == f"would remove 2 stale entries; will be refused: {why}"


def test_a_clean_node_is_reported_as_clean() -> None:
    """A sweep of a node without leftovers is fine, with a dry run and without."""
    for dry_run in False, True:
        report = sweep_node(context(), config_of(), node_of(FakeHost()), dry_run=dry_run)
        assert report.ok
        assert lines_of(report) == [
            "no stale entries of azure-vnet were found",
            "left alone: 3 of the node (-v lists them)",
        ]


def test_a_refusal_is_reported_with_the_findings() -> None:
    """A refused sweep is an error of the report, without removed objects or a record."""
    host = made_host()
    host.files.tree.write("/etc/cni/net.d/10-azure.conflist", b'{"type": "azure-vnet"}', mode=0o644)
    report = sweep_node(context(), config_of(), host)
    answer = report.to_mapping()
    assert not report.ok
    assert answer["ok"] is False
    assert answer["removed"] == []
    assert answer["backup"] is None
    assert "10-azure.conflist names azure-vnet. Nothing was changed;" in answer["error"]
    assert lines_of(report) == [
        "left alone: 1 of live pods, 3 of the node, 1 not understood (-v lists them)"
    ]


def test_a_signal_has_its_own_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleanup that SIGTERM ends has the exit status 143, and reports the rules that it removed."""
    host = made_host()
    delete = host.ebtables.delete

    def signalled(ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        delete(ctx, rules)
        signal.raise_signal(signal.SIGTERM)
        ctx.check()

    host.ebtables.delete = signalled  # type: ignore[method-assign]
    monkeypatch.setattr(Host, "live", lambda: host)
    monkeypatch.setattr(HostRoutingConfig, "from_file", lambda *_, **__: config_of())
    arguments = parsed(["sweep", "given.json"])
    assert arguments.chosen.run(arguments) == 143
    assert DEAD_LINE not in host.ebtables.lines()


@pytest.mark.parametrize("config", [HostRoutingConfig(), config_of(enabled=False)])
def test_without_the_section_the_error_shows_how_to_add_it(config: HostRoutingConfig) -> None:
    """The command without an enabled section in the config is an error that shows the line to
    write.
    """
    with pytest.raises(InvalidConfigError, match="is not true; write") as caught:
        sweep_node(context(), config, made_host())
    assert [error.path for error in caught.value.errors] == ["hostRouting.staleCni.enabled"]


def test_one_run_at_a_time() -> None:
    """A sweep waits for the run lock, as every run does that changes something."""
    host = made_host()
    with host.lock.hold(Context()), pytest.raises(LockHeldError):
        sweep_node(at_once(1), config_of(), host)
    assert sweep_node(context(), config_of(), host).ok


# --- the command

OWN_FILES = [
    *("unshare", "--mount", "sh", "-c"),
    'for d in /run /var/lib; do mount -t tmpfs -o mode=755 none $d; done; exec "$@"',
    "sh",
]
DEAD_LINE = dnat(DEAD, DEAD_MAC)


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        connect(node, eth0="10.224.0.4/16")
        node.run("ebtables-nft", "-t", "nat", *DEAD_LINE.split())
        yield node


def command(
    node: KernelNode, *words: str, prefix: Sequence[str] = OWN_FILES
) -> subprocess.CompletedProcess[str]:
    entering = ["nsenter", f"--net=/run/netns/{node.name}", *prefix]
    argv = [*entering, sys.executable, "-m", "hostrouting", "sweep", *words]
    return subprocess.run(argv, check=False, text=True, capture_output=True)


def written(folder: Path, **section: object) -> str:
    path = folder / "sweep.json"
    path.write_text(
        json.dumps({"hostRouting": {"staleCni": {"podCidrs": ["10.240.0.0/16"], **section}}})
    )
    return str(path)


@needs("kernel", "ebtables-nft")
def test_the_command_lists_stale_objects_and_removes_them(node: KernelNode, tmp_path: Path) -> None:
    """The command ends with 0 for a forecast, or with 4 with --exit-code, and with 0 for a sweep,
    after which nothing is stale.
    """
    config = written(tmp_path, enabled=True)
    forecast = command(node, "--dry-run", config)
    assert forecast.returncode == 0
    assert forecast.stdout == f"{WHY}:\n  - {RULES[1]}\nwould remove 1 stale entry\n"
    assert command(node, "--dry-run", "--exit-code", config).returncode == 4
    done = command(node, "--json", "--exit-code", config)
    answer = json.loads(done.stdout)
    # The result once, in the answer; the log of tasks needs -v.
    assert done.stderr == ""
    assert done.returncode == 0
    assert answer["ok"] is True
    restore = f"ebtables-nft -t nat {DEAD_LINE}"
    assert answer["removed"] == [{"object": RULES[1], "reason": WHY, "restore": restore}]
    assert answer["backup"].startswith("/var/lib/hostrouting/stale-cni/sweep-")
    again = command(node, "--dry-run", "--exit-code", config)
    assert again.returncode == 0
    assert again.stdout == "no stale entries of azure-vnet were found\n"
    for done in command(node, config), command(node, "-v", config):
        assert ("completed task=clean-stale-cni" in done.stderr) == ("-v" in done.args)
        assert (done.stdout + done.stderr).count("no stale entries of azure-vnet were found") == 1


@needs("kernel", "ebtables-nft")
def test_how_the_command_ends(node: KernelNode, tmp_path: Path) -> None:
    """The command ends with 2 for a config without a sweep, and with 3 without privilege."""
    refused = command(node, "--json", written(tmp_path, enabled=False))
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["errors"][0]["path"] == "hostRouting.staleCni.enabled"
    config = written(tmp_path, enabled=True)
    powerless_run = command(node, config, prefix=[*OWN_FILES, *powerless()])
    assert powerless_run.returncode == 3
    assert powerless_run.stdout == ""
    assert "nothing was changed" in powerless_run.stderr
    assert DEAD_LINE in [line.strip() for line in node.run("ebtables-nft-save").splitlines()]
