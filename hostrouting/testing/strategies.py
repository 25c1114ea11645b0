"""Hypothesis strategies for configs: they draw valid values only, and any valid value can come up.

    configs()                     a HostRoutingConfig
    ├── static_routes_configs()       of static_routes()
    ├── route_overlap_configs()
    ├── probe_snat_configs()
    ├── stale_cni_configs()
    └── watch_configs()
    addresses(), cidrs(), destinations(), gateways(), device_names(), device_patterns(),
    gate_names()

>>> from hypothesis import given
>>> @given(static_routes())
... def routes_lead_somewhere(route):
...     assert route.destination != "0.0.0.0/0"
>>> routes_lead_somewhere()
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from hostrouting.config import (
    DEFAULT_GATES,
    OWN_UNITS,
    PRESETS,
    HostRoutingConfig,
    OverlapMode,
    ProbeSNATConfig,
    RouteOverlapConfig,
    StaleCNIConfig,
    StaleCNIForce,
    StaticRoute,
    StaticRoutesConfig,
    WatchConfig,
    rules,
)
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix, address_bits, check_device_name
from hostrouting.net.routes import ATTRIBUTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import SearchStrategy

__all__ = [
    "addresses",
    "cidrs",
    "configs",
    "destinations",
    "device_names",
    "device_patterns",
    "gate_names",
    "gateways",
    "probe_snat_configs",
    "route_overlap_configs",
    "stale_cni_configs",
    "static_routes",
    "static_routes_configs",
    "watch_configs",
]

_ASCII_NAME = "abcxyzABZ0189_.-"


def addresses(*families: int) -> SearchStrategy[str]:
    """Addresses of these families, or of both if none is named, as text."""
    return _prefixes(families).map(lambda prefix: str(Address(*prefix[:2])))


def cidrs(*families: int, min_length: int = 0) -> SearchStrategy[str]:
    """Networks of these families, or of both if none is named, without host bits, as text."""
    return _prefixes(families, min_length).map(lambda prefix: str(prefix.masked))


def destinations(*families: int) -> SearchStrategy[str]:
    """Networks that a static route may lead to."""
    return (
        _unicast(families)
        .map(lambda prefix: str(prefix.masked))
        .filter(_accepts(rules.destination))
    )


def gateways(*families: int) -> SearchStrategy[str]:
    """Addresses that a router may have."""
    link_local = st.just("fe80::1") if IPV6 in (families or (IPV6,)) else st.nothing()
    return (
        _unicast(families)
        .map(lambda prefix: str(Address(*prefix[:2])))
        .filter(_accepts(rules.gateway))
        | link_local
    )


def device_names() -> SearchStrategy[str]:
    """Names of devices that both the kernel and the config accept; a few are not ASCII."""
    usual = st.sampled_from(["eth0", "ib0", "ib7", "bond0.100", "azure0"])
    return usual | st.text(_ASCII_NAME + "+@ü語", min_size=1, max_size=15).filter(
        _accepts(check_device_name)
    )


def device_patterns() -> SearchStrategy[str]:
    """Shell-style patterns for `allowedDevs`."""
    usual = st.sampled_from(["mesh*", "ib?", "veth[0-9]", "wg[!ab]*"])
    return usual | st.text(_ASCII_NAME + "*?[]!", min_size=1, max_size=64).filter(
        _accepts(rules.device_pattern)
    )


def gate_names() -> SearchStrategy[str]:
    """Names of service units, templates and instances that may be gates."""
    usual = st.sampled_from([*DEFAULT_GATES, "kubelet.service", "systemd-nspawn@kube.service"])
    odd = st.text(_ASCII_NAME + ":\\@", min_size=1, max_size=40).map(
        lambda prefix: f"{prefix}.service"
    )
    return usual | odd.filter(_accepts(rules.gate(OWN_UNITS)))


def static_routes(*families: int) -> SearchStrategy[StaticRoute]:
    """Routes with and without a gateway, a device, a metric and the like."""
    return destinations(*families).flatmap(
        lambda destination: st.builds(
            StaticRoute,
            destination=st.just(destination),
            gateway=st.none() | gateways(*([IPV6] if ":" in destination else families)),
            dev=st.none() | device_names(),
            **{each.name: _numbers(each.numbers) for each in ATTRIBUTES},
        )
    )


def _numbers(allowed: range) -> SearchStrategy[int]:
    """Numbers of an attribute of routes, or 0 for none."""
    usual = [number for number in (1, 100, allowed[0], allowed[-1]) if number in allowed]
    return st.sampled_from([0, *usual]) | st.integers(allowed[0], allowed[-1])


def static_routes_configs(*families: int) -> SearchStrategy[StaticRoutesConfig]:
    """Sections with routes that do not contradict each other."""
    routes = st.lists(
        static_routes(*families),
        max_size=5,
        unique_by=lambda route: (route.destination, route.metric),
    )
    enabled = st.builds(StaticRoutesConfig, enabled=st.just(True), routes=routes.map(tuple))
    return enabled | st.just(StaticRoutesConfig())


def route_overlap_configs(*families: int) -> SearchStrategy[RouteOverlapConfig]:
    """Sections of `routeOverlap`."""
    presets = [
        name for name in PRESETS if IPV6 in (families or (IPV6,)) or not name.endswith("-ipv6")
    ]
    return st.builds(
        RouteOverlapConfig,
        expected_cidrs=_tuples(
            (destinations(*families) | cidrs(*families)).filter(_accepts(rules.expected_cidr))
        ),
        expected=_tuples(st.sampled_from(presets)),
        mode=st.sampled_from(OverlapMode),
        allowed_devs=_tuples(device_patterns()),
        expected_devs=_tuples(
            (device_names() | cidrs(IPV4)).filter(_accepts(rules.expected_device))
        ),
        fabric=st.sampled_from(["auto", "off"]) | _tuples(cidrs(IPV4)),
    )


def probe_snat_configs() -> SearchStrategy[ProbeSNATConfig]:
    """Sections of `probeSnat`."""
    return st.builds(
        ProbeSNATConfig,
        enabled=st.booleans(),
        dev=st.none() | device_names(),
        source=st.ip_addresses(network="fe80::/10").map(str),
        address=st.ip_addresses(network="2000::/3").map(str),
        detect=st.sampled_from(["imds", "address", "always"]),
    )


def stale_cni_configs() -> SearchStrategy[StaleCNIConfig]:
    """Sections of `staleCni`, with pod networks of both families."""
    return st.just(StaleCNIConfig()) | st.builds(
        StaleCNIConfig,
        enabled=st.booleans(),
        pod_cidrs=st.lists(cidrs(min_length=1), min_size=1, max_size=3).map(tuple),
        bridge=device_names(),
        confirmations=st.integers(1, 10),
        backup_dir=st.text("abc/-_ é", max_size=20).map(lambda rest: f"/{rest}"),
        force=st.builds(StaleCNIForce, conflist=st.booleans(), lock=st.booleans()),
        required=st.booleans(),
        sweep=st.sampled_from(["report", "clean"]),
    )


def watch_configs() -> SearchStrategy[WatchConfig]:
    """Sections of `watch`."""
    sections = partial(
        st.builds,
        WatchConfig,
        mode=st.sampled_from(["timer", "service"]),
        interval=st.integers(1, 86_400) | st.floats(1, 86_400),
        readings=st.integers(1, 10),
    )
    keeping = sections(enabled=st.just(True), keep_foreign_routes=st.just(True))
    return sections(enabled=st.booleans()) | keeping


def configs(*families: int) -> SearchStrategy[HostRoutingConfig]:
    """Whole configs, from empty to full; routes and proofs are of these families."""
    return st.builds(
        HostRoutingConfig,
        static_routes=static_routes_configs(*families),
        route_overlap=route_overlap_configs(*families),
        probe_snat=probe_snat_configs(),
        stale_cni=stale_cni_configs(),
        watch=watch_configs(),
        gates=st.just(DEFAULT_GATES) | st.lists(gate_names(), max_size=3, unique=True).map(tuple),
        after=_tuples(st.sampled_from(["fabric.service", "sys-class-net-ib0.device"])),
    )


def _prefixes(
    families: tuple[int, ...], min_length: int = 0, *, first_byte: int = 0
) -> SearchStrategy[Prefix]:
    return st.sampled_from(families or (IPV4, IPV6)).flatmap(
        lambda family: st.builds(
            Prefix,
            st.just(family),
            st.integers(first_byte << address_bits(family) - 8, (1 << address_bits(family)) - 1),
            st.integers(min_length, address_bits(family)),
        )
    )


def _unicast(families: tuple[int, ...]) -> SearchStrategy[Prefix]:
    # Hypothesis prefers small numbers, and neither 0.0.0.0/8 nor ::/80 is a place for a host.
    return _prefixes(families, 1, first_byte=1)


def _tuples(members: SearchStrategy[str]) -> SearchStrategy[tuple[str, ...]]:
    return st.lists(members, max_size=3).map(tuple)


def _accepts(rule: Callable[[str], object]) -> Callable[[str], bool]:
    def accepts(value: str) -> bool:
        try:
            rule(value)
        except ValueError:
            return False
        return True

    return accepts
