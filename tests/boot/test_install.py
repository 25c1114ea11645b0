"""Units and gates are installed and planned on a machine in memory."""

import subprocess
from pathlib import Path

import attrs
import pytest
from support.boot_units import CHECK, NSPAWN, STATIC, departure_of, stand_in
from support.boots import (
    DROP_IN,
    READY,
    UNFINISHED,
    UNITS,
    boot,
    install,
    planned,
)
from support.filled import asset
from support.printed import RELOADED

from hostrouting import Host
from hostrouting.boot.boot import Boot
from hostrouting.boot.layout import CONFIG_PATH, GENERATION_LINK
from hostrouting.boot.program import new_program
from hostrouting.boot.steps import LINKED_PATHS, generation_folders
from hostrouting.testing import FakeHost, MemoryServices
from hostrouting.testing.memory_files import MemoryTree
from phases import CancelledError, Context

KUBELET_DROP_IN = f"{UNITS}/kubelet.service.d/10-hostrouting.conf"
SCRIPTS = "hostrouting-ask.sh", "hostrouting-retry.sh"
#: What each capability has installed, for those who remove it by hand.
FILES = """\
#                  rm -f /etc/systemd/system/static-routes.service /etc/aks-flex-node/static-routes.sh
#                  rm -f /etc/systemd/system/check-route-overlap.service /etc/aks-flex-node/check-route-overlap.sh
#                  rm -f /etc/systemd/system/probe-snat.service /etc/aks-flex-node/probe-snat.nft \
/etc/systemd/system/ipv6_nftables.service.d/10-probe-snat.conf
#                  rm -f /etc/systemd/system/hostrouting-watch.timer \
/etc/systemd/system/hostrouting-watch.service /etc/systemd/networkd.conf.d/10-hostrouting.conf
"""


def reloads(services: MemoryServices) -> int:
    return services.operations.calls.count(("daemon_reload",))


def seen(tree: MemoryTree) -> dict[str, str]:
    """The text of each file, and the target of each link but those to scripts, by path."""
    folders = tuple(f"{folder}/" for folder in generation_folders(tree))
    shown = {
        path: text
        for path, text in tree.snapshot().items()
        if path != GENERATION_LINK and not path.startswith(folders or "\0")
    }
    return {
        path: (tree.read(path) or b"").decode(errors="replace") if path in LINKED_PATHS else text
        for path, text in shown.items()
    }


def test_a_machine_that_has_nothing(host: FakeHost, ctx: Context) -> None:
    """An install on a bare machine makes the unit's files and hostrouting-ready.service, both
    enabled, the files that start held units later, and a drop-in for each gate, and nothing else.
    """
    before = host.files.tree.snapshot()
    unit = stand_in(STATIC)
    assert boot(host, NSPAWN, "kubelet.service").install(ctx, unit)
    drop_in = asset("boot/10-hostrouting.conf").replace("@MODE@", "WARN")
    drop_in = drop_in.replace("@PASSES@", "!= 11")
    drop_in = drop_in.replace("@UNITS@", "static-routes check-route-overlap probe-snat")
    drop_in = drop_in.replace("# @FILES@\n", FILES)
    program = new_program("/usr/bin/python3")
    assert seen(host.files.tree) == before | {
        **{file.path: file.content.decode() for file in unit.files},
        READY: asset("boot/hostrouting-ready.service"),
        f"{UNITS}/hostrouting-held@.service": asset("boot/hostrouting-held@.service"),
        f"{UNITS}/hostrouting-retry.service": asset("boot/hostrouting-retry.service"),
        f"{UNITS}/hostrouting-waits@.service": asset("boot/hostrouting-waits@.service"),
        f"{UNITS}/hostrouting-waiters.sh": asset("boot/hostrouting-waiters.sh"),
        "/etc/aks-flex-node/hostrouting-ask.sh": asset(
            "boot/hostrouting-ask.sh", PROGRAM="boot/program.sh"
        ),
        "/etc/aks-flex-node/hostrouting-retry.sh": asset("boot/hostrouting-retry.sh"),
        "/etc/aks-flex-node/hostrouting.lock": "",
        "/etc/aks-flex-node/hostrouting.zip": program.decode(errors="replace"),
        f"{READY}.requires/static-routes.service": f"-> {UNITS}/static-routes.service",
        f"{UNITS}/multi-user.target.wants/hostrouting-ready.service": f"-> {READY}",
        DROP_IN: drop_in,
        KUBELET_DROP_IN: drop_in,
    }
    modes = {
        path: file.mode
        for path in before.keys() ^ host.files.tree.snapshot()
        if (file := host.files.tree.file(path))
    }
    [folder] = generation_folders(host.files)
    scripts = {
        *(f"/etc/aks-flex-node/{name}" for name in SCRIPTS),
        "/etc/aks-flex-node/static-routes.sh",
        f"{UNITS}/hostrouting-waiters.sh",
        f"{folder}/static-routes.sh",
        f"{folder}/check-route-overlap.sh",
        *(f"{folder}/{name}" for name in SCRIPTS),
    }
    assert {path for path, mode in modes.items() if mode == 0o755} == scripts
    # Whoever can open a lock can hold it.
    locks = {path for path, mode in modes.items() if mode == 0o600}
    assert locks == {"/etc/aks-flex-node/hostrouting.lock"}
    assert set(modes.values()) == {0o755, 0o644, 0o600}
    assert reloads(host.services) == 1
    assert host.services.started == []


def test_only_changed_files_are_written(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second install changes nothing and does not reload; a changed script is rewritten alone,
    with one reload, and a run of the earlier script ends.
    """
    install(host, STATIC)
    states = host.services.states
    monkeypatch.setattr(
        host.services,
        "states",
        lambda *args: [state._replace(active_state="activating") for state in states(*args)],
    )
    before = {path: host.files.tree.file(path) for path in host.files.tree.snapshot()}
    assert planned(host, STATIC) == []
    assert not install(host, STATIC)
    assert {path: host.files.tree.file(path) for path in host.files.tree.snapshot()} == before
    assert reloads(host.services) == 1
    changed = stand_in(STATIC, "echo changed\n")
    assert planned(host, changed) == ["~ /etc/aks-flex-node/static-routes.sh"]
    assert install(host, changed)
    assert (
        host.files.read("/etc/aks-flex-node/static-routes.sh")
        == b"#!/bin/bash\necho changed\nexit 10\n"
    )
    assert reloads(host.services) == 2
    assert host.services.operations.calls.count(("stop", "static-routes.service")) == 1


@pytest.mark.parametrize("lost", ["folder", "script", "link", "old link"])
def test_lost_scripts_are_missed(host: FakeHost, ctx: Context, lost: str) -> None:
    """A plan reports scripts that another program has removed, or that a wrong link leads away
    from, and an install restores them.
    """
    install(host, STATIC)
    [folder] = generation_folders(host.files)
    link = "/etc/aks-flex-node/hostrouting"
    if lost == "folder":
        for name in host.files.names(folder):
            host.files.remove(f"{folder}/{name}")
        host.files.remove_directory_if_empty(folder)
    elif lost == "script":
        host.files.remove(f"{folder}/static-routes.sh")
    elif lost == "link":
        host.files.remove(link)
    else:
        host.files.link(link, "hostrouting-00000000")
    changes = [change.subject for change in boot(host).plan_install(ctx, stand_in(STATIC))]
    others = [f"/etc/aks-flex-node/hostrouting{name}" for name in ("-ask.sh", "-retry.sh", ".zip")]
    if lost == "script":
        others = []
    assert changes == ["/etc/aks-flex-node/static-routes.sh", *others]
    assert install(host, STATIC)
    assert (
        host.files.read("/etc/aks-flex-node/static-routes.sh") == stand_in(STATIC).files[0].content
    )
    assert planned(host, STATIC) == []


@pytest.mark.parametrize("has_link", [True, False])
def test_no_lost_script_becomes_one_that_succeeds(
    host: FakeHost, tmp_path: Path, has_link: bool
) -> None:
    """A task alone replaces the lost script of another task by one that refuses, until that task
    runs.
    """
    install(host, STATIC)
    install(host, CHECK)
    folder = f"/etc/aks-flex-node/{host.files.read_link('/etc/aks-flex-node/hostrouting')}"
    for name in host.files.names(folder):
        host.files.remove(f"{folder}/{name}")
    if not has_link:
        host.files.remove("/etc/aks-flex-node/check-route-overlap.sh")
    install(host, STATIC)
    script = tmp_path / "check-route-overlap.sh"
    # Where a gate runs it.
    in_force = "/etc/aks-flex-node/hostrouting/check-route-overlap.sh"
    script.write_bytes(host.files.read(in_force) or b"")
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=False)
    assert done.returncode == 12
    assert done.stderr == (
        f"<3>the script {script} was lost, so routing is not checked; run: hostrouting apply {CONFIG_PATH}\n"
    )
    sign = "~" if has_link else "+"
    assert planned(host, CHECK)[0] == f"{sign} /etc/aks-flex-node/check-route-overlap.sh"


def test_a_full_run_directory_is_not_an_obstacle(host: FakeHost) -> None:
    """An install whose note for the next reload cannot be written to /run installs its files."""
    install(usual := FakeHost(), STATIC)
    host.files.fail_at(1 + [call[0] for call in usual.files.operations.calls].index("write"))
    assert install(host, STATIC)
    assert host.files.exists(DROP_IN)
    assert planned(host, STATIC) == []


def test_a_disabled_unit_is_enabled_again(host: FakeHost) -> None:
    """The link of a unit that was removed, or leads elsewhere, is a difference, and an install
    makes it again.
    """
    install(host, STATIC)
    link = f"{READY}.requires/static-routes.service"
    for break_it in host.files.remove, lambda path: host.files.tree.link(path, "/dev/null"):
        break_it(link)
        assert planned(host, STATIC) == [f"+ {link}"]
        assert install(host, STATIC)
        assert host.files.read_link(link) == f"{UNITS}/static-routes.service"


def test_the_drop_in_of_a_gate_that_left_goes(host: FakeHost, ctx: Context) -> None:
    """The drop-in of a removed gate is removed with its folder, unless that has other files."""
    boot(host, NSPAWN, "kubelet.service").install(ctx, stand_in(STATIC))
    host.files.write(f"{UNITS}/kubelet.service.d/20-mine.conf", b"", mode=0o644)
    assert [
        str(change) for change in boot(host, "c.service").plan_install(ctx, stand_in(STATIC))
    ] == [f"- {KUBELET_DROP_IN}", f"- {DROP_IN}", f"+ {UNITS}/c.service.d/10-hostrouting.conf"]
    assert boot(host, "c.service").install(ctx, stand_in(STATIC))
    assert not host.files.exists(f"{UNITS}/{NSPAWN}.d")
    assert host.files.names(f"{UNITS}/kubelet.service.d") == ["20-mine.conf"]


def test_an_image_gets_the_same(host: FakeHost, ctx: Context) -> None:
    """An install in an image makes the same files and links as on a live machine, and does not
    change systemd; the earlier scripts go at once, as nothing runs them there.
    """
    image = FakeHost(is_live=False)
    image.files.write(
        f"/lib/systemd/system/{NSPAWN}",
        host.files.read(f"/lib/systemd/system/{NSPAWN}") or b"",
        mode=0o644,
    )
    assert boot(image).install(ctx, stand_in(STATIC))
    install(host, STATIC)
    assert image.files.tree.snapshot() == host.files.tree.snapshot()
    assert not boot(image).install(ctx, stand_in(STATIC))
    assert image.services.started == []
    changing = {"daemon_reload", "enable", "disable", "start", "stop"}
    assert {call[0] for call in image.services.operations.calls} & changing == set()
    for node, folders in (image, 1), (host, 2):
        assert boot(node).install(ctx, stand_in(STATIC, "true\n"))
        assert len(generation_folders(node.files)) == folders


def test_where_no_systemd_runs_the_files_are_what_it_has_read(tmp_path: Path, ctx: Context) -> None:
    """In a chroot, without systemd, right files are not a difference, and a lost one is."""
    gate = tmp_path / f"{UNITS}/kubelet.service".lstrip("/")
    gate.parent.mkdir(parents=True)
    gate.write_text("[Service]\nExecStart=/bin/true\n")
    image = Host.offline(tmp_path)
    unit = stand_in(STATIC)
    assert Boot(image, gates=("kubelet.service",)).install(ctx, unit)
    chroot = Boot(attrs.evolve(image, is_live=True), gates=("kubelet.service",))
    assert chroot.drift(ctx, unit) == []
    (tmp_path / KUBELET_DROP_IN.lstrip("/")).unlink()
    assert chroot.drift(ctx, unit)


@pytest.mark.parametrize("before", [None, b"# of an earlier release\n"])
@pytest.mark.parametrize("path", [DROP_IN, f"{UNITS}/static-routes.service"])
def test_a_live_run_loads_the_files_of_an_offline_run(
    host: FakeHost, ctx: Context, path: str, before: bytes | None
) -> None:
    """A live run after one with `--root /` leaves the files as they are, and makes systemd load
    those that it has not read, or read before they changed.
    """
    host.services.start(ctx, "systemd-nspawn@kube1.service")
    install(host, STATIC)
    # A failed unit stays in systemd's memory without its file.
    host.services.failing.add("static-routes.service")
    host.services.start(ctx, "static-routes.service", wait=False)
    content = host.files.read(path) or b""
    host.files.remove(path)
    if before is not None:
        host.files.write(path, before, mode=0o644)
    host.services.daemon_reload(ctx)
    host.files.write(path, content, mode=0o644)
    planned = boot(host).plan_install(ctx, stand_in(STATIC))
    assert [str(change) for change in planned] == [RELOADED]
    assert install(host, STATIC)
    assert host.services.state(ctx, "systemd-nspawn@kube1.service").drop_ins == {DROP_IN}
    assert not install(host, STATIC)


def test_a_live_run_loads_what_another_run_has_left(host: FakeHost, ctx: Context) -> None:
    """A live run reloads systemd after a run that was killed, and after an offline run that removed
    a link of a unit.
    """
    reload = ["~ systemd (it has not read all unit files: daemon-reload)"]
    install(host, STATIC, CHECK)
    host.files.write(UNFINISHED, b"", mode=0o644)
    assert planned(host, STATIC, CHECK) == reload
    assert install(host, STATIC, CHECK)
    # A failed unit stays in systemd's memory.
    host.services.failing.add("hostrouting-ready.service")
    host.services.start(ctx, "hostrouting-ready.service", wait=False)
    offline = Host(
        routes=host.routes,
        services=MemoryServices(host.files.tree, is_live=False),
        files=host.files,
        lock=host.lock,
        is_live=False,
    )
    Boot(offline, gates=[NSPAWN]).install(ctx, stand_in(STATIC), departure_of(CHECK))
    assert planned(host, STATIC) == reload
    assert install(host, STATIC)
    assert not install(host, STATIC)


def test_a_cancelled_run_changes_nothing(host: FakeHost) -> None:
    """A cancelled context ends an install and its plan before any change."""
    ctx = Context()
    ctx.cancel("enough")
    before = host.files.tree.snapshot()
    for call in boot(host).plan_install, boot(host).install:
        with pytest.raises(CancelledError):
            call(ctx, stand_in(STATIC))
    assert host.files.tree.snapshot() == before
