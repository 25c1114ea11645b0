"""The script of the gates on a real shell: which answers it takes, when it runs the units again, and
who can hold its lock.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.boot_units import CHECK, STATIC, stand_in
from support.documents import ROOT
from support.needs import needs
from support.printed import ROUTING_UNKNOWN
from support.shell_nodes import ANSWER, AS_A_GATE, GATE_SCRIPT, configured, installed, run_on

from hostrouting.boot.layout import ASK_PATH, GENERATION_LINK, PROGRAM_PATH
from hostrouting.boot.program import new_program
from hostrouting.testing import KernelNode

pytestmark = [needs("root"), pytest.mark.usefixtures("needs_kernel")]

WRONG = "if [[ -e /run/overlap ]]; then echo 'stand-in: an overlap' >&2; exit 11; fi\n"
#: Asks as the retry does, which changes no gate, and prints the exit status.
PRINT_STATUS = f"status=0; {AS_A_GATE} bash -p {GATE_SCRIPT} '' STRICT > /dev/null || status=$?; echo $status\n"
LOCK = "/run/hostrouting/ask.lock"
PAUSE = "pause() { read -rt .01 <> <(:) || :; }\n"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Routes that are right, and a check that finds an overlap as long as /run/overlap exists."""
    return installed(tmp_path, stand_in(STATIC), stand_in(CHECK, WRONG))


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        yield node


def with_systemctl(text: str) -> str:
    """Return bash that puts a script in the place of systemctl."""
    return f"""
    mkdir -p /run/bin
    mount --bind /run/bin /usr/local/sbin
    printf '%s\\n' '#!/bin/bash' '{text}' > /run/bin/systemctl
    chmod +x /run/bin/systemctl
    """


def test_an_answer_is_not_a_program(node: KernelNode, image: Path) -> None:
    """Bash code in place of a number in the answer is never run: the gate checks the routing."""
    program = ""
    for answer in (
        "0+limits[$(>/run/ran)] STRICT 10",
        "1.0+limits[$(>/run/ran)] STRICT 10",
        "limits[$(>/run/ran)].5 STRICT 10",
        "1.5 STRICT 10+limits[$(>/run/ran)]",
    ):
        program += (
            f"printf '%s\\n' '{answer}' 'as before' > {ANSWER}; touch /run/overlap\n{PRINT_STATUS}"
        )
    program += "ls /run/ran 2> /dev/null || echo nothing\n"
    assert run_on(node, image, program) == ["11", "11", "11", "11", "nothing"]


def test_an_error_of_arithmetic_is_not_a_pass(node: KernelNode, image: Path) -> None:
    """An error of arithmetic, after which bash drops a whole command and goes on, ends the script
    with 1, so a STRICT gate stays closed.
    """
    program = f"""
    sed --in-place 's/^    take_turn || return$/    take_turn $((08))/' {GATE_SCRIPT}
    touch /run/overlap
    for gate in '' 'a.service'; do
        status=0
        {AS_A_GATE} bash -p {GATE_SCRIPT} "$gate" STRICT > /dev/null 2> /run/output || status=$?
        echo $status $(grep --only-matching 'value too great' /run/output)
    done
    """
    assert run_on(node, image, program) == ["1 value too great"] * 2


def test_a_retry_without_words_has_an_answer(node: KernelNode, image: Path) -> None:
    """The retry of an earlier version, which an apply that was killed has left running, passes no
    words. It gets the answer in STRICT mode, so the held units start once routing is right.
    """
    ask = f"bash -p {GATE_SCRIPT} > /dev/null 2>&1 && : || echo $?\n"
    assert run_on(node, image, f"touch /run/overlap\n{ask}rm /run/overlap\n{ask}") == ["11", "10"]


def test_what_an_apply_has_undone_is_no_answer(node: KernelNode, tmp_path: Path) -> None:
    """A gate checks again if an apply began and ended during its check, since the apply may have
    undone what the check found.
    """
    # The check is right while an apply has changed routes that it undoes before the check ends.
    undone = """
    lock=/etc/aks-flex-node/hostrouting.lock
    [[ -e /run/undone ]] && exit 11
    touch /run/undone
    flock "$lock" touch "$lock"
    """
    image = installed(tmp_path, stand_in(STATIC), stand_in(CHECK, undone))
    assert run_on(node, image, PRINT_STATUS) == ["11"]


def test_an_answer_from_later_does_not_count(node: KernelNode, image: Path) -> None:
    """An answer with a time in the future does not count, whether it lets a unit start on an
    unhealthy node or refuses one on a healthy node.
    """
    wrong = f"printf '999999999.00 STRICT 10\\n\\n' > {ANSWER}; touch /run/overlap\n"
    right = f"printf '999999999.00 STRICT 11\\nwrong\\n' > {ANSWER}; rm /run/overlap\n"
    assert run_on(node, image, wrong + PRINT_STATUS + right + PRINT_STATUS) == ["11", "10"]


@pytest.mark.parametrize(
    ("change", "mode", "status"),
    [
        (":", "STRICT", "10"),
        (":", "WARN", "11"),
        (f"chown 65534 {ANSWER}", "STRICT", "11"),
        ("chown 65534 /run/hostrouting", "STRICT", "11"),
        (f"mv {ANSWER} /run/other; ln -s /run/other {ANSWER}", "STRICT", "11"),
    ],
    ids=["as it should be", "of another mode", "of a user", "in the folder of a user", "a link"],
)
def test_which_answers_of_another_gate_count(
    node: KernelNode, image: Path, change: str, mode: str, status: str
) -> None:
    """A gate that waited for the check of another gate takes the answer of that check only if it
    was made in the same mode, and root owns the file and its folder.
    """
    program = f"""
    {PAUSE}
    touch /run/overlap {LOCK}
    # Its holder lives on: in a namespace of PIDs, /proc/locks leaves out locks whose process has ended.
    flock --no-fork {LOCK} sleep infinity &
    holder=$!
    # The kernel lists the locks of the whole machine: an inode alone may be that of another disk.
    lock=$(printf '%02x:%02x:%s' $(stat --format='%Hd %Ld %i' {LOCK}))
    until grep -q "FLOCK .* $lock " /proc/locks; do pause; done
    {{ {PRINT_STATUS} }} &
    until grep -q -- "-> FLOCK .* $lock " /proc/locks; do pause; done
    read -r began _ < /proc/uptime
    until read -r now _ < /proc/uptime; [[ $now != "$began" ]]; do pause; done
    printf '%s {mode} 10\\na fact\\n' "$now" > {ANSWER}
    {change}
    kill "$holder"
    wait
    """
    assert run_on(node, image, program) == [status]


def test_only_root_can_hold_the_lock(node: KernelNode, image: Path) -> None:
    """Users other than root can neither open the lock of the checks, with which they would delay
    every gate, nor make one in its place.
    """
    user = f"setpriv --reuid=65534 --clear-groups flock --nonblock {LOCK} true 2> /dev/null"
    program = f"{PRINT_STATUS} {user} || echo refused\nrm {LOCK}\n{user} || echo refused\n"
    assert run_on(node, image, program) == ["10", "refused", "refused"]


@pytest.mark.slow
def test_a_lock_that_is_held_during_the_pause(node: KernelNode, image: Path) -> None:
    """If a gate was refused and cannot check again, the routing is unknown: in WARN mode the unit
    starts.
    """
    # No config refuses a gate in WARN mode but for a route.
    program = f"""
    {PAUSE}
    touch /run/overlap
    {{ status=0; {AS_A_GATE} bash -p {GATE_SCRIPT} a.service WARN > /run/output 2> /dev/null || status=$?
       echo $status >> /run/output; }} &
    gate=$!
    until grep --silent refused /run/output; do pause; done
    flock --no-fork {LOCK} sleep infinity &
    holder=$!
    wait "$gate"
    kill "$holder"
    cat /run/output
    """
    assert run_on(node, image, program) == [
        "<3>hostrouting: a.service is refused: check-route-overlap: stand-in: an overlap",
        f"<4>hostrouting: a.service {ROUTING_UNKNOWN}: another hostrouting-ask.sh has held {LOCK} for 10 s",
        "12",
    ]


def test_a_pipe_in_place_of_the_answer(node: KernelNode, image: Path) -> None:
    """A pipe in place of the answer is not read, which would block the gate for ever."""
    ask = PRINT_STATUS.replace("bash -p", "timeout 9 bash -p")
    assert run_on(node, image, f"mkfifo {ANSWER}\n{ask}") == ["10"]


def test_a_check_is_that_of_one_apply(node: KernelNode, image: Path) -> None:
    """The program is started by the real path of its generation, so an apply that exchanges the
    link meanwhile does not give it the files of two generations.
    """
    program = f"""
    printf '#!/bin/sh\\necho "$3 $4 $5"\\nexit 11\\n' > /run/python
    chmod +x /run/python
    printf '#!/run/python -IS\\n' > {PROGRAM_PATH}
    readlink {GENERATION_LINK}
    {AS_A_GATE} bash -p {GATE_SCRIPT} '' STRICT || echo $?
    """
    folder, *lines = run_on(node, image, program)
    assert lines == [f"/etc/aks-flex-node/{folder}/hostrouting.zip ask STRICT", "11"]


def test_messages_have_one_priority(node: KernelNode, tmp_path: Path) -> None:
    """The lines of the program have no priorities for the journal, since the script of the gates
    and the retry give them theirs.
    """
    image = configured(tmp_path, routeOverlap={"expectedCidrs": ["10.96.0.0/16"], "mode": "STRICT"})
    lines = run_on(node, image, f"JOURNAL_STREAM=8:1 bash -p {GATE_SCRIPT} '' STRICT || echo $?")
    assert "<" not in "".join(lines)
    assert lines[-1] == "11"


@pytest.mark.parametrize(
    ("before", "wrong", "failed", "runs"),
    [
        # The last answer was the same.
        ("10", "no", "yes", False),
        ("11", "yes", "no", False),
        # The units say the same already.
        ("11", "no", "no", False),
        ("10", "yes", "yes", False),
        ("11", "no", "yes", True),
        ("10", "yes", "no", True),
    ],
)
def test_units_run_again_when_the_answer_changes(
    node: KernelNode, image: Path, before: str, wrong: str, failed: str, *, runs: bool
) -> None:
    """A gate runs the units again if its answer differs from the last one and from their state, so
    `systemctl status` shows the reason.
    """
    stub = 'case $1 in is-failed) [[ -e /run/failed ]] ;; *) echo "$*" >> /run/calls ;; esac'
    program = f"""
    {with_systemctl(stub)}
    [[ {wrong} == no ]] || touch /run/overlap
    [[ {failed} == no ]] || touch /run/failed
    printf '0.01 STRICT {before}\\n\\n' > {ANSWER}
    {PRINT_STATUS}
    cat /run/calls 2> /dev/null || :
    """
    status, *calls = run_on(node, image, program)
    assert status == ("11" if wrong == "yes" else "10")
    assert calls == ["start --no-block hostrouting-ready.service"] * runs


@pytest.mark.parametrize("kind", ["requires", "wants"])
def test_rules_that_gates_require(node: KernelNode, image: Path, kind: str) -> None:
    """If gates require the rules for probes, a gate loads them again, and is refused if that fails;
    optional rules refuse no gate.
    """
    program = f"""
    {with_systemctl('[[ $* != "start probe-snat.service" || ! -e /run/failed ]]')}
    folder=/etc/systemd/system/hostrouting-ready.service.{kind}
    mkdir -p "$folder"
    ln -s ../probe-snat.service "$folder"
    {PRINT_STATUS}
    touch /run/failed
    {PRINT_STATUS}
    """
    assert run_on(node, image, program) == ["10", "11" if kind == "requires" else "10"]


#: In place of systemctl: a unit requires a gate, and both it and its mark start.
SYSTEMCTL = r"""#!/bin/bash
case $1 in
show) [[ $4 != gate.service ]] || echo 'RequiredBy="a\\x2d1.service" hostrouting-held@b.service' ;;
list-jobs) printf '7 %s start waiting\n' 'a\x2d1.service' hostrouting-held@b.service ;;
*) echo "$*" ;;
esac
"""


def test_marks_of_waiters_are_renewed_by_a_reload(tmp_path: Path) -> None:
    """The mark of a unit that waits is started, or renewed by a reload, since a start of an active
    mark does nothing; a mark that waits for its own unit has none.
    """
    stub = tmp_path / "systemctl"
    stub.write_text(SYSTEMCTL)
    stub.chmod(0o755)
    text = (ROOT / "hostrouting/boot/assets/hostrouting-waiters.sh").read_text()
    script = tmp_path / "waiters.sh"
    script.write_text(re.sub(" PATH=.*", f" PATH={tmp_path}:/usr/bin:/bin", text))
    words = ["bash", "-p", str(script), "mark", "gate.service"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    mark = "hostrouting-waits@a\\x2d1.service.service"
    assert done.stdout == f"reload-or-restart --no-block -- {mark}\n"


# --- Python


#: Runs the program as Python 3.9 would.
OLD = """
import runpy, sys
sys.version_info = (3, 9)
runpy.run_path(sys.argv[3], run_name="__main__")
"""
PYTHONS = {
    "too old": (f"name /run/python; printf '#!/usr/bin/python3\\n%s' '{OLD}' > /run/python", 13),
    "missing": ("mount --bind /dev/null /usr/bin/python3; name /run/none", 13),
    "not executable": ("name $zip; mount --bind $zip /usr/bin/python3", 13),
    "/bin/false": ("name /bin/false", 1),
    "hanging": ("python 'exec sleep infinity'", 124),
    "killed": ("python 'kill -9 $$'", 137),
}


@pytest.mark.parametrize(("arrange", "status"), PYTHONS.values(), ids=PYTHONS.keys())
def test_a_python_that_cannot_run_the_program(
    node: KernelNode, image: Path, arrange: str, status: int
) -> None:
    """Whatever is wrong with Python, the routing is unknown: a STRICT gate is refused, and a WARN
    gate starts with a warning. Only where no Python can run the program, the status for the units
    is 13.
    """
    program = f"""
    zip={GENERATION_LINK}/hostrouting.zip
    name() {{ sed --in-place "1s|.*|#!$1 -IS|" $zip; }}
    python() {{ printf '#!/bin/sh\\n%s\\n' "$1" > /run/python; name /run/python; }}
    {arrange}
    chmod +x /run/python 2> /dev/null || :
    # Only the test has no patience.
    sed --in-place 's/run_program 15/run_program 1/; s/sleep "$pause"/:/' {ASK_PATH}
    . <(sed '/^run_program()/,/^}}/!d' {ASK_PATH})
    limits=()
    for command in 'run_program 1 ask STRICT' 'bash -p {ASK_PATH} a.service STRICT' \\
        "bash -p {ASK_PATH} '' STRICT" 'bash -p {ASK_PATH} a.service WARN'; do
        ended=0; eval "$command" > /dev/null 2>&1 || ended=$?; echo $ended
    done
    """
    # The stand-in does not ask for the version.
    zip_file = image / GENERATION_LINK.lstrip("/") / "hostrouting.zip"
    zip_file.write_bytes(new_program("/usr/bin/python3"))
    assert run_on(node, image, program) == [str(status), "12", "12", "12"]
