"""The errors of a refused config, and those of its JSON Schema, which a validator reads
without the rules; `tests/cli/configs.txt` has their messages.
"""

import json
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.answers import SCHEMAS

from hostrouting import HostRoutingConfig
from hostrouting.exceptions import ConfigMistake, InvalidConfigError


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


def errors(mapping: Any) -> list[ConfigMistake]:
    """Return the errors of a config that is refused."""
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_mapping(mapping)
    return caught.value.errors
