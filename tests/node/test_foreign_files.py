"""Files of other owners whose names are those of hostrouting stay as they are."""

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.boot_units import install_upstream
from support.command_line import CHECKED, ROUTES
from support.patience import at_once
from support.run_nodes import PROBES, crowd, gpu_node

from hostrouting import (
    Configure,
    ConfigureProbeSNAT,
    HostRoutingConfig,
    Reset,
    check_node,
    node_status,
    render_files,
)
from hostrouting.azure.probe_snat.ruleset import RULESET_PATH, delete_script
from hostrouting.base.findings import REFUSED
from hostrouting.boot.layout import CONFIG_PATH, SCRIPT_PATHS
from hostrouting.boot.steps import SHARED_PATHS, is_own
from hostrouting.exceptions import UnitError
from hostrouting.host import OUR_PROTOCOL
from hostrouting.testing import FakeHost
from phases import plan, run

UNITS = "/etc/systemd/system"
STATIC = f"{UNITS}/static-routes.service"
PROBE = f"{UNITS}/probe-snat.service"
LINK = f"{UNITS}/multi-user.target.wants/static-routes.service"
#: It stays active once it has run.
SITE = b"""\
# Runs before hostrouting-ready.service.
[Unit]
Description=Routes of the site
Before=hostrouting-ready.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/opt/site/routes
[Install]
WantedBy=multi-user.target
"""
_LINES = st.sampled_from(
    [
        "",
        "# keep",
        "[Unit]",
        "Description=Installed by hostrouting",
        "After=hostrouting-ready.service",
        "[Service]",
        "Type=oneshot",
        "ExecStart=/opt/site/routes",
        "ExecStart=/usr/sbin/ip route add 172.16.8.0/22 via 10.224.0.1",
        "# was: ExecStart=/etc/aks-flex-node/static-routes.sh",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
)


def config(**sections: Any) -> HostRoutingConfig:
    return HostRoutingConfig.from_mapping({"gates": [], **sections})


def names_of(host: FakeHost) -> list[tuple[str, str]]:
    """Return the severity and path of each foreign file that `status` names."""
    findings = node_status(at_once(), host).check.findings
    return [(each.severity, each.subject) for each in findings if each.kind == "foreign-file"]


def add_foreign(host: FakeHost, *paths: str) -> None:
    for path in paths:
        host.files.write(path, SITE, mode=0o644)
    host.files.link(LINK, "../static-routes.service")


# --- the decision


def test_each_beginning_of_a_file_that_an_apply_writes_is_own() -> None:
    """Each beginning of a file that an apply writes, as a loss of power may leave it, counts as
    own.
    """
    host = gpu_node()
    crowd(host)
    rendered = render_files(config(**CHECKED, **ROUTES, **PROBES), host=host).files
    contents = {file.path: file.content for file in rendered if file.path in SHARED_PATHS}
    assert contents.keys() == SHARED_PATHS
    for path, content in [*contents.items(), (RULESET_PATH, delete_script().encode())]:
        own = [is_own(path, content[:length]) for length in range(len(content) + 1)]
        assert all(own), (path, own.index(False))


def test_what_upstream_installs_is_own() -> None:
    """The units and scripts that upstream installs count as own."""
    host = FakeHost()
    install_upstream(host.files)
    for path in (*SHARED_PATHS, *SCRIPT_PATHS):
        assert is_own(path, host.files.read(path) or b"", host.files.read_link(path))


@given(path=st.sampled_from([*SHARED_PATHS]), lines=st.lists(_LINES, min_size=1))
def test_what_anyone_else_writes_is_not(path: str, lines: list[str]) -> None:
    """A unit that only mentions hostrouting or its scripts is foreign; the mark of hostrouting
    makes it own, and so does a name that hostrouting alone uses.
    """
    text = "".join(f"{line}\n" for line in lines)
    assert not is_own(path, text.encode())
    assert is_own(path, f"# Kept by a tool.\n# Installed by hostrouting.\n{text}".encode())
    assert is_own(f"{UNITS}/hostrouting-ready.service", text.encode())


@pytest.mark.parametrize(
    ("link", "own"), [("hostrouting/static-routes.service", True), ("/opt/site.service", False)]
)
def test_a_link_is_own_only_into_a_generation(link: str, own: bool) -> None:
    """A link counts as own only if it leads into a generation, whatever the content behind it."""
    assert is_own(STATIC, b"# Installed by hostrouting", link) == own
    assert not is_own(STATIC, b"", "/opt/gone.service")


# --- runs


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize(
    "path", [STATIC, PROBE, "/usr/lib/systemd/system/static-routes.service", RULESET_PATH]
)
def test_an_apply_that_needs_the_place_is_refused(path: str, is_live: bool, force: bool) -> None:
    """An apply that needs the place of a foreign unit is refused without a change, on a machine and
    in an image; the error has the path, the unit and the step.
    """
    host = gpu_node() if is_live else FakeHost(is_live=False)
    host.files.write(path, SITE, mode=0o644)
    before = host.files.tree.snapshot()
    wanted = config(**CHECKED, **ROUTES, probeSnat={"enabled": True, "dev": "eth0"})
    report = run(Configure(wanted, host=host, force=force), at_once())
    assert isinstance(getattr(report.error, "cause", None), UnitError)
    for word in path, "the unit 'Routes of the site'", "move the file away or rename it":
        assert word in str(report.error)
    assert host.files.tree.snapshot() == before
    assert not is_live or not host.routes.routes_of(OUR_PROTOCOL)
    planned = plan(Configure(wanted, host=host)).changes
    assert {each.subject for each in planned if each.kind == REFUSED} == {path}
    assert not report.changes


def test_a_reset_and_a_departing_section_leave_it(caplog: pytest.LogCaptureFixture) -> None:
    """A foreign unit stays active and enabled next to a config without its section, and after a
    reset; a warning and a note name it.
    """
    host = gpu_node()
    add_foreign(host, STATIC, PROBE)
    for unit in "static-routes.service", "probe-snat.service":
        host.services.start(at_once(), unit)
    kept = {path: host.files.tree.snapshot()[path] for path in (STATIC, PROBE, LINK)}
    assert names_of(host) == [("note", STATIC), ("note", PROBE)]
    wanted = config(routeOverlap={"expectedCidrs": ["10.96.0.0/16"]})
    for task in Configure(wanted, host=host), Reset(wanted, host=host):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert run(task, at_once()).ok
        texts = [each.getMessage() for each in caplog.records]
        assert sum(text.startswith((STATIC, PROBE)) for text in texts) == 2
        assert {path: host.files.tree.snapshot()[path] for path in kept} == kept
        for unit in "static-routes.service", "probe-snat.service":
            assert host.services.state(at_once(), unit).is_running
        assert names_of(host) == [("note", STATIC), ("note", PROBE)]
        if host.files.exists(CONFIG_PATH):
            assert not plan(task).changes
    assert not host.files.exists("/etc/aks-flex-node")
    assert f"{STATIC} belongs to another owner" in node_status(at_once(), host).absence


def test_a_unit_that_an_administrator_has_replaced() -> None:
    """For a unit that an administrator has replaced, `status` offers no apply and names the unit,
    and a reset removes all that is own, with the link that required the unit.
    """
    host = gpu_node()
    wanted = config(**CHECKED, **ROUTES)
    assert run(Configure(wanted, host=host), at_once()).ok
    add_foreign(host, STATIC)
    # What an apply would repair, too.
    host.files.remove(f"{UNITS}/check-route-overlap.service")
    status = node_status(at_once(), host)
    assert status.next is None
    assert status.step
    assert STATIC in status.step.text
    assert names_of(host) == [("error", STATIC)]
    assert status.facts is not None
    assert status.facts.differing_files == 2
    assert not run(Configure(wanted, host=host), at_once()).ok
    assert run(Reset(wanted, host=host), at_once()).ok
    left = [path for path in host.files.tree.snapshot() if "route" in path]
    assert sorted(left) == sorted([STATIC, LINK])


def test_a_first_check_offers_no_apply_that_is_refused() -> None:
    """A check before the first apply offers none if a foreign file would lead to its refusal."""
    host = gpu_node()
    add_foreign(host, STATIC)
    report = check_node(at_once(), config(**ROUTES), host, path="CONFIG")
    assert report.next is None
    assert report.step
    assert STATIC in report.step.text


def test_foreign_rules_are_not_deleted() -> None:
    """A run without probes leaves a foreign unit, its file of rules and its table; next to an own
    unit it leaves a foreign file of rules.
    """
    host = gpu_node()
    host.files.write(PROBE, SITE, mode=0o644)
    host.files.write(RULESET_PATH, b"table ip6 azureSLBProbe {}\n", mode=0o644)
    host.nftables.load(at_once(), "table ip6 azureSLBProbe\n")
    before = host.files.tree.snapshot()
    assert run(ConfigureProbeSNAT(config(), host=host), at_once()).ok
    assert host.files.tree.snapshot() == before
    assert host.nftables.table(at_once(), "ip6", "azureSLBProbe") is not None
    # Beside an own unit, the file of the rules stays, too.
    host.files.write(PROBE, b"# Installed by hostrouting", mode=0o644)
    assert run(ConfigureProbeSNAT(config(), host=host), at_once()).ok
    assert not host.files.exists(PROBE)
    assert host.files.read(RULESET_PATH) == b"table ip6 azureSLBProbe {}\n"
