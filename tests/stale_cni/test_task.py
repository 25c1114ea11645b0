"""CleanStaleCNI on a fake machine: what goes and what stays, refusals, every way to fail, and the way back."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest
from support.stale_cni_worlds import (
    NODE_RULES,
    arp_reply,
    cns_state_of,
    config_of,
    context,
    dnat,
    node_of,
    whole_state,
    write_state,
)

from hostrouting.config import HostRoutingConfig
from hostrouting.exceptions import (
    BackendError,
    HostRoutingError,
    PermissionDeniedError,
    RouteRejectedError,
    StaleCNIError,
)
from hostrouting.findings import NodeFinding, is_refused
from hostrouting.host import ObservedRoute
from hostrouting.stale_cni import CleanStaleCNI, check_stale_cni
from hostrouting.stale_cni.backup import write_backup
from hostrouting.stale_cni.state import ENDPOINTS_PATH, STATE_PATH
from hostrouting.testing import FakeHost
from phases import CancelledError, Change, Context, DeadlineExceededError, Plannable, Serial, Task, Undoable, run
from phases.context import Scope
from phases.testing import FailingTask, ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.host import Host

DEAD, DEAD_MAC = "10.240.0.9", "aa:bb:cc:00:00:09"
DEAD6 = "fd00:10:240::9"
LIVE, LIVE_MAC = "10.240.0.10", "aa:bb:cc:00:00:10"
FOREIGN = "-A PREROUTING -p IPv4 -i eth1 -j mark --mark-set 0x1 --mark-target ACCEPT"
FOLDER = "/var/lib/hostrouting/stale-cni"
BACKUP = f"{FOLDER}/sweep-20260101T000001Z-1.json"

LINES = (
    dnat(LIVE, LIVE_MAC),
    *NODE_RULES[1:],
    arp_reply(DEAD, DEAD_MAC),
    FOREIGN,
    dnat(DEAD, DEAD_MAC),
    arp_reply(LIVE, LIVE_MAC),
    dnat(DEAD6, DEAD_MAC),
)
#: What a sweep of the machine below takes away, in the order of the plan.
STALE = [
    f"ebtables nft nat: {arp_reply(DEAD, DEAD_MAC)}",
    f"ebtables nft nat: {dnat(DEAD, DEAD_MAC)}",
    f"ebtables nft nat: {dnat(DEAD6, DEAD_MAC)}",
    f"ebtables legacy nat: {dnat(DEAD, DEAD_MAC)}",
    f"{DEAD} dev azure0 lladdr {DEAD_MAC} PERMANENT",
    f"{DEAD6} dev azure0 lladdr {DEAD_MAC} PERMANENT",
    "10.240.0.11 dev azv1 scope link",
    "fd00:10:240::11 dev azv1 metric 1024",
]

#: The same in the order in which it comes back.
PUT_BACK = [STALE[6], *STALE[4:6], STALE[7], *STALE[:4]]


def made_host() -> FakeHost:
    """A node with a live pod, a dead one in both backends and families, and dead transparent mode's routes."""
    host = FakeHost()
    host.files.tree.make_directory("/var/lib")
    node_of(host)
    for line in LINES:
        host.ebtables.add(line)
    host.ebtables.add(dnat(DEAD, DEAD_MAC), backend="legacy")
    layer = host.link_layer
    layer.learn(LIVE_MAC, "azv1")
    layer.add_neighbour(LIVE, "azure0", LIVE_MAC)
    layer.add_neighbour(DEAD, "azure0", DEAD_MAC)
    layer.add_neighbour(DEAD6, "azure0", DEAD_MAC)
    layer.add_neighbour("10.240.0.1", "azure0", "12:34:56:78:9a:bc", permanent=False)
    host.routes.add_route("10.240.0.11/32", dev="azv1")
    layer.add_route("fd00:10:240::11/128", "azv1")
    return host


def sweep(host: Host, config: HostRoutingConfig | None = None) -> CleanStaleCNI:
    return CleanStaleCNI(config or config_of(), host=host)


def there(host: FakeHost) -> list[str]:
    """Of all that is stale, what is there."""
    return [change.subject for change in sweep(host).plan(context())]


def refused(act: Callable[[], object], kind: type[HostRoutingError] = StaleCNIError) -> str:
    with pytest.raises(kind) as caught:
        act()
    return str(caught.value)


def test_it_is_a_task_with_all_abilities() -> None:
    """It can be planned and undone, and has upstream's sort of name."""
    task = sweep(FakeHost())
    assert isinstance(task, Task)
    assert isinstance(task, Plannable)
    assert isinstance(task, Undoable)
    assert task.name == "clean-stale-cni"


# --- what goes and what stays


def test_only_what_is_stale_goes() -> None:
    """Rules of both backends and families, neighbours and routes of dead pods go; nothing else does."""
    host = made_host()
    sweep(host).do(context())
    kept = (*NODE_RULES, dnat(LIVE, LIVE_MAC), *NODE_RULES[1:], FOREIGN, arp_reply(LIVE, LIVE_MAC))
    assert sorted(host.ebtables.lines()) == sorted(kept)
    assert host.ebtables.lines("legacy") == []
    assert [str(neighbour) for neighbour in host.link_layer.neighbours()] == [
        "10.240.0.1 dev azure0 lladdr 12:34:56:78:9a:bc",
        f"{LIVE} dev azure0 lladdr {LIVE_MAC} PERMANENT",
    ]
    assert [str(route) for route in host.routes.routes() if route.prefix_length == 32 and route.table == 254] == []
    assert "azv1" not in [route.dev for route in host.link_layer.routes()]


def test_the_plan_names_each_object_and_why_it_goes() -> None:
    """Every line of the plan is one object that `do` takes away, and there is no other."""
    host = made_host()
    before = whole_state(host)
    changes = sweep(host).plan(context())
    assert [change.subject for change in changes] == STALE
    assert changes[0] == Change("-", STALE[0], f"no live endpoint of azure-vnet has {DEAD}")
    assert whole_state(host) == before


def test_a_check_finds_what_the_plan_would_take_away() -> None:
    """Each stale object is a finding of the kind `stale-cni`."""
    host = made_host()
    findings = check_stale_cni(context(), config_of(), host)
    assert [finding.subject for finding in findings] == STALE
    why = f"no live endpoint of azure-vnet has {DEAD}"
    assert findings[0] == NodeFinding("stale-cni", STALE[0], f"{why}; run: hostrouting apply CONFIG")


def test_a_check_says_what_keeps_the_sweep_from_work() -> None:
    """While azure-vnet is configured nobody is sent to run what would be refused."""
    host = made_host()
    host.files.tree.write("/etc/cni/net.d/10-azure.conflist", b'{"type": "azure-vnet"}', mode=0o644)
    (finding, *_) = check_stale_cni(context(), config_of(), host)
    assert finding.reason == (
        f"no live endpoint of azure-vnet has {DEAD}; cannot be taken away now, "
        "for azure-vnet is still in use: /etc/cni/net.d/10-azure.conflist names azure-vnet"
    )


def test_without_privilege_no_check_says_that_all_is_well() -> None:
    """Rules that could not be read may be stale; but what was found all the same is told."""
    host = made_host()
    host.ebtables.may_read = False
    assert {each.kind for each in check_stale_cni(context(), config_of(), host)} == {"stale-cni"}
    bare = FakeHost()
    bare.ebtables.may_read = False
    with pytest.raises(PermissionDeniedError, match="cannot be told without root"):
        check_stale_cni(context(), config_of(), bare)


def test_without_privilege_nothing_is_begun() -> None:
    """Half of a sweep would be none: refused before anything is written or deleted."""
    host = made_host()
    host.ebtables.may_read = False
    before = whole_state(host)
    with pytest.raises(PermissionDeniedError, match="nothing was changed"):
        sweep(host).do(context())
    assert whole_state(host) == before


def test_every_reading_finds_the_same_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """A plan, two readings and a last look do not make four warnings of one."""
    host = made_host()
    host.ebtables.notes.append("ebtables (legacy) is not installed")
    task = sweep(host)
    with caplog.at_level("INFO"):
        task.plan(context())
        task.do(context())
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count("ebtables rules may go unseen: ebtables (legacy) is not installed") == 1


def test_the_state_of_azure_vnet_protects() -> None:
    """A pod that has an endpoint with an existing device keeps everything."""
    host = made_host()
    host.link_layer.learn(DEAD_MAC, "azv1")
    write_state(host, {"azv1": [DEAD, DEAD6, "10.240.0.11", "fd00:10:240::11"]})
    assert there(host) == []


def test_who_answers_when_asked_keeps_everything() -> None:
    """A pod that has been silent for long is known to nobody: it is asked before its route is taken for stale."""
    host = made_host()
    host.link_layer.alive = {("azv1", "10.240.0.11"), ("azv1", "fd00:10:240::11")}
    sweep(host).do(context())
    assert [str(route) for route in host.routes.routes() if route.dev == "azv1"] == ["10.240.0.11 dev azv1 scope link"]
    assert [str(route) for route in host.link_layer.routes()] == ["fd00:10:240::11 dev azv1 metric 1024"]
    assert dnat(DEAD, DEAD_MAC) not in host.ebtables.lines()


def test_who_may_not_ask_plans_but_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Without privilege nobody is called stale who may only be silent: a plan says so, check and run are refused."""
    host = made_host()
    before = whole_state(host)
    host.link_layer.may_probe = False
    assert there(host) == []
    assert caplog.messages[0] == (
        "asking on the link who has an address needs root or CAP_NET_RAW; nobody was asked; so pods that have been "
        "silent for long cannot be told from those gone"
    )
    assert "cannot be asked without CAP_NET_RAW" in caplog.messages[1]
    with pytest.raises(PermissionDeniedError, match="cannot be told without root"):
        check_stale_cni(context(), config_of(), host)
    refused(lambda: sweep(host).do(context()), PermissionDeniedError)
    assert whole_state(host) == before


def test_a_second_run_does_nothing() -> None:
    """Nothing stale is left, so nothing is changed, and nothing is written down."""
    host = made_host()
    sweep(host).do(context())
    after = whole_state(host)
    sweep(host).do(context())
    assert whole_state(host) == after


def test_a_clean_node_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Without leftovers one reading is enough, and there is no record."""
    caplog.set_level(logging.INFO)
    host = node_of(FakeHost())
    before = whole_state(host)
    ctx = context()
    sweep(host).do(ctx)
    assert (whole_state(host), ctx.clock.monotonic()) == (before, 0)
    assert "nothing stale of azure-vnet was found" in caplog.messages


@pytest.mark.parametrize("config", [HostRoutingConfig(), config_of(enabled=False)])
def test_who_does_not_ask_gets_nothing(config: HostRoutingConfig) -> None:
    """Without the section nothing is read, changed or put back."""
    host = made_host()
    sweep(host).do(context())
    after = whole_state(host)
    calls = len(host.ebtables.operations.calls)
    sweep(host, config).do(context())
    assert (sweep(host, config).plan(context()), check_stale_cni(context(), config, host)) == ([], [])
    assert len(host.ebtables.operations.calls) == calls
    assert whole_state(host) == after


def test_an_image_has_nothing_to_sweep() -> None:
    """Where there is no kernel, every verb does nothing."""
    host = FakeHost(is_live=False)
    task = sweep(host)
    task.do(context())
    task.undo(context())
    assert (task.plan(context()), task.plan_undo(context()), check_stale_cni(context(), config_of(), host)) == (
        [],
        [],
        [],
    )


# --- what is said


def test_what_is_not_understood_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Each unknown object is a warning, with its reason, once, however many readings find it."""
    caplog.set_level(logging.DEBUG)
    host = made_host()
    host.link_layer.add_neighbour("192.168.0.9", "azure0", DEAD_MAC)
    sweep(host).do(context())
    left = [record for record in caplog.records if "is left alone" in record.getMessage()]
    said = [record for record in left if record.levelname != "DEBUG"]
    assert {record.levelname for record in said} == {"WARNING"}
    assert len(said) == 2
    told = {(record.kind, record.address) for record in left if record.levelname == "DEBUG"}  # type: ignore[attr-defined]
    assert told == {("node", None), ("node", "10.240.0.4"), ("live", LIVE)}
    assert {record.object: record.reason for record in said} == {  # type: ignore[attr-defined]
        f"ebtables nft nat: {FOREIGN}": "it is none of the rules that azure-vnet makes for a pod",
        f"192.168.0.9 dev azure0 lladdr {DEAD_MAC} PERMANENT": "192.168.0.9 is outside podCidrs",
    }


def test_of_many_that_are_not_understood_the_first_ten_are_shown(caplog: pytest.LogCaptureFixture) -> None:
    """The rest is a number, and is there at the level of -v."""
    caplog.set_level(logging.DEBUG)
    host = made_host()
    for number in range(30):
        host.ebtables.add(f"-A PREROUTING -p IPv4 -i eth{number} -j ACCEPT")
    task = sweep(host)
    task.plan(context())
    task.do(context())
    left = [record for record in caplog.records if "is left alone" in record.getMessage()]
    levels = [record.levelname for record in left if record.kind == "unknown"]  # type: ignore[attr-defined]
    assert (levels.count("WARNING"), levels.count("DEBUG")) == (10, 21)
    assert caplog.messages.count("and 21 more are left alone (shown by -v)") == 1


def test_what_could_not_be_seen_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """It says once which rules it cannot see, and takes away what it can."""
    caplog.set_level(logging.INFO)
    host = made_host()
    host.ebtables.notes.append("ebtables (legacy) is not installed")
    sweep(host).do(context())
    assert caplog.messages.count("ebtables rules may go unseen: ebtables (legacy) is not installed") == 1
    assert there(host) == []


def test_progress_is_there_for_who_draws_it(caplog: pytest.LogCaptureFixture) -> None:
    """Each batch of rules is told with the number that is done and the number of all."""
    caplog.set_level(logging.INFO)
    host = made_host()
    task = sweep(host)
    task.do(context())
    task.undo(context())
    told = [(record.getMessage(), record.progress) for record in caplog.records if hasattr(record, "progress")]
    assert told == [("4 of 4 ebtables rules deleted", (4, 4)), ("4 of 4 ebtables rules put back", (4, 4))]


# --- refusals


def test_it_refuses_while_azure_vnet_is_configured() -> None:
    """Nothing is changed; the error names the file and the ways out."""
    host = made_host()
    host.files.tree.write("/etc/cni/net.d/10-azure.conflist", b'{"plugins": [{"type": "azure-vnet"}]}', mode=0o644)
    before = whole_state(host)
    assert refused(lambda: sweep(host).do(context())) == (
        "azure-vnet is still in use: /etc/cni/net.d/10-azure.conflist names azure-vnet. Nothing was changed. Remove "
        "azure-vnet first; staleCni.force (its switches conflist and lock) cleans all the same, if you know that no "
        "pod of it is alive"
    )
    assert whole_state(host) == before
    assert {change.detail for change in sweep(host).plan(context())} == {
        f"no live endpoint of azure-vnet has {address}; will be refused: azure-vnet is still in use: "
        "/etc/cni/net.d/10-azure.conflist names azure-vnet"
        for address in (DEAD, DEAD6, "10.240.0.11", "fd00:10:240::11")
    }
    # An optional sweep fails no apply, so the plan as a whole is none that will be refused; a required one does.
    assert not any(is_refused(change.detail) for change in sweep(host).plan(context()))
    assert all(is_refused(change.detail) for change in sweep(host, config_of(required=True)).plan(context()))


def test_there_is_nothing_to_refuse_where_nothing_is_stale() -> None:
    """An image that still carries azure-vnet's configuration, on a node without leftovers, is fine."""
    host = made_host()
    sweep(host).do(context())
    host.files.tree.write("/etc/cni/net.d/10-azure.conflist", b'{"plugins": [{"type": "azure-vnet"}]}', mode=0o644)
    host.files.tree.write("/var/run/azure-vnet.json", b"", mode=0o600)
    sweep(host).do(context())
    assert there(host) == []


def test_it_refuses_while_the_lock_is_held() -> None:
    """azure-vnet is making, or taking away, a pod at this moment."""
    host = made_host()
    lock = "/var/run/azure-vnet.json.lock"
    host.files.tree.write(lock, b"", mode=0o600)
    host.files.tree.locked.add(lock)
    assert f"a process holds the lock {lock}" in refused(lambda: sweep(host).do(context()))
    host.files.tree.locked.clear()
    sweep(host).do(context())
    assert there(host) == []


def test_it_refuses_when_azure_vnet_shows_up_between_readings() -> None:
    """Configuration and locks are looked at before and after each reading."""
    host = made_host()
    path = "/etc/cni/net.d/10-azure.conflist"

    def somebody() -> None:
        host.files.tree.write(path, b'{"type": "azure-vnet"}', mode=0o644)

    host.ebtables.on_read = somebody
    refused(lambda: sweep(host).do(context()))
    assert there(host) == STALE


def test_force_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever knows better may clean all the same; it is said once."""
    host = made_host()
    host.files.tree.write("/etc/cni/net.d/10-azure.conflist", b'{"type": "azure-vnet"}', mode=0o644)
    config = config_of(force={"conflist": True})
    assert next(change.detail for change in sweep(host, config).plan(context())) == (
        f"no live endpoint of azure-vnet has {DEAD}"
    )
    sweep(host, config).do(context())
    assert there(host) == []
    assert [message for message in caplog.messages if message.startswith("going on, as staleCni.force asks")] == [
        (
            "going on, as staleCni.force asks: azure-vnet is still in use: "
            "/etc/cni/net.d/10-azure.conflist names azure-vnet"
        )
    ]


LOCKS = [
    "/var/run/azure-vnet.json.lock",
    "/var/run/azure-vnet/azure-vnet-ipam.json.lock",
    "/var/run/azure-vnet/azure-vnet.lock",
    "/var/lock/azure-vnet/azure-vnet.json.lock",
    "/var/lock/azure-vnet/any.lock",
]


@pytest.mark.parametrize("lock", LOCKS)
def test_it_refuses_while_a_lock_of_any_version_is_held(lock: str) -> None:
    """From 1.4.16 on it is one lock, 1.4.5 had a folder of them; an older one is its file, with a process id in it."""
    host = made_host()
    host.files.tree.write(lock, b"", mode=0o600)
    host.files.tree.locked.add(lock)
    before = whole_state(host)
    assert f"azure-vnet is still in use: a process holds the lock {lock}. " in refused(
        lambda: sweep(host).do(context())
    )
    assert whole_state(host) == before
    host.files.tree.locked.clear()
    host.files.tree.write(lock, b"4711", mode=0o600)
    host.files.tree.write("/proc/4711/comm", b"azure-vnet\n", mode=0o444)
    assert f"process 4711 holds the lock {lock}" in refused(lambda: sweep(host).do(context()))
    host.files.tree.write(lock, b"4712", mode=0o600)
    sweep(host).do(context())
    assert there(host) == []


def test_locks_of_cns_are_no_sign_of_azure_vnet() -> None:
    """It runs for ever, and gives addresses to Cilium's pods, too."""
    host = made_host()
    for lock in "/var/lock/azure-vnet/azure-cns.json.lock", "/var/run/azure-vnet/azure-endpoints.lock":
        host.files.tree.write(lock, b"", mode=0o600)
        host.files.tree.locked.add(lock)
    sweep(host).do(context())
    assert there(host) == []


@pytest.mark.parametrize(
    ("force", "refusal"),
    [
        ({"conflist": True}, f"a process holds the lock {LOCKS[2]}"),
        ({"lock": True}, "/etc/cni/net.d/10-azure.conflist names azure-vnet"),
        ({"conflist": True, "lock": True}, None),
    ],
)
def test_each_switch_of_force_overlooks_one_thing(force: dict[str, bool], refusal: str | None) -> None:
    """A conflist that nobody reads any more says nothing about a program that runs at this moment."""
    host = made_host()
    host.files.tree.write("/etc/cni/net.d/10-azure.conflist", b'{"type": "azure-vnet"}', mode=0o644)
    host.files.tree.write(LOCKS[2], b"", mode=0o600)
    host.files.tree.locked.add(LOCKS[2])
    config = config_of(force=force)
    if refusal is None:
        sweep(host, config).do(context())
        assert there(host) == []
    else:
        assert refused(lambda: sweep(host, config).do(context())).startswith(
            f"azure-vnet is still in use: {refusal}. Nothing was changed."
        )
        assert there(host) == STALE


@pytest.mark.parametrize("path", [STATE_PATH, ENDPOINTS_PATH])
def test_an_empty_state_has_no_pods(path: str) -> None:
    """A store that nothing was saved in has 0 bytes: nobody lives by it, and nothing is refused."""
    host = made_host()
    host.files.tree.write(path, b"", mode=0o600)
    assert [finding.subject for finding in check_stale_cni(context(), config_of(), host)] == STALE
    sweep(host).do(context())
    assert there(host) == []


def test_what_cns_has_on_record_is_protected_where_it_lies() -> None:
    """In stateless mode CNS keeps azure-vnet's endpoints; it need be copied nowhere."""
    host = made_host()
    host.link_layer.add_device("azv2", master="azure0")
    host.files.tree.write(ENDPOINTS_PATH, cns_state_of({"azv2": [DEAD, DEAD6], "azv7": ["10.240.0.11"]}), mode=0o600)
    assert there(host) == STALE[6:]


def test_a_state_of_cns_that_is_not_understood_is_refused() -> None:
    """Then nobody knows who is alive."""
    host = made_host()
    host.files.tree.write(ENDPOINTS_PATH, b'{"Endpoint": {}}', mode=0o600)
    before = whole_state(host)
    assert f"{ENDPOINTS_PATH} is not the state of azure-vnet as we know it (the file has no Endpoints)" in refused(
        lambda: sweep(host).do(context())
    )
    assert whole_state(host) == before


@pytest.mark.parametrize("force", [False, True])
def test_it_refuses_a_state_that_it_does_not_understand(*, force: bool) -> None:
    """Then nobody knows who is alive, whatever is forced."""
    host = made_host()
    before = whole_state(host)
    host.files.tree.write(STATE_PATH, b"{", mode=0o600)
    config = config_of(force={"conflist": force, "lock": force})
    assert "so nobody knows which pods are alive" in refused(lambda: sweep(host, config).do(context()))
    host.files.tree.remove(STATE_PATH)
    assert whole_state(host) == before


# --- several readings


@pytest.mark.parametrize("confirmations", [1, 2, 5])
def test_as_many_readings_as_asked_for(confirmations: int) -> None:
    """A second apart each, and one more to see whether anything came back."""
    host = made_host()
    ctx = context()
    sweep(host, config_of(confirmations=confirmations)).do(ctx)
    assert (ctx.clock.monotonic(), there(host)) == (confirmations, [])


def test_what_changes_between_readings_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A rule that comes while we look shows that somebody is at work on it; the others go."""
    host = made_host()
    late = dnat("10.240.0.12", "aa:bb:cc:00:00:12")
    readings = 0

    def somebody() -> None:
        nonlocal readings
        readings += 1
        if readings == 2:
            host.ebtables.add(late)

    host.ebtables.on_read = somebody
    sweep(host).do(context())
    assert (
        f"ebtables nft nat: {late} is left alone: it changed between readings, so somebody is at work on it"
        in caplog.messages
    )
    assert there(host) == [f"ebtables nft nat: {late}"]


def test_what_comes_to_life_between_readings_is_left_alone() -> None:
    """A pod that is heard for the first time in the second reading keeps everything."""
    host = made_host()
    host.ebtables.on_read = lambda: host.link_layer.learn(DEAD_MAC, "azv1")
    sweep(host).do(context())
    assert arp_reply(DEAD, DEAD_MAC) in host.ebtables.lines()


def test_what_comes_back_is_reported_and_not_fought(caplog: pytest.LogCaptureFixture) -> None:
    """Something alive puts rules back: it is noticed, named, and left alone; the record stays for whoever looks."""
    host = made_host()
    line = dnat(DEAD, DEAD_MAC)
    host.ebtables.on_delete = lambda: host.ebtables.add(line)
    assert refused(lambda: sweep(host).do(context())) == (
        f"something puts them back: 1 of 8 objects that were taken away are there again, the first is "
        f"'ebtables nft nat: {line}'. They are left alone; find out who makes them (azure-vnet, its monitor, a "
        f"script?), stop it, and run this again"
    )
    assert f"something puts them back: ebtables nft nat: {line}" in caplog.messages
    assert [call[0] for call in host.ebtables.operations.calls].count("delete") == 1
    assert host.files.tree.exists(BACKUP)


def test_a_last_look_that_fails_is_an_error() -> None:
    """What was to go is gone, but nobody knows whether it came back; the record stays."""
    host = made_host()
    host.ebtables.fail_at(4)
    assert "Cannot allocate memory" in refused(lambda: sweep(host).do(context()), BackendError)
    assert (there(host), host.files.tree.exists(BACKUP)) == ([], True)


# --- the record


def test_everything_is_written_down_before_it_goes() -> None:
    """The record names all that goes, and the text of ebtables before; and it is there before the first deletion."""
    host = made_host()
    on_disk: list[bool] = []
    host.ebtables.on_delete = lambda: on_disk.append(host.files.tree.exists(BACKUP))
    texts = dict(host.ebtables.read(context()).texts)
    sweep(host).do(context())
    record = json.loads(host.files.tree.read(BACKUP) or b"")
    assert [entry["text"] for entry in record["objects"]] == STALE
    assert (record["boot_id"], record["ebtables-save"], on_disk) == ("boot-1", texts, [True])


def test_what_cannot_be_written_down_stays() -> None:
    """A full disk is an error before anything is taken away, which says so, and where to look."""
    host = made_host()
    before = whole_state(host)
    task = sweep(host)
    host.files.operations.calls.clear()
    task.do(context())
    write = [call[0] for call in host.files.operations.calls].index("write") + 1
    task.undo(context())
    host.files.fail_at(write)
    report = run(task, context())
    assert str(report.error) == (
        "clean-stale-cni: nothing was changed, for no record of it can be written: cannot go on: No space left on "
        "device; see staleCni.backupDir"
    )
    assert (whole_state(host), report.changes) == (before, ())


# --- failures midway


def failing_delete(host: FakeHost) -> None:
    host.ebtables.refuse(dnat(DEAD, DEAD_MAC))


def failing_neighbours(host: FakeHost) -> None:
    host.link_layer.refuse_at(2)


def failing_routes(host: FakeHost) -> None:
    host.routes.fail_at(1)


@pytest.mark.parametrize(
    ("fail", "kind", "words"),
    [
        (failing_delete, BackendError, "Invalid argument"),
        (failing_neighbours, StaleCNIError, "what had been taken away before that is back in its place"),
        (failing_routes, StaleCNIError, "what had been taken away before that is back in its place"),
    ],
)
def test_a_failure_midway_restores_everything(
    fail: Callable[[FakeHost], None], kind: type[HostRoutingError], words: str
) -> None:
    """Whichever stage is refused, all is as it was, in place and order, and there is no record."""
    host = made_host()
    before = whole_state(host)
    fail(host)
    assert words in refused(lambda: sweep(host).do(context()), kind)
    assert whole_state(host) == before


def test_a_failure_carries_what_the_kernel_said() -> None:
    """The error that stopped it is in the message, and is the cause."""
    host = made_host()
    failing_routes(host)
    with pytest.raises(StaleCNIError) as caught:
        sweep(host).do(context())
    assert isinstance(caught.value.__cause__, RouteRejectedError)
    assert "- 10.240.0.11 dev azv1 scope link: injected fault" in str(caught.value)


def test_what_cannot_be_restored_is_named_and_the_record_stays() -> None:
    """The rules cannot be put back: the error names each, and where it is written down; `undo` brings them back."""
    host = made_host()
    before = whole_state(host)
    failing_routes(host)
    # Readings, then the deletion, then the reading and the insertion of the rollback.
    host.ebtables.fail_at(5)
    text = refused(lambda: sweep(host).do(context()))
    head, _, tail = text.partition("\nTHE ROLLBACK IS INCOMPLETE, this is not as before:\n")
    assert "injected fault" in head
    assert tail == (
        "  cannot run ebtables: Cannot allocate memory\n"
        + "".join(f"  {line}\n" for line in STALE[:4])
        + f"all of it is written down in {BACKUP}; 'hostrouting reset' puts it back"
    )
    sweep(host).undo(context())
    assert whole_state(host) == before


def test_a_rollback_that_cannot_be_read_back_says_so() -> None:
    """Then nobody knows what is there, and the record stays."""
    host = made_host()
    failing_routes(host)
    host.ebtables.fail_at(4)
    text = refused(lambda: sweep(host).do(context()))
    assert "\n  what is there now cannot be read: cannot run ebtables" in text
    assert host.files.tree.exists(BACKUP)


@pytest.mark.parametrize("error", [CancelledError("SIGTERM"), DeadlineExceededError(1.0)])
def test_who_is_cancelled_midway_restores_everything(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The run ends as cancelled, nothing has changed, and that is said."""
    host = made_host()
    before = whole_state(host)
    calls = len(host.link_layer.operations.calls)
    sweep(host).plan(context())
    # A plan looks for the bridge once more.
    reading = len(host.link_layer.operations.calls) - calls
    host.link_layer.fail_at(2 * reading + 1, error)
    task = sweep(host)
    records: list[Change] = []
    with pytest.raises(type(error)):
        task.do(recording(records))
    assert (whole_state(host), records) == (before, [])
    assert caplog.messages[-1] == (f"the sweep was stopped ({error}); all that it had taken away is back in its place")


@pytest.mark.parametrize("error", [CancelledError("SIGTERM"), DeadlineExceededError(1.0)])
def test_who_is_cancelled_after_the_sweep_has_swept(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """All is gone and written down; only whether it came back was not looked at, and that is said."""
    host = made_host()
    # Two readings, the deletion, and then the last look.
    host.ebtables.fail_at(4, error)
    sweep(host).do(context())
    assert (there(host), host.files.tree.exists(BACKUP)) == ([], True)
    assert f"not looked at again whether something puts them back ({error}); the record is {BACKUP}" in caplog.messages


def test_a_wait_that_is_cut_short_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """The time is up between the sweep and the last look: the sweep stands."""
    host = made_host()
    ctx = Context(clock=ManualClock(auto=True), timeout=1.5)
    sweep(host).do(ctx)
    assert caplog.messages[-1].startswith("not looked at again whether something puts them back (")
    assert there(host) == []


# --- what was really changed


def recording(records: list[Change]) -> Context:
    """Return a context that collects what is recorded in it."""

    class Records:
        def skips(self, _: str) -> bool:
            return False

        def record(self, change: Change, _: object) -> None:
            records.append(change)

    return context().within(Scope(account=Records()))


def recorded(act: Callable[[Context], None]) -> list[Change]:
    """Return what `act` recorded."""
    records: list[Change] = []
    act(recording(records))
    return records


def test_it_records_what_it_changed() -> None:
    """Each removed object is recorded with its reason; an undo records each restored object."""
    host = made_host()
    task = sweep(host)
    planned = task.plan(context())
    assert recorded(task.do) == planned
    assert recorded(task.do) == []
    assert sorted(recorded(task.undo)) == sorted(Change("+", subject, "restored") for subject in STALE)
    assert recorded(task.undo) == []


def test_a_run_that_fails_later_restores_what_it_swept() -> None:
    """A run that is undone restores what its sweep removed, and nothing of an earlier sweep."""
    host = made_host()
    before = whole_state(host)
    late = FailingTask("late", OSError("x"))
    report = run(Serial(sweep(host), late), context(), undo_on_failure=True)
    assert (whole_state(host), report.children[0].status) == (before, "undone")
    sweep(host).do(context())
    swept = whole_state(host)
    run(Serial(sweep(host), late), context(), undo_on_failure=True)
    assert whole_state(host) == swept


def test_what_is_put_back_by_somebody_was_taken_away_all_the_same() -> None:
    """A sweep that ends in an error has changed what it has changed."""
    host = made_host()
    task = sweep(host)
    planned = task.plan(context())
    host.ebtables.on_delete = lambda: host.ebtables.add(dnat(DEAD, DEAD_MAC))
    records: list[Change] = []
    refused(lambda: task.do(recording(records)))
    assert records == planned


def test_of_a_rollback_only_what_it_left_is_told() -> None:
    """All is back: nothing was changed. The rules are not: they were, and the neighbours were not."""
    host = made_host()
    task = sweep(host)
    planned = task.plan(context())
    failing_routes(host)
    records: list[Change] = []
    refused(lambda: task.do(recording(records)))
    assert records == []
    failing_routes(host)
    host.ebtables.fail_at(5)
    refused(lambda: task.do(recording(records)))
    assert records == planned[:4]
    assert "ebtables" in records[-1].subject


def test_of_an_undo_that_fails_what_came_back_is_told() -> None:
    """The routes are there when the neighbours are refused."""
    host = made_host()
    sweep(host).do(context())
    host.link_layer.refuse_at(1)
    task = sweep(host)
    records: list[Change] = []
    refused(lambda: task.undo(recording(records)), BackendError)
    assert records == [Change("+", "10.240.0.11 dev azv1 scope link", "restored")]


# --- who cannot be heard


def test_a_bridge_of_another_name_is_refused() -> None:
    """Pods on another bridge than the config's would all look dead: plan and check say so, nothing is changed."""
    host = made_host()
    config = config_of(bridge="azure1", force={"conflist": True, "lock": True})
    before = whole_state(host)
    why = (
        "staleCni.bridge must name the bridge of azure-vnet's pods: there is no device azure1, "
        "but azv1 is a port of azure0"
    )
    assert refused(lambda: sweep(host, config).do(context())) == f"{why}. Nothing was changed"
    assert whole_state(host) == before
    changes = sweep(host, config).plan(context())
    assert changes
    assert all(str(change.detail).endswith(f"; will be refused: {why}") for change in changes)
    findings = check_stale_cni(context(), config, host)
    assert all(finding.reason.endswith(f"; cannot be taken away now, for {why}") for finding in findings)


def test_a_folder_of_records_that_others_can_write_is_told_beforehand() -> None:
    """The sweep would write nothing down there, and so take nothing away: plan and check say so, and not 'apply'."""
    host = made_host()
    config = config_of(backup_dir="/srv/records")
    host.files.tree.write("/srv/of-others", b"", mode=0o644)
    host.files.tree.folder_modes["/srv"] = 0o1777
    before = whole_state(host)
    failed = refused(lambda: sweep(host, config).do(context()))
    why = failed.removeprefix("nothing was changed, for ")
    assert "others may write to /srv (mode 1777)" in why
    assert whole_state(host) == before
    changes = sweep(host, config).plan(context())
    assert changes
    assert all(str(change.detail).endswith(f"; will be refused: {why}") for change in changes)
    findings = check_stale_cni(context(), config, host)
    assert findings
    assert all(finding.reason.endswith(f"; cannot be taken away now, for {why}") for finding in findings)
    assert sweep(host, config).obstacle() == why


def test_no_bridge_at_all_is_fine() -> None:
    """The bridge went with azure-vnet, or it was never made: then no pod is on it."""
    host = made_host()
    host.link_layer.remove_device("azure0")
    sweep(host).do(context())
    assert there(host) == []


def test_what_any_bridge_has_heard_is_alive() -> None:
    """A pod's hardware address is learned behind a port of a second bridge: it keeps its rules."""
    host = made_host()
    host.link_layer.add_device("azure9", kind="bridge")
    host.link_layer.add_device("azv9", kind="veth", master="azure9")
    host.link_layer.learn(DEAD_MAC, "azv9")
    sweep(host).do(context())
    assert dnat(DEAD, DEAD_MAC) in host.ebtables.lines()


@pytest.mark.parametrize(("up", "words"), [(False, "azv2 is down"), (True, "azv2 has no carrier")])
def test_a_device_that_nobody_hears_is_given_time(*, up: bool, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """Five readings more, and it is said for whom; one that stays deaf is no sign of life."""
    host = made_host()
    host.link_layer.add_device("azv2", kind="veth", master="azure0", up=up, carrier=False)
    ctx = context()
    began = ctx.clock.monotonic()
    sweep(host).do(ctx)
    assert [line for line in host.ebtables.lines() if DEAD in line] == []
    # Seven readings, and the last look.
    assert ctx.clock.monotonic() - began == 7
    assert f"{words}: whoever is behind is given 5 readings more to answer" in caplog.messages


def test_a_pod_whose_link_comes_back_in_that_time_keeps_everything() -> None:
    """Down in the first readings, there in a later one: it changed, and so nothing of it goes."""
    host = made_host()
    host.link_layer.add_device("azv2", kind="veth", master="azure0", up=False, carrier=False)
    readings: list[None] = []

    def link_comes_back() -> None:
        readings.append(None)
        if len(readings) == 4:
            host.link_layer.remove_device("azv2")
            host.link_layer.add_device("azv2", kind="veth", master="azure0")
            host.link_layer.alive.add(("azv2", DEAD))

    host.ebtables.on_read = link_comes_back
    sweep(host).do(context())
    assert dnat(DEAD, DEAD_MAC) in host.ebtables.lines()


class Killed(BaseException):
    """As if by `kill -9`: no handler of ours catches it."""


def test_a_run_that_is_killed_midway_can_be_undone() -> None:
    """The rules are gone, nobody has cleaned up: the record has everything."""
    host = made_host()
    before = whole_state(host)

    def kill() -> None:
        raise Killed

    host.ebtables.on_delete = kill
    with pytest.raises(Killed):
        sweep(host).do(context())
    host.ebtables.on_delete = None
    assert len(there(host)) == 4
    sweep(host).undo(context())
    assert whole_state(host) == before


# --- the way back


def test_undo_puts_everything_back_in_place_and_order() -> None:
    """Rules, neighbours, routes and files are as before the sweep, whatever the config says by then."""
    host = made_host()
    before = whole_state(host)
    sweep(host).do(context())
    assert [change.subject for change in sweep(host).plan_undo(context())] == STALE
    sweep(host, HostRoutingConfig()).undo(context())
    assert whole_state(host) == before
    assert sweep(host).plan_undo(context()) == []
    sweep(host).undo(context())
    assert whole_state(host) == before


def test_undo_of_several_sweeps_puts_all_of_them_back() -> None:
    """The newest first, so that each finds its chain as it left it."""
    host = made_host()
    before = whole_state(host)
    sweep(host, config_of(pod_cidrs=("10.240.0.0/16",))).do(context())
    between = whole_state(host)
    sweep(host).do(context())
    assert len(host.files.tree.names(FOLDER)) == 2
    assert whole_state(host) != between
    sweep(host).undo(context())
    assert whole_state(host) == before


def test_undo_leaves_places_that_were_taken(caplog: pytest.LogCaptureFixture) -> None:
    """A live pod has got the address: its neighbour and its route stay, and it is said what does not come back."""
    host = made_host()
    sweep(host).do(context())
    host.link_layer.add_neighbour(DEAD, "azure0", "02:00:00:00:00:01")
    host.link_layer.remove_device("azv1")
    sweep(host).undo(context())
    assert [message for message in caplog.messages if "not put back" in message] == [
        (
            f"{DEAD} dev azure0 lladdr {DEAD_MAC} PERMANENT is not put back: its place was taken meanwhile by "
            f"'{DEAD} dev azure0 lladdr 02:00:00:00:00:01 PERMANENT'"
        ),
        "10.240.0.11 dev azv1 scope link is not put back: there is no device azv1 any more",
        "fd00:10:240::11 dev azv1 metric 1024 is not put back: there is no device azv1 any more",
    ]
    assert sorted(host.ebtables.lines()) == sorted([*NODE_RULES, *LINES])
    assert caplog.messages[-1] == (
        f"the record {BACKUP} stays, for 3 of its objects could not be put back; 'hostrouting reset' tries again"
    )
    assert host.files.tree.exists(BACKUP)


def test_what_could_not_be_put_back_is_when_its_place_is_free() -> None:
    """The record has stayed; what is there already is left alone, and then the record goes."""
    host = made_host()
    before = whole_state(host)
    sweep(host).do(context())
    host.link_layer.add_neighbour(DEAD, "azure0", "02:00:00:00:00:01")
    task = sweep(host)
    others = [subject for subject in PUT_BACK if not subject.startswith(f"{DEAD} ")]
    assert recorded(task.undo) == [Change("+", subject, "restored") for subject in others]
    (usurper,) = [each for each in host.link_layer.neighbours() if each.mac == "02:00:00:00:00:01"]
    host.link_layer.apply(remove=[usurper])
    assert recorded(task.undo) == [Change("+", f"{DEAD} dev azure0 lladdr {DEAD_MAC} PERMANENT", "restored")]
    assert whole_state(host) == before


def test_twins_of_an_ipv4_route_do_not_come_back_both(caplog: pytest.LogCaptureFixture) -> None:
    """The kernel adds no second route in one place: the first comes, the record stays for the other."""
    host = made_host()
    host.routes.add_link("azv2")
    host.link_layer.add_device("azv2", kind="veth")
    one, two = (ObservedRoute(0x0AF0000C, 32, dev=dev, protocol=3, scope=253) for dev in ("azv1", "azv2"))
    write_backup(host.files, FOLDER, [one, two], texts=[], now=0)
    sweep(host).undo(context())
    assert one in host.routes.routes()
    assert f"10.240.0.12 dev azv2 scope link is not put back: its place was taken meanwhile by '{one}'" in (
        caplog.messages
    )
    assert len(host.files.tree.names(FOLDER)) == 1


def test_a_file_that_is_no_record_keeps_none_from_being_put_back(caplog: pytest.LogCaptureFixture) -> None:
    """What can be put back is; the file is named and set aside. A plan shows what it can, and changes nothing."""
    host = made_host()
    before = whole_state(host)
    sweep(host).do(context())
    bad = f"{FOLDER}/sweep-x-5.json"
    host.files.tree.write(bad, b"{", mode=0o600)
    assert [change.subject for change in sweep(host).plan_undo(context())] == STALE
    assert caplog.messages[-1].startswith(f"{bad} is not what we wrote")
    caplog.clear()
    sweep(host).undo(context())
    [text] = [message for message in caplog.messages if message.startswith(f"{bad} is not what we wrote")]
    assert text.endswith(f"then delete it; it was set aside as {bad}.damaged-1")
    assert host.files.tree.names(FOLDER) == ["sweep-x-5.json.damaged-1"]
    host.files.tree.remove(f"{bad}.damaged-1")
    assert whole_state(host) == before


def test_messages_name_the_command_that_finds_the_record(caplog: pytest.LogCaptureFixture) -> None:
    """Where the records lie is in the config: without it, nobody finds them elsewhere than in the usual place."""
    host = made_host()
    config = config_of(backup_dir="/srv/records")
    sweep(host, config).do(context())
    host.link_layer.remove_device("azv1")
    sweep(host, config).undo(context())
    assert caplog.messages[-1].endswith("'hostrouting reset CONFIG' tries again")


@pytest.mark.parametrize("fail", ["ebtables", "link_layer"])
def test_an_undo_that_fails_can_be_done_again(fail: str) -> None:
    """The record stays until all of it is back."""
    host = made_host()
    before = whole_state(host)
    sweep(host).do(context())
    if fail == "ebtables":
        host.ebtables.fail_at(2)
    else:
        host.link_layer.refuse_at(1)
    refused(lambda: sweep(host).undo(context()), BackendError)
    assert host.files.tree.exists(BACKUP)
    sweep(host).undo(context())
    assert whole_state(host) == before


def test_undo_does_not_ask_who_is_alive() -> None:
    """A state that cannot be understood is no reason not to put back."""
    host = made_host()
    sweep(host).do(context())
    host.files.tree.write(STATE_PATH, b"{", mode=0o600)
    sweep(host).undo(context())
    host.files.tree.remove(STATE_PATH)
    assert there(host) == STALE


def test_what_was_taken_before_the_machine_was_started_again_stays_gone(caplog: pytest.LogCaptureFixture) -> None:
    """The objects went with that boot, so nothing can be put back, and the record goes: planned, and said."""
    caplog.set_level(logging.INFO)
    host = made_host()
    sweep(host).do(context())
    host.files.tree.write("/proc/sys/kernel/random/boot_id", b"boot-2\n", mode=0o444)
    after = whole_state(host)
    task = sweep(host)
    expected = Change("-", BACKUP, "of 2026-01-01T00:00:01Z, before this machine was started again")
    assert task.plan_undo(context()) == [expected]
    assert recorded(task.undo) == [expected]
    assert whole_state(host)[:-1] == after[:-1]
    assert not host.files.tree.exists("/var/lib/hostrouting")
    assert caplog.messages[-2:] == [
        f"no sweep since this machine was started is recorded in {FOLDER}",
        (
            f"{BACKUP} is of 2026-01-01T00:00:01Z, before this machine was started again: nothing of it can be put "
            f"back, so it is removed"
        ),
    ]


def test_undo_without_a_sweep_asks_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A node that was never swept is not even read; it is said where a record would lie."""
    caplog.set_level(logging.INFO)
    host = made_host()
    sweep(host).undo(context())
    assert caplog.messages == [f"no sweep since this machine was started is recorded in {FOLDER}"]
    assert (host.ebtables.operations.calls, host.link_layer.operations.calls) == ([], [])
