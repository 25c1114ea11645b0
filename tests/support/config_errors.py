"""The errors of a refused config, as paths and messages, and those of its JSON Schema, which a
validator reads without the rules.
"""

import json
import re
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.answers import SCHEMAS

from hostrouting import HostRoutingConfig
from hostrouting.exceptions import InvalidConfigError


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(config_schema())


def config_schema() -> Any:
    """Return the JSON Schema of the config, docs/schemas/config.json."""
    return json.loads((SCHEMAS / "config.json").read_text())


def is_valid(document: Any) -> bool:
    """Return True if the schema allows a config file with this content."""
    return _validator().is_valid(document)


def problems(document: Any) -> list[str]:
    """Return the reasons why the schema refuses a document."""
    return [error.message for error in _validator().iter_errors(document)]


GOOD = {"destination": "10.0.0.0/8", "gateway": "10.224.0.1"}
ROUTE = "hostRouting.staticRoutes.routes[1]"
#: The refusals that the JSON Schema cannot express: conditions between fields, and arithmetic with
#: addresses.
_BEYOND_A_SCHEMA = re.compile(
    "host bits|lies in|is the broadcast address|repeats|contradicts|is IPv4, and|is not an IPv6 address"
    "|is not true, but|required when enabled"
    "|would wait for itself|counts only if|is installed by|number 1.0|given more than once|expected a duration from|is not a link-local"
    "|must be inside|is not a global|cannot be printed|after a '\\['|takes a byte|is missing or null"
    # For Python, unlike ECMAScript, $ matches before a newline at the end.
    r"|^'.*\\n' "
)


def is_beyond_a_schema(message: str) -> bool:
    return _BEYOND_A_SCHEMA.search(message) is not None


def errors(mapping: Any) -> list[tuple[str, str]]:
    """Return the errors of a config that is refused, also by the JSON Schema as far as that can
    express the rule.
    """
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_mapping(mapping)
    found = [(error.path, error.message) for error in caught.value.errors]
    if _is_json(mapping) and not all(is_beyond_a_schema(message) for _, message in found):
        assert not is_valid(mapping), found
    return found


def _is_json(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False
