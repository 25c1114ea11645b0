"""Write release/hostrouting.cdx.json, the bill of materials (CycloneDX) of wheel and packages.

    python release/sbom.py

It names the dependencies with their versions in CI: those of requirements.lock.
"""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any, Final

from hostrouting import __version__

ROOT: Final = Path(__file__).parents[1]
OUTPUT: Final = ROOT / "release/hostrouting.cdx.json"
#: The dependencies of users, with the builds that they belong to.
_DEPENDENCIES: Final = {
    "attrs": "a part of hostrouting.pyz and of the packages",
    "pyroute2": "for the wheel alone",
}


def document() -> str:
    """Return the bill as JSON, without a time: the same sources are the same bytes."""
    lock = (ROOT / "requirements.lock").read_text()
    components = [
        _component(name, _locked(lock, name), remark) for name, remark in _DEPENDENCIES.items()
    ]
    subject = {
        "type": "application",
        "name": "hostrouting",
        "version": __version__,
        "bom-ref": _purl("hostrouting", __version__),
    }
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([subject, components])).urn,
        "version": 1,
        "metadata": {
            "component": {
                **subject,
                "purl": subject["bom-ref"],
                "licenses": [{"license": {"id": "MIT"}}],
            }
        },
        "components": components,
        "dependencies": [
            {"ref": subject["bom-ref"], "dependsOn": [part["bom-ref"] for part in components]}
        ],
    }
    return json.dumps(bill, indent=2) + "\n"


def _component(name: str, version: str, remark: str) -> dict[str, Any]:
    purl = _purl(name, version)
    return {
        "type": "library",
        "name": name,
        "version": version,
        "bom-ref": purl,
        "purl": purl,
        "description": remark,
    }


def _locked(lock: str, name: str) -> str:
    match = re.search(rf"^{name}==(\S+)", lock, flags=re.MULTILINE)
    if match is None:
        raise LookupError(f"requirements.lock lacks {name}")
    return match[1]


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


if __name__ == "__main__":
    OUTPUT.write_text(document())
