"""A run is killed before each call by which it changes a machine: nothing is torn or lost, and the next leaves nothing.

`strace` kills it as it enters the kernel: before the n-th of these calls, in any thread. A sample runs with all tests,
every call under the marker `soak`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from support.gated_machine import KUBE, require_nspawn
from support.needs import require
from support.program import PROGRAM, PYTHON, require_program
from system.matrix import Node
from system.troubles import EARLIER, PROBES

_logger = logging.getLogger(__name__)
#: The unchanged command: it does not wait in this machine, and no sibling of the pair may time out under load.
COMMAND: Final = ("env", f"PYTHONPATH={PROGRAM}", str(PYTHON), "-B", "-m", "hostrouting")
#: Calls that change files, names in folders, and the kernel's tables. A new file is covered by its lock. Orders
#: to systemd are given by other processes; after each of these the matrix kills.
CALLS: Final = (
    "mkdir,mkdirat,rmdir,unlink,unlinkat,rename,renameat,renameat2,symlinkat,fchmod,fchmodat,fsync,ftruncate,flock,"
    "pwrite64,write,sendto,sendmsg"
)
#: A unit of the distribution's has its container killed after three minutes in which it did not say that it lives.
PATIENT: Final = f"""
mkdir /etc/systemd/system/{KUBE}.d
printf '[Service]\\nWatchdogSec=0\\n' > /etc/systemd/system/{KUBE}.d/60-patient.conf
"""
#: The folders in which hostrouting writes.
FOLDERS: Final = ("etc/systemd/system", "etc/aks-flex-node", "run/aks-flex-node", "var/lib/hostrouting")
#: A route of another owner in the very place that the new config takes.
FOREIGN: Final = "172.16.16.0/22 dev ib0 proto static scope link"
#: Calls of each story in the sample, and the stories.
SAMPLE: Final = 1
SAMPLED: Final = ("a first apply, then reset", "another config", "a reset, then apply")


class Story(NamedTuple):
    """A command that runs before, the command that is killed, and the one that runs next."""

    before: tuple[str, ...]
    killed: str
    next: str


APPLY, AGAIN, RESET = "apply /root/new.json", "apply /root/earlier.json", "reset"
STORIES: Final = {
    "a first apply": Story((), APPLY, APPLY),
    "a first apply, then reset": Story((), APPLY, RESET),
    "another config": Story((AGAIN,), APPLY, APPLY),
    "another config, then reset": Story((AGAIN,), APPLY, RESET),
    "a reset": Story((APPLY,), RESET, RESET),
    "a reset, then apply": Story((APPLY,), RESET, APPLY),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A machine with a container that runs, and a foreign route where ours is to be."""
    require_nspawn()
    require("strace")
    require_program()
    with Node(tmp_path_factory.mktemp("kills"), mode="STRICT", trouble=PATIENT) as node:
        node.prepare_configs(earlier=EARLIER, new=PROBES)
        node.bash(f"ip route add {FOREIGN}")
        yield node


@pytest.mark.parametrize("name", SAMPLED)
def test_killed_before_some_calls(node: Node, name: str) -> None:
    """A run that is killed before a sample of its calls is completed by the next one."""
    story = STORIES[name]
    kinds, calls = ends(node, story)
    for part in range(SAMPLE):
        survive(node, story, calls * (2 * part + 1) // (2 * SAMPLE), kinds)


@pytest.mark.soak
@pytest.mark.parametrize("name", STORIES)
def test_killed_before_each_call(node: Node, name: str) -> None:
    """A run that is killed before any call is completed by the next one."""
    story = STORIES[name]
    kinds, _ = ends(node, story)
    number = 1
    while survive(node, story, number, kinds):
        number += 1
    _logger.info("%s: killed before each of %d calls", name, number - 1)
    assert number > 50


class Ends(NamedTuple):
    """The machine before, and after all of a story has been done in peace."""

    clean: dict[str, str]
    before: dict[str, str]
    after: dict[str, str]
    wanted: dict[str, str]


def ends(node: Node, story: Story) -> tuple[Ends, int]:
    """Run a story without a kill; return the states of the machine in it, and the number of calls."""
    with cleaned(node) as clean:
        for command in story.before:
            command_of(node, command)
        before = state(node)
        counted = "/root/calls"
        assert traced(node, story.killed, f"--output={counted}", f"--trace={CALLS}") == 0
        after = state(node)
        calls = len([line for line in Path(node.root + counted).read_text().splitlines() if "(" in line])
        command_of(node, story.next)
        wanted = state(node)
    return Ends(clean, before, after, wanted), calls


def survive(node: Node, story: Story, number: int, kinds: Ends) -> bool:
    """Kill a run before that call; the next one ends as if nothing had been. False if there was no such call."""
    container = main_process(node)
    with cleaned(node) as clean:
        assert clean == kinds.clean
        for command in story.before:
            command_of(node, command)
        inject = f"--inject={CALLS}:signal=SIGKILL:when={number}"
        status = traced(node, story.killed, "--output=/dev/null", f"--trace={CALLS}", inject)
        assert_whole(state(node), kinds)
        command_of(node, story.next)
        assert state(node) == kinds.wanted, f"after call {number}"
    assert state(node) == kinds.clean, f"after call {number}, and a reset"
    assert main_process(node) == container, "the running container goes on"
    return status != 0


def main_process(node: Node) -> str:
    return node.run("systemctl", "show", "--property=MainPID", KUBE).stdout


@contextmanager
def cleaned(node: Node) -> Iterator[dict[str, str]]:
    """Return the state of the machine before anything is installed, which is also its state afterwards."""
    yield state(node)
    command_of(node, RESET)


def command_of(node: Node, command: str) -> None:
    result = node.run(*COMMAND, *command.split(), check=False)
    assert result.returncode == 0, result.stderr


def traced(node: Node, command: str, *options: str) -> int:
    """Run it under strace, which ends as it does; only the command itself is traced, not its children."""
    result = node.run("strace", *options, *COMMAND, *command.split(), check=False)
    return result.returncode


def state(node: Node) -> dict[str, str]:
    """Every file, folder and link that may be ours, hidden ones, too; and the foreign route and ours."""
    found: dict[str, str] = {}
    root = Path(node.root)
    paths = [
        *(path for folder in FOLDERS for path in (root / folder).rglob("*")),
        *(root / "run").glob("*hostrouting*"),
    ]
    paths += [*(root / "run").glob(".*"), *(root / folder for folder in FOLDERS if (root / folder).exists())]
    for path in sorted(path for path in paths if path.is_symlink() or path.exists()):
        name = str(path).removeprefix(node.root)
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = path.read_text() if path.is_file() else "folder"
    shown = json.loads(node.run("ip", "-json", "route", "show", "table", "all", "type", "unicast").stdout)
    for route in shown:
        found[f"route {route['dst']} {route['dev']} {route.get('protocol')}"] = str(route.get("gateway"))
    return found


def assert_whole(now: dict[str, str], kinds: Ends) -> None:
    """Each file under its final name is as at some end of the story; only a file under way has a temporary name."""
    possible: dict[str, set[str]] = {}
    for end in kinds:
        for name, content in end.items():
            possible.setdefault(name, set()).add(content)
    for name, content in now.items():
        last = name.rpartition("/")[2]
        if name.startswith(("route ", "/run/")) or last.startswith("."):
            continue
        if last.startswith("hostrouting-") and content == "folder":
            continue
        assert content in possible.get(name, {content} if content == "folder" else set()), name
    foreign = [name for name in now if name.startswith("route 172.16.16.0/22 ib0 static")]
    assert foreign, "nothing ever removes a foreign route"
