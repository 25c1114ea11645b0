"""How long IPv6 stays right: the deciding routes, and those that a router's advertisement brought.

A learned route must be removed where it was learned. The kernel marks the routes that it learned
itself only in /proc: in a dump, they look like those of networkd, NetworkManager or dhcpcd.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hostrouting.base.errors import HostFileError, UnknownDecisionError
from hostrouting.base.findings import NodeFinding
from hostrouting.net.addresses import IPV4, IPV6, Prefix, format_address, is_device_name
from hostrouting.net.routes import (
    KERNEL_PROTOCOL,
    MAIN_TABLE,
    RA_PROTOCOL,
    Lookup,
    ObservedRoute,
    best_default_devs,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from hostrouting.host import FileStore
    from hostrouting.route_overlap.cidr_parts import CidrPart
    from hostrouting.route_overlap.snapshot import RoutingSnapshot

_ROUTES = "/proc/net/ipv6_route"
_ACCEPTS = "/proc/sys/net/ipv6/conf/{}/accept_ra"
#: How to remove a learned default route if the kernel learned it, and if a program did.
_OF_KERNEL = """\
The kernel follows the router advertisements on {dev}. To end that, and what it brought:
  sysctl -w net.ipv6.conf.{name}.accept_ra_defrtr=0    # and in a file of /etc/sysctl.d
  ip -6 route del {route}
"""
_OF_DAEMON = """\
A program keeps the default route of advertisements on {dev}. To end it, one of these:
  networkd, netplan: [IPv6AcceptRA] UseGateway=no (before systemd 250: [Network] IPv6AcceptRA=no) \
in a drop-in of the .network file of {dev}, then networkctl reload
  NetworkManager: nmcli connection modify CONNECTION ipv6.never-default yes; \
nmcli device reapply {dev}
"""
#: RTF_ADDRCONF.
_BY_KERNEL = 0x40000
#: The fields of a line: destination, length, ..., gateway, metric, ..., flags, device.
_FIELDS = 10


def deciding_and_warnings(
    node: RoutingSnapshot, looked: Sequence[Sequence[CidrPart]]
) -> tuple[tuple[ObservedRoute, ...], list[NodeFinding]]:
    """Return the deciding IPv6 routes, without those to the node itself, and the warnings.

    These include equal routes, and the routes to the networks of the sources.
    """
    if node.family == IPV4:
        return (), []
    every = [part for parts in looked for part in parts]
    plain = [part.plain for part in every if node.allowed.answer_is_fine(part.plain)]
    chosen: Sequence[Lookup] = ()
    # A model cannot compute the source.
    with suppress(UnknownDecisionError):
        chosen = node.lookup([answer.destination for answer in plain], resolve=True)
    # An expected address for each device and source that the kernel sends with correctly.
    sent: dict[tuple[str, int], int] = {}
    for answer in chosen:
        route = answer.route
        if route and route.kind == "unicast" and route.dev and route.source:
            sent[route.dev, route.source] = answer.destination
    answers = (answer for part in every for answer in part.answers)
    routes = (lookup.route for answer in answers for lookup in node.candidates(*answer))
    deciding = dict.fromkeys(route for route in routes if route and route.kind == "unicast")
    for link in node.links:
        for own in link.addresses:
            if (link.name, own.local) in sent:
                network = Prefix(IPV6, own.peer, own.prefix_length).masked
                bucket = node.model.tables.bucket((IPV6, MAIN_TABLE, *network[1:]))
                deciding |= dict.fromkeys(route for route in bucket if link.name in route.devs)
    return (*deciding,), [*_warnings(node, sent)]


def _warnings(node: RoutingSnapshot, sent: Mapping[tuple[str, int], int]) -> Iterator[NodeFinding]:
    """Yield a warning where IPv6 is right only until something else changes."""
    best = best_default_devs(node.defaults)
    for route in node.defaults:
        is_better = set(best).issuperset(route.devs) or not node.allowed.expected
        if route.protocol == RA_PROTOCOL and not is_better and node.allowed.refused(route):
            reason = (
                "is learned, and will be used as soon as the better gateway fails: "
                "remove it at its source, or give it a lower router preference"
            )
            yield NodeFinding("fallback-by-fabric", str(route), reason, "warning")
    for route in node.silent:
        reason = (
            "its gateway does not answer, so the kernel skips it for now: "
            "check the router and the link to it"
        )
        yield NodeFinding("silent-gateway", str(route), reason, "warning")
    present = {(link.name, own.local) for link in node.links for own in link.addresses}
    for (dev, source), address in sent.items():
        if (dev, source) not in present:
            text, goal = (format_address(node.family, number) for number in (source, address))
            reason = (
                f"is not an address of {dev}, but the node sends from it to {goal} through {dev}: "
                f"give {dev} an address of its own"
            )
            yield NodeFinding("foreign-source", text, reason, "warning")


# --- learned routes


def learned_by_kernel(files: FileStore, routes: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    """Return the routes that the kernel marks as learned."""
    candidates = [
        route for route in routes if route.protocol in {KERNEL_PROTOCOL, RA_PROTOCOL} and route.dev
    ]
    marked = {key for key, _ in _marked(files)} if candidates else ()
    return [route for route in candidates if _line_of(route) in marked]


def _marked(files: FileStore) -> Iterator[tuple[tuple[object, ...], bytes]]:
    """Yield the routes learned by the kernel: the key that `_line_of` returns, and the line."""
    with suppress(HostFileError, ValueError):
        for line in (files.read(_ROUTES) or b"").splitlines():
            words = line.split()
            if len(words) == _FIELDS and int(words[8], 16) & _BY_KERNEL:
                yield (*(int(words[at], 16) for at in (0, 1, 4, 5)), words[9]), line


def evidence(files: FileStore) -> Iterator[tuple[str, bytes]]:
    """Yield what these functions read from the node: pairs of a path and a line."""
    for key, line in _marked(files):
        yield _ROUTES, line
        path = _ACCEPTS.format(str(key[-1], errors="surrogateescape"))  # type: ignore[call-overload]
        with suppress(HostFileError):
            yield path, files.read(path) or b""


def _line_of(route: ObservedRoute) -> tuple[object, ...]:
    gateway = route.gateway.number if route.gateway else 0
    return (
        route.network,
        route.prefix_length,
        gateway,
        route.metric,
        (route.dev or "").encode(errors="surrogateescape"),
    )


def vanishing(files: FileStore, learned: Iterable[ObservedRoute]) -> Iterator[NodeFinding]:
    """Yield a warning for each learned route that the kernel drops once forwarding is enabled.

    It deletes default routes at once. Then it ignores advertisements, so other routes expire.
    """
    for route in learned:
        if route.prefix_length and not route.expires:
            continue
        setting = b""
        with suppress(HostFileError):
            setting = files.read(_ACCEPTS.format(route.dev)) or b""
        if setting.strip() not in {b"2", b""}:
            switch = f"net.ipv6.conf.{_in_sysctl(route.dev)}.accept_ra=2"
            loss = "no advertisement renews it" if route.prefix_length else "the kernel deletes it"
            reason = f"{loss} as soon as a program enables forwarding, as a CNI does: set {switch}"
            yield NodeFinding("will-vanish", str(route), reason, "warning")


def endings(
    defaults: Iterable[ObservedRoute],
    learned: Sequence[ObservedRoute],
    wrong: Container[str | None],
) -> Iterable[str]:
    """Return how to remove learned default routes where they were learned.

    Only wrong devices count, because networkd merges the routes of all devices, and only names that
    are safe in a shell.
    """
    lines: dict[str, None] = {}
    for route in defaults:
        text = _OF_KERNEL if route in learned else _OF_DAEMON
        for dev in route.devs:
            if dev in wrong and is_device_name(dev):
                ending = text.format(dev=dev, name=_in_sysctl(dev), route=route.to_route())
                # A device may have several of them, and a route that was renewed meanwhile was
                # read twice.
                lines |= dict.fromkeys(ending.splitlines())
    return lines


def _in_sysctl(dev: str | None) -> str:
    """Return the name of a device for use in the name of a sysctl, where a dot separates words."""
    return (dev or "").replace(".", "/")
