"""The operator's config as frozen values.

    HostRoutingConfig                     the `hostRouting` object
    ├── static_routes: StaticRoutesConfig     routes: a tuple of StaticRoute
    ├── route_overlap: RouteOverlapConfig     addresses that must leave by the node's own device, and OverlapMode
    ├── probe_snat: ProbeSNATConfig
    ├── stale_cni: StaleCNIConfig
    ├── watch: WatchConfig
    └── gates                                 units that may not start before routing is right

A value is checked when it is built, so code that has a config need not check it again. All errors
are reported at once, each with its path. Attributes are the snake_case of the wire's camelCase. An
absent section equals a section of defaults, which do nothing.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

import attrs

from hostrouting.config import rules
from hostrouting.config.siblings import ProbeSNATConfig, StaleCNIConfig, WatchConfig
from hostrouting.config.source import read_source
from hostrouting.config.wire import (
    WireValue,
    accepting,
    closest,
    describe,
    read_json,
    repeated_keys,
    schema_of,
    section,
    setting,
    structured,
    wire,
    wire_fields,
)
from hostrouting.exceptions import ConfigMistake, InvalidConfigError, UnreadableConfigError
from hostrouting.net.addresses import IPV4, IPV6, Prefix
from hostrouting.net.routes import MAIN_TABLE, OUR_PROTOCOL, ObservedRoute, Place, place

#: Devices of well-known CNIs and of the sibling agent's overlay: once the first machine has run,
#: their routes lie inside expected CIDRs, and rightly so. `docker0` and `br-*` are missing on
#: purpose: those overlaps are real.
DEFAULT_ALLOWED_DEVS: Final = (
    "cni*",
    "cbr0",
    "cilium_*",
    "lxc*",
    "cali*",
    "vxlan.calico",
    "tunl0",
    "azure0",
    "azv*",
    "flannel*",
    "veth*",
    "kube-*",
    "nodelocaldns",
    "localdns",
    "antrea-gw0",
    "weave",
    "ovn-k8s-mp0",
    "genev_sys_*",
    "unbounded0",
    "wg518*",
    "geneve0",
    "vxlan0",
    "ipip0",
)
#: The addresses without which a node of a cloud is lost, from the vendors' documentation, each with
#: its name.
PRESETS: Final = {
    "azure": {
        "168.63.129.16/32": "Azure platform: DHCP, DNS, health probes",
        "169.254.169.254/32": "Azure instance metadata",
    },
    "aws": {
        "169.254.169.254/32": "Amazon instance metadata",
        "169.254.169.253/32": "Amazon DNS resolver",
    },
    "aws-ipv6": {
        "fd00:ec2::254/128": "Amazon instance metadata",
    },
    "gcp": {
        "169.254.169.254/32": "Google instance metadata and DNS",
    },
}
#: Every machine of systemd-nspawn, whatever its name, and a kubelet that runs outside of one.
DEFAULT_GATES: Final = ("systemd-nspawn@.service", "kubelet.service")

#: The next step for the user whose file cannot be read.
_UNREADABLE: Final[dict[type[Exception], str]] = {
    FileNotFoundError: "check the path",
    IsADirectoryError: "give the path of the JSON file in it",
    PermissionError: "run this as root, or make the file readable",
    TimeoutError: "write the config into it and close it, or allow more time",
}
_KEY: Final = "hostRouting"
#: Why a section installs nothing, for those whose names no agent uses for a key of its own.
_EMPTY: Final = {
    "staticRoutes": ": routes is empty",
    "routeOverlap": ": expectedCidrs and expected are empty",
    "probeSnat": ": enabled is not true",
    "staleCni": ": enabled is not true",
}
_REMOVE_ALL: Final = (
    f'to remove all that hostrouting installed, write {{"{_KEY}": {{}}}} or use --allow-empty'
)


@attrs.frozen(kw_only=True)
class StaticRoute(WireValue):
    """A route that the node must have; an absent gateway or device is looked up when the route is applied.

    >>> StaticRoute(destination="172.16.1.0/24", gateway="10.224.0.1", dev="eth0").metric
    0
    >>> str(StaticRoute(destination="FD00:1::/64", gateway="fe80::1"))
    'fd00:1::/64 via fe80::1 metric 1'
    >>> StaticRoute(destination="172.16.1.5/24", gateway="10.224.0.1/8")
    Traceback (most recent call last):
    hostrouting.exceptions.InvalidConfigError: 2 errors in the config:
      destination: '172.16.1.5/24' has host bits; the network is '172.16.1.0/24'
      gateway: '10.224.0.1/8' is not an IPv4 address
    """

    destination: str = attrs.field(
        metadata=wire(
            "The network that the route leads to, without host bits. The default route cannot be set.",
            rules.destination,
        )
    )
    gateway: str | None = setting(
        "The next router. Without it: that of the device's default route. An IPv4 route may have an IPv6 one.",
        rules.gateway,
        default=None,
    )
    dev: str | None = setting(
        "The device by which packets leave. Without it: that of the default route. A link-local gateway needs it.",
        rules.optional_device,
        default=None,
    )
    metric: int = setting(
        "Of two routes to one network the one with the lower metric decides. An IPv6 route without it has 1.",
        rules.whole_number(0, 0xFFFFFFFF),
        default=0,
    )

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if ":" in self.destination and not self.metric:
            object.__setattr__(self, "metric", 1)

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterable[ConfigMistake]:
        # An IPv4 route may have an IPv6 gateway: on some networks no router has an IPv4 address.
        is_known = broken.isdisjoint(("destination", "gateway"))
        if not is_known or ":" not in self.destination or not self.gateway or ":" in self.gateway:
            return ()
        step = "name the IPv6 address of that router"
        return [
            ConfigMistake(
                "gateway", f"{self.gateway!r} is IPv4, and {self.destination!r} is IPv6; {step}"
            )
        ]

    @property
    def family(self) -> int:
        """The address family of `destination`."""
        return IPV6 if ":" in self.destination else IPV4

    @property
    def prefix(self) -> Prefix:
        """The network of `destination`."""
        return Prefix.parse(self.destination)

    @property
    def place(self) -> Place:
        """The place that the route will have in table main."""
        return MAIN_TABLE, *self.prefix, None, 0, self.metric

    def is_met_by(self, route: ObservedRoute) -> bool:
        """Return True if a route of the kernel is this one, by any gateway or device where it names none.

        >>> route = ObservedRoute.parse("172.16.1.0/24", "eth0", "10.224.0.1", protocol=OUR_PROTOCOL)
        >>> StaticRoute(destination="172.16.1.0/24").is_met_by(route)
        True
        """
        is_ours = (route.protocol, route.kind, place(route)) == (
            OUR_PROTOCOL,
            "unicast",
            self.place,
        )
        parts = (self.dev, route.dev), (self.gateway, str(route.gateway))
        return (
            is_ours and not route.nexthops and all(named in {None, part} for named, part in parts)
        )

    def __str__(self) -> str:
        """Return the route as `ip route` writes it, without the absent parts."""
        gateway = f" via {self.gateway}" if self.gateway else ""
        dev = f" dev {self.dev}" if self.dev else ""
        metric = f" metric {self.metric}" if self.metric else ""
        return f"{self.destination}{gateway}{dev}{metric}"


def _why_routes_clash(route: StaticRoute, earlier: StaticRoute, index: int) -> str:
    if route == earlier:
        return f"'{route}' repeats routes[{index}]; remove one of them"
    step = "one destination and metric can go one way only; remove one of them or give it another metric"
    return f"'{route}' contradicts routes[{index}] '{earlier}': {step}"


_static_routes = rules.list_of(
    section(StaticRoute),
    # The kernel keeps one route for a destination and metric: the later one would replace the
    # earlier.
    key=lambda route: (route.destination, route.metric),
    clash=_why_routes_clash,
)


# Other values are found by their config, which may have thousands of routes.
@attrs.frozen(kw_only=True, cache_hash=True)
class StaticRoutesConfig(WireValue):
    """The routes that the node must have, now and at every boot."""

    enabled: bool = setting("Must be true to install the routes; false with routes is refused.")
    routes: tuple[StaticRoute, ...] = setting(
        "The routes; two with the same destination and metric are refused.",
        _static_routes,
        default=(),
    )

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterator[ConfigMistake]:
        if not broken & {"enabled", "routes"} and self.routes and not self.enabled:
            count = f"{len(self.routes)} route{'s are' if len(self.routes) > 1 else ' is'} given"
            yield ConfigMistake(
                "enabled",
                f"is not true, but {count}; set it to true to install them, or remove them",
            )


class OverlapMode(str, enum.Enum):
    """The effect of an overlap: WARN logs it and writes a marker, STRICT also keeps the gates from starting."""

    WARN = "WARN"
    STRICT = "STRICT"

    def __str__(self) -> str:
        return self.value


_mode_word = rules.one_of(*map(str, OverlapMode))
_fabric_word = rules.one_of("auto", "off")
_cidrs = rules.list_of(rules.ipv4_cidr)
_cloud = rules.one_of(*PRESETS)


# Go writes an unset text as an empty one.
@accepting({"anyOf": [schema_of(_mode_word), {"type": "string", "maxLength": 0}]})
def _mode(value: object) -> OverlapMode:
    return OverlapMode(_mode_word(value or "WARN"))


@accepting({"anyOf": [schema_of(_fabric_word), schema_of(_cidrs)]})
def _fabric(value: object) -> str | tuple[str, ...]:
    if isinstance(value, list | tuple):
        return _cidrs(value)
    try:
        return _fabric_word(value)
    except ValueError:
        raise ValueError(
            f"expected 'auto', 'off' or a list of IPv4 CIDRs, found {describe(value)}"
        ) from None


@accepting(schema_of(_cloud))
def _preset(value: object) -> str:
    try:
        return _cloud(value)
    except ValueError as error:
        if isinstance(value, str) and value[:1].isdigit():
            raise ValueError(f"{error}; name addresses in expectedCidrs") from None
        raise


@accepting(schema_of(rules.expected_cidr))
def _expected_cidr(value: object) -> str:
    if isinstance(value, str) and value.lower() in PRESETS:
        raise ValueError(
            f"{value!r} is a cloud, and no CIDR; name it in expected, as {value.lower()!r}"
        )
    return rules.expected_cidr(value)


@attrs.frozen(kw_only=True)
class RouteOverlapConfig(WireValue):
    """The addresses that must leave by the node's own device, or by one that a CNI made.

    >>> RouteOverlapConfig(expected_cidrs=("172.16.0.9/16", "172.16.0.0/16"), mode="strict")
    RouteOverlapConfig(expected_cidrs=('172.16.0.0/16',), expected=(), mode=<OverlapMode.STRICT: 'STRICT'>, \
allowed_devs=(), expected_devs=(), fabric='auto')
    """

    expected_cidrs: tuple[str, ...] = setting(
        "Networks that must leave by an expected or allowed device, in every address. Host bits are masked.",
        rules.list_of(_expected_cidr),
        default=(),
    )
    expected: tuple[str, ...] = setting(
        "Clouds, for the addresses without which one of their nodes is lost.",
        rules.list_of(_preset),
        default=(),
    )
    mode: OverlapMode = attrs.field(
        default=OverlapMode.WARN,
        metadata=wire(
            "WARN reports an overlap. STRICT also holds the gates, and fails an apply.",
            _mode,
            write=str,
        ),
    )
    allowed_devs: tuple[str, ...] = setting(
        "Patterns as of a shell for devices that may take expected networks, beside those of well-known CNIs.",
        rules.list_of(rules.device_pattern),
        default=(),
    )
    expected_devs: tuple[str, ...] = setting(
        "The devices by which expected networks must leave. Without it: those of the default route.",
        rules.list_of(rules.device),
        default=(),
    )
    fabric: str | tuple[str, ...] = setting(
        "Networks that will be connected later: auto (from WALinuxAgent's files), off, or a list of IPv4 CIDRs.",
        _fabric,
        default="auto",
    )

    #: The expected CIDRs that had host bits, as they were given.
    masked: tuple[str, ...] = attrs.field(default=(), init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        given = self.expected_cidrs
        super().__attrs_post_init__()
        # Another spelling of an IPv6 network differs, too.
        respelled = (text for text in given if text not in self.expected_cidrs)
        masked = tuple(
            text for text in respelled if Prefix.parse(text) != Prefix.parse(text).masked
        )
        object.__setattr__(self, "masked", masked)

    @property
    def cidrs(self) -> dict[str, str | None]:
        """Every expected CIDR with the name that its preset gives it, or None."""
        cidrs: dict[str, str | None] = dict.fromkeys(self.expected_cidrs)
        for cloud in self.expected:
            for cidr, name in PRESETS[cloud].items():
                cidrs[cidr] = cidrs.get(cidr) or name
        return cidrs


_gates = rules.list_of(
    rules.gate, clash=lambda name, _, index: f"{name!r} repeats gates[{index}]; remove one of them"
)


@attrs.frozen(kw_only=True)
class HostRoutingConfig(WireValue):
    """The operator's config of a node's routing.

    >>> config = HostRoutingConfig.from_json('''{"hostRouting": {
    ...     "staticRoutes": {"enabled": true, "routes": [{"destination": "172.16.1.0/24"}]},
    ...     "routeOverlap": {"expectedCidrs": ["172.16.0.0/16"], "mode": "STRICT"}}}''')
    >>> config.static_routes.routes[0].destination, config.gates
    ('172.16.1.0/24', ('systemd-nspawn@.service', 'kubelet.service'))
    >>> HostRoutingConfig.from_mapping(config.to_mapping()) == config
    True
    """

    _path: ClassVar[str] = _KEY

    static_routes: StaticRoutesConfig = StaticRoutesConfig()
    route_overlap: RouteOverlapConfig = RouteOverlapConfig()
    probe_snat: ProbeSNATConfig = ProbeSNATConfig()
    stale_cni: StaleCNIConfig = StaleCNIConfig()
    watch: WatchConfig = WatchConfig()
    gates: tuple[str, ...] = setting(
        "Units that cannot start before routing is right; [] lets everything start.",
        _gates,
        default=DEFAULT_GATES,
    )
    #: The keys of the document that it was read from; None for a whole agent config without it,
    #: which wants nothing.
    given: tuple[str, ...] | None = attrs.field(default=(), init=False, eq=False, repr=False)
    #: The address families of its routes and expected CIDRs; IPv4 in any case.
    families: tuple[int, ...] = attrs.field(default=(IPV4,), init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        named = (
            *(route.destination for route in self.static_routes.routes),
            *self.route_overlap.cidrs,
        )
        if any(":" in text for text in named):
            object.__setattr__(self, "families", (IPV4, IPV6))

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str] | int, *, timeout: float | None = None
    ) -> HostRoutingConfig:
        """Read a JSON file; raise `UnreadableConfigError` if it cannot be read, and the errors of `from_json`.

        It is a file, a pipe, or the descriptor of stdin, of at most 1 MiB; `timeout` limits the
        wait for a pipe's writer, in seconds.
        """
        name = "the config on stdin" if isinstance(path, int) else f"the config {os.fspath(path)!r}"
        try:
            document = read_source(path, timeout=timeout)
        # A path with a NUL in it is a ValueError before the system sees it.
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            step = _UNREADABLE.get(type(error), "give the path of another file")
            raise UnreadableConfigError(f"cannot read {name}: {reason}; {step}") from error
        return cls.from_mapping(read_json(document, name=name))

    @classmethod
    def from_json(cls, document: str | bytes) -> HostRoutingConfig:
        """Read JSON text, or its bytes in UTF-8; see `from_mapping` for its content."""
        return cls.from_mapping(read_json(document))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> HostRoutingConfig:
        """Read the `hostRouting` object, or a whole agent config that has it under this key.

        With the key it is a whole config, whose further keys are ignored, except that four sections
        beside the key are refused. A mapping without the key in which nothing is, or is probably
        meant to be, a section is a whole config, too, and like one with null there it wants
        nothing: `Configure` changes nothing, and what an earlier config installed stays. `given` is
        None then.

        >>> HostRoutingConfig.from_mapping({"nodeName": "gpu-1"}).given is None
        True
        >>> HostRoutingConfig.from_mapping({"staticRoute": {}})
        Traceback (most recent call last):
        hostrouting.exceptions.InvalidConfigError: hostRouting.staticRoute: is not a known key; did you mean \
'staticRoutes'?
        """
        document: Any = (
            mapping  # in truth: not every caller has a type checker, and JSON may be a list
        )
        known = [_KEY, *wire_fields(cls)]
        # `staticRoute` and `stale_cni` are mistyped sections; `gateway` and `watchdog` are an
        # agent's own keys.
        is_whole = isinstance(document, Mapping) and (
            _KEY in document
            or all(
                isinstance(key, str) and not closest(key, known, similarity=0.8) for key in document
            )
        )
        whole = document if is_whole else {_KEY: document}
        if _KEY in repeated_keys(whole):
            raise InvalidConfigError([ConfigMistake(_KEY, "is given more than once; keep one")])
        ours: Any = whole.get(_KEY)
        # An agent written in Go writes an unset pointer as null.
        is_absent = is_whole and ours is None
        beside = [
            ConfigMistake(key, f"has no effect beside {_KEY}; move it to {_KEY}.{key}")
            for key in _EMPTY
            if whole.get(key) is not None
        ]
        config = structured(
            cls, {} if is_absent else ours, also_known=() if is_whole else [_KEY], others=beside
        )
        object.__setattr__(config, "given", None if is_absent else tuple(ours))
        return config

    @property
    def asks(self) -> bool:
        """True if it wants a route, a proof or a sibling; any other config installs nothing."""
        return bool(
            self.static_routes.routes
            or self.route_overlap.cidrs
            or self.probe_snat.enabled
            or self.stale_cni.enabled
        )

    @property
    def void(self) -> list[ConfigMistake]:
        """Why it wants nothing, for each of its keys; empty for `{}`, which removes everything.

        >>> HostRoutingConfig.from_mapping({"staticRoutes": {"enabled": True}}).void[1:]
        [ConfigMistake(path='hostRouting.staticRoutes', message='asks for nothing: routes is empty')]
        >>> HostRoutingConfig.from_mapping({"hostRouting": {}}).void
        []
        """
        if self.asks:
            return []
        if self.given is None:
            return [
                ConfigMistake(_KEY, f"is missing or null: is this the right config? {_REMOVE_ALL}")
            ]
        keys = self.given or self.to_mapping()
        empty = [
            ConfigMistake(f"{_KEY}.{key}", f"asks for nothing{_EMPTY.get(key, '')}") for key in keys
        ]
        return empty and [ConfigMistake(_KEY, f"installs nothing; {_REMOVE_ALL}"), *empty]


def require_config(config: object) -> HostRoutingConfig:
    """Return the config; raise the error of a caller without a type checker.

    >>> require_config({"staticRoutes": {}})
    Traceback (most recent call last):
    TypeError: expected a HostRoutingConfig, not dict; make one: HostRoutingConfig.from_mapping({...})
    """
    if not isinstance(config, HostRoutingConfig):
        step = "make one: HostRoutingConfig.from_mapping({...})"
        raise TypeError(f"expected a HostRoutingConfig, not {type(config).__name__}; {step}")
    return config
