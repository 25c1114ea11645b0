"""Refused values of Python, and several mistakes at once; `tests/cli/configs.txt` has wrong files
with their messages.
"""

from typing import Any

import pytest
from support.config_errors import GOOD, ROUTE, errors

from hostrouting.config.optional import WatchConfig
from hostrouting.config.sections import OWN_UNITS, HostRoutingConfig
from hostrouting.exceptions import InvalidConfigError


@pytest.mark.parametrize(
    "name",
    [*sorted(OWN_UNITS - {"hostrouting-watch.timer"}), "hostrouting-held@kubelet.service.service"],
)
def test_our_units_as_gates(name: str) -> None:
    """A unit of hostrouting is refused as a gate, since it would wait for itself for ever."""
    assert [error.path for error in errors({"gates": [name]})] == ["hostRouting.gates[0]"]


def test_each_repetition_names_the_first_of_its_kind() -> None:
    """Of three equal gates, the second and the third have an error that names the first."""
    assert [
        (error.path, "gates[0]" in error.message)
        for error in errors({"gates": ["a.service", "b.service", "a.service", "a.service"]})
    ] == [("hostRouting.gates[2]", True), ("hostRouting.gates[3]", True)]


def test_each_wrong_member_of_a_list_is_named() -> None:
    """Each wrong member of a list is an error, and so is a repetition after them."""
    gates = ["a.socket", "a.service", "b.socket", "a.service"]
    assert [error.path for error in errors({"gates": gates})] == [
        "hostRouting.gates[0]",
        "hostRouting.gates[2]",
        "hostRouting.gates[3]",
    ]


@pytest.mark.parametrize(
    ("key", "found"),
    [(1, "the number 1"), (None, "null"), (b"staticRoutes", "a Python bytes"), (("a",), "a list")],
)
def test_keys_that_are_not_strings(key: object, found: str) -> None:
    """A key that is not a string is refused with what was found."""
    [error] = errors({key: {}, "gates": []})
    assert str(error) == f"hostRouting: expected strings as keys, found {found}"


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("metric", 10**5000, "a number of more than 128 bits"),
        ("metric", float("nan"), "the number nan"),
        ("metric", object(), "a Python object"),
        ("destination", "1" * 2000, f"the string '{'1' * 80}'..."),
    ],
    ids=["long", "nan", "object", "longer"],
)
def test_values_that_no_message_writes_out(field: str, value: object, found: str) -> None:
    """A value that is too long for a message, or does not have a text, is described or shortened."""
    routes = [GOOD, {"destination": "172.16.0.0/16", field: value}]
    [error] = errors({"staticRoutes": {"enabled": True, "routes": routes}})
    assert error.path == f"{ROUTE}.{field}"
    assert error.message.endswith(f", found {found}")


def test_every_error_is_reported_at_once() -> None:
    """A wrong config is refused with all of its errors: of each object its keys first, then its
    fields in their fixed order.
    """
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_mapping(
            {
                "hostRouting": {
                    "gates": ["x"],
                    "watch": {"enabled": 1, "interval": 5},
                    "staticRoutes": {
                        "enabled": True,
                        "routes": [
                            GOOD,
                            GOOD | {"metric": 1},
                            GOOD | {"metric": 2},
                            {"gateway": "10.224.0", "dve": ""},
                        ],
                    },
                    "typo": {},
                }
            }
        )
    assert [error.path.removeprefix("hostRouting.") for error in caught.value.errors] == [
        "typo",
        "staticRoutes.routes[3].dve",
        "staticRoutes.routes[3].destination",
        "staticRoutes.routes[3].gateway",
        "watch.interval",
        "watch.enabled",
        "gates[0]",
    ]
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("7 ")
    assert lines == [f"  {error}" for error in caught.value.errors]


@pytest.mark.parametrize(
    "mapping", [{}, {"nodeName": "gpu-1"}, {"nodeName": "gpu-1", "hostRouting": None}]
)
def test_a_config_without_hostrouting_is_void_with_a_reason(mapping: dict[str, object]) -> None:
    """A config without hostRouting is void with a reason; an explicit empty one is not void."""
    config = HostRoutingConfig.from_mapping(mapping)
    assert config.given is None
    assert [mistake.path for mistake in config.void] == ["hostRouting"]
    assert HostRoutingConfig.from_mapping({"hostRouting": {}}).void == []


def test_a_config_of_settings_alone_names_the_reason_of_each_key() -> None:
    """A config that installs nothing has a reason for each of its keys."""
    config = HostRoutingConfig.from_mapping({"staticRoutes": {"enabled": True}, "gates": []})
    _, *reasons = map(str, config.void)
    assert reasons == [
        "hostRouting.staticRoutes: installs nothing: routes is empty",
        "hostRouting.gates: installs nothing",
    ]


@pytest.mark.parametrize(
    "interval", [0, 0.999, 86_401, float("nan"), float("inf"), -1, True, "60s", None]
)
def test_intervals_in_python_are_seconds(interval: Any) -> None:
    """A WatchConfig that is built directly refuses an interval that is not a number of seconds
    within the range, such as the wire form.
    """
    with pytest.raises(InvalidConfigError) as caught:
        WatchConfig(interval=interval)
    assert caught.value.errors[0].path == "interval"
    assert " seconds from 1 to 86400, found " in caught.value.errors[0].message


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("to", "destination"),
        ("dst", "destination"),
        ("via", "gateway"),
        ("gw", "gateway"),
        ("interface", "dev"),
        ("IFACE", "dev"),
        ("oif", "dev"),
    ],
)
def test_a_word_of_another_tool_has_its_key(word: str, key: str) -> None:
    """A word that ip, route or netplan use in a route is refused with the key that is meant, and in
    another section without one.
    """
    route = {"destination": "172.16.8.0/22", word: "x"}
    document = {"staticRoutes": {"enabled": True, "routes": [route]}, "watch": {word: "x"}}
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_mapping({"hostRouting": document})
    [of_route, of_watch] = caught.value.errors
    assert of_route.path == f"hostRouting.staticRoutes.routes[0].{word}"
    assert of_route.message.endswith(f" {key!r}?")
    assert repr(key) not in of_watch.message
