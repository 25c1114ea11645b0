"""The operator's config as frozen values.

    HostRoutingConfig                     the `hostRouting` object
    ├── static_routes: StaticRoutesConfig     routes: a tuple of StaticRoute
    ├── route_overlap: RouteOverlapConfig     addresses that must leave through the outbound device
    ├── probe_snat: ProbeSNATConfig
    ├── stale_cni: StaleCNIConfig
    ├── watch: WatchConfig
    └── gates                                 units that do not start before routing is healthy

A config is validated when it is built, so code that receives one need not check it again. All
errors are reported at once, each with its path. Attributes are snake_case, JSON keys are camelCase.
A missing section is the same as one with only defaults, which does nothing.
"""

from __future__ import annotations

import enum
import os
import select
import stat
from collections.abc import Iterable, Iterator, Mapping
from time import monotonic
from typing import Any, ClassVar, Final, NoReturn

import attrs

from hostrouting.base.errors import ConfigMistake, InvalidConfigError, UnreadableConfigError
from hostrouting.base.values import LightValue
from hostrouting.config import rules
from hostrouting.config.optional import (
    OPTIONAL_SECTIONS,
    ProbeSNATConfig,
    Section,
    StaleCNIConfig,
    WatchConfig,
)
from hostrouting.config.wire import (
    WireValue,
    accepting,
    closest,
    describe,
    errors_under,
    read_json,
    repeated_keys,
    schema_of,
    section,
    setting,
    structured,
    wire,
    wire_fields,
)
from hostrouting.net.addresses import IPV4, IPV6, Prefix
from hostrouting.net.routes import (
    MAIN_TABLE,
    OUR_PROTOCOL,
    ObservedRoute,
    RouteKey,
    metric_words,
    route_key,
)
from phases.mistakes import shown, wrong_argument

#: Devices of well-known CNIs and of the agent's overlay network. Once the first machine has run,
#: their routes are inside expected CIDRs. Overlaps with `docker0` and `br-*` are real.
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
#: By cloud, the addresses that its nodes need, from the vendors' documentation.
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
#: All systemd-nspawn machines, and a kubelet that runs outside one.
DEFAULT_GATES: Final = ("systemd-nspawn@.service", "kubelet.service")
#: Installed and removed together with the gates.
GATE_UNITS: Final = (
    "hostrouting-retry.service",
    "hostrouting-held@.service",
    "hostrouting-waits@.service",
    "hostrouting-ready.service",
)

#: The default timeout for the writer of a pipe, in seconds.
_LONGEST_WAIT = 10.0
#: The next step for a file that cannot be read.
_UNREADABLE: Final[dict[type[Exception], str]] = {
    FileNotFoundError: "check the path",
    IsADirectoryError: "give the path of the JSON file in it",
    PermissionError: "run this as root, or make the file readable",
    TimeoutError: "write the config into it and close it, or allow more time",
}
_KEY = "hostRouting"
#: The only key of the agent that is read: it starts these units before the node joins.
AGENT_LIST: Final = "bootstrap.additionalRequiredServices"
#: The key that tells editors where the schema is.
SCHEMA: Final = "$schema"
_REMOVE_ALL = (
    f'to remove everything that hostrouting installed, write {{"{_KEY}": {{}}}} or use '
    "--allow-empty"
)


@attrs.frozen
class StaticRoute(WireValue):
    """A route that the node must have; a missing gateway or device is looked up at each apply.

    >>> StaticRoute(destination="172.16.1.0/24", gateway="10.224.0.1", dev="eth0").metric
    0
    >>> str(StaticRoute(destination="FD00:1::/64", gateway="fe80::1"))
    'fd00:1::/64 via fe80::1 metric 1'
    >>> StaticRoute(destination="172.16.1.5/24", gateway="10.224.0.1/8")
    Traceback (most recent call last):
    hostrouting.base.errors.InvalidConfigError: 2 errors in the config:
      destination: '172.16.1.5/24' has host bits; the network is '172.16.1.0/24'
      gateway: '10.224.0.1/8' has a prefix length; give the address alone: 10.224.0.1
    """

    destination: str = setting(
        "The destination network, without host bits; never the default route.",
        rules.destination,
        default=attrs.NOTHING,
    )
    gateway: str | None = setting(
        "The gateway; it may be IPv6 for an IPv4 route. Default: that of the default route.",
        rules.gateway,
        default=None,
    )
    dev: str | None = setting(
        "The device. Default: that of the default route. Required for a link-local gateway.",
        rules.optional_device,
        default=None,
    )
    metric: int = setting(
        "Of two routes to a network, the one with the lower metric is used. IPv6: at least 1.",
        rules.whole_number(0, (1 << 32) - 1),
        default=0,
    )

    #: The network of `destination`.
    prefix: Prefix = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        object.__setattr__(self, "prefix", Prefix.parse(self.destination))
        if self.family == IPV6 and not self.metric:
            object.__setattr__(self, "metric", 1)

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterable[ConfigMistake]:
        # An IPv4 route may have an IPv6 gateway: on some networks no router has an IPv4 address.
        is_known = broken.isdisjoint(("destination", "gateway"))
        if not is_known or ":" not in self.destination or not self.gateway or ":" in self.gateway:
            return ()
        step = "give the IPv6 address of that router"
        return [
            ConfigMistake(
                "gateway", f"{self.gateway!r} is IPv4, but {self.destination!r} is IPv6; {step}"
            )
        ]

    @property
    def family(self) -> int:
        """The address family of `destination`."""
        return self.prefix.family

    @property
    def route_key(self) -> RouteKey:
        """The key that the route will have in table main."""
        return MAIN_TABLE, *self.prefix, None, 0, self.metric

    def is_met_by(self, route: ObservedRoute) -> bool:
        """Return True if a kernel route is this one; a missing gateway or device matches any.

        >>> route = ObservedRoute.parse("172.16.1.0/24", "eth0", "10.224.0.1", protocol=142)
        >>> StaticRoute(destination="172.16.1.0/24").is_met_by(route)
        True
        """
        # hostrouting never uses nexthop objects.
        key = route.protocol, route.kind, route_key(route), route.nexthops or route.nexthop_id
        return (
            key == (OUR_PROTOCOL, "unicast", self.route_key, 0)
            and self.dev in {None, route.dev}
            and self.gateway in {None, str(route.gateway)}
        )

    def __str__(self) -> str:
        """Return the route as `ip route` writes it, without what is missing."""
        gateway = f" via {self.gateway}" if self.gateway else ""
        dev = f" dev {self.dev}" if self.dev else ""
        return f"{self.destination}{gateway}{dev}{metric_words(self.metric)}"


def _why_routes_clash(route: StaticRoute, earlier: StaticRoute, index: int) -> str:
    if route == earlier:
        return f"'{route}' repeats routes[{index}]; remove one of them"
    reason = f"'{route}' contradicts routes[{index}] '{earlier}'"
    step = "remove one of them or give it another metric"
    return f"{reason}: there can be only one route for a destination and metric; {step}"


_static_routes = rules.list_of(
    section(StaticRoute),
    # Of two routes with the same destination and metric, the kernel would keep only the later one.
    key=lambda route: (route.destination, route.metric),
    clash=_why_routes_clash,
)


# It is a cache key, and may have thousands of routes.
@attrs.frozen(kw_only=True, cache_hash=True)
class StaticRoutesConfig(Section):
    """The routes that the node must have, now and at every boot."""

    units: ClassVar[tuple[str, ...]] = ("static-routes.service",)
    files: ClassVar[tuple[str, ...]] = ("/etc/aks-flex-node/static-routes.sh",)
    runs_at_boot = True
    idle = "routes is empty"

    enabled: bool = setting("Must be true to install the routes; routes without it are refused.")
    routes: tuple[StaticRoute, ...] = setting(
        "The routes; two with the same destination and metric are refused.",
        _static_routes,
        default=(),
    )

    @property
    def asks(self) -> bool:
        """True if an apply has something to do for it."""
        return bool(self.routes)

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterator[ConfigMistake]:
        if not broken & {"enabled", "routes"} and self.routes and not self.enabled:
            count = f"{len(self.routes)} route{'s are' if len(self.routes) > 1 else ' is'} given"
            yield ConfigMistake(
                "enabled",
                f"is not true, but {count}; set it to true to install them, or remove them",
            )


class OverlapMode(str, enum.Enum):
    """What an overlap does: WARN logs it and writes a marker, STRICT also holds the gates."""

    WARN = "WARN"
    STRICT = "STRICT"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        words = " or ".join(f"'{word}'" for word in cls)
        raise ValueError(f"mode must be {words} (got {value!r}); write OverlapMode.STRICT")


_mode_word = rules.one_of(*map(str, OverlapMode))
_fabric_word = rules.one_of("auto", "off")
_cidrs = rules.list_of(rules.ipv4_cidr)
_cloud = rules.one_of(*PRESETS)


# Go writes an unset string as an empty one.
@accepting({"anyOf": [schema_of(_mode_word), {"type": "string", "maxLength": 0}]})
def _mode(value: object) -> OverlapMode:
    return OverlapMode(_mode_word("WARN" if value == "" else value))


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
        step = f"name it in expected as {value.lower()!r}"
        raise ValueError(f"{value!r} is a cloud, not a CIDR; {step}")
    return rules.expected_cidr(value)


@attrs.frozen(kw_only=True)
class RouteOverlapConfig(LightValue, Section):
    """The addresses that must leave through the outbound device, or through a device of a CNI.

    >>> RouteOverlapConfig(expected_cidrs=("172.16.0.9/16", "172.16.0.0/16"), mode="strict")
    RouteOverlapConfig(expected_cidrs=('172.16.0.0/16',), expected=(), \
mode=<OverlapMode.STRICT: 'STRICT'>, allowed_devs=(), expected_devs=(), fabric='auto')
    """

    units: ClassVar[tuple[str, ...]] = ("check-route-overlap.service",)
    files: ClassVar[tuple[str, ...]] = ("/etc/aks-flex-node/check-route-overlap.sh",)
    runs_at_boot = True
    idle = "expectedCidrs and expected are empty"

    expected_cidrs: tuple[str, ...] = setting(
        "Networks whose traffic must leave through an expected or allowed device; none in "
        "127.0.0.0/8. Host bits are masked.",
        rules.list_of(_expected_cidr),
        default=(),
    )
    expected: tuple[str, ...] = setting(
        "Clouds whose essential addresses are expected as well.",
        rules.list_of(_preset),
        default=(),
    )
    mode: OverlapMode = attrs.field(
        default=OverlapMode.WARN,
        metadata=wire(
            "WARN reports an overlap. STRICT also holds the gates and fails the apply.",
            _mode,
            write=str,
        ),
    )
    allowed_devs: tuple[str, ...] = setting(
        "Shell patterns of devices that are allowed in addition to those of well-known CNIs.",
        rules.list_of(rules.device_pattern),
        default=(),
    )
    expected_devs: tuple[str, ...] = setting(
        "The outbound devices, or IPv4 networks that contain one of their addresses. "
        "Default: the devices of the default route.",
        rules.list_of(rules.expected_device),
        default=(),
    )
    fabric: str | tuple[str, ...] = setting(
        "Networks that are connected later: auto (from WALinuxAgent's files), off, or IPv4 CIDRs.",
        _fabric,
        default="auto",
    )

    @property
    def asks(self) -> bool:
        """True if an apply has something to do for it."""
        return bool(self.expected_cidrs or self.expected)

    @property
    def cidrs(self) -> dict[str, str | None]:
        """Every expected CIDR, with its description in a preset or None."""
        cidrs: dict[str, str | None] = dict.fromkeys(self.expected_cidrs)
        for cloud in self.expected:
            for cidr, name in PRESETS[cloud].items():
                cidrs[cidr] = cidrs.get(cidr) or name
        return cidrs

    @property
    def local(self) -> dict[tuple[str, str], ConfigMistake]:
        """The mistakes for networks in the loopback range, by list and CIDR.

        A new config must not contain one. Earlier releases accepted them, so an installed config
        that contains one stays valid.
        """
        mistakes = {}
        listed = self.fabric if isinstance(self.fabric, tuple) else ()
        for path, cidrs in ("expectedCidrs", self.expected_cidrs), ("fabric", listed):
            for cidr in cidrs:
                try:
                    rules.refuse_local(cidr)
                except ValueError as error:
                    mistakes[path, cidr] = ConfigMistake(f"routeOverlap.{path}", str(error))
        return mistakes


SECTIONS: Final[tuple[type[Section], ...]] = (
    StaticRoutesConfig,
    RouteOverlapConfig,
    *OPTIONAL_SECTIONS,
)
#: All units that hostrouting installs.
OWN_UNITS: Final = frozenset(GATE_UNITS).union(*(section.units for section in SECTIONS))
_gates = rules.list_of(
    rules.gate(OWN_UNITS),
    clash=lambda name, _, index: f"{name!r} repeats gates[{index}]; remove one of them",
)
_after = rules.list_of(rules.awaited_unit(OWN_UNITS))


def _why_gates_clash(after: Iterable[str], gates: Iterable[str]) -> Iterator[ConfigMistake]:
    for index, unit in enumerate(after):
        if not {unit, f"{unit.partition('@')[0]}@.service"}.isdisjoint(gates):
            step = "remove it from one of them"
            reason = f"{unit!r} is one of {_KEY}.gates, so it would wait for itself; {step}"
            yield ConfigMistake(f"[{index}]", reason)


@attrs.frozen(kw_only=True)
class HostRoutingConfig(LightValue, WireValue):
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
        "Units that cannot start before routing is healthy; [] lets everything start.",
        _gates,
        default=DEFAULT_GATES,
    )
    after: tuple[str, ...] = setting(
        "Units that connect networks: routing is checked once each is active or has succeeded. "
        f"Default: {AGENT_LIST} in an agent's config.",
        _after,
        default=(),
    )
    found_devs: tuple[str, ...] = setting(
        "The outbound device that an apply found on a healthy node and wrote into the installed "
        "config. It is used as long as it works, unless expectedDevs is given.",
        rules.list_of(rules.device),
        default=(),
    )
    #: True if `after` was taken from the agent's list.
    inherits_after: bool = attrs.field(default=False, init=False, eq=False, repr=False)
    #: The keys that were given; None for an agent's config without `hostRouting`.
    given: tuple[str, ...] | None = attrs.field(default=(), init=False, eq=False, repr=False)
    #: The key of an agent's config without `hostRouting` that is similar to it.
    misspelt: str | None = attrs.field(default=None, init=False, eq=False, repr=False)
    #: The address families of its routes and expected CIDRs; IPv4 in any case.
    families: tuple[int, ...] = attrs.field(default=(IPV4,), init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        families = {route.family for route in self.static_routes.routes}
        if IPV6 in families or any(":" in cidr for cidr in self.route_overlap.cidrs):
            object.__setattr__(self, "families", (IPV4, IPV6))

    @property
    def devs(self) -> tuple[str, ...]:
        """The outbound devices, or networks that stand for them; () if none are known."""
        return self.route_overlap.expected_devs or self.found_devs

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterable[ConfigMistake]:
        if any(path.startswith(("after", "gates")) for path in broken) or not self.after:
            return ()
        clashes = [*_why_gates_clash(self.after, self.gates)]
        return errors_under("after", InvalidConfigError(clashes)) if clashes else ()

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str] | int, *, timeout: float | None = None
    ) -> HostRoutingConfig:
        """Read a JSON file, a pipe, or an open descriptor (0 is stdin), of at most 1 MiB.

        `timeout` limits the wait for a pipe's writer, in seconds; None means 10 s. Raises
        `UnreadableConfigError`, and the errors of `from_json`.
        """
        if not isinstance(path, str | int | os.PathLike):
            right = "'/etc/config.json', or path=0 for stdin"  # type: ignore[unreachable]  # not all callers are checked
            raise wrong_argument("path", path, "the path of a file", right)
        where = f"on descriptor {path}" if isinstance(path, int) else repr(os.fspath(path))
        name = f"the config {'on stdin' if path == 0 else where}"
        try:
            document = read_source(path, timeout=_LONGEST_WAIT if timeout is None else timeout)
        # Python raises ValueError for a path with a NUL.
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            step = _UNREADABLE.get(type(error), "give the path of another file")
            raise UnreadableConfigError(f"cannot read {name}: {reason}; {step}") from error
        if isinstance(path, int) and not document.strip():
            # The previous command in the pipe has failed.
            step = "see the message of the command before the pipe, or give the path of a config"
            raise InvalidConfigError([ConfigMistake("", f"{name} is empty; {step}")])
        return cls._from_document(read_json(document, name=name))

    @classmethod
    def from_json(cls, document: str | bytes) -> HostRoutingConfig:
        """Read JSON text, or its UTF-8 bytes; see `from_mapping` for the content."""
        if not isinstance(document, str | bytes | bytearray):
            raise TypeError(
                f"document must be JSON text (got {shown(document)}); a mapping is for from_mapping"
            )
        return cls._from_document(read_json(document))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> HostRoutingConfig:
        """Read the `hostRouting` object, or an agent's config that contains it under this key.

        The object may have a `$schema` for editors. Other keys of an agent's config are ignored,
        except that four section names are refused outside `hostRouting`, and that
        `bootstrap.additionalRequiredServices` is the default of `after`. A mapping with neither
        the key nor a section (even a misspelled one) is taken for an agent's config. Then, or if
        the key is null, `given` is None: `Configure` changes nothing, and everything that an
        earlier config installed stays.

        >>> HostRoutingConfig.from_mapping({"nodeName": "gpu-1"}).given is None
        True
        >>> HostRoutingConfig.from_mapping({"staticRoute": {}})
        Traceback (most recent call last):
        hostrouting.base.errors.InvalidConfigError: hostRouting.staticRoute: is not a known key; \
did you mean 'staticRoutes'?
        """
        given: object = mapping  # not all callers are checked
        if isinstance(given, str | bytes | os.PathLike):
            raise TypeError(
                f"mapping must be a mapping (got {shown(given)}); JSON text is for from_json, and "
                "a path is for from_file"
            )
        return cls._from_document(mapping)

    @classmethod
    def _from_document(cls, document: Any) -> HostRoutingConfig:
        known = [_KEY, *wire_fields(cls)]
        # An agent's config has our key, or neither our key nor a section. `staticRoute` and
        # `stale_cni` are misspelled sections; `gateway` and `watchdog` are not.
        is_whole = isinstance(document, Mapping) and (
            _KEY in document
            or all(
                isinstance(key, str) and not closest(key, known, similarity=0.8) for key in document
            )
        )
        whole = document if is_whole else {_KEY: document}
        if _KEY in repeated_keys(whole):
            raise InvalidConfigError(
                [ConfigMistake(_KEY, "is given more than once; keep only one")]
            )
        content: Any = whole.get(_KEY)
        # An agent written in Go writes an unset pointer as null.
        is_absent = whole is document and content is None
        others = {key for key in whole if isinstance(key, str)} - {_KEY} if is_absent else ()
        misplaced = [
            ConfigMistake(key, f"must be inside {_KEY}; move it to {_KEY}.{key}")
            for key, section in _sections(cls).items()
            if section.is_reserved and whole.get(key) is not None
        ]
        also_known = () if whole is document else [_KEY]
        content = {} if is_absent else content
        ignored = () if whole is document else [SCHEMA]
        config = structured(
            cls, content, also_known=also_known, ignored=ignored, more_errors=misplaced
        )
        given = None if is_absent else tuple(key for key in content if key not in ignored)
        object.__setattr__(config, "given", given)
        # Not `hostNetworking`, which is somebody else's.
        object.__setattr__(config, "misspelt", closest(_KEY, others, similarity=0.7))
        if whole is document and config.route_overlap.cidrs and content.get("after") is None:
            units = _agent_list(whole, config.gates)
            object.__setattr__(config, "after", units)
            object.__setattr__(config, "inherits_after", bool(units))
        return config

    @property
    def asks(self) -> bool:
        """True if it has a route, an expected address or an optional feature to install."""
        return any(section.asks for section in self.sections.values())

    @property
    def sections(self) -> dict[str, Section]:
        """The sections by the names of their attributes."""
        names = (field.name for field in wire_fields(type(self)).values())
        values = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in values if isinstance(value, Section)}

    @property
    def void(self) -> list[ConfigMistake]:
        """Why each of its keys installs nothing; empty for `{}`, which removes everything.

        >>> str(HostRoutingConfig.from_mapping({"staticRoutes": {"enabled": True}}).void[1])
        'hostRouting.staticRoutes: installs nothing: routes is empty'
        >>> HostRoutingConfig.from_mapping({"hostRouting": {}}).void
        []
        """
        if self.asks:
            return []
        if self.given is None:
            guess = f"{self.misspelt!r} a misspelling" if self.misspelt else "this the right config"
            reason = f"is missing or null (is {guess}?); {_REMOVE_ALL}"
            return [ConfigMistake(_KEY, reason)]
        sections = _sections(type(self))
        empty = []
        for key in self.given or self.to_mapping():
            idle = sections[key].idle if key in sections else ""
            reason = f": {idle}" if idle else ""
            empty.append(ConfigMistake(f"{_KEY}.{key}", f"installs nothing{reason}"))
        return empty and [ConfigMistake(_KEY, f"installs nothing; {_REMOVE_ALL}"), *empty]


def _sections(cls: type[HostRoutingConfig]) -> dict[str, Section]:
    """Return the default of each section by its key."""
    fields = wire_fields(cls).items()
    return {key: field.default for key, field in fields if isinstance(field.default, Section)}


def _agent_list(whole: Mapping[str, Any], gates: Iterable[str]) -> tuple[str, ...]:
    bootstrap, _, key = AGENT_LIST.partition(".")
    section = whole.get(bootstrap)
    given = section.get(key) if isinstance(section, Mapping) else None
    try:
        units = _after(given or ())
        if clashes := [*_why_gates_clash(units, gates)]:
            raise InvalidConfigError(clashes)
    except ValueError as error:
        mistakes = errors_under(AGENT_LIST, error)
        step = f"or name the units in {_KEY}.after, which overrides this list"
        mistakes = [ConfigMistake(path, f"{message}; {step}") for path, message in mistakes]
        raise InvalidConfigError(mistakes) from error
    return units


def require_config(config: object) -> HostRoutingConfig:
    """Return the config; raise TypeError for any other value.

    >>> require_config({"staticRoutes": {}})
    Traceback (most recent call last):
    TypeError: config must be a HostRoutingConfig (got {'staticRoutes': {}}); \
write config=HostRoutingConfig.from_mapping({...})
    """
    if not isinstance(config, HostRoutingConfig):
        right = "HostRoutingConfig.from_mapping({...})"
        raise wrong_argument("config", config, "a HostRoutingConfig", right)
    return config


_MOST = 1 << 20
_CHUNK = 1 << 16
#: Python handles a signal that arrives just before a system call only after the call.
_SECONDS_AT_ONCE = 1


def read_source(source: str | os.PathLike[str] | int, *, timeout: float) -> bytes:
    """Return the content of a path or an open descriptor, at most 1 MiB.

    Raises OSError or ValueError with the reason. A device is never opened, because opening it may
    have an effect, as with a watchdog. `timeout` limits the whole call, in seconds.

    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile() as file:
    ...     read_source(file.name, timeout=1)
    b''
    """
    mode = os.stat(source).st_mode  # noqa: PTH116 (pathlib would be loaded for this line alone)
    if not isinstance(source, int) and (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
        raise ValueError("it is a device, but a config must be a file or a pipe")
    waiting = select.poll()
    end = monotonic() + timeout
    content = b""
    # Without O_NONBLOCK, opening a pipe would wait for its writer forever.
    with open(
        source,
        "rb",
        0,
        opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK),
        closefd=not isinstance(source, int),
    ) as file:
        waiting.register(file, select.POLLIN)
        while len(content) <= _MOST:
            remaining = end - monotonic()
            if not waiting.poll(max(0, min(remaining, _SECONDS_AT_ONCE)) * 1000):
                if remaining <= 0:
                    raise TimeoutError(f"the writer did not close it within {timeout:g} s")
                continue
            if not (chunk := file.read(_CHUNK)):
                return content
            content += chunk
    raise ValueError("it is larger than 1 MiB")
