"""The command: its output and its end, in images and, as a process, in real network namespaces."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.in_process import run_here
from support.kernel import needs_kernel, powerless
from support.needs import needs

from hostrouting.cli import main
from hostrouting.host.files.lock import FileLock
from hostrouting.testing import KernelNode
from phases import Context

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COMMAND = [sys.executable, str(Path(sysconfig.get_path("scripts"), "hostrouting"))]
CHECKED = {"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"}}
MENDED = {**CHECKED, "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]}}


def run(
    *words: str | Path, inside: KernelNode | None = None, prefix: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    entering = [] if inside is None else ["nsenter", f"--net=/run/netns/{inside.name}"]
    return subprocess.run(
        [*entering, *prefix, *COMMAND, *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hostRouting": MENDED, "kubelet": {}}))
    return path


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    path = tmp_path / "checked.json"
    path.write_text(json.dumps({"hostRouting": CHECKED}))
    return path


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        node.add_link("eth0")
        node.add_address("eth0", "10.224.0.4/16")
        node.add_route("default", gateway="10.224.0.1", dev="eth0")
        node.add_link("ib0")
        node.add_address("ib0", "172.16.1.4/16")
        yield node


def files_below(root: Path) -> list[str]:
    """As a plan names them: scripts by their well-known names, without the folders that these lead to."""
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink())
    return [path for path in found if not re.match(r"etc/aks-flex-node/hostrouting(-[0-9a-f]{8}/|$)", path)]


# --- images


@pytest.mark.thorough
@needs("systemctl")
def test_an_image_is_planned_applied_and_reset(config: Path, tmp_path: Path) -> None:
    """Apply makes the planned changes; afterwards there is nothing to plan; reset removes everything."""
    root = tmp_path / "image"
    root.mkdir()
    planned = run_here("plan", "--root", root, config)
    assert planned.returncode == 0
    assert [line.split(",")[0] for line in planned.stderr.splitlines() if "the image lacks it" not in line] == [
        f"hostrouting: {gate}: no unit file matches it" for gate in ("systemd-nspawn@.service", "kubelet.service")
    ]
    applied = run_here("apply", "--root", root, config)
    assert applied.returncode == 0, applied.stderr
    assert sorted(applied.stdout.splitlines()) == sorted(planned.stdout.splitlines())
    assert [f"+ /{path}" for path in files_below(root)] == sorted(planned.stdout.splitlines())
    assert run_here("plan", "--root", root, config).stdout == ""
    assert run_here("reset", "--root", root).returncode == 0
    assert files_below(root) == []


@pytest.mark.thorough
@needs("systemctl")
def test_rendering_shows_exactly_the_files_that_apply_installs(config: Path, tmp_path: Path) -> None:
    """The files below `--out`, in JSON, and those that apply wrote into an image are the same."""
    rendered, image = tmp_path / "rendered", tmp_path / "image"
    image.mkdir()
    assert run_here("render", config, "--out", rendered).returncode == 0
    run_here("apply", "--root", image, config)
    for path in files_below(rendered):
        assert (rendered / path).read_bytes() == (image / path).read_bytes()
        assert (rendered / path).stat().st_mode == (image / path).stat().st_mode
    told = json.loads(run_here("render", config, "--json").stdout)
    assert {file["path"]: file["content"] for file in told["files"]} == {
        f"/{path}": (rendered / path).read_text() for path in files_below(rendered)
    }
    one = run_here("render", config, "static-routes.service")
    assert one.stdout == (rendered / "etc/systemd/system/static-routes.service").read_text()


@pytest.mark.thorough
def test_rendering_into_a_folder_makes_it_and_lists_its_files(config: Path, tmp_path: Path) -> None:
    """The answer is the paths; a folder that cannot be made is an error that names it."""
    folder = tmp_path / "new" / "folder"
    told = run_here("render", config, "--out", folder)
    assert told.returncode == 0
    assert sorted(told.stdout.splitlines()) == [f"{folder}/{path}" for path in files_below(folder)]
    again = run_here("render", config, "--out", folder, "--json")
    assert json.loads(again.stdout) == {"written": told.stdout.splitlines()}
    (tmp_path / "file").touch()
    refused = run_here("render", config, "--out", tmp_path / "file" / "folder")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert refused.stderr == f"hostrouting: cannot make the folder {tmp_path}/file/folder: Not a directory\n"
    assert run_here("render", config, "--out", "").returncode == 2


@pytest.mark.thorough
def test_a_config_without_anything_for_us_is_taken_for_a_mistake_unless_allowed(tmp_path: Path) -> None:
    """The whole config of an agent need have no `hostRouting`; the command wants to hear that this is meant."""
    config = tmp_path / "agent.json"
    config.write_text(json.dumps({"kubelet": {}}))
    refused = run_here("plan", "--root", tmp_path, config)
    assert refused.returncode == 2
    assert "hostRouting: is missing, and so is every section of it" in refused.stderr
    assert "--allow-empty" in refused.stderr
    allowed = run_here("plan", "--root", tmp_path, config, "--allow-empty")
    assert (allowed.returncode, allowed.stdout) == (0, "")


def test_rendering_a_file_that_is_not_installed_is_refused(config: Path) -> None:
    """The message lists the files that exist."""
    refused = run_here("render", config, "nothing.service")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(
        "hostrouting: 'nothing.service' is no file of this config's; apply would install: /"
    )


def test_a_failed_apply_lists_no_changes(config: Path, tmp_path: Path) -> None:
    """The answer lists only changes that were made, and none that were merely planned."""
    (tmp_path / "etc").write_text("in the way of every folder")
    failed = run_here("apply", "--root", tmp_path, config)
    assert (failed.returncode, failed.stdout) == (3, "")
    assert "/etc" in failed.stderr.splitlines()[-1]


def test_a_second_run_waits_and_then_names_the_holder_of_the_lock(config: Path, tmp_path: Path) -> None:
    """One run at a time: exit 3 when the time for waiting is up, the holder named, nothing changed."""
    with FileLock(root=str(tmp_path)).hold(Context()):
        waited = run_here("apply", "--root", tmp_path, "--timeout", "0.2", config)
    assert waited.returncode == 3
    assert f"process {os.getpid()}" in waited.stderr
    assert not (tmp_path / "etc").exists()


# --- wrong input


def test_an_invalid_config_shows_every_error(tmp_path: Path) -> None:
    """Exit 2, each error with its path, to a program as well."""
    path = tmp_path / "config.json"
    wrong = {"routeOverlap": {"mode": "LOUD"}, "gates": ["x"]}
    path.write_text(json.dumps(wrong))
    refused = run_here("apply", "--root", tmp_path, path, "--json")
    assert refused.returncode == 2
    assert [error["path"] for error in json.loads(refused.stdout)["errors"]] == [
        "hostRouting.routeOverlap.mode",
        "hostRouting.gates[0]",
    ]
    assert "hostRouting.routeOverlap.mode: expected 'WARN' or 'STRICT', found the string 'LOUD'" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"hostRouting:\n  gates: []\n", 2, "{name} is not JSON: line 1, column 1: Expecting value; correct it there"),
        (
            b'{"hostRouting":\n  {"gates": }}',
            2,
            "{name} is not JSON: line 2, column 13: Expecting value; correct it there",
        ),
        (b"", 2, "{name} is not JSON: it is empty; write an object with the key 'hostRouting' into it"),
        (
            b'{\n"a": "\xe9"}',
            2,
            "{name} is not JSON: line 2, column 7: the byte 0xe9 is not UTF-8; save the config as UTF-8",
        ),
        (None, 3, "cannot read {name}: No such file or directory; check the path"),
        ("folder", 3, "cannot read {name}: Is a directory; give the path of the JSON file in it"),
        ("loop", 3, "cannot read {name}: Too many levels of symbolic links; give the path of another file"),
    ],
)
def test_a_file_that_is_no_config_is_named_with_place_reason_and_step(
    content: bytes | str | None, status: int, message: str, tmp_path: Path
) -> None:
    """The user has the name of the file, the line and column where there is one, and the next step."""
    path = tmp_path / "config.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "folder":
        path.mkdir()
    elif content == "loop":
        path.symlink_to(path)
    refused = run_here("check", path, "--json")
    expected = message.format(name=f"the config {str(path)!r}")
    assert (refused.returncode, refused.stderr) == (status, f"hostrouting: {expected}\n")
    assert json.loads(refused.stdout)["error"] == expected


def test_a_config_that_only_root_may_read_says_so() -> None:
    """A check needs no root, but its file may."""
    path = "/proc/1/environ"
    refused = run("check", path, prefix=powerless() if os.geteuid() == 0 else ())
    message = f"cannot read the config {path!r}: Permission denied; run this as root, or make the file readable"
    assert (refused.returncode, refused.stderr) == (3, f"hostrouting: {message}\n")


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_a_config_that_is_wrong_for_an_image_is_an_invalid_config(command: str, tmp_path: Path) -> None:
    """No default route can be looked up in an image: exit 2, the path of the field, and nothing is installed."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hostRouting": {"probeSnat": {"enabled": True}}}))
    root = tmp_path / "image"
    root.mkdir()
    refused = run_here(command, "--root", root, path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "hostRouting.probeSnat.dev: is missing; name the device that probes come in by" in refused.stderr
    assert files_below(root) == []


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["frobnicate"], 2),
        (["check"], 2),
        (["check", "/nonexistent.json"], 3),
        (["plan", "--root", "/nonexistent-root", "CONFIG"], 3),
        (["check", "--timeout", "-1", "CONFIG"], 2),
        (["explain", "172.16.0.0/99"], 2),
        (["explain", "example.org"], 2),
    ],
)
def test_wrong_words_end_with_their_status_and_few_lines(words: list[str], status: int, config: Path) -> None:
    """Wrong usage is 2, a failure is 3, and no traceback is printed."""
    ended = run_here(*(config if word == "CONFIG" else word for word in words))
    assert ended.returncode == status, ended.stderr
    assert ended.stdout == ""
    assert 1 <= len(ended.stderr.splitlines()) <= 6
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("asked", ["example.org", "300.1.1.1", "::1"])
def test_explain_quotes_its_argument(asked: str) -> None:
    """A word that is no address is quoted as it was written, without the prefix length that an address would get."""
    refused = run_here("explain", asked)
    assert refused.returncode == 2
    assert refused.stderr == (
        f"hostrouting: '{asked}' is not an IPv4 address, nor an IPv4 CIDR such as '172.16.0.0/16'\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--json"],
        ["plan", "--json", "CONFIG", "--timeout", "soon"],
        ["explain", "--json"],
        ["plan", "--json", "CONFIG", "--frobnicate"],
        ["frobnicate", "--json"],
    ],
)
def test_programs_are_told_of_wrong_words_in_json(words: list[str], config: Path) -> None:
    """Exit 2, and an object as for every other refusal."""
    ended = run_here(*(config if word == "CONFIG" else word for word in words))
    assert ended.returncode == 2
    told = json.loads(ended.stdout)
    assert told["ok"] is False
    assert told["error"] in ended.stderr


def test_a_caller_of_main_gets_json_by_its_own_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words that `main` was given decide, not those of the process that calls it."""
    for words, of_the_process in (["plan", "--json"], ["agent"]), (["plan"], ["agent", "--json"]):
        monkeypatch.setattr(sys, "argv", of_the_process)
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert capsys.readouterr().out.startswith("{") is ("--json" in words)


def test_a_root_without_name_is_refused(config: Path) -> None:
    """`--root "$IMAGE"` of a script that forgot to set it: not the working directory, and nothing below it."""
    for command in ("plan", "apply", "reset"):
        refused = run_here(command, "--root", "", config)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "'' is no folder; give its path" in refused.stderr


@pytest.mark.thorough
def test_an_unsupported_section_is_refused_by_all(tmp_path: Path) -> None:
    """`check` and `render` do not answer for a config that `plan` and `apply` refuse."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hostRouting": {**MENDED, "watch": {"enabled": True}}}))
    for command in ("plan", "apply", "check", "render"):
        refused = run_here(command, path)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr == (
            "hostrouting: hostRouting.watch.enabled: this release cannot do that yet; set it to false\n"
        )


def through_shell(redirection: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", f'"$@" {redirection}', "bash", *COMMAND, *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.thorough
def test_a_stdout_that_is_closed_from_the_start_changes_no_answer(config: Path, tmp_path: Path) -> None:
    """As a daemon's: the exit status is the answer, and there is no AttributeError."""
    root = tmp_path / "image"
    root.mkdir()
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
    assert through_shell(">&- 2>&-", "plan", "--exit-code", "--root", root, config).returncode == 4


def test_an_answer_that_cannot_be_written_is_a_failure(config: Path) -> None:
    """A full disk: exit 3 in every form, one line that says so, no traceback."""
    for options in ([], ["--json"]):
        ended = through_shell("> /dev/full", "render", *options, config)
        assert (ended.returncode, ended.stderr) == (
            3,
            "hostrouting: cannot write the answer to stdout: No space left on device\n",
        )


def test_an_empty_config_is_no_wish(tmp_path: Path) -> None:
    """A file with neither hostRouting nor one of its sections would remove everything: refused."""
    path = tmp_path / "config.json"
    path.write_text('{"kubelet": {}}')
    refused = run_here("apply", "--root", tmp_path, path)
    assert refused.returncode == 2


def test_a_closed_pipe_is_no_error(config: Path) -> None:
    """`hostrouting render | head -1` ends quietly."""
    piped = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | head -n 1', "bash", *COMMAND, "render", str(config)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert piped.stderr == ""


# --- a node

NOT_APPLIED = {
    "kind": "not-applied",
    "subject": "hostRouting",
    "reason": "nothing of this config is installed, live or for the next boot; run: hostrouting apply CONFIG",
    "severity": "warning",
}


@needs_kernel
def test_check_answers_in_the_wire_form(node: KernelNode, checked: Path) -> None:
    """The JSON of a node whose ib0 shadows the cluster's addresses, to the last key."""
    answered = run("check", "--json", checked, inside=node)
    assert answered.returncode == 1
    told: Any = json.loads(answered.stdout)
    assert told == {
        "ok": False,
        "mode": "STRICT",
        "expected_devs": ["eth0"],
        "cidrs": [
            {
                "cidr": "172.16.8.0/22",
                "ok": False,
                "findings": [
                    {
                        "kind": "overlap",
                        "first": "172.16.8.0",
                        "last": "172.16.11.255",
                        "devs": ["ib0"],
                        "dev": "ib0",
                        "route": "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4",
                    }
                ],
                "suggested_routes": [
                    {"destination": "172.16.8.0/22", "gateway": "10.224.0.1", "dev": "eth0", "takes_from": ["ib0"]}
                ],
            }
        ],
        "findings": [NOT_APPLIED],
    }


@needs_kernel
def test_check_passes_once_the_route_is_there(node: KernelNode, checked: Path) -> None:
    """Exit 0, and the first line names the device; a warning is exit 1 with `--fail-on warning`."""
    node.add_route("172.16.8.0/22", gateway="10.224.0.1", dev="eth0")
    answered = run("check", checked, inside=node)
    warning = f"warning: not-applied: hostRouting: {NOT_APPLIED['reason']}\n"
    assert (answered.returncode, answered.stdout) == (0, f"172.16.8.0/22 leaves by eth0\n{warning}")
    assert run("check", "--fail-on", "warning", checked, inside=node).returncode == 1


@needs_kernel
def test_a_closed_pipe_changes_no_answer(node: KernelNode, checked: Path) -> None:
    """`check CONFIG | head -1` of a bad node still has exit status 1, and stderr is empty."""
    reading, writing = os.pipe()
    os.close(reading)
    entering = ["nsenter", f"--net=/run/netns/{node.name}", *COMMAND]
    for options in ([], ["--json"]):
        process = subprocess.run(
            [*entering, "check", *options, str(checked)], stdout=writing, stderr=subprocess.PIPE, check=False
        )
        assert (process.returncode, process.stderr) == (1, b"")
    os.close(writing)


@needs_kernel
def test_a_plan_tells_programs_whether_there_is_something_to_change(node: KernelNode, tmp_path: Path) -> None:
    """4 only with `--exit-code`; a route that will be refused is exit 1 in any case."""
    path = config_of(tmp_path, staticRoutes={"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]})
    assert run("plan", path, inside=node).returncode == 0
    assert run("plan", "--exit-code", path, inside=node).returncode == 4
    assert run("plan", "--exit-code", config_of(tmp_path), inside=node).returncode == 0
    path = config_of(tmp_path, staticRoutes={"enabled": True, "routes": [{"destination": "172.16.0.0/16"}]})
    refused = run("plan", path, inside=node)
    assert refused.returncode == 1
    assert "will be refused: the kernel's own route '172.16.0.0/16 dev ib0" in refused.stdout


@needs_kernel
def test_without_default_route_the_wait_ends_in_a_finding(checked: Path) -> None:
    """`--timeout` bounds the wait; running out is an answer, not a failure."""
    with KernelNode.made() as bare:
        answered = run("check", "--json", "--timeout", "0.2", checked, inside=bare)
    assert answered.returncode == 1
    told = json.loads(answered.stdout)
    assert told["expected_devs"] == []
    assert [(f["kind"], f["first"], f["last"]) for f in told["cidrs"][0]["findings"]] == [
        ("no-route", "172.16.8.0", "172.16.11.255")
    ]


@needs_kernel
def test_a_signal_ends_a_wait_at_once(checked: Path) -> None:
    """SIGTERM while it waits for a default route: exit 3, long before the wait would end."""
    with KernelNode.made() as bare:
        waiting = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{bare.name}", *COMMAND, "check", "-v", "--timeout", "3600", str(checked)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert waiting.stderr is not None
        # The log says when the wait begins, so that no test has to guess.
        assert "waiting" in waiting.stderr.readline()
        waiting.send_signal(signal.SIGTERM)
        _, said = waiting.communicate(timeout=600)
    assert waiting.returncode == 3
    assert "cancelled" in said


@needs_kernel
def test_explain_names_the_route_of_each_part(node: KernelNode) -> None:
    """Parts with one answer are one; each has its devices and its route."""
    node.add_route("172.16.8.0/22", gateway="10.224.0.1", dev="eth0")
    told = json.loads(run("explain", "--json", "172.16.4.0/21", "172.16.8.0/21", "172.16.1.4", inside=node).stdout)
    assert [(part["first"], part["last"], part["devs"]) for part in told[1]["parts"]] == [
        ("172.16.8.0", "172.16.11.255", ["eth0"]),
        ("172.16.12.0", "172.16.15.255", ["ib0"]),
    ]
    assert told[2]["parts"][0]["reason"] == "an address of this node"


@needs_kernel
def test_explain_draws_on_a_terminal(node: KernelNode) -> None:
    """On a terminal the range is a bar in the colours of its devices; not with NO_COLOR."""
    node.add_route("172.16.128.0/17", gateway="10.224.0.1", dev="eth0")

    def on_a_terminal(**environment: str) -> str:
        ours, theirs = pty.openpty()
        subprocess.run(
            ["nsenter", f"--net=/run/netns/{node.name}", *COMMAND, "explain", "172.16.128.0/16"],
            check=True,
            stdout=theirs,
            env={**os.environ, **environment},
        )
        os.close(theirs)
        shown = os.read(ours, 100_000).decode()
        os.close(ours)
        return shown

    shown = on_a_terminal()
    assert "\x1b[30;42m" + " " * 16 in shown
    assert "\x1b[30;46m" + " " * 16 in shown
    assert "\x1b[" not in on_a_terminal(NO_COLOR="1")


@needs_kernel
def test_neither_check_nor_plan_loads_pyroute2(node: KernelNode, checked: Path) -> None:
    """The import would cost 145 ms."""
    program = (
        "import sys; from hostrouting.cli import main; main(sys.argv[1:]);"
        "print({'pyroute2', 'asyncio'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        ["nsenter", f"--net=/run/netns/{node.name}", sys.executable, "-c", program, "check", str(checked)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stderr.splitlines()[-1] == "set()"


# --- drift

#: The node of another machine's files: files of a command under /run and /var go with the namespace.
OWN_FILES = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    'for d in /run /var/lib; do mount -t tmpfs -o mode=755 none $d; done; exec "$@"',
    "sh",
]
#: Root, but without any capability.
POWERLESS = powerless()
SWEEP = {"staleCni": {"enabled": True, "podCidrs": ["10.240.0.0/16"]}}
PROBES = {"probeSnat": {"enabled": True, "detect": "always", "dev": "eth0"}}


def config_of(folder: Path, **sections: object) -> str:
    path = folder / "siblings.json"
    path.write_text(json.dumps({"hostRouting": {**sections, "gates": []}}))
    return str(path)


def leave_behind(node: KernelNode, count: int) -> list[str]:
    """Rules of pods that are gone, as azure-vnet writes them."""
    rules = [
        f"-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.240.{number // 250}.{number % 250 + 1} "
        "-j dnat --to-dst 12:34:56:78:9a:bc --dnat-target ACCEPT"
        for number in range(count)
    ]
    entering = ["nsenter", f"--net=/run/netns/{node.name}", "ebtables-nft-restore", "--noflush"]
    subprocess.run(entering, input="\n".join(["*nat", *rules, "COMMIT", ""]), text=True, check=True)
    return rules


def within(node: KernelNode, *words: str | Path, prefix: Sequence[str] = OWN_FILES, **options: Any) -> Any:
    entering = ["nsenter", f"--net=/run/netns/{node.name}", *prefix]
    return subprocess.run([*entering, *COMMAND, *map(str, words)], check=False, text=True, **options)


@needs("kernel", "ebtables-nft", "nft")
def test_check_has_findings_of_the_siblings_and_of_the_routes(node: KernelNode, tmp_path: Path) -> None:
    """Each has its kind, subject and reason; the proof of the routes is answered as ever."""
    (rule,) = leave_behind(node, 1)
    path = config_of(tmp_path, **CHECKED, **SWEEP, **PROBES)
    answered = run("check", "--json", path, inside=node)
    assert answered.returncode == 1
    told = json.loads(answered.stdout)
    assert (told["ok"], told["mode"], [cidr["ok"] for cidr in told["cidrs"]]) == (False, "STRICT", [False])
    assert told["findings"] == [
        NOT_APPLIED,
        {
            "kind": "stale-cni",
            "subject": f"ebtables nft nat: {rule}",
            "reason": "no live endpoint of azure-vnet has 10.240.0.1; run: hostrouting apply CONFIG",
            "severity": "warning",
        },
    ]


@needs("kernel", "ebtables-nft", "nft")
def test_unreadable_packet_rules_are_reported_and_are_no_error(node: KernelNode, tmp_path: Path) -> None:
    """Without privilege packet rules cannot be read: the rest is answered, and so is the list of missing answers."""
    node.add_route("172.16.8.0/22", gateway="10.224.0.1", dev="eth0")
    path = config_of(tmp_path, **CHECKED, **SWEEP)
    answered = within(node, "check", path, prefix=POWERLESS, capture_output=True)
    first, *_, last = answered.stdout.splitlines()
    assert (answered.returncode, first) == (0, "172.16.8.0/22 leaves by eth0")
    assert last.startswith("note: not looked at: cannot tell if a removed CNI left anything without")
    assert within(node, "plan", path, prefix=POWERLESS, capture_output=True).returncode == 0
    told = json.loads(within(node, "check", "--json", path, prefix=POWERLESS, capture_output=True).stdout)
    assert told["ok"] is True
    assert "CAP_NET_ADMIN" in told["not_asked"][0]


@needs("kernel", "nft")
def test_the_time_is_for_the_default_route(tmp_path: Path) -> None:
    """`--timeout` that runs out is an answer, also where there is more to look at than routes."""
    with KernelNode.made() as bare:
        path = config_of(tmp_path, **CHECKED, **PROBES)
        answered = run("check", "--json", "--timeout", "0.2", path, inside=bare)
    assert answered.returncode == 1
    told = json.loads(answered.stdout)
    assert (told["expected_devs"], [finding["kind"] for finding in told["findings"]]) == ([], ["not-applied"])


@needs("kernel", "ebtables-nft")
def test_a_plan_has_a_line_for_each_of_several_that_are_alike(node: KernelNode, tmp_path: Path) -> None:
    """Three equal rules are three that go; and where all is well, `check` says so in words."""
    path = config_of(tmp_path, **SWEEP)
    assert run("check", path, inside=node).stdout == "no findings\n"
    for _ in range(3):
        leave_behind(node, 1)
    assert len(run("plan", path, inside=node).stdout.splitlines()) == 3
    # With --fail-on warning a warning is a bad answer.
    assert run("check", path, inside=node).returncode == 0
    assert run("check", "--fail-on", "warning", path, inside=node).returncode == 1


@needs("kernel", "ebtables-nft")
def test_a_long_sweep_shows_how_far_it_is_on_a_terminal_alone(node: KernelNode, tmp_path: Path) -> None:
    """One line of stderr is written over after each batch; without a terminal there is no such line."""
    path = config_of(tmp_path, **SWEEP)
    leave_behind(node, 2500)
    ours, theirs = pty.openpty()
    done = within(node, "apply", path, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b"".join(iter(partial(_read_terminal, ours), b"")).decode()
    os.close(ours)
    assert done.returncode == 0, shown
    assert len(done.stdout.splitlines()) == 2500
    drawn = "".join(f"\rhostrouting: {count} of 2500 ebtables rules deleted" for count in (1000, 2000, 2500))
    assert drawn + "\r\n" in shown
    leave_behind(node, 2500)
    quiet = within(node, "apply", path, capture_output=True)
    assert quiet.returncode == 0
    assert "of 2500 ebtables rules deleted" not in quiet.stderr


def _read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end is closed, and all was read
        return b""


@needs_kernel
@pytest.mark.parametrize("command", ["check", "explain"])
def test_a_device_whose_name_is_no_text_is_told_all_the_same(node: KernelNode, checked: Path, command: str) -> None:
    """The kernel takes nearly any bytes for a name; a stdout that is strict about UTF-8 does not end the answer."""
    name = b"ib\xff"
    subprocess.run([b"ip", b"-n", node.name.encode(), b"link", b"add", name, b"up", b"type", b"ifb"], check=True)
    route = [b"172.16.8.0/22", b"dev", name]
    subprocess.run([b"ip", b"-n", node.name.encode(), b"route", b"add", *route], check=True)
    asked = "172.16.8.0/22" if command == "explain" else checked
    for encoding in ("utf-8:strict", "ascii:strict", "utf-8:surrogateescape"):
        told = run(command, asked, inside=node, PYTHONIOENCODING=encoding)
        assert told.returncode == (1 if command == "check" else 0), told.stderr
        assert "codec" not in told.stderr
        assert "ib\\udcff" in told.stdout
