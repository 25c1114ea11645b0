"""The snapshot of the public names: a change of it is reviewed."""

import re
import subprocess
import sys
from functools import cache

from support.documents import ROOT


@cache
def made() -> str:
    """Return tests/public_api.txt as it should be."""
    words = [sys.executable, "-c", "import api; print(api.page(), end='')"]
    return subprocess.run(
        words, cwd=ROOT / "release", capture_output=True, text=True, check=True
    ).stdout


def test_the_snapshot_is_up_to_date() -> None:
    """A change of a public name or of its signature is one that somebody meant."""
    snapshot = (ROOT / "tests/public_api.txt").read_text(encoding="utf-8")
    assert snapshot.splitlines() == made().splitlines(), (
        "public names or signatures differ from tests/public_api.txt; "
        "if the change is meant, run 'make api' and add it to CHANGELOG.md"
    )


def test_every_public_module_is_in_it() -> None:
    """They are those of the page on releases."""
    page = (ROOT / "docs/releasing.md").read_text(encoding="utf-8")
    [listed] = re.findall(r"of these modules: ([^:]*?)\.\n", page)
    assert re.findall(r"^module (\S+)$", made(), re.MULTILINE) == re.findall(r"`([\w.]+)`", listed)


def test_a_class_has_the_members_of_its_private_bases() -> None:
    """Parameters, fields without their prose, and the attributes that a constructor sets."""
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
