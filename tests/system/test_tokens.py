"""Accidents with the files of a gate, on a node that is wrong: STRICT starts nothing, and WARN
starts the unit with a warning.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.gated_machine import CONNECT, SMALL_NODE, GatedMachine, applied
from support.printed import DAMAGED

from hostrouting.boot.gates import Gates
from hostrouting.boot.layout import INTENT_PATH

APPLY = f"run: hostrouting apply {INTENT_PATH}"
UNLISTED = f"/etc/aks-flex-node/hostrouting.units {DAMAGED}; {APPLY}"
WITHOUT_CONFIG = (
    f"{INTENT_PATH} is lost; do one of these: hostrouting apply CONFIG; hostrouting reset; touch "
    "/run/hostrouting.disabled; the commands that systemctl cat UNIT shows"
)
LOST = f"hostrouting-ask.sh is lost, or ended with {{}}; {APPLY}"
#: The begin of each row: the files of an installed config, and accidents of a file.
BEGIN = """
set -eu
folder=/etc/aks-flex-node list=$(readlink -f /etc/aks-flex-node/hostrouting.units)
gate=$folder/hostrouting-ask.sh check=$(readlink -f $folder/check-route-overlap.sh)
cut() { head -n "$2" "$1" > /run/cut; cat /run/cut > "$1"; }
# With NULs, as a power cut may leave it: a shell takes them for a script without commands.
fill() { head -c 4096 /dev/zero > "$1"; }
give_away() { chown 65534 "$1"; chmod 600 "$1"; }
"""
WITHOUT_NSENTER = f"/usr/bin/nsenter {DAMAGED}; install util-linux"
#: The accident, and the reason in the journal.
ROWS = [
    ("rm $list", UNLISTED),
    ("chmod 000 $list", UNLISTED),
    ("give_away $list", UNLISTED),
    ("printf ' ' > $list", UNLISTED),
    ("echo > $list", UNLISTED),
    *((f"cut $list {number}", UNLISTED) for number in range(2)),
    ("fill $list", UNLISTED),
    ("rm $gate", LOST.format(127)),
    ("truncate -s 0 $gate", LOST.format(127)),
    ("fill $gate", LOST.format(126)),
    ("chmod 000 $gate", LOST.format(126)),
    ("give_away $gate", LOST.format(126)),
    *((f"cut $gate {number}", "") for number in (1, 16, 20, 50, 70, 115, 130, 140, 150, 160, 168)),
    ("fill $check", ""),
    ("chmod 000 $check", ""),
    ("give_away $check", ""),
    *((f"cut $check {number}", "") for number in (1, 14, 40, 100, 200, 300, 400, 500)),
    ("chmod -R 644 $folder", LOST.format(126)),
    ("rm -rf $folder", WITHOUT_CONFIG),
    ("rm -r $folder/hostrouting-????????", WITHOUT_CONFIG),
    (
        "mv /usr/bin/flock /usr/bin/flock.away",
        "there is no program flock; install util-linux",
    ),
    ("mv /usr/bin/nsenter /usr/bin/nsenter.away", WITHOUT_NSENTER),
    (
        "mv /usr/bin/nsenter /usr/bin/nsenter.away; install /dev/null /usr/bin/nsenter",
        WITHOUT_NSENTER,
    ),
    ("mv /usr/bin/nsenter /usr/bin/nsenter.away; cp /bin/false /usr/bin/nsenter", WITHOUT_NSENTER),
    ("mv /usr/bin/setpriv /usr/bin/setpriv.away", LOST.format(127)),
    # Of no file is it known that it is whole: the first one is named.
    (
        "mv /usr/bin/sha256sum /usr/bin/sha256sum.away",
        UNLISTED.replace("hostrouting.units", "check-route-overlap.sh"),
    ),
]
#: A tenth of a second for the three that each refusal takes.
HURRY = r"""
set -e
hurry() { grep -q "$1" "$3"; sed -i --follow-symlinks "s/$1/$2/" "$3"; }
hurry 'local pause=3 ' 'local pause=.1 ' /etc/aks-flex-node/hostrouting-ask.sh
hurry 'sleep 3; ' 'sleep .1; ' /etc/systemd/system/systemd-nspawn@.service.d/10-hostrouting.conf
systemctl daemon-reload
cp -a /etc/aks-flex-node /run/whole
"""
UNDO = """
for away in /usr/bin/*.away; do
    [[ ! -e $away ]] || mv $away ${away%.away}
done
rm -rf /etc/aks-flex-node
cp -a /run/whole /etc/aks-flex-node
"""


@pytest.fixture(params=["STRICT", "WARN"])
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


@pytest.fixture
def machine(tmp_path: Path, mode: str) -> Iterator[GatedMachine]:
    config = {"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": mode}}
    arrange = applied(**config)
    prepare = f"{SMALL_NODE}{CONNECT}\n"
    with GatedMachine(tmp_path, units=(), arrange=arrange, prepare=prepare) as machine:
        machine.run("bash", "-c", HURRY)
        yield machine


def is_logged(machine: GatedMachine, unit: str, reason: str) -> bool:
    """Return whether a message of the gate with this reason has the priority of a warning or more."""
    lines = machine.journal(f"--unit={unit}", "--priority=warning")
    return any(line.startswith("hostrouting: ") and line.endswith(reason) for line in lines)


def test_no_accident_is_a_yes(machine: GatedMachine, mode: str) -> None:
    """A unit whose gate has any file lost, cut or unreadable starts under WARN alone, with a
    warning, and is not held afterwards.
    """
    outcomes = []
    for number, (accident, reason) in enumerate(ROWS):
        # An instance of its own has a journal of its own.
        unit = f"systemd-nspawn@row{number}.service"
        machine.run("bash", "-c", BEGIN + accident)
        is_up = machine.systemctl("start", unit) == 0
        outcomes.append((accident, is_up, is_logged(machine, unit, reason.replace("UNIT", unit))))
        if is_up:
            machine.until(f"! systemctl is-active --quiet hostrouting-held@{unit}", unit=unit)
        machine.run("bash", "-c", UNDO)
        machine.systemctl("stop", unit)
    is_open = mode == "WARN"
    assert outcomes == [(accident, is_open, True) for accident, _ in ROWS]
    # Nor has anything started that was held before.
    assert set(machine.payloads()) == (
        {"kube1", "kubelet", *(f"row{number}" for number in range(len(ROWS)))} if is_open else set()
    )
    if is_open:
        assert Gates(machine.services).held(machine.ctx) == []
