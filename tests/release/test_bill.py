"""The bill of materials."""

import json

from support.documents import ROOT

from hostrouting import __version__

BILL = "release/hostrouting.cdx.json"


def test_the_bill_has_the_versions_of_the_lock() -> None:
    """The bill of materials has the versions of the lock and of the project; otherwise run nox -s
    sbom.
    """
    bill = json.loads((ROOT / BILL).read_text())
    parts = [f"{part['name']}=={part['version']}" for part in bill["components"]]
    lines = (ROOT / ".ci/users.lock").read_text().splitlines()
    locked = [line.split()[0] for line in lines if "==" in line and "win32" not in line]
    assert parts == locked
    assert {f"{part} \\" for part in parts} <= set(
        (ROOT / "requirements.lock").read_text().splitlines()
    )
    subject = bill["metadata"]["component"]
    assert (subject["name"], subject["version"]) == ("hostrouting", __version__)
