"""A node as one line of JSON: all that the proof reads of it, and the config in force."""

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
from hostrouting.route_overlap.lasting import evidence
from phases import Context
from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from hostrouting.host.ports import Routing

#: Bytes of a line. A node with 64,000 routes has fewer.
LONGEST: Final = 16 << 20
#: Of the format. After a release another one is needed for another meaning of a field, or one more.
_VERSION = 1
_LINE = "a record is one line, as `record` prints it"
#: Each device has these, and no static route and no expected CIDR is there.
_OF_A_LINK = (Prefix(IPV6, 0xFE80 << 112, 10), Prefix(IPV6, 0xFF << 120, 8))


class Line(NamedTuple):
    """A line of a file that the proof reads."""

    path: str
    text: str


@attrs.frozen(kw_only=True)
class NodeRecord:
    """The routing of a node at one time, and the config in force.

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
    #: None if none is installed, or if `checksum` is that of a damaged one.
    config: HostRoutingConfig | None = None
    checksum: str = ""
    devices: tuple[Device, ...] = ()
    rules: tuple[Rule, ...] = ()
    #: Without IPv6 routes to link-local and multicast addresses.
    routes: tuple[ObservedRoute, ...] = ()
    #: See `Fib.merged`, from the kernel.
    merged: bool | None = None
    #: True if the node forwards IPv6: a host passes over gateways that are FAILED.
    is_router: bool = False
    #: The meaning of `fabric: auto`.
    fabric: Fabric = attrs.field(factory=Fabric)
    #: The lines that the proof reads from files.
    lines: tuple[Line, ...] = ()

    @classmethod
    def parse(cls, line: str | bytes) -> NodeRecord:
        """Read a line, as text or bytes.

        Raise ValueError with the field for a line that `to_line` does not write.
        """
        if not isinstance(line, str | bytes):
            raise wrong_argument("line", line, "the text of a record", "record.to_line()")
        if len(line) > LONGEST:
            raise ValueError(f"it has more than {LONGEST >> 20} MiB")
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
        # True equals 1.
        if type(version) is not int or version != _VERSION:
            raise NoRecordError(
                f".version: is {version!r}, and hostrouting {__version__} reads {_VERSION} only; "
                "take a new record"
            )
        return _RECORD.read(document)

    def to_line(self) -> bytes:
        """Return the record as a line of JSON, in ASCII, without its end."""
        document = {"version": _VERSION, **_RECORD.brief(self)}
        return json.dumps(
            document, separators=(",", ":"), default=HostRoutingConfig.to_mapping
        ).encode()

    @property
    def host(self) -> Host:
        """The node for the proof; its routes are a model."""
        # Imported late: only a proof needs the model.
        from hostrouting.fib import Fib

        fib = Fib.of(self.devices, self.routes, self.rules)
        pairs = ((device.name, failed) for device in self.devices for failed in device.failed)
        silent = frozenset() if self.is_router else frozenset(pairs)
        files = _Files(self.lines)
        # The kernel parts the tables with the first change of a rule.
        model = attrs.evolve(fib, merged=fib.merged is None and self.merged, failed=silent)
        return Host(routes=model, files=files, services=absent("services"), lock=absent("lock"))  # type: ignore[arg-type]


class NoRecordError(ValueError):
    """A line is not even the beginning of a record of this version."""


@attrs.frozen
class _Files:
    """The readers of `FileStore` that the proof needs."""

    lines: tuple[Line, ...]

    def read(self, path: str) -> bytes:
        texts = dict.fromkeys(line.text for line in self.lines if line.path == path)
        return "\n".join(texts).encode(errors="surrogateescape")

    def read_link(self, _path: str) -> str | None:
        # The record does not say which programs run.
        return None

    def names(self, _folder: str) -> list[str]:
        # The devices of the record show InfiniBand, too.
        return []


def take_record(ctx: Context, host: Host) -> NodeRecord:
    """Return the record of a live node; it needs no privilege."""
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
    """Return True if the kernel searches the tables local and main as one: both are main then."""
    for route in routes:
        if route.table == LOCAL_TABLE and route.kind == "local":
            [answer] = routing.lookup([route.network])
            return answer.route is None or answer.route.table == MAIN_TABLE
    return True


def _recorded(device: Device, gateways: Container[Address | None]) -> Device:
    """Return a device with those of its neighbours that are `gateways`."""
    failed = tuple(address for address in device.failed if address in gateways)
    known = tuple(each for each in device.neighbours if Address(IPV4, each) in gateways)
    return device._replace(neighbours=known, failed=failed)


# --- the JSON form


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON; refuse a key twice, of which readers would take another one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is given more than once; take a new record")
    return found


# Most nodes of a fleet have the same; a foreign one may take hundreds of MB.
@lru_cache(maxsize=8)
def _parsed(config: str) -> HostRoutingConfig:
    return HostRoutingConfig.from_json(config)


Form(Line)
Form(FabricAddress)
Form(Fabric)
_RECORD = Form(NodeRecord, config=lambda value: _parsed(json.dumps(value)))
