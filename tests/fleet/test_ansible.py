"""The Ansible module, run by the real Ansible on an image and on a machine of real systemd."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.command_line import COMMAND, MENDED
from support.documents import ROOT
from support.gated_machine import GATES, KUBELET, GatedMachine, require_nspawn
from support.needs import needs
from support.printed import IN_FORCE, leaves
from support.processes import ended
from support.systemd_box import PYTHON, install_command, require_program

from hostrouting import Host

pytestmark = [needs("ansible-playbook"), pytest.mark.slow]
EXAMPLE = ROOT / "examples/fleet/ansible"
CONFIG = {**MENDED, "gates": [*GATES]}
#: Stands for ssh: the last word is the command, as the node's shell gets it.
_SSH = """\
#!/bin/bash
exec nsenter --target=%d --all /bin/sh -c "${@: -1}"
"""


class Control:
    """The machine that Ansible runs on, with one node in its inventory."""

    def __init__(self, folder: Path, **variables: object) -> None:
        self._folder = folder
        (folder / "inventory").write_text("[gpu_nodes]\nnode\n")
        variables = {
            "ansible_python_interpreter": str(PYTHON),
            "ansible_become": False,
            **variables,
        }
        (folder / "variables").write_text(json.dumps(variables))

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return ended(
            *(*words, "-i", self._folder / "inventory", "-e", f"@{self._folder / 'variables'}"),
            env={
                **os.environ,
                "ANSIBLE_HOME": str(self._folder / "home"),
                "ANSIBLE_LIBRARY": str(EXAMPLE / "library"),
                "ANSIBLE_SSH_TRANSFER_METHOD": "piped",
            },
        )

    def module(self, *options: str, **arguments: object) -> dict[str, Any]:
        """Run the module alone, and return its result with the shown text."""
        done = self.run(
            "ansible", "node", "-m", "hostrouting", "-a", json.dumps(arguments), *options
        )
        shown, word, text = re.split(
            r"^node \| ([A-Z]+)!? => ", done.stdout, maxsplit=1, flags=re.MULTILINE
        )
        assert (done.returncode == 0) == (word != "FAILED"), done
        return {**json.loads(text), "shown": shown}


def test_an_image(tmp_path: Path) -> None:
    """On an image the module lists its changes in check mode, with the files as a diff, and makes
    the same ones in a run; a second run changes nothing, and a fault is reported.
    """
    control = Control(tmp_path, ansible_connection="local")
    (image := tmp_path / "image").mkdir()
    # A gate needs it in STRICT mode.
    Host.offline(image).files.write("/usr/bin/python3", b"", mode=0o755)
    arguments = {"config": CONFIG, "root": str(image), "command": COMMAND}
    foreseen = control.module("--check", "--diff", **arguments)
    assert foreseen["changed"] is True
    assert [path.name for path in image.iterdir()] == ["usr"]
    assert "+ExecStartPre=" in foreseen["shown"]
    made = control.module(**arguments)
    assert made["changed"] is True
    assert made["changes"] == foreseen["changes"]
    assert (image / f"etc/systemd/system/{KUBELET}.d/10-hostrouting.conf").exists()
    for options in [], ["--check"]:
        again = control.module(*options, **arguments)
        assert again["changed"] is False
        assert again["changes"] == []
    wrong = control.module(**{**arguments, "config": {"gates": [""]}})
    assert wrong["rc"] == 2
    assert "hostRouting.gates[0]" in wrong["msg"]
    gone = control.module(**{**arguments, "config": {}})
    assert gone["changed"] is True
    assert [*image.rglob("*hostrouting*")] == []


def test_a_machine(tmp_path: Path) -> None:
    """On a machine the playbook of the example applies the config over a connection as by ssh, and
    a second run changes nothing; a config that STRICT refuses fails the module with the reason.
    """
    require_nspawn()
    require_program()
    image = tmp_path / "image"
    install_command(image)
    prepare = """
        ip link add eth0 type ifb; ip address add 10.224.0.4/16 dev eth0; ip link set eth0 up
        ip route add default via 10.224.0.1
        ip link add ib0 type ifb; ip address add 172.16.1.4/16 dev ib0; ip link set ib0 up
    """
    with GatedMachine(tmp_path, units=(), prepare=prepare) as machine:
        (ssh := tmp_path / "ssh").write_text(_SSH % machine.pid)
        ssh.chmod(0o755)
        variables = {"ansible_ssh_executable": str(ssh), "hostrouting_config": CONFIG}
        control = Control(tmp_path, **variables, hostrouting_command=COMMAND)
        arguments = {"config": CONFIG, "command": COMMAND}
        foreseen = control.module("--check", **arguments)
        assert foreseen["changed"], foreseen
        assert not machine.files.exists("/etc/aks-flex-node")
        played = control.run("ansible-playbook", EXAMPLE / "playbook.yml")
        assert " changed=1 " in played.stdout, played
        fine = leaves("172.16.8.0/22", "eth0")
        assert f"right: {IN_FORCE}, {fine}" in played.stdout
        machine.run("systemctl", "start", KUBELET)
        again = control.module(**arguments)
        assert not again["changed"], again
        # A route is deleted: it is a change, and the units go on.
        pids = machine.pids()
        machine.run("ip", "route", "delete", "172.16.8.0/22")
        assert control.module(**arguments)["changes"] == [
            "+ 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"
        ]
        assert machine.pids() == pids
        # Without the route STRICT refuses: the module fails with the reason, also in check mode.
        without = {**CONFIG, "staticRoutes": {}}
        for options in [], ["--check"]:
            refused = control.module(*options, config=without, command=COMMAND)
            assert refused["rc"] == 1
            assert "172.16.8.0/22: overlap 172.16.8.0-172.16.11.255 through ib0" in refused["msg"]
        assert "172.16.8.0/22 via 10.224.0.1" in machine.run("ip", "route").stdout
