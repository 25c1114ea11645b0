"""The command: its output and its exit status, on images and with wrong words; explanations of a
node.
"""

import ast
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.command_line import COMMAND, enter, run
from support.images import make_image
from support.in_process import run_here
from support.kernel import needs_kernel, powerless
from support.needs import needs
from support.printed import ANOTHER_FILE, BEFORE_THE_PIPE, NOT_CLOSED, TOO_LARGE

from hostrouting.boot.installed_config import NOT_INSTALLED
from hostrouting.testing import KernelNode
from hostrouting.testing.contracts.routes import arrange


def files_below(root: Path) -> list[str]:
    """Return the files and links below a folder as a plan names them: scripts by their well-known
    names, without the folders that these lead to.
    """
    found = sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if not path.is_dir() or path.is_symlink()
    )
    return [
        path
        for path in found
        if not re.match(r"etc/aks-flex-node/hostrouting(-[0-9a-f]{8}/|$)", path)
    ]


# --- images


def test_a_sweep_alone_has_no_files(tmp_path: Path) -> None:
    """A render of a config that installs no files succeeds, and reports that in its log."""
    path = tmp_path / "config.json"
    section = {"enabled": True, "podCidrs": ["10.240.0.0/16"]}
    path.write_text(json.dumps({"hostRouting": {"staleCni": section}}))
    written = run_here("render", path, "--out", tmp_path / "files")
    assert written.returncode == 0
    assert "nothing was written: this config installs no files" in written.stderr


@pytest.mark.slow
def test_rendering_into_a_folder_makes_it_and_lists_its_files(config: Path, tmp_path: Path) -> None:
    """A render into a folder prints the paths that it writes; JSON, and a file that is named by the
    end of its path, have the same texts, and the size of the program.

    A folder that cannot be made is an error that names the folder.
    """
    folder = tmp_path / "new" / "folder"
    result = run_here("render", config, "--out", folder)
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == [
        f"{folder}/{path}" for path in files_below(folder)
    ]
    again = run_here("render", config, "--out", folder, "--json")
    written = result.stdout.splitlines()
    verdict = f"files and links written: {len(written)}"
    assert json.loads(again.stdout) == {"version": 1, "verdict": verdict, "written": written}
    answer = json.loads(run_here("render", config, "--json").stdout)
    texts = {f"{folder}{file['path']}": file["content"] for file in answer["files"]}
    program = folder / "etc/aks-flex-node/hostrouting.zip"
    assert texts.pop(str(program)) is None
    size = program.stat().st_size
    assert [file["size"] for file in answer["files"] if "size" in file] == [size]
    shown = run_here("render", config, "hostrouting.zip").stdout
    assert shown == f"({size} bytes; --out writes them)\n"
    assert f"hostrouting.zip (0644) <==\n{shown}\n==> " in run_here("render", config).stdout
    paths = {Path(line) for line in result.stdout.splitlines()} - {program}
    assert texts == {str(path): path.read_text() for path in paths if not path.is_symlink()}
    single = run_here("render", config, "static-routes.service")
    assert single.stdout == texts[f"{folder}/etc/systemd/system/static-routes.service"]
    (tmp_path / "file").touch()
    refused = run_here("render", config, "--out", tmp_path / "file" / "folder")
    assert refused.returncode == 3
    assert refused.stdout == ""
    assert (
        refused.stderr
        == f"hostrouting: cannot make the folder {tmp_path}/file/folder: Not a directory\n"
    )
    assert run_here("render", config, "--out", "").returncode == 2


def test_a_folder_has_the_one_file_that_was_named(config: Path, tmp_path: Path) -> None:
    """A render of one named file into a folder leaves out all other files, and the links of the
    units.
    """
    folder = tmp_path / "folder"
    result = run_here("render", config, "static-routes.service", "--out", folder)
    unit = folder / "etc/systemd/system/static-routes.service"
    assert result.stdout == f"{unit}\n"
    assert [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()] == [unit]


@pytest.mark.parametrize(
    "document", [{"kubelet": {}}, {"routeOverlap": {"mode": "STRICT"}}, {"gates": []}]
)
def test_only_a_permission_lets_a_config_without_effect_remove_another_one(
    config: Path, tmp_path: Path, document: dict[str, object]
) -> None:
    """Without --allow-empty, apply and plan refuse a config without effect with 2, and change
    nothing; with that option the apply removes the installed one.
    """
    make_image(tmp_path)
    assert run_here("apply", "--root", tmp_path, config).returncode == 0
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps(document))
    before = files_below(tmp_path)
    for command in "plan", "apply":
        refused = run_here(command, "--root", tmp_path, empty)
        assert refused.returncode == 2
        assert "use --allow-empty" in refused.stderr
    assert files_below(tmp_path) == before
    assert run_here("apply", "--root", tmp_path, empty, "--allow-empty").returncode == 0
    assert not (tmp_path / "etc/aks-flex-node").exists()


def test_a_relative_root_is_one_of_the_working_directory(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative --root is a folder of the working directory; an empty one is refused."""
    make_image(tmp_path / "image")
    monkeypatch.chdir(tmp_path)
    run_here("apply", "--root", "image", config)
    assert (tmp_path / "image/etc/aks-flex-node/hostrouting.json").exists()
    refused = run_here("apply", "--root", "", config)
    assert refused.returncode == 2
    assert "the path of a folder must not be empty" in refused.stderr


def test_a_failed_apply_lists_no_changes(config: Path, tmp_path: Path) -> None:
    """An apply that fails before its first change does not list the planned changes."""
    make_image(tmp_path)
    (tmp_path / "etc").write_text("in the way of every folder")
    failed = run_here("apply", "--root", tmp_path, config)
    assert failed.returncode == 3
    assert failed.stdout == f"{NOT_INSTALLED} in the image\n"
    assert f"cannot write {tmp_path}/etc" in failed.stderr


# --- wrong input


#: What is at the path of a config, the exit status, and the message after that path.
PATHS = [
    ("JSON", 2, " is not JSON: line 2, column 13: Expecting value at '}}'; correct it there"),
    ("absent", 3, ": No such file or directory; check the path"),
    ("folder", 3, ": Is a directory; give the path of the JSON file in it"),
    ("below a file", 3, f": Not a directory; {ANOTHER_FILE}"),
    ("loop", 3, f": Too many levels of symbolic links; {ANOTHER_FILE}"),
    (
        "device",
        3,
        f": it is a device, but a config must be a file or a pipe; {ANOTHER_FILE}",
    ),
    ("large", 3, f": {TOO_LARGE}; {ANOTHER_FILE}"),
    (
        "pipe",
        3,
        f": {NOT_CLOSED}0.01 s; write the config into it and close it, or allow more time",
    ),
]


@pytest.mark.parametrize(("kind", "status", "words"), PATHS)
def test_a_path_that_leads_to_no_config(kind: str, status: int, words: str, tmp_path: Path) -> None:
    """A path that does not lead to a config is refused in one line with the path, the reason and
    the step, also in JSON.
    """
    path = tmp_path / "config.json"
    if kind == "JSON":
        path.write_text('{"hostRouting":\n  {"gates": }}')
    elif kind == "folder":
        path.mkdir()
    elif kind == "below a file":
        path.touch()
        path /= "config.json"
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "large":
        path.write_bytes(b" " * ((1 << 20) + 1))
    elif kind == "pipe":
        os.mkfifo(path)
    refused = run_here("check", "--json", "--timeout", "0.01", path)
    message = f"{'' if status == 2 else 'cannot read '}the config {str(path)!r}{words}"
    assert refused.returncode == status
    assert refused.stderr == f"hostrouting: {message}\n"
    assert json.loads(refused.stdout)["error"] == message


def test_a_config_that_only_root_may_read_is_reported() -> None:
    """A config that only root may read is refused with the advice to run as root or to make the
    file readable.
    """
    path = "/proc/1/environ"
    refused = run("check", path, prefix=powerless() if os.geteuid() == 0 else ())
    message = f"cannot read the config {path!r}: Permission denied; run this as root, or make the file readable"
    assert refused.returncode == 3
    assert refused.stderr == f"hostrouting: {message}\n"


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_a_config_that_is_wrong_for_an_image_is_an_invalid_config(
    command: str, tmp_path: Path
) -> None:
    """A config that leaves the device of probes open is refused for an image, with status 2 and the
    path of the field, and nothing is installed.
    """
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hostRouting": {"probeSnat": {"enabled": True}}}))
    root = tmp_path / "image"
    root.mkdir()
    refused = run_here(command, "--root", root, path)
    assert refused.returncode == 2
    assert refused.stdout == ("" if command == "plan" else f"{NOT_INSTALLED} in the image\n")
    assert (
        "hostRouting.probeSnat.dev: is missing; name the device that receives probes"
        in refused.stderr
    )
    answer = json.loads(run_here("plan", "--json", "--root", root, path).stdout)
    assert [error["path"] for error in answer["errors"]] == ["hostRouting.probeSnat.dev"]
    assert files_below(root) == []


@pytest.mark.parametrize(
    "words",
    [
        ["apply", "--json"],
        ["plan", "--json", "CONFIG", "--timeout", "soon"],
        ["plan", "--json", "CONFIG", "--frobnicate"],
        ["frobnicate", "--json"],
    ],
)
def test_programs_get_wrong_words_in_json(words: list[str], config: Path) -> None:
    """Wrong words with --json end with status 2 and an object that has the error."""
    ended = run_here(*(config if word == "CONFIG" else word for word in words))
    assert ended.returncode == 2
    result = json.loads(ended.stdout)
    assert result["ok"] is False
    assert result["error"] in ended.stderr


def through_shell(redirection: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", f'"$@" {redirection}', "bash", *COMMAND, *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.slow
def test_a_stdout_that_is_closed_from_the_start_changes_no_answer(
    config: Path, tmp_path: Path
) -> None:
    """A command whose stdout is closed from the start has its usual exit status, without an
    AttributeError.
    """
    root = make_image(tmp_path / "image")
    for status, words in (
        (4, ["plan", "--exit-code", "--root", root, config]),
        (0, ["apply", "--json", "--root", root, config]),
        (0, ["plan", "--exit-code", "--root", root, config]),
        (0, ["reset", "--root", root]),
        (2, ["frobnicate", "--json"]),
    ):
        ended = through_shell(">&-", *words)
        assert ended.returncode == status, ended.stderr
        assert "NoneType" not in ended.stderr
    assert through_shell("<&-", "check", "-").stderr == (
        f"hostrouting: the config on stdin is empty; {BEFORE_THE_PIPE}\n"
    )
    assert through_shell(">&- 2>&-", "plan", "--exit-code", "--root", root, config).returncode == 4


@needs("kernel")
def test_lines_for_the_journal_have_their_priority_and_one_name(tmp_path: Path) -> None:
    """A line for the journal begins with its priority. A process that systemd has started leaves
    the name hostrouting out, and the child of another process writes it; redirected output has no
    priority.
    """
    path = tmp_path / "bad.json"
    log = tmp_path / "log"
    written = []
    path.write_text('{"watch": {"enabled": 1, "interval": 5}}')
    command = [*COMMAND, "plan", str(path)]
    log.touch()
    result = {**os.environ, "JOURNAL_STREAM": f"{log.stat().st_dev}:{log.stat().st_ino}"}
    for starting in (), ("unshare", "--pid", "--fork", "sh", "-c", '"$@"; exit $?', "sh"):
        with log.open("w") as stream:
            subprocess.run([*starting, *command], check=False, stderr=stream, env=result)
        written.append(log.read_text().splitlines())
    of_child, of_unit = written
    assert len(of_child) == 3
    assert all(line.startswith("<3>") for line in of_child)
    assert [line.replace("<3>hostrouting: ", "<3>") for line in of_child] == of_unit
    redirected = subprocess.run(command, check=False, capture_output=True, text=True, env=result)
    assert redirected.stderr.splitlines() == [line.removeprefix("<3>") for line in of_child]


def test_an_answer_that_cannot_be_written_is_a_failure(config: Path) -> None:
    """An answer that cannot be written to a full disk is exit status 3 in every form, and one line
    with the reason.
    """
    for options in [], ["--json"]:
        ended = through_shell("> /dev/full", "render", *options, config)
        assert ended.returncode == 3
        assert ended.stderr == (
            "hostrouting: cannot write the answer to stdout: No space left on device; "
            'run: du -xah "$(findmnt -n -o TARGET -T /dev)" | sort -h | tail\n'
        )


@needs_kernel
def test_explain_names_the_route_of_each_part(node: KernelNode) -> None:
    """`explain` joins neighbouring addresses with the same answer to one part with its devices, and
    names an address of the node.
    """
    arrange(node, "172.16.8.0/22 via 10.224.0.1 dev eth0")
    answer = json.loads(
        run("explain", "--json", "172.16.4.0/21", "172.16.8.0/21", "172.16.1.4", inside=node).stdout
    )
    assert answer["version"] == 1
    result = answer["explanations"]
    assert [(part["first"], part["last"], part["devs"]) for part in result[1]["parts"]] == [
        ("172.16.8.0", "172.16.11.255", ["eth0"]),
        ("172.16.12.0", "172.16.15.255", ["ib0"]),
    ]
    assert result[2]["parts"][0]["reason"] == "an address of this node"


def on_a_terminal(*words: str, **environment: str) -> str:
    terminal, program_end = pty.openpty()
    env = {**os.environ, "TERM": "xterm", **environment}
    subprocess.run(words, check=False, stdout=program_end, env=env)
    os.close(program_end)
    shown = b""
    # A read may return a part of the output; the one after the last part fails.
    with suppress(OSError):
        while True:
            shown += os.read(terminal, 100_000)
    os.close(terminal)
    return shown.decode()


@needs_kernel
def test_explain_draws_on_a_terminal(node: KernelNode) -> None:
    """`explain` draws a range on a terminal as a bar in the colours of its devices; a TERM without
    colours has lines of its width.
    """
    arrange(node, "172.16.128.0/17 via 10.224.0.1 dev eth0")

    # 42 is green, for the first device, and 46 cyan, for the second one.
    explain = [*enter(node), *COMMAND, "explain", "172.16.128.0/16"]
    shown = on_a_terminal(*explain)
    assert "\x1b[30;42m" + " " * 16 in shown
    assert "\x1b[30;46m" + " " * 16 in shown
    assert "\x1b[" not in (plain := on_a_terminal(*explain, TERM="dumb", COLUMNS="40"))
    assert max(map(len, plain.splitlines())) <= 40
    assert "172.16.128.0/17 via 10.224.0.1 dev" in plain


@pytest.mark.parametrize(
    ("environment", "words", "is_coloured"),
    [
        ({}, [], True),
        ({"NO_COLOR": ""}, [], True),
        ({"NO_COLOR": "1"}, [], False),
        ({"TERM": "dumb"}, [], False),
        ({}, ["--json"], False),
    ],
)
def test_the_first_word_of_a_verdict_has_a_colour(
    environment: dict[str, str], words: list[str], is_coloured: bool, config: Path
) -> None:
    """The word `error` of a verdict is red on a terminal, unless NO_COLOR, TERM or --json forbids
    colours.
    """
    checked = [*COMMAND, "check", f"--root={config.parent}", str(config), *words]
    shown = on_a_terminal(*checked, **environment)
    assert ("\x1b[31merror\x1b[0m: " in shown) == is_coloured
    assert ("\x1b" in shown) == is_coloured


# --- a process that outlives its files

_WATCHES = """
import sys
from hostrouting import cli
from hostrouting.node import watch
watch.CONFIG_PATH = sys.argv[1]
watch.Watch.do = lambda *_: print(*(name for name in sys.modules if name.startswith(("hostrouting.", "phases."))))
cli.main(["watch", sys.argv[1]])
"""


def late_imports(name: str) -> set[str]:
    """Return the project's modules that functions of a module import, and the adapters that a host
    makes late.
    """
    text = Path(sys.modules[name].__file__ or "").read_text()
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = [
        node
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom)
    ]
    imported = {node.module or "" for node in found}
    imported |= {f"{node.module}.{alias.name}" for node in found for alias in node.names}
    imported |= {f"hostrouting.host.{part}" for part in re.findall(r'=late\("([a-z_.]+)"', text)}
    return {
        each
        for each in imported
        if each.startswith(("hostrouting.", "phases.")) and is_module(each)
    }


def is_module(name: str) -> bool:
    """Return True if a module, and no other object, has the name."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_a_watch_has_loaded_all_that_it_may_want(config: Path) -> None:
    """A watch has imported all modules of hostrouting that it may use once it begins, so an upgrade
    or a removal cannot break a repair.
    """
    result = subprocess.run(
        [sys.executable, "-c", _WATCHES, config], check=True, capture_output=True, text=True
    )
    loaded = set(result.stdout.split())
    # These import for other commands.
    others = {"hostrouting.cli.shared"}
    # And these for tasks that no watch runs; what it wants of them is loaded with its reconcilers.
    others |= {name for name in loaded if name.endswith(".capability")}
    late = {
        name: late_imports(import_module(name).__name__) - loaded
        for name in sorted(loaded - others)
    }
    assert {name: missing for name, missing in late.items() if missing} == {}
