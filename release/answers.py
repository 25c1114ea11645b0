"""The answers of the commands for programs: a JSON Schema for each, in docs/schemas.

docs/reference.md has a table of the keys of each answer and of each part of one. That of a record
comes from its classes. The tests compare all schemas with what the commands print.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

from config_schema import config_schema

from hostrouting.config.sections import HostRoutingConfig
from hostrouting.fleet import NodeRecord
from hostrouting.net.addresses import Address, Prefix
from hostrouting.net.mappings import FORMS, OWN

Schema: TypeAlias = dict[str, Any]

PAGE: Final = Path(__file__).parents[1] / "docs/reference.md"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
#: Of the JSON of all commands.
_VERSION: Final = {"const": 1, "description": "of this form"}
_TEXT: Final = {"type": "string"}
_NULL: Final = {"type": "null"}
_INTEGER: Final = {"type": "integer"}
_BOOLEAN: Final = {"type": "boolean"}
#: The words of the page for values; any others are the values themselves.
_WORDS: Final[dict[str, Schema]] = {
    "text": _TEXT,
    "null": _NULL,
    "integer": _INTEGER,
    "number": {"type": "number"},
    "true or false": _BOOLEAN,
    "any JSON value": {},
}
#: The types of a record.
_TYPES: Final[dict[Any, Schema]] = {
    str: _TEXT,
    bool: _BOOLEAN,
    int: _INTEGER,
    NoneType: _NULL,
    bytes: {"type": "string", "pattern": "^([0-9a-f]{2})*$"},
    Address: _TEXT,
    Prefix: _TEXT,
    HostRoutingConfig: {"$ref": "#/$defs/HostRoutingConfig"},
}


def schemas() -> dict[str, Schema]:
    """Return the JSON Schema of each answer, by the name of its file."""
    answers: dict[str, Schema] = {"record": {"title": "`record`", **_recorded(NodeRecord)}}
    parts = {cls.__name__: _recorded(cls) for cls in FORMS} | config_schema()["$defs"]
    _, _, text = PAGE.read_text(encoding="utf-8").partition("\n## JSON\n")
    for section in re.split(r"^### ", text.partition("\n## ")[0], flags=re.MULTILINE)[1:]:
        title, _, about, _, *table = section.splitlines()
        if file := re.search(r"schemas/(\w+)\.json", about):
            answers[file[1]] = {"title": title, **_object(table)}
        else:
            parts[title.strip("`")] = {"description": about, **_object(table)}
    return {name: _complete(answer, parts) for name, answer in answers.items()}


def _complete(answer: Schema, parts: dict[str, Schema]) -> Schema:
    """Return the schema of an answer with its version and the parts that it has."""
    properties = {"version": _VERSION, **answer["properties"]}
    required = ["version", *answer["required"]]
    whole = {"$schema": _DIALECT, **answer, "properties": properties, "required": required}
    found: dict[str, Schema] = {}
    _add_parts(whole, parts, found)
    return {**whole, **({"$defs": found} if found else {})}


def _add_parts(schema: Schema, parts: dict[str, Schema], found: dict[str, Schema]) -> None:
    """Add the parts that a schema names, and those inside them, in the order of their names."""
    for name in re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema)):
        if name not in found:
            found[name] = parts[name]
            _add_parts(parts[name], parts, found)


def _object(table: list[str]) -> Schema:
    """Return the schema of an object from the lines of its table."""
    properties: dict[str, Schema] = {}
    required = []
    for line in table[2:]:
        if not line:
            break
        key, values, meaning = re.split(r" \| ?", line.removeprefix("| ").removesuffix(" |"))
        name = key.strip("`?")
        properties[name] = {**_values(values), **({"description": meaning} if meaning else {})}
        if not key.endswith("?"):
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def _values(words: str) -> Schema:
    """Return the schema for the words about values."""
    if words in _WORDS:
        return _WORDS[words]
    if words.startswith("list of "):
        return {"type": "array", "items": _values(words.removeprefix("list of "))}
    first, _, last = words.rpartition(" or ")
    if first and (last in _WORDS or last.startswith("`")):
        return {"anyOf": [_values(first), _values(last)]}
    if words.startswith("object of "):
        return {"type": "object", "additionalProperties": _values(words.removeprefix("object of "))}
    return _reference(words) if words.startswith("`") else {"enum": words.split(" or ")}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name.strip('`')}"}


def _recorded(cls: type[Any]) -> Schema:
    """Return the schema of a value in a record, which leaves out defaults."""
    names = {"Address": Address, "Prefix": Prefix, "Extra": tuple[tuple[int, bytes], ...]}
    hints = get_type_hints(cls, localns=names)
    # Addresses and networks are numbers in memory.
    kinds = {name: str if name in OWN else hint for name, hint in hints.items()}
    properties = {name: _typed(kind) for name, kind in kinds.items()}
    return {"type": "object", "properties": properties, "required": []}


def _typed(kind: Any) -> Schema:
    """Return the schema of a type in a record."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in FORMS:
        return _reference(kind.__name__)
    if origin in {Union, UnionType}:
        return {"anyOf": [*map(_typed, inner)]}
    if origin is tuple and inner[1:] != (...,):
        return {"type": "array", "prefixItems": [*map(_typed, inner)]}
    if origin in {list, tuple}:
        return {"type": "array", "items": _typed(inner[0])}
    return _TYPES[kind]
