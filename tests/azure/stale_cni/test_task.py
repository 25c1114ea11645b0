"""CleanStaleCNI on a fake machine: what it removes, when it refuses, and what it leaves for people
who want an entry back.
"""

import logging
from collections.abc import Callable, Sequence

import pytest
from support.memory_links import add_device, add_neighbour
from support.printed import IN_USE
from support.stale_cni_sweeps import (
    CONFLIST,
    DEAD_MAC,
    FOLDER,
    LIVE,
    LIVE_MAC,
    STALE,
    made_host,
    record,
    sweep,
    sweep_now,
    there,
)
from support.stale_cni_worlds import (
    arp_reply,
    config_of,
    context,
    dnat,
    node_of,
    rules_of,
    whole_state,
)

from hostrouting import Host, HostRoutingConfig, Reset
from hostrouting.azure.stale_cni.azure_vnet import ENDPOINTS_PATH, STATE_PATH
from hostrouting.base.findings import LEFT, REFUSED, NodeFinding
from hostrouting.exceptions import (
    BackendError,
    HostRoutingError,
    PermissionDeniedError,
    StaleCNIError,
)
from hostrouting.host import EbtablesRule
from hostrouting.testing import FakeHost
from phases import CancelledError, Change, Context, run

NEW = dnat("10.240.0.12", "aa:bb:cc:00:00:12")


# --- what it removes


#: The backup of the first cleanup.
BACKUP = f"{FOLDER}/sweep-20260101T000001Z-1.sh"
GONE = f"no record of a live pod, bridge port or device has {DEAD_MAC}"


def planned(host: Host, config: HostRoutingConfig | None = None) -> list[Change]:
    """Return the plan of a cleanup."""
    return sweep(host, config).plan(context())


def refusal(
    host: Host,
    config: HostRoutingConfig | None = None,
    *,
    kind: type[HostRoutingError] = StaleCNIError,
) -> str:
    """Return the message of the error that a cleanup of the host raises."""
    with pytest.raises(kind) as caught:
        sweep_now(host, config)
    return str(caught.value)


def test_the_plan_names_each_entry_and_why_it_goes() -> None:
    """The plan has one line with a reason for each stale entry, and changes nothing."""
    host = made_host()
    before = whole_state(host)
    changes = planned(host)
    assert [change.subject for change in changes] == STALE
    assert changes[0] == Change("-", STALE[0], GONE)
    assert whole_state(host) == before


def test_a_check_finds_what_the_plan_removes() -> None:
    """Each stale entry is a finding of the kind `stale-cni`."""
    findings = sweep(made_host()).findings(context())[0]
    assert [finding.subject for finding in findings] == STALE
    assert findings[0] == NodeFinding("stale-cni", STALE[0], GONE, apply="now")


def test_all_stale_entries_go_and_nothing_else() -> None:
    """An apply removes the planned entries, reports each, and leaves all others in their order."""
    host = made_host()
    rules = [rule for rule in host.ebtables.read(context()).rules if str(rule) not in STALE]
    task = sweep(host)
    report = run(task, context())
    assert [(change.action, change.subject) for change in report.changes] == [
        ("-", subject) for subject in STALE
    ]
    assert list(host.ebtables.read(context()).rules) == rules
    assert [each.mac for each in host.link_layer.neighbours()] == ["12:34:56:78:9a:bc", LIVE_MAC]


def test_the_backup_has_the_state_before_and_a_command_for_each_entry() -> None:
    """The backup is a script for root alone, with a command for each removed entry, and the tables
    as comments.
    """
    host = made_host()
    ebtables = host.ebtables.read(context())
    neighbours = host.link_layer.neighbours()
    sweep_now(host)
    assert host.files.names(FOLDER) == [BACKUP.rpartition("/")[2]]
    assert host.files.mode(BACKUP) == 0o600
    lines = (host.files.read(BACKUP) or b"").decode().splitlines()
    commands = [line for line in lines if not line.startswith("#")]
    assert [command.split()[0] for command in commands] == [
        *["ebtables-nft"] * 3,
        "ebtables-legacy",
        *["ip"] * 2,
    ]
    assert commands[1] == f"ebtables-nft -t nat {dnat('10.240.0.9', DEAD_MAC)}"
    text = "\n".join(line.removeprefix("# ") for line in lines if line.startswith("#"))
    for _, saved in ebtables.texts:
        assert saved.strip() in text
    assert "\n".join(map(str, neighbours)) in text


def test_a_second_cleanup_of_one_second_has_a_backup_of_its_own() -> None:
    """No backup replaces another one, though a clock may be set back."""
    host = made_host()
    sweep_now(host)
    host.ebtables.add(NEW)
    sweep_now(host)
    assert host.files.names(FOLDER) == [f"sweep-20260101T000001Z-{number}.sh" for number in (1, 2)]


def test_a_reset_adds_nothing_again() -> None:
    """A reset leaves removed entries removed, and the backup in its place."""
    host = made_host()
    sweep_now(host)
    report = run(Reset(config_of(), host=host), context())
    assert report.ok
    assert there(host) == []
    assert host.files.exists(BACKUP)


def test_identical_rules_go_together() -> None:
    """Each of several identical stale rules is removed and reported."""
    host = made_host()
    host.ebtables.add(NEW)
    host.ebtables.add(NEW)
    changes = run(sweep(host), context()).changes
    assert [change.subject for change in changes].count(f"ebtables nft nat: {NEW}") == 2
    assert NEW not in host.ebtables.lines()


def test_a_clean_node_is_read_once(caplog: pytest.LogCaptureFixture) -> None:
    """A node without leftovers is not waited for, although its image still has azure-vnet's
    configuration, and gets no backup.
    """
    caplog.set_level(logging.INFO)
    host = node_of(FakeHost())
    record(host, {"azv1": [LIVE]}, LIVE_MAC)
    host.files.tree.write(CONFLIST, b'{"type": "azure-vnet"}', mode=0o644)
    before = whole_state(host)
    ctx = context()
    sweep(host).do(ctx)
    assert whole_state(host) == before
    assert ctx.clock.monotonic() == 0
    assert "no stale entries of azure-vnet were found" in caplog.messages


@pytest.mark.parametrize("config", [HostRoutingConfig(), config_of(enabled=False)])
def test_without_the_section_nothing_happens(config: HostRoutingConfig) -> None:
    """A task without an enabled section in the config reads and changes nothing."""
    host = made_host()
    sweep_now(host, config)
    assert planned(host, config) == []
    assert sweep(host, config).findings(context()) == ([], [])
    assert host.ebtables.operations.calls == []


def test_an_image_has_nothing_to_clean_up() -> None:
    """Every verb does nothing in an image."""
    task = sweep(FakeHost(is_live=False))
    task.do(context())
    assert task.plan(context()) == []
    assert task.findings(context()) == ([], [])


# --- refusals


def configure(host: FakeHost) -> str:
    host.files.tree.write(CONFLIST, b'{"plugins": [{"type": "azure-vnet"}]}', mode=0o644)
    return f"{IN_USE}: {CONFLIST} names azure-vnet"


def lock(path: str) -> Callable[[FakeHost], str]:
    def hold(host: FakeHost) -> str:
        host.files.tree.write(path, b"", mode=0o600)
        host.files.tree.locked.add(path)
        return f"{IN_USE}: a process holds the lock {path}"

    return hold


def lock_by_process(host: FakeHost) -> str:
    path = "/var/run/azure-vnet/azure-vnet.lock"
    host.files.tree.write(path, b"4711", mode=0o600)
    host.files.tree.write("/proc/4711/comm", b"azure-vnet\n", mode=0o444)
    return f"{IN_USE}: process 4711 holds the lock {path}"


def expose(host: FakeHost) -> str:
    host.files.tree.make_directory(FOLDER)
    host.files.tree.change("/var/lib", mode=0o1777)
    return f"other users could replace the script that a cleanup writes to {FOLDER}"


OBSTACLES = [
    configure,
    *map(
        lock,
        [
            "/var/run/azure-vnet.json.lock",
            "/var/run/azure-vnet/azure-vnet-ipam.json.lock",
            "/var/run/azure-vnet/azure-vnet.lock",
            "/var/lock/azure-vnet/azure-vnet.json.lock",
            "/var/lock/azure-vnet/any.lock",
        ],
    ),
    lock_by_process,
    expose,
]


@pytest.mark.parametrize("arrange", OBSTACLES)
def test_an_obstacle_is_named_by_cleanup_plan_and_check(
    arrange: Callable[[FakeHost], str],
) -> None:
    """Nothing is removed while azure-vnet is configured, one of its locks of any version is held,
    or others could replace the backup. Plan and check say so beforehand.
    """
    host = made_host()
    why = arrange(host)
    before = whole_state(host)
    assert refusal(host).startswith(why)
    assert whole_state(host) == before
    changes = planned(host)
    assert all(str(change.detail).startswith(f"will be left out: {why}") for change in changes)
    # An optional cleanup fails no apply; a required one does.
    assert {change.kind for change in changes} == {LEFT}
    assert {change.kind for change in planned(host, config_of(required=True))} == {REFUSED}
    findings = sweep(host).findings(context())[0]
    assert [finding.subject for finding in findings] == STALE
    assert all(finding.step.startswith(f"cannot be removed now: {why}") for finding in findings)


def test_locks_of_cns_are_no_sign_of_azure_vnet() -> None:
    """Held locks of CNS, which always runs, prevent nothing."""
    host = made_host()
    for path in (
        "/var/lock/azure-vnet/azure-cns.json.lock",
        "/var/lock/azure-vnet/azure-endpoints.json.lock",
        "/var/run/azure-vnet/azure-endpoints.lock",
    ):
        lock(path)(host)
    sweep_now(host)
    assert there(host) == []


@pytest.mark.parametrize(
    ("path", "content"), [(STATE_PATH, b"{"), (ENDPOINTS_PATH, b'{"Endpoint": {}}')]
)
def test_a_record_that_cannot_be_read_is_a_refusal(path: str, content: bytes) -> None:
    """Nothing is removed, and a check does not pass, if a record of azure-vnet or CNS cannot be
    understood.
    """
    host = made_host()
    host.files.tree.write(path, content, mode=0o600)
    before = whole_state(host)
    assert refusal(host).startswith(f"cannot read azure-vnet's state in {path}: ")
    assert whole_state(host) == before
    with pytest.raises(HostRoutingError, match="cannot read azure-vnet's state"):
        sweep(host).findings(context())


def test_a_device_that_no_record_names_is_a_finding() -> None:
    """Nothing is removed while no record names an azv* device; cleanup, plan and check name it."""
    host = made_host()
    add_device(host.link_layer, "azv7", kind="veth", up=False)
    before = whole_state(host)
    assert "names azv7" in refusal(host)
    assert whole_state(host) == before
    findings, spared = sweep(host).findings(context())
    assert [(each.kind, each.subject, each.severity) for each in findings] == [
        ("stale-cni", "azv7", "warning")
    ]
    assert [str(each.object) for each in spared if "azv7" in each.reason] == STALE
    [change] = planned(host)
    assert "azv7" in str(change.detail)


def between(host: FakeHost, act: Callable[[], object]) -> None:
    """Do something before the second reading."""
    host.ebtables.operations.plan(2, act, of="read")


@pytest.mark.parametrize(
    "act",
    [
        lambda host: host.ebtables.add(NEW),
        lambda host: add_neighbour(host.link_layer, "10.240.0.12", "azure0", DEAD_MAC),
        lambda host: host.ebtables.add(arp_reply("10.240.0.9", DEAD_MAC)),
        lambda host: host.ebtables.delete(context(), rules_of(dnat("10.240.0.9", DEAD_MAC))),
        lambda host: record(host, {"azv1": [LIVE, "10.240.0.9"]}, DEAD_MAC),
        configure,
        lambda host: add_device(host.link_layer, "azv7", kind="veth"),
    ],
    ids=["rule", "neighbour", "twin", "deleted", "record", "configured", "device"],
)
def test_two_readings_that_differ_remove_nothing(act: Callable[[FakeHost], object]) -> None:
    """A node that another program changes between the two readings is left as that program made
    it.
    """
    host = made_host()
    states = []

    def change() -> None:
        act(host)
        states.append(whole_state(host))

    between(host, change)
    refusal(host)
    assert states == [whole_state(host)]


def test_without_privilege_nothing_is_begun(caplog: pytest.LogCaptureFixture) -> None:
    """Without privilege to read the rules, cleanup and check are refused, and a plan leaves them
    out.
    """
    host = made_host()
    host.ebtables.may_read = False
    before = host.link_layer.neighbours(), host.files.tree.snapshot()
    assert "nothing was changed" in refusal(host, kind=PermissionDeniedError)
    with pytest.raises(PermissionDeniedError):
        sweep(host).findings(context())
    assert planned(host) == []
    assert "the cleanup is not planned" in caplog.text
    assert (host.link_layer.neighbours(), host.files.tree.snapshot()) == before


def test_without_a_backup_nothing_is_removed() -> None:
    """A backup that cannot be written is an error before anything is removed."""
    host = made_host()
    before = whole_state(host)
    host.files.fail_at(1, of="write")
    assert refusal(host).startswith("nothing was changed, because no backup can be written: ")
    assert whole_state(host) == before


# --- removals that fail


def test_removals_before_a_failure_are_reported() -> None:
    """If the neighbours cannot be removed, the report has the rules that were, and the backup has
    the commands for them.
    """
    host = made_host()
    host.link_layer.refuse_at(1)
    report = run(sweep(host), context())
    assert "injected fault" in str(report.error)
    assert [change.subject for change in report.changes] == [*STALE[:4], STALE[5]]
    assert there(host) == [STALE[4]]
    assert host.files.exists(BACKUP)


def test_a_refused_deletion_leaves_the_rules() -> None:
    """If ebtables refuses, its words are the error, and what stays is not reported as removed."""
    host = made_host()
    host.ebtables.fail_at(1, BackendError("not deleted: Device or resource busy"), of="delete")
    report = run(sweep(host), context())
    assert "Device or resource busy" in str(report.error)
    assert report.changes == ()
    assert there(host) == STALE


def test_a_cancelled_run_reports_what_it_removed() -> None:
    """A run that is cancelled between rules and neighbours reports the rules."""
    host = made_host()
    delete = host.ebtables.delete

    def cancelled(ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        delete(ctx, rules)
        raise CancelledError("SIGTERM")

    host.ebtables.delete = cancelled  # type: ignore[method-assign]
    report = run(sweep(host), context())
    assert [change.subject for change in report.changes] == STALE[:4]


def test_a_program_that_adds_an_entry_again_is_reported() -> None:
    """An entry that is back at once is an error that names it and the next step."""
    host = made_host()
    host.ebtables.operations.plan(
        3, lambda: host.ebtables.add(dnat("10.240.0.9", DEAD_MAC)), of="read"
    )
    text = refusal(host)
    assert "another program adds them again: 1 of 6" in text
    assert STALE[1] in text
    assert there(host) == [STALE[1]]
