"""The boot files on a fake machine: which runs are refused, their order, removals, and masks."""

import re
import subprocess
from pathlib import Path

import pytest
from support.boot_units import (
    CHECK,
    NSPAWN,
    STATIC,
    UPSTREAM_LINKS,
    assert_exposed_at_most,
    assert_verified,
    departure_of,
    install_upstream,
    stand_in,
)
from support.boots import DROP_IN, READY, UNFINISHED, UNITS, boot, install, planned
from support.needs import require
from support.printed import MASKED
from support.processes import ended

from hostrouting import Host, OverlapMode
from hostrouting.base.findings import REFUSED
from hostrouting.boot.boot import Boot
from hostrouting.boot.gates import ungated_agents
from hostrouting.boot.layout import gate_drop_in
from hostrouting.exceptions import UnitError
from hostrouting.host.offline import offline_routes
from hostrouting.host.units import UnitState
from hostrouting.testing import FakeHost, MemoryServices
from phases import Context


@pytest.mark.parametrize("before", ["network.target", "static-routes.service", "basic.target"])
def test_gates_that_start_too_early_are_refused(host: FakeHost, ctx: Context, before: str) -> None:
    """A gate that must be up before our units can run, which would hang the boot, is refused by
    install and plan, with the order and the step in the error, and nothing changes.
    """
    host.files.write(f"{UNITS}/early.service", f"[Unit]\nBefore={before}\n".encode(), mode=0o644)
    snapshot = host.files.tree.snapshot()
    for call in boot(host, "early.service").install, boot(host, "early.service").plan_install:
        with pytest.raises(UnitError) as caught:
            call(ctx, stand_in(STATIC))
        assert str(caught.value) == (
            f"early.service cannot be a gate: it is ordered before {before}, so it would wait for "
            "static-routes.service, which waits for it\n"
            "remove it from hostRouting.gates, or remove that Before="
        )
    assert host.files.tree.snapshot() == snapshot


def test_our_own_drop_in_makes_no_gate_early(host: FakeHost) -> None:
    """A gate that waits already, by our own drop-in, is not one that starts too early."""
    install(host, STATIC)
    assert planned(host, stand_in(CHECK, unit="After=static-routes.service")) != []


def test_no_unit_is_stopped_while_a_machine_requires_one(host: FakeHost, ctx: Context) -> None:
    """An install removes the links of upstream's units, and systemd has read that, before it stops
    the first of them.
    """
    install_upstream(host.files)
    host.services.start(ctx, "systemd-nspawn@kube1.service")
    host.services.operations.calls.clear()
    install(host, STATIC, CHECK)
    verbs = [call[0] for call in host.services.operations.calls]
    assert verbs.index("daemon_reload") < verbs.index("stop")
    assert [host.files.exists(link) for link in UPSTREAM_LINKS] == [False] * 3
    assert host.services.state(ctx, "systemd-nspawn@kube1.service").requires == frozenset()


def test_a_machine_that_still_requires_it_is_not_stopped(host: FakeHost, ctx: Context) -> None:
    """An install fails if a machine requires one of our units by a Requires= that was written by
    hand, and names the machine.
    """
    install_upstream(host.files)
    by_hand = b"[Unit]\nRequires=static-routes.service\n"
    host.files.write(f"{UNITS}/{NSPAWN}.d/50-mine.conf", by_hand, mode=0o644)
    host.services.start(ctx, "systemd-nspawn@kube1.service")
    with pytest.raises(UnitError) as caught:
        install(host, STATIC)
    assert str(caught.value) == (
        "cannot stop static-routes.service, because systemd-nspawn@kube1.service requires it and would also stop; "
        "see: systemctl cat systemd-nspawn@kube1.service; remove that Requires=, and try again"
    )


def test_the_order_of_steps(host: FakeHost, ctx: Context) -> None:
    """A plan lists a unit before the script that the unit runs, and the removal of a gate before
    that of a unit for which the gate waits.
    """
    install(host, STATIC, CHECK)
    unit = stand_in(CHECK, "echo new\n", unit="After=basic.target")
    script, path = unit.paths
    assert planned(host, unit) == [f"~ {path}", f"~ {script}"]
    alone = Boot(host).plan_install(ctx, departure_of(CHECK))
    link = f"{READY}.requires/check-route-overlap.service"
    assert [change.subject for change in alone[:2]] == [DROP_IN, link]


def test_the_last_unit_takes_everything_along(host: FakeHost, ctx: Context) -> None:
    """The removal of the last unit restores the machine, folders included."""
    before = host.files.tree.snapshot()
    for name in STATIC, CHECK:
        install(host, stand_in(name))
    host.services.failing.add("check-route-overlap.service")
    with pytest.raises(UnitError):
        host.services.start(ctx, "check-route-overlap.service")
    assert install(host, departure_of(STATIC))
    assert host.files.exists(DROP_IN)
    assert install(host, departure_of(CHECK))
    assert host.files.tree.snapshot() == before
    assert not host.files.exists("/etc/aks-flex-node")
    assert not host.services.state(ctx, "check-route-overlap.service").exists


def test_a_disabled_unit_keeps_its_gate(host: FakeHost) -> None:
    """The removal of another unit keeps the gate of a disabled one, although the link of that unit
    is gone.
    """
    for name in STATIC, CHECK:
        install(host, stand_in(name))
    host.files.remove(f"{READY}.requires/check-route-overlap.service")
    install(host, departure_of(STATIC))
    assert host.files.exists(DROP_IN)
    assert install(host, CHECK)
    assert host.files.exists(f"{READY}.requires/check-route-overlap.service")


def test_where_there_is_nothing_systemd_is_not_queried(host: FakeHost) -> None:
    """A removal on a node without hostrouting writes nothing, and does not query systemd."""
    assert planned(host, departure_of(STATIC)) == []
    assert not install(host, departure_of(STATIC))
    assert host.services.operations.calls == []
    # The first call is the fixture's.
    assert "write" not in {call[0] for call in host.files.operations.calls[1:]}


def test_the_break_glass_stays(host: FakeHost) -> None:
    """The removal of hostrouting keeps the break-glass file, which belongs to the operator."""
    install(host, STATIC)
    host.files.write("/etc/aks-flex-node/hostrouting.disabled", b"", mode=0o644)
    install(host, departure_of(STATIC))
    assert host.files.names("/etc/aks-flex-node") == ["hostrouting.disabled"]


def test_an_offline_run_leaves_the_note_of_a_live_one(host: FakeHost, ctx: Context) -> None:
    """A run with `--root /` keeps the note by which the next live run reloads systemd."""
    install(host, STATIC)
    host.files.write(UNFINISHED, b"", mode=0o644)
    services = MemoryServices(host.files.tree, is_live=False)
    image = Host(
        routes=offline_routes(),
        services=services,
        files=host.files,
        lock=host.lock,
        is_live=False,
    )
    assert Boot(image, gates=[NSPAWN]).install(ctx, departure_of(STATIC))
    assert host.files.exists(UNFINISHED)


class TestMasks:
    """A link to /dev/null in the place of one of our files is a mask of an administrator."""

    @pytest.mark.parametrize("path", [f"{UNITS}/static-routes.service", READY, DROP_IN])
    def test_an_install_is_refused(self, host: FakeHost, ctx: Context, path: str) -> None:
        """An install over the mask of a unit or a gate is refused with the next step, and nothing
        changes.
        """
        host.files.link(path, "/dev/null")
        before = host.files.tree.snapshot()
        for call in boot(host).install, boot(host).steps_to_install:
            with pytest.raises(UnitError) as caught:
                call(ctx, stand_in(STATIC))
            assert str(caught.value) == (
                f"cannot install {path}: {MASKED} with a link to /dev/null; to install it, remove the "
                "link (systemctl unmask), otherwise remove the part of hostRouting that needs it"
            )
        planned = boot(host).plan_install(ctx, stand_in(STATIC))
        assert {change.kind for change in planned if change.subject == path} == {REFUSED}
        assert host.files.tree.snapshot() == before

    def test_a_removal_leaves_them(self, host: FakeHost) -> None:
        """A removal leaves the masks of a unit and a gate, and removes all else."""
        install(host, STATIC)
        masks = f"{UNITS}/static-routes.service", DROP_IN
        for path in masks:
            host.files.link(path, "/dev/null")
        install(host, departure_of(STATIC))
        own_units = {
            path
            for path in host.files.tree.snapshot()
            if path.startswith((UNITS, "/etc/aks-flex-node"))
        }
        assert own_units == {*masks}
        assert not boot(host).has_traces
        assert planned(host, departure_of(STATIC)) == []


def test_machines_that_run_are_named_when_their_gate_is_new(host: FakeHost, ctx: Context) -> None:
    """A notice names a machine that runs before its gate is installed, and is gone after the
    install.
    """
    host.services.start(ctx, "systemd-nspawn@kube1.service")
    [notice] = boot(host).notices(ctx)
    assert notice.text == (
        "systemd-nspawn@kube1.service: keeps running; its gate checks routing when it starts next"
    )
    install(host, STATIC)
    assert boot(host).notices(ctx) == []


def test_one_of_the_default_gates_is_enough(host: FakeHost, ctx: Context) -> None:
    """A node that has one of the two default gates is without a notice about the other, and a node
    that does not have both has a notice about each.
    """
    assert boot(host, NSPAWN, "kubelet.service").notices(ctx) == []
    host.files.remove(f"/lib/systemd/system/{NSPAWN}")
    assert len(boot(host, NSPAWN, "kubelet.service").notices(ctx)) == 2


KUBELET = "kubelet.service"
K3S = "k3s.service"
UNGATED = (
    "warning: ungated-agent: {}: starts regardless of routing, because it is not in hostRouting.gates; "
    'in hostRouting, write: "gates": [{}]'
)


def agent(host: FakeHost, name: str, *, enabled: bool = True) -> None:
    """Install an agent, as its installer does."""
    host.files.write(f"/etc/systemd/system/{name}", b"[Service]\nExecStart=/bin/k\n", mode=0o644)
    if enabled:
        wants = "/etc/systemd/system/multi-user.target.wants"
        host.files.link(f"{wants}/{name}", f"/etc/systemd/system/{name}")


@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "kubelet.service",
        "k3s.service",
        "k3s-agent.service",
        "rke2-server.service",
        "rke2-agent.service",
        "snap.microk8s.daemon-kubelite.service",
        "snap.microk8s.daemon-kubelet.service",
        "snap.k8s.kubelet.service",
        "snap.kubelet.daemon.service",
    ],
)
def test_an_agent_without_a_gate(ctx: Context, name: str, is_live: bool) -> None:
    """An agent without a gate is a warning under STRICT, with the line of the config, on a machine
    and in an image; under WARN it is not.
    """
    host = FakeHost(is_live=is_live)
    agent(host, "other.service")
    agent(host, name)
    gated = boot(host, "other.service")
    [finding] = gated.findings(ctx, mode=OverlapMode.STRICT)
    assert str(finding) == UNGATED.format(name, f'"other.service", "{name}"')
    assert gated.notices(ctx, mode=OverlapMode.STRICT) == [finding]
    assert [*gated.findings(ctx, mode=OverlapMode.WARN)] == []
    assert [*boot(host, "other.service", name).findings(ctx, mode=OverlapMode.STRICT)] == []


def test_an_agent_that_neither_runs_nor_will(host: FakeHost, ctx: Context) -> None:
    """An agent that is not enabled needs a gate while it is up, and not while it is down or has
    failed.
    """
    agent(host, K3S, enabled=False)
    gated = boot(host, NSPAWN)
    assert gated.notices(ctx, mode=OverlapMode.STRICT) == []
    host.services.failing.add(K3S)
    host.services.start(ctx, K3S)
    assert gated.notices(ctx, mode=OverlapMode.STRICT) == []
    host.services.failing.clear()
    host.services.start(ctx, K3S)
    [finding] = gated.notices(ctx, mode=OverlapMode.STRICT)
    assert str(finding) == UNGATED.format(K3S, f'"{NSPAWN}", "{K3S}"')


def test_two_agents_without_a_gate_have_one_line(host: FakeHost, ctx: Context) -> None:
    """The findings about two agents without a gate have the same line, which names both; an empty
    list of gates has no findings.
    """
    agent(host, "rke2-agent.service")
    agent(host, K3S)
    line = f'"{NSPAWN}", "{K3S}", "rke2-agent.service"'
    notices = boot(host, NSPAWN).notices(ctx, mode=OverlapMode.STRICT)
    assert [*map(str, notices)] == [
        UNGATED.format(K3S, line),
        UNGATED.format("rke2-agent.service", line),
    ]
    assert Boot(host, gates=[]).notices(ctx, mode=OverlapMode.STRICT) == []


def test_an_agent_with_the_gate_of_another_name() -> None:
    """An agent has a gate if an alias of its unit has one, whose drop-ins systemd reads as well."""
    state = UnitState(
        "snap.k8s.kubelet.service",
        "loaded",
        "active",
        drop_ins=frozenset({"/etc/systemd/system/kubelet.service.d/10-hostrouting.conf"}),
    )
    assert [*ungated_agents([state], ["kubelet.service"])] == []
    [finding] = ungated_agents([state], [NSPAWN])
    assert finding.subject == "snap.k8s.kubelet.service"


def test_agents_are_found_by_one_query(host: FakeHost, ctx: Context) -> None:
    """The states of agents are read with those of the gates in one query, which under WARN names
    the gates alone.
    """
    host.services.operations.calls.clear()
    boot(host, NSPAWN).notices(ctx, mode=OverlapMode.STRICT)
    boot(host, NSPAWN).notices(ctx)
    queries = [call for call in host.services.operations.calls if call[0] == "states"]
    assert [len(call) for call in queries] == [11, 2]


def test_an_open_break_glass(host: FakeHost, ctx: Context) -> None:
    """An open break glass is reported, as the operator may have forgotten it; test_gates.py has each
    way to open it.
    """
    path = "/run/hostrouting.disabled"
    assert boot(host).notices(ctx) == []
    host.files.write(path, b"", mode=0o644)
    [notice] = boot(host).notices(ctx)
    assert notice.reason == f"every gate is open regardless of routing: {path} exists"
    assert notice.command == f"rm {path}"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image with a gated machine."""
    require("systemd-analyze")
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / "gated.service").write_text("[Service]\nExecStart=/bin/true\n")
    Boot(Host.offline(tmp_path), gates=["gated.service"]).install(
        Context(timeout=30), stand_in(STATIC)
    )
    return tmp_path


def test_systemd_verifies_them(image: Path) -> None:
    """`systemd-analyze verify` is silent about hostrouting-ready.service and about a gate with its
    drop-in.
    """
    units = image / "etc/systemd/system"
    # The stand-in's script is in the image, where systemd-analyze does not look.
    (units / "static-routes.service").write_text("[Service]\nType=oneshot\nExecStart=/bin/true\n")
    services = units / "hostrouting-ready.service", units / "gated.service"
    assert_verified(*services, SYSTEMD_UNIT_PATH=f"{units}:", PATH="/usr/bin:/bin")


@pytest.mark.parametrize(
    ("unit", "most"),
    # The retry may start any unit, whatever else it may not do.
    [
        ("hostrouting-ready.service", 34),
        ("hostrouting-held@.service", 31),
        ("hostrouting-waits@.service", 31),
        ("hostrouting-retry.service", 69),
    ],
)
def test_units_are_hardly_exposed(image: Path, unit: str, most: int) -> None:
    """The units of hostrouting are exposed to a small number at most, in tenths, by the reckoning
    of `systemd-analyze security`.
    """
    assert_exposed_at_most(image / "etc/systemd/system" / unit, most)


def shell_line(mode: OverlapMode) -> str:
    """Return the joined line of a gate's drop-in, as systemd runs it in sh."""
    drop_in = gate_drop_in(KUBELET, mode).content.decode()
    pattern = r"^ExecStartPre=\+/bin/sh -c '(.*)' - %n$"
    [line] = re.findall(pattern, re.sub(r"\\\n *", "", drop_in), flags=re.MULTILINE)
    return str(line)


@pytest.mark.parametrize("mode", OverlapMode)
def test_the_shell_line_is_short_and_clean(mode: OverlapMode) -> None:
    """The line of a gate's drop-in has at most 400 characters in `systemctl status`, and nothing
    that systemd would replace.
    """
    line = shell_line(mode)
    # Specifiers, and variables but for the doubled sign.
    assert not set(line.replace("$$", "")) & set("%$'\\")
    assert len(f"/bin/sh -c {line.replace('$$', '$')} - {KUBELET}") <= 400 + len(KUBELET)
    subprocess.run(["sh", "-n"], input=line.replace("$$", "$"), text=True, check=True)


@pytest.mark.parametrize(
    ("mode", "status", "passes"),
    [
        *((OverlapMode.STRICT, status, status == 10) for status in (0, 1, 2, 10, 11, 12, 127, 137)),
        *((OverlapMode.WARN, status, status != 11) for status in (0, 1, 2, 10, 11, 12, 127, 137)),
    ],
)
def test_which_answers_start_a_unit(
    tmp_path: Path, mode: OverlapMode, status: int, *, passes: bool
) -> None:
    """In STRICT mode only 10 starts a unit, in WARN mode all but 11. If its script was lost, cut or
    killed, a message names the drop-in, a pause keeps the unit below its limit of starts, and the
    break-glass opens the gate. A unit that starts is no longer marked as held.
    """
    ends = f"exit {status}"
    for name, text in ("nsenter", ends), ("systemctl", 'echo "$*"'), ("sleep", "echo pause"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    line = shell_line(mode).replace("$$", "$").replace("PATH=", f"PATH={tmp_path}:")
    line = line.replace(" /run/", f" {tmp_path}/")
    is_accident = status not in {10, 11, 12}
    mark = f"hostrouting-held@{KUBELET}.service"

    def run() -> tuple[int, list[str]]:
        ran = ended("/bin/sh", "-c", line, "-", KUBELET)
        assert ran.stderr == ""
        return ran.returncode, ran.stdout.splitlines()

    marked = f"--no-block reload-or-restart {mark}"
    told = [f"<4>hostrouting: see: systemctl cat {KUBELET}"] * is_accident
    stopped = f"--no-block stop {mark}"
    pause = ["pause"] * is_accident
    assert run() == (0 if passes else 1, [marked, *told, *pause, *([stopped] * passes)])
    (tmp_path / "hostrouting.disabled").touch()
    if is_accident:
        assert run() == (0, [marked, *told, stopped])
