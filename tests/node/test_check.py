"""The findings of `check`: addresses, drift from the config, and gates; on a fake machine."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.boots import DROP_IN, READY
from support.command_line import CHECKED as OVERLAP
from support.command_line import ROUTES
from support.kernel import connect
from support.live_routes import change_routes
from support.patience import at_once
from support.printed import (
    CORRECT_GATEWAY,
    GIVE_ROUTER,
    INSTALL_THERE,
    NO_IPV6_DEFAULT,
    NOT_IN_FORCE,
    NOT_LOADED,
    ONCE_ADDED,
    RELOADED,
)
from support.run_nodes import (
    PROBES,
    SWEEP,
    crowd,
    gpu_node,
    lose_nft,
    lose_our_routes,
    lose_the_default_route,
)

from hostrouting import Configure, HostRoutingConfig, Reset, node_status
from hostrouting.boot.installed_config import NOT_INSTALLED
from hostrouting.boot.layout import APPLIED_PATH
from hostrouting.cli import main
from hostrouting.exceptions import BackendError, PermissionDeniedError, UnitError
from hostrouting.host import Host, Route, RouteChange
from hostrouting.host.systemd.systemctl import Systemctl
from hostrouting.net.addresses import IPV6
from hostrouting.net.routes import Lookup, default_routes
from hostrouting.node.check import check_node
from hostrouting.node.fix import fixed, replaced
from hostrouting.node.remedies import fix_line
from hostrouting.node.report import NodeReport
from hostrouting.node.units import with_read_units
from hostrouting.route_overlap.check import check_egress
from hostrouting.route_overlap.expectation import Expectation
from hostrouting.testing import FakeHost
from hostrouting.testing.contracts.routes import arrange
from phases import CancelledError, Context, DeadlineExceededError, execute, run, task
from phases.hosting import leave
from phases.testing import ManualClock

NSPAWN = "systemd-nspawn@.service"
SCRIPT = "/etc/aks-flex-node/static-routes.sh"


def config_of(**sections: object) -> HostRoutingConfig:
    # Without it, each applied config with routes has a note.
    watch = {"watch": {"enabled": True}} if "staticRoutes" in sections else {}
    return HostRoutingConfig.from_mapping({"gates": [NSPAWN], **watch, **sections})


@pytest.fixture
def host() -> FakeHost:
    host = gpu_node()
    host.files.write(
        f"/lib/systemd/system/{NSPAWN}", b"[Service]\nExecStart=/bin/sleep infinity\n", mode=0o644
    )
    crowd(host)
    return host


def applied(host: FakeHost, **sections: object) -> HostRoutingConfig:
    config = config_of(**sections)
    execute(Configure(config, host=host), at_once())
    return config


def check(host: FakeHost, config: HostRoutingConfig) -> NodeReport:
    return check_node(at_once(), config, host)


def findings_of(report: NodeReport) -> list[tuple[str, str, str]]:
    return [(finding.severity, finding.kind, finding.subject) for finding in report.findings]


def test_a_node_that_is_as_the_config_wants_it(host: FakeHost) -> None:
    """A check of a node that is as the config wants it has one line of text, and JSON without
    findings.
    """
    report = check(host, applied(host, **ROUTES, **OVERLAP))
    assert report.ok
    assert report.lines() == ["right: 172.16.8.0/22 leaves through eth0"]
    assert check(host, applied(host, **ROUTES)).lines() == ["right: no findings"]
    keys = {"ok", "verdict", "next", "step", "mode", "expected_devs", "cidrs"}
    assert set(report.to_mapping()) == keys


LOST = "a route that another program removes stays lost"
STALE = "/run/hostrouting/route-overlap.ok may be out of date"


@pytest.mark.parametrize(
    ("sections", "effect"),
    [
        (
            {**ROUTES, **OVERLAP},
            f"{LOST} and {STALE}",
        ),
        (ROUTES, LOST),
        ({"routeOverlap": {"expectedCidrs": ["10.96.0.0/16"]}}, STALE),
    ],
)
def test_a_node_that_nothing_watches(
    host: FakeHost, sections: dict[str, object], effect: str
) -> None:
    """A node with an applied config and without `watch` has a note about what goes out of date;
    before the apply, and with `watch`, the note is absent.
    """
    unwatched = {**sections, "watch": {}}
    assert "not-watched" not in [
        kind for _, kind, _ in findings_of(check(host, config_of(**unwatched)))
    ]
    report = check(host, applied(host, **unwatched))
    assert report.ok
    [finding] = report.findings
    assert str(finding) == (
        f"note: not-watched: hostRouting.watch: without it {effect}, until a gated unit starts; "
        'write in hostRouting: "watch": {"enabled": true}'
    )
    watched = {**sections, "watch": {"enabled": True}}
    assert check(host, applied(host, **watched)).findings == ()


def test_a_sweep_alone_needs_no_watch(host: FakeHost) -> None:
    """A check of a config with the sweep alone does not note a missing watch."""
    assert check(host, applied(host, **SWEEP)).findings == ()


@pytest.mark.parametrize(
    ("route", "reason"),
    [
        (
            {"gateway": "10.9.9.9", "dev": "eth0"},
            f"the gateway 10.9.9.9 is not on a network of eth0; {CORRECT_GATEWAY}",
        ),
        (
            {"gateway": "10.224.0.4", "dev": "eth0"},
            f"its gateway is an address of this node, on eth0; {GIVE_ROUTER}",
        ),
    ],
)
@pytest.mark.parametrize("installed", [False, True])
def test_a_new_config_that_an_apply_refuses(
    host: FakeHost, route: dict[str, str], reason: str, installed: bool
) -> None:
    """A route that an apply would refuse is an error of `check` with the reason of the plan,
    whether or not a config is installed.
    """
    if installed:
        applied(host, **ROUTES)
    new = {"enabled": True, "routes": [{"destination": "172.17.0.0/24", **route}]}
    report = check(host, config_of(staticRoutes=new))
    [lost] = [finding for finding in report.findings if finding.subject.startswith("172.17.0.0/24")]
    assert not report.ok
    assert lost.kind == "lost-route"
    assert lost.severity == "error"
    assert lost.reason == f"{NOT_IN_FORCE} (will be refused: {reason})"


#: The files of a generation.
GENERATION = [
    APPLIED_PATH,
    *(f"/etc/aks-flex-node/hostrouting.{ending}" for ending in ("json", "zip")),
    *(f"/etc/aks-flex-node/hostrouting-{name}.sh" for name in ("ask", "retry")),
    *(SCRIPT, "/etc/aks-flex-node/check-route-overlap.sh"),
]


def lose_the_run_bit(host: FakeHost) -> None:
    """Remove the executable bit of a script, which would hold every gate (203/EXEC)."""
    path = "/etc/aks-flex-node/hostrouting/static-routes.sh"
    host.files.write(path, host.files.read(path) or b"", mode=0o644)


def exchange_the_files(host: FakeHost) -> None:
    """Foreign scripts below the link open all gates unseen."""
    for path in GENERATION:
        other = f"/etc/aks-flex-node/hostrouting-00000000/{Path(path).name}"
        host.files.write(other, b"#!/bin/bash\nexit 0\n", mode=0o755)
    host.files.link("/etc/aks-flex-node/hostrouting", "hostrouting-00000000")


def copy_the_files(host: FakeHost) -> None:
    """The files are right, but in another folder."""
    for path in GENERATION:
        mode = 0o755 if path.endswith(".sh") else 0o644
        host.files.write(f"/root/copy/{Path(path).name}", host.files.read(path) or b"", mode=mode)
    host.files.link("/etc/aks-flex-node/hostrouting", "/root/copy")


def edit_a_gate(host: FakeHost) -> None:
    """The next boot may open a gate whose file was changed without a reload."""
    host.services.start(at_once(), "systemd-nspawn@kube1.service")
    path = f"/lib/systemd/system/{NSPAWN}"
    host.files.write(path, (host.files.read(path) or b"") + b"# edited\n", mode=0o644)


def lose_the_unit_of_the_gates(host: FakeHost) -> None:
    """Remove the unit without which each gate would stay shut for good."""
    host.files.remove(READY)


def test_a_fresh_node_has_a_status() -> None:
    """The status of a node without a config is an answer, not an error: its only finding is that no
    config is applied.
    """
    for host in FakeHost(), FakeHost(is_live=False):
        status = node_status(at_once(), host)
        assert status.absence == status.sentence == status.to_mapping()["verdict"]
        assert status.sentence.startswith(NOT_INSTALLED)
        assert not status.ok
        assert [finding.kind for finding in status.check.findings] == ["not-applied"]


@pytest.mark.parametrize(
    ("damage", "subjects"),
    [
        (lose_the_run_bit, {SCRIPT}),
        (exchange_the_files, {*GENERATION} - {APPLIED_PATH}),
        (copy_the_files, {"/etc/aks-flex-node/hostrouting"}),
        (edit_a_gate, {"systemd"}),
        (lose_the_unit_of_the_gates, {READY}),
    ],
)
def test_boot_files_that_an_apply_would_change_are_errors(
    host: FakeHost, damage: Callable[[FakeHost], None], subjects: set[str]
) -> None:
    """A boot file that an apply would change is an error of `check` until that apply."""
    config = applied(host, **ROUTES, **OVERLAP)
    damage(host)
    errors = {found for found in findings_of(check(host, config)) if found[0] == "error"}
    assert errors == {("error", "boot-file", each) for each in subjects}
    applied(host, **ROUTES, **OVERLAP)
    assert findings_of(check(host, config)) == []


def test_a_foreign_route_before_an_own_one(host: FakeHost) -> None:
    """A foreign route before an own one is one finding, which names the foreign route, until an
    apply puts the own one first again.
    """
    config = applied(host, **ROUTES)
    host.routes.insert_route(
        Route.parse("172.16.8.0/22", gateway="10.224.0.9", dev="eth0", protocol=16), verb="prepend"
    )
    [finding] = check(host, config).findings
    assert finding.kind == "lost-route"
    assert "(hides '172.16.8.0/22 via 10.224.0.9" in finding.reason
    applied(host, **ROUTES)
    assert check(host, config).findings == ()


def test_a_connected_route_after_an_own_one(host: FakeHost) -> None:
    """A connected route that comes later in the place of an own route is a warning that names both
    routes.
    """
    config = applied(host, **ROUTES)
    connect(host.routes, ib7="172.16.8.4/22")
    [finding] = check(host, config).findings
    assert str(finding) == (
        "warning: hides-connected: 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142: hides the kernel's own "
        "route '172.16.8.0/22 dev ib7 proto kernel scope link src 172.16.8.4'; hostrouting would refuse "
        "to add it now; configure narrower destinations"
    )


@pytest.mark.parametrize("address", [None, "172.16.8.4/22"])
def test_the_verdict_after_a_run_is_that_of_status(host: FakeHost, address: str | None) -> None:
    """A status by the config of the run equals one by the installed config, also where a route
    comes before the kernel's own.
    """
    config = applied(host, **ROUTES)
    if address:
        connect(host.routes, ib7=address)
        applied(host, **ROUTES)
    assert (
        node_status(at_once(), host, config=config).to_mapping()
        == node_status(at_once(), host).to_mapping()
    )


def test_a_plan_after_a_run_that_was_killed(
    host: FakeHost,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """After a run that was killed, a plan lists the changes that the next apply makes, also if
    systemd has only to read its files.
    """
    applied(host, **ROUTES)
    execute(Reset(HostRoutingConfig(), host=host), at_once())
    host.files.write("/run/hostrouting.unfinished", b"", mode=0o644)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"gates": [NSPAWN], **ROUTES}))
    monkeypatch.setattr(Host, "live", lambda: host)
    # It would be the log of all tests after this one.
    monkeypatch.setattr("hostrouting.cli.log_to_stderr", lambda **_: None)
    assert main(["plan", "-v", str(config)]) == 0
    planned = capsys.readouterr().out
    assert main(["apply", str(config)]) == 0
    *changed, verdict = capsys.readouterr().out.splitlines()
    assert sorted(changed) == sorted(planned.splitlines())
    assert verdict[:6] == "right:"
    assert f"+ {SCRIPT}\n" in planned
    host.files.write("/run/hostrouting.unfinished", b"", mode=0o644)
    assert main(["plan", "--exit-code", str(config)]) == 4
    assert capsys.readouterr().out == f"{RELOADED}\n"


@pytest.mark.parametrize("missing", [[], [("error", "probe-snat", "IPv6 probes")]])
def test_probes_alone_where_the_cloud_is_silent(
    host: FakeHost, missing: list[tuple[str, ...]]
) -> None:
    """Where the cloud does not answer, a check of optional probes warns only that the config is not
    applied; required probes are an error as well.
    """
    host.metadata.error = BackendError("no answer")
    config = config_of(probeSnat={"enabled": True, "required": bool(missing)})
    assert findings_of(check(host, config)) == [("warning", "not-applied", "hostRouting"), *missing]


def test_nothing_installed_is_one_warning(host: FakeHost) -> None:
    """A check before the first apply has one warning, and its advice is to apply the routes that
    the config has, instead of others.
    """
    config = config_of(**ROUTES, **OVERLAP, **PROBES)
    report = check(host, config)
    assert findings_of(report) == [("warning", "not-applied", "hostRouting")]
    assert not report.ok
    assert "add these routes" not in str(report.overlap)
    assert "172.16.8.0/22" in report.overlap.advice
    assert "an apply adds them" in report.overlap.advice
    execute(Configure(config, host=host), at_once())
    assert check(host, config).ok


def test_a_lost_route_advises_an_apply(host: FakeHost) -> None:
    """A lost route that the config has is advised to be restored by an apply, and is not suggested
    as a new route.
    """
    config = applied(host, **ROUTES, **OVERLAP)
    lose_our_routes(host)
    report = check(host, config)
    assert findings_of(report) == [
        ("error", "lost-route", "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142")
    ]
    [finding] = report.findings
    assert finding.sentence == f"{NOT_IN_FORCE}; apply the config"
    assert "add these routes" not in report.overlap.advice
    [cidr] = report.to_mapping()["cidrs"]
    assert cidr["suggested_routes"] == []
    assert cidr["configured_routes"] == ["172.16.8.0/22"]


def test_the_proof_of_now_is_made_once(host: FakeHost) -> None:
    """A check that also decides whether a fix exists makes as many lookups as two checks."""
    lookups: list[object] = []
    ask = host.routes.lookup

    def lookup(destinations: Sequence[int], **options: Any) -> list[Lookup]:
        lookups.append(destinations)
        return ask(destinations, **options)

    host.routes.lookup = lookup  # type: ignore[method-assign]
    config = config_of(routeOverlap=OVERLAP["routeOverlap"])
    check_egress(host.routes, Expectation.of(config))
    once = len(lookups)
    report = check_node(at_once(), config, host, path="node.json")
    assert report.next == fix_line("node.json")
    assert len(lookups) == 2 * once


@pytest.mark.parametrize("chosen", [{"gateway": "172.16.0.9", "dev": "ib0"}, {"dev": "ib0"}])
def test_a_route_that_the_config_chooses_is_not_replaced(
    host: FakeHost, chosen: dict[str, str]
) -> None:
    """A wrong route whose device or gateway the config names is not replaced, also not by a fix:
    the advice names it with both outbound devices.
    """
    arrange(host.routes, "default via 172.16.0.9 dev ib0 metric 900")
    routes = {"enabled": True, "routes": [{"destination": "172.16.8.0/22", **chosen}]}
    config = config_of(staticRoutes=routes, routeOverlap=OVERLAP["routeOverlap"])
    change_routes(at_once(), config, host)
    report = check(host, config).overlap
    words = "172.16.8.0/22 dev ib0"
    if "gateway" in chosen:
        words = "172.16.8.0/22 via 172.16.0.9 dev ib0"
    assert report.suggested_routes == ()
    assert report.advice == (
        f"'{words}' is a route from the config and stays: if it is right, name its device in "
        "expectedDevs of routeOverlap; if not, correct it in staticRoutes."
    )
    assert fixed(at_once(), config, host) == (
        f"no routes in a config fix this node:\n{report.verdict}\n{report.advice}"
    )


def test_a_chosen_route_by_a_device_without_carrier_is_replaced(host: FakeHost) -> None:
    """A fix replaces a route of the config whose device is without carrier."""
    host.routes.add_link("eth1", carrier=False)
    host.routes.add_address("eth1", "10.225.0.4/16")
    route = {"destination": "172.16.8.0/22", "gateway": "10.225.0.1", "dev": "eth1"}
    config = config_of(staticRoutes={"enabled": True, "routes": [route]}, **OVERLAP)
    change_routes(at_once(), config, host)
    after = fixed(at_once(), config, host)
    assert isinstance(after, HostRoutingConfig)
    assert [*map(str, after.static_routes.routes)] == ["172.16.8.0/22 via 10.224.0.1 dev eth0"]


@pytest.mark.parametrize(("dev", "gateway"), [("eth0", "10.9.0.1"), ("eth7", "10.224.0.1")])
def test_a_route_that_the_node_cannot_have_is_replaced(
    host: FakeHost, dev: str, gateway: str
) -> None:
    """A fix replaces a route of the config whose gateway is in another network, or whose device
    does not exist.
    """
    route = {"destination": "172.16.8.0/22", "gateway": gateway, "dev": dev}
    config = config_of(staticRoutes={"enabled": True, "routes": [route]}, **OVERLAP)
    after = fixed(at_once(), config, host)
    assert isinstance(after, HostRoutingConfig)
    assert next(replaced(config, after)) == (
        f"staticRoutes: '172.16.8.0/22 via {gateway} dev {dev}' is replaced by "
        "'172.16.8.0/22 via 10.224.0.1 dev eth0'"
    )
    assert [*replaced(after, after)] == []


@pytest.mark.parametrize("hiding", [{"kind": "blackhole"}, {"dev": "ib0"}])
def test_our_hidden_route_needs_an_apply_and_no_other_route(
    host: FakeHost, hiding: dict[str, Any]
) -> None:
    """An own route that a foreign route hides needs an apply of the config as it is: neither the
    check nor a fix adds a route.
    """
    routes = [{"destination": "172.16.8.0/22"}, {"destination": "172.16.8.0/24"}]
    config = applied(host, staticRoutes={"enabled": True, "routes": routes}, **OVERLAP)
    host.routes.apply([RouteChange.prepend(Route.parse("172.16.8.0/22", protocol=4, **hiding))])
    report = check(host, config).overlap
    # To add a route over a blackhole is advised nowhere.
    configured = () if "kind" in hiding else ("172.16.8.0/22",)
    assert [(cidr.configured_routes, cidr.suggested_routes) for cidr in report.cidrs] == [
        (configured, ())
    ]
    assert fixed(at_once(), config, host) == config


def test_a_route_that_waits_for_a_default_route_is_reported(host: FakeHost) -> None:
    """A fix and a check report a route that waits for a default route, and neither claims that an
    apply could add it now.
    """
    applied(host, **ROUTES)
    config = config_of(
        staticRoutes={"enabled": True, "routes": [{"destination": "172.16.8.0/22", "dev": "ib0"}]}
    )
    reason = "no IPv4 default route uses ib0, so its gateway is unknown"
    assert reason in str(fixed(at_once(), config, host))
    assert f"{reason}); {ONCE_ADDED}apply the config" in check(host, config).findings[0].sentence


def test_a_route_that_was_looked_up_by_another_default_route(host: FakeHost) -> None:
    """A check reports a route that still leaves through the earlier default route after a better one has
    come.
    """
    config = applied(host, **ROUTES)
    connect(host.routes, eth1="10.9.0.4/16")
    [default] = [route for route in host.routes.routes() if not route.prefix_length]
    host.routes.apply([RouteChange.remove(default)])
    arrange(
        host.routes,
        "default via 10.224.0.1 dev eth0 metric 200",
        "default via 10.9.0.1 dev eth1 metric 100",
    )
    [finding] = check(host, config).findings
    assert finding.kind == "lost-route"
    assert finding.subject == "172.16.8.0/22 via 10.9.0.1 dev eth1 proto 142"
    assert "was '172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142'" in finding.reason


def test_the_mode_decides_the_severity_of_an_overlap(host: FakeHost) -> None:
    """An overlap is a warning under WARN and an error under STRICT; a missing default route is an
    error even under WARN.
    """
    shadowed = {"expectedCidrs": ["172.16.0.0/16"]}
    assert check(host, config_of(routeOverlap=shadowed)).severities == {"warning"}
    assert "error" in check(host, config_of(routeOverlap={**shadowed, "mode": "STRICT"})).severities
    lose_the_default_route(host)
    assert "error" in check(host, config_of(routeOverlap=shadowed)).severities


@pytest.mark.parametrize(
    "setting", [{"mode": "STRICT"}, {"fabric": ["172.16.0.0/16"]}, {"expectedDevs": ["eth0"]}]
)
def test_a_section_without_addresses_proves_nothing(
    host: FakeHost, setting: dict[str, object]
) -> None:
    """A section with a mode, a fabric or devices, and without addresses, is a warning: nothing is
    checked.
    """
    report = check(host, config_of(routeOverlap=setting))
    assert findings_of(report) == [("warning", "nothing-proven", "routeOverlap")]
    assert "give expectedCidrs or expected" in str(report.findings[0])
    assert check(host, config_of(routeOverlap={})).findings == ()


def test_a_machine_whose_systemd_does_not_answer(host: FakeHost) -> None:
    """A check of a machine whose systemd does not answer reports lost routes and files, and lists
    the missing answer once.
    """
    config = applied(host, **ROUTES)
    lose_our_routes(host)
    host.files.remove(DROP_IN)
    for number in range(1, 30):
        host.services.fail_at(number)
    report = check(host, config)
    assert findings_of(report) == [
        ("error", "lost-route", "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"),
        ("error", "boot-file", DROP_IN),
    ]
    assert report.not_asked == ("Failed to connect to bus: Connection refused",)


def test_a_systemctl_that_hangs_ends_no_check(host: FakeHost) -> None:
    """A systemctl that hangs leaves a check with the services of the host as they are, without
    units that were read before.
    """
    object.__setattr__(host, "services", Systemctl(("sh", "-c", "exec sleep 600")))
    assert with_read_units(Context(timeout=0.1), host, [NSPAWN]) is host


@pytest.mark.parametrize("look", ["check", "status"])
def test_a_look_that_lacks_time_is_an_answer(host: FakeHost, look: str) -> None:
    """A task that makes a check or a status without enough time succeeds, and its result is an
    answer that is not right.
    """
    config = applied(host, **ROUTES, **OVERLAP)
    clock = ManualClock()

    @task("look")
    def look_late(ctx: Context) -> None:
        clock.advance(1)
        if look == "check":
            leave(ctx, check_node(ctx, config, host))
        else:
            leave(ctx, node_status(ctx, host))

    report = run(look_late, Context(timeout=1, clock=clock))
    assert report.status == "ok"
    assert report.error is None
    assert not report.result.ok


def test_a_check_that_is_cancelled_has_no_verdict(host: FakeHost) -> None:
    """A check that is cancelled in any call of systemd raises CancelledError."""
    config = applied(host, **ROUTES, **OVERLAP)

    def end() -> None:
        ctx.cancel("SIGTERM")
        raise UnitError("it was interrupted")

    begun = len(host.services.operations.calls)
    check_node(at_once(), config, host)
    for number in range(1, len(host.services.operations.calls) - begun + 1):
        ctx = at_once()
        host.services.operations.plan(number, end)
        with pytest.raises(CancelledError):
            check_node(ctx, config, host)


def test_a_status_that_has_no_time_left(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A status without time has what was read before the deadline, and names the rest. The command
    ends with 3, as `check` does, and with 1 for an error.
    """
    applied(host, **ROUTES, **OVERLAP)
    clock = ManualClock()
    host.services.operations.plan(4, lambda: clock.advance(1))
    found = node_status(Context(timeout=1, clock=clock), host)
    facts = found.facts
    assert facts is not None
    assert (facts.routes, facts.lost_routes, facts.gates) == (1, 0, None)
    assert "gates: unknown" in found.lines()
    assert found.check.verdict == "unknown"
    assert not found.ok
    assert found.check.sentence == "unknown: there was no time to check gates and 5 more"
    for command in "status", "check":
        monkeypatch.setattr(
            f"hostrouting.cli.commands.{command}.context",
            lambda _: nullcontext(Context(timeout=0, clock=clock)),
        )
    monkeypatch.setattr("hostrouting.cli.log_to_stderr", lambda **_: None)
    monkeypatch.setattr(Host, "live", lambda: host)
    assert main(["status", "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert answer["routes"] == {"wanted": 1, "in_force": None}
    assert answer["boot_files"] == {"differ": None}
    assert f"not checked: routes: {DeadlineExceededError(0)}" in answer["verdict"]
    assert main(["check", "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert answer["unread"][:2] == ["routes", "files"]
    arrange(host.routes, "172.16.8.0/24 dev ib0")
    assert main(["status"]) == 1


# --- the optional features


def no_table(host: FakeHost) -> None:
    host.nftables.texts.clear()


def no_link(host: FakeHost) -> None:
    for kind in "wants", "requires":
        host.files.remove(f"{READY}.{kind}/probe-snat.service")


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("trouble", [no_table, lose_nft, no_link])
def test_probes(host: FakeHost, trouble: Callable[[FakeHost], None], required: bool) -> None:
    """A table of the probes that is gone, that cannot be read, or that the next boot would not load
    is a warning, or an error where the section has `required`.
    """
    config = applied(host, probeSnat={**PROBES["probeSnat"], "required": required})
    assert findings_of(check(host, config)) == []
    trouble(host)
    [(severity, kind, _)] = findings_of(check(host, config))
    assert severity == ("error" if required else "warning")
    assert kind == "probe-snat"


def no_root(host: FakeHost) -> None:
    host.services.failing.add("probe-snat.service")
    with pytest.raises(UnitError):
        host.services.start(at_once(), "probe-snat.service")
    for number in range(1, 9):
        host.nftables.fail_at(number, PermissionDeniedError("only root can read the table"))


@pytest.mark.parametrize(
    ("trouble", "named"),
    [
        (no_table, f"nft table ip6 azureSLBProbe: {NOT_LOADED}"),
        (lose_nft, "IPv6 probes: nft is needed for the probes' rules"),
        (no_root, "warning: probe-snat.service: its last run failed"),
    ],
)
def test_status_names_probes_whose_rules_are_not_loaded(
    host: FakeHost, trouble: Callable[[FakeHost], None], named: str
) -> None:
    """The status of a node without the rules of its optional probes is right, and its sentence
    names the rules, or without root the failed unit.
    """
    applied(host, **PROBES)
    trouble(host)
    status = node_status(at_once(), host)
    assert status.ok
    assert named in status.sentence


def test_the_siblings_troubles_are_named_before_the_first_apply(host: FakeHost) -> None:
    """A check before the first apply lists the troubles of optional capabilities that the apply
    will not fix, after the warning that nothing is applied.
    """
    for route in default_routes(host.routes.routes(IPV6)):
        host.routes.delete_route(route)
    watch = {"watch": {"enabled": True, "mode": "service"}}
    report = check(
        host, config_of(**ROUTES, probeSnat={"enabled": True, "detect": "always"}, **watch)
    )
    assert [kind for _, kind, _ in findings_of(report)] == ["not-applied", "probe-snat", "watch"]
    assert NO_IPV6_DEFAULT in report.findings[1].reason
    assert INSTALL_THERE in report.findings[2].reason


def test_missing_root_is_reported_and_is_not_an_error(host: FakeHost) -> None:
    """A check without the privilege to read packet rules is right, and `not_asked` lists the
    missing answers; the state of disabled sections is not read.
    """
    config = applied(host, **ROUTES, **PROBES, **SWEEP)
    host.nftables.may_read = host.ebtables.may_read = False
    report = check(host, config)
    assert report.ok
    assert len(report.not_asked) == 2
    assert all("root" in reason for reason in report.not_asked)
    assert report.to_mapping()["not_asked"] == list(report.not_asked)
    assert check(host, config_of()).not_asked == ()


def test_what_an_apply_would_refuse_is_not_suggested(host: FakeHost) -> None:
    """Instead of an IPv6 route that an apply would refuse next to a foreign one, `check` suggests
    the halves of its network, which an apply accepts.

    The next step is that answer instead of an apply, and the plan names the refused route once.
    """
    host.routes.add_address("ib0", "fd00:1b::4/64")
    arrange(
        host.routes,
        "::/0 via fe80::1 dev eth0 metric 9",
        "fd00:1b::1:0/112 via fe80::1b dev ib0 proto static metric 1",
    )
    config = config_of(
        staticRoutes={"enabled": True, "routes": [{"destination": "fd00:1b::1:0/112"}]},
        routeOverlap={
            "expectedCidrs": ["fd00:1b::1:0/112"],
            "mode": "STRICT",
            "expectedDevs": ["eth0"],
        },
    )
    report = check_node(at_once(), config, host, path="a.json")
    assert [kind for _, kind, _ in findings_of(report)] == ["not-applied", "lost-route"]
    assert report.next == fix_line("a.json")
    mended = report.overlap.merged_routes
    assert [route.destination for route in mended.routes] == [
        "fd00:1b::1:0/113",
        "fd00:1b::1:8000/113",
    ]
    undecided = Configure(config, host=host).planned(at_once()).forecast.undecided
    assert undecided.count("+ fd00:1b::1:0/112 ") == 1
    found = fixed(at_once(), config, host)
    assert isinstance(found, HostRoutingConfig)
    assert found.static_routes == mended
    change_routes(at_once(), found, host)
    assert check_node(at_once(), found, host).overlap.ok
