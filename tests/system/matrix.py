"""The matrix: every trouble, met by a first apply and by one over an installed config, under WARN
and STRICT.

Each cell is a booted machine whose gate is the distribution's own unit: the command applies a
config, a machine of systemd-nspawn is started, and then all boots again from the same /etc.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.boot_units import NSPAWN
from support.gated_machine import GATES, KUBE, GatedMachine
from support.hurried import SCRIPT, hurried
from support.systemd_box import PROGRAM, PYTHON, copy_program
from system.troubles import EARLIER, GOOD, LINKS, PROBES, Outcome, Trouble

from hostrouting import Configure, HostRoutingConfig, render_files
from hostrouting.boot.gates import Gates
from hostrouting.boot.installed_config import NewConfig, with_found_devs
from hostrouting.boot.layout import APPLIED_PATH, CONFIG_PATH, drop_in_of
from hostrouting.host import OUR_PROTOCOL, Host
from hostrouting.static_routes.script import render_script
from phases import Context

Disk = dict[str, tuple[int, str | bytes]]

APPLIES = "first", "again"
MODES = "WARN", "STRICT"
#: The folders that a reboot keeps.
_KEPT = "etc/systemd/system", "etc/aks-flex-node", "etc/cni", "var/lib/hostrouting"
_CONFIGS = "/root"
_STATIC_SCRIPT = "/etc/aks-flex-node/static-routes.sh"


def parsed(sections: Mapping[str, Any], mode: str) -> HostRoutingConfig:
    """The config with this mode, as the product reads it."""
    return HostRoutingConfig.from_json(document(sections, mode))


def document(sections: Mapping[str, Any], mode: str) -> str:
    """The config with this mode, as an operator writes it."""
    overlap = {**sections["routeOverlap"], "mode": mode}
    return json.dumps({"hostRouting": {**sections, "routeOverlap": overlap, "gates": list(GATES)}})


class Node(GatedMachine):
    """A machine that booted in good order, or from the disk of `before`; its configs lie in /root."""

    def __init__(
        self,
        folder: Path,
        *,
        mode: str,
        earlier: bool = False,
        installed: Mapping[str, Any] = EARLIER,
        before: Node | None = None,
        trouble: str = "",
    ) -> None:
        self.mode = mode
        self._folder = folder / ("rebooted" if before else "first")

        def arrange(image: Host) -> None:
            copy_program(self._folder / "image")
            if before is not None:
                before.copy_disk(self._folder / "image")
            elif earlier:
                config = parsed(installed, mode)
                # The image has no Python of its own.
                with hurried():
                    Configure(config, host=image, force=True).do(Context(timeout=60))

        super().__init__(self._folder, units=(), arrange=arrange, prepare=f"{LINKS}{trouble}\n")

    def copy_disk(self, target: Path) -> None:
        """Lay the folders that a reboot keeps over an image."""
        for path in _KEPT:
            if Path(self.root, path).is_dir():
                shutil.rmtree(target / path, ignore_errors=True)
                shutil.copytree(Path(self.root, path), target / path, symlinks=True)

    def bash(self, commands: str) -> None:
        """Run bash that has to succeed."""
        self.run("bash", "-ec", commands)

    def prepare_configs(self, **configs: Mapping[str, Any]) -> None:
        """Write configs before the trouble begins."""
        for name, sections in configs.items():
            text = document(sections, self.mode)
            self.files.write(f"{_CONFIGS}/{name}.json", text.encode(), mode=0o644)

    def apply(
        self,
        name: str,
        *options: str,
        step: int | str = 0,
        by: signal.Signals = signal.SIGKILL,
    ) -> subprocess.CompletedProcess[str]:
        """Run `hostrouting apply` in the machine with a config that was prepared; signal it after a
        step or several.
        """
        program = "env", f"PYTHONPATH={PROGRAM}", str(PYTHON), f"{PROGRAM}/{SCRIPT.name}"
        command = "apply", f"{_CONFIGS}/{name}.json", *options
        return self.run(*program, str(step), str(int(by)), *command, check=False)

    def installed(self, **configs: Mapping[str, Any]) -> str:
        """Return the config that is installed for the boot: `nothing`, one of the names, or `a
        mixture`.
        """
        if not self.files.exists("/etc/systemd/system/hostrouting-ready.service"):
            return "nothing"
        for name, sections in configs.items():
            # A optional feature in trouble has installed no unit, but the installed config has its section all the
            # same.
            pair = {
                key: value
                for key, value in sections.items()
                if key in {"staticRoutes", "routeOverlap"}
            }
            config = parsed(pair, self.mode)
            # The program is the same for each config.
            contents = {
                file.path: file.content for file in render_files(config).files if file.is_text
            }
            # An apply writes the device found into the config, and into the script of the routes.
            whole = with_found_devs(parsed(sections, self.mode), self.files)
            contents[CONFIG_PATH] = contents[APPLIED_PATH] = NewConfig(config=whole).file.content
            if _STATIC_SCRIPT in contents:
                contents[_STATIC_SCRIPT] = render_script(whole)
            if all(self.files.read(path) == content for path, content in contents.items()):
                return name
        return "a mixture"

    def live(self, **configs: Mapping[str, Any]) -> str:
        """Return the config whose routes carry our mark: `nothing`, one of the names, or `a
        mixture`.
        """
        own_files = {
            route.destination
            for route in self.host.routes.routes()
            if route.protocol == OUR_PROTOCOL
        }
        if not own_files:
            return "nothing"
        for name, sections in configs.items():
            if own_files == {route["destination"] for route in sections["staticRoutes"]["routes"]}:
                return name
        return "a mixture"

    def disk(self) -> Disk:
        """Return scripts, units and links on the disk; a file that is still being written has a
        temporary name.
        """
        found: Disk = {}
        for folder in "etc/systemd/system", "etc/aks-flex-node":
            for path in sorted(Path(self.root, folder).rglob("[!.]*")):
                content = (
                    str(path.readlink())
                    if path.is_symlink()
                    else path.read_bytes()
                    if path.is_file()
                    else ""
                )
                found[str(path).removeprefix(self.root)] = path.lstat().st_mode, content
        return found

    def gate(self) -> str:
        """Start a machine of systemd-nspawn; return whether its gate lets it pass."""
        return "open" if self.systemctl("start", "systemd-nspawn@late.service") == 0 else "shut"

    def outcome_of_boot(self) -> str:
        """Return whether the machine that is started at boot runs."""
        if self.state(KUBE).is_running:
            return "started"
        return "held" if KUBE in Gates(self.services).held(self.ctx) else "lost"


def measure(folder: Path, trouble: Trouble, apply: str, mode: str) -> tuple[Outcome, str]:
    """Run one cell; return its outcome, and how a held machine came up."""
    configs = {"new": trouble.config, "good": GOOD}
    named = {"the earlier": EARLIER, "the new": trouble.config}
    with Node(folder, mode=mode, earlier=apply == "again") as node:
        assert node.outcome_of_boot() == "started"
        assert node.live(**named) == ("the earlier" if apply == "again" else "nothing")
        pids = node.pids()
        node.prepare_configs(**configs)
        node.bash(trouble.commands)
        result = node.apply("new")
        assert trouble.printed in result.stdout + result.stderr, result.stderr
        installed, live = node.installed(**named), node.live(**named)
        gate = node.gate()
        assert node.pids() == pids, "running processes go on"
        remains = trouble.commands if trouble.outlasts_a_boot else ""
        with Node(folder, mode=mode, before=node, trouble=remains) as rebooted:
            after_reboot = rebooted.outcome_of_boot()
            outcome = Outcome(result.returncode, installed, live, gate, after_reboot)
            return outcome, _mend(rebooted, trouble) if after_reboot == "held" else "-"


def _mend(node: Node, trouble: Trouble) -> str:
    """End the trouble, and wait until the held machine starts by itself."""
    if trouble.mend:
        node.bash(trouble.mend)
    else:
        node.prepare_configs(good=GOOD)
        result = node.apply("good")
        # Its log names the held units, but a unit that restarts by itself may be missing for the
        # moment of its restart.
        assert result.returncode == 0, result.stderr
    node.wait_until_up()
    return "by itself, once fixed" if trouble.mend else "by itself, after a correct apply"


def count_steps(folder: Path, apply: str, mode: str) -> tuple[int, Disk]:
    """Return the number of steps of an apply that is not killed, and the state of the disk
    afterwards.
    """
    with Node(folder, mode=mode, earlier=apply == "again") as node:
        node.prepare_configs(new=PROBES)
        return _end(node), node.disk()


def survive(
    folder: Path, apply: str, mode: str, *, step: int, wanted: Disk, booted: list[Disk]
) -> None:
    """Kill an apply after a step: the node boots, its gate opens, and the next apply ends as if
    nothing had been.

    A boot sees the disk alone: one that is in `booted` already is not booted again.
    """
    named = {"the earlier": EARLIER, "the new": PROBES}
    before = "the earlier" if apply == "again" else "nothing"
    with Node(folder, mode=mode, earlier=apply == "again") as node:
        pids = node.pids()
        node.prepare_configs(new=PROBES)
        assert node.apply("new", step=step).returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}
        assert node.live(**named) in {before, "the new"}
        disk = node.disk()
        if disk not in booted:
            booted.append(disk)
            with Node(folder, mode=mode, before=node) as rebooted:
                assert rebooted.outcome_of_boot() == "started"
                assert rebooted.live(**named) in {before, "the new"}
                rebooted.prepare_configs(new=PROBES)
                _end(rebooted)
                assert rebooted.disk() == wanted
        assert node.gate() == "open"
        _end(node)
        assert node.disk() == wanted
        assert node.live(**named) == "the new"
        assert drop_in_of(NSPAWN) in node.state(KUBE).drop_ins, (
            "systemd has read the files on the disk"
        )
        assert node.pids() == pids


def interrupt(
    folder: Path, apply: str, *, step: int, by: signal.Signals = signal.SIGTERM
) -> tuple[int, str, str]:
    """Send a signal to an apply after a step; return its status, the installed config and the live
    one.
    """
    named = {"the earlier": EARLIER, "the new": PROBES}
    with Node(folder, mode="STRICT", earlier=apply == "again") as node:
        pids = node.pids()
        node.prepare_configs(new=PROBES)
        before = node.disk()
        status = node.apply("new", step=step, by=by).returncode
        installed, live = node.installed(**named), node.live(**named)
        assert installed != "nothing" or node.disk() == before
        assert node.gate() == "open"
        assert node.pids() == pids
        return status, installed, live


def _end(node: Node) -> int:
    """Apply a config to the end; return the number of steps."""
    result = node.apply("new")
    assert result.returncode == 0, result.stderr
    return int(result.stderr.rpartition("steps: ")[2])
