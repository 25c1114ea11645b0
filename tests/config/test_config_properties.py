"""Properties of every config and of every input, searched by Hypothesis."""

import copy
import fnmatch
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.config_errors import problems
from support.config_json import FULL
from support.processes import ended

from hostrouting.config import rules
from hostrouting.config.sections import OWN_UNITS, HostRoutingConfig
from hostrouting.exceptions import InvalidConfigError
from hostrouting.host import IPV4, IPV6
from hostrouting.testing.strategies import (
    addresses,
    cidrs,
    configs,
    destinations,
    device_names,
    device_patterns,
    gate_names,
    gateways,
    static_routes,
)


def names_in(value: Any) -> set[str]:
    """Return every key of a document."""
    if isinstance(value, list):
        return {name for item in value for name in names_in(item)}
    if isinstance(value, dict):
        return {name for key, item in value.items() for name in (key, *names_in(item))}
    return set()


KEYS = st.sampled_from(sorted({"hostRouting", *names_in(FULL)}))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(
        [
            "",
            "10.0.0.0/8",
            "10.0.0.1",
            "eth0",
            "STRICT",
            "azure",
            "off",
            "60s",
            "a.service",
            "fe80::1",
            "/x",
            "\ud800",
        ]
    )
)
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(), inner, max_size=5)
    ),
    max_leaves=25,
)


def places(value: Any, path: str = "") -> Iterator[tuple[Any, Any, str]]:
    steps: list[tuple[Any, str]] = (
        [(key, f"{path}.{key}") for key in value]
        if isinstance(value, dict)
        else [(index, f"{path}[{index}]") for index in range(len(value))]
    )
    for key, below in steps:
        yield value, key, below
        if isinstance(value[key], dict | list):
            yield from places(value[key], below)


class Hostile:
    """A Python object that raises from repr() and bool()."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")


def _is_config_or_refused(read: Any, document: Any) -> None:
    refusal = None
    config = None
    try:
        config = read(document)
    except InvalidConfigError as error:
        refusal = error
    if refusal is None:
        assert isinstance(config, HostRoutingConfig)
        assert HostRoutingConfig.from_mapping(config.to_mapping()) == config
        # The schema is no stricter than the rules.
        assert isinstance(document, str | bytes) or config.given is None or problems(document) == []
    else:
        assert refusal.errors
        assert all(message for _, message in refusal.errors)
        beside = "staticRoutes", "routeOverlap", "probeSnat", "staleCni"
        assert all(
            path.startswith("hostRouting") or path in {"", *beside} for path, _ in refusal.errors
        )
        str(refusal).encode()


@given(configs())
def test_a_config_survives_the_way_to_json_and_back(config: HostRoutingConfig) -> None:
    """The mapping of a config is JSON, reads back as the same config, bare or under its key, and is
    then written the same again.
    """
    mapping = config.to_mapping()
    text = json.dumps(mapping)
    assert json.loads(text) == mapping
    assert problems({"hostRouting": mapping}) == []
    assert HostRoutingConfig.from_mapping(mapping) == config
    assert HostRoutingConfig.from_json(text) == config
    assert (
        HostRoutingConfig.from_json(json.dumps({"hostRouting": mapping, "other": 1}).encode())
        == config
    )
    assert json.dumps(HostRoutingConfig.from_mapping(mapping).to_mapping()) == text


@given(JSON_VALUES | st.dictionaries(KEYS, JSON_VALUES))
def test_any_json_value_is_a_config_or_refused(value: Any) -> None:
    """from_mapping raises InvalidConfigError and nothing else, at paths that start with
    hostRouting.
    """
    _is_config_or_refused(HostRoutingConfig.from_mapping, value)
    _is_config_or_refused(HostRoutingConfig.from_mapping, {"hostRouting": value})


@given(st.text() | st.binary() | JSON_VALUES.map(json.dumps))
def test_any_text_is_a_config_or_refused(document: str | bytes) -> None:
    """from_json raises InvalidConfigError and nothing else, whatever the bytes."""
    _is_config_or_refused(HostRoutingConfig.from_json, document)


@given(configs(), st.data())
def test_a_config_with_one_value_changed_is_a_config_or_refused(
    config: HostRoutingConfig, data: st.DataObject
) -> None:
    """A valid config with one value changed is a config or refused, and an error about a float has
    the path of the change.
    """
    mapping = copy.deepcopy(config.to_mapping())
    found = list(places(mapping))
    assume(found)
    container, key, path = data.draw(st.sampled_from(found), label="place")
    value: Any = data.draw(SCALARS | st.just([]) | st.just({}), label="value")
    container[key] = value
    _is_config_or_refused(HostRoutingConfig.from_mapping, mapping)
    if isinstance(value, float):  # no field takes one
        with pytest.raises(InvalidConfigError) as caught:
            HostRoutingConfig.from_mapping(mapping)
        assert f"hostRouting{path}" in [error.path for error in caught.value.errors]


@given(configs(), KEYS)
def test_any_field_may_hold_a_hostile_object(config: HostRoutingConfig, key: str) -> None:
    """A Python object that raises from repr() and bool() is refused like any other wrong type."""
    mapping = copy.deepcopy(config.to_mapping())
    for container in mapping, *(part for part in mapping.values() if isinstance(part, dict)):
        changed = container | {key: Hostile()}
        _is_config_or_refused(HostRoutingConfig.from_mapping, changed)
        _is_config_or_refused(
            HostRoutingConfig.from_mapping, {"watch": changed, "gates": [Hostile()]}
        )


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        (cidrs(IPV4), rules.ipv4_cidr),
        (addresses(IPV4).map("{}/32".format), rules.ipv4_cidr),
        (destinations(IPV6), rules.expected_cidr),
        (destinations(IPV6) | destinations(IPV4), rules.destination),
        (gateways(IPV6) | gateways(IPV4), rules.gateway),
        (device_names(), rules.device),
        (device_patterns(), rules.device_pattern),
        (gate_names(), rules.gate(OWN_UNITS)),
    ],
)
@given(data=st.data())
def test_strategies_draw_canonical_values(data: st.DataObject, values: Any, rule: Any) -> None:
    """Values of the strategies are valid, and normalising them changes nothing."""
    value = data.draw(values)
    assert rule(value) == value


@given(static_routes(IPV4) | static_routes(IPV6))
def test_a_route_reads_back_from_its_own_wire_form(route: Any) -> None:
    """A route reads back from its own wire form, in which a suggestion prints it for pasting."""
    assert type(route).from_mapping(json.loads(json.dumps(route.to_mapping()))) == route


@given(st.floats(1, 86_400) | st.integers(1, 86_400))
def test_intervals_survive_their_wire_form(interval: float) -> None:
    """A duration is kept to the nanosecond, so that writing and reading it changes nothing."""
    seconds = rules.seconds(1, 86_400)(interval)
    assert abs(seconds - interval) <= 1e-9
    assert rules.duration(1, 86_400)(rules.write_duration(seconds)) == seconds


@given(
    st.lists(
        st.tuples(device_names().filter(str.isascii), device_patterns()), min_size=20, max_size=40
    )
)
def test_bash_and_python_agree_on_patterns(pairs: list[tuple[str, str]]) -> None:
    """Every accepted pattern matches the same device names in bash, where the boot script uses it,
    as in fnmatch.
    """
    script = "while (($#)); do [[ $1 == $2 ]] && echo 1 || echo 0; shift 2; done"
    words = [word for pair in pairs for word in pair]
    result = ended("bash", "-c", script, "bash", *words, check=True, env={"LC_ALL": "C"})
    expected = [str(int(fnmatch.fnmatchcase(name, pattern))) for name, pattern in pairs]
    assert list(zip(pairs, result.stdout.split(), strict=True)) == list(
        zip(pairs, expected, strict=True)
    )
