"""docs/reference.md, docs/schemas and hostrouting.json(5), from the config and the answers.

python release/reference.py        writes docs/reference.md and docs/schemas
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import manual
from answers import ANSWERS, schema
from config_schema import config_schema

from hostrouting import __version__
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.config.wire import WireField, WireValue, schema_of, sentence_of, wire_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
#: The classes of `hostrouting.fleet` and `hostrouting.host` describe it.
_TABLELESS: Final = ("record",)
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
_TEMPLATE: Final = Path(__file__).with_name("reference.template.md")


def page() -> str:
    """Return docs/reference.md."""
    parts = {
        "about": [_ABOUT_THE_CONFIG],
        "config": (line for path, cls in _sections() for line in _section(path, cls)),
        "json": _answers(),
    }
    text = _TEMPLATE.read_text()
    for name, lines in parts.items():
        text = text.replace(f"@{name}@", "\n".join(lines).strip())
    return text


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
        # A class is a section of the config, which has a table of its own.
        named = isinstance(schema["$ref"], str)
        return f"`{schema['$ref'].rpartition('/')[2]}`" if named else "object"
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
    if inner := schema.get("additionalProperties"):
        return f"object of {_kind(inner)}"
    if schema.keys() <= {"description"}:
        return "any JSON value"
    return _WORDS[schema["type"]]


def _default(field: WireField) -> str:
    if field.default is attrs.NOTHING:
        return _REQUIRED
    if isinstance(field.default, WireValue) or field.default is None or field.default == ():
        return ""
    return json.dumps(field.write(field.default))


def _answers() -> Iterator[str]:
    """Yield a table of the keys of each answer, and then of each part that answers have."""
    parts: dict[str, Mapping[str, Any]] = {}
    for name, answer in schemas().items():
        if name in _TABLELESS:
            continue
        parts |= answer.get("$defs", {})
        yield from _keys(
            answer["title"], f"As a schema: [{name}.json](schemas/{name}.json).", answer
        )
    for name, part in sorted(parts.items()):
        # A recorded object has the fields of its class.
        if "description" in part:
            yield from _keys(f"`{name}`", part["description"], part)


def _keys(title: str, text: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### {title}", "", text, "")
    rows = (
        (
            f"`{name}`" + ("" if name in schema["required"] else "?"),
            _kind(key),
            key.get("description", ""),
        )
        for name, key in schema["properties"].items()
        if name != "version"
    )
    yield from _table(("Key", "Values", "Meaning"), rows)


def schemas() -> dict[str, Mapping[str, Any]]:
    """Return the JSON Schema of each answer, by the name of its file."""
    return {name: schema(form) for name, form in ANSWERS.items()}


def _table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    cells = [head, *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    first, *rest = (f"| {' | '.join(line)} |" for line in cells)
    return [first, "|---" * len(head) + "|", *rest, ""]


if __name__ == "__main__":
    docs = Path(__file__).parents[1] / "docs"
    docs.joinpath("reference.md").write_text(page())
    for name, made in {**schemas(), "config": config_schema()}.items():
        docs.joinpath(f"schemas/{name}.json").write_text(f"{json.dumps(made, indent=2)}\n")
