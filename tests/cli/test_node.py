"""The command on a node: a process in a real network namespace."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CHECKED, COMMAND, ROUTES, enter, installed, run
from support.in_process import run_here
from support.kernel import needs_kernel, powerless
from support.needs import needs
from support.patience import wait_until
from support.printed import KEPT_NOWHERE, NOT_APPLIED, WITHOUT_IT, leaves, next_step
from support.processes import ended

from hostrouting.node.remedies import fix_line
from hostrouting.testing import KernelNode

FINE = leaves("172.16.8.0/22", "eth0")


def not_applied(config: str | Path, step: str = "") -> dict[str, str]:
    """Return the finding on a node that nothing of a config was applied to."""
    command = step or f"hostrouting apply {config}"
    return {
        "kind": "not-applied",
        "subject": "hostRouting",
        "reason": f"{NOT_APPLIED} for the next boot; run: {command}",
        "severity": "warning",
        "command": command,
    }


@needs_kernel
def test_check_answers_in_the_wire_form(node: KernelNode, checked: Path) -> None:
    """The JSON of `check` on a node whose ib0 shadows the cluster's addresses has exactly the given
    keys and values.
    """
    answered = run("check", "--json", checked, inside=node)
    assert answered.returncode == 1
    answer: Any = json.loads(answered.stdout)
    assert answer == {
        "version": 1,
        "ok": False,
        "verdict": f"wrong: {leaves('172.16.8.0/22', 'ib0')}, and 1 more",
        "next": fix_line(str(checked)),
        "step": {"type": "fix", "command": fix_line(str(checked)), "owner": None},
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
                    {
                        "destination": "172.16.8.0/22",
                        "gateway": "10.224.0.1",
                        "dev": "eth0",
                        "takes_from": ["ib0"],
                    }
                ],
            }
        ],
        "findings": [not_applied(checked, fix_line(str(checked)))],
    }


@needs_kernel
def test_check_passes_once_the_route_is_there(node: KernelNode, checked: Path) -> None:
    """A check of a node that has the route ends with 0 and names the device; with `--fail-on
    warning` its warning is exit status 1.
    """
    node.add_route("172.16.8.0/22", gateway="10.224.0.1", dev="eth0")
    answered = run("check", checked, inside=node)
    missing = f"{NOT_APPLIED} for the next boot"
    assert answered.returncode == 0
    assert answered.stdout.splitlines() == [
        f"warning: hostRouting: {missing}",
        FINE,
        f"warning: not-applied: hostRouting: {missing}",
        next_step(f"hostrouting apply {checked}"),
    ]
    assert run("check", "--fail-on", "warning", checked, inside=node).returncode == 1


@needs_kernel
def test_the_fix_is_a_config_or_a_reason(node: KernelNode, tmp_path: Path) -> None:
    """A fix prints the whole config with a route for the address that a foreign route takes, and
    nothing else; against a rule it prints the reason alone.
    """
    path = tmp_path / "config.json"
    section = {"expectedCidrs": ["172.20.5.7/32"], "mode": "STRICT"}
    path.write_text(json.dumps({"hostRouting": {"routeOverlap": section}, "agent": 1}))
    node.add_route("172.20.5.7/32", dev="ib0")
    answered = run("check", "--fix", path, inside=node)
    route = {"destination": "172.20.5.7/32", "gateway": "10.224.0.1", "dev": "eth0"}
    mended = {"staticRoutes": {"enabled": True, "routes": [route]}, "routeOverlap": section}
    assert answered.returncode == 0
    assert answered.stderr == ""
    assert json.loads(answered.stdout) == {"hostRouting": mended}
    node.ip("rule add to 172.20.0.0/16 prohibit priority 1")
    answered = run("check", "--fix", path, inside=node)
    assert answered.returncode == 1
    assert answered.stdout == ""
    assert "172.20.5.7: is blocked (1: from all to 172.20.0.0/16 prohibit)" in answered.stderr


@needs_kernel
def test_a_closed_pipe_changes_no_answer(node: KernelNode, checked: Path) -> None:
    """`check CONFIG | head -1` of a bad node still has exit status 1, and stderr is empty."""
    reading, writing = os.pipe()
    os.close(reading)
    for options in [], ["--json"]:
        process = subprocess.run(
            [*enter(node), *COMMAND, "check", *options, str(checked)],
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
        )
        assert process.returncode == 1
        assert process.stderr == b""
    os.close(writing)


@needs_kernel
def test_a_plan_shows_programs_whether_something_would_change(
    node: KernelNode, tmp_path: Path
) -> None:
    """A plan with changes ends with 4 if `--exit-code` is given, and with 0 otherwise; a route that
    will be refused is exit status 1.
    """
    path = config_of(tmp_path, **ROUTES)
    assert run("plan", path, inside=node).returncode == 0
    assert run("plan", "--exit-code", path, inside=node).returncode == 4
    assert run("plan", "--exit-code", config_of(tmp_path), inside=node).returncode == 0
    path = config_of(
        tmp_path, staticRoutes={"enabled": True, "routes": [{"destination": "172.16.0.0/16"}]}
    )
    refused = run("plan", path, inside=node)
    assert refused.returncode == 1
    assert "will be refused: the kernel's own route '172.16.0.0/16 dev ib0" in refused.stdout


@needs_kernel
def test_without_default_route_the_wait_ends_in_a_finding(checked: Path) -> None:
    """A check whose `--wait` for a default route runs out ends with a finding."""
    with KernelNode.made() as bare:
        answered = run("check", "--json", "--wait", "0.2", checked, inside=bare)
    assert answered.returncode == 1
    answer = json.loads(answered.stdout)
    assert answer["expected_devs"] == []
    assert [(f["kind"], f["first"], f["last"]) for f in answer["cidrs"][0]["findings"]] == [
        ("no-route", "172.16.8.0", "172.16.11.255")
    ]


@needs_kernel
def test_a_signal_ends_a_wait_at_once(checked: Path) -> None:
    """SIGTERM ends a check that waits for a default route with status 143."""
    with KernelNode.made() as bare:
        waiting = subprocess.Popen(
            [*enter(bare), *COMMAND, "check", "-v", "--wait", "3600", str(checked)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert waiting.stderr is not None
        # The log shows when the wait begins, so that no test has to guess.
        assert "waiting" in waiting.stderr.readline()
        waiting.send_signal(signal.SIGTERM)
        _, log = waiting.communicate(timeout=600)
    assert waiting.returncode == 143
    assert "cancelled" in log


@needs_kernel
def test_a_check_loads_no_pyroute2(node: KernelNode, checked: Path) -> None:
    """A check imports neither pyroute2, which would cost 145 ms, nor asyncio."""
    program = (
        "import sys; from hostrouting.cli import main; main(sys.argv[1:]);"
        "print({'pyroute2', 'asyncio'} & set(sys.modules), file=sys.stderr)"
    )
    done = ended(*enter(node), sys.executable, "-c", program, "check", checked)
    assert done.stderr.splitlines()[-1] == "set()"


# --- drift

#: Root, but without any capability.
POWERLESS = powerless()


def config_of(folder: Path, **sections: object) -> str:
    path = folder / "siblings.json"
    path.write_text(json.dumps({"hostRouting": {"gates": [], **sections}}))
    return str(path)


def within(node: KernelNode, *words: str | Path, prefix: Sequence[str] = (), **options: Any) -> Any:
    return subprocess.run(
        [*enter(node), *prefix, *COMMAND, *map(str, words)], check=False, text=True, **options
    )


@needs_kernel
@pytest.mark.parametrize("command", ["check", "explain"])
def test_a_device_whose_name_is_not_text_is_printed_all_the_same(
    node: KernelNode, checked: Path, command: str
) -> None:
    """A device whose name is not valid text is printed with an escape, also if stdout is strict
    about its encoding.
    """
    name = b"ib\xff"
    subprocess.run(
        [b"ip", b"-n", node.name.encode(), b"link", b"add", name, b"up", b"type", b"ifb"],
        check=True,
    )
    route = [b"172.16.8.0/22", b"dev", name]
    subprocess.run([b"ip", b"-n", node.name.encode(), b"route", b"add", *route], check=True)
    subject = "172.16.8.0/22" if command == "explain" else checked
    for encoding in "utf-8:strict", "ascii:strict", "utf-8:surrogateescape":
        answer = run(command, subject, inside=node, PYTHONIOENCODING=encoding)
        assert answer.returncode == (1 if command == "check" else 0), answer.stderr
        assert "codec" not in answer.stderr
        assert "ib\\udcff" in answer.stdout


@needs("kernel", "ebtables-nft")
def test_watch_ends_while_it_starts(node: KernelNode, tmp_path: Path) -> None:
    """A watch that receives a signal as soon as it has a handler ends with exit status 0, and
    without an error in its log.
    """
    path = config_of(tmp_path, **ROUTES)
    for _ in range(3):
        with subprocess.Popen(
            [*enter(node), *installed(path), *COMMAND, "watch", path],
            stderr=subprocess.PIPE,
            text=True,
        ) as watching:
            try:
                catches = partial(_catches, watching.pid, signal.SIGTERM)
                wait_until(catches, "the command takes no signals")
                watching.send_signal(signal.SIGTERM)
                _, log = watching.communicate(timeout=60)
                assert watching.returncode == 0
                assert re.findall("(?m)^(?!.*(?:keeps|repaired)).+", log) == []
            finally:
                watching.kill()


def _catches(pid: int, sign: signal.Signals) -> bool:
    """Return True if the process has a handler for the signal."""
    [mask] = re.findall(r"(?m)^SigCgt:\t([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text())
    return bool(int(mask, 16) >> (sign - 1) & 1)


#: Shows the exit status of a command, its routes and its files.
_LEAVES = [
    "sh",
    "-c",
    '"$@"; echo $?; ip route show proto 142; find /run /etc -name "*aks*" -o -name "*overlap*"',
    "sh",
]


@needs_kernel
def test_a_first_try_needs_no_systemd(node: KernelNode, config: Path, checked: Path) -> None:
    """`apply --live` changes and checks the routes all together, installs nothing, and its verdict,
    as text and JSON, shows that nothing is kept; a reset removes the routes.
    """
    route = "172.16.8.0/22 via 10.224.0.1 dev eth0 \n"
    for given, status, word, left in (
        (checked, 1, next_step("hostrouting check CONFIG\n"), ""),
        (config, 0, f"right: {FINE}; ", route),
    ):
        tried = within(node, "apply", "--live", given, prefix=_LEAVES, capture_output=True)
        assert tried.stdout.endswith(f"\n{status}\n{left}"), tried
        assert word in tried.stdout
        # A failed run has left nothing that a reset would have to remove.
        assert tried.stdout.count(KEPT_NOWHERE) == (given == config)
    checked_after = run("check", config, inside=node).stdout
    assert f"{NOT_APPLIED} for the next boot\n" + next_step("") in checked_after
    answer = json.loads(run("apply", "--live", "--json", config, inside=node).stdout)
    assert answer["ok"] is True
    assert answer["overlap"]["ok"] is True
    assert answer["verdict"].startswith(f"right: {FINE}; nothing is kept")
    assert "apply --live CONFIG" in run("apply", config, inside=node).stderr
    assert run("reset", inside=node).stdout.startswith("- 172.16.8.0/22 via")


@needs_kernel
def test_a_first_try_names_what_it_leaves_out_and_advises_no_refused_route(
    node: KernelNode, tmp_path: Path
) -> None:
    """`apply --live` names the sections that it leaves out, and the routes that `check` suggests do
    not include a refused one.
    """
    refused = {"destination": "172.20.0.0/16", "gateway": "10.99.0.1"}
    path = config_of(
        tmp_path,
        **CHECKED,
        staticRoutes={"enabled": True, "routes": [refused]},
        probeSnat={"enabled": True, "dev": "eth0", "required": True},
    )
    tried = run("apply", "--live", path, inside=node)
    checked = run("check", path, inside=node)
    assert "only routes are changed and checked; left out: gates, probeSnat\n" in tried.stderr
    [section] = re.findall('"staticRoutes": {.*', checked.stdout)
    assert "172.16.8.0/22" in section
    assert "172.20" not in section


@needs_kernel
def test_without_systemd_no_unit_is_waited_for(node: KernelNode, tmp_path: Path) -> None:
    """A check without systemd reads the files of units, and reports a missing unit."""
    path = config_of(tmp_path, **CHECKED, after=["no-such.service"])
    checked = run("check", path, inside=node)
    assert f"no-such.service: is not-found, {WITHOUT_IT}" in checked.stdout
    assert checked.stderr == ""


@needs_kernel
def test_advice_names_no_stdin(node: KernelNode, checked: Path) -> None:
    """The advice of `check -` has CONFIG in place of `-`, since a line that reads `-` first would
    wait for a config.
    """
    with checked.open("rb") as source:
        answer = within(node, "check", "-", capture_output=True, stdin=source).stdout
    assert answer.endswith(next_step("hostrouting check CONFIG --fix | hostrouting apply -\n"))
    assert "check -" not in answer.replace("check CONFIG", "")


@needs_kernel
def test_a_first_try_is_for_a_node_without_config(node: KernelNode, config: Path) -> None:
    """`apply --live` is refused on a node with an installed config, which would undo it, and with
    --root or --dry-run.
    """
    before = [*_LEAVES, *installed(config)]
    refused = within(node, "apply", "--live", config, prefix=before, capture_output=True)
    said, status, left = refused.stdout.partition("\n3\n")
    assert status
    assert "172.16" not in left
    # Not the refused run, but the installed config decides what is in force.
    assert "would undo this" not in said
    assert "would undo this; nothing was changed; apply this one without --live" in refused.stderr
    for option in "--dry-run", "--root=/":
        assert run_here("apply", "--live", option, config).returncode == 2


@needs_kernel
def test_watch_without_privilege(node: KernelNode, tmp_path: Path) -> None:
    """A watch that may not change routes ends at once, with exit status 3 and the reason."""
    path = config_of(tmp_path, **ROUTES)
    refused = within(
        node, "watch", path, prefix=[*installed(path), *POWERLESS], capture_output=True
    )
    assert refused.returncode == 3
    assert "CAP_NET_ADMIN" in refused.stderr
