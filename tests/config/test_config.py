"""The meaning of a config: defaults, normalisation, upstream's cases, the way to JSON and back."""

from collections.abc import Callable
from ipaddress import ip_address, ip_interface, ip_network
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from support.config_json import FULL
from support.printed import NO_DEVICE_NAME, NO_IPV4_ADDRESS

from hostrouting.config.optional import ProbeSNATConfig, StaleCNIConfig, WatchConfig
from hostrouting.config.sections import (
    DEFAULT_ALLOWED_DEVS,
    DEFAULT_GATES,
    HostRoutingConfig,
    OverlapMode,
    RouteOverlapConfig,
    StaticRoute,
    StaticRoutesConfig,
)
from hostrouting.config.wire import WireValue, wire_fields
from hostrouting.exceptions import ConfigMistake, HostRoutingError, InvalidConfigError
from hostrouting.host import IPV4, IPV6


def test_every_field_of_the_wire_form_reaches_its_attribute() -> None:
    """A camelCase key of the wire is snake_case in Python, and a list is a tuple; both are written
    as they were read.
    """
    config = HostRoutingConfig.from_mapping(FULL)
    assert config.to_mapping() == FULL
    assert config == HostRoutingConfig(
        static_routes=StaticRoutesConfig(
            enabled=True,
            routes=(
                StaticRoute(
                    destination="172.16.1.0/24", gateway="10.224.0.1", dev="eth0", metric=100
                ),
                StaticRoute(destination="172.16.2.0/24", gateway=None, dev=None, metric=0),
            ),
        ),
        route_overlap=RouteOverlapConfig(
            expected_cidrs=("172.16.0.0/16",),
            expected=("azure",),
            mode=OverlapMode.STRICT,
            allowed_devs=("mesh*",),
            expected_devs=("eth0", "10.224.0.0/16"),
            fabric=("172.16.0.0/16",),
        ),
        probe_snat=ProbeSNATConfig(
            enabled=True,
            dev="eth0",
            source="fe80::1",
            address="2001:db8::1",
            detect="address",
            required=True,
        ),
        stale_cni=StaleCNIConfig(
            enabled=True,
            pod_cidrs=("10.240.0.0/16", "fd00::/64"),
            bridge="azure1",
            backup_dir="/var/backups",
            required=True,
            sweep="clean",
        ),
        watch=WatchConfig(
            enabled=True, mode="service", interval=90.0, readings=3, keep_foreign_routes=True
        ),
        gates=("kubelet.service",),
        after=("ib_rdma_configure.service",),
        found_devs=("eth0",),
    )


def test_the_example_has_every_field() -> None:
    """The example config of the tests has every field of every section."""
    config = HostRoutingConfig.from_mapping(FULL)
    sections = attrs.asdict(config, recurse=False).values()
    parts = [config, *sections, config.static_routes.routes[0]]
    for part in filter(lambda part: isinstance(part, WireValue), parts):
        assert list(part.to_mapping()) == [*wire_fields(type(part))]


def test_an_empty_config_has_the_defaults() -> None:
    """An empty config has the defaults, installs nothing, and is written as an empty mapping."""
    config = HostRoutingConfig.from_mapping({})
    assert config == HostRoutingConfig()
    assert config.to_mapping() == {}
    assert config.gates == DEFAULT_GATES == ("systemd-nspawn@.service", "kubelet.service")
    assert not config.asks


def test_the_default_allowed_devices_are_valid_patterns() -> None:
    """The built-in list of devices would pass as `allowedDevs`, so that bash and Python read it
    alike.
    """
    assert (
        RouteOverlapConfig(allowed_devs=DEFAULT_ALLOWED_DEVS).allowed_devs == DEFAULT_ALLOWED_DEVS
    )
    assert "docker0" not in DEFAULT_ALLOWED_DEVS


@pytest.mark.parametrize(
    "wire",
    [
        {"hostRouting": None},
        {"hostRouting": {}},
        dict.fromkeys(FULL),
        *(
            {name: dict.fromkeys(section)}
            for name, section in FULL.items()
            if isinstance(section, dict)
        ),
    ],
)
def test_null_means_absent_at_every_level(wire: dict[str, Any]) -> None:
    """A null is read as Go reads it: as if the key were not there."""
    assert HostRoutingConfig.from_mapping(wire) == HostRoutingConfig()


@pytest.mark.parametrize("absent", [None, ""])
def test_an_empty_dev_or_gateway_is_absent(absent: str | None) -> None:
    """Empty text for a device or a gateway is read as None, as null is: 'look it up'."""
    route = StaticRoute.from_mapping(
        {"destination": "10.0.0.0/8", "gateway": absent, "dev": absent, "metric": None}
    )
    assert route == StaticRoute(destination="10.0.0.0/8", gateway=absent, dev=absent)
    assert route.gateway is None
    assert route.dev is None
    assert route.metric == 0
    assert route.to_mapping() == {"destination": "10.0.0.0/8"}
    assert ProbeSNATConfig(dev=absent).dev is None


@pytest.mark.parametrize(
    "destination",
    [
        "0.0.0.0/1",
        "128.0.0.0/1",
        "126.0.0.0/7",
        "192.0.0.0/2",
        "169.254.169.254/32",
        "240.0.0.0/4",
        "255.255.255.254/32",
    ],
)
def test_destinations_that_merely_touch_refused_ranges_are_accepted(destination: str) -> None:
    """A destination that merely touches a refused range is accepted: half the address space, a
    route wider than loopback, or class E.
    """
    assert StaticRoute(destination=destination).destination == destination


def test_routes_are_distinguished_by_destination_and_metric() -> None:
    """A destination under two metrics is a fallback, not a contradiction."""
    routes = (
        StaticRoute(destination="10.0.0.0/8", gateway="10.1.0.1"),
        StaticRoute(destination="10.0.0.0/8", gateway="10.1.0.2", metric=100),
    )
    assert StaticRoutesConfig(enabled=True, routes=routes).routes == routes


def test_pod_cidrs_of_both_families_are_masked_and_canonical() -> None:
    """Networks and addresses of a config are normalised, so that equal ones are equal strings."""
    section = StaleCNIConfig(
        pod_cidrs=("10.240.1.2/16", "FD00:0:0::5/64", "fd00::/64", "fd00::1/128")
    )
    assert section.pod_cidrs == ("10.240.0.0/16", "fd00::/64", "fd00::1/128")
    probes = ProbeSNATConfig(source="FE80:0:0:0:0:0:0:1", address="2001:0DB8::0001")
    assert probes.source == "fe80::1"
    assert probes.address == "2001:db8::1"


@pytest.mark.parametrize("name", ["probeSnat", "staleCni", "watch"])
def test_details_of_a_disabled_section_are_fine(name: str) -> None:
    """A section can be disabled without losing its content, but for keepForeignRoutes, which the
    units of watch carry out, and which is refused then.
    """
    wire = {
        name: {
            key: value
            for key, value in FULL[name].items()
            if key not in {"enabled", "keepForeignRoutes"}
        }
    }
    assert HostRoutingConfig.from_mapping(wire).to_mapping() == wire


@pytest.mark.parametrize(
    ("text", "seconds", "canonical"),
    [
        ("60s", 60.0, None),
        ("1m0s", 60.0, None),
        ("1m30s", 90.0, "90s"),
        ("1.5h", 5400.0, "5400s"),
        ("1.000000001s", 1.000000001, "1.000000001s"),
        ("24h", 86400.0, "86400s"),
    ],
)
def test_intervals_are_go_durations(text: str, seconds: float, canonical: str | None) -> None:
    """A duration is read as Go writes it, and written in seconds; the default is left out."""
    section = WatchConfig.from_mapping({"interval": text})
    assert section.interval == seconds
    assert section.to_mapping().get("interval") == canonical


@pytest.mark.parametrize(
    "gates",
    [
        (),
        ("kubelet.service",),
        ("foo@.service", "foo@x.service", "foo@x@y.service"),
        (r"dev-disk\x2dby.service", "a:b_c.d-e.service"),
        ("x" * 222 + ".service",),
    ],
)
def test_service_units_of_every_kind_can_be_gates(gates: tuple[str, ...]) -> None:
    """A gate may be a plain unit, a template, an instance or an escaped name, up to the longest
    name whose mark, hostrouting-held@NAME.service, systemd accepts; a config may have none.
    """
    assert HostRoutingConfig(gates=gates).gates == gates


@pytest.mark.parametrize("pattern", ["mesh*", "ib?", "ib[0-7]", "ib[!0]", "*", "a+b", "x" * 64])
def test_shell_patterns_extend_the_allowed_devices(pattern: str) -> None:
    """Patterns that bash and fnmatch read alike are accepted, each once."""
    assert RouteOverlapConfig(allowed_devs=(pattern, pattern)).allowed_devs == (pattern,)


def test_a_value_names_its_own_fields() -> None:
    """A wrong value that is built directly is refused with every error, at paths as seen from that
    value.
    """
    with pytest.raises(InvalidConfigError) as caught:
        StaticRoute(
            destination="172.16.1.5/24", gateway="10.224.0", dev="eth0; rm -rf /", metric=-1
        )
    assert caught.value.errors == [
        ConfigMistake(
            "destination", "'172.16.1.5/24' has host bits; the network is '172.16.1.0/24'"
        ),
        ConfigMistake("gateway", f"'10.224.0' {NO_IPV4_ADDRESS}"),
        ConfigMistake("dev", f"'eth0; rm -rf /' {NO_DEVICE_NAME}';' is not allowed; see: ip link"),
        ConfigMistake(
            "metric", "expected a whole number from 0 to 4294967295, found the number -1"
        ),
    ]
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, HostRoutingError)


def test_a_value_accepts_the_wire_form_of_its_parts() -> None:
    """A value accepts a mapping of any type where it needs another value."""
    section: Any = MappingProxyType(FULL["staticRoutes"])
    config = HostRoutingConfig(static_routes=section)
    assert config.static_routes.routes[1] == StaticRoute(destination="172.16.2.0/24")


def test_values_are_frozen_and_hashable() -> None:
    """A config that was valid once stays so, and can be a key."""
    config = HostRoutingConfig.from_mapping(FULL)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        config.gates = ()  # type: ignore[misc] # that is the point
    assert len({config, HostRoutingConfig.from_mapping(FULL)}) == 1
    with pytest.raises(InvalidConfigError):
        attrs.evolve(config.static_routes.routes[0], metric=-1)


def test_a_route_reads_like_ip_route() -> None:
    """str() of a route is the text that an operator would type, without open fields."""
    first, second = HostRoutingConfig.from_mapping(FULL).static_routes.routes
    assert str(first) == "172.16.1.0/24 via 10.224.0.1 dev eth0 metric 100"
    assert str(second) == "172.16.2.0/24"


@pytest.mark.parametrize("change", [str.upper, str.lower, str.title])
def test_words_are_read_in_any_case(change: Callable[[str], str]) -> None:
    """A mode, preset or setting is read in any case and written in its canonical form; an empty
    mode is WARN.
    """
    config = HostRoutingConfig.from_mapping(
        {
            "routeOverlap": {
                "mode": change("strict"),
                "expected": [change("azure")],
                "fabric": change("off"),
            },
            "probeSnat": {"detect": change("address")},
            "staleCni": {"sweep": change("clean")},
            "watch": {"mode": change("service")},
        }
    )
    assert config.to_mapping() == {
        "routeOverlap": {"mode": "STRICT", "expected": ["azure"], "fabric": "off"},
        "probeSnat": {"detect": "address"},
        "staleCni": {"sweep": "clean"},
        "watch": {"mode": "service"},
    }
    assert RouteOverlapConfig.from_mapping({"mode": ""}).mode is OverlapMode.WARN


def test_host_bits_of_expected_cidrs_are_masked() -> None:
    """Host bits of an expected CIDR are masked, and two spellings of a network count once."""
    given = ["172.16.0.9/16", "172.16.0.0/16", "FD00:0::/64", "fd00::1/64", "0.0.0.0/0"]
    section = RouteOverlapConfig.from_mapping({"expectedCidrs": given})
    assert section.expected_cidrs == ("172.16.0.0/16", "fd00::/64", "0.0.0.0/0")
    assert RouteOverlapConfig.from_mapping(section.to_mapping()) == section


def test_the_metric_of_an_ipv6_route() -> None:
    """An IPv6 route without a metric has metric 1, since the kernel reads 0 as 1024; a given metric
    stays.
    """
    metrics = [StaticRoute(destination="fd00:9::/32", metric=given).metric for given in (0, 7)]
    assert metrics == [1, 7]


def test_a_config_that_names_only_a_cloud() -> None:
    """A config that names only a cloud requests a check, and has both families if the cloud has
    IPv6 addresses.
    """
    config = HostRoutingConfig(route_overlap=RouteOverlapConfig(expected=("aws-ipv6",)))
    assert config.asks
    assert config.families == (IPV4, IPV6)


def test_an_address_of_two_clouds_has_the_name_of_the_first() -> None:
    """An address that two expected clouds share has its name in the cloud that is listed first."""
    config = RouteOverlapConfig(expected=("aws", "azure"))
    assert config.cidrs["169.254.169.254/32"] == "Amazon instance metadata"


def test_a_mistake_in_enabled_hides_the_rule_on_pod_cidrs() -> None:
    """A mistake in `enabled` is one error, without a second one about pod CIDRs."""
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_mapping({"staleCni": {"enabled": "yes"}})
    assert [mistake.path for mistake in caught.value.errors] == ["hostRouting.staleCni.enabled"]


def test_a_folder_may_have_two_dots_in_its_name() -> None:
    """A folder may have two dots in its name: only `..` itself leads to another one."""
    assert StaleCNIConfig(backup_dir="/var/backups/2026..27").backup_dir == "/var/backups/2026..27"


def test_values_of_ipaddress_stand_for_their_texts() -> None:
    """A field for an address or a network accepts a value of `ipaddress`; a field for a device
    refuses one.
    """
    route: Any = {"destination": ip_network("10.0.0.0/8"), "gateway": ip_address("10.224.0.1")}
    assert StaticRoute(**route) == StaticRoute(destination="10.0.0.0/8", gateway="10.224.0.1")
    cidrs: Any = ip_network("172.16.0.0/16"), ip_interface("fd00::1/64")
    assert RouteOverlapConfig(expected_cidrs=cidrs).expected_cidrs == ("172.16.0.0/16", "fd00::/64")
    with pytest.raises(InvalidConfigError, match="found a Python IPv4Address"):
        StaticRoute(**{**route, "dev": ip_address("10.0.0.1")})
