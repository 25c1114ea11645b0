"""Configs of static routes, and their boot script, run on a node with less patience."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.command_line import enter

from hostrouting import HostRoutingConfig, StaticRoute, StaticRoutesConfig
from hostrouting.boot.intent import Intent
from hostrouting.boot.layout import INTENT_PATH
from hostrouting.boot.program import new_program
from hostrouting.net.exits import NamedExits
from hostrouting.static_routes.script import render_script
from hostrouting.testing import FakeHost, KernelNode

#: Without a virtual environment: its folders would be of no use to the program.
_PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def static_route(text: str) -> StaticRoute:
    """Return a route of a config, by the text that `str` returns of it."""
    destination, *words = text.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    return StaticRoute(
        destination=destination,
        gateway=given.get("via"),
        dev=given.get("dev"),
        metric=int(given.get("metric", 0)),
    )


def config_of(routes: Sequence[StaticRoute]) -> HostRoutingConfig:
    """A config of these routes."""
    return HostRoutingConfig(static_routes=StaticRoutesConfig(enabled=True, routes=tuple(routes)))


def install(host: FakeHost, config: HostRoutingConfig, **beside: object) -> FakeHost:
    """Install a config, with members beside it; return the host."""
    text = json.loads(Intent(config=config).file.content) | beside
    host.files.write(INTENT_PATH, json.dumps(text).encode(), mode=0o644)
    return host


def impatient(
    config: HostRoutingConfig,
    *,
    waits: int = 0,
    folder: str = "/nonexistent",
    exits: NamedExits | None = None,
    program: str = "/nonexistent",
) -> bytes:
    """The boot script with less patience than it has, with another folder than this machine's own
    under /run, and without the program.
    """
    script = render_script(config, exits)
    for usual, other in (
        ("waits=30\n", f"waits={waits or ''}\n"),
        ("folder=/run/aks-flex-node\n", f"folder={folder}\n"),
        ("program=/etc/aks-flex-node/hostrouting.zip\n", f"program={program}\n"),
    ):
        assert script.count(usual.encode()) == 1
        script = script.replace(usual.encode(), other.encode())
    return script


def boot(
    node: KernelNode,
    *routes: StaticRoute,
    now: bool = False,
    waits: int = 0,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, list[str]]:
    """Run the boot script with less patience and without the program; return its exit status, and
    the output that an operator reads.
    """
    with tempfile.TemporaryDirectory() as fresh:
        script = impatient(config_of(routes), waits=waits, folder=str(folder or fresh))
        prefix = ["nsenter", f"--net=/run/netns/{node.name}"]
        return _run(prefix, script, now=now, environment=environment)


#: Installs the files of a folder on an entered node.
_INSTALL = """
mkdir -p /etc/aks-flex-node /run/aks-flex-node
cp "$0"/* /etc/aks-flex-node/
exec "$@"
"""


def boot_with_program(
    node: KernelNode,
    config: HostRoutingConfig,
    *,
    now: bool = False,
    waits: int = 0,
    before: str = "",
    environment: Mapping[str, str] | None = None,
) -> tuple[int, list[str]]:
    """Do the same where the program and the config are installed; first run the commands `before`
    on the node, beside which its files are gone afterwards.
    """
    with tempfile.TemporaryDirectory() as folder:
        intent = Intent(config=config).merged_with(None, others=()).content
        Path(folder, "hostrouting.json").write_bytes(intent or b"")
        Path(folder, "hostrouting.zip").write_bytes(new_program(_PYTHON))
        script = impatient(
            config,
            waits=waits,
            folder="/run/aks-flex-node",
            program="/etc/aks-flex-node/hostrouting.zip",
        )
        prefix = [*enter(node), "sh", "-ec", _INSTALL, folder]
        return _run(
            [*prefix, "bash", "-ec", f'{before}\nexec "$@"', "bash"],
            script,
            now=now,
            environment=environment,
        )


def _run(
    prefix: Sequence[str],
    script: bytes,
    *,
    now: bool,
    environment: Mapping[str, str] | None,
) -> tuple[int, list[str]]:
    variables = [f"{name}={value}" for name, value in (environment or {}).items()]
    argv = [*prefix, "env", *variables, "bash", "-s", *(["now"] if now else [])]
    done = subprocess.run(argv, input=script, capture_output=True, check=False, timeout=300)
    return done.returncode, (done.stdout + done.stderr).decode().splitlines()
