"""The JSON Schema of the config, docs/schemas/config.json, made from the rules of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from hostrouting.config.sections import SCHEMA, HostRoutingConfig
from hostrouting.config.wire import WireField, WireValue, schema_of, sentence_of, wire_fields

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_KEY = "hostRouting"


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of a config file: the `hostRouting` object, or a config that has it.

    A config that `HostRoutingConfig.from_json` accepts and that installs anything is valid. The
    schema cannot express every rule: a valid document may still be refused, for example for two
    routes that contradict each other.

    >>> schema = config_schema()
    >>> schema["$defs"]["StaticRoute"]["required"]
    ['destination']
    """
    sections: dict[str, Any] = {}
    _define(HostRoutingConfig, sections)
    text = "The address of this schema, for editors; only at the top of the file."
    sections[HostRoutingConfig.__name__]["properties"][SCHEMA] = {"description": text}
    reference = {"$ref": f"#/$defs/{HostRoutingConfig.__name__}"}
    return {
        SCHEMA: _DIALECT,
        "title": "The config of hostrouting",
        "type": "object",
        # A whole config may have any further keys.
        "if": {"required": [_KEY]},
        "then": {"properties": {_KEY: reference}},
        "else": {**reference, "minProperties": 1},
        "$defs": sections,
    }


def _define(cls: type[WireValue], sections: dict[str, Any]) -> None:
    """Add the schema of a class, and those of the classes that it names."""
    schema: dict[str, Any] = {"type": "object", "description": sentence_of(cls)}
    # First, for a class that names itself.
    sections[cls.__name__] = schema
    fields = wire_fields(cls)
    schema["additionalProperties"] = False
    schema["properties"] = {name: _property(field, sections) for name, field in fields.items()}
    required = [name for name, field in fields.items() if field.default is attrs.NOTHING]
    if required:
        schema["required"] = required


def _property(field: WireField, sections: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = _resolved(schema_of(field.read) or schema_of(field.rule), sections)
    if field.default is attrs.NOTHING:
        return {**schema, "description": field.text}
    # Null is read as absent.
    schema = {"anyOf": [schema, {"type": "null"}], "description": field.text}
    if not isinstance(field.default, WireValue):
        schema["default"] = field.write(field.default)
    return schema


def _resolved(value: Any, sections: dict[str, Any]) -> Any:
    """Return a schema, or a part of one, in which each class is a reference to its definition."""
    if isinstance(value, type):
        _define(value, sections)
        return f"#/$defs/{value.__name__}"
    if isinstance(value, Mapping):
        return {key: _resolved(item, sections) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, sections) for item in value]
    return value
