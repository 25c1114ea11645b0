"""Refused configs: one case for each refusal, with its whole message and path."""

from __future__ import annotations

from typing import Any

import pytest

from hostrouting.config import OWN_UNITS, HostRoutingConfig, OverlapMode, StaleCNIConfig, StaticRoute, WatchConfig
from hostrouting.exceptions import ConfigError, InvalidConfigError

GOOD = {"destination": "10.0.0.0/8", "gateway": "10.224.0.1"}
ROUTE = "hostRouting.staticRoutes.routes[1]"


def _errors(mapping: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_mapping(mapping)
    return [(error.path, error.message) for error in caught.value.errors]


def _errors_of_route(**fields: object) -> list[tuple[str, str]]:
    route = {"destination": "172.16.0.0/16", **fields}
    return _errors({"staticRoutes": {"enabled": True, "routes": [GOOD, route]}})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "is required: the network that the route leads to, such as '172.16.0.0/16'"),
        ("", "'' is not an IPv4 CIDR such as '172.16.0.0/16'"),
        ("not-a-cidr", "'not-a-cidr' is not an IPv4 CIDR such as '172.16.0.0/16'"),
        ("2001:db8::/32", "'2001:db8::/32' is not an IPv4 CIDR such as '172.16.0.0/16'"),
        ("10.0.0.1", "'10.0.0.1' has no prefix length; write it as '10.0.0.1/32' if one address is meant"),
        ("10.0.0.0/255.0.0.0", "'10.0.0.0/255.0.0.0' has no prefix length from 0 to 32 after the slash"),
        ("10.0.0.0/33", "'10.0.0.0/33' has no prefix length from 0 to 32 after the slash"),
        ("10.0.0.0/08", "'10.0.0.0/08' has no prefix length from 0 to 32 after the slash"),
        ("10.0.0.0/٨", "'10.0.0.0/٨' has no prefix length from 0 to 32 after the slash"),
        ("010.0.0.0/8", "'010.0.0.0/8' is not an IPv4 CIDR such as '172.16.0.0/16'"),
        ("1٨.0.0.0/8", "'1٨.0.0.0/8' is not an IPv4 CIDR such as '172.16.0.0/16'"),
        (" 10.0.0.0/8", "' 10.0.0.0/8' is not an IPv4 CIDR such as '172.16.0.0/16'"),
        ("10.0.0.0/8\n", "'10.0.0.0/8\\n' has no prefix length from 0 to 32 after the slash"),
        ("\ud800/8", "'\\ud800/8' is not an IPv4 CIDR such as '172.16.0.0/16'"),
        ("172.16.1.5/24", "'172.16.1.5/24' has host bits; the network is '172.16.1.0/24'"),
        (
            "0.0.0.0/0",
            "'0.0.0.0/0' is the default route, which is not ours to set; name the networks that need a route",
        ),
        ("0.1.0.0/16", "'0.1.0.0/16' lies in 0.0.0.0/8, which means 'this network'; no route leads there"),
        ("127.0.0.0/8", "'127.0.0.0/8' lies in 127.0.0.0/8, the node's own loopback; no route leads there"),
        ("239.1.2.0/24", "'239.1.2.0/24' lies in 224.0.0.0/4, which is multicast; no route leads there"),
        ("255.255.255.255/32", "'255.255.255.255/32' is the broadcast address; no route leads there"),
        (8, "expected an IPv4 network such as '172.16.0.0/16', found the number 8"),
        (["10.0.0.0/8"], "expected an IPv4 network such as '172.16.0.0/16', found a list"),
        ("1" * 2000, f"expected an IPv4 network such as '172.16.0.0/16', found the string '{'1' * 80}'..."),
    ],
)
def test_destinations_that_are_no_networks_to_route_to(value: object, message: str) -> None:
    """A destination is a canonical IPv4 network that packets can be routed to, and not the default route."""
    assert _errors_of_route(destination=value) == [(f"{ROUTE}.destination", message)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("not-an-ip", "'not-an-ip' is not an IPv4 address"),
        ("2001:db8::1", "'2001:db8::1' is not an IPv4 address"),
        ("10.0.0.01", "'10.0.0.01' is not an IPv4 address"),
        ("10.0.0.٢", "'10.0.0.٢' is not an IPv4 address"),
        ("10.0.0.1 ", "'10.0.0.1 ' is not an IPv4 address"),
        ("10.0.0.1/32", "'10.0.0.1/32' is not an IPv4 address"),
        ("0.0.0.9", "'0.0.0.9' lies in 0.0.0.0/8, which means 'this network'; a gateway is one host's own address"),
        ("127.0.0.1", "'127.0.0.1' lies in 127.0.0.0/8, the node's own loopback; a gateway is one host's own address"),
        ("224.0.0.1", "'224.0.0.1' lies in 224.0.0.0/4, which is multicast; a gateway is one host's own address"),
        ("255.255.255.255", "'255.255.255.255' is the broadcast address; a gateway is one host's own address"),
        (False, "expected an IPv4 address such as '10.224.0.1', found the boolean false"),
        ({}, "expected an IPv4 address such as '10.224.0.1', found an object"),
    ],
)
def test_gateways_that_are_no_hosts(value: object, message: str) -> None:
    """A gateway is the canonical text of one unicast IPv4 address."""
    assert _errors_of_route(gateway=value) == [(f"{ROUTE}.gateway", message)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("eth0; rm -rf /", "'eth0; rm -rf /' is not a device name: ';' is not allowed in it"),
        ("toolong123456789a", "'toolong123456789a' is not a device name: it has 17 bytes, the kernel allows 15"),
        ("..", "'..' is not a device name: the kernel refuses it"),
        (0, "expected a device name such as 'eth0', found the number 0"),
    ],
)
def test_devices_that_are_none(value: object, message: str) -> None:
    """A device name is refused with the reason; the test of check_device_name has all reasons."""
    assert _errors_of_route(dev=value) == [(f"{ROUTE}.dev", message)]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (-1, "the number -1"),
        (1 << 32, "the number 4294967296"),
        pytest.param(10**5000, "a number of more than 128 bits", id="longer than Python prints"),
        (True, "the boolean true"),
        ("24", "the string '24'"),
        (1.0, "the number 1.0"),
        (float("nan"), "the number nan"),
        ([], "a list"),
        (object(), "a Python object"),
    ],
)
def test_metrics_that_are_no_32_bit_numbers(value: object, found: str) -> None:
    """A metric is an integer from 0 to 2^32-1; text and floats are none."""
    message = f"expected a whole number from 0 to 4294967295, found {found}"
    assert _errors_of_route(metric=value) == [(f"{ROUTE}.metric", message)]


def test_routes_that_repeat_each_other() -> None:
    """An exact duplicate is refused, naming both places; an absent metric is metric 0."""
    routes = [GOOD, {"destination": "10.1.0.0/16"}, {**GOOD, "metric": 0, "dev": ""}]
    assert _errors({"staticRoutes": {"enabled": True, "routes": routes}}) == [
        (
            "hostRouting.staticRoutes.routes[2]",
            "'10.0.0.0/8 via 10.224.0.1' repeats routes[0]; remove one of them",
        )
    ]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"gateway": "10.224.0.2"}, "10.0.0.0/8 via 10.224.0.2"),
        ({"dev": "eth1"}, "10.0.0.0/8 via 10.224.0.1 dev eth1"),
        ({"gateway": None}, "10.0.0.0/8"),
    ],
)
def test_routes_that_contradict_each_other(other: dict[str, Any], text: str) -> None:
    """One destination under one metric cannot go two ways; both places are named, other mistakes notwithstanding."""
    routes = [GOOD, {"destination": "nonsense"}, {**GOOD, **other}]
    assert _errors({"staticRoutes": {"enabled": True, "routes": routes}}) == [
        ("hostRouting.staticRoutes.routes[1].destination", "'nonsense' is not an IPv4 CIDR such as '172.16.0.0/16'"),
        (
            "hostRouting.staticRoutes.routes[2]",
            (
                f"'{text}' contradicts routes[0] '10.0.0.0/8 via 10.224.0.1': one destination and metric can go one "
                "way only; remove one of them or give it another metric"
            ),
        ),
    ]


@pytest.mark.parametrize("enabled", [{}, {"enabled": None}, {"enabled": False}])
def test_routes_without_opt_in(enabled: dict[str, Any]) -> None:
    """Routes without `enabled` are a mistake, as upstream says; other errors are reported with it."""
    assert _errors({"staticRoutes": {**enabled, "routes": [GOOD]}}) == [
        (
            "hostRouting.staticRoutes.enabled",
            "is not true, but 1 route is given; set it to true to install them, or remove them",
        )
    ]
    assert _errors({"staticRoutes": {**enabled, "routes": [GOOD, {**GOOD, "metric": -1}]}}) == [
        (
            "hostRouting.staticRoutes.routes[1].metric",
            "expected a whole number from 0 to 4294967295, found the number -1",
        ),
        (
            "hostRouting.staticRoutes.enabled",
            "is not true, but 2 routes are given; set it to true to install them, or remove them",
        ),
    ]


@pytest.mark.parametrize(
    ("mapping", "path", "message"),
    [
        ({"staticRoutes": []}, "staticRoutes", "expected an object, found a list"),
        (
            {"staticRoutes": {"enabled": "yes"}},
            "staticRoutes.enabled",
            "expected true or false, found the string 'yes'",
        ),
        ({"staticRoutes": {"enabled": 1}}, "staticRoutes.enabled", "expected true or false, found the number 1"),
        ({"staticRoutes": {"routes": {}}}, "staticRoutes.routes", "expected a list, found an object"),
        (
            {"staticRoutes": {"routes": "10.0.0.0/8"}},
            "staticRoutes.routes",
            "expected a list, found the string '10.0.0.0/8'",
        ),
        (
            {"staticRoutes": {"enabled": True, "routes": [None]}},
            "staticRoutes.routes[0]",
            "expected an object, found null",
        ),
        (
            {"staticRoutes": {"enabled": True, "routes": ["10.0.0.0/8"]}},
            "staticRoutes.routes[0]",
            "expected an object, found the string '10.0.0.0/8'",
        ),
        ({"routeOverlap": 3}, "routeOverlap", "expected an object, found the number 3"),
        (
            {"routeOverlap": {"mode": "LOUD"}},
            "routeOverlap.mode",
            "expected 'WARN' or 'STRICT', found the string 'LOUD'",
        ),
        (
            {"routeOverlap": {"mode": "\u017ftrict"}},
            "routeOverlap.mode",
            "expected 'WARN' or 'STRICT', found the string '\u017ftrict'",
        ),
        (
            {"routeOverlap": {"mode": " WARN"}},
            "routeOverlap.mode",
            "expected 'WARN' or 'STRICT', found the string ' WARN'",
        ),
        ({"routeOverlap": {"mode": True}}, "routeOverlap.mode", "expected 'WARN' or 'STRICT', found the boolean true"),
        (
            {"routeOverlap": {"expectedCidrs": "10.0.0.0/8"}},
            "routeOverlap.expectedCidrs",
            "expected a list, found the string '10.0.0.0/8'",
        ),
        (
            {"routeOverlap": {"expectedCidrs": [None]}},
            "routeOverlap.expectedCidrs[0]",
            "expected an IPv4 CIDR such as '172.16.0.0/16', found null",
        ),
        (
            {"routeOverlap": {"expectedCidrs": ["10.0.0.0/8", "10.0.0.1"]}},
            "routeOverlap.expectedCidrs[1]",
            "'10.0.0.1' has no prefix length; write it as '10.0.0.1/32' if one address is meant",
        ),
        (
            {"routeOverlap": {"expectedCidrs": ["10.0.0.0/255.0.0.0"]}},
            "routeOverlap.expectedCidrs[0]",
            "'10.0.0.0/255.0.0.0' has no prefix length from 0 to 32 after the slash",
        ),
        (
            {"routeOverlap": {"expectedCidrs": ["fd00::/8"]}},
            "routeOverlap.expectedCidrs[0]",
            "'fd00::/8' is not an IPv4 CIDR such as '172.16.0.0/16'",
        ),
        (
            {"watch": {"interval": 60}},
            "watch.interval",
            "expected a duration from '1s' to '86400s', found the number 60",
        ),
        ({"watch": {"interval": "60"}}, "watch.interval", "'60' is not a duration such as '60s' or '1m30s'"),
        ({"watch": {"interval": ""}}, "watch.interval", "'' is not a duration such as '60s' or '1m30s'"),
        ({"watch": {"interval": "-60s"}}, "watch.interval", "'-60s' is not a duration such as '60s' or '1m30s'"),
        ({"watch": {"interval": ".s"}}, "watch.interval", "'.s' is not a duration such as '60s' or '1m30s'"),
        ({"watch": {"interval": "٨s"}}, "watch.interval", "'٨s' is not a duration such as '60s' or '1m30s'"),
        ({"watch": {"interval": "60s\n"}}, "watch.interval", "'60s\\n' is not a duration such as '60s' or '1m30s'"),
        (
            {"watch": {"interval": "999ms"}},
            "watch.interval",
            "expected a duration from '1s' to '86400s', found the string '999ms'",
        ),
        (
            {"watch": {"interval": "24h1ns"}},
            "watch.interval",
            "expected a duration from '1s' to '86400s', found the string '24h1ns'",
        ),
        (
            {"probeSnat": {"source": "2001:db8::1"}},
            "probeSnat.source",
            "'2001:db8::1' is not a link-local IPv6 address such as 'fe80::1234:5678:9abc'",
        ),
        (
            {"probeSnat": {"source": "fe80::1%eth0"}},
            "probeSnat.source",
            "'fe80::1%eth0' has a zone; name the device in 'dev' instead",
        ),
        (
            {"probeSnat": {"source": "169.254.1.1"}},
            "probeSnat.source",
            "'169.254.1.1' is not a link-local IPv6 address such as 'fe80::1234:5678:9abc'",
        ),
        (
            {"probeSnat": {"address": "fd00::1"}},
            "probeSnat.address",
            "'fd00::1' is not a global unicast IPv6 address (2000::/3)",
        ),
        (
            {"probeSnat": {"address": "2001::\x00"}},
            "probeSnat.address",
            "'2001::\\x00' is not a global unicast IPv6 address (2000::/3)",
        ),
        (
            {"probeSnat": {"detect": "magic"}},
            "probeSnat.detect",
            "expected 'imds', 'address' or 'always', found the string 'magic'",
        ),
        (
            {"probeSnat": {"dev": "a b"}},
            "probeSnat.dev",
            "'a b' is not a device name: white space is not allowed in it",
        ),
        (
            {"staleCni": {"enabled": True}},
            "staleCni.podCidrs",
            "is required when enabled: the range that the removed CNI gave to pods",
        ),
        (
            {"staleCni": {"podCidrs": ["0.0.0.0/0"]}},
            "staleCni.podCidrs[0]",
            "'0.0.0.0/0' covers every address; name the range that the pods have",
        ),
        (
            {"staleCni": {"podCidrs": ["fd00::1/0"]}},
            "staleCni.podCidrs[0]",
            "'fd00::1/0' covers every address; name the range that the pods have",
        ),
        (
            {"staleCni": {"podCidrs": ["fd00::1"]}},
            "staleCni.podCidrs[0]",
            "'fd00::1' has no prefix length; write it as 'fd00::1/128' if one address is meant",
        ),
        (
            {"staleCni": {"podCidrs": ["fd00::/129"]}},
            "staleCni.podCidrs[0]",
            "'fd00::/129' has no prefix length from 0 to 128 after the slash",
        ),
        (
            {"staleCni": {"podCidrs": ["fd00::%1/64"]}},
            "staleCni.podCidrs[0]",
            "'fd00::%1/64' is not an IPv6 CIDR such as 'fd00::/64'",
        ),
        (
            {"staleCni": {"podCidrs": ["10.0.0.1"]}},
            "staleCni.podCidrs[0]",
            "'10.0.0.1' has no prefix length; write it as '10.0.0.1/32' if one address is meant",
        ),
        ({"staleCni": {"bridge": ""}}, "staleCni.bridge", "'' is not a device name: it is empty"),
        (
            {"staleCni": {"force": True}},
            "staleCni.force",
            (
                'expected two switches, found the boolean true; write {"conflist": true, "lock": true}, or only the '
                "one you need"
            ),
        ),
        (
            {"staleCni": {"force": {"conflits": True}}},
            "staleCni.force.conflits",
            "is not a known key; did you mean 'conflist'?",
        ),
        ({"staleCni": {"force": {"lock": 1}}}, "staleCni.force.lock", "expected true or false, found the number 1"),
        (
            {"staleCni": {"confirmations": 0}},
            "staleCni.confirmations",
            "expected a whole number from 1 to 10, found the number 0",
        ),
        (
            {"staleCni": {"confirmations": 11}},
            "staleCni.confirmations",
            "expected a whole number from 1 to 10, found the number 11",
        ),
        (
            {"staleCni": {"backupDir": "backup"}},
            "staleCni.backupDir",
            "'backup' is not an absolute path; begin it with '/'",
        ),
        (
            {"staleCni": {"backupDir": "/var/../etc"}},
            "staleCni.backupDir",
            "'/var/../etc' has a '..' in it; write out the folder that is meant",
        ),
        (
            {"staleCni": {"backupDir": "/a\nb"}},
            "staleCni.backupDir",
            "'/a\\nb' has a character in it that cannot be printed; name a plain folder",
        ),
        (
            {"staleCni": {"backupDir": "/\ud800"}},
            "staleCni.backupDir",
            "'/\\ud800' has a character in it that cannot be printed; name a plain folder",
        ),
        ({"staleCni": {"force": 0}}, "staleCni.force", "expected an object, found the number 0"),
        ({"gates": "kubelet.service"}, "gates", "expected a list, found the string 'kubelet.service'"),
        (
            {"gates": [1]},
            "gates[0]",
            "expected the name of a .service unit such as 'kubelet.service', found the number 1",
        ),
        (
            {"gates": ["a.service", "b.service", "a.service"]},
            "gates[2]",
            "'a.service' repeats gates[0]; remove one of them",
        ),
    ],
)
def test_wrong_types_and_values_in_the_other_sections(mapping: dict[str, Any], path: str, message: str) -> None:
    """Every field names the expected and the found value, at its own path."""
    assert _errors(mapping) == [(f"hostRouting.{path}", message)]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "it does not end in '.service'"),
        ("kubelet", "it does not end in '.service'"),
        ("a.socket", "it does not end in '.service'"),
        ("a.service\n", "it does not end in '.service'"),
        ("a/b.service", "'/' is not allowed in it"),
        ("a b.service", "' ' is not allowed in it"),
        ("é.service", "'é' is not allowed in it"),
        ("../a.service", "'/' is not allowed in it"),
        ("x" * 246 + ".service", "it has 254 characters, and its drop-in folder leaves room for 253"),
        (".service", "nothing stands before '@' or '.service'"),
        ("@.service", "nothing stands before '@' or '.service'"),
        ("@a.service", "nothing stands before '@' or '.service'"),
        ("-a.service", "a leading '-' reads as an option"),
        ("check-.service", "systemd reads a name that ends in '-' as all units that begin so; name each of them"),
        ("check-@.service", "systemd reads a name that ends in '-' as all units that begin so; name each of them"),
    ],
)
def test_gates_that_are_no_service_units(name: str, problem: str) -> None:
    """A gate is the name of a .service unit that a drop-in can be made for, and for it alone."""
    message = f"{name!r} is not the name of a .service unit that can be a gate: {problem}"
    assert _errors({"gates": [name]}) == [("hostRouting.gates[0]", message)]


@pytest.mark.parametrize("name", [*sorted(OWN_UNITS), "hostrouting-held@kubelet.service.service"])
def test_our_units_as_gates(name: str) -> None:
    """One of our units as a gate would wait for itself for ever."""
    message = f"'{name}' is installed by hostrouting and cannot wait for itself; name the unit that must wait"
    assert _errors({"gates": [name]}) == [("hostRouting.gates[0]", message)]


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", "it is empty"),
        ("x" * 65, "it has 65 characters, the limit is 64"),
        ("-x*", "a leading '-' reads as an option"),
        ("a b", "' ' is not allowed in it"),
        ("a/*", "'/' is not allowed in it"),
        ("$x", "'$' is not allowed in it"),
        ("{a,b}", "'{' is not allowed in it"),
        ("@(a|b)", "'(' is not allowed in it"),
        ("a\\*", "'\\\\' is not allowed in it"),
        ("[^a]", "'^' is not allowed in it"),
        ("ü*", "'ü' is not allowed in it"),
        ("a\n", "'\\n' is not allowed in it"),
        ("ib[0", "after a '[' it needs characters or rising ranges, and a ']', as in '[0-9a-f]'"),
        ("ib[]", "after a '[' it needs characters or rising ranges, and a ']', as in '[0-9a-f]'"),
        ("ib[!]", "after a '[' it needs characters or rising ranges, and a ']', as in '[0-9a-f]'"),
        ("ib[9-0]", "after a '[' it needs characters or rising ranges, and a ']', as in '[0-9a-f]'"),
        ("ib[0-]", "after a '[' it needs characters or rising ranges, and a ']', as in '[0-9a-f]'"),
        ("ib[[0]]", "after a '[' it needs characters or rising ranges, and a ']', as in '[0-9a-f]'"),
    ],
)
def test_device_patterns_that_bash_and_python_would_read_differently(pattern: str, problem: str) -> None:
    """A pattern has ASCII names and glob characters, with closed brackets."""
    message = f"{pattern!r} is not a pattern of device names: {problem}"
    assert _errors({"routeOverlap": {"allowedDevs": [pattern]}}) == [
        ("hostRouting.routeOverlap.allowedDevs[0]", message)
    ]


@pytest.mark.parametrize(
    ("mapping", "path", "step"),
    [
        ({"staticRoute": {}}, "hostRouting.staticRoute", "did you mean 'staticRoutes'?"),
        ({"STATICROUTES": {}}, "hostRouting.STATICROUTES", "did you mean 'staticRoutes'?"),
        ({"hostRoutin": {}}, "hostRouting.hostRoutin", "did you mean 'hostRouting'?"),
        (
            {"cluster": None, "gates": []},
            "hostRouting.cluster",
            "known here are gates, hostRouting, probeSnat, routeOverlap, staleCni, staticRoutes, watch",
        ),
        (
            {"hostRouting": {"hostRouting": {}}, "staticRoutes": 7},
            "hostRouting.hostRouting",
            "known here are gates, probeSnat, routeOverlap, staleCni, staticRoutes, watch",
        ),
        ({"staticRoutes": {"route": []}}, "hostRouting.staticRoutes.route", "did you mean 'routes'?"),
        (
            {"routeOverlap": {"expectedCIDRs": []}},
            "hostRouting.routeOverlap.expectedCIDRs",
            "did you mean 'expectedCidrs'?",
        ),
        ({"probeSnat": {"adress": ""}}, "hostRouting.probeSnat.adress", "did you mean 'address'?"),
        ({"staleCni": {"pod_cidrs": []}}, "hostRouting.staleCni.pod_cidrs", "did you mean 'podCidrs'?"),
        ({"watch": {"intervall": "60s"}}, "hostRouting.watch.intervall", "did you mean 'interval'?"),
        ({"watch": {"a b\n": 1}}, r"hostRouting.watch['a b\n']", "known here are enabled, interval"),
        ({"watch": {"": 1}}, "hostRouting.watch['']", "known here are enabled, interval"),
        ({"watch": {"\ud800": 1}}, r"hostRouting.watch['\ud800']", "known here are enabled, interval"),
        ({"watch": {"x" * 9999: 1}}, f"hostRouting.watch['{'x' * 80}'...]", "known here are enabled, interval"),
    ],
)
def test_unknown_keys(mapping: dict[str, Any], path: str, step: str) -> None:
    """An unknown key is refused at its path, with the key that was probably meant."""
    assert _errors(mapping) == [(path, f"is not a known key; {step}")]


def test_unknown_keys_of_a_route() -> None:
    """`gatewya` must not install a route without gateway."""
    assert _errors_of_route(gatewya="10.0.0.1") == [(f"{ROUTE}.gatewya", "is not a known key; did you mean 'gateway'?")]


@pytest.mark.parametrize(
    ("key", "found"),
    [(1, "the number 1"), (None, "null"), (b"staticRoutes", "a Python bytes"), (("a",), "a list")],
)
def test_keys_that_are_no_strings(key: object, found: str) -> None:
    """A Python mapping may have any key; ours are strings."""
    assert _errors({key: {}, "gates": []}) == [("hostRouting", f"expected strings as keys, found {found}")]


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
    assert _errors(document) == [("hostRouting", f"expected an object, found {found}")]
    if document is not None:
        assert _errors({"hostRouting": document}) == [("hostRouting", f"expected an object, found {found}")]


def test_every_error_is_reported_at_once() -> None:
    """One run shows everything that is wrong: of each object its keys first, then its fields in their fixed order."""
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
                            {"gateway": "2001:db8::1", "dve": ""},
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
        "  hostRouting.staticRoutes.routes[3].gateway: '2001:db8::1' is not an IPv4 address\n"
        "  hostRouting.watch.interval: expected a duration from '1s' to '86400s', found the number 5\n"
        "  hostRouting.watch.enabled: expected true or false, found the number 1\n"
        "  hostRouting.gates[0]: 'x' is not the name of a .service unit that can be a gate: "
        "it does not end in '.service'"
    )


def test_an_empty_config_can_be_refused() -> None:
    """A program that would not take everything away because of an empty file says so; an explicit empty is explicit."""
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_json("{}", allow_empty=False)
    assert caught.value.errors == [
        ConfigError(
            "hostRouting",
            "is missing, and so is every section of it; "
            'to remove all that hostrouting installed, write {"hostRouting": {}} or use --allow-empty',
        )
    ]
    with pytest.raises(InvalidConfigError, match="so is every section"):
        HostRoutingConfig.from_mapping({"nodeName": "gpu-1"}, allow_empty=False)
    with pytest.raises(InvalidConfigError, match=r"hostRouting: is null, .* use --allow-empty"):
        HostRoutingConfig.from_mapping({"nodeName": "gpu-1", "hostRouting": None}, allow_empty=False)
    assert HostRoutingConfig.from_mapping({"hostRouting": {}}, allow_empty=False) == HostRoutingConfig()
    assert HostRoutingConfig.from_mapping({"watch": None}, allow_empty=False) == HostRoutingConfig()


@pytest.mark.parametrize("interval", [0, 0.999, 86_401, float("nan"), float("inf"), -1, True, "60s", None])
def test_intervals_in_python_are_seconds(interval: Any) -> None:
    """Built directly, a WatchConfig takes numbers of seconds in range, and no wire form."""
    with pytest.raises(InvalidConfigError) as caught:
        WatchConfig(interval=interval)
    assert caught.value.errors[0].path == "interval"
    assert caught.value.errors[0].message.startswith("expected a number of seconds from 1 to 86400, found ")


def test_required_fields_are_required_of_each_value() -> None:
    """Values read on their own report paths from themselves."""
    with pytest.raises(InvalidConfigError) as caught:
        StaticRoute.from_mapping({})
    assert str(caught.value) == (
        "destination: is required: the network that the route leads to, such as '172.16.0.0/16'"
    )
    with pytest.raises(InvalidConfigError) as caught:
        StaleCNIConfig(enabled=True)
    assert str(caught.value) == "podCidrs: is required when enabled: the range that the removed CNI gave to pods"
    assert OverlapMode("WARN") is OverlapMode.WARN
