"""Real systemd as PID 1 of a throw-away machine: namespaces over a copy of a root, booted in a
fraction of a second.

Needs root, systemd, util-linux and the kernel's overlay file system; touches neither the network
nor the systemd of the machine that it runs on. The product comes into a machine as a copy of the tested code, or
as the package that its tree has.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hostrouting import Host
from hostrouting.host.files.lock import FileLock
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.systemd.systemctl import Systemctl

Box = TypeVar("Box", bound="SystemdBox")

#: The root that a machine is a copy of; the tree of another distribution brings another systemd.
BOX_ROOT = Path(os.environ.get("HOSTROUTING_BOX_ROOT", "/"))
_SCRIPT = Path(__file__).with_name("systemd_box.sh")
#: Seconds. They end a test that hangs; a busy computer takes a few times as long as an idle one.
_LONGEST_BOOT = 300.0
_LONGEST_WAIT = 300


class SystemdBox:
    """A machine, from `with` to the end of the block.

    `image` is a folder whose files are laid over those of the machine, as an image that was
    prepared for it; `prepare` is bash that then runs in it before systemd does. `tree` is the root
    that the machine is a copy of.
    """

    def __init__(
        self, *, prepare: str = "", image: Path | None = None, tree: Path = BOX_ROOT
    ) -> None:
        self._prepare = prepare
        self._image = image
        self._tree = tree
        self._process: subprocess.Popen[bytes] | None = None
        #: PID 1 of the machine, by its number out here.
        self.pid = 0

    @property
    def root(self) -> str:
        """The machine's `/`, as it is reached from here."""
        return f"/proc/{self.pid}/root"

    @property
    def enter(self) -> tuple[str, ...]:
        """The prefix of a command that runs in the machine."""
        return ("nsenter", f"--target={self.pid}", "--all")

    @property
    def host(self) -> Host:
        """The machine, as the tasks take it."""
        return Host(
            routes=NetlinkBackend(netns=f"/proc/{self.pid}/ns/net"),
            services=Systemctl((*self.enter, "systemctl")),
            files=RootedFiles(self.root),
            lock=FileLock(root=self.root),
        )

    @property
    def version(self) -> int:
        """The version of its systemd."""
        return int(self.run("systemctl", "--version").stdout.split()[1])

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine; by default a failure is an error that shows its stderr."""
        result = subprocess.run([*self.enter, *argv], capture_output=True, text=True, check=False)
        assert not check or result.returncode == 0, (
            f"{argv} ended with {result.returncode}: {result.stderr}"
        )
        return result

    def shell(self, script: str) -> str:
        """Return the output of a script, with the command of `install_command` on its path."""
        path = f"PATH={COMMAND_PATH.parent}:$PATH\n"
        return self.run("bash", "-c", path + script, check=False).stdout

    def status(self) -> Mapping[str, Any]:
        """Return `hostrouting status --json`."""
        status: Mapping[str, Any] = json.loads(self.shell("hostrouting status --json"))
        return status

    def journal(self, *options: str) -> list[str]:
        """Return the messages of units and of systemd itself since the boot."""
        self.run(
            "journalctl", "--sync"
        )  # or the last messages of a unit that has ended may still be on their way
        return self.run(
            "journalctl", "--boot", "--quiet", "--output=cat", *options
        ).stdout.splitlines()

    def cursor(self) -> str:
        """Return the cursor of the journal's end."""
        return (
            self.run("journalctl", "--lines=0", "--show-cursor")
            .stdout.partition("-- cursor: ")[2]
            .strip()
        )

    def until(self, condition: str, *, unit: str = "*") -> None:
        """Wait until a command of bash succeeds in the machine; otherwise fail, with the journal of
        a unit.
        """
        script = f"until {condition}; do sleep 0.1; done"
        met = (
            self.run("timeout", str(_LONGEST_WAIT), "bash", "-c", script, check=False).returncode
            == 0
        )
        assert met, "\n".join(
            [f"this never came: {condition}", *self.journal(f"--unit={unit}", "--lines=100")]
        )

    def wait_for(
        self, message: str | re.Pattern[str], *, unit: str, after: str | None = None
    ) -> None:
        """Wait until a unit has logged this very message, since the boot or `after` a cursor."""
        pattern = re.escape(message) if isinstance(message, str) else message.pattern
        since = () if after is None else (_since(after),)
        journal = shlex.join(
            ["journalctl", "--boot", "--quiet", "--output=cat", f"--unit={unit}", *since]
        )
        self.until(
            f"{journal} | grep --quiet --line-regexp --perl-regexp -e {shlex.quote(pattern)}",
            unit=unit,
        )

    def wait_for_end(self) -> None:
        """Wait until the machine has powered itself off."""
        assert self._process is not None
        self._process.wait(60)

    def __enter__(self: Box) -> Box:
        self._scratch = Path(tempfile.mkdtemp(prefix="systemd-box-"))
        try:
            self._boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            # --kill-child: the end of unshare is the end of PID 1, and that of everything in its
            # namespaces.
            self._process.kill()
            self._process.wait()
            self._remove_cgroup()
        shutil.rmtree(self._scratch)

    def _boot(self) -> None:
        (self._scratch / "prepare").write_text(self._prepare)
        (self._scratch / "host").mkdir()
        if self._image is not None:
            shutil.copytree(self._image, self._scratch / "host/image", symlinks=True)
        console = self._scratch / "console"
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications,
            console.open("wb") as output,
        ):
            notifications.bind(str(self._scratch / "host" / "notify"))
            namespaces = ("--mount", "--pid", "--net", "--uts", "--ipc")
            self._process = subprocess.Popen(
                [
                    "unshare",
                    *namespaces,
                    "--fork",
                    "--kill-child",
                    "bash",
                    _SCRIPT,
                    self._scratch,
                    self._tree,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            ready = _wait_until_ready(self._process, notifications)
        assert ready, f"systemd did not come up: {console.read_text(errors='replace')}"
        self.pid = int((self._scratch / "pid").read_text())

    def _remove_cgroup(self) -> None:
        # The kernel lets the group go when its last process is reaped, which may be a moment after
        # PID 1's own end.
        script = """
            export LIBMOUNT_UTAB=/dev/null
            mount -t cgroup2 none "$1/cgroup" && cd "$1/cgroup" || exit
            for _ in {1..200}; do
                find "$2" -depth -type d -exec rmdir {} + 2> /dev/null
                [[ -e $2 ]] || exit 0
                sleep .01
            done
            exit 1
        """
        command = [
            "unshare",
            "--mount",
            "bash",
            "-c",
            script,
            "bash",
            str(self._scratch),
            self._scratch.name,
        ]
        subprocess.run(command, check=True)


def _since(cursor: str) -> str:
    """Return the option of journalctl for the messages after a cursor.

    `--after-cursor` beside `--unit` skips a line, if that of the cursor is another unit's (252).
    """
    microseconds = int(cursor.partition(";t=")[2].partition(";")[0], 16) + 1
    return f"--since=@{microseconds // 1_000_000}.{microseconds % 1_000_000:06}"


def _wait_until_ready(process: subprocess.Popen[bytes], notifications: socket.socket) -> bool:
    """Return whether PID 1 sent READY=1 after its boot, before its end and before the timeout."""
    deadline = time.monotonic() + _LONGEST_BOOT
    death = os.pidfd_open(process.pid)
    try:
        while True:
            wanted = [notifications.fileno(), death]
            readable, _, _ = select.select(wanted, [], [], max(0, deadline - time.monotonic()))
            if notifications.fileno() not in readable:
                return False
            if b"READY=1" in notifications.recv(4096).splitlines():
                return True
    finally:
        os.close(death)


_IS_THIS_SYSTEM = Path("/") == BOX_ROOT
#: The folder of the copy.
PROGRAM = "/opt/program"
#: Not that of a virtual environment, which a machine may not see. A tree of another distribution
#: has its own.
PYTHON = Path(sys.executable).resolve() if _IS_THIS_SYSTEM else Path("/usr/bin/python3")
#: Folders of which a machine has its own, and from which a service of watch does not start the
#: command.
_PASSING = ("/dev/shm", "/run", "/tmp", "/var/tmp")  # noqa: S108 - no file is made there
_BESIDE = Path(sysconfig.get_path("scripts"), "hostrouting")


def _is_passing(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _PASSING)


#: The command, where the tested code looks for it first, unless this checkout is in such a folder;
#: it runs the copy. That of a package is elsewhere.
COMMAND_PATH = Path("/usr/local/bin/hostrouting") if _is_passing(_BESIDE) else _BESIDE
if not _IS_THIS_SYSTEM:
    COMMAND_PATH = Path("/usr/bin/hostrouting")
_COMMAND_TEXT = f"""\
#!@PYTHON@ -B
import sys
sys.path.insert(0, "{PROGRAM}")
from hostrouting.__main__ import main
main()
"""


def require_program() -> None:
    """Skip the test where no machine can run the product."""
    # A tree was made for the purpose, and is complete.
    if _IS_THIS_SYSTEM and _is_passing(PYTHON):
        pytest.skip(f"needs a Python that is not below {', '.join(_PASSING)}")


def copy_program(image: Path) -> None:
    """Lay the product over an image: the machine gets its own /tmp, and this checkout may lie below
    /tmp.
    """
    target = image / PROGRAM.lstrip("/")
    # coverage is loaded in `nox -s coverage` only.
    for name in filter(
        sys.modules.__contains__, ("attr", "attrs", "coverage", "hostrouting", "phases")
    ):
        shutil.copytree(Path(str(sys.modules[name].__file__)).parent, target / name)
    shutil.copy2(Path(__file__).with_name("hurried.py"), target)


def install_command(image: Path, *, python: Path = PYTHON) -> None:
    """Give an image the command: the copy of the tested code, or the program of the package that
    its tree has.
    """
    text = _COMMAND_TEXT.replace("@PYTHON@", str(python)).encode()
    if _IS_THIS_SYSTEM:
        copy_program(image)
    else:
        # It is in the tree, but the tested code looks for it in the image, which is laid over that.
        text = (BOX_ROOT / COMMAND_PATH.relative_to("/")).read_bytes()
    command = image / COMMAND_PATH.relative_to("/")
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_bytes(text)
    command.chmod(0o755)
