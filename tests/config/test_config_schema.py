"""The JSON Schema of the config.

tests/config/test_config_properties.py shows that the schema accepts each config that the rules
accept; `support.config_errors` shows for each refused config of the tests whether the schema
refuses it.
"""

import re
from collections.abc import Iterator
from typing import Any

from support.config_errors import config_schema, problems
from support.config_json import FULL
from support.documents import blocks

from hostrouting.config.sections import HostRoutingConfig


def test_examples_are_valid() -> None:
    """The config of the manual, and one with every field, are valid by the schema, alone and as a
    part of an agent's config.
    """
    (document,) = blocks("docs/operators.md", language="json")
    for mapping in HostRoutingConfig.from_json(document).to_mapping(), FULL:
        assert problems(mapping) == []
        assert problems({"hostRouting": mapping, "cluster": {"name": "x"}}) == []


def test_a_config_that_would_remove_everything_by_mistake_is_refused() -> None:
    """The schema refuses a config that would remove everything by mistake, and accepts an empty
    object under the key.
    """
    for mapping in {}, {"nodeName": "gpu-1"}, {"hostRouting": None}:
        assert problems(mapping) != []
    assert problems({"hostRouting": {}}) == []


def alternatives(schema: Any) -> Iterator[Any]:
    """Yield a schema, and those of which one is enough, at any depth."""
    yield schema
    for each in schema.get("anyOf", ()):
        yield from alternatives(each)


def test_an_editor_can_offer_the_words_of_each_choice() -> None:
    """The schema lists the words of each choice, so that an editor can offer them."""
    sections = config_schema()["$defs"]
    words = {
        ("RouteOverlapConfig", "mode"): ["WARN", "STRICT"],
        ("RouteOverlapConfig", "fabric"): ["auto", "off"],
        ("ProbeSNATConfig", "detect"): ["imds", "address", "always"],
        ("StaleCNIConfig", "sweep"): ["report", "clean"],
        ("WatchConfig", "mode"): ["timer", "service"],
    }
    for (section, key), offered in words.items():
        found = sections[section]["properties"][key]
        assert {"enum": offered} in alternatives(found)


def test_every_field_has_a_rule_with_a_schema() -> None:
    """Each field has a rule in the schema: without one it would be open to all values."""
    for name, section in config_schema()["$defs"].items():
        for key, schema in section["properties"].items():
            assert schema.get("anyOf", [schema])[0], f"{name}.{key}"


def test_no_pattern_takes_long_for_a_long_string() -> None:
    """A pattern of the schema needs little time for a long string; a pattern whose time grows with
    the square of the length would need hours.
    """
    for pattern in sorted(set(patterns(config_schema()))):
        for part in "1", "1.", "1s", "a", "a-", ":", "/", "/.":
            assert re.search(pattern, part * 200_000 + "\0") is None, (pattern, part)


def patterns(schema: Any) -> Iterator[str]:
    """Yield the patterns of a schema, and those of its parts."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from patterns(part)
