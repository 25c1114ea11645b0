"""The installed config: the config in force as a file, which changes together with the scripts."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest
from hypothesis import given
from support.boots import READY
from support.command_line import ROUTES
from support.patience import at_once
from support.printed import REPLACE_IT
from support.run_nodes import GATES, OVERLAP, PROBES, SWEEP, apply, config, node

from hostrouting import (
    CheckRouteOverlap,
    Configure,
    ConfigureProbeSNAT,
    ConfigureStaticRoutes,
    HostRoutingConfig,
    Reset,
    check_node,
)
from hostrouting.boot.boot import Boot
from hostrouting.boot.installed_config import NewConfig, read_installed_config
from hostrouting.boot.layout import APPLIED_PATH, CONFIG_PATH
from hostrouting.boot.task import SectionTask
from hostrouting.exceptions import InvalidConfigError
from hostrouting.node.boot_files import boot_parts, render_files
from hostrouting.testing import FakeHost
from hostrouting.testing.strategies import configs
from hostrouting.watch.unit import ConfigureWatch
from phases import Change, execute, plan, run, undo

#: The file to which the path of the installed config leads.
IN_FORCE = "/etc/aks-flex-node/hostrouting/hostrouting.json"
WATCH = {"watch": {"enabled": True}}
#: An apply that finds the node right has written it.
FOUND = {"foundDevs": ["eth0"]}


def stored(host: FakeHost) -> Any:
    """Return the JSON of the installed config; None without one."""
    content = host.files.read(CONFIG_PATH)
    return None if content is None else json.loads(content)


def with_eth0(config: HostRoutingConfig) -> HostRoutingConfig:
    """Return a config as an apply installs it on a node that leaves through eth0."""
    return attrs.evolve(config, found_devs=("eth0",))


def test_the_file() -> None:
    """The installed config's file is the config in its canonical form, to the byte, for people to read."""
    file = NewConfig(config=config(**ROUTES, **OVERLAP, **PROBES, **SWEEP)).file
    assert (
        file.content.decode()
        == """\
{"hostRouting": {
  "staticRoutes": {"enabled": true, "routes": [{"destination": "172.16.8.0/22"}]},
  "routeOverlap": {"expectedCidrs": ["10.224.0.0/16"], "mode": "WARN"},
  "probeSnat": {"enabled": true, "dev": "eth0", "detect": "address"},
  "staleCni": {"enabled": true, "podCidrs": ["10.240.0.0/16"]},
  "gates": ["systemd-nspawn@.service"]}}
"""
    )
    assert file.path == "/etc/aks-flex-node/hostrouting.json"
    assert file.mode == 0o644


@pytest.mark.parametrize(("kept", "after"), [("route_overlap", "a"), ("static_routes", "b")])
def test_after_is_kept_with_the_proof(kept: str, after: str) -> None:
    """A task that does not install the check keeps the units that the installed check awaits."""
    one, two = (config(**OVERLAP, after=[f"{name}.service"]) for name in ("a", "b"))
    merged = NewConfig(config=two, kept=frozenset({kept, "gates"})).merged_with(
        NewConfig(config=one).file.content, others=()
    )
    assert merged.config is not None
    assert merged.config.after == (f"{after}.service",)


@given(configs())
def test_an_apply_of_the_intent_does_the_same(wanted: HostRoutingConfig) -> None:
    """The file of the installed config reads back as the config, and then is written the same again."""
    file = NewConfig(config=wanted).file
    again = HostRoutingConfig.from_json(file.content)
    assert again == wanted
    assert NewConfig(config=again).file == file


@pytest.mark.parametrize(
    "kind", [ConfigureStaticRoutes, CheckRouteOverlap, ConfigureProbeSNAT, ConfigureWatch]
)
def test_a_task_alone_keeps_the_sections_of_others(kind: type[SectionTask]) -> None:
    """A task alone, and its undo, keep the sections of other tasks in the installed config, also one without
    a unit, such as the sweep's.
    """
    host = node()
    sections = {**ROUTES, **OVERLAP, **PROBES, **SWEEP, **WATCH}
    apply(host, **sections)
    task = kind(config(), host=host)
    execute(task, at_once())
    [own] = {"staticRoutes", "routeOverlap", "probeSnat", "watch"} - stored(host)[
        "hostRouting"
    ].keys()
    assert stored(host) == {
        "hostRouting": {
            name: text for name, text in {**sections, **GATES, **FOUND}.items() if name != own
        }
    }
    apply(host, **sections)
    undo(kind(config(**sections), host=host), at_once())
    assert own not in stored(host)["hostRouting"]
    assert len(stored(host)["hostRouting"]) == len({**sections, **FOUND})


def test_only_our_part_of_an_agents_config_is_stored() -> None:
    """The installed config has the hostRouting of an agent's config in its canonical form, and none of the
    agent's keys.
    """
    document = {
        "nodeName": "gpu-1",
        "token": "secret",
        "hostRouting": {**ROUTES, **OVERLAP, "watch": None},
    }
    host = node()
    execute(Configure(HostRoutingConfig.from_mapping(document), host=host), at_once())
    assert stored(host) == {"hostRouting": {**ROUTES, **OVERLAP, **FOUND}}
    assert read_installed_config(host.files) == with_eth0(HostRoutingConfig.from_mapping(document))
    assert host.files.mode(CONFIG_PATH) == 0o644


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            b"",
            rf"^the installed config {CONFIG_PATH} is not JSON: it is empty; .* it, {REPLACE_IT}$",
        ),
        *(
            (content, f"^hostRouting: is missing or empty in the installed config {CONFIG_PATH};")
            for content in (
                *(b"{}", b'{"nodeName": "gpu-1"}', b'{"probeSnat": {}}'),
                *(b'{"hostRouting": null}', b'{"hostRouting": {}}'),
            )
        ),
    ],
)
def test_a_file_without_our_sections_is_damaged(content: bytes, reason: str) -> None:
    """A file without content under our key is a damaged installed config, and not a request to remove all
    routes; without the file the installed config is None.
    """
    host = node()
    assert read_installed_config(host.files) is None
    host.files.write(CONFIG_PATH, content, mode=0o644)
    with pytest.raises(InvalidConfigError, match=reason):
        read_installed_config(host.files)


@pytest.mark.parametrize(
    ("copy", "step"), [(None, f"hostrouting apply {CONFIG_PATH}"), (b"{", "apply CONFIG")]
)
def test_a_damaged_config_in_force_names_a_config_that_works(copy: bytes | None, step: str) -> None:
    """If the config in force is damaged, the error says to apply its copy, or, if that is damaged
    as well, a config of one's own.
    """
    host = node()
    apply(host, **ROUTES)
    host.files.write(APPLIED_PATH, b"{", mode=0o644)
    if copy is not None:
        host.files.write(CONFIG_PATH, copy, mode=0o644)
    with pytest.raises(InvalidConfigError, match=f"{APPLIED_PATH} is damaged.*{step}$"):
        read_installed_config(host.files)


@pytest.mark.parametrize("sections", [{}, {"staticRoutes": {"enabled": True}}, SWEEP])
def test_a_config_that_installs_no_unit_has_none(sections: dict[str, object]) -> None:
    """A config that installs no unit makes neither a file nor a folder."""
    host = node()
    apply(host, **sections)
    assert host.files.names("/etc") == []
    assert render_files(config(**sections)).files == ()


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
    """A plan lists the installed config if an apply installs it, a second plan is empty, and a reset restores
    the node.
    """
    host = node(ipv6=ipv6)
    before = host.files.tree.snapshot()
    task = Configure(config(**sections), host=host)
    planned = Change("+", CONFIG_PATH) in plan(task, at_once()).changes
    execute(task, at_once())
    assert planned == (read_installed_config(host.files) is not None) == host.files.exists(READY)
    assert read_installed_config(host.files) in (
        None,
        config(**sections),
        with_eth0(config(**sections)),
    )
    assert plan(task, at_once()).changes == ()
    assert "boot-file" not in {
        finding.kind for finding in check_node(at_once(), config(**sections), host).findings
    }
    execute(Reset(HostRoutingConfig(), host=host), at_once())
    assert host.files.tree.snapshot() == before


def edited(host: FakeHost) -> None:
    host.files.write(IN_FORCE, b'{"hostRouting": {}}', mode=0o644)


def replaced(host: FakeHost) -> None:
    content = host.files.read(CONFIG_PATH) or b""
    host.files.remove(CONFIG_PATH)
    host.files.write(CONFIG_PATH, content, mode=0o644)


def writable(host: FakeHost) -> None:
    host.files.write(IN_FORCE, host.files.read(CONFIG_PATH) or b"", mode=0o666)


def lost(host: FakeHost) -> None:
    host.files.remove(CONFIG_PATH)


#: Without a watch, its lack is a finding, too.
WATCHED: Mapping[str, Any] = {**ROUTES, "watch": {"enabled": True}}


@pytest.mark.parametrize("harm", [edited, replaced, writable, lost])
def test_a_changed_or_missing_one_is_a_finding(harm: Callable[[FakeHost], None]) -> None:
    """An installed config that was edited, replaced, made writable or lost is an error of `check`, and an
    apply installs it again.
    """
    host = node()
    apply(host, **WATCHED, **OVERLAP)
    harm(host)
    found = check_node(at_once(), config(**WATCHED, **OVERLAP), host).findings
    # The pinned exit may be lost with it, and was that of the script.
    script = "/etc/aks-flex-node/static-routes.sh"
    assert {finding.subject for finding in found} - {script} == {CONFIG_PATH}
    assert {(finding.kind, finding.severity) for finding in found} == {("boot-file", "error")}
    apply(host, **WATCHED, **OVERLAP)
    assert read_installed_config(host.files) == with_eth0(config(**WATCHED, **OVERLAP))
    assert check_node(at_once(), config(**WATCHED, **OVERLAP), host).findings == ()


def test_another_config_of_the_check_is_a_finding() -> None:
    """A check of another config than the installed one has a finding about the installed config, even if the
    scripts are equal.
    """
    host = node()
    apply(host, **WATCHED)
    found = check_node(at_once(), config(**WATCHED, probeSnat={"dev": "eth0"}), host).findings
    assert [(finding.kind, finding.subject) for finding in found] == [("boot-file", CONFIG_PATH)]


# --- several runs


def test_a_sibling_that_fails_stays_wanted() -> None:
    """The installed config has the section of an optional capability that has failed, so that a later apply
    tries again.
    """
    host = node()
    host.nftables.is_installed = False
    apply(host, **ROUTES, **PROBES)
    assert not host.files.exists("/etc/systemd/system/probe-snat.service")
    assert stored(host) == {"hostRouting": {**ROUTES, **PROBES, **GATES}}


@pytest.mark.parametrize(
    "name", ["configure-static-routes", "check-route-overlap", "configure-probe-snat"]
)
def test_a_skipped_task_keeps_its_section(name: str) -> None:
    """An apply and a reset that skip a task keep its section in the installed config."""
    sections = {
        "configure-static-routes": ROUTES,
        "check-route-overlap": OVERLAP,
        "configure-probe-snat": PROBES,
    }
    host = node()
    apply(host, **ROUTES, **OVERLAP, **PROBES)
    run(Configure(config(**SWEEP), host=host), at_once(), skip=[name, "clean-stale-cni"])
    assert read_installed_config(host.files) == with_eth0(config(**sections[name], **SWEEP))
    run(Reset(HostRoutingConfig(), host=host), at_once(), skip=[name])
    assert read_installed_config(host.files) == with_eth0(
        HostRoutingConfig.from_mapping({**sections[name], "gates": []})
    )


@pytest.mark.parametrize(
    "content", [None, b"", b"[]", b"{}", b'{"hostRouting": {"staticRoute": {}}}']
)
def test_an_unknown_section_is_not_taken_for_an_empty_one(content: bytes | None) -> None:
    """A task alone leaves a lost or damaged config as it is, since a watch would otherwise remove
    the routes of the lost section.
    """
    host = node()
    apply(host, **ROUTES, **OVERLAP)
    for path in IN_FORCE, APPLIED_PATH:
        if content is None:
            host.files.remove(path)
        else:
            host.files.write(path, content, mode=0o644)
    execute(
        CheckRouteOverlap(config(routeOverlap={"expectedCidrs": ["10.96.0.0/16"]}), host=host),
        at_once(),
    )
    assert host.files.read(CONFIG_PATH) == content
    apply(host, **ROUTES, **OVERLAP)
    assert read_installed_config(host.files) == with_eth0(config(**ROUTES, **OVERLAP))


def test_a_lost_link_loses_no_section() -> None:
    """A task alone restores a lost link to the installed config, with the sections of the file in force."""
    host = node()
    apply(host, **ROUTES, **OVERLAP)
    host.files.remove(CONFIG_PATH)
    execute(CheckRouteOverlap(config(**OVERLAP), host=host), at_once())
    assert read_installed_config(host.files) == with_eth0(config(**ROUTES, **OVERLAP))


def test_an_earlier_release_left_none() -> None:
    """An apply over scripts that an earlier release left without an installed config makes the installed config, and
    its plan lists that.
    """
    host = node()
    parts = boot_parts(config(**ROUTES, **OVERLAP))
    Boot(host, gates=GATES["gates"]).install(at_once(), *parts)
    execute(ConfigureStaticRoutes(config(**ROUTES), host=host), at_once())
    assert stored(host) is None
    task = Configure(config(**ROUTES, **OVERLAP), host=host)
    changed = {
        Change("+", CONFIG_PATH),
        Change("+", APPLIED_PATH),
        Change("~", "/etc/aks-flex-node/static-routes.sh"),
    }
    assert {*plan(task, at_once()).changes} == changed
    report = run(task, at_once())
    assert Change("+", CONFIG_PATH) in report.changes
    assert read_installed_config(host.files) == with_eth0(config(**ROUTES, **OVERLAP))


def test_a_lost_config_in_force_is_written_again() -> None:
    """An apply of the same config, after the config in force and that for people were both lost,
    writes both: a gate holds its unit without the first.
    """
    host = node()
    apply(host, **ROUTES, **OVERLAP)
    for path in (APPLIED_PATH, IN_FORCE):
        host.files.remove(path)
    apply(host, **ROUTES, **OVERLAP)
    assert read_installed_config(host.files) == with_eth0(config(**ROUTES, **OVERLAP))
    assert host.files.exists(APPLIED_PATH)
