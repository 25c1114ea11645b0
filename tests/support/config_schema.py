"""The JSON Schema of the config, as a validator that knows nothing of the rules reads it."""

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from hostrouting.config.schema import config_schema


@cache
def _validator() -> Draft202012Validator:
    schema = config_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def is_valid(document: Any) -> bool:
    """Return True if the schema allows a config file with this content."""
    return _validator().is_valid(document)


def problems(document: Any) -> list[str]:
    """Return the reasons why the schema refuses a document."""
    return [error.message for error in _validator().iter_errors(document)]
