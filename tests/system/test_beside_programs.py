"""Beside Debian's bird, dhcpcd, keepalived and NetworkManager, which keep a route to the
destination of ours.
"""

from pathlib import Path

import pytest
from support.beside_programs import (
    DHCPCD_IN_OUR_PLACE,
    NEWER,
    OLDER,
    OURS,
    PACKAGES,
    PROGRAMS,
    ZEBRA,
    Beside,
)
from support.needs import require
from support.program import require_program
from support.trees import make_tree

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tree with the programs: none is installed, or started, on this machine."""
    require("systemd", "debootstrap")
    require_program()
    return make_tree("bookworm", tmp_path_factory.mktemp("beside") / "bookworm", *PACKAGES)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(tree: Path, tmp_path: Path, name: str) -> None:
    """Own routes are in force again after whatever happens to it, and after the reset it has the route
    that it wants.

    At a metric of its own it notices nothing. In our place an older route of its own may stay
    behind, after the one that it wants.
    """
    program = PROGRAMS[name]
    with Beside(program, tree, tmp_path) as machine:
        machine.apply()
        for disturbance in program.disturbances:
            machine.disturb(disturbance)
            machine.until_in_force()
        machine.reset()
        # At the latest when it looks again.
        machine.wait_until(lambda: machine.place()[:1] == [program.wants(machine.gateway)])
        _, *others = machine.place()
        assert others == [] or (program.is_in_place and others == [program.wants(OLDER)])


def test_dhcpcd_in_our_place(tree: Path, tmp_path: Path) -> None:
    """(b), (c): a renewal with another gateway deletes the own route, not the older route, after which the
    newer one is refused.

    Own routes return, and after the reset it has the older route until it adds the newer one.
    """
    program = DHCPCD_IN_OUR_PLACE
    with Beside(program, tree, tmp_path) as machine:
        machine.apply()
        machine.run("bash", "-ec", program.disturbances["renewal"].replace("@", NEWER))
        machine.until(f"journalctl --unit=hostrouting-watch | grep --quiet 'repaired: + {OURS}'")
        machine.until_in_force()
        assert machine.place() == [OURS, program.wants(OLDER)]
        machine.reset()
        assert machine.place() == [program.wants(OLDER)]


def test_zebra(tree: Path, tmp_path: Path) -> None:
    """(d): it withdraws its static route while the own one is there, also of another metric, and installs
    it again.
    """
    with Beside(ZEBRA, tree, tmp_path) as machine:
        machine.apply()
        machine.wait_until(lambda: machine.place() == [OURS])
        machine.reset()
        machine.wait_until(lambda: machine.place() == [ZEBRA.wants(OLDER)])


def test_no_transition(tree: Path, tmp_path: Path) -> None:
    """Of keepalived there are the transitions that there are without us, and none at an apply or a
    reset.
    """
    program = PROGRAMS["keepalived"]
    notes = []
    for with_us in False, True:
        with Beside(program, tree, tmp_path / str(with_us)) as machine:
            notes.append(machine.transitions())
            if with_us:
                machine.apply()
            assert machine.transitions() == notes[-1]
            for disturbance in program.disturbances:
                machine.disturb(disturbance)
            if with_us:
                machine.until_in_force()
                machine.reset()
            notes.append(machine.transitions())
    assert notes[:2] == notes[2:]
