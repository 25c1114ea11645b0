"""IPv6 routes that the kernel learned from routers' advertisements: which they are, and how they end.

The kernel marks its own ones in /proc alone: in a dump they look like those of networkd, NetworkManager or dhcpcd.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import HostFileError
from hostrouting.findings import NodeFinding
from hostrouting.net.addresses import check_device_name
from hostrouting.net.routes import KERNEL_PROTOCOL, RA_PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from hostrouting.host import FileStore
    from hostrouting.net.routes import ObservedRoute

_ROUTES: Final = "/proc/net/ipv6_route"
_ACCEPTS: Final = "/proc/sys/net/ipv6/conf/{}/accept_ra"
#: RTF_ADDRCONF.
_BY_KERNEL: Final = 0x40000
#: The fields of a line: destination, length, ..., gateway, metric, ..., flags, device.
_FIELDS: Final = 10


def learned_by_kernel(files: FileStore, routes: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    """Return those of the routes that the kernel learned; none if it does not say."""
    candidates = [route for route in routes if route.protocol in {KERNEL_PROTOCOL, RA_PROTOCOL} and route.dev]
    marked = {key for key, _ in _marked(files)} if candidates else ()
    return [route for route in candidates if _line_of(route) in marked]


def _marked(files: FileStore) -> Iterator[tuple[tuple[object, ...], bytes]]:
    """Yield the kernel's own routes, each as `_line_of` has it, and the line; none if it does not say."""
    with suppress(HostFileError, ValueError):
        for line in (files.read(_ROUTES) or b"").splitlines():
            words = line.split()
            if len(words) == _FIELDS and int(words[8], 16) & _BY_KERNEL:
                yield (*(int(words[at], 16) for at in (0, 1, 4, 5)), words[9]), line


def evidence(files: FileStore) -> Iterator[tuple[str, bytes]]:
    """Yield the lines that these functions need of a node, for its record, each after the path of its file."""
    for key, line in _marked(files):
        yield _ROUTES, line
        path = _ACCEPTS.format(str(key[-1], errors="surrogateescape"))  # type: ignore[call-overload]
        with suppress(HostFileError):
            yield path, files.read(path) or b""


def _line_of(route: ObservedRoute) -> tuple[object, ...]:
    gateway = route.gateway.number if route.gateway else 0
    return route.network, route.prefix_length, gateway, route.metric, (route.dev or "").encode(errors="surrogateescape")


def vanishing(files: FileStore, learned: Iterable[ObservedRoute]) -> Iterator[NodeFinding]:
    """Yield a warning for each route that the kernel learned and deletes when any device is set to forward."""
    for route in learned:
        setting = b""
        with suppress(HostFileError):
            setting = files.read(_ACCEPTS.format(route.dev)) or b""
        if setting.strip() not in {b"2", b""}:
            switch = f"net.ipv6.conf.{_in_sysctl(route.dev)}.accept_ra=2"
            reason = f"the kernel deletes it as soon as a program switches on forwarding, as a CNI does: set {switch}"
            yield NodeFinding("will-vanish", str(route), reason, "warning")


def endings(
    defaults: Sequence[ObservedRoute], learned: Sequence[ObservedRoute], wrong: Container[str | None]
) -> Iterable[str]:
    """Return the lines that end learned default routes at their owners; none for a name that no shell should meet.

    Only the devices that are wrong lose theirs: networkd merges that of the right device with theirs.
    """
    # A device may have several of them, and one that was renewed meanwhile was read twice.
    return dict.fromkeys(_endings(defaults, learned, wrong))


def _endings(
    defaults: Sequence[ObservedRoute], learned: Sequence[ObservedRoute], wrong: Container[str | None]
) -> Iterator[str]:
    for route in defaults:
        for dev in filter(wrong.__contains__, route.devs):
            with suppress(ValueError):
                check_device_name(dev)
                yield from _by_kernel(route, dev) if route in learned else _by_daemon(dev)


def _by_kernel(route: ObservedRoute, dev: str) -> Iterator[str]:
    yield f"The kernel follows the router advertisements on {dev}. To end that, and what it brought:"
    yield f"  sysctl -w net.ipv6.conf.{_in_sysctl(dev)}.accept_ra_defrtr=0    # and in a file of /etc/sysctl.d"
    yield f"  ip -6 route del {route.to_route()}"


def _by_daemon(dev: str) -> Iterator[str]:
    yield f"A program keeps the default route of advertisements on {dev}. To end it, one of these:"
    yield (
        f"  networkd, netplan: [IPv6AcceptRA] UseGateway=no in a drop-in of the .network file of {dev}, then "
        f"networkctl reload; networkctl reconfigure {dev}"
    )
    yield f"  NetworkManager: nmcli connection modify CONNECTION ipv6.never-default yes; nmcli device reapply {dev}"


def _in_sysctl(dev: str | None) -> str:
    """Return the name of a device within the name of a setting, where a dot parts words."""
    return (dev or "").replace(".", "/")
