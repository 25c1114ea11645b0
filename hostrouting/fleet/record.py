"""A node as one line of JSON: everything that a check of its routing needs, and its config."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting import __version__
from hostrouting.base.errors import InvalidConfigError
from hostrouting.boot.installed_config import (
    found_devs_evidence,
    installed_checksum,
    read_installed_config,
)
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.host import Host
from hostrouting.host.offline import absent
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix
from hostrouting.net.links import Device
from hostrouting.net.mappings import Form, typed
from hostrouting.net.routes import LOCAL_TABLE, MAIN_TABLE, ObservedRoute
from hostrouting.net.rules import Rule
from hostrouting.route_overlap.fabric import Fabric, FabricAddress, announced_fabric
from hostrouting.route_overlap.ipv6_lifetimes import evidence
from phases import Context
from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from hostrouting.host.ports import Routing

#: The most bytes of a line; a node with 64,000 routes needs fewer.
LONGEST: Final = 16 << 20
#: The format. After a release it must change if the fields or their meanings change.
_VERSION = 1
_LINE = "a record is one line, as `record` prints it"
#: Every device has routes to these, and static routes and expected CIDRs are never among them.
_OF_A_LINK = (Prefix(IPV6, 0xFE80 << 112, 10), Prefix(IPV6, 0xFF << 120, 8))


class Line(NamedTuple):
    """A line of a file that the check reads."""

    path: str
    text: str


@attrs.frozen(kw_only=True)
class NodeRecord:
    """The routing of a node at one time, and its config.

    >>> from hostrouting.testing import FakeHost
    >>> from phases import Context
    >>> record = take_record(Context(), FakeHost())
    >>> NodeRecord.parse(record.to_line()) == record
    True
    """

    hostname: str = ""
    #: UTC.
    time: str = ""
    #: The version of hostrouting.
    tool: str = ""
    #: None if no config is installed; also None, with a `checksum`, if it is damaged.
    config: HostRoutingConfig | None = None
    checksum: str = ""
    devices: tuple[Device, ...] = ()
    rules: tuple[Rule, ...] = ()
    #: Without IPv6 routes to link-local and multicast addresses.
    routes: tuple[ObservedRoute, ...] = ()
    #: See `Fib.merged`; found out from the kernel.
    merged: bool | None = None
    #: True if the node forwards IPv6; otherwise it skips gateways in state FAILED.
    is_router: bool = False
    #: The meaning of `fabric: auto`.
    fabric: Fabric = attrs.field(factory=Fabric)
    #: The lines of files that the check reads.
    lines: tuple[Line, ...] = ()

    @classmethod
    def parse(cls, line: str | bytes) -> NodeRecord:
        """Parse a line, as text or bytes; raise ValueError with the field if it is invalid."""
        if not isinstance(line, str | bytes):
            raise wrong_argument("line", line, "the text of a record", "record.to_line()")
        if len(line) > LONGEST:
            raise ValueError(f"it is longer than {LONGEST >> 20} MiB")
        try:
            text = line if isinstance(line, str) else line.decode()
            document = typed(json.loads(text, object_pairs_hook=_once), dict, "the record")
        except UnicodeDecodeError as error:
            raise NoRecordError(f"byte {error.start + 1}: is not UTF-8; {_LINE}") from None
        except json.JSONDecodeError as error:
            raise NoRecordError(f"column {error.colno}: {error.msg}; {_LINE}") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        version = document.pop("version", None)
        # True would equal 1.
        if type(version) is not int or version != _VERSION:
            raise NoRecordError(
                f".version: is {version!r}, but hostrouting {__version__} only reads {_VERSION}; "
                "take a new record"
            )
        return _RECORD.read(document)

    def to_line(self) -> bytes:
        """Return the record as a line of ASCII JSON, without a line break."""
        document = {"version": _VERSION, **_RECORD.brief(self)}
        return json.dumps(
            document, separators=(",", ":"), default=HostRoutingConfig.to_mapping
        ).encode()

    @property
    def host(self) -> Host:
        """The recorded node as a `Host`; its routes are a model."""
        # Imported here because it is only needed to check a record.
        from hostrouting.fib import Fib

        fib = Fib.of(self.devices, self.routes, self.rules)
        pairs = ((device.name, failed) for device in self.devices for failed in device.failed)
        silent = frozenset() if self.is_router else frozenset(pairs)
        files = _Files(self.lines)
        # The kernel separates the tables at the first change of a rule.
        model = attrs.evolve(fib, merged=fib.merged is None and self.merged, failed=silent)
        return Host(routes=model, files=files, services=absent("services"), lock=absent("lock"))  # type: ignore[arg-type]


class NoRecordError(ValueError):
    """A line is not a record of this version at all."""


@attrs.frozen
class _Files:
    """The methods of `FileStore` that a check needs."""

    lines: tuple[Line, ...]

    def read(self, path: str) -> bytes:
        texts = dict.fromkeys(line.text for line in self.lines if line.path == path)
        return "\n".join(texts).encode(errors="surrogateescape")

    def read_link(self, _path: str) -> str | None:
        # The record does not contain which programs are running.
        return None

    def names(self, _folder: str) -> list[str]:
        # InfiniBand devices are among the devices of the record.
        return []


def take_record(ctx: Context, host: Host) -> NodeRecord:
    """Record a live node; does not need privileges."""
    routing = host.routes
    families = routing.families
    read = chain.from_iterable(map(routing.routes, families))
    routes = tuple(route for route in read if not _is_of_a_link(route))
    gateways = {hop.gateway for route in routes for hop in route.hops}
    hostname = host.files.read("/proc/sys/kernel/hostname") or b""
    forwarding = host.files.read("/proc/sys/net/ipv6/conf/all/forwarding") or b""
    lines = [*evidence(host.files), *found_devs_evidence(host.files)]
    config = None
    with suppress(InvalidConfigError):
        config = read_installed_config(host.files)
    return NodeRecord(
        hostname=hostname.decode(errors="surrogateescape").strip(),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ctx.clock.time())),
        tool=__version__,
        config=config,
        checksum=installed_checksum(host.files),
        devices=tuple(_recorded(device, gateways) for device in routing.links()),
        rules=tuple(rule for family in families for rule in routing.rules(family)),
        routes=routes,
        merged=_are_merged(routing, routes),
        is_router=forwarding.strip() == b"1",
        fabric=announced_fabric(ctx, "auto", host),
        lines=tuple(Line(path, line.decode(errors="surrogateescape")) for path, line in lines),
    )


def _is_of_a_link(route: ObservedRoute) -> bool:
    network = Prefix(route.family, route.network, route.prefix_length)
    return any(known.covers(network) for known in _OF_A_LINK)


def _are_merged(routing: Routing, routes: Iterable[ObservedRoute]) -> bool:
    """Return True if the kernel searches the tables local and main as one, called main."""
    for route in routes:
        if route.table == LOCAL_TABLE and route.kind == "local":
            [answer] = routing.lookup([route.network])
            return answer.route is None or answer.route.table == MAIN_TABLE
    return True


def _recorded(device: Device, gateways: Container[Address | None]) -> Device:
    """Return a device with only those neighbours that are gateways."""
    failed = tuple(address for address in device.failed if address in gateways)
    known = tuple(each for each in device.neighbours if Address(IPV4, each) in gateways)
    return device._replace(neighbours=known, failed=failed)


# --- the JSON form


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; refuse repeated keys, because parsers differ on which one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is given more than once; take a new record")
    return found


# Most nodes of a fleet have the same config; a malicious one could take hundreds of MB.
@lru_cache(maxsize=8)
def _parsed(config: str) -> HostRoutingConfig:
    return HostRoutingConfig.from_json(config)


Form(Line)
Form(FabricAddress)
Form(Fabric)
_RECORD = Form(NodeRecord, config=lambda value: _parsed(json.dumps(value)))
