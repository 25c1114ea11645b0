"""A run may be killed between any two of its steps: the next run ends in the wanted state, and no
boot is stuck.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pytest
from support.boot_units import CHECK, NSPAWN, STATIC, departure_of, install_upstream, stand_in

from hostrouting import Configure, HostRoutingConfig
from hostrouting.boot import layout
from hostrouting.boot.boot import Boot
from hostrouting.boot.layout import (
    APPLIED_PATH,
    GENERATION_LINK,
    SCRIPT_DIRECTORY,
    read_asset,
    with_program,
)
from hostrouting.boot.steps import LINKED_PATHS, Generation
from hostrouting.exceptions import UnitError
from hostrouting.testing import FakeHost, MemoryFiles, MemoryServices
from phases import Context, TaskFailedError
from phases.testing import ManualClock

if TYPE_CHECKING:
    Story = Callable[[FakeHost, Context], object]

pytestmark = pytest.mark.slow

UNITS = "/etc/systemd/system"
MACHINE = b"[Service]\nExecStart=/bin/sleep infinity\n"
KUBE = "systemd-nspawn@kube1.service"
GATE_SCRIPT = "/etc/aks-flex-node/hostrouting-ask.sh"


def pids_of_machines(host: FakeHost) -> list[int]:
    """Return the main processes of the machines that run."""
    return [state.main_pid for state in host.services.loaded(Context(), NSPAWN) if state.is_running]


class KilledError(BaseException):
    """The end of a process: nothing catches it."""


def nothing(host: FakeHost, ctx: Context) -> None:
    """Leave the machine as it is: without hostrouting."""


def install(
    host: FakeHost,
    ctx: Context,
    *gates: str,
    program: str = "",
    names: tuple[str, ...] = (),
) -> None:
    boot = Boot(host, gates=gates or (NSPAWN,))
    for name in names or (STATIC, CHECK):
        boot.install(ctx, stand_in(name, program))


def upstream(host: FakeHost, ctx: Context) -> None:
    install_upstream(host.files)
    host.services.start(ctx, f"{CHECK}.service")


def remove_all(host: FakeHost, ctx: Context) -> None:
    # As `reset` without the config: which gates there were is unknown.
    for name in STATIC, CHECK:
        Boot(host, gates=[]).install(ctx, departure_of(name))


STORIES = {
    "a first install": (nothing, install),
    "a changed script": (install, partial(install, program="echo changed\n")),
    "another gate": (install, lambda host, ctx: install(host, ctx, "kubelet.service")),
    "an upgrade": (upstream, install),
    "one of two goes": (
        install,
        lambda host, ctx: Boot(host, gates=[NSPAWN]).install(ctx, departure_of(STATIC)),
    ),
    "all goes": (install, remove_all),
    "all of upstream's goes": (upstream, remove_all),
}


@pytest.mark.parametrize("part", ["files", "services"])
@pytest.mark.parametrize(("prepare", "story"), STORIES.values(), ids=STORIES.keys())
def test_killed_before_any_step(part: str, prepare: Story, story: Story) -> None:
    """Whenever a run is killed, the disk lets the machine boot, and the next run ends as an
    undisturbed one.
    """
    ctx = Context()
    wanted = machine(prepare, ctx)
    story(wanted, ctx)
    for number in count(1):
        host = machine(prepare, ctx)
        pids = pids_of_machines(host)
        broken: MemoryFiles | MemoryServices = host.files if part == "files" else host.services
        broken.fail_at(number, KilledError())
        try:
            story(host, ctx)
        except KilledError:
            assert_bootable(host)
            assert_nothing_is_lost(host)
        else:
            break
        story(host, ctx)
        assert host.files.tree.snapshot() == wanted.files.tree.snapshot()
        assert_systemd_has_read(host, wanted, ctx)
        assert pids_of_machines(host) == pids
        host.services.operations.calls.clear()
        story(host, ctx)
        assert ("daemon_reload",) not in host.services.operations.calls
    assert number > 3


A: dict[str, str] = {STATIC: "echo a\n", CHECK: "echo a\n"}
B: dict[str, str] = {STATIC: "echo b\n", CHECK: "echo b\n"}


@pytest.mark.parametrize("first", [(STATIC, CHECK), (STATIC,), (CHECK,), None])
@pytest.mark.parametrize("second", [(STATIC, CHECK), (STATIC,), (CHECK,)])
def test_no_boot_mixes_two_configs(first: tuple[str, ...] | None, second: tuple[str, ...]) -> None:
    """Wherever a change of config is cut off, a boot runs all that one of the two configs wants,
    and nothing else.

    The earlier config may be upstream's, whose scripts are plain files, and a second run may be cut
    off, too.
    """
    ctx = Context()
    allowed = [dict.fromkeys(first or (STATIC, CHECK), "a"), dict.fromkeys(second, "b")]
    for number in count(1):
        host = machine(nothing, ctx)
        if first is None:
            install_upstream(host.files, program="echo a")
        else:
            bring(host, ctx, A, first)
        is_cut = cut(host, ctx, number, second)
        assert boot_runs(host) in allowed
        # Another one.
        cut(host, ctx, 1 + number * 7 % 20, second)
        assert boot_runs(host) in allowed
        if not is_cut:
            assert boot_runs(host) == allowed[1]
            break
    assert number > 3


@pytest.mark.parametrize("names", [(STATIC, CHECK), (STATIC,), (CHECK,)])
def test_an_upgrade_that_is_cut_leaves_a_gate(names: tuple[str, ...]) -> None:
    """Wherever an upgrade is cut off, upstream's links require its check until the drop-in of the
    gate stands, which finds a script to run and all that it needs.
    """
    ctx = Context()
    number = 0
    is_cut = True
    while is_cut:
        number += 1
        host = machine(upstream, ctx)
        is_cut = cut(host, ctx, number, names)
        tree = host.files.tree
        bound = tree.names(f"{UNITS}/{NSPAWN}.requires")
        if not tree.exists(f"{UNITS}/{NSPAWN}.d/10-hostrouting.conf"):
            assert bound == [f"{CHECK}.service", f"{STATIC}.service"]
            continue
        asset = read_asset(layout.__file__, "hostrouting-ask.sh")
        assert tree.read(GATE_SCRIPT) == with_program(asset)
        assert_whole(host)
        for name in names:
            assert f"{UNITS}/{name}.service" in tree.snapshot()
        assert is_cut or bound == []
    assert number > 10


def test_no_gate_mixes_two_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever an upgrade is cut off, the script of a gate and the other files are of one release."""
    release = "a"
    read = layout.read_asset

    def asset(module: str, name: str) -> bytes:
        is_gates = name in {"hostrouting-ask.sh", "hostrouting-retry.sh"}
        return f"echo {release}\n".encode() if is_gates else read(module, name)

    monkeypatch.setattr(layout, "read_asset", asset)
    ctx = Context()
    number = 0
    is_cut = True
    scripts: list[bytes | None] = []
    while is_cut:
        number += 1
        release = "a"
        host = machine(nothing, ctx)
        bring(host, ctx, A, (STATIC, CHECK))
        release = "b"
        is_cut = cut(host, ctx, number, (STATIC, CHECK))
        scripts = [
            host.files.tree.read(f"{GATE_SCRIPT[:-6]}{name}.sh") for name in ("ask", "retry")
        ]
        assert scripts[0] == scripts[1]
        assert {*boot_runs(host).values()} == {(scripts[0] or b"").decode().split()[1]}
        assert_whole(host)
    assert scripts[0] == b"echo b\n"
    assert number > 5


def test_a_failed_run_leaves_a_gate() -> None:
    """Whenever systemd falls silent in an apply over upstream's files, upstream's links stay, or
    the drop-in of the gate stands.
    """
    sections = {
        "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"},
        "gates": [NSPAWN],
    }
    for number in count(1):
        host = machine(upstream, Context())
        for silent in range(number, number + 200):
            host.services.fail_at(silent)
        with suppress(TaskFailedError, UnitError):
            Configure(HostRoutingConfig.from_mapping(sections), host=host).do(
                Context(clock=ManualClock(auto=True))
            )
        gated = host.files.exists(f"{UNITS}/{NSPAWN}.d/10-hostrouting.conf")
        assert gated or host.files.names(f"{UNITS}/{NSPAWN}.requires") == [
            f"{CHECK}.service",
            f"{STATIC}.service",
        ]
        if gated:
            break
    assert number > 3


@pytest.mark.parametrize("others", [(), ("probe-snat",)])
def test_a_reset_that_is_cut_leaves_no_failing_unit(others: tuple[str, ...]) -> None:
    """A reset that is cut off has removed the gates before the check, and the check before the
    routes without which it would fail.
    """
    ctx = Context()
    for number in count(1):
        host = machine(nothing, ctx)
        install(host, ctx, program="echo a\n", names=(STATIC, CHECK, *others))
        host.files.fail_at(number, KilledError())
        try:
            Boot(host, gates=[]).install(ctx, *(departure_of(name) for name in (STATIC, CHECK)))
        except KilledError:
            runs = boot_runs(host)
            assert not gates_of(host) or len(runs) == 2 + len(others)
            assert STATIC in runs or CHECK not in runs
        else:
            assert list(boot_runs(host)) == list(others)
            break
    assert number > 10


def assert_whole(host: FakeHost) -> None:
    """The files in force are those of one apply: the name of their folder has their checksum."""
    folder = host.files.tree.read_link(GENERATION_LINK)
    places = {
        path: f"{SCRIPT_DIRECTORY}/{folder}/{path.rpartition('/')[2]}"
        for path in (*LINKED_PATHS, APPLIED_PATH)
    }
    contents = {path: host.files.tree.read(place) for path, place in places.items()}
    present = {path: content for path, content in contents.items() if content is not None}
    assert Generation(present).name == folder


def cut(host: FakeHost, ctx: Context, number: int, names: tuple[str, ...]) -> bool:
    """Kill a run at the operation on files with that number; return False if it ended before."""
    host.files.fail_at(number, KilledError())
    try:
        bring(host, ctx, B, names)
    except KilledError:
        return True
    return False


def bring(host: FakeHost, ctx: Context, programs: dict[str, str], names: tuple[str, ...]) -> None:
    """Install all wanted units at once, and remove all else, as Configure does."""
    gone = [departure_of(name) for name in (STATIC, CHECK)]
    Boot(host, gates=[NSPAWN]).install(
        ctx,
        *(stand_in(name, programs.get(name, "")) for name in names),
        *(removal for removal in gone if removal.name.removesuffix(".service") not in names),
    )


def boot_runs(host: FakeHost) -> dict[str, str]:
    """Return the output of each required unit at a boot; a unit that would do nothing is left out."""
    tree = host.files.tree
    links = {
        *tree.names(f"{UNITS}/hostrouting-ready.service.requires"),
        *tree.names(f"{UNITS}/{NSPAWN}.requires"),
    }
    names = [unit.removesuffix(".service") for unit in links]
    scripts = {name: (tree.read(f"/etc/aks-flex-node/{name}.sh") or b"").decode() for name in names}
    assert all(scripts.values()), "a unit whose script is missing would hold the gate"
    messages = {name: script.partition("echo ")[2] for name, script in scripts.items()}
    return {name: text.split()[0] for name, text in messages.items() if text}


def machine(prepare: Story, ctx: Context) -> FakeHost:
    """A machine on which a container and a kubelet run."""
    host = FakeHost()
    for name in NSPAWN, "kubelet.service":
        host.files.write(f"/lib/systemd/system/{name}", MACHINE, mode=0o644)
    prepare(host, ctx)
    host.services.start(ctx, KUBE)
    host.services.start(ctx, "kubelet.service")
    return host


def assert_bootable(host: FakeHost) -> None:
    """Every dependency can be met: no gate is held by a unit or script that does not exist."""
    snapshot = host.files.tree.snapshot()
    assert not gates_of(host) or f"{UNITS}/hostrouting-ready.service" in snapshot
    for unit in host.files.tree.names(f"{UNITS}/hostrouting-ready.service.requires"):
        assert f"{UNITS}/{unit}" in snapshot
        # A link to it may lead nowhere.
        assert host.files.tree.read(f"/etc/aks-flex-node/{unit.removesuffix('.service')}.sh")


def gates_of(host: FakeHost) -> set[str]:
    return {path for path in host.files.tree.snapshot() if path.endswith(".d/10-hostrouting.conf")}


def assert_nothing_is_lost(host: FakeHost) -> None:
    """Either systemd has read the files on the disk, or a note on the machine warns that it may
    not.
    """
    known = {
        path for name in (KUBE, "kubelet.service") for path in host.services._memory[name].texts
    }
    is_known = gates_of(host) == {path for path in known if path.endswith(".conf")}
    assert is_known or host.files.exists("/run/hostrouting.unfinished")


def assert_systemd_has_read(host: FakeHost, wanted: FakeHost, ctx: Context) -> None:
    names = "kubelet", "hostrouting-ready", STATIC, CHECK
    for name in KUBE, *(f"{name}.service" for name in names):
        now = host.services.state(ctx, name)
        then = wanted.services.state(ctx, name)
        assert now._replace(main_pid=0) == then._replace(main_pid=0)
