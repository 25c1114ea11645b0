"""Refused values of Python, and several mistakes at once; `tests/cli/test_as_typed.py` has files."""

from typing import Any

import pytest
from support.config_errors import GOOD, ROUTE, errors

from hostrouting.config.sections import OWN_UNITS, HostRoutingConfig
from hostrouting.config.siblings import WatchConfig
from hostrouting.exceptions import ConfigMistake, InvalidConfigError


@pytest.mark.parametrize(
    "name",
    [*sorted(OWN_UNITS - {"hostrouting-watch.timer"}), "hostrouting-held@kubelet.service.service"],
)
def test_our_units_as_gates(name: str) -> None:
    """One of our units as a gate would wait for itself for ever."""
    problem = "it is installed by hostrouting and cannot wait for itself; name another unit"
    message = f"'{name}' is not the name of a .service unit that can be a gate: {problem}"
    assert errors({"gates": [name]}) == [("hostRouting.gates[0]", message)]


def test_each_repetition_names_the_first_of_its_kind() -> None:
    """Of three gates that are the same, the second and the third repeat the first."""
    assert errors({"gates": ["a.service", "b.service", "a.service", "a.service"]}) == [
        (
            f"hostRouting.gates[{index}]",
            "'a.service' repeats gates[0]; remove one of them",
        )
        for index in (2, 3)
    ]


def test_each_wrong_member_of_a_list_is_named() -> None:
    """Wrong members hide neither each other nor the repetitions after them."""
    gates = ["a.socket", "a.service", "b.socket", "a.service"]
    assert [path for path, _ in errors({"gates": gates})] == [
        "hostRouting.gates[0]",
        "hostRouting.gates[2]",
        "hostRouting.gates[3]",
    ]


@pytest.mark.parametrize(
    ("key", "found"),
    [(1, "the number 1"), (None, "null"), (b"staticRoutes", "a Python bytes"), (("a",), "a list")],
)
def test_keys_that_are_not_strings(key: object, found: str) -> None:
    """A Python mapping may have any key; hostRouting's are strings."""
    assert errors({key: {}, "gates": []}) == [
        ("hostRouting", f"expected strings as keys, found {found}")
    ]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "metric",
            10**5000,
            "whole number from 0 to 4294967295, found a number of more than 128 bits",
        ),
        ("metric", float("nan"), "whole number from 0 to 4294967295, found the number nan"),
        ("metric", object(), "whole number from 0 to 4294967295, found a Python object"),
        (
            "destination",
            "1" * 2000,
            f"network such as '172.16.0.0/16' or 'fd00::/64', found the string '{'1' * 80}'...",
        ),
    ],
    ids=["long", "nan", "object", "longer"],
)
def test_values_that_no_message_writes_out(field: str, value: object, message: str) -> None:
    """They are described, or shortened."""
    routes = [GOOD, {"destination": "172.16.0.0/16", field: value}]
    assert errors({"staticRoutes": {"enabled": True, "routes": routes}}) == [
        (f"{ROUTE}.{field}", f"expected a {message}")
    ]


def test_every_error_is_reported_at_once() -> None:
    """One run shows everything that is wrong: of each object its keys first, then its fields in
    their fixed order.
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
    assert str(caught.value) == (
        "7 errors in the config:\n"
        "  hostRouting.typo: is not a known key; known here are after, gates, probeSnat, routeOverlap, "
        "staleCni, staticRoutes, watch\n"
        "  hostRouting.staticRoutes.routes[3].dve: is not a known key; did you mean 'dev'?\n"
        "  hostRouting.staticRoutes.routes[3].destination: is required: the network that the route leads to, such as "
        "'172.16.0.0/16'\n"
        "  hostRouting.staticRoutes.routes[3].gateway: '10.224.0' is not an IPv4 address such as '10.224.0.1'\n"
        "  hostRouting.watch.interval: expected a duration from '1s' to '86400s', found the number 5\n"
        "  hostRouting.watch.enabled: expected true or false, found the number 1\n"
        "  hostRouting.gates[0]: 'x' is not the name of a .service unit that can be a gate: "
        "it does not end in '.service'"
    )


@pytest.mark.parametrize(
    "mapping", [{}, {"nodeName": "gpu-1"}, {"nodeName": "gpu-1", "hostRouting": None}]
)
def test_a_config_without_hostrouting_is_void_with_a_reason(mapping: dict[str, object]) -> None:
    """It configures nothing, and does not allow the removal of everything; an explicit empty one
    does.
    """
    config = HostRoutingConfig.from_mapping(mapping)
    assert config.given is None
    assert config.void == [
        ConfigMistake(
            "hostRouting",
            "is missing or null: is this the right config? "
            'to remove all that hostrouting installed, write {"hostRouting": {}} or use --allow-empty',
        )
    ]
    assert HostRoutingConfig.from_mapping({"hostRouting": {}}).void == []


@pytest.mark.parametrize(
    "interval", [0, 0.999, 86_401, float("nan"), float("inf"), -1, True, "60s", None]
)
def test_intervals_in_python_are_seconds(interval: Any) -> None:
    """Built directly, a WatchConfig takes numbers of seconds in range, and no wire form."""
    with pytest.raises(InvalidConfigError) as caught:
        WatchConfig(interval=interval)
    assert caught.value.errors[0].path == "interval"
    assert caught.value.errors[0].message.startswith(
        "expected a number of seconds from 1 to 86400, found "
    )


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("to", "destination"),
        ("dst", "destination"),
        ("via", "gateway"),
        ("gw", "gateway"),
        ("interface", "dev"),
        ("IFACE", "dev"),
    ],
)
def test_a_word_of_another_tool_has_its_key(word: str, key: str) -> None:
    """ip, route and netplan have other words for the same; elsewhere they stand for nothing."""
    route = {"destination": "172.16.8.0/22", word: "x"}
    document = {"staticRoutes": {"enabled": True, "routes": [route]}, "watch": {word: "x"}}
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_mapping({"hostRouting": document})
    [of_route, of_watch] = caught.value.errors
    assert str(of_route) == (
        f"hostRouting.staticRoutes.routes[0].{word}: is not a known key; did you mean {key!r}?"
    )
    assert f"did you mean {key!r}" not in of_watch.message
