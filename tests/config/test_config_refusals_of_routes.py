"""Refused static routes: one case for each refusal, with its whole message and path."""

from typing import Any, Final

import pytest
from support.config_errors import GOOD, ROUTE, errors, errors_of_route

#: By the reason, values that it refuses.
_NO_DESTINATIONS: Final = {
    "is not an IPv4 CIDR such as '172.16.0.0/16'": [
        "",
        "not-a-cidr",
        "010.0.0.0/8",
        "1٨.0.0.0/8",
        " 10.0.0.0/8",
        "\ud800/8",
    ],
    "is not an IPv6 CIDR such as 'fd00::/64'": ["2001:db8::%eth0/32"],
    "lacks a prefix length; write '2001:db8::1/128' for one address": ["2001:db8::1"],
    "must end in a prefix length from 0 to 128": ["2001:db8::/129"],
    "has host bits; the network is '2001:db8::/64'": ["2001:db8::1/64"],
    "is the default route, which cannot be set; name the networks that need a route": [
        "::/0",
        "0.0.0.0/0",
    ],
    "lies in ::/127, the unspecified address and the node's own loopback; no route leads there": [
        "::1/128"
    ],
    "lies in fe80::/10, the link-local addresses; no route leads there": ["FE80::/64"],
    "lies in ff00::/8, which is multicast; no route leads there": ["ff02::/16"],
    "lacks a prefix length; write '10.0.0.1/32' for one address": ["10.0.0.1"],
    "must end in a prefix length from 0 to 32": [
        "10.0.0.0/255.0.0.0",
        "10.0.0.0/33",
        "10.0.0.0/08",
        "10.0.0.0/٨",
        "10.0.0.0/8\n",
    ],
    "has host bits; the network is '172.16.1.0/24'": ["172.16.1.5/24"],
    "lies in 0.0.0.0/8, which means 'this network'; no route leads there": ["0.1.0.0/16"],
    "lies in 127.0.0.0/8, the node's own loopback; no route leads there": ["127.0.0.0/8"],
    "lies in 224.0.0.0/4, which is multicast; no route leads there": ["239.1.2.0/24"],
    "is the broadcast address; no route leads there": ["255.255.255.255/32"],
}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *(
            (value, f"{value!r} {reason}")
            for reason, values in _NO_DESTINATIONS.items()
            for value in values
        ),
        (None, "is required: the network that the route leads to, such as '172.16.0.0/16'"),
        (8, "expected a network such as '172.16.0.0/16' or 'fd00::/64', found the number 8"),
        (["10.0.0.0/8"], "expected a network such as '172.16.0.0/16' or 'fd00::/64', found a list"),
        (
            "1" * 2000,
            f"expected a network such as '172.16.0.0/16' or 'fd00::/64', found the string '{'1' * 80}'...",
        ),
    ],
)
def test_destinations_that_are_no_networks_to_route_to(value: object, message: str) -> None:
    """A destination is a network that packets can be routed to, and not the default route."""
    assert errors_of_route(destination=value) == [(f"{ROUTE}.destination", message)]


#: By the reason, values that it refuses.
_NO_GATEWAYS: Final = {
    "is not an IPv4 address": ["not-an-ip", "10.0.0.01", "10.0.0.٢", "10.0.0.1 "],
    "has a prefix length; give the address alone: fd00::1": ["fd00::1/64"],
    "is not an IPv6 address": ["2001:db8:1"],
    "has a zone; name the device in 'dev' instead": ["fe80::1%eth0"],
    "lies in ::/127, the unspecified address and the node's own loopback; a gateway is one host's own address": [
        "::1"
    ],
    "lies in ff00::/8, which is multicast; a gateway is one host's own address": ["ff02::2"],
    "lies in 0.0.0.0/8, which means 'this network'; a gateway is one host's own address": [
        "0.0.0.9"
    ],
    "lies in 127.0.0.0/8, the node's own loopback; a gateway is one host's own address": [
        "127.0.0.1"
    ],
    "lies in 224.0.0.0/4, which is multicast; a gateway is one host's own address": ["224.0.0.1"],
    "is the broadcast address; a gateway is one host's own address": ["255.255.255.255"],
}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *(
            (value, f"{value!r} {reason}")
            for reason, values in _NO_GATEWAYS.items()
            for value in values
        ),
        (False, "expected an address such as '10.224.0.1' or 'fd00::1', found the boolean false"),
        ({}, "expected an address such as '10.224.0.1' or 'fd00::1', found an object"),
    ],
)
def test_gateways_that_are_no_hosts(value: object, message: str) -> None:
    """A gateway is one unicast address, without a zone."""
    assert errors_of_route(gateway=value) == [(f"{ROUTE}.gateway", message)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("eth0; rm -rf /", "'eth0; rm -rf /' is not a device name: ';' is not allowed in it"),
        (
            "toolong123456789a",
            "'toolong123456789a' is not a device name: it has 17 bytes, the kernel allows 15",
        ),
        ("..", "'..' is not a device name: the kernel refuses it"),
        (0, "expected a device name such as 'eth0', found the number 0"),
    ],
)
def test_devices_that_are_none(value: object, message: str) -> None:
    """A device name is refused with the reason; the test of check_device_name has all reasons."""
    assert errors_of_route(dev=value) == [(f"{ROUTE}.dev", message)]


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
    assert errors_of_route(metric=value) == [(f"{ROUTE}.metric", message)]


def test_an_ipv6_route_by_an_ipv4_gateway() -> None:
    """Only the other way round there are routers without an address of the route's family."""
    assert errors_of_route(destination="FD00::/8", gateway="10.224.0.1") == [
        (
            f"{ROUTE}.gateway",
            "'10.224.0.1' is IPv4, and 'fd00::/8' is IPv6; name the IPv6 address of that router",
        )
    ]


def test_ipv6_routes_that_repeat_each_other() -> None:
    """Spelling makes no difference, and an absent metric is metric 1."""
    routes = [
        {"destination": text, "metric": metric}
        for text, metric in (("fd00:0::/64", 1), ("FD00::/64", None))
    ]
    assert errors({"staticRoutes": {"enabled": True, "routes": routes}}) == [
        (
            "hostRouting.staticRoutes.routes[1]",
            "'fd00::/64 metric 1' repeats routes[0]; remove one of them",
        )
    ]


def test_routes_that_repeat_each_other() -> None:
    """An exact duplicate is refused, naming both places; an absent metric is metric 0."""
    routes = [GOOD, {"destination": "10.1.0.0/16"}, {**GOOD, "metric": 0, "dev": ""}]
    assert errors({"staticRoutes": {"enabled": True, "routes": routes}}) == [
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
    """One destination under one metric cannot go two ways; both places are named, other mistakes
    notwithstanding.
    """
    routes = [GOOD, {"destination": "nonsense"}, {**GOOD, **other}]
    assert errors({"staticRoutes": {"enabled": True, "routes": routes}}) == [
        (
            "hostRouting.staticRoutes.routes[1].destination",
            "'nonsense' is not an IPv4 CIDR such as '172.16.0.0/16'",
        ),
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
    assert errors({"staticRoutes": {**enabled, "routes": [GOOD]}}) == [
        (
            "hostRouting.staticRoutes.enabled",
            "is not true, but 1 route is given; set it to true to install them, or remove them",
        )
    ]
    assert errors({"staticRoutes": {**enabled, "routes": [GOOD, {**GOOD, "metric": -1}]}}) == [
        (
            "hostRouting.staticRoutes.routes[1].metric",
            "expected a whole number from 0 to 4294967295, found the number -1",
        ),
        (
            "hostRouting.staticRoutes.enabled",
            "is not true, but 2 routes are given; set it to true to install them, or remove them",
        ),
    ]
