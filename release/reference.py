"""hostrouting.json(5), docs/schemas, and the section of docs/reference.md on the config.

python release/reference.py        writes that section, and docs/schemas
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import attrs
import manual
from answers import PAGE, schemas
from config_schema import config_schema

from hostrouting import __version__
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.config.wire import WireField, WireValue, schema_of, sentence_of, wire_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: The example of hostrouting.json(5).
_EXAMPLE: Final = {
    "hostRouting": {
        "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]},
        "routeOverlap": {
            "expectedCidrs": ["172.16.8.0/22"],
            "expected": ["azure"],
            "mode": "STRICT",
        },
        "watch": {"enabled": True, "mode": "service"},
    }
}
_REQUIRED: Final = "required"
_WORDS: Final = {
    **dict.fromkeys(("integer", "number"), "number"),
    "string": "text",
    "boolean": "true or false",
    "null": "null",
    "object": "object",
}
#: In the page and in the manual.
_ABOUT_THE_CONFIG: Final = """\
The file is JSON: the hostRouting object, or a whole agent config that has it under that key. Its
other keys are ignored, but staticRoutes, routeOverlap, probeSnat and staleCni are an error there.
An unknown key is an error; null means absent. A config that installs nothing is refused over an
installed one; exactly {"hostRouting": {}} removes everything. The config in force is
/etc/aks-flex-node/hostrouting.json, in its canonical form. Every address but those of fabric may be
IPv6. An address never has a zone: dev names the device of a link-local one."""
_EDITORS: Final = "For editors there is a JSON Schema: [config.json](schemas/config.json)."


def page() -> str:
    """Return docs/reference.md, whose section on the config comes from its classes."""
    tables = "\n".join(line for path, cls in _sections() for line in _section(path, cls)).strip()
    text = PAGE.read_text(encoding="utf-8")
    head, begin, rest = text.partition("## The config\n")
    _, end, tail = rest.partition("\n## Findings\n")
    return f"{head}{begin}\n{_ABOUT_THE_CONFIG}\n\n{_EDITORS}\n\n{tables}\n{end}{tail}"


def config_page() -> str:
    """Return hostrouting.json(5) as troff."""
    lines = [
        f'.TH HOSTROUTING.JSON 5 "" "hostrouting {__version__}" "File formats"',
        ".SH NAME",
        r"hostrouting.json \- the config of hostrouting(1)",
        ".SH DESCRIPTION",
        manual.troff(_ABOUT_THE_CONFIG),
    ]
    for path, cls in _sections():
        lines += [f".SH {manual.troff(path or 'hostRouting')}", manual.troff(sentence_of(cls))]
        for name, field in wire_fields(cls).items():
            default = _default(field)
            also = [default if default == _REQUIRED else f"default: {default}"] if default else []
            values = "; ".join([_type(field), *also])
            lines += [
                ".TP",
                rf"\fB{name}\fR: {manual.troff(values)}",
                manual.troff(field.text),
            ]
    example = json.dumps(_EXAMPLE, indent=2).replace("\\", r"\e").replace("-", r"\-")
    lines += [".SH EXAMPLE", ".nf", example, ".fi", ".SH SEE ALSO", r"\fBhostrouting\fR(1)"]
    return "\n".join(lines) + "\n"


def _sections() -> Iterator[tuple[str, type[WireValue]]]:
    """Yield each class of the config with its path, the outermost first."""
    waiting: list[tuple[str, type[Any]]] = [("", HostRoutingConfig)]
    while waiting:
        path, cls = waiting.pop(0)
        yield path, cls
        for name, field in wire_fields(cls).items():
            if inner := _class_in(schema_of(field.rule)):
                waiting.append((f"{path}.{name}".lstrip("."), inner))


def _class_in(schema: Any) -> type[Any] | None:
    cls = schema.get("$ref") or schema.get("items", {}).get("$ref")
    return cls if isinstance(cls, type) else None


def _section(path: str, cls: type[WireValue]) -> Iterator[str]:
    yield from (f"### {path or 'hostRouting'}", "")
    rows = (
        (f"`{name}`", _type(field), _default(field), field.text)
        for name, field in wire_fields(cls).items()
    )
    yield from _table(("Field", "Type", "Default", "Meaning"), rows)


def _type(field: WireField) -> str:
    return _kind(schema_of(field.read) or schema_of(field.rule))


def _kind(schema: Any) -> str:
    """Return the words for the values that a schema describes."""
    if "$ref" in schema:
        # A section of the config, which has a table of its own.
        return "object"
    if "enum" in schema:
        return " or ".join(schema["enum"])
    if "anyOf" in schema:
        # The words come first, and then the pattern that they match.
        parts = dict.fromkeys(map(_kind, schema["anyOf"]))
        has_words = bool(parts.keys() - {"text", "null"})
        return " or ".join(part for part in parts if part != "text" or not has_words)
    if schema.get("type") == "array":
        items = _kind(schema["items"])
        return "list of objects" if items == "object" else f"list of {items}"
    return _WORDS[schema["type"]]


def _default(field: WireField) -> str:
    if field.default is attrs.NOTHING:
        return _REQUIRED
    if isinstance(field.default, WireValue) or field.default is None or field.default == ():
        return ""
    return json.dumps(field.write(field.default))


def _table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    cells = [head, *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    first, *rest = (f"| {' | '.join(line)} |" for line in cells)
    return [first, "|---" * len(head) + "|", *rest, ""]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    for name, made in {**schemas(), "config": config_schema()}.items():
        path = PAGE.with_name("schemas") / f"{name}.json"
        path.write_text(f"{json.dumps(made, indent=2)}\n")
