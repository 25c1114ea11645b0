"""The script of the gates on a real shell: which answers the script takes, and who can hold its
lock.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.boot_units import CHECK, STATIC, stand_in
from support.documents import ROOT
from support.needs import needs
from support.printed import DAMAGED, ROUTING_UNKNOWN
from support.probe_worlds import RULES
from support.shell_nodes import ANSWER, AS_A_GATE, GATE_SCRIPT, installed, run_on

from hostrouting.azure.probe_snat.ruleset import boot_unit
from hostrouting.boot.layout import INTENT_PATH
from hostrouting.testing import KernelNode

pytestmark = [needs("root"), pytest.mark.usefixtures("needs_kernel")]

WRONG = "if [[ -e /run/overlap ]]; then echo 'stand-in: an overlap' >&2; exit 11; fi\n"
#: Prints the exit status of the gate's script.
PRINT_STATUS = f"status=0; {AS_A_GATE} {GATE_SCRIPT} > /dev/null || status=$?; echo $status\n"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Routes that are right, and a check that finds an overlap as long as /run/overlap exists."""
    return installed(tmp_path, stand_in(STATIC), stand_in(CHECK, WRONG))


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        yield node


HELD = f"another hostrouting-ask.sh has held {ANSWER} for 10 s"


def test_an_answer_is_not_a_program(node: KernelNode, image: Path) -> None:
    """Text in place of a number in an answer is not evaluated: the script of the gates looks at
    routing, and runs nothing of the text.
    """
    program = ""
    for answer in (
        "0+units[$(>/run/ran)] 10 x",
        "1.0+units[$(>/run/ran)] 10 x",
        "units[$(>/run/ran)].5 10 x",
        "1.5 10+units[$(>/run/ran)] x",
    ):
        program += (
            f"printf '%s\\n' '{answer}' 'as before' > {ANSWER}; touch /run/overlap\n{PRINT_STATUS}"
        )
    program += "ls /run/ran 2> /dev/null || echo nothing\n"
    assert run_on(node, image, program) == ["11", "11", "11", "11", "nothing"]


def test_an_error_of_arithmetic_is_not_a_pass(node: KernelNode, image: Path) -> None:
    """An error of arithmetic, at which bash drops a whole command, ends the script of the gates
    with 1 and not with a pass.
    """
    program = f"""
    sed --in-place 's/^    ask_in_turn$/    ask_in_turn $((08))/' {GATE_SCRIPT}
    touch /run/overlap
    for arguments in '' 'a.service WARN' 'a.service STRICT'; do
        status=0
        {AS_A_GATE} {GATE_SCRIPT} $arguments > /dev/null 2> /run/output || status=$?
        echo $status $(grep --only-matching 'value too great' /run/output)
    done
    """
    assert run_on(node, image, program) == ["1 value too great"] * 3


def test_what_an_apply_has_undone_is_no_answer(node: KernelNode, tmp_path: Path) -> None:
    """The script of the gates looks again if an apply has begun and ended during its look."""
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
    """An answer with a time in the future does not count, be it a yes on a wrong node or a no on a
    right one.
    """
    wrong = f"printf '999999999.00 10 \\n\\n' > {ANSWER}; touch /run/overlap\n"
    right = f"printf '999999999.00 11 {CHECK}\\nwrong\\n' > {ANSWER}; rm /run/overlap\n"
    assert run_on(node, image, wrong + PRINT_STATUS + right + PRINT_STATUS) == ["11", "10"]


@pytest.mark.parametrize(
    ("owner", "folder", "status"), [("0", "0", "10"), ("65534", "0", "11"), ("0", "65534", "11")]
)
def test_an_answer_of_another_owner_does_not_count(
    node: KernelNode, image: Path, owner: str, folder: str, status: str
) -> None:
    """An answer that was made while the script of the gates waited counts only if root owns it and
    its folder.
    """
    program = f"""
    touch /run/overlap
    : > {ANSWER}
    pause() {{ read -rt .01 <> <(:) || :; }}
    # Its holder lives on: in a namespace of PIDs, /proc/locks leaves out locks whose process has ended.
    flock --no-fork {ANSWER} sleep infinity &
    holder=$!
    # The kernel lists the locks of the whole machine: an inode alone may be that of another disk.
    lock=$(printf '%02x:%02x:%s' $(stat --format='%Hd %Ld %i' {ANSWER}))
    until grep -q "FLOCK .* $lock " /proc/locks; do pause; done
    {{ {PRINT_STATUS} }} &
    until grep -q -- "-> FLOCK .* $lock " /proc/locks; do pause; done
    read -r began _ < /proc/uptime
    until read -r now _ < /proc/uptime; [[ $now != "$began" ]]; do pause; done
    printf '%s 10 \\n07:00\\na fact\\n' "$now" > {ANSWER}
    chown {owner} {ANSWER}
    chown {folder} {ANSWER.rpartition("/")[0]}
    kill "$holder"
    wait
    """
    assert run_on(node, image, program) == [status]


def test_only_root_can_hold_the_lock(node: KernelNode, image: Path) -> None:
    """A user other than root can neither open the lock of the answers nor make one in its place."""
    user = "setpriv --reuid=65534 --clear-groups"
    program = f"""{PRINT_STATUS}
    {user} flock --nonblock {ANSWER} true 2> /dev/null || echo refused
    rm {ANSWER}
    {user} flock --nonblock {ANSWER} true 2> /dev/null || echo refused
    """
    assert run_on(node, image, program) == ["10", "refused", "refused"]


@pytest.mark.slow
def test_a_lock_that_is_held_during_the_pause(node: KernelNode, image: Path) -> None:
    """Routing is unknown to a gate that was refused and cannot check again: the script ends with
    12, with which WARN starts the unit.
    """
    program = f"""
    touch /run/overlap
    pause() {{ read -rt .1 <> <(:) || :; }}
    {{ status=0; {AS_A_GATE} {GATE_SCRIPT} a.service WARN > /run/output 2> /dev/null || status=$?
       echo $status >> /run/output; }} &
    gate=$!
    until grep --silent refused /run/output; do pause; done
    flock --no-fork {ANSWER} sleep infinity &
    holder=$!
    wait "$gate"
    kill "$holder"
    cat /run/output
    """
    assert run_on(node, image, program) == [
        "<3>hostrouting: a.service is refused: check-route-overlap: stand-in: an overlap",
        f"<4>hostrouting: a.service {ROUTING_UNKNOWN}: {HELD}",
        "12",
    ]


@pytest.mark.parametrize(
    ("make", "status"),
    [
        ("mkfifo new; mv -T new hostrouting.units", "12"),
        (f"mkfifo {ANSWER}", "10"),
    ],
)
def test_a_pipe_in_place_of_a_file(node: KernelNode, image: Path, make: str, status: str) -> None:
    """A pipe in place of a file is not waited for: the script of the gates answers as if the file
    were lost.
    """
    program = f"""
    cd /etc/aks-flex-node/hostrouting
    {make}
    status=0; {AS_A_GATE} timeout 9 {GATE_SCRIPT} > /dev/null || status=$?; echo $status
    """
    assert run_on(node, image, program) == [status]


@pytest.mark.parametrize(
    "name", ["static-routes.sh", "check-route-overlap.sh", "hostrouting-ask.sh"]
)
def test_a_changed_file_gives_no_answer(node: KernelNode, image: Path, name: str) -> None:
    """A comment more in a file that a gate runs ends the script of the gates with 12 and the name
    of the file.
    """
    program = f"""
    echo '# more' >> /etc/aks-flex-node/hostrouting/{name}
    {AS_A_GATE} {GATE_SCRIPT} || echo $?
    """
    assert run_on(node, image, program) == [
        f"/etc/aks-flex-node/{name} {DAMAGED}; run: hostrouting apply {INTENT_PATH}",
        "12",
    ]


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ("sed -i '2s/^./#/' hostrouting.units", "check-route-overlap.sh"),
        (
            "install /dev/null /run/empty; mount --bind /run/empty /usr/bin/sha256sum",
            "static-routes.sh",
        ),
    ],
    ids=["a comment", "an empty sha256sum"],
)
def test_a_file_that_is_not_compared_counts_as_damaged(
    node: KernelNode, image: Path, damage: str, name: str
) -> None:
    """A file whose line in the list is a comment, or which sha256sum does not report, counts as
    damaged, and the scripts are not run.
    """
    program = f"""
    cd /etc/aks-flex-node/hostrouting
    echo 'exit 10' > check-route-overlap.sh
    {damage}
    {AS_A_GATE} {GATE_SCRIPT} || echo $?
    """
    assert run_on(node, image, program) == [
        f"/etc/aks-flex-node/{name} is lost or damaged; run: hostrouting apply {INTENT_PATH}",
        "12",
    ]


@pytest.mark.parametrize("end", ["cat", "head -c -1"])
@pytest.mark.parametrize("lines", [0, 1, 2])
def test_a_list_that_was_cut_gives_no_answer(
    node: KernelNode, image: Path, lines: int, end: str
) -> None:
    """A list of files that was cut, after a line or before its end, counts as damaged, although
    what is left has right checksums.
    """
    program = f"""
    cd /etc/aks-flex-node/hostrouting
    head -n {lines} hostrouting.units | {end} > new
    mv new hostrouting.units
    touch /run/overlap
    {AS_A_GATE} {GATE_SCRIPT} || echo $?
    """
    assert run_on(node, image, program) == [
        f"/etc/aks-flex-node/hostrouting.units {DAMAGED}; run: hostrouting apply {INTENT_PATH}",
        "12",
    ]


@pytest.mark.parametrize(
    ("printed", "news", "known"),
    # A reason is printed as: since when, \36, the fact, \36, the words; noise may stand before it.
    [
        # A heading with a list; a library has printed a line before it.
        (
            "noise\\n\\36\\36a fact\\36<3>two facts:\\n<3>  a fact\\n<3>  more\\n",
            [f"{CHECK}: noise", "two facts:", "  a fact", "  more"],
            "a fact",
        ),
        ("\\03607:00\\36a fact\\36<3>as before\\n", [f"{CHECK}: as before"], "a fact"),
        # A script that was killed has no values.
        ("words:\\n  more\\n", [f"{CHECK}: words:", "  more"], "words:"),
    ],
)
def test_a_reason_is_known_by_its_values(
    node: KernelNode, tmp_path: Path, printed: str, news: list[str], known: str
) -> None:
    """The script of the gates prints a whole reason, and stores its fact for the runs that wait:
    its values, and its first line only if it has none.
    """
    image = installed(
        tmp_path, stand_in(STATIC), stand_in(CHECK, f"printf '{printed}' >&2; exit 11\n")
    )
    program = f"{GATE_SCRIPT} || echo $?; tail -n 1 {ANSWER}"
    assert run_on(node, image, program) == [*news, "11", known]


def test_a_look_runs_the_scripts_of_one_apply(node: KernelNode, tmp_path: Path) -> None:
    """An apply that exchanges the files during a look does not change it: the rest of the scripts
    is of the apply before. What a script writes can be read by other users.
    """
    exchange = f"""touch /run/written
    cp -a /etc/aks-flex-node/hostrouting/. /run/next
    sed -i 's/^exit 10/exit 11/' /run/next/{CHECK}.sh
    ln -sfn /run/next /etc/aks-flex-node/hostrouting
    """
    image = installed(tmp_path, stand_in(STATIC, exchange), stand_in(CHECK))
    program = f"{PRINT_STATUS} stat -c %a /run/written; /etc/aks-flex-node/{CHECK}.sh || echo $?"
    assert run_on(node, image, program) == ["10", "644", "11"]


def test_rules_are_wrong_only_if_nft_refuses_them(node: KernelNode, tmp_path: Path) -> None:
    """The rules for probes are wrong only if nft refuses them, and unknown if nft hangs or is
    missing.
    """
    image = installed(tmp_path, boot_unit(RULES, required=True))
    program = f"""
    mkdir /run/bin
    mount --bind /run/bin /usr/local/sbin
    for end in 0 1 124 127; do
        printf '#!/bin/sh\\nexit %s\\n' "$end" > /run/bin/nft
        chmod +x /run/bin/nft
        {PRINT_STATUS}
    done
    """
    assert run_on(node, image, program) == ["10", "11", "12", "12"]


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
    ways = {}
    for verb in "mark", "renew":
        words = ["bash", "-p", str(script), verb, "gate.service"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        ways[verb] = done.stdout
    mark = "--no-block -- hostrouting-waits@a\\x2d1.service.service\n"
    assert ways == {"mark": f"start {mark}", "renew": f"reload-or-restart {mark}"}
