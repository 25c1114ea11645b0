"""A file of the boot that was cut, damaged or lost opens no STRICT gate, and a cut script holds no
WARN gate.
"""

import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kernel import connect
from support.needs import needs
from support.processes import ended
from support.shell_nodes import configured, run_on

from hostrouting.boot.layout import CONFIG_PATH, GENERATION_LINK, SCRIPT_DIRECTORY
from hostrouting.testing import KernelNode

#: The interpreter of this process, without a virtual environment.
OWN = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]
#: Another device has the addresses of the cluster.
OVERLAP = {
    "expectedCidrs": ["172.16.8.0/22", "fd00:8::/64"],
    "expectedDevs": ["eth0"],
    "fabric": "off",
}
#: Without a default route nothing completes it.
ROUTES = {"enabled": True, "routes": [{"destination": "172.20.0.0/22"}]}
CHECK = "check-route-overlap"
STATIC = "static-routes"
GATE_SCRIPT = "hostrouting-ask"
STRICT = {"routeOverlap": {**OVERLAP, "mode": "STRICT"}}
FILES = (
    "applied.json",
    "check-route-overlap.sh",
    "hostrouting-ask.sh",
    "hostrouting-retry.sh",
    "hostrouting.zip",
    "static-routes.sh",
)


# --- the files of a generation


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    image = configured(tmp_path_factory.mktemp("intact"), **STRICT)
    return (image / GENERATION_LINK.lstrip("/")).resolve()


@pytest.fixture
def generation(intact: Path, tmp_path: Path) -> Path:
    """The folder of the files in force."""
    return Path(shutil.copytree(intact, tmp_path / intact.name))


def answers(generation: Path) -> tuple[int, str]:
    """Try the program: its exit status is 10 if it runs on this Python. Nothing is written."""
    ran = ended(OWN, "-I", "-S", generation / "hostrouting.zip", "try")
    return ran.returncode, ran.stdout


def flipped(text: bytes, place: int) -> bytes:
    """Return a text of which one bit is another."""
    byte, bit = divmod(place, 8)
    return text[:byte] + bytes([text[byte] ^ 1 << bit]) + text[byte + 1 :]


@pytest.mark.parametrize("name", FILES)
def test_a_lost_or_damaged_file_gives_no_answer(generation: Path, name: str) -> None:
    """If any file of a boot is lost, empty, cut, longer or changed by one bit, the program ends
    with 12 and names the folder and the next step.
    """
    assert answers(generation) == (10, "the program runs\n")
    reason = f"a file in {generation} is lost or damaged; run: hostrouting apply {CONFIG_PATH}\n"
    text = (generation / name).read_bytes()
    for damaged in (None, b"", text[:-1], text + b"\n", flipped(text, 4 * len(text))):
        (generation / name).unlink(missing_ok=True)
        if damaged is not None:
            (generation / name).write_bytes(damaged)
        status, output = answers(generation)
        # Python finds no program in the rest of a zip file.
        if name != "hostrouting.zip" or output:
            assert (status, output) == (12, reason)
        assert status not in {10, 11}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["applied.json", "hostrouting.zip"])
def test_damage_at_any_place_gives_no_answer(generation: Path, name: str) -> None:
    """Wherever a bit of the config in force or of the program flips, and wherever the file is cut
    or ends in zeros, the program gives no answer.
    """
    text = (generation / name).read_bytes()
    for place in random.Random(name).sample(range(8 * len(text)), 100):
        begin = text[: place // 8]
        zeros = bytes(len(text) - len(begin))
        for damaged in flipped(text, place), begin, begin + zeros:
            (generation / name).write_bytes(damaged)
            assert answers(generation)[0] not in {10, 11}, place


def test_the_config_for_people_may_change(generation: Path) -> None:
    """An edit or the loss of hostrouting.json is no damage."""
    (generation / "hostrouting.json").write_text("{}")
    assert answers(generation)[0] == 10
    (generation / "hostrouting.json").unlink()
    assert answers(generation)[0] == 10


# --- scripts, and the checksum itself, on a node that is wrong


@pytest.fixture
def node() -> Iterator[KernelNode]:
    """A node that is wrong."""
    with KernelNode.made() as node:
        connect(node, eth0="10.224.0.4/24", ib0="172.16.1.4/16")
        yield node


def ends(
    node: KernelNode, image: Path, script: str, *words: str, step: int
) -> tuple[str, dict[int, str]]:
    """Return the exit status of the whole script with its output, and the same of its cuts, by
    the number of their lines.
    """
    program = f"""
    script={SCRIPT_DIRECTORY}/{script}.sh
    run() {{
        rm -rf /run/hostrouting
        mkdir /run/hostrouting
        # This boot waits no more.
        echo 0 > /run/hostrouting/waits-until
        status=0 output=$("$BASH" -p "$1" {" ".join(words)} 2>&1) || status=$?
        [[ ! -e /run/hostrouting/route-overlap.ok ]] || status+=" and the marker of a right node"
        echo "$status: ${{output//$'\n'/ }}"
    }}
    run $script
    mapfile -t lines < $script
    for ((number = 0; number < ${{#lines[@]}}; number++)); do
        ((number % {step} == 0 || number + 4 > ${{#lines[@]}})) || continue
        printf '%s\n' "${{lines[@]:0:number}}" > /run/cut
        echo "$number $(run /run/cut)"
    done
    """
    whole, *cuts = run_on(node, image, program)
    outputs = {}
    for cut in cuts:
        number, _, output = cut.partition(" ")
        outputs[int(number)] = output
    return whole, outputs


#: Each line of a script, and every thirtieth.
steps = pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 30])


@needs("kernel")
@steps
@pytest.mark.parametrize(
    ("script", "words"),
    [(CHECK, []), (STATIC, []), (GATE_SCRIPT, ["''", "STRICT"])],
    ids=[CHECK, STATIC, GATE_SCRIPT],
)
def test_a_cut_script_opens_nothing(
    node: KernelNode, tmp_path: Path, script: str, words: list[str], step: int
) -> None:
    """In STRICT mode, a script that was cut never ends with 10, and with 11 only if it has checked
    what the whole script checks.
    """
    image = configured(tmp_path, **STRICT, staticRoutes=ROUTES)
    whole, cuts = ends(node, image, script, *words, step=step)
    assert whole.startswith("11: ")
    assert not [number for number, output in cuts.items() if output.startswith("10")]
    assert {output for output in cuts.values() if output.startswith("11")} <= {whole}
    assert not [number for number, output in cuts.items() if "the marker of a right node" in output]


@needs("kernel")
@steps
@pytest.mark.parametrize(
    ("script", "words"),
    [(CHECK, []), (GATE_SCRIPT, ["a.service", "WARN"])],
    ids=[CHECK, GATE_SCRIPT],
)
def test_a_cut_script_holds_nothing(
    node: KernelNode, tmp_path: Path, script: str, words: list[str], step: int
) -> None:
    """In WARN mode, a script that was cut never ends with 11, the one exit status that refuses."""
    image = configured(tmp_path, routeOverlap={**OVERLAP, "mode": "WARN"})
    whole, cuts = ends(node, image, script, *words, step=step)
    assert whole.startswith("10: ")
    assert not [number for number, output in cuts.items() if output.startswith("11")]


#: Runs damaged copies of a script, and prints those that end with 10. A damaged script may do
#: anything, so it has processes of its own, and files that it cannot write.
DAMAGED = """
mkdir -p /run/bin /run/dev
for name in sleep systemctl; do printf '#!/bin/sh\nexit 1\n' > /run/bin/$name; done
printf '#!/bin/sh\nexit %s\n' "{status}" > /run/bin/python
chmod +x /run/bin/*
cp -a /dev/null /dev/urandom /run/dev
mount --bind /run/bin /usr/local/sbin
printf '#!/run/bin/python -IS\n' > {folder}/hostrouting/hostrouting.zip
mount --bind /run/dev /dev
mount -o remount,bind,ro /
exec unshare --pid --fork --kill-child --mount-proc /usr/bin/python3 - <<'END'
import random, subprocess
text = open("{folder}/hostrouting-ask.sh", "rb").read()
damages = []
for place in random.Random({status}).sample(range(len(text)), 100):
    byte = bytes([text[place] ^ 1 << place % 8])
    damages += [text[:place], text[:place] + byte + text[place + 1:]]
for damaged in damages:
    with open("/run/damaged", "wb") as file:
        file.write(damaged)
    words = ["timeout", "9", "bash", "-p", "/run/damaged", "kubelet.service", "STRICT"]
    if subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL).returncode == 10:
        print(*set(text.split(b"\\n")) ^ set(damaged.split(b"\\n")))
END
"""


@needs("kernel")
@pytest.mark.slow
@pytest.mark.parametrize("status", [11, 12])
def test_a_damaged_script_of_the_gates_opens_none(
    node: KernelNode, tmp_path: Path, status: int
) -> None:
    """The script of the gates never ends with 10 if the program has refused, wherever the script
    was cut or one of its bits has flipped.
    """
    image = configured(tmp_path, **STRICT)
    assert run_on(node, image, DAMAGED.format(status=status, folder=SCRIPT_DIRECTORY)) == []


@needs("kernel")
def test_an_edit_changes_nothing(node: KernelNode, tmp_path: Path) -> None:
    """A boot answers by the config that was applied: an edit of hostrouting.json that would let the
    gates start changes nothing before an apply.
    """
    image = configured(tmp_path, **STRICT)
    program = f"""
    echo '{{"hostRouting": {{"routeOverlap": {{"expectedCidrs": ["10.0.0.0/8"]}}}}}}' > {CONFIG_PATH}
    for command in {CHECK}.sh "{GATE_SCRIPT}.sh '' STRICT"; do
        eval "bash -p {SCRIPT_DIRECTORY}/$command" > /dev/null 2>&1 || echo $?
    done
    """
    assert run_on(node, image, program) == ["11", "11"]
