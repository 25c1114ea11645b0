"""The program that travels with the boot scripts: what is in the zip file, and who can run it."""

import io
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib.util import MAGIC_NUMBER
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.boot_units import departure_of, stand_in
from support.images import make_image
from support.needs import needs
from support.patience import at_once
from support.printed import MAY_CHANGE
from support.processes import ended
from support.run_nodes import node
from support.shell_nodes import configured, run_on

from hostrouting import Configure, Host, Reset
from hostrouting.base.findings import NodeFinding
from hostrouting.boot import program
from hostrouting.boot.boot import Boot
from hostrouting.boot.layout import ASK_PATH, GENERATION_LINK, PROGRAM_PATH, SCRIPT_DIRECTORY
from hostrouting.boot.program import (
    interpreter_finding,
    interpreter_for,
    interpreter_of,
    new_program,
    wanted_program,
)
from hostrouting.boot.steps import Generation, contents_in_force
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.exceptions import HostFileError, UnitError
from hostrouting.host.trial import GateTrial
from hostrouting.node.boot_files import missing_programs
from hostrouting.testing import FakeHost, KernelNode
from phases import Change, Context, TaskFailedError, execute, plan

#: The interpreter of this process, without a virtual environment.
OWN = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]
USUAL = "/usr/bin/python3"
#: The magic number of no supported Python: that of a 3.9.
OTHER_MAGIC = b"\x61\x0d\x0d\x0a"
#: The exit statuses that a script takes for an answer.
ANSWERS = {10, 11}
STATIC = "static-routes.service"


def own_host() -> FakeHost:
    """Return a host that has the interpreter of this process."""
    host = FakeHost()
    host.files.programs.add(OWN)
    return host


@pytest.fixture(scope="module")
def made() -> bytes:
    return new_program(OWN)


@pytest.fixture(scope="module")
def file(made: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "hostrouting.zip"
    path.write_bytes(made)
    return path


def tried(
    file: Path, *, python: str = OWN, cwd: str | Path = "/", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the verb `try`, as a script runs a verb."""
    return ended(python, "-I", "-S", file, "try", "word", cwd=cwd, env=environment)


def other_pythons() -> list[Path]:
    """Return the Pythons next to this one that can run the program."""
    found = Path(sys.base_prefix).parent.glob("*/bin/python3.*")
    return [path for path in found if re.fullmatch(r"python3\.1\d", path.name)]


def sources_of(program: bytes) -> list[tuple[str, bytes]]:
    archive = zipfile.ZipFile(io.BytesIO(program))
    return [(name, archive.read(name)) for name in archive.namelist() if name.endswith(".py")]


# --- the zip file


def test_it_has_what_the_verbs_import(made: bytes) -> None:
    """The program of the boot has the check, the runner and attrs, but no optional package."""
    names = zipfile.ZipFile(io.BytesIO(made)).namelist()
    modules = {name.removesuffix(".py") for name in names if name.endswith(".py")}
    assert modules >= {
        "__main__",
        "attr/_make",
        "hostrouting/boot/installed_config",
        "hostrouting/host/netlink/backend",
        "hostrouting/host/systemd/systemctl",
        "hostrouting/node/at_boot",
        "hostrouting/route_overlap/ipv6_lifetimes",
        "hostrouting/route_overlap/check",
        "phases/context",
    }
    assert {module.split("/")[0] for module in modules} == {
        *("__main__", "attr", "attrs", "hostrouting", "phases")
    }
    packages = {module.split("/")[1] for module in modules if module.startswith("hostrouting/")}
    assert packages.isdisjoint({"__main__", "azure", "cli", "fleet", "testing", "watch"})


def test_an_installation_without_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is not made of an installation that does not have the source of a module, since later
    applies would take it for right; the error names the module and the step.
    """
    program.new_program.cache_clear()
    find = program._source

    def lose(module: str) -> tuple[str, bytes]:
        if module == "hostrouting.route_overlap.ipv6_lifetimes":
            raise FileNotFoundError(f"the installation has no source of the module {module}")
        return find(module)

    monkeypatch.setattr(program, "_source", lose)
    with pytest.raises(HostFileError) as caught:
        new_program(USUAL)
    assert str(caught.value) == (
        "cannot make /etc/aks-flex-node/hostrouting.zip: the installation has no source of the "
        "module hostrouting.route_overlap.ipv6_lifetimes; install hostrouting with its sources, and apply "
        "the config again"
    )


def test_it_is_stored_in_order_with_bytecode_that_is_never_compared(made: bytes) -> None:
    """The program is stored in order, without compression or times, and each source has an
    unchecked pyc of this version of Python.
    """
    archive = zipfile.ZipFile(io.BytesIO(made))
    entries = archive.infolist()
    assert {entry.compress_type for entry in entries} == {zipfile.ZIP_STORED}
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    names = [entry.filename for entry in entries]
    assert names == sorted(names)
    sources = [name for name in names if name.endswith(".py")]
    assert {*names} == {*sources, *(f"{name}c" for name in sources)}
    heads = {archive.read(f"{name}c")[:8] for name in sources}
    assert heads == {MAGIC_NUMBER + b"\1\0\0\0"}


@pytest.mark.slow
def test_each_process_makes_it_of_the_same_sources(made: bytes, tmp_path: Path) -> None:
    """Processes with other orders of sets, and with or without bytecode, make the program of the
    same sources, and keep that of another process.
    """
    code = "import sys, hostrouting; from hostrouting.boot import program; host = None;"
    code += f"program.interpreter_for = lambda _: {OWN!r};"
    code += "made = program.wanted_program(host, sys.stdin.buffer.read() or None);"
    code += "sys.stdout.buffer.write(made)"
    words = [sys.executable, "-c", code]
    for seed in "1", "2", "3":
        env = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            # The second one writes it, and the third one reads it.
            "PYTHONPYCACHEPREFIX": str(tmp_path / ("none" if seed == "1" else "some")),
            "PYTHONDONTWRITEBYTECODE": "1" if seed == "1" else "",
        }
        new, kept = (
            subprocess.run(words, check=True, capture_output=True, env=env, input=installed).stdout
            for installed in (b"", made)
        )
        assert sources_of(new) == sources_of(made)
        # pytest would explain a comparison of megabytes for minutes.
        assert (kept == made) is True


def test_its_head_is_for_scripts_and_people(made: bytes) -> None:
    """The first line of the program names the interpreter, the second one hostrouting, the third
    the content.
    """
    first, second, third, _ = made.split(b"\n", 3)
    assert first == f"#!{OWN} -IS".encode()
    assert second.startswith(b"# Installed by hostrouting; `hostrouting reset` removes it.")
    tag = rf"# {MAGIC_NUMBER.hex()} [0-9a-f]{{8}} [0-9a-f]{{8}} attr .* phases\.transaction"
    assert re.fullmatch(tag.encode(), third)


# --- an installed one


def test_a_right_one_stays(made: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed program that is right is kept, and nothing is compiled for it."""
    copy = bytes(bytearray(made))
    monkeypatch.setattr(program, "new_program", lambda _: b"")
    program._checksum.cache_clear()
    assert wanted_program(own_host(), copy) is copy


@pytest.mark.parametrize("place", [1, 60, 150, 200, 5000, -30, -1])
def test_one_that_was_damaged_is_made_again(
    made: bytes, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed program that was damaged or cut at any place is made again."""
    monkeypatch.setattr(program, "new_program", lambda _: b"made again")
    damaged = bytearray(made)
    damaged[place] ^= 1
    assert wanted_program(own_host(), bytes(damaged)) == b"made again"
    assert wanted_program(own_host(), made[:place]) == b"made again"


def test_one_of_other_sources_is_made_again(made: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed program of other sources than the installation's is made again."""
    usual = program._source

    def changed(module: str) -> tuple[str, bytes]:
        file, text = usual(module)
        return file, b"" if module == "attr._make" else text

    monkeypatch.setattr(program, "_source", changed)
    monkeypatch.setattr(program, "new_program", lambda _: b"made again")
    program._checksum.cache_clear()
    assert wanted_program(own_host(), made) == b"made again"
    program._checksum.cache_clear()


def test_one_of_another_version_of_python_is_made_again(
    made: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed program with bytecode of another Python is made again for the interpreter of
    this process, and kept for another one.
    """
    monkeypatch.setattr(program, "new_program", lambda _: b"made again")
    other = made.replace(MAGIC_NUMBER.hex().encode(), OTHER_MAGIC.hex().encode(), 1)
    host = own_host()
    assert wanted_program(host, other) == b"made again"
    other = other.replace(os.fsencode(OWN), b"/opt/python", 1)
    host.files.programs.add("/opt/python")
    assert wanted_program(host, other) == other


# --- who runs it


@pytest.mark.slow
def test_it_needs_only_a_python(file: Path) -> None:
    """Any Python of 3.10 or newer can run the program."""
    for python in OWN, *other_pythons():
        assert tried(file, python=str(python)).returncode == 10, python


def test_bytecode_of_another_version_is_not_needed(made: bytes, tmp_path: Path) -> None:
    """A Python that cannot use the bytecode of the program runs its sources."""
    other = tmp_path / "other.zip"
    other.write_bytes(made.replace(MAGIC_NUMBER, OTHER_MAGIC))
    assert tried(other).returncode == 10


def test_an_old_python_is_named(made: bytes) -> None:
    """A Python that is too old ends the program with 13 and a line that names it."""
    text = zipfile.ZipFile(io.BytesIO(made)).read("__main__.py").decode()
    old = text.replace("sys.version_info", "(3, 9)")
    ran = subprocess.run([OWN, "-IS", "-c", old], check=False, capture_output=True, text=True)
    message = f"{OWN} is Python 3.9; install 3.10 or newer as /usr/bin/python3\n"
    assert ran.returncode == 13
    assert ran.stdout == message


def test_a_hostile_environment_changes_nothing(file: Path, tmp_path: Path) -> None:
    """The program reads neither the variables of Python nor modules in the working directory."""
    for name in "phases", "attr", "hostrouting":
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(11)\n")
    (tmp_path / "socket.py").write_text("raise SystemExit(11)\n")
    ran = tried(
        file,
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path),
        PYTHONHOME=str(tmp_path),
        PYTHONSTARTUP=str(tmp_path / "socket.py"),
        PYTHONOPTIMIZE="2",
        PYTHONINSPECT="1",
        PYTHONIOENCODING="ascii",
    )
    assert ran.returncode == 10
    assert ran.stdout == "the program runs\n"
    assert ran.stderr == ""


@pytest.mark.parametrize(
    "words", [[], ["nothing", "word"], ["check"], ["try", "word", "now", "or"]]
)
def test_only_the_verb_for_a_try_gives_an_answer(file: Path, words: list[str]) -> None:
    """The program prints one line for any arguments, and its exit status is an answer only for the
    verb `try`.
    """
    ran = subprocess.run([OWN, "-IS", file, *words], check=False, capture_output=True, text=True)
    assert (ran.returncode in ANSWERS) == (words[:1] == ["try"])
    assert len(ran.stdout.splitlines()) == 1


# --- the interpreter


def test_the_interpreter_is_that_of_the_apply() -> None:
    """The interpreter of the program is that of the apply if the node has it and only root can
    change it, and the usual one otherwise, as in an image.
    """
    host = FakeHost()
    assert interpreter_for(host) == USUAL
    host.files.programs.add(OWN)
    assert interpreter_for(host) == OWN
    assert interpreter_of(wanted_program(host, None)) == OWN
    image = FakeHost(is_live=False)
    image.files.programs.add(OWN)
    assert interpreter_for(image) == USUAL
    host.files.write(OWN, b"", mode=0o777)
    assert interpreter_for(host) == USUAL
    assert interpreter_of(b"#!/bin/sh\n") == interpreter_of(None) == ""


def test_one_of_another_installation_stays_while_its_interpreter_is_there() -> None:
    """An installed program of another installation of the same release is kept while its
    interpreter is there.
    """
    host = FakeHost()
    host.files.programs.add("/opt/python")
    other = new_program("/opt/python")
    assert wanted_program(host, other) == other
    older = other.replace(b"# Installed by", b"# Made by", 1)
    assert wanted_program(host, older) == new_program(USUAL)
    host.files.programs.remove("/opt/python")
    assert wanted_program(host, other) == new_program(USUAL)


UNCHECKED = "so boots do not check routing: WARN starts gated units, STRICT holds them"
LACKS = NodeFinding(
    "no-program",
    "python3",
    f"the node has no /usr/bin/python3, {UNCHECKED}",
    "warning",
    "install Python 3.10 or newer as /usr/bin/python3, and apply the config again",
)


def test_a_node_without_an_interpreter_is_reported() -> None:
    """A node without an interpreter has a finding, and so has one whose interpreter users other
    than root can change.
    """
    host = FakeHost()
    assert interpreter_finding(host) is None
    host.files.programs.remove(USUAL)
    assert interpreter_finding(host) == LACKS
    host.files.write(USUAL, b"", mode=0o777)
    found = interpreter_finding(host)
    assert found is not None
    assert found.reason.startswith(
        f"users other than root can change /usr/bin/python3: {MAY_CHANGE}/usr/bin/python3 "
        "(owner 0, mode 0777); run: chown 0 /usr/bin/python3 && chmod go-w /usr/bin/python3, but a boot would"
    )


def test_the_interpreter_of_an_installed_one_may_go() -> None:
    """Once the interpreter of an installed program is gone or exposed, the finding is about the
    usual interpreter.
    """
    host = FakeHost()
    host.files.write(PROGRAM_PATH, new_program("/opt/python"), mode=0o644)
    assert interpreter_finding(host) is None
    host.files.programs.remove(USUAL)
    assert interpreter_finding(host) == LACKS
    host.files.programs.add("/opt/python")
    assert interpreter_finding(host) is None
    # An apply names another one where users other than root could change it.
    host.files.write("/opt/python", b"", mode=0o777)
    assert interpreter_finding(host) == LACKS
    host.files.programs.add(USUAL)
    assert interpreter_finding(host) is None


@pytest.mark.parametrize(("mode", "severity"), [("WARN", "warning"), ("STRICT", "error")])
def test_a_strict_node_without_an_interpreter_has_an_error(mode: str, severity: str) -> None:
    """A missing Python is an error in STRICT mode, since no gate opens without it."""
    host = FakeHost()
    host.files.programs.remove(USUAL)
    [found] = missing_programs(overlap(mode), host)
    assert (found.subject, found.severity) == ("python3", severity)


# --- the trial


class Trial:
    """Counts the trials; each has the same result."""

    def __init__(self, host: FakeHost, result: str) -> None:
        self.host = host
        self.result = result
        self.tried: list[tuple[list[str], bytes | None]] = []

    def failure(self, ctx: Context, argv: Sequence[str]) -> str:
        self.tried.append(([*argv], self.host.files.read(argv[3])))
        return self.result


def with_trial(result: str = "") -> tuple[Host, FakeHost, Trial]:
    """Return a node with a trial, the parts of which it is made, and the trial."""
    fake = node()
    trial = Trial(fake, result)
    host = Host(
        routes=fake.routes, services=fake.services, files=fake.files, lock=fake.lock, trial=trial
    )
    return host, fake, trial


def overlap(mode: str, *cidrs: str) -> HostRoutingConfig:
    """Return the config of a check in this mode."""
    section = {"expectedCidrs": ["10.224.0.0/16", *cidrs], "mode": mode}
    return HostRoutingConfig.from_mapping(
        {"gates": ["systemd-nspawn@.service"], "routeOverlap": section}
    )


def test_an_apply_tries_a_new_program_once() -> None:
    """An apply runs a program that it is about to install, as a gate would, from a file that is
    removed again. A plan, an apply without changes and a reset try none.
    """
    host, fake, trial = with_trial()
    plan(Configure(overlap("STRICT"), host=host), at_once())
    assert trial.tried == []
    execute(Configure(overlap("STRICT"), host=host), at_once())
    argv = [USUAL, "-I", "-S", "/run/hostrouting/trial.zip", "try"]
    assert trial.tried == [(argv, fake.files.read(PROGRAM_PATH))]
    assert not fake.files.exists(argv[3])
    execute(Configure(overlap("STRICT"), host=host), at_once())
    before = fake.files.tree.snapshot()
    plan(Configure(overlap("STRICT", "10.96.0.0/16"), host=host), at_once())
    assert fake.files.tree.snapshot() == before
    execute(Reset(HostRoutingConfig(), host=host), at_once())
    assert len(trial.tried) == 1


def ends_with_1(_: FakeHost) -> str:
    return f"{USUAL} -I -S /run/hostrouting/trial.zip try fails: it exited with 1: no"


def has_none(host: FakeHost) -> str:
    host.files.programs.discard(USUAL)
    return f"the {'node' if host.is_live else 'image'} has no {USUAL}"


def has_an_old_one(host: FakeHost) -> str:
    host.files.write("/usr/bin/python3.9", b"", mode=0o755)
    host.files.link("/etc/alternatives/python3", "/usr/bin/python3.9")
    host.files.link(USUAL, "../../etc/alternatives/python3")
    return f"the {'node' if host.is_live else 'image'} has Python 3.9 as {USUAL}"


def cannot_be_tried(host: FakeHost) -> str:
    write = host.files.write

    def full(path: str, content: bytes, *, mode: int) -> bool:
        if path == "/run/hostrouting/trial.zip":
            raise HostFileError("/run is full")
        return write(path, content, mode=mode)

    host.files.write = full  # type: ignore[method-assign]
    return "the program cannot be tried: /run is full"


@pytest.mark.parametrize(
    ("harm", "is_live"),
    [
        *((harm, True) for harm in (ends_with_1, cannot_be_tried)),
        *product((has_none, has_an_old_one), (True, False)),
    ],
)
def test_strict_needs_a_python(
    harm: Callable[[FakeHost], str], caplog: pytest.LogCaptureFixture, *, is_live: bool
) -> None:
    """A STRICT config is refused before any change if no Python can run the program at a boot, on a
    node and in an image. `force` makes that a warning, as it is in WARN mode.
    """
    host: Host
    host, fake, _ = with_trial("it exited with 1: no")
    if not is_live:
        host = fake = FakeHost(is_live=False)
    reason = f"python3: {harm(fake)}, {UNCHECKED}; {LACKS.step}"
    before = fake.files.tree.snapshot()
    acts: list[Callable[..., object]] = [execute]
    # A plan runs no program.
    acts += [] if harm in {ends_with_1, cannot_be_tried} else [plan]
    for act in acts:
        with pytest.raises(TaskFailedError) as caught:
            act(Configure(overlap("STRICT"), host=host), at_once())
        assert isinstance(caught.value.cause, UnitError)
        advice = "or set the mode to WARN"
        assert str(caught.value.cause) == f"{reason}, {advice}"
        assert caught.value.cause.code == "no-program"
        assert fake.files.tree.snapshot() == before
    caplog.clear()
    execute(Configure(overlap("WARN"), host=host), at_once())
    execute(Configure(overlap("STRICT"), host=host, force=True), at_once())
    assert caplog.messages.count(reason) == 2


def test_a_trial_runs_as_a_gate_does(file: Path) -> None:
    """A trial runs without the environment of the apply, and reports the exit status and the last
    line of a failure.
    """
    trial = GateTrial()
    ctx = Context(timeout=60)
    assert trial.failure(ctx, [OWN, "-I", "-S", str(file), "try", "apply"]) == ""
    shell = ["/bin/sh", "-c"]
    assert trial.failure(ctx, [*shell, "env >&2; exit 10"]) == ""
    assert trial.failure(ctx, [*shell, 'exit "${HOME:+11}0"']) == "it exited with 0"
    assert trial.failure(ctx, [*shell, "echo a; echo b >&2; exit 3"]) == "it exited with 3: b"
    assert trial.failure(ctx, ["/nothing"]).startswith("it exited with 127")


# --- as a file of a generation


def test_an_apply_without_change_makes_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An apply without a change neither makes the program nor writes its file."""
    image = make_image(tmp_path / "image")
    section = {"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"]}}
    config = HostRoutingConfig.from_mapping(section)
    Configure(config, host=Host.offline(image)).do(at_once())
    path = image / PROGRAM_PATH.lstrip("/")
    before = path.stat()
    assert interpreter_of(path.read_bytes()) == USUAL
    assert before.st_mode & 0o777 == 0o644
    program._checksum.cache_clear()
    monkeypatch.setattr(program, "new_program", Mock(side_effect=AssertionError))
    Configure(config, host=Host.offline(image)).do(at_once())
    assert path.stat() == before


def test_a_plan_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan lists a first program, and one that was damaged, without making either."""
    host = FakeHost()
    ctx = at_once()
    boot = Boot(host, gates=[])
    with monkeypatch.context() as patched:
        patched.setattr(program, "new_program", Mock(side_effect=AssertionError))
        planned = boot.plan_install(ctx, stand_in(STATIC))
    assert Change("+", PROGRAM_PATH) in planned
    boot.install(ctx, stand_in(STATIC))
    monkeypatch.setattr(program, "new_program", Mock(side_effect=AssertionError))
    assert boot.drift(ctx, stand_in(STATIC)) == []
    folder = host.files.read_link(GENERATION_LINK)
    host.files.write(f"{SCRIPT_DIRECTORY}/{folder}/hostrouting.zip", b"damaged", mode=0o644)
    assert boot.drift(ctx, stand_in(STATIC)) == [Change("~", PROGRAM_PATH)]


@pytest.mark.parametrize("keeps_link", [False, True])
def test_a_generation_without_one_gets_it(keeps_link: bool) -> None:
    """An install adds the program to a generation without one, as an earlier release leaves it, and
    a removal takes all away.
    """
    host = FakeHost()
    ctx = at_once()
    before = host.files.tree.snapshot()
    boot = Boot(host, gates=[])
    boot.install(ctx, stand_in(STATIC))
    contents = contents_in_force(host.files)
    right = host.files.tree.snapshot()
    del contents[PROGRAM_PATH]
    older = Generation(contents)
    for file in older.files:
        host.files.write(file.path, file.content, mode=file.mode)
    host.files.link(GENERATION_LINK, older.name)
    if not keeps_link:
        host.files.remove(PROGRAM_PATH)
    assert [str(change) for change in boot.drift(ctx, stand_in(STATIC))] == [f"+ {PROGRAM_PATH}"]
    boot.install(ctx, stand_in(STATIC))
    now = host.files.tree.snapshot()
    # The earlier one stays, for what runs it.
    assert {path: now[path] for path in now if older.name not in path} == right
    host.files.link(GENERATION_LINK, older.name)
    boot.install(ctx, departure_of(STATIC))
    assert host.files.tree.snapshot() == before


def test_room_for_it_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """An install requests room before any change: a block for each file and link, and the size of
    the files.
    """
    host = FakeHost()
    ctx = at_once()
    boot = Boot(host, gates=[])
    requested: list[int] = []
    monkeypatch.setattr(host.files, "refuse_unwritable", lambda _, size: requested.append(size))
    before = host.files.tree.snapshot().keys()
    boot.refuse_unwritable(boot.steps_to_install(ctx, stand_in(STATIC)))
    boot.install(ctx, stand_in(STATIC))
    written = [path for path in host.files.tree.snapshot() if path not in before]
    contents = [
        host.files.read(path) or b"" for path in written if host.files.read_link(path) is None
    ]
    assert len(written) > len(contents) > 1
    assert requested == [4096 * len(written) + sum(map(len, contents))] * 2


# --- bytecode of another Python


@needs("kernel")
def test_stale_bytecode_is_renewed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After an upgrade of Python, the first run of a boot leaves a program with the bytecode of the
    new Python in /run, and later runs use that.
    """
    with monkeypatch.context() as patched:
        patched.setattr(program, "MAGIC_NUMBER", OTHER_MAGIC)
        program.new_program.cache_clear()
        image = configured(tmp_path, routeOverlap={"expectedCidrs": ["10.96.0.0/16"]})
    program.new_program.cache_clear()
    ran = f"""
    ask() {{ ended=0; bash -p {ASK_PATH} '' WARN > /dev/null 2>&1 || ended=$?; echo $ended; }}
    python3 -c 'import sys; print(sys.implementation.cache_tag)'
    ask
    cd /run/hostrouting
    grep --max-count=3 --text "^# $(python3 -c '
import importlib.util, sys
print(importlib.util.MAGIC_NUMBER.hex())')" *.zip | cut -d ' ' -f 1
    stat --format=%a *.zip
    before=$(stat --format=%y *.zip)
    ask
    [[ $(stat --format=%y *.zip) == "$before" ]] && ls *.zip
    mkdir -p hostrouting/node
    echo 'def main(_): raise SystemExit(11)' > hostrouting/node/at_boot.py
    python3 -m zipfile -c *.zip hostrouting
    ask
    """
    with KernelNode.made() as node:
        lines = run_on(node, image, ran)
    folder = (image / GENERATION_LINK.lstrip("/")).readlink().name
    tag, *rest = lines
    name = f"{tag}-{folder.rpartition('-')[2]}.zip"
    assert rest == ["10", "#", "600", "10", name, "11"]
