"""Configure and Reset: all tasks under one lock, on fakes."""

import logging
import re
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
from support.boots import DROP_IN
from support.command_line import CHECKED as OVERLAP
from support.command_line import ROUTES
from support.patience import at_once
from support.printed import REPLACE_IT, STAY_SHUT, UNKNOWN_STATE
from support.run_nodes import (
    PROBES,
    SWEEP,
    crowd,
    gpu_node,
    lose_nft,
    lose_our_routes,
    lose_the_default_route,
    own_routes,
    state,
)

from hostrouting import (
    CheckRouteOverlap,
    Configure,
    Host,
    HostRoutingConfig,
    OverlapReport,
    Reset,
    check_node,
    node_status,
    render_files,
)
from hostrouting.boot.boot import Boot
from hostrouting.boot.layout import CONFIG_PATH, UNFINISHED
from hostrouting.exceptions import (
    BackendError,
    InvalidConfigError,
    LinkNotFoundError,
    LockHeldError,
    NoSystemdError,
    RouteOverlapError,
    RouteRejectedError,
    UnitError,
)
from hostrouting.host import IPV6
from hostrouting.host.systemd.systemctl import Systemctl
from hostrouting.net.routes import default_routes
from hostrouting.node.status import verdict_now
from hostrouting.testing import FakeHost, MemoryMetadata
from phases import (
    Context,
    Event,
    Report,
    Serial,
    TaskFailedError,
    execute,
    plan,
    run,
    undo,
    with_retry,
)
from phases.testing import ManualClock

DEAD_POD = "-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.240.0.9 -j dnat --to-dst 12:34:56:78:9a:bc --dnat-target ACCEPT"


@pytest.fixture
def host() -> FakeHost:
    return gpu_node()


def configure(host: FakeHost, **sections: object) -> Configure:
    return Configure(HostRoutingConfig.from_mapping({"gates": [], **sections}), host=host)


@pytest.mark.parametrize("folder", ["/etc", "/etc/systemd/system", "/etc/aks-flex-node"])
def test_a_read_only_disk_keeps_the_earlier_routes(host: FakeHost, folder: str) -> None:
    """On a read-only disk an apply of a new config is refused before its routes are live, and an
    apply of the installed config still restores lost routes.
    """
    execute(configure(host, **ROUTES))
    before = own_routes(host), host.files.tree.snapshot()
    host.files.tree.read_only.add(folder)
    other = {"staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/21"}]}}
    with pytest.raises(TaskFailedError) as caught:
        execute(configure(host, **other))
    sentence = re.fullmatch(
        r"cannot write below (\S+): Read-only file system; run: mount -o remount,rw .* -T \1\)\"; "
        r"nothing .*",
        str(caught.value.cause),
    )
    assert sentence is not None
    assert sentence[1].startswith(folder)
    assert (own_routes(host), host.files.tree.snapshot()) == before
    lose_our_routes(host)
    execute(configure(host, **ROUTES))
    assert own_routes(host) == before[0]


def test_a_deadline_does_not_hide_the_causes() -> None:
    """An apply on a node without a default route fails by the check, though the wait for the route
    takes all the time.
    """
    host = FakeHost()
    context = Context(timeout=20, clock=ManualClock(auto=True))
    host.routes.add_link("eth0")
    report = run(configure(host, **OVERLAP), context)
    assert isinstance(report.error, TaskFailedError)
    assert [type(cause) for cause in report.error.failures] == [RouteOverlapError]


def test_routes_are_compared_again_after_new_files(
    host: FakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    """An apply that installs new files compares the routes a second time after them, as a unit that
    starts meanwhile runs the earlier script; one without new files compares once.
    """
    execute(configure(host, **ROUTES))
    caplog.set_level(logging.INFO)
    for sections, counts in (ROUTES, ["0"]), ({**ROUTES, "gates": ["a.service"]}, ["0"] * 2):
        caplog.clear()
        execute(configure(host, **sections))
        texts = [text for text in caplog.messages if text.startswith("routes changed")]
        assert texts == [f"routes changed: {count}" for count in counts]


def test_an_agent_sees_the_overlap_that_warn_tolerates(host: FakeHost) -> None:
    """A run under WARN with an overlap is ok and degraded, and its report has the check at the path
    of the step.

    A run that skips the check is degraded, too; one for an image, where nothing is checked, is not.
    """
    warned = {"routeOverlap": {**OVERLAP["routeOverlap"], "mode": "WARN"}}
    report = run(configure(host, **warned))
    assert report.ok
    assert report.degraded
    proof = report.find("configure/check-route-overlap").result
    assert [finding.kind for _, finding in proof.findings] == ["overlap"]
    assert report.result_of(OverlapReport) is proof
    # The fourth step is check-route-overlap.
    step = report.to_mapping()["children"][3]
    assert step["result"]["cidrs"][0]["cidr"] == "172.16.8.0/22"
    decider = "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4"
    reason = f"172.16.8.0/22: overlap 172.16.8.0-172.16.11.255 through ib0 ({decider})"
    assert step["reasons"] == report.reasons == [reason]
    skipped = run(configure(host, **warned), skip=["check-route-overlap"])
    assert skipped.ok
    assert skipped.degraded
    assert skipped.result is None
    check = CheckRouteOverlap(HostRoutingConfig.from_mapping(warned), host=host)
    assert run(Serial(with_retry(check, attempts=2)), skip=[check.name]).degraded
    host.routes.remove_address("ib0", "172.16.1.4/16")
    right = run(configure(host, **warned))
    assert right.ok
    assert not right.degraded
    machine = FakeHost(is_live=False)
    machine.files.programs |= host.files.programs
    image = run(configure(machine, **warned))
    assert image.ok
    assert not image.degraded
    assert image.find("configure/check-route-overlap").result is None
    # What nobody has looked at may need something.
    assert not any(line.startswith("next: ") for line in node_status(Context(), machine).lines())


@pytest.mark.parametrize("is_live", [True, False])
def test_a_program_that_the_boot_lacks_degrades_the_run(*, is_live: bool) -> None:
    """A run on a node or for an image without a program of the boot is ok and degraded, and the
    report of its step has the finding of `check_node`, also within a larger task.
    """
    host = gpu_node() if is_live else FakeHost(is_live=False)
    host.files.programs |= FakeHost().files.programs
    host.files.programs.remove("/usr/bin/flock")
    config = HostRoutingConfig.from_mapping(ROUTES)
    whole = Serial(Configure(config, host=host), name="bootstrap")
    report = run(whole)
    step = report.find("bootstrap/configure")
    assert report.ok
    assert report.degraded
    assert step.degraded
    [finding] = step.result.findings
    assert finding.kind == "no-program"
    assert finding.subject == "flock"
    assert finding.severity == "error"
    assert STAY_SHUT in finding.reason
    assert finding in check_node(Context(), config, host).findings
    host.files.programs.add("/usr/local/sbin/flock")
    mended = run(whole)
    assert not mended.degraded
    assert mended.find("bootstrap/configure").result.findings == ()


def test_an_image_names_each_program_that_it_lacks() -> None:
    """The step of an image without several programs has each of them as a reason."""
    image = FakeHost(is_live=False)
    image.files.programs |= FakeHost().files.programs - {"/usr/bin/flock", "/usr/bin/nsenter"}
    report = run(configure(image, **ROUTES))
    assert [reason.split(": ")[0] for reason in report.reasons] == ["flock", "nsenter"]


@pytest.mark.parametrize("named", [None, "/opt/agent/bin/hostrouting"])
def test_the_watch_of_an_image_runs_a_command_of_the_image(named: str | None) -> None:
    """The service of an image runs the command that the caller names, or that of a package; without
    it, the run is degraded, and the step says which command is missing.
    """
    fake = FakeHost(is_live=False)
    fake.files.programs |= FakeHost().files.programs
    image = Host(
        routes=fake.routes,
        services=fake.services,
        files=fake.files,
        lock=fake.lock,
        is_live=False,
        command=named,
    )
    sections = {**ROUTES, "watch": {"enabled": True, "mode": "service"}, "gates": []}
    work = Configure(HostRoutingConfig.from_mapping(sections), host=image)
    command = named or "/usr/bin/hostrouting"
    report = run(work)
    assert report.degraded
    [failure] = report.find("configure-watch").failures
    assert f"the command {command} of hostrouting-watch.service is missing" in str(failure)
    fake.files.tree.write(command, b"", mode=0o755)
    assert not run(work).degraded
    unit = fake.files.read("/etc/systemd/system/hostrouting-watch.service") or b""
    assert f"ExecStart={command} watch" in unit.decode()


@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
def test_a_route_that_goes_after_the_proof_degrades_the_run(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that loses its route after the check, and is cancelled then, is ok and degraded; its
    report has the lost route and a new check.
    """
    host = gpu_node()
    ctx = at_once(60)
    release = Boot.release

    def lose(*words: Any, **options: Any) -> object:
        released = release(*words, **options)
        lose_our_routes(host)
        ctx.cancel("too late")
        return released

    monkeypatch.setattr(Boot, "release", lose)
    section = {**OVERLAP["routeOverlap"], "mode": mode}
    report = run(configure(host, **ROUTES, routeOverlap=section), ctx)
    assert report.ok
    assert report.degraded
    assert [finding.kind for finding in report.result.findings] == ["lost-route"]
    assert report.result.is_wrong
    assert not report.result.overlap.ok


def test_the_verdict_of_a_run_is_the_proof_that_commits_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A foreign route that comes after the last check of a run does not change the run's verdict; a
    later `check` finds it.
    """
    host = gpu_node()
    release = Boot.release

    def hide(*words: Any, **options: Any) -> object:
        host.routes.add_route("172.16.8.0/24", dev="ib0")
        return release(*words, **options)

    monkeypatch.setattr(Boot, "release", hide)
    section = {**OVERLAP["routeOverlap"], "mode": "WARN"}
    whole = configure(host, **ROUTES, routeOverlap=section)
    report = run(whole, at_once())
    assert report.ok
    assert not report.degraded
    assert whole.applied is not None
    assert whole.applied.overlap is report.find("configure/check-route-overlap").result
    config = HostRoutingConfig.from_mapping({**ROUTES, "routeOverlap": section})
    assert not check_node(Context(), config, host).overlap.ok


def test_a_last_look_that_fails_degrades_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An apply whose last reading of the routes fails is ok and not degraded, and lists the missing
    answer.
    """
    host = gpu_node()
    looked = []
    release = Boot.release

    def refuse(*_: object) -> object:
        looked.append("routes")
        raise BackendError("no answer")

    def fail(*words: Any, **options: Any) -> object:
        monkeypatch.setattr(host.routes, "routes", refuse)
        return release(*words, **options)

    monkeypatch.setattr(Boot, "release", fail)
    report = run(configure(host, **ROUTES))
    assert report.ok
    assert not report.degraded
    assert report.result.not_asked == ("no answer",)
    assert looked
    monkeypatch.undo()
    assert verdict_now(Context(), host, applied=report.result).check.not_asked == ("no answer",)


def test_skipped_boot_files_degrade_a_strict_run() -> None:
    """A run that skips the boot files, which hold the gates, is degraded under STRICT, and not
    under WARN; a run that skips the routes is not degraded.
    """
    strict = configure(gpu_node(), **ROUTES, **OVERLAP)
    skipped = run(strict, skip=["install-boot-files"])
    assert skipped.ok
    assert skipped.degraded
    warned = {"routeOverlap": {**OVERLAP["routeOverlap"], "mode": "WARN"}}
    skipped = run(configure(gpu_node(), **ROUTES, **warned), skip=["install-boot-files"])
    assert skipped.ok
    assert not skipped.degraded
    host = gpu_node()
    skipped = run(configure(host, **ROUTES), skip=["configure-static-routes"])
    assert skipped.ok
    assert not skipped.degraded
    assert own_routes(host) == []


def test_a_verdict_is_neither_true_nor_false(host: FakeHost) -> None:
    """A status or a check in a condition such as `if report:`, which would start a machine on a bad
    node, raises a TypeError that names the field to read.
    """
    execute(configure(host, **ROUTES))
    status = node_status(Context(), host)
    for verdict in status, status.check.overlap:
        with pytest.raises(TypeError, match=rf"^{type(verdict).__name__} is .* test \S*\.ok"):
            bool(verdict)


VOID = {"routeOverlap": {"mode": "STRICT"}, "staticRoutes": {"enabled": True, "routes": []}}
AGENTS = {"nodeName": "gpu-1"}


@pytest.mark.parametrize(
    "document", [{"hostRouting": VOID}, {"gates": ["kubelet.service"]}, {"watch": None}]
)
def test_a_config_that_installs_nothing_is_refused_over_another_one(
    host: FakeHost, document: dict[str, Any]
) -> None:
    """An apply and a plan of a config that installs nothing are refused while another config is
    installed, and the error names the empty fields; nothing is changed or started.
    """
    execute(configure(host, **ROUTES))
    before = state(host)
    host.services.operations.calls.clear()
    for act in execute, plan:
        with pytest.raises(TaskFailedError) as caught:
            act(Configure(HostRoutingConfig.from_mapping(document), host=host))
        assert isinstance(caught.value.cause, InvalidConfigError)
        first, *fields = caught.value.cause.errors
        assert first.message.startswith(
            "installs nothing; to remove everything that hostrouting installed, write "
        )
        assert [path for path, _ in fields] == [
            f"hostRouting.{key}" for key in document.get("hostRouting", document)
        ]
    assert state(host) == before
    assert host.services.operations.calls == []


@pytest.mark.parametrize("document", [AGENTS, {**AGENTS, "hostRouting": None}, {}])
@pytest.mark.parametrize("installed", [True, False])
def test_an_agents_config_without_hostrouting_changes_nothing(
    host: FakeHost, caplog: pytest.LogCaptureFixture, document: dict[str, object], installed: bool
) -> None:
    """An agent's config without hostrouting leaves all that is installed, as upstream's nil config
    does, also after an undo, and logs one warning a run.
    """
    if installed:
        execute(configure(host, **ROUTES))
    before = state(host)
    task = Configure(HostRoutingConfig.from_mapping(document), host=host)
    assert plan(task).changes == ()
    execute(task)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    wanted = (
        "nothing is changed, and what is installed stays: hostRouting is missing or null (is this "
    )
    # One of the plan, and one of the run.
    assert [message.startswith(wanted) for message in warnings] == [True, True]
    undo(task)
    assert run(task, skip=["clean-stale-cni"]).ok
    assert state(host) == before


def test_only_an_explicit_empty_config_removes_everything(
    host: FakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty config, as `{"hostRouting": {}}` or made in Python, removes everything; a void one
    on a fresh node changes nothing and is a warning.
    """
    before = state(host)
    void = Configure(HostRoutingConfig.from_mapping(VOID), host=host)
    execute(void)
    assert plan(void).changes == ()
    assert "hostRouting.staticRoutes installs nothing: routes is empty" in caplog.text
    for empty in HostRoutingConfig.from_mapping({"hostRouting": {}}), HostRoutingConfig():
        execute(configure(host, **ROUTES))
        execute(Configure(empty, host=host))
        assert state(host) == before


def test_a_look_that_is_cancelled_has_a_verdict(host: FakeHost) -> None:
    """A look at the node that is cancelled returns an unknown verdict instead of an error."""
    execute(configure(host, **ROUTES))
    ctx = Context()
    ctx.cancel("stop")
    seen = verdict_now(ctx, host)
    assert seen.sentence == f"{UNKNOWN_STATE}cancelled: stop"
    assert (seen.check.verdict, seen.next) == ("unknown", "hostrouting check")


def test_a_damaged_config_names_its_own_step(host: FakeHost) -> None:
    """The verdict on a node with a damaged config names how to replace the file, and proposes no
    check, which would fail by the same error.
    """
    host.files.write(CONFIG_PATH, b"{", mode=0o644)
    seen = verdict_now(Context(), host)
    assert seen.sentence.startswith(f"{UNKNOWN_STATE}the installed config ")
    assert seen.sentence.endswith(REPLACE_IT)
    assert seen.next is None


def test_each_task_can_be_done_alone(host: FakeHost) -> None:
    """The tasks of Configure and of Reset, each run alone and in turn, leave the node as the whole
    does.
    """
    other = gpu_node()
    execute(configure(other, **ROUTES, **OVERLAP), at_once())
    whole = configure(host, **ROUTES, **OVERLAP)
    assert repr(whole) == "<Configure configure>"
    reports = [run(subtask, at_once()) for subtask in whole.subtasks]
    assert [report.status for report in reports] == [*["ok"] * 3, *["skipped"] * 3]
    # The boot files, the routes, and the check.
    assert [bool(report.changes) for report in reports[:3]] == [True, True, True]
    assert isinstance(reports[2].result, OverlapReport)
    assert state(host) == state(other)
    execute(whole, at_once())
    assert state(host) == state(other)
    for subtask in Reset(HostRoutingConfig(), host=host).subtasks:
        execute(subtask)
    assert state(host) == state(gpu_node())


def test_a_step_without_work_is_skipped_and_says_why(host: FakeHost) -> None:
    """A feature that is not in the config is reported as skipped, not as ok, and so is one that an
    image cannot have.
    """
    image = FakeHost(is_live=False)
    image.files.programs |= FakeHost().files.programs
    absent = dict.fromkeys(("configure-probe-snat", "configure-watch"), "not in the config")
    pair = "configure-static-routes", "check-route-overlap"
    for node, sections, reasons in (
        (host, SWEEP, dict.fromkeys(pair, "not in the config")),
        (host, {**ROUTES, **OVERLAP}, {"clean-stale-cni": "not in the config"}),
        (
            image,
            {**ROUTES, **OVERLAP, **SWEEP},
            dict.fromkeys((*pair, "clean-stale-cni"), "an image is not running"),
        ),
    ):
        report = run(configure(node, **sections), at_once())
        skipped = [each for each in report.walk() if each.status == "skipped"]
        assert {each.name: "; ".join(each.reasons) for each in skipped} == reasons | absent
        assert report.ok
        assert not report.degraded


def test_a_feature_that_is_removed_is_not_skipped(host: FakeHost) -> None:
    """A run that removes the routes of an earlier config reports that step as ok."""
    execute(configure(host, **ROUTES), at_once())
    report = run(configure(host, **SWEEP), at_once())
    assert report.find("configure-static-routes").status == "ok"
    assert own_routes(host) == []


def test_a_task_alone_joins_no_run_of_another_thread(host: FakeHost) -> None:
    """A task that is run alone waits for the run of another thread, though both are of one
    pipeline.
    """
    whole = configure(host, **ROUTES)
    others: list[Report] = []

    def do_alone() -> None:
        others.append(run(whole.subtasks[1], Context(timeout=5, clock=ManualClock(auto=True))))

    def look(event: Event) -> None:
        if event.path.endswith("configure-static-routes") and not others:
            thread = Thread(target=do_alone)
            thread.start()
            thread.join()

    assert run(whole, observer=look).ok
    [other] = others
    assert isinstance(other.error, TaskFailedError)
    assert isinstance(other.error.cause, LockHeldError)


# --- the optional features of the routing pair

TABLE = "ip6", "azureSLBProbe"


@pytest.fixture
def crowded(host: FakeHost) -> FakeHost:
    """A node with IPv6, on which a removed azure-vnet has left a rule."""
    crowd(host)
    host.ebtables.add(DEAD_POD)
    return host


def test_everything_at_once_and_back(crowded: FakeHost) -> None:
    """An apply of four tasks changes the machine, and reset restores its earlier state, down to each
    file, but for what azure-vnet has left and the backup of that.
    """
    before = crowded.routes.routes(), crowded.files.tree.snapshot()
    task = configure(crowded, **ROUTES, **PROBES, **SWEEP, **OVERLAP)
    planned = [str(change) for change in plan(task).changes]
    assert any(line.startswith(f"- ebtables nft nat: {DEAD_POD}") for line in planned)
    execute(task, at_once())
    assert crowded.ebtables.lines() == []
    assert TABLE in crowded.nftables.tables
    assert plan(task).changes == ()
    required = crowded.files.names("/etc/systemd/system/hostrouting-ready.service.requires")
    assert required == ["check-route-overlap.service", "static-routes.service"]
    wanted = crowded.files.names("/etc/systemd/system/hostrouting-ready.service.wants")
    assert wanted == ["probe-snat.service"]
    reset = Reset(HostRoutingConfig(), host=crowded)
    execute(reset, at_once())
    assert TABLE not in crowded.nftables.tables
    assert crowded.ebtables.lines() == []
    folder = "/var/lib/hostrouting/stale-cni"
    [backup] = crowded.files.names(folder)
    assert crowded.files.remove(f"{folder}/{backup}")
    for path in folder, "/var/lib/hostrouting":
        crowded.files.remove_directory_if_empty(path)
    assert (crowded.routes.routes(), crowded.files.tree.snapshot()) == before


def test_the_order_of_a_reset(host: FakeHost) -> None:
    """A reset removes the installed config, then the gates, then each unit before what it needs, and the
    routes and markers last.
    """
    config = HostRoutingConfig.from_mapping({"gates": ["kubelet.service"], **ROUTES, **OVERLAP})
    execute(Configure(config, host=host), at_once())
    changes = plan(Reset(HostRoutingConfig(), host=host), at_once()).changes
    assert [*map(str, changes)] == [
        "- /etc/aks-flex-node/hostrouting.json",
        "- /etc/systemd/system/kubelet.service.d/10-hostrouting.conf",
        "- /etc/systemd/system/multi-user.target.wants/hostrouting-ready.service",
        "- /etc/systemd/system/hostrouting-ready.service.requires/check-route-overlap.service",
        "- /etc/systemd/system/hostrouting-ready.service.requires/static-routes.service",
        "- /etc/systemd/system/check-route-overlap.service",
        "- /etc/systemd/system/static-routes.service",
        "- /etc/systemd/system/hostrouting-ready.service",
        "- /etc/systemd/system/hostrouting-waits@.service",
        "- /etc/systemd/system/hostrouting-held@.service",
        "- /etc/systemd/system/hostrouting-retry.service",
        "- /etc/aks-flex-node/hostrouting-retry.sh",
        "- /etc/aks-flex-node/hostrouting-ask.sh",
        "- /etc/systemd/system/hostrouting-waiters.sh",
        "- /etc/aks-flex-node/hostrouting.lock",
        "- /etc/aks-flex-node/check-route-overlap.sh",
        "- /etc/aks-flex-node/static-routes.sh",
        "- /etc/aks-flex-node/hostrouting.zip",
        "- 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142",
        "- /run/hostrouting/route-overlap.ok",
    ]


def test_a_node_without_the_tools_can_do_without(host: FakeHost) -> None:
    """Without probes and sweep in the config, apply and reset need neither nft nor ebtables."""
    host.nftables.is_installed = False
    execute(configure(host, **ROUTES))
    execute(Reset(HostRoutingConfig(), host=host))
    assert host.nftables.operations.calls == []
    assert host.ebtables.operations.calls == []


def test_rendered_files_name_the_device_that_was_looked_up(crowded: FakeHost) -> None:
    """Rendered files name the device of the given host where the config leaves it open; without a
    host the config is refused.
    """
    probes = {"enabled": True, "detect": "address"}
    config = HostRoutingConfig.from_mapping({"gates": [], "probeSnat": probes})
    rendered = render_files(config, host=crowded).files
    files = {file.path: file.content.decode() for file in rendered if file.is_text}
    assert 'iifname "eth0"' in files["/etc/aks-flex-node/probe-snat.nft"]
    with pytest.raises(InvalidConfigError, match=r"hostRouting\.probeSnat\.dev"):
        render_files(config)


# --- the essential never waits for the optional


GATED = {"gates": ["systemd-nspawn@.service"]}
CHECK_UNIT = "/etc/systemd/system/check-route-overlap.service"
SHADOWED = {"routeOverlap": {"expectedCidrs": ["172.16.0.0/16"], "mode": "STRICT"}}


def silent_imds(host: FakeHost) -> None:
    host.metadata.error = BackendError("the instance metadata service gave no answer")


def slow_imds(host: FakeHost) -> None:
    class Slow(MemoryMetadata):
        def network_interfaces(self, ctx: Context) -> object:
            ctx.sleep(3600)
            return super().network_interfaces(ctx)

    object.__setattr__(host, "metadata", Slow())


def no_ipv6_route(host: FakeHost) -> None:
    for route in default_routes(host.routes.routes(IPV6)):
        host.routes.delete_route(route)


def configured_azure_vnet(host: FakeHost) -> None:
    host.files.tree.write(
        "/etc/cni/net.d/10-azure.conflist", b'{"plugins": [{"type": "azure-vnet"}]}', mode=0o644
    )


TROUBLES = {
    "silent IMDS": (silent_imds, {"probeSnat": {"enabled": True}}),
    "slow IMDS": (slow_imds, {"probeSnat": {"enabled": True}}),
    "no nft": (lose_nft, PROBES),
    "no IPv6 default route": (no_ipv6_route, {"probeSnat": {"enabled": True}}),
    "azure-vnet configured": (configured_azure_vnet, SWEEP),
}


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize(("trouble", "sections"), TROUBLES.values(), ids=TROUBLES.keys())
def test_a_sibling_in_trouble(
    crowded: FakeHost,
    trouble: Callable[[FakeHost], None],
    sections: dict[str, dict[str, object]],
    required: bool,
) -> None:
    """An optional capability in trouble leaves routes, check and gate installed, and fails the run
    only if its section has `required`.

    A cloud that never answers takes only a part of the remaining time.
    """
    trouble(crowded)
    [(section, values)] = sections.items()
    task = configure(
        crowded, **GATED, **ROUTES, **OVERLAP, **{section: {**values, "required": required}}
    )
    report = run(task, timeout=20, ctx=at_once())
    assert crowded.files.exists("/run/hostrouting/route-overlap.ok")
    if not required and trouble in {silent_imds, slow_imds}:
        # The rules are loaded all the same.
        assert report.ok
        assert TABLE in crowded.nftables.tables
        return
    failed = [
        each.name for each in report.walk() if each.status == "failed" and each.name != "configure"
    ]
    assert failed == ["clean-stale-cni" if section == "staleCni" else "configure-probe-snat"]
    assert report.ok != required
    assert own_routes(crowded) == ["172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"]
    assert crowded.files.exists(CHECK_UNIT)
    assert crowded.files.exists(DROP_IN)


def test_a_first_apply_that_fails_persists(host: FakeHost) -> None:
    """A first apply without a lease waits once for 30 s, installs the units and the gate for the
    next boot, and fails for the routes; the check that fails, too, is in the report.
    """
    lose_the_default_route(host)
    ctx = at_once()
    report = run(configure(host, **GATED, **ROUTES, **OVERLAP), ctx)
    assert ctx.clock.monotonic() == 30
    assert isinstance(report.error, TaskFailedError)
    [failure] = report.error.failures
    assert "no IPv4 default route" in str(failure)
    check = report.find("check-route-overlap")
    assert check is not None
    assert check.status == "failed"
    for path in DROP_IN, CHECK_UNIT, "/etc/systemd/system/static-routes.service":
        assert host.files.exists(path)


def test_a_passing_refusal_is_retried_under_strict(host: FakeHost) -> None:
    """A change that the kernel refuses for lack of memory is tried again, although the check has
    failed without it.
    """
    host.routes.add_route("172.16.8.0/21", dev="lo", protocol=16)
    host.routes.refuse_at(1)
    work = with_retry(configure(host, **GATED, **ROUTES, **OVERLAP), attempts=2, backoff=0)
    report = run(work, at_once())
    assert report.ok, report.error
    assert any(str(route).startswith("172.16.8.0/22") for route in host.routes.routes())


def test_a_right_isolated_node_is_not_waited_for(host: FakeHost) -> None:
    """An apply on a node without a default route ends at once if the config names gateway, device
    and expected devices.
    """
    lose_the_default_route(host)
    ctx = at_once()
    routes = [{"destination": "172.16.8.0/22", "gateway": "10.224.0.1", "dev": "eth0"}]
    overlap = {**OVERLAP["routeOverlap"], "expectedDevs": ["eth0"]}
    execute(
        configure(host, staticRoutes={"enabled": True, "routes": routes}, routeOverlap=overlap), ctx
    )
    assert ctx.clock.monotonic() == 0


@pytest.mark.parametrize(
    ("gateway", "dev", "error"),
    [("10.9.9.9", "eth0", RouteRejectedError), ("10.9.0.1", "eth7", LinkNotFoundError)],
)
def test_a_config_that_the_kernel_refuses_leaves_the_installed_one(
    host: FakeHost, caplog: pytest.LogCaptureFixture, gateway: str, dev: str, error: type[Exception]
) -> None:
    """An apply with a gateway outside the device's network, or with a missing device, leaves the
    routes and files of the installed config as they are.
    """
    execute(configure(host, **GATED, **ROUTES, **OVERLAP))
    before = state(host)
    refused = {"destination": "172.20.0.0/16", "gateway": gateway, "dev": dev}
    task = configure(host, **GATED, staticRoutes={"enabled": True, "routes": [refused]}, **SHADOWED)
    with pytest.raises(TaskFailedError) as caught:
        execute(task, at_once())
    assert [type(failure) for failure in caught.value.failures] == [error]
    assert state(host) == before
    assert "undone: " not in caplog.text


def test_a_gateway_of_the_node_itself_is_refused_before_the_files(host: FakeHost) -> None:
    """An apply whose gateway is an address of the node itself, to which the kernel would deliver
    the packets, is refused before any file is installed.
    """
    before = host.files.tree.snapshot()
    route = {"destination": "172.20.0.0/16", "gateway": "10.224.0.4", "dev": "eth0"}
    with pytest.raises(TaskFailedError, match="is an address of this node"):
        execute(configure(host, staticRoutes={"enabled": True, "routes": [route]}), at_once())
    assert host.files.tree.snapshot() == before


def test_the_task_lines_go_to_the_given_logger(
    host: FakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    """All lines of the tasks of `Configure(config, logger=...)` go to the given logger, also those
    of the runner.
    """
    logger = logging.getLogger("tests.agent")
    with caplog.at_level(logging.INFO):
        execute(
            Configure(HostRoutingConfig.from_mapping({**GATED, **ROUTES}), host=host, logger=logger)
        )
    names = {record.name for record in caplog.records if "configure/" in record.getMessage()}
    assert names == {"tests.agent"}


def test_held_units_are_started_and_named(host: FakeHost) -> None:
    """An apply that makes routing right starts the retry, names the held unit as a change, and
    clears an earlier failure of the unit of the check.
    """
    host.files.write(
        "/lib/systemd/system/systemd-nspawn@.service",
        b"[Service]\nExecStart=/bin/true\n",
        mode=0o644,
    )
    with pytest.raises(TaskFailedError):
        execute(configure(host, **GATED, **OVERLAP))
    host.services.failing.add("check-route-overlap.service")
    with pytest.raises(UnitError):
        host.services.start(at_once(), "check-route-overlap.service")
    host.services.start(at_once(), "hostrouting-held@systemd-nspawn@kube1.service.service")
    host.services.started.clear()
    report = run(configure(host, **GATED, **ROUTES, **OVERLAP))
    assert host.services.started == ["hostrouting-retry.service"]
    assert "~ systemd-nspawn@kube1.service (was held, and starts within seconds)" in map(
        str, report.changes
    )
    assert host.services.state(at_once(), "check-route-overlap.service").active_state == "inactive"


def test_nothing_is_started_while_routing_is_wrong(
    host: FakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    """An apply that finds routing wrong starts nothing, and logs the units that are held."""
    with pytest.raises(TaskFailedError):
        execute(configure(host, **GATED, **OVERLAP))
    host.services.start(at_once(), "hostrouting-held@systemd-nspawn@kube1.service.service")
    host.services.started.clear()
    with pytest.raises(TaskFailedError):
        execute(configure(host, **GATED, **OVERLAP))
    assert host.services.started == []
    assert "these are held until routing is right: systemd-nspawn@kube1.service" in caplog.messages


def test_a_watch_has_its_config_though_the_probes_failed(host: FakeHost) -> None:
    """An apply whose probes fail installs the config for the watch without the section of the
    probes.
    """
    sections = {"probeSnat": {"enabled": True}, "watch": {"enabled": True}}
    assert run(configure(host, **sections), at_once(600)).degraded
    installed = HostRoutingConfig.from_json(host.files.read(CONFIG_PATH) or b"")
    assert installed.to_mapping() == {"watch": {"enabled": True}, "gates": []}


@pytest.mark.parametrize("gates", [["kubelet.service"], []])
def test_where_systemctl_does_nothing_an_apply_changes_nothing(
    host: FakeHost, gates: list[str]
) -> None:
    """An apply in a chroot, where systemctl ignores its command, fails, and changes neither routes
    nor config.
    """
    words = ("sh", "-c", "echo Running in chroot, ignoring command >&2", "systemctl")
    chroot = Host(routes=host.routes, services=Systemctl(words), files=host.files, lock=host.lock)
    config = HostRoutingConfig.from_mapping({**ROUTES, "gates": gates})
    before = host.routes.routes()
    [cause] = run(Configure(config, host=chroot), at_once()).failures
    assert isinstance(cause, NoSystemdError)
    assert "in a chroot" in str(cause)
    assert host.routes.routes() == before
    assert not host.files.exists(CONFIG_PATH)


@pytest.mark.parametrize(
    ("key", "is_misspelt"), [("hostRoutes", True), ("routing", True), ("hostNetworking", False)]
)
def test_an_agents_config_with_a_misspelt_key(
    host: FakeHost, key: str, *, is_misspelt: bool
) -> None:
    """An agent whose config has `hostRoutes` in place of `hostRouting` sees in the report that
    nothing was configured, and which key may be meant.
    """
    config = HostRoutingConfig.from_mapping({**AGENTS, key: {}})
    report = run(Configure(config, host=host))
    assert report.ok
    assert report.degraded is is_misspelt
    assert ([f"'{key}'" in reason for reason in report.reasons] == [True]) is is_misspelt


def test_a_run_without_a_note_for_the_next_one_is_degraded(host: FakeHost) -> None:
    """A run that cannot write its note for the next one, such as in a full /run, is degraded."""
    host.files.read_only.add("/run")
    report = run(configure(host, **ROUTES))
    assert report.ok
    assert report.degraded
    files = report.find("configure/install-boot-files")
    assert [UNFINISHED in reason for reason in files.reasons] == [True]
