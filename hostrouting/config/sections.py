"""The operator's config as frozen values.

    HostRoutingConfig                     the `hostRouting` object
    ├── static_routes: StaticRoutesConfig     routes: a tuple of StaticRoute
    ├── route_overlap: RouteOverlapConfig     addresses that must leave by the node's own device
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
import select
import stat
from collections.abc import Iterable, Iterator, Mapping
from time import monotonic
from typing import Any, ClassVar, Final, NoReturn

import attrs

from hostrouting.base.errors import ConfigMistake, InvalidConfigError, UnreadableConfigError
from hostrouting.base.values import LightValue
from hostrouting.config import rules
from hostrouting.config.siblings import (
    SIBLINGS,
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

#: Devices of well-known CNIs and of the sibling agent's overlay, whose routes lie inside expected
#: CIDRs once the first machine has run. Overlaps by `docker0` and `br-*` are real.
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
#: By cloud, the addresses that its nodes cannot do without, from the vendors' documentation.
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
#: Every machine of systemd-nspawn, and a kubelet that runs outside of one.
DEFAULT_GATES: Final = ("systemd-nspawn@.service", "kubelet.service")
#: Installed and removed with the gates, for every section.
GATE_UNITS: Final = (
    "hostrouting-retry.service",
    "hostrouting-held@.service",
    "hostrouting-waits@.service",
    "hostrouting-ready.service",
)

#: Seconds for the writer of a pipe, unless the caller gives a time.
_LONGEST_WAIT = 10.0
#: The next step for a file that cannot be read.
_UNREADABLE: Final[dict[type[Exception], str]] = {
    FileNotFoundError: "check the path",
    IsADirectoryError: "give the path of the JSON file in it",
    PermissionError: "run this as root, or make the file readable",
    TimeoutError: "write the config into it and close it, or allow more time",
}
_KEY = "hostRouting"
#: The only foreign key that is read: the agent starts these units before the node joins.
AGENT_LIST: Final = "bootstrap.additionalRequiredServices"
#: The key by which editors find the schema of a file.
SCHEMA: Final = "$schema"
_REMOVE_ALL = (
    f'to remove all that hostrouting installed, write {{"{_KEY}": {{}}}} or use --allow-empty'
)


@attrs.frozen
class StaticRoute(WireValue):
    """A route that the node must have; an absent gateway or device is looked up at each apply.

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
        "The network that the route leads to, without host bits; never the default route.",
        rules.destination,
        default=attrs.NOTHING,
    )
    gateway: str | None = setting(
        "The next router; for IPv4 also an IPv6 one. Without it: that of the default route.",
        rules.gateway,
        default=None,
    )
    dev: str | None = setting(
        "The device. Without it: that of the default route. A link-local gateway needs it.",
        rules.optional_device,
        default=None,
    )
    metric: int = setting(
        "Of two routes to one network the lower metric decides. IPv6 routes have 1 without it.",
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
        step = "name the IPv6 address of that router"
        return [
            ConfigMistake(
                "gateway", f"{self.gateway!r} is IPv4, and {self.destination!r} is IPv6; {step}"
            )
        ]

    @property
    def family(self) -> int:
        """The address family of `destination`."""
        return self.prefix.family

    @property
    def route_key(self) -> RouteKey:
        """The place that the route will have in table main."""
        return MAIN_TABLE, *self.prefix, None, 0, self.metric

    def is_met_by(self, route: ObservedRoute) -> bool:
        """Return True if a route of the kernel is this one; an absent gateway or device fits any.

        >>> route = ObservedRoute.parse("172.16.1.0/24", "eth0", "10.224.0.1", protocol=142)
        >>> StaticRoute(destination="172.16.1.0/24").is_met_by(route)
        True
        """
        # An apply makes no route with a nexthop object.
        key = route.protocol, route.kind, route_key(route), route.nexthops or route.nexthop_id
        return (
            key == (OUR_PROTOCOL, "unicast", self.route_key, 0)
            and self.dev in {None, route.dev}
            and self.gateway in {None, str(route.gateway)}
        )

    def __str__(self) -> str:
        """Return the route as `ip route` writes it, without the absent parts."""
        gateway = f" via {self.gateway}" if self.gateway else ""
        dev = f" dev {self.dev}" if self.dev else ""
        return f"{self.destination}{gateway}{dev}{metric_words(self.metric)}"


def _why_routes_clash(route: StaticRoute, earlier: StaticRoute, index: int) -> str:
    if route == earlier:
        return f"'{route}' repeats routes[{index}]; remove one of them"
    reason = f"'{route}' contradicts routes[{index}] '{earlier}'"
    step = "remove one of them or give it another metric"
    return f"{reason}: one destination and metric can go one way only; {step}"


_static_routes = rules.list_of(
    section(StaticRoute),
    # The kernel keeps one route for a destination and metric: the later would replace the earlier.
    key=lambda route: (route.destination, route.metric),
    clash=_why_routes_clash,
)


# Other values are found by their config, which may have thousands of routes.
@attrs.frozen(kw_only=True, cache_hash=True)
class StaticRoutesConfig(Section):
    """The routes that the node must have, now and at every boot."""

    units: ClassVar[tuple[str, ...]] = ("static-routes.service",)
    files: ClassVar[tuple[str, ...]] = ("/etc/aks-flex-node/static-routes.sh",)
    runs_at_boot = True
    idle = "routes is empty"

    enabled: bool = setting("Must be true to install the routes; false with routes is refused.")
    routes: tuple[StaticRoute, ...] = setting(
        "The routes; two with the same destination and metric are refused.",
        _static_routes,
        default=(),
    )

    @property
    def asks(self) -> bool:
        """See `Section`."""
        return bool(self.routes)

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterator[ConfigMistake]:
        if not broken & {"enabled", "routes"} and self.routes and not self.enabled:
            count = f"{len(self.routes)} route{'s are' if len(self.routes) > 1 else ' is'} given"
            yield ConfigMistake(
                "enabled",
                f"is not true, but {count}; set it to true to install them, or remove them",
            )


class OverlapMode(str, enum.Enum):
    """The effect of an overlap: WARN logs it and writes a marker, STRICT also holds the gates."""

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


# Go writes an unset text as an empty one.
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
    """The addresses that must leave by the node's own device, or by one that a CNI made.

    >>> RouteOverlapConfig(expected_cidrs=("172.16.0.9/16", "172.16.0.0/16"), mode="strict")
    RouteOverlapConfig(expected_cidrs=('172.16.0.0/16',), expected=(), \
mode=<OverlapMode.STRICT: 'STRICT'>, allowed_devs=(), expected_devs=(), fabric='auto')
    """

    units: ClassVar[tuple[str, ...]] = ("check-route-overlap.service",)
    files: ClassVar[tuple[str, ...]] = ("/etc/aks-flex-node/check-route-overlap.sh",)
    runs_at_boot = True
    idle = "expectedCidrs and expected are empty"

    expected_cidrs: tuple[str, ...] = setting(
        "Networks that must leave by an expected or allowed device, none of them in 127.0.0.0/8. "
        "Host bits are masked.",
        rules.list_of(_expected_cidr),
        default=(),
    )
    expected: tuple[str, ...] = setting(
        "Clouds, for the addresses that their nodes cannot do without.",
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
        "Shell patterns of more devices for expected networks, in addition to well-known CNIs.",
        rules.list_of(rules.device_pattern),
        default=(),
    )
    expected_devs: tuple[str, ...] = setting(
        "The devices for expected networks, or IPv4 networks in which they have an address. "
        "Without it: those of the default route.",
        rules.list_of(rules.expected_device),
        default=(),
    )
    fabric: str | tuple[str, ...] = setting(
        "Networks connected later: auto (from WALinuxAgent's files), off, or a list of IPv4 CIDRs.",
        _fabric,
        default="auto",
    )

    @property
    def asks(self) -> bool:
        """See `Section`."""
        return bool(self.expected_cidrs or self.expected)

    @property
    def cidrs(self) -> dict[str, str | None]:
        """Every expected CIDR with its name in a preset, or None."""
        cidrs: dict[str, str | None] = dict.fromkeys(self.expected_cidrs)
        for cloud in self.expected:
            for cidr, name in PRESETS[cloud].items():
                cidrs[cidr] = cidrs.get(cidr) or name
        return cidrs

    @property
    def local(self) -> dict[tuple[str, str], ConfigMistake]:
        """The mistake of each network that is the node's own loopback, by its list and its CIDR.

        A new config may not have one. Earlier releases took them, so an installed one stays valid.
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


SECTIONS: Final[tuple[type[Section], ...]] = (StaticRoutesConfig, RouteOverlapConfig, *SIBLINGS)
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
            reason = f"{unit!r} is one of {_KEY}.gates, and would wait for itself; {step}"
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
        "Units that cannot start before routing is right; [] lets everything start.",
        _gates,
        default=DEFAULT_GATES,
    )
    after: tuple[str, ...] = setting(
        "Units that connect networks: routing is proven once each is active or has succeeded. "
        f"Without it: {AGENT_LIST} of an agent's config.",
        _after,
        default=(),
    )
    found_devs: tuple[str, ...] = setting(
        "The device by which the node left when an apply found it right. An apply writes it into "
        "the installed config; it stands for expectedDevs, where they are missing, while it works.",
        rules.list_of(rules.device),
        default=(),
    )
    #: True if `after` is the agent's list.
    inherits_after: bool = attrs.field(default=False, init=False, eq=False, repr=False)
    #: The keys of the document that it was read from; None for an agent's config without it.
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
        """The devices, or networks, by which the node should leave; () if none are known."""
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

        `timeout` limits the wait for a pipe's writer, in seconds; None is 10 s. Raises
        `UnreadableConfigError`, and the errors of `from_json`.
        """
        if not isinstance(path, str | int | os.PathLike):
            right = "'/etc/config.json', or path=0 for stdin"  # type: ignore[unreachable]  # not all callers are checked
            raise wrong_argument("path", path, "the path of a file", right)
        where = f"on descriptor {path}" if isinstance(path, int) else repr(os.fspath(path))
        name = f"the config {'on stdin' if path == 0 else where}"
        try:
            document = read_source(path, timeout=_LONGEST_WAIT if timeout is None else timeout)
        # Python refuses a path with a NUL by a ValueError.
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            step = _UNREADABLE.get(type(error), "give the path of another file")
            raise UnreadableConfigError(f"cannot read {name}: {reason}; {step}") from error
        if isinstance(path, int) and not document.strip():
            # In a pipe a command has failed before.
            step = "see the message of the command before the pipe, or give the path of a config"
            raise InvalidConfigError([ConfigMistake("", f"{name} is empty; {step}")])
        return cls._from_document(read_json(document, name=name))

    @classmethod
    def from_json(cls, document: str | bytes) -> HostRoutingConfig:
        """Read JSON text, or its bytes in UTF-8; see `from_mapping` for its content."""
        if not isinstance(document, str | bytes | bytearray):
            raise TypeError(
                f"document must be JSON text (got {shown(document)}); a mapping is for from_mapping"
            )
        return cls._from_document(read_json(document))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> HostRoutingConfig:
        """Read the `hostRouting` object, or a whole agent config that has it under this key.

        The object may have `$schema`, for editors. Further keys of a whole config are ignored, but
        four names of sections are refused there, and `bootstrap.additionalRequiredServices` stands
        for a missing `after`. A mapping that has neither the key nor a section
        (nor a misspelled one) is a whole config, too. As with null under the key, `given` is
        None then: `Configure` changes nothing, and everything that an earlier config installed
        stays.

        >>> HostRoutingConfig.from_mapping({"nodeName": "gpu-1"}).given is None
        True
        >>> HostRoutingConfig.from_mapping({"staticRoute": {}})
        Traceback (most recent call last):
        hostrouting.base.errors.InvalidConfigError: hostRouting.staticRoute: is not a known key; \
did you mean 'staticRoutes'?
        """
        given: object = mapping  # callers may lack a type checker
        if isinstance(given, str | bytes | os.PathLike):
            raise TypeError(
                f"mapping must be a mapping (got {shown(given)}); JSON text is for from_json, and "
                "a path is for from_file"
            )
        return cls._from_document(mapping)

    @classmethod
    def _from_document(cls, document: Any) -> HostRoutingConfig:
        known = [_KEY, *wire_fields(cls)]
        # An agent's config has our key, or neither that nor a section. `staticRoute` and
        # `stale_cni` are misspelled sections; `gateway` and `watchdog` are not.
        is_whole = isinstance(document, Mapping) and (
            _KEY in document
            or all(
                isinstance(key, str) and not closest(key, known, similarity=0.8) for key in document
            )
        )
        whole = document if is_whole else {_KEY: document}
        if _KEY in repeated_keys(whole):
            raise InvalidConfigError([ConfigMistake(_KEY, "is given more than once; keep one")])
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
        """True if it has a route, a proof or a sibling; any other config installs nothing."""
        return any(section.asks for section in self.sections.values())

    @property
    def sections(self) -> dict[str, Section]:
        """The sections by the names of their attributes."""
        names = (field.name for field in wire_fields(type(self)).values())
        values = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in values if isinstance(value, Section)}

    @property
    def void(self) -> list[ConfigMistake]:
        """Why it installs nothing, for each of its keys; empty for `{}`, which removes everything.

        >>> str(HostRoutingConfig.from_mapping({"staticRoutes": {"enabled": True}}).void[1])
        'hostRouting.staticRoutes: installs nothing: routes is empty'
        >>> HostRoutingConfig.from_mapping({"hostRouting": {}}).void
        []
        """
        if self.asks:
            return []
        if self.given is None:
            meant = f"{self.misspelt!r} meant" if self.misspelt else "this the right config"
            reason = f"is missing or null: is {meant}? {_REMOVE_ALL}"
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
        step = f"or name the units in {_KEY}.after, which precedes this list"
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
#: Python runs the handler of a signal that came just before a system call only after the call.
_SECONDS_AT_ONCE = 1


def read_source(source: str | os.PathLike[str] | int, *, timeout: float) -> bytes:
    """Return all content of a path or an open descriptor, at most 1 MiB.

    OSError and ValueError name the reason of a refusal. A device is never opened, since that may
    have an effect, as with a watchdog. `timeout` limits the whole call, in seconds.

    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile() as file:
    ...     read_source(file.name, timeout=1)
    b''
    """
    mode = os.stat(source).st_mode  # noqa: PTH116 (pathlib would be loaded for this line alone)
    if not isinstance(source, int) and (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
        raise ValueError("it is a device, and a config is a file or a pipe")
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
                    raise TimeoutError(f"its writer has not closed it within {timeout:g} s")
                continue
            if not (chunk := file.read(_CHUNK)):
                return content
            content += chunk
    raise ValueError("it has more than 1 MiB, and a config has less")
