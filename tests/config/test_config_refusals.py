"""Refused configs: one case for each refusal, with its whole message and path."""

import re
from typing import Any, Final

import pytest
from support.config_errors import GOOD, ROUTE, errors, errors_of_route

from hostrouting.config import (
    OWN_UNITS,
    HostRoutingConfig,
    OverlapMode,
    StaleCNIConfig,
    StaticRoute,
    WatchConfig,
)
from hostrouting.exceptions import ConfigMistake, InvalidConfigError

_CLOUDS = "'azure', 'aws', 'aws-ipv6' or 'gcp'"
_UNDECIDED = "no route decides alone by which device packets leave for it; remove it"
_KEYS_OF_WATCH = "enabled, interval, keepForeignRoutes, mode, readings"


#: By the path, values and the message of each.
_REFUSED: Final[dict[str, list[tuple[object, str]]]] = {
    "staticRoutes": [([], "expected an object, found a list")],
    "staticRoutes.enabled": [(1, "expected true or false, found the number 1")],
    "staticRoutes.routes": [("10.0.0.0/8", "expected a list, found the string '10.0.0.0/8'")],
    "routeOverlap": [(3, "expected an object, found the number 3")],
    "routeOverlap.mode": [
        ("LOUD", "expected 'WARN' or 'STRICT', found the string 'LOUD'"),
        ("\u017ftrict", "expected 'WARN' or 'STRICT', found the string '\u017ftrict'"),
        (True, "expected 'WARN' or 'STRICT', found the boolean true"),
    ],
    "routeOverlap.expectedCidrs[0]": [
        ([None], "expected a CIDR such as '172.16.0.0/16' or 'fd00::/64', found null"),
        (["ff00::/8"], f"'ff00::/8' lies in ff00::/8, which is multicast; {_UNDECIDED}"),
    ],
    "routeOverlap.expectedCidrs[1]": [
        (
            ["10.0.0.0/8", "10.0.0.1"],
            "'10.0.0.1' lacks a prefix length; write '10.0.0.1/32' for one address",
        ),
        (
            ["fd00::/8", "fe80::1/64"],
            f"'fe80::1/64' lies in fe80::/10, the link-local addresses; {_UNDECIDED}",
        ),
        (
            ["172.16.0.0/16", "Azure"],
            "'Azure' is a cloud, not a CIDR; name it in expected as 'azure'",
        ),
    ],
    "routeOverlap.expected": [("azure", "expected a list, found the string 'azure'")],
    "routeOverlap.expected[1]": [
        (["aws", "Azur"], f"expected {_CLOUDS}, found the string 'Azur'"),
        (
            ["azure", "172.16.0.0/16"],
            f"expected {_CLOUDS}, found the string '172.16.0.0/16'; name addresses in expectedCidrs",
        ),
    ],
    "routeOverlap.expectedDevs": [("eth0", "expected a list, found the string 'eth0'")],
    "routeOverlap.expectedDevs[1]": [(["eth0", ""], "'' is not a device name: it is empty")],
    "routeOverlap.expectedDevs[0]": [
        ([0], "expected a device name such as 'eth0', found the number 0")
    ],
    "routeOverlap.fabric": [
        ("on", "expected 'auto', 'off' or a list of IPv4 CIDRs, found the string 'on'"),
        ({"cidrs": []}, "expected 'auto', 'off' or a list of IPv4 CIDRs, found an object"),
    ],
    "routeOverlap.fabric[0]": [
        (["fd00::/8"], "'fd00::/8' is not an IPv4 CIDR such as '172.16.0.0/16'")
    ],
    "watch.interval": [
        (60, "expected a duration from '1s' to '86400s', found the number 60"),
        ("60", "'60' is not a duration such as '60s' or '1m30s'"),
        (".s", "'.s' is not a duration such as '60s' or '1m30s'"),
        ("٨s", "'٨s' is not a duration such as '60s' or '1m30s'"),
        ("60s\n", "'60s\\n' is not a duration such as '60s' or '1m30s'"),
        ("999ms", "expected a duration from '1s' to '86400s', found the string '999ms'"),
        ("24h1ns", "expected a duration from '1s' to '86400s', found the string '24h1ns'"),
    ],
    "watch.mode": [("Tim", "expected 'timer' or 'service', found the string 'Tim'")],
    "watch.readings": [
        (0, "expected a whole number from 1 to 10, found the number 0"),
        (11, "expected a whole number from 1 to 10, found the number 11"),
    ],
    "watch.keepForeignRoutes": [("yes", "expected true or false, found the string 'yes'")],
    "staleCni.sweep": [(True, "expected 'report' or 'clean', found the boolean true")],
    "probeSnat.source": [
        (
            "2001:db8::1",
            "'2001:db8::1' is not a link-local IPv6 address such as 'fe80::1234:5678:9abc'",
        ),
        ("fe80::1%eth0", "'fe80::1%eth0' has a zone; name the device in 'dev' instead"),
        (
            "169.254.1.1",
            "'169.254.1.1' is not a link-local IPv6 address such as 'fe80::1234:5678:9abc'",
        ),
    ],
    "probeSnat.address": [
        ("fd00::1", "'fd00::1' is not a global unicast IPv6 address (2000::/3)"),
        ("2001::\x00", "'2001::\\x00' is not a global unicast IPv6 address (2000::/3)"),
    ],
    "probeSnat.detect": [
        ("magic", "expected 'imds', 'address' or 'always', found the string 'magic'")
    ],
    "staleCni.podCidrs[0]": [
        (["0.0.0.0/0"], "'0.0.0.0/0' covers every address; name the range that the pods have"),
        (["fd00::1/0"], "'fd00::1/0' covers every address; name the range that the pods have"),
    ],
    "staleCni.confirmations": [
        (0, "expected a whole number from 1 to 10, found the number 0"),
        (11, "expected a whole number from 1 to 10, found the number 11"),
    ],
    "staleCni.backupDir": [
        ("backup", "'backup' is not an absolute path; begin it with '/'"),
        ("/var/../etc", "'/var/../etc' has a '..' in it; write out the folder that is meant"),
        ("/a\nb", "'/a\\nb' has a character that cannot be printed; name a plain folder"),
        ("/\ud800", "'/\\ud800' has a character that cannot be printed; name a plain folder"),
    ],
    "staleCni.force": [(0, "expected an object, found the number 0")],
    "gates": [("kubelet.service", "expected a list, found the string 'kubelet.service'")],
    "gates[0]": [
        ([1], "expected the name of a .service unit such as 'kubelet.service', found the number 1")
    ],
    "gates[2]": [
        (
            ["a.service", "b.service", "a.service"],
            "'a.service' repeats gates[0]; remove one of them",
        )
    ],
}


def _nested(path: str, value: object) -> object:
    """Return objects in each other, the innermost with the value."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [(path, *case) for path, cases in _REFUSED.items() for case in cases],
)
def test_wrong_types_and_values_in_the_other_sections(
    path: str, value: object, message: str
) -> None:
    """Every field names the expected and the found value, at its own path; an index in the path is
    of a list's item.
    """
    assert errors(_nested(re.sub(r"\[\d+\]", "", path), value)) == [
        (f"hostRouting.{path}", message)
    ]


@pytest.mark.parametrize(
    ("route", "found"), [(None, "null"), ("10.0.0.0/8", "the string '10.0.0.0/8'")]
)
def test_routes_that_are_no_objects(route: object, found: str) -> None:
    """A list of networks is no list of routes."""
    assert errors({"staticRoutes": {"enabled": True, "routes": [route]}}) == [
        ("hostRouting.staticRoutes.routes[0]", f"expected an object, found {found}")
    ]


#: By the problem.
_NO_GATES: Final = {
    "it does not end in '.service'": ["", "kubelet", "a.socket", "a.service\n"],
    "'/' is not allowed in it": ["a/b.service", "../a.service"],
    "' ' is not allowed in it": ["a b.service"],
    "'é' is not allowed in it": ["é.service"],
    "it has 254 characters, and its drop-in folder leaves room for 253": ["x" * 246 + ".service"],
    "nothing stands before '@' or '.service'": [".service", "@.service", "@a.service"],
    "a leading '-' reads as an option": ["-a.service"],
    "systemd reads a name that ends in '-' as all units that begin so; name each of them": [
        "check-.service",
        "check-@.service",
    ],
}


@pytest.mark.parametrize(
    ("name", "problem"),
    [(name, problem) for problem, names in _NO_GATES.items() for name in names],
)
def test_gates_that_are_no_service_units(name: str, problem: str) -> None:
    """A gate is the name of a .service unit that a drop-in can be made for, and for it alone."""
    message = f"{name!r} is not the name of a .service unit that can be a gate: {problem}"
    assert errors({"gates": [name]}) == [("hostRouting.gates[0]", message)]


@pytest.mark.parametrize(
    "name",
    [*sorted(OWN_UNITS - {"hostrouting-watch.timer"}), "hostrouting-held@kubelet.service.service"],
)
def test_our_units_as_gates(name: str) -> None:
    """One of our units as a gate would wait for itself for ever."""
    message = f"'{name}' is installed by hostrouting and cannot wait for itself; name the unit that must wait"
    assert errors({"gates": [name]}) == [("hostRouting.gates[0]", message)]


#: By the problem.
_NO_PATTERNS: Final = {
    "it is empty": [""],
    "it has 65 characters, the limit is 64": ["x" * 65],
    "a leading '-' reads as an option": ["-x*"],
    "' ' is not allowed in it": ["a b"],
    "'/' is not allowed in it": ["a/*"],
    "'$' is not allowed in it": ["$x"],
    "'{' is not allowed in it": ["{a,b}"],
    "'(' is not allowed in it": ["@(a|b)"],
    "'\\\\' is not allowed in it": ["a\\*"],
    "'^' is not allowed in it": ["[^a]"],
    "'ü' is not allowed in it": ["ü*"],
    "'\\n' is not allowed in it": ["a\n"],
    "after a '[' it needs characters or rising ranges, and a ']', as in '[0-9a-f]'": [
        "ib[0",
        "ib[]",
        "ib[!]",
        "ib[9-0]",
        "ib[0-]",
        "ib[[0]]",
    ],
}


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [(pattern, problem) for problem, patterns in _NO_PATTERNS.items() for pattern in patterns],
)
def test_device_patterns_that_bash_and_python_would_read_differently(
    pattern: str, problem: str
) -> None:
    """A pattern has ASCII names and glob characters, with closed brackets."""
    message = f"{pattern!r} is not a pattern of device names: {problem}"
    assert errors({"routeOverlap": {"allowedDevs": [pattern]}}) == [
        ("hostRouting.routeOverlap.allowedDevs[0]", message)
    ]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("staticRoute", "staticRoutes"),
        ("STATICROUTES", "staticRoutes"),
        ("hostRoutin", "hostRouting"),
        ("wach", "watch"),
        ("staticRoutes.route", "routes"),
        ("routeOverlap.expectedCIDRs", "expectedCidrs"),
        ("routeOverlap.allowedDevices", "allowedDevs"),
        ("probeSnat.device", "dev"),
        ("probeSnat.adress", "address"),
        ("staleCni.pod_cidrs", "podCidrs"),
        ("staleCni.force.conflits", "conflist"),
        ("watch.intervall", "interval"),
    ],
)
def test_misspelled_keys(path: str, meant: str) -> None:
    """A misspelled key is refused at its path, with the key that was probably meant."""
    assert errors(_nested(path, {})) == [
        (f"hostRouting.{path}", f"is not a known key; did you mean {meant!r}?")
    ]


@pytest.mark.parametrize(
    ("mapping", "path", "known"),
    [
        (
            {"cluster": None, "gates": []},
            "cluster",
            "gates, hostRouting, probeSnat, routeOverlap, staleCni, staticRoutes, watch",
        ),
        (
            {"hostRouting": {"hostRouting": {}}, "gates": 7},
            "hostRouting",
            "gates, probeSnat, routeOverlap, staleCni, staticRoutes, watch",
        ),
        ({"watch": {"a b\n": 1}}, r"watch['a b\n']", _KEYS_OF_WATCH),
        ({"watch": {"": 1}}, "watch['']", _KEYS_OF_WATCH),
        ({"watch": {"\ud800": 1}}, r"watch['\ud800']", _KEYS_OF_WATCH),
        ({"watch": {"x" * 9999: 1}}, f"watch['{'x' * 80}'...]", _KEYS_OF_WATCH),
    ],
)
def test_unknown_keys(mapping: dict[str, Any], path: str, known: str) -> None:
    """An unknown key is refused at its path, with those that are known there."""
    assert errors(mapping) == [
        (f"hostRouting.{path}", f"is not a known key; known here are {known}")
    ]


def test_unknown_keys_of_a_route() -> None:
    """`gatewya` must not install a route without gateway."""
    assert errors_of_route(gatewya="10.0.0.1") == [
        (f"{ROUTE}.gatewya", "is not a known key; did you mean 'gateway'?")
    ]


@pytest.mark.parametrize(
    ("key", "found"),
    [(1, "the number 1"), (None, "null"), (b"staticRoutes", "a Python bytes"), (("a",), "a list")],
)
def test_keys_that_are_no_strings(key: object, found: str) -> None:
    """A Python mapping may have any key; ours are strings."""
    assert errors({key: {}, "gates": []}) == [
        ("hostRouting", f"expected strings as keys, found {found}")
    ]


@pytest.mark.parametrize(
    ("document", "found"),
    [
        (None, "null"),
        ([], "a list"),
        ("hostRouting", "the string 'hostRouting'"),
        (7, "the number 7"),
        ({1}, "a Python set"),
    ],
)
def test_configs_that_are_no_objects(document: object, found: str) -> None:
    """A config is an object, at the top and under its key."""
    assert errors(document) == [("hostRouting", f"expected an object, found {found}")]
    if document is not None:
        assert errors({"hostRouting": document}) == [
            ("hostRouting", f"expected an object, found {found}")
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
        "  hostRouting.typo: is not a known key; known here are gates, probeSnat, routeOverlap, staleCni, "
        "staticRoutes, watch\n"
        "  hostRouting.staticRoutes.routes[3].dve: is not a known key; did you mean 'dev'?\n"
        "  hostRouting.staticRoutes.routes[3].destination: is required: the network that the route leads to, such as "
        "'172.16.0.0/16'\n"
        "  hostRouting.staticRoutes.routes[3].gateway: '10.224.0' is not an IPv4 address\n"
        "  hostRouting.watch.interval: expected a duration from '1s' to '86400s', found the number 5\n"
        "  hostRouting.watch.enabled: expected true or false, found the number 1\n"
        "  hostRouting.gates[0]: 'x' is not the name of a .service unit that can be a gate: "
        "it does not end in '.service'"
    )


@pytest.mark.parametrize(
    "mapping", [{}, {"nodeName": "gpu-1"}, {"nodeName": "gpu-1", "hostRouting": None}]
)
def test_a_config_without_ours_says_why_it_is_void(mapping: dict[str, object]) -> None:
    """It wants nothing, and does not say that everything may go; an explicit empty one does."""
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


def test_required_fields_are_required_of_each_value() -> None:
    """Values read on their own report paths from themselves."""
    with pytest.raises(InvalidConfigError) as caught:
        StaticRoute.from_mapping({})
    assert str(caught.value) == (
        "destination: is required: the network that the route leads to, such as '172.16.0.0/16'"
    )
    with pytest.raises(InvalidConfigError) as caught:
        StaleCNIConfig(enabled=True)
    assert (
        str(caught.value)
        == "podCidrs: is required when enabled: the range that the removed CNI gave to pods"
    )
    assert OverlapMode("WARN") is OverlapMode.WARN
