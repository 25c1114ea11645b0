"""Hypothesis strategies for configs: they draw valid values only, and any valid value can come up.

An example shrinks to defaults and usual values in seconds: these come first, no draw is rejected,
and every strategy is made once. There are strategies for sections and values as well as for
`configs`.

>>> from hypothesis import given
>>> @given(configs())
... def some_routes_have_a_gateway(config):
...     assert len(config.static_routes.routes) < 6
>>> some_routes_have_a_gateway()
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hostrouting.config import rules
from hostrouting.config.optional import ProbeSNATConfig, StaleCNIConfig, WatchConfig
from hostrouting.config.sections import (
    DEFAULT_GATES,
    OWN_UNITS,
    PRESETS,
    HostRoutingConfig,
    OverlapMode,
    RouteOverlapConfig,
    StaticRoute,
    StaticRoutesConfig,
)
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix, address_bits

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["configs"]

T = TypeVar("T")

_ASCII_NAME = "abcxyzABZ0189_.-"
#: By the family, what an example shrinks to.
_USUAL_NETWORKS = {
    IPV4: ("172.16.8.0/22", "172.16.0.0/16", "10.0.0.0/8", "172.16.8.9/32"),
    IPV6: ("fd00:9::/32", "fd00:9:5::/48", "2000::/3", "fd00:9::9/128"),
}
_USUAL_ADDRESSES = {IPV4: ("10.224.0.1", "172.16.0.9"), IPV6: ("fd00:1::1", "fe80::1")}


def addresses(family: int) -> SearchStrategy[str]:
    """Addresses of a family, as text."""
    return st.sampled_from(_USUAL_ADDRESSES[family]) | _addresses(family)


def cidrs(family: int, *, min_length: int = 0) -> SearchStrategy[str]:
    """Networks of a family without host bits, as text."""
    usual = [Prefix.parse(text) for text in _USUAL_NETWORKS[family]]
    long = [str(prefix) for prefix in usual if prefix.length >= min_length]
    return st.sampled_from(long) | _networks(family, min_length)


def destinations(family: int) -> SearchStrategy[str]:
    """Networks that a static route may lead to."""
    odd = _networks(family, 1, first_byte=1)
    return _usual_or(_USUAL_NETWORKS[family], odd, rules.destination)


def gateways(family: int) -> SearchStrategy[str]:
    """Addresses that a router may have."""
    return _usual_or(_USUAL_ADDRESSES[family], _addresses(family, first_byte=1), rules.gateway)


def device_names() -> SearchStrategy[str]:
    """Names of devices that both the kernel and the config accept; a few are not ASCII."""
    usual = ("eth0", "ib0", "ib7", "bond0.100", "azure0")
    odd = st.text(_ASCII_NAME + "+@ü語", min_size=1, max_size=15)
    return _usual_or(usual, odd, rules.device)


def device_patterns() -> SearchStrategy[str]:
    """Shell-style patterns for `allowedDevs`."""
    usual = ("mesh*", "ib?", "veth[0-9]", "wg[!ab]*")
    odd = st.text(_ASCII_NAME + "*?[]!", min_size=1, max_size=64)
    return _usual_or(usual, odd, rules.device_pattern)


def gate_names() -> SearchStrategy[str]:
    """Names of service units, templates and instances that may be gates."""
    usual = ("kubelet.service", "systemd-nspawn@.service", "systemd-nspawn@kube.service")
    odd = st.text(_ASCII_NAME + ":\\@", min_size=1, max_size=40).map("{}.service".format)
    return _usual_or(usual, odd, rules.gate(OWN_UNITS))


def static_routes(family: int) -> SearchStrategy[StaticRoute]:
    """Routes with and without a gateway, a device, a metric and the like."""
    # An IPv4 route may have an IPv6 gateway.
    routers = _of_both(gateways) if family == IPV4 else gateways(IPV6)
    return st.builds(
        StaticRoute,
        destination=destinations(family),
        gateway=st.none() | routers,
        dev=st.none() | device_names(),
        metric=st.sampled_from([0, 1, 100, 0xFFFFFFFF]) | st.integers(0, 0xFFFFFFFF),
    )


def static_routes_configs() -> SearchStrategy[StaticRoutesConfig]:
    """Sections with routes that do not contradict each other."""
    routes = st.lists(_of_both(static_routes), max_size=5).map(_without_clashes)
    enabled = st.builds(StaticRoutesConfig, enabled=st.just(True), routes=routes)
    return st.just(StaticRoutesConfig()) | enabled


def _without_clashes(routes: list[StaticRoute]) -> tuple[StaticRoute, ...]:
    return tuple({(route.destination, route.metric): route for route in routes}.values())


def route_overlap_configs() -> SearchStrategy[RouteOverlapConfig]:
    """Sections of `routeOverlap`."""
    sections = partial(
        st.builds,
        RouteOverlapConfig,
        expected_cidrs=_tuples(_of_both(_expected_cidrs)),
        expected=_tuples(st.sampled_from([*PRESETS])),
        allowed_devs=_tuples(device_patterns()),
        expected_devs=_tuples(
            _usual_or(("eth0",), device_names() | cidrs(IPV4), rules.expected_device)
        ),
    )
    fabrics = st.sampled_from(["auto", "off"]), _tuples(cidrs(IPV4))
    full = [
        sections(mode=st.just(mode), fabric=fabric) for mode in OverlapMode for fabric in fabrics
    ]
    return st.one_of(st.just(RouteOverlapConfig()), *full)


def _expected_cidrs(family: int) -> SearchStrategy[str]:
    odd = destinations(family) | _networks(family)
    return _usual_or(_USUAL_NETWORKS[family], odd, rules.expected_cidr)


def probe_snat_configs(*, image: bool = False) -> SearchStrategy[ProbeSNATConfig]:
    """Sections of `probeSnat`; with `image` one that is enabled names its device."""
    sections = partial(
        st.builds,
        ProbeSNATConfig,
        detect=st.sampled_from(["imds", "address", "always"]),
        required=st.booleans(),
        **_default_or(
            ProbeSNATConfig(),
            source=st.ip_addresses(network="fe80::/10").map(str),
            address=st.ip_addresses(network="2000::/3").map(str),
        ),
    )
    named = device_names()
    optional = st.none() | named
    disabled = sections(enabled=st.just(False), dev=optional)
    enabled = sections(enabled=st.just(True), dev=named if image else optional)
    return st.just(ProbeSNATConfig()) | disabled | enabled


def stale_cni_configs() -> SearchStrategy[StaleCNIConfig]:
    """Sections of `staleCni`, with pod networks of both families."""
    return st.just(StaleCNIConfig()) | st.builds(
        StaleCNIConfig,
        enabled=st.booleans(),
        pod_cidrs=st.lists(_of_both(partial(cidrs, min_length=1)), min_size=1, max_size=3).map(
            tuple
        ),
        required=st.booleans(),
        sweep=st.sampled_from(["report", "clean"]),
        **_default_or(
            StaleCNIConfig(),
            bridge=device_names(),
            backup_dir=st.text("abc/-_ é", max_size=20).map("/{}".format),
        ),
    )


def watch_configs() -> SearchStrategy[WatchConfig]:
    """Sections of `watch`."""
    sections = partial(
        st.builds,
        WatchConfig,
        **_default_or(
            WatchConfig(),
            interval=st.integers(1, 86_400) | st.floats(1, 86_400),
            readings=st.integers(1, 10),
        ),
    )
    disabled = sections(enabled=st.just(False), mode=st.sampled_from(["timer", "service"]))
    timer, service = (
        sections(enabled=st.just(True), mode=st.just(mode), keep_foreign_routes=st.booleans())
        for mode in ("timer", "service")
    )
    return st.just(WatchConfig()) | disabled | timer | service


def configs(*, image: bool = False) -> SearchStrategy[HostRoutingConfig]:
    """Whole configs, from empty to full.

    With `image` they are those that an apply to an image (`Host.offline`) accepts.
    """
    gates = st.lists(gate_names(), max_size=3).map(dict.fromkeys).map(tuple)
    return st.builds(
        HostRoutingConfig,
        static_routes=static_routes_configs(),
        route_overlap=route_overlap_configs(),
        probe_snat=probe_snat_configs(image=image),
        stale_cni=stale_cni_configs(),
        watch=watch_configs(),
        gates=st.just(DEFAULT_GATES) | gates,
        after=_tuples(st.sampled_from(["fabric.service", "sys-class-net-ib0.device"])),
    )


def _of_both(of: Callable[[int], SearchStrategy[T]]) -> SearchStrategy[T]:
    return of(IPV4) | of(IPV6)


def _addresses(family: int, first_byte: int = 0) -> SearchStrategy[str]:
    numbers = _address_numbers(family, first_byte)
    return st.builds(Address, st.just(family), numbers).map(str)


def _networks(family: int, min_length: int = 0, *, first_byte: int = 0) -> SearchStrategy[str]:
    numbers = _address_numbers(family, first_byte)
    lengths = st.integers(min_length, address_bits(family))
    prefixes = st.builds(Prefix, st.just(family), numbers, lengths)
    return prefixes.map(attrgetter("masked")).map(str)


def _address_numbers(family: int, first_byte: int) -> SearchStrategy[int]:
    # Hypothesis prefers small numbers, and neither 0.0.0.0/8 nor ::/80 is a place for a host.
    bits = address_bits(family)
    return st.integers(first_byte << bits - 8, (1 << bits) - 1)


def _usual_or(
    usual: tuple[str, ...], odd: SearchStrategy[str], rule: Callable[[str], object]
) -> SearchStrategy[str]:
    """Draw a usual value, or an odd one; one that the rule refuses becomes the first usual one."""

    def accepted(value: str) -> str:
        try:
            rule(value)
        except ValueError:
            return usual[0]
        return value

    return st.sampled_from(usual) | odd.map(accepted)


def _default_or(section: object, **odd: SearchStrategy[Any]) -> dict[str, SearchStrategy[Any]]:
    """Draw each field as the section of defaults has it, or another value."""
    return {name: st.just(getattr(section, name)) | values for name, values in odd.items()}


def _tuples(members: SearchStrategy[str]) -> SearchStrategy[tuple[str, ...]]:
    return st.lists(members, max_size=3).map(tuple)
