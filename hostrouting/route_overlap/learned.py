"""IPv6 routes that the kernel learned from routers' advertisements: which they are, and how they end.

The kernel marks its own ones in /proc alone: in a dump they look like those of networkd, NetworkManager or dhcpcd.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import HostFileError
from hostrouting.findings import NodeFinding
from hostrouting.net.routes import KERNEL_PROTOCOL, RA_PROTOCOL
from hostrouting.route_overlap.report import may_be_configured

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from hostrouting.host import FileStore
    from hostrouting.net.routes import ObservedRoute

_ROUTES: Final = "/proc/net/ipv6_route"
#: How to end a default route of advertisements, if the kernel follows these, and if a program does.
_OF_KERNEL: Final = """\
The kernel follows the router advertisements on {dev}. To end that, and what it brought:
  sysctl -w net.ipv6.conf.{name}.accept_ra_defrtr=0    # and in a file of /etc/sysctl.d
  ip -6 route del {route}
"""
_OF_DAEMON: Final = """\
A program keeps the default route of advertisements on {dev}. To end it, one of these:
  networkd, netplan: [IPv6AcceptRA] UseGateway=no in a drop-in of the .network file of {dev}, then \
networkctl reload; networkctl reconfigure {dev}
  NetworkManager: nmcli connection modify CONNECTION ipv6.never-default yes; nmcli device reapply {dev}
"""
#: RTF_ADDRCONF.
_BY_KERNEL: Final = 0x40000
#: The fields of a line: destination, length, ..., gateway, metric, ..., flags, device.
_FIELDS: Final = 10


def learned_by_kernel(files: FileStore, routes: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    """Return those of the routes that the kernel learned; none if it does not say."""
    candidates = [route for route in routes if route.protocol in {KERNEL_PROTOCOL, RA_PROTOCOL} and route.dev]
    marked = set()
    with suppress(HostFileError):
        for line in (files.read(_ROUTES) or b"").splitlines() if candidates else ():
            words = line.split()
            if len(words) == _FIELDS and int(words[8], 16) & _BY_KERNEL:
                marked.add((*(int(words[at], 16) for at in (0, 1, 4, 5)), words[9]))
    return [route for route in candidates if _line_of(route) in marked]


def _line_of(route: ObservedRoute) -> tuple[object, ...]:
    gateway = route.gateway.number if route.gateway else 0
    return route.network, route.prefix_length, gateway, route.metric, (route.dev or "").encode(errors="surrogateescape")


def vanishing(files: FileStore, learned: Iterable[ObservedRoute]) -> Iterator[NodeFinding]:
    """Yield a warning for each route that the kernel learned and loses when any device is set to forward.

    It deletes the default routes at once. From then on it takes no advertisement, so others that expire do so.
    """
    for route in learned:
        if route.prefix_length and not route.expires:
            continue
        setting = b""
        with suppress(HostFileError):
            setting = files.read(f"/proc/sys/net/ipv6/conf/{route.dev}/accept_ra") or b""
        if setting.strip() not in {b"2", b""}:
            switch = f"net.ipv6.conf.{_in_sysctl(route.dev)}.accept_ra=2"
            loss = "no advertisement renews it" if route.prefix_length else "the kernel deletes it"
            reason = f"{loss} as soon as a program switches on forwarding, as a CNI does: set {switch}"
            yield NodeFinding("will-vanish", str(route), reason, "warning")


def endings(
    defaults: Iterable[ObservedRoute], learned: Sequence[ObservedRoute], wrong: Container[str | None]
) -> Iterable[str]:
    """Return the lines that end learned default routes at their owners; none for a name that no shell should meet.

    Only the devices that are wrong lose theirs: networkd merges that of the right device with theirs.
    """
    texts = (
        (_OF_KERNEL if route in learned else _OF_DAEMON).format(dev=dev, name=_in_sysctl(dev), route=route.to_route())
        for route in defaults
        for dev in route.devs
        if dev in wrong and may_be_configured(dev)
    )
    # A device may have several of them, and one that was renewed meanwhile was read twice.
    return dict.fromkeys(line for text in texts for line in text.splitlines())


def _in_sysctl(dev: str | None) -> str:
    """Return the name of a device within the name of a setting, where a dot parts words."""
    return (dev or "").replace(".", "/")
