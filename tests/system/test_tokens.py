"""Accidents with the files of a gate, on a node that is wrong: STRICT starts nothing, and WARN
starts the unit with a warning.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.gated_machine import CONNECT, SMALL_NODE, GatedMachine, applied

from hostrouting.boot.gates import Gates
from hostrouting.boot.layout import (
    APPLIED_PATH,
    ASK_PATH,
    CONFIG_PATH,
    GENERATION_LINK,
    SCRIPT_DIRECTORY,
)
from hostrouting.boot.steps import LINKED_PATHS, Generation, link_of
from hostrouting.host import FileStore

APPLY = f"run: hostrouting apply {CONFIG_PATH}"
#: The drop-in alone answers.
LOST = "see: systemctl cat UNIT"
BROKEN = f"is lost or damaged; {APPLY}"
ENDED = f"the check failed with status {{}}; {APPLY}"
WITHOUT_PYTHON = "there is no Python 3.10 or newer; install it as /usr/bin/python3"
#: The begin of each row: the files of an installed config, and accidents of a file.
BEGIN = r"""
set -eu
# The gate shares an answer to the retry, whose program may have started before.
exec 9<> /run/hostrouting/ask.lock; flock 9
folder=/etc/aks-flex-node gate=$folder/hostrouting-ask.sh
check=$(readlink -f $folder/check-route-overlap.sh) routes=$folder/hostrouting/static-routes.sh
config=$(readlink -f $folder/hostrouting/applied.json) zip=$(readlink -f $folder/hostrouting.zip)
cut() { head -n "$2" "$1" > /run/cut; cat /run/cut > "$1"; }
# With NULs, as a power cut may leave it: a shell takes them for a script without commands.
fill() { head -c 4096 /dev/zero > "$1"; }
give_away() { chown 65534 "$1"; chmod 600 "$1"; }
lose() { mv "/usr/bin/$1" "/usr/bin/$1.away"; }
named() { LC_ALL=C sed -i "1s|.*|#!$1 -IS|" "$zip"; }
python() { lose python3; printf '#!/bin/sh\n%s\n' "$1" > /usr/bin/python3; chmod "${2-755}" /usr/bin/python3; }
"""
#: Runs the program as Python 3.9 would.
OLD_PYTHON = (
    'shift 2; exec python3.away -IS -c "import runpy, sys; sys.version_info = (3, 9); '
    r'del sys.argv[0]; runpy.run_path(sys.argv[0], run_name=\"__main__\")" "$@"'
)
#: The accident, and the reason in the journal.
ROWS = [
    ("rm $gate", LOST),
    ("truncate -s 0 $gate", LOST),
    ("fill $gate", LOST),
    *((f"cut $gate {number}", LOST) for number in (1, 16, 21, 60, 110, 150, 190, 210, -8, -4, -1)),
    ("rm $check", BROKEN),
    ("fill $check", BROKEN),
    ("chmod 000 $check", BROKEN),
    ("give_away $check", BROKEN),
    *((f"cut $check {number}", BROKEN) for number in (0, 1, 14, 36)),
    *((f"cut $routes {number}", BROKEN) for number in (0, 1, 2)),
    ("rm $config", BROKEN),
    ("truncate -s 0 $config", BROKEN),
    ("fill $config", BROKEN),
    ("truncate -s 50 $config", BROKEN),
    ("chmod 000 $config", BROKEN),
    ("give_away $config", BROKEN),
    ("sed -i s/STRICT/WARN/ $config; sed -i s,/22,/23, $config", BROKEN),
    ("rm $zip", ENDED.format(2)),
    ("truncate -s 0 $zip", ENDED.format(0)),
    ("fill $zip", "the check failed with status "),
    ("truncate -s 99 $zip", ENDED.format(0)),
    ("truncate -s 999999 $zip", ENDED.format(1)),
    ("chmod 000 $zip", ENDED.format(2)),
    ("printf X | dd of=$zip bs=1 seek=999999 conv=notrunc status=none", BROKEN),
    ("named /bin/false", ENDED.format(1)),
    ("named /bin/true", ENDED.format(0)),
    ("lose python3", WITHOUT_PYTHON),
    ("python '' 644", WITHOUT_PYTHON),
    ("python 'sleep 60'", ENDED.format(124)),
    (f"python '{OLD_PYTHON}'", "is Python 3.9; install 3.10 or newer as /usr/bin/python3"),
    ("chmod -R 644 $folder", ENDED.format(2)),
    ("rm -rf $folder", LOST),
    ("rm -r $folder/hostrouting-????????", LOST),
    ("lose flock", "there is no program flock; install util-linux"),
    ("lose setpriv", ENDED.format(127)),
    ("lose nsenter", LOST),
    ("lose nsenter; install /dev/null /usr/bin/nsenter", LOST),
    ("lose nsenter; cp /bin/false /usr/bin/nsenter", LOST),
]
#: With a tenth of a second for the three that each refusal takes.
WHOLE = r"""
set -e
sed -i 's/|| sleep 3;/|| sleep .1;/' /etc/systemd/system/systemd-nspawn@.service.d/10-hostrouting.conf
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


def exchange(files: FileStore, path: str, text: bytes, by: bytes) -> None:
    """Replace a text in a file of the generation in force, as if an apply had written it so."""
    paths = (*LINKED_PATHS, APPLIED_PATH)
    contents = {each: files.read(f"{SCRIPT_DIRECTORY}/{link_of(each)}") or b"" for each in paths}
    assert contents[path].count(text) == 1
    generation = Generation({**contents, path: contents[path].replace(text, by)})
    for file in generation.files:
        files.write(file.path, file.content, mode=file.mode)
    files.link(GENERATION_LINK, generation.name)


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
        exchange(machine.files, ASK_PATH, b"local pause=3 ", b"local pause=.1 ")
        machine.run("bash", "-c", WHOLE)
        yield machine


def is_logged(machine: GatedMachine, unit: str, reason: str) -> bool:
    """Return whether a message of the gate with this reason has the priority of a warning or more."""
    lines = machine.journal(f"--unit={unit}", "--priority=warning")
    return any(line.startswith("hostrouting: ") and reason in line for line in lines)


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
