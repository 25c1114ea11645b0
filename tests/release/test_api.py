"""The snapshot of the public names, whose changes are reviewed."""

import re
import sys
from functools import cache

from support.documents import ROOT
from support.processes import ended

import phases
import phases.exceptions


def printed(program: str) -> str:
    """Return what a program prints that runs next to `api.py`."""
    words = [sys.executable, "-c", program]
    return ended(*words, check=True, cwd=ROOT / "release").stdout


@cache
def made() -> str:
    """Return tests/public_api.txt as it should be."""
    return printed("import api; print(api.page(), end='')")


def test_the_snapshot_is_up_to_date() -> None:
    """tests/public_api.txt has the present public names and signatures."""
    snapshot = (ROOT / "tests/public_api.txt").read_text(encoding="utf-8")
    assert snapshot.splitlines() == made().splitlines(), (
        "public names or signatures differ from tests/public_api.txt; "
        "if the change is meant, run 'nox -s reference' and add it to CHANGELOG.md"
    )


def test_a_class_has_the_members_of_its_private_bases() -> None:
    """A class in the snapshot has the members of its private bases: parameters, fields without
    their prose, and attributes of a constructor.
    """
    configure = re.split(r"\n    (?=class |@)", made().split("    class Configure(")[1])[0]
    assert "        def undo(self, ctx: Context) -> None\n" in configure
    route = made().split("    class StaticRoute(WireValue)\n")[1]
    assert route.startswith("        destination: str = setting(default=attrs.NOTHING)\n")
    lines = made().split("    class LinkNotFoundError(BackendError)\n")[1].splitlines()
    parameters = (
        "self, message: str, *, dev: str, errno: int | None=None, retryable: bool=False, "
        "routes: Iterable[str]=()"
    )
    assert lines[0] == f"        def __init__({parameters}) -> None"
    assert lines[1] == "        self.dev"


#: What other packages call: their values change with the plan and with the sweep.
BETWEEN_PACKAGES = {
    "CleanStaleCNI.findings",
    "CleanStaleCNI.foresee",
    "Configure.planned",
    "HostRoutingConfig.sections",
    "Reset.planned",
}
#: Values that an author reads, and nobody makes or names.
READ_ALONE = {
    "Event.progress",
    "Event.wait",
    "Explanation.parts",
    "MemoryEvents.listen",
    "MemoryFiles.file",
    "NodeRecord.fabric",
    "NodeRecord.lines",
    "StatusReport.facts",
    "Transaction.rollback",
}


def test_every_class_that_a_public_name_returns_is_public() -> None:
    """Every class that a public name returns is public, except those between packages and those
    that are only read, so that a program which names its type need not import from a module that
    may move.
    """
    unlisted = printed("import api; print(*api.unlisted(), sep='\\n')").splitlines()
    assert {line.split(" of ")[1] for line in unlisted} == BETWEEN_PACKAGES | READ_ALONE


def test_every_error_of_the_runner_is_public() -> None:
    """`phases` exports every error of the runner."""
    assert {name for name in vars(phases.exceptions) if name.endswith("Error")} <= {*phases.__all__}
