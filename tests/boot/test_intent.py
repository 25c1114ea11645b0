"""The intent: the config in force as a file, which changes together with the scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from hostrouting.boot import INTENT_PATH, Boot, Intent, read_intent
from hostrouting.boot.generation import IDLE
from hostrouting.boot_files import boot_files, boot_parts
from hostrouting.check import check_node
from hostrouting.config import HostRoutingConfig
from hostrouting.configure import Configure, Reset
from hostrouting.exceptions import InvalidConfigError, RouteRejectedError
from hostrouting.probe_snat import ConfigureProbeSNAT
from hostrouting.route_overlap import CheckRouteOverlap
from hostrouting.static_routes import ConfigureStaticRoutes
from hostrouting.testing import FakeHost
from hostrouting.testing.strategies import configs
from phases import Change, Context, Task, TaskFailedError, execute, plan, run, undo
from phases.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Story = Callable[[FakeHost], object]

ROUTES: dict[str, Any] = {"staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]}}
OTHER_ROUTES = {"staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/21"}]}}
OVERLAP = {"routeOverlap": {"expectedCidrs": ["10.224.0.0/16"]}}
PROBES = {"probeSnat": {"enabled": True, "dev": "eth0", "detect": "address"}}
SWEEP = {"staleCni": {"enabled": True, "podCidrs": ["10.240.0.0/16"]}}
GATES = {"gates": ["systemd-nspawn@.service"]}
#: The file to which the path of the intent leads.
IN_FORCE = "/etc/aks-flex-node/hostrouting/hostrouting.json"
GOLDEN = Path(__file__).parent / "golden"
READY = "/etc/systemd/system/hostrouting-ready.service"


def in_time() -> Context:
    return Context(timeout=600, clock=ManualClock(auto=True))


def node(*, ipv6: bool = True) -> FakeHost:
    """A node with a default route, and with IPv6 if its probes are to have rules."""
    host = FakeHost()
    host.files.write("/lib/systemd/system/systemd-nspawn@.service", b"[Service]\nExecStart=/bin/true\n", mode=0o644)
    host.files.write("/proc/sys/kernel/random/boot_id", b"this-boot\n", mode=0o444)
    host.routes.add_link("eth0")
    host.routes.add_address("eth0", "10.224.0.4/16")
    host.routes.add_route("default", gateway="10.224.0.1", dev="eth0")
    host.link_layer.add_device("eth0", addresses=["2001:db8::4/64"] if ipv6 else [])
    if ipv6:
        host.link_layer.add_route("::/0", "eth0")
    return host


def config(**sections: object) -> HostRoutingConfig:
    return HostRoutingConfig.from_mapping({**GATES, **sections})


def apply(host: FakeHost, **sections: object) -> None:
    execute(Configure(config(**sections), host=host), in_time())


def stored(host: FakeHost) -> Any:
    """Return the JSON of the intent; None without one."""
    content = host.files.read(INTENT_PATH)
    return None if content is None else json.loads(content)


def test_the_file() -> None:
    """To the byte: the config in its canonical form, for people to read."""
    file = Intent(config=config(**ROUTES, **OVERLAP, **PROBES, **SWEEP)).file
    assert file.content == (GOLDEN / "hostrouting.json").read_bytes()
    assert (file.path, file.mode) == ("/etc/aks-flex-node/hostrouting.json", 0o644)


@given(configs())
def test_an_apply_of_the_intent_does_the_same(wanted: HostRoutingConfig) -> None:
    """The file reads back as the config, and then is written the same again."""
    file = Intent(config=wanted).file
    again = HostRoutingConfig.from_json(file.content)
    assert again == wanted
    assert Intent(config=again).file == file


def test_only_our_part_of_an_agents_config_is_stored() -> None:
    """What the user wrote, in its canonical form; neither defaults nor keys of the agent."""
    document = {"nodeName": "gpu-1", "token": "secret", "hostRouting": {**ROUTES, **OVERLAP, "watch": None}}
    host = node()
    execute(Configure(HostRoutingConfig.from_mapping(document), host=host), in_time())
    assert stored(host) == {"hostRouting": {**ROUTES, **OVERLAP}}
    assert read_intent(host.files) == HostRoutingConfig.from_mapping(document)
    assert host.files.mode(INTENT_PATH) == 0o644


def test_an_empty_file_or_none() -> None:
    """Without the file there is no intent; a damaged one is an error."""
    host = node()
    assert read_intent(host.files) is None
    host.files.write(INTENT_PATH, b"", mode=0o644)
    with pytest.raises(InvalidConfigError, match=r"^the config is not JSON: it is empty"):
        read_intent(host.files)


@pytest.mark.parametrize("sections", [{}, {"staticRoutes": {"enabled": True}}, SWEEP])
def test_a_config_that_installs_no_unit_has_none(sections: dict[str, object]) -> None:
    """Zero impact: no file, no folder."""
    host = node()
    apply(host, **sections)
    assert host.files.names("/etc") == []
    assert boot_files(config(**sections)) == []


def test_render_lists_it(node_with_probes: FakeHost) -> None:
    """The rendered file is the installed one."""
    wanted = config(**ROUTES, **PROBES)
    execute(Configure(wanted, host=node_with_probes), in_time())
    [file] = [file for file in boot_files(wanted, host=node_with_probes) if file.path == INTENT_PATH]
    assert (node_with_probes.files.read(INTENT_PATH), node_with_probes.files.mode(INTENT_PATH)) == file.state


@pytest.fixture
def node_with_probes() -> FakeHost:
    return node()


@pytest.mark.parametrize(
    "sections",
    [
        {**ROUTES, **OVERLAP},
        {**PROBES, **SWEEP},
        {**ROUTES, **PROBES, **SWEEP},
        {**OVERLAP, "gates": []},
    ],
)
@pytest.mark.parametrize("ipv6", [True, False])
def test_plan_check_apply_and_reset(sections: dict[str, object], *, ipv6: bool) -> None:
    """A plan and a check name it, an apply installs the whole config, and a second one has nothing to do."""
    host = node(ipv6=ipv6)
    before = host.files.tree.snapshot()
    task = Configure(config(**sections), host=host)
    planned = Change("+", INTENT_PATH) in plan(task, in_time()).changes
    execute(task, in_time())
    assert planned == (read_intent(host.files) is not None) == host.files.exists(READY)
    assert read_intent(host.files) in (None, config(**sections))
    assert plan(task, in_time()).changes == ()
    assert "boot-file" not in {finding.kind for finding in check_node(in_time(), config(**sections), host).findings}
    execute(Reset(HostRoutingConfig(), host=host), in_time())
    assert host.files.tree.snapshot() == before


def edited(host: FakeHost) -> None:
    host.files.write(IN_FORCE, b'{"hostRouting": {}}', mode=0o644)


def replaced(host: FakeHost) -> None:
    content = host.files.read(INTENT_PATH) or b""
    host.files.remove(INTENT_PATH)
    host.files.write(INTENT_PATH, content, mode=0o644)


def writable(host: FakeHost) -> None:
    host.files.write(IN_FORCE, host.files.read(INTENT_PATH) or b"", mode=0o666)


def lost(host: FakeHost) -> None:
    host.files.remove(INTENT_PATH)


@pytest.mark.parametrize("harm", [edited, replaced, writable, lost])
def test_a_changed_or_missing_one_is_a_finding(harm: Story) -> None:
    """By an editor that writes in place, or by one that replaces; an apply installs it again."""
    host = node()
    apply(host, **ROUTES, **OVERLAP)
    harm(host)
    found = check_node(in_time(), config(**ROUTES, **OVERLAP), host).findings
    assert [(finding.kind, finding.subject, finding.severity) for finding in found] == [
        ("boot-file", INTENT_PATH, "error")
    ]
    apply(host, **ROUTES, **OVERLAP)
    assert read_intent(host.files) == config(**ROUTES, **OVERLAP)
    assert check_node(in_time(), config(**ROUTES, **OVERLAP), host).findings == ()


def test_another_config_of_the_check_is_a_finding() -> None:
    """Also if no script differs."""
    host = node()
    apply(host, **ROUTES)
    found = check_node(in_time(), config(**ROUTES, probeSnat={"dev": "eth0"}), host).findings
    assert [(finding.kind, finding.subject) for finding in found] == [("boot-file", INTENT_PATH)]


# --- several runs


def test_a_config_that_the_kernel_refuses_leaves_the_earlier_intent() -> None:
    """As it leaves the live routes and the scripts."""
    host = node()
    apply(host, **ROUTES)
    before = host.files.tree.snapshot()
    typo = {"destination": "172.20.0.0/16", "gateway": "10.9.9.9", "dev": "eth0"}
    with pytest.raises(TaskFailedError) as caught:
        apply(host, staticRoutes={"enabled": True, "routes": [typo]})
    assert [type(failure) for failure in caught.value.failures] == [RouteRejectedError]
    assert host.files.tree.snapshot() == before


def test_the_undo_of_a_run_restores_the_earlier_one() -> None:
    """The whole earlier config is in force again."""
    host = node()
    apply(host, **ROUTES, **SWEEP, **OVERLAP)
    before = etc(host)
    host.routes.add_link("ib0")
    host.routes.add_address("ib0", "172.20.1.4/16")
    strict = {"routeOverlap": {"expectedCidrs": ["172.20.0.0/16"], "mode": "STRICT"}}
    task = Configure(config(**OTHER_ROUTES, **strict), host=host)
    assert run(task, in_time(), undo_on_failure=True).status == "failed"
    assert etc(host) == before


def test_a_sibling_that_fails_stays_wanted() -> None:
    """The intent has the section, so that the next apply of it, or a later look, tries again."""
    host = node()
    host.nftables.is_installed = False
    apply(host, **ROUTES, **PROBES)
    assert not host.files.exists("/etc/systemd/system/probe-snat.service")
    assert stored(host) == {"hostRouting": {**ROUTES, **PROBES, **GATES}}


def test_tasks_that_run_by_themselves_add_up() -> None:
    """Each writes its own section beside those that the others installed, and takes it along when it is undone."""
    host = node()
    tasks: list[Task] = [
        ConfigureStaticRoutes(config(**ROUTES), host=host),
        CheckRouteOverlap(config(**OVERLAP), host=host),
        ConfigureProbeSNAT(config(**PROBES), host=host),
    ]
    for task in tasks:
        execute(task, in_time())
    assert read_intent(host.files) == config(**ROUTES, **OVERLAP, **PROBES)
    for task in tasks:
        assert plan(task, in_time()).changes == ()
    undo(tasks[0], in_time())
    assert read_intent(host.files) == config(**OVERLAP, **PROBES)
    undo(tasks[2], in_time())
    assert read_intent(host.files) == config(**OVERLAP)
    undo(tasks[1], in_time())
    assert not host.files.exists(READY)
    assert stored(host) is None


def test_a_task_that_runs_alone_drops_its_section() -> None:
    """A config without routes removes ours; the rest stays wanted."""
    host = node()
    apply(host, **ROUTES, **OVERLAP)
    execute(ConfigureStaticRoutes(config(**OVERLAP), host=host), in_time())
    assert read_intent(host.files) == config(**OVERLAP)
    assert plan(Configure(config(**OVERLAP), host=host), in_time()).changes == ()


@pytest.mark.parametrize("name", ["configure-static-routes", "check-route-overlap", "configure-probe-snat"])
def test_a_skipped_task_keeps_its_section(name: str) -> None:
    """As its script and unit stay, and a reset that skips a task leaves the intent of that task."""
    sections = {"configure-static-routes": ROUTES, "check-route-overlap": OVERLAP, "configure-probe-snat": PROBES}
    host = node()
    apply(host, **ROUTES, **OVERLAP, **PROBES)
    run(Configure(config(**SWEEP), host=host), in_time(), skip=[name, "clean-stale-cni"])
    assert read_intent(host.files) == config(**sections[name], **SWEEP)
    run(Reset(HostRoutingConfig(), host=host), in_time(), skip=[name])
    assert read_intent(host.files) == HostRoutingConfig.from_mapping({**sections[name], "gates": []})


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"hostRouting": {"staticRoute": {}}}'])
def test_an_unknown_section_is_not_taken_for_an_empty_one(content: bytes | None) -> None:
    """A lost or damaged intent stays as it is if one task runs alone: a watcher would remove the other one's routes."""
    host = node()
    apply(host, **ROUTES, **OVERLAP)
    if content is None:
        host.files.remove(IN_FORCE)
    else:
        host.files.write(IN_FORCE, content, mode=0o644)
    execute(CheckRouteOverlap(config(routeOverlap={"expectedCidrs": ["10.96.0.0/16"]}), host=host), in_time())
    assert host.files.read(INTENT_PATH) == content
    apply(host, **ROUTES, **OVERLAP)
    assert read_intent(host.files) == config(**ROUTES, **OVERLAP)


def test_an_earlier_release_left_none() -> None:
    """Scripts in force without an intent: the plan has the intent alone, and the next apply makes it."""
    host = node()
    parts = boot_parts(config(**ROUTES, **OVERLAP))
    Boot(host, gates=GATES["gates"]).install(in_time(), *parts)
    execute(ConfigureStaticRoutes(config(**ROUTES), host=host), in_time())
    assert stored(host) is None
    task = Configure(config(**ROUTES, **OVERLAP), host=host)
    assert plan(task, in_time()).changes == (Change("+", INTENT_PATH),)
    report = run(task, in_time())
    assert Change("+", INTENT_PATH) in [change for each in report.walk() for change in each.changes]
    assert read_intent(host.files) == config(**ROUTES, **OVERLAP)


# --- killed at any step


FIRST = {**ROUTES, **OVERLAP, **PROBES}
SECOND = {**OTHER_ROUTES, "routeOverlap": {"expectedCidrs": ["10.96.0.0/16"]}, **SWEEP}
CHANGING = {"write", "link", "remove", "remove_directory_if_empty"}


class KilledError(BaseException):
    """The end of a process: nothing catches it."""


def one(host: FakeHost) -> None:
    apply(host, **FIRST)


def other(host: FakeHost) -> None:
    apply(host, **SECOND)


def only_probes(host: FakeHost) -> None:
    apply(host, **PROBES, **SWEEP)


def reset(host: FakeHost) -> None:
    execute(Reset(HostRoutingConfig(), host=host), in_time())


def nothing(host: FakeHost) -> None:
    """Leave the node as it is."""


STORIES = {
    "a first apply": (nothing, one),
    "another config": (one, other),
    "a config of probes alone": (one, only_probes),
    "routes are added to probes": (only_probes, one),
    "a reset": (one, reset),
    "a reset of probes": (only_probes, reset),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("prepare", "story"), STORIES.values(), ids=STORIES.keys())
def test_intent_and_scripts_are_of_one_config(prepare: Story, story: Story) -> None:
    """Wherever a run is killed, an intent on the disk is that of the scripts of a boot, and the next run completes."""
    before, after = prepared(prepare), prepared(prepare)
    story(after)
    wanted = {read_intent(host.files): scripts(host) for host in (before, after)}
    for host in killed(prepare, story):
        found = read_intent(host.files)
        # A first apply enables one unit after the other.
        assert found is None or scripts(host).items() <= wanted[found].items()
        assert found is None or prepare is nothing or scripts(host) == wanted[found]
        story(host)
        assert read_intent(host.files) == read_intent(after.files)


@pytest.mark.thorough
def test_a_reader_after_a_kill_has_a_whole_config() -> None:
    """Wherever a change of config is killed, an apply of the intent ends in the node of one of the two configs."""
    whole = []
    for sections in FIRST, SECOND:
        host = prepared(one)
        execute(Configure(config(**sections), host=host), in_time())
        whole.append((host.routes.routes(), etc(host)))
    assert whole[0] != whole[1]
    for host in killed(one, other):
        found = read_intent(host.files)
        assert found is not None
        execute(Configure(found, host=host), in_time())
        assert (host.routes.routes(), etc(host)) in whole


def test_a_reset_removes_it_first() -> None:
    """A reset that is killed after any change of a boot file has removed the intent, so nothing restores the rest."""
    before = etc(prepared(one))
    for host in killed(one, reset):
        gone = before.keys() - etc(host).keys()
        assert not gone or INTENT_PATH in gone


def etc(host: FakeHost) -> dict[str, str]:
    """Return all files that survive a boot."""
    return {path: text for path, text in host.files.tree.snapshot().items() if path.startswith("/etc/")}


def prepared(prepare: Story) -> FakeHost:
    host = node()
    prepare(host)
    return host


def killed(prepare: Story, story: Story) -> Iterator[FakeHost]:
    """Yield a node for each change of a file in a story, killed right before it."""
    host = prepared(prepare)
    begun = len(host.files.operations.calls)
    story(host)
    calls = host.files.operations.calls[begun:]
    numbers = [number for number, (verb, *_) in enumerate(calls, start=1) if verb in CHANGING]
    assert len(numbers) > 3
    for number in numbers:
        host = prepared(prepare)
        host.files.fail_at(number, KilledError())
        with pytest.raises(KilledError):
            story(host)
        yield host


def scripts(host: FakeHost) -> dict[str, bytes]:
    """Return the scripts that a boot runs, by unit; those that do nothing are left out."""
    names = host.files.names(f"{READY}.requires")
    found = {name: host.files.read(f"/etc/aks-flex-node/{name.replace('.service', '.sh')}") for name in names}
    return {name: script for name, script in found.items() if script is not None and script != IDLE}
