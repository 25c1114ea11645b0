"""The manual and its sources: the parser, the fields of the config, and the reference."""

import json
import re
import sys
from functools import cache
from typing import Any, get_args

from jsonschema import Draft202012Validator
from support.answers import SCHEMAS
from support.config_errors import config_schema
from support.documents import ROOT
from support.processes import ended

from hostrouting.azure.stale_cni.leftovers import Kind as Sort
from hostrouting.base.findings import Severity
from hostrouting.config.sections import HostRoutingConfig, OverlapMode
from hostrouting.config.wire import schema_of, wire_fields
from hostrouting.node.report import Verdict
from hostrouting.route_overlap.judgement import Kind
from phases.report import Status

_QUESTIONS = """
import json, reference
print(json.dumps([reference.page(), reference.config_page(), {**reference.schemas(), "config": reference.config_schema()}]))
"""


@cache
def made() -> Any:
    """Return docs/reference.md as it should be, hostrouting.json(5), and the schemas of answers."""
    words = [sys.executable, "-c", _QUESTIONS]
    return json.loads(ended(*words, check=True, cwd=ROOT / "release").stdout)


def fields(cls: Any) -> dict[str, Any]:
    """Return all fields of a section and those inside it, each by its path."""
    found = {}
    for name, field in wire_fields(cls).items():
        found[name] = field
        schema: Any = schema_of(field.rule)
        inner = schema.get("$ref") or schema.get("items", {}).get("$ref")
        found |= {f"{name}.{path}": each for path, each in (fields(inner) if inner else {}).items()}
    return found


def constructed() -> set[str]:
    """Return the kind of each `NodeFinding` that the code makes, where it is a text, the faults of
    gates, and the states of a disk.
    """
    code = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "hostrouting").rglob("*.py")
    )
    gates = (ROOT / "hostrouting/boot/gates.py").read_text(encoding="utf-8")
    boot_files = (ROOT / "hostrouting/node/boot_files.py").read_text(encoding="utf-8")
    return {
        *re.findall(r'\bNodeFinding(?:\(|,)\s*"([a-z-]+)"', code),
        *re.findall(r'"(gate-[a-z-]+)"', gates),
        *re.findall(r'errno[.]E[A-Z]+: [(]\s*"([a-z-]+)"', boot_files),
    }


def test_the_page_is_up_to_date() -> None:
    """The section of docs/reference.md on the config is as its classes make it; if it differs, run
    nox -s reference.
    """
    assert (ROOT / "docs/reference.md").read_text(encoding="utf-8") == made()[0]


def test_the_enumerations_are_those_of_the_code() -> None:
    """The page lists all words of each enumeration that an answer has, as the code does."""
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    literals = (Status, Verdict, Severity, Kind, Sort)
    enumerations = [[*OverlapMode], *map(get_args, literals)]
    words = [" or ".join(map(str, values)) for values in enumerations]
    assert [each for each in words if f" | {each} | " not in page] == []


def test_the_schemas_are_up_to_date() -> None:
    """The schemas of answers are valid and as their source makes them, and none is left over; if
    one differs, run nox -s reference.
    """
    written = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.iterdir()}
    assert written == made()[2]
    for schema in written.values():
        Draft202012Validator.check_schema(schema)


def test_every_field_has_a_sentence() -> None:
    """Every field of the config has a sentence in the schema, in the page and in
    hostrouting.json(5), which differs from others of its section.
    """
    page, manual, _ = made()
    plain = manual.replace(r"\-", "-").replace(r"\e", "\\").replace(r"\&", "")
    found = fields(HostRoutingConfig)
    assert len(found) > 35
    for path, field in found.items():
        text = field.text
        assert text.endswith("."), path
        assert text in page, path
        assert text in plain, path
    for name, section in config_schema()["$defs"].items():
        descriptions = [each["description"] for each in section["properties"].values()]
        assert len(set(descriptions)) == len(descriptions), name


def tables() -> list[list[list[str]]]:
    """Return the cells of the two tables of findings, without their heads."""
    text = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| Kind \|.*\n\|-.*\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    return [[line.strip("| ").split(" | ") for line in rows.splitlines()] for rows in found]


def test_the_tables_have_every_kind_that_the_code_finds() -> None:
    """The tables have exactly the kinds that the code finds, each once, with a meaning and a
    remedy; otherwise change docs/reference.md.
    """
    of_addresses, of_the_node = tables()
    rows = of_addresses + of_the_node
    assert all(len(row) == 4 and all(row) for row in rows)
    assert sorted(row[0].strip("`") for row in of_addresses) == sorted(get_args(Kind))
    assert sorted(row[0].strip("`") for row in of_the_node) == sorted(constructed())
    severities = {row[1].replace(";", "").split()[0] for row in of_the_node}
    assert severities == {"error", "warning", "note"}
