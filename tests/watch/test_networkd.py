"""The settings of systemd-networkd are read as networkd reads them, and the drop-in comes and goes
with the config.
"""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.command_line import ROUTES
from support.patience import at_once
from support.run_nodes import apply, config, node

from hostrouting import Configure, HostRoutingConfig, Reset, check_node, render_files
from hostrouting.base.findings import NodeFinding
from hostrouting.host import IPV4, IPV6, ObservedRoute, Rule
from hostrouting.host.units import MASK
from hostrouting.testing import FakeHost, MemoryFiles
from hostrouting.watch.networkd import (
    DROP_IN_PATH,
    ForeignRoutes,
    drop_in,
    foreign_routes,
    networkd_findings,
    networkd_texts,
)
from phases import execute, plan

MAIN = "/etc/systemd/networkd.conf"
TRUE = "1", "yes", "Y", "true", "T", "ON"
FALSE = "0", "No", "n", "FALSE", "f", "off"
FOLDERS = "/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd"
WATCHED: dict[str, Any] = {**ROUTES, "watch": {"enabled": True}}
KEPT: dict[str, Any] = {**ROUTES, "watch": {"enabled": True, "keepForeignRoutes": True}}

white = st.text(" \t", max_size=3)
#: What systemd reads between two lines that count: nothing, a comment, another setting, a word
#: without meaning.
noise = st.sampled_from(
    ["", "  ", "# ManageForeignRoutes=maybe\\", "; x", "SpeedMeter=no", "word", "=no", "X=[Network"]
)
unreadable = st.sampled_from(["", "maybe", "2", "yes no", "no # not a comment"])


@st.composite
def assignments(draw: st.DrawFn, value: str) -> str:
    """The assignment, with white space, and on one line or on two with a comment in between."""
    around = [draw(white) for _ in range(4)]
    begun = draw(st.sampled_from(["", "\\\n", "\\\n# comment\n  ", "\\\r\n ; no\\\n"]))
    return f"{around[0]}ManageForeignRoutes{around[1]}={begun}{around[2]}{value}{around[3]}"


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, bool | None]:
    """The text of one file, and the switch that it sets; None for no switch."""
    lines = []
    found = None
    for _ in range(draw(st.integers(0, 4))):
        section = draw(st.sampled_from(["Network", "DHCPv4", "network", "Network ", ""]))
        lines.append(f"{draw(white)}[{section}]{draw(white)}")
        for _ in range(draw(st.integers(0, 3))):
            lines.append(draw(noise))
            is_on = draw(st.sampled_from([True, False, None]))
            value = draw(unreadable if is_on is None else st.sampled_from(TRUE if is_on else FALSE))
            lines.append(draw(assignments(value)))
            if is_on is not None and section == "Network":
                found = is_on
    return draw(st.sampled_from(["\n", "\r\n", "\r"])).join(lines), found


@given(st.lists(texts(), max_size=4))
@example([("[Network]\nManageForeignRoutes=No", False)])
def test_the_last_readable_switch_of_its_section_counts(
    files: list[tuple[str, bool | None]],
) -> None:
    """The last switch in the section [Network] that can be read counts, whatever comments,
    continued lines, repeated sections and unreadable values surround it.
    """
    switched = [(str(at), is_on) for at, (_, is_on) in enumerate(files) if is_on is not None]
    path, is_on = switched[-1] if switched else (None, True)
    assert foreign_routes({str(at): text for at, (text, _) in enumerate(files)}) == ForeignRoutes(
        is_on, path
    )


@given(st.sampled_from(["[Network", "[", "[a'b]", '[a"]', "[a\\\\b]", "[a]b"]), texts(), texts())
def test_a_broken_header_ends_the_reading(
    header: str, before: tuple[str, bool | None], after: tuple[str, bool | None]
) -> None:
    """The rest of a file after a broken header, and any later file, is not read."""
    found = foreign_routes({"1": f"{before[0]}\n{header}\n{after[0]}", "2": after[0]})
    assert found == foreign_routes({"1": before[0]})


places = st.tuples(
    st.sampled_from(FOLDERS),
    st.sampled_from(["05-a.conf", "10-b.conf", "9.conf", "Z.conf", "z.conf"]),
)


@given(st.sets(places), st.sets(places), st.sets(st.sampled_from(FOLDERS)))
def test_the_files_are_in_the_order_of_their_names(
    present: set[tuple[str, str]], masked: set[tuple[str, str]], main: set[str]
) -> None:
    """The files of networkd are one main file, and of each drop-in's name the file of the first
    folder, in the order of the bytes; a mask hides the file.
    """
    files = MemoryFiles()
    for folder in main:
        # An editor wrote a byte order mark.
        files.write(f"{folder}/networkd.conf", b"\xef\xbb\xbfmain", mode=0o644)
    for folder, name in present - masked:
        files.write(f"{folder}/networkd.conf.d/{name}", b"text", mode=0o644)
        files.write(f"{folder}/networkd.conf.d/{name}.bak", b"another", mode=0o644)
        files.write(f"{folder}/networkd.conf.d/.{name}", b"hidden", mode=0o644)
    for folder, name in masked:
        files.link(f"{folder}/networkd.conf.d/{name}", MASK)
    everything = sorted(present | masked, key=lambda place: FOLDERS.index(place[0]), reverse=True)
    first = {name: folder for folder, name in everything}
    wanted = [f"{folder}/networkd.conf" for folder in FOLDERS if folder in main][:1]
    wanted += [f"{first[name]}/networkd.conf.d/{name}" for name in sorted(first)]
    read = networkd_texts(files)
    assert list(read) == wanted
    assert set(read.values()) <= {"main", "text", ""}
    decided_by_a_mask = [name for name in sorted(first) if (first[name], name) in masked]
    assert [path for path, text in read.items() if not text] == [
        f"{first[name]}/networkd.conf.d/{name}" for name in decided_by_a_mask
    ]


def test_the_drop_in_switches_it_off() -> None:
    """The drop-in switches the management of foreign routes and of foreign rules off."""
    file = drop_in()
    for key in "ManageForeignRoutes", "ManageForeignRoutingPolicyRules":
        found = foreign_routes({file.path: file.content.decode()}, wanted=key)
        assert found == ForeignRoutes(are_managed=False, path=file.path)


@pytest.mark.parametrize(("protocol", "is_foreign"), [(2, False), (3, True), (4, False)])
def test_rules_of_other_programs_are_removed_by_a_switch_of_their_own(
    protocol: int, is_foreign: bool
) -> None:
    """A foreign policy rule that networkd would remove is a finding, and a rule of the kernel or of
    networkd is not; with the drop-in the finding is gone.
    """
    host = managing(node())
    host.files.write(MAIN, b"[Network]\nManageForeignRoutes=no\n", mode=0o644)
    host.routes.add_rule(Rule(70, table=88, source=(0x0AE00004, 32), protocol=protocol))
    found = findings(host, **ROUTES)
    assert [("policy rules" in each.reason, each.subject) for each in found] == [(True, "eth0")][
        :is_foreign
    ]
    assert all("ManageForeignRoutingPolicyRules= is on by default" in each.reason for each in found)
    assert findings(host, **KEPT) == []


def test_rules_and_default_routes_of_ipv6() -> None:
    """IPv6 rules and default routes count only for a config that has IPv6."""
    host = managing(node())
    host.files.write(MAIN, b"[Network]\nManageForeignRoutes=no\n", mode=0o644)
    host.routes.add_rule(Rule(70, table=88, protocol=3, family=IPV6))
    assert findings(host, **ROUTES) == []
    [found] = findings(
        host, staticRoutes={"enabled": True, "routes": [{"destination": "fd00:1::/64"}]}
    )
    assert found.subject == "eth0"
    assert "policy rules" in found.reason


# --- the findings

WITH_A_FILE = "configuring", "configured", "failed"


def managing(host: FakeHost, state: str = "configured") -> FakeHost:
    """Let networkd run on the node, and have eth0."""
    host.files.write(
        "/lib/systemd/system/systemd-networkd.service",
        b"[Service]\nExecStart=/bin/sleep\n",
        mode=0o644,
    )
    host.services.start(at_once(), "systemd-networkd.service")
    [index] = [device.ifindex for device in host.routes.links() if device.name == "eth0"]
    text = f"# This is private data. Do not parse.\nADMIN_STATE={state}\nOPER_STATE=routable\n"
    host.files.write(f"/run/systemd/netif/links/{index}", text.encode(), mode=0o644)
    return host


def findings(host: FakeHost, **sections: object) -> list[NodeFinding]:
    found = check_node(at_once(), config(**sections), host).findings
    return [finding for finding in found if finding.kind == "networkd"]


def test_a_warning_with_the_remedy() -> None:
    """Static routes on a device of networkd are a warning without a watch, a note with one, and
    fine with the drop-in.
    """
    host = managing(node())
    [without] = findings(host, **ROUTES)
    assert str(without) == (
        "warning: networkd: eth0: systemd-networkd manages it, and removes its static routes at its next start, or "
        "when it reconfigures the device; ManageForeignRoutes= is on by default; set hostRouting.watch.enabled and "
        "hostRouting.watch.keepForeignRoutes to true"
    )
    [watched] = findings(host, **WATCHED)
    assert watched.severity == "note"
    assert watched.reason.endswith("; set hostRouting.watch.keepForeignRoutes to true")
    assert findings(host, **KEPT) == []
    assert findings(host, routeOverlap={"expectedCidrs": ["10.224.0.0/16"]}) == []


@pytest.mark.parametrize(
    "state", [*WITH_A_FILE, "unmanaged", "pending", "initialized", "linger", ""]
)
def test_routes_are_read_only_where_a_device_is_managed(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Routes are read, and a device is a finding, only if networkd has a .network file for that
    device.
    """
    host = managing(node(), state)
    wanted = HostRoutingConfig.from_mapping(
        {"staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]}}
    )
    routes = host.routes.routes
    read: list[int] = []

    def count(family: int = IPV4) -> list[ObservedRoute]:
        read.append(family)
        return routes(family)

    monkeypatch.setattr(host.routes, "routes", count)
    found = networkd_findings(at_once(), wanted, host)
    assert [finding.subject for finding in found] == ["eth0"] * (state in WITH_A_FILE)
    assert bool(read) == (state in WITH_A_FILE)


def test_a_networkd_that_does_not_run() -> None:
    """A networkd that does not run is not a finding, though its files below /run stay."""
    host = managing(node())
    host.services.stop(at_once(), "systemd-networkd.service")
    assert findings(host, **ROUTES) == []


def test_the_file_with_the_setting_is_named() -> None:
    """The finding names the file that switches the management on, and the file that must change
    since it counts more than the drop-in.
    """
    host = managing(node())
    host.files.write(MAIN, b"[Network]\nManageForeignRoutes=yes\n", mode=0o644)
    [finding] = findings(host, **ROUTES)
    assert f"ManageForeignRoutes= is on in {MAIN}" in finding.reason
    assert findings(host, **KEPT) == []
    later = "/run/systemd/networkd.conf.d/99-mine.conf"
    host.files.write(later, b"[Network]\nManageForeignRoutes=yes\n", mode=0o644)
    [finding] = findings(host, **KEPT)
    assert finding.reason.endswith(
        f"; remove ManageForeignRoutes= from {later}, which counts more than {DROP_IN_PATH}"
    )
    host.files.write(later, b"[Network]\nManageForeignRoutes=no\n", mode=0o644)
    assert findings(host, **ROUTES) == []


# --- the drop-in


def test_it_comes_and_goes_with_the_config() -> None:
    """The drop-in is a part of plan, apply and render, and is removed by a config without it, by an
    empty config and by a reset.
    """
    host = node()
    wanted = config(**KEPT)
    assert DROP_IN_PATH in [
        change.subject for change in plan(Configure(wanted, host=host), at_once()).changes
    ]
    apply(host, **KEPT)
    assert host.files.read(DROP_IN_PATH) == drop_in().content
    assert drop_in() in render_files(wanted, host=host).files
    assert not plan(Configure(wanted, host=host), at_once()).changes
    apply(host, **WATCHED)
    assert not host.files.exists(DROP_IN_PATH)
    assert not host.files.exists("/etc/systemd/networkd.conf.d")
    for last in Reset(wanted, host=host), Configure(HostRoutingConfig(), host=host):
        apply(host, **KEPT)
        execute(last, at_once())
        assert not host.files.exists("/etc/systemd/networkd.conf.d")
