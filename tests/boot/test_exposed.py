"""What root runs must not be a file that others could change."""

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from support.command_line import ROUTES
from support.needs import needs
from support.patience import at_once
from support.printed import MAY_CHANGE
from support.run_nodes import apply, config, node, state

from hostrouting import Configure, Reset, check_node
from hostrouting.boot.layout import ANSWER, STATE_DIRECTORY
from hostrouting.exceptions import HostFileError
from hostrouting.host.files.store import RootedFiles
from hostrouting.testing import FakeHost
from phases import TaskFailedError, execute, plan

COMMAND = "/opt/agent/bin/hostrouting"
BY_SERVICE = {**ROUTES, "watch": {"enabled": True, "mode": "service"}}
FOLDER = "/etc/aks-flex-node"
PLACES = [
    FOLDER,
    "/etc",
    "/",
    "/etc/systemd/system",
    f"{FOLDER}/hostrouting/hostrouting-ask.sh",
    COMMAND,
    "/opt",
    f"{FOLDER}/hostrouting/applied.json",
    f"{FOLDER}/hostrouting/hostrouting.zip",
    STATE_DIRECTORY,
    ANSWER,
]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """A node with an installed config, and with a command for the watch."""
    monkeypatch.setattr("hostrouting.testing.host_fakes._COMMAND", COMMAND)
    host = node()
    host.files.write(COMMAND, b"#!/usr/bin/python3\n", mode=0o755)
    apply(host, **BY_SERVICE)
    host.files.write(ANSWER, b"7.00 STRICT 10\nas before\n", mode=0o600)
    return host


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize("field", [{"mode": 0o777}, {"owner": 1000}])
def test_an_apply_is_refused_before_any_change(
    host: FakeHost, path: str, field: dict[str, int]
) -> None:
    """An apply and its plan are refused if others could change a file that root runs, also if
    nothing else would change; `check` has path, owner, mode and remedy, and a reset goes on.
    """
    generation = host.files.read_link(f"{FOLDER}/hostrouting")
    path = path.replace(f"{FOLDER}/hostrouting/", f"{FOLDER}/{generation}/")
    host.files.tree.change(path, **field)
    before = state(host)
    mode = host.files.mode(path) or field.get("mode", 0o755)
    fact = f"{path} (owner {field.get('owner', 0)}, mode {mode:04o})"
    refusal = f"{MAY_CHANGE}{fact}; run: chown 0 {path} && chmod go-w {path}"
    acts: list[Callable[..., object]] = [plan, execute]
    for changed, act in product(({}, {"routeOverlap": {"expectedCidrs": ["10.0.0.0/8"]}}), acts):
        with pytest.raises(TaskFailedError) as caught:
            act(Configure(config(**BY_SERVICE, **changed), host=host), at_once())
        assert isinstance(caught.value.cause, HostFileError)
        assert refusal in str(caught.value.cause)
        assert state(host) == before
    found = check_node(at_once(), config(**BY_SERVICE), host).findings
    reasons = [(each.severity, each.sentence) for each in found if each.kind == "exposed"]
    assert [severity for severity, reason in reasons if refusal in reason] == ["error"]
    execute(Reset(config(), host=host), at_once())
    assert not host.files.exists(f"{FOLDER}/hostrouting.json")


def test_a_fresh_node_gets_nothing_of_a_command_that_others_could_change() -> None:
    """A first apply changes neither routes nor files if others could change the command, which a
    boot would run as root.
    """
    host = node()
    host.files.write("/usr/bin/hostrouting", b"", mode=0o777)
    before = state(host)
    with pytest.raises(TaskFailedError, match="/usr/bin/hostrouting"):
        apply(host, **BY_SERVICE)
    assert state(host) == before


@needs("root")
def test_an_image_may_belong_to_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of an image may have any mode; below it the modes count, and the owner must be
    root or the caller.
    """
    tmp_path.chmod(0o777)
    files = RootedFiles(str(tmp_path))
    files.write("/etc/a", b"", mode=0o644)
    os.chown(tmp_path / "etc", 65534, -1)
    assert "(owner 65534, mode 0755); run: chown 0 " in str(files.exposed("/etc/a"))
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert files.exposed("/etc/a") is None
    (tmp_path / "etc").chmod(0o775)
    assert "(owner 65534, mode 0775)" in str(files.exposed("/etc/a"))


@needs("root")
def test_a_masked_unit_is_not_exposed(tmp_path: Path) -> None:
    """A masked unit is not exposed: its mask is a link to /dev/null, which everybody may write."""
    files = RootedFiles(str(tmp_path))
    files.write("/dev/zero", b"", mode=0o644)
    os.mknod(tmp_path / "dev/null", 0o020666, os.makedev(1, 3))
    (tmp_path / "dev/null").chmod(0o666)
    files.link("/masked.service", "/dev/null")
    assert files.exposed("/masked.service") is None


@needs("root")
def test_a_folder_that_is_not_empty_stays_on_a_read_only_disk(tmp_path: Path) -> None:
    """The removal of a folder that is not empty returns False on a read-only disk, instead of the
    error of the kernel, which looks at the disk before the folder.
    """
    (tmp_path / "a/b").mkdir(parents=True)
    program = "from hostrouting.host.files.store import RootedFiles\n"
    program += f"print(RootedFiles({str(tmp_path)!r}).remove_directory_if_empty('/a'))"
    mounts = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,bind,ro {tmp_path}"
    command = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
    command += [sys.executable, "-c", program]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "False\n"
