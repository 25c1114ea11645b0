"""A script of the boot that was cut after a line, on a node that is wrong, neither opens a gate nor
holds one.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.boot_units import NSPAWN
from support.images import make_image
from support.needs import needs
from support.shell_nodes import run_on

from hostrouting import Configure, Host, HostRoutingConfig
from hostrouting.testing import KernelNode
from phases import Context

pytestmark = [needs("root"), pytest.mark.usefixtures("needs_kernel")]

FOLDER = "/etc/aks-flex-node"
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
#: Each line of a script in the soak, and every sixtieth.
steps = pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.soak), 60])


@pytest.fixture
def node() -> Iterator[KernelNode]:
    """A node that is wrong."""
    with KernelNode.made() as node:
        for dev, address in ("eth0", "10.224.0.4/24"), ("ib0", "172.16.1.4/16"):
            node.add_link(dev)
            node.add_address(dev, address)
        yield node


def installed(folder: Path, **sections: object) -> Path:
    """Install a config in an image, and return it."""
    image = make_image(folder / "image")
    config = HostRoutingConfig.from_mapping({"gates": [NSPAWN], **sections})
    Configure(config, host=Host.offline(image)).do(Context(timeout=60))
    return image


def ends(
    node: KernelNode, image: Path, script: str, *words: str, step: int
) -> tuple[str, dict[int, str]]:
    """Return the exit status of the whole script with its output, and the same of its cuts, by
    the number of their lines.
    """
    program = f"""
    script={FOLDER}/{script}.sh
    run() {{
        rm -rf /run/aks-flex-node
        status=0 output=$("$BASH" -p "$1" {" ".join(words)} 2>&1) || status=$?
        [[ ! -e /run/aks-flex-node/route-overlap.ok ]] || status+=" and the marker of a right node"
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


@steps
@pytest.mark.parametrize(
    ("script", "words"),
    [(CHECK, ["now"]), (STATIC, ["now"]), (GATE_SCRIPT, [])],
    ids=[CHECK, STATIC, GATE_SCRIPT],
)
def test_a_cut_script_opens_nothing(
    node: KernelNode, tmp_path: Path, script: str, words: list[str], step: int
) -> None:
    """Under STRICT a script that was cut never ends with 10, and with 11 only if it has proven what
    the whole script proves.
    """
    image = installed(tmp_path, routeOverlap={**OVERLAP, "mode": "STRICT"}, staticRoutes=ROUTES)
    whole, cuts = ends(node, image, script, *words, step=step)
    assert whole.startswith("11: ")
    assert not [number for number, output in cuts.items() if output.startswith("10")]
    assert {output for output in cuts.values() if output.startswith("11")} <= {whole}
    assert not [number for number, output in cuts.items() if "the marker of a right node" in output]


@steps
@pytest.mark.parametrize(
    ("script", "words"),
    [(CHECK, ["now"]), (GATE_SCRIPT, ["a.service", "WARN"])],
    ids=[CHECK, GATE_SCRIPT],
)
def test_a_cut_script_holds_nothing(
    node: KernelNode, tmp_path: Path, script: str, words: list[str], step: int
) -> None:
    """Under WARN a script that was cut never ends with 11, the one exit status that refuses."""
    image = installed(tmp_path, routeOverlap={**OVERLAP, "mode": "WARN"})
    whole, cuts = ends(node, image, script, *words, step=step)
    assert whole.startswith("10: ")
    assert not [number for number, output in cuts.items() if output.startswith("11")]
