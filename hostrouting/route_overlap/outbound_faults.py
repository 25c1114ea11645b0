"""Why traffic cannot leave: the lowest layer that fails on the devices that should carry it.

The outbound device must exist, be up, belong to no bridge or bond, and have a carrier, an address
and a default route. Only the first of these that fails is named, because the others follow from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.base.commands import quoted
from hostrouting.base.findings import NodeFinding
from hostrouting.net.addresses import FAMILY_NAMES, GIVERS, LOGS, Address, Prefix, is_network
from hostrouting.net.links import address_families, enslaving
from hostrouting.net.outbound import candidates, named_devices
from hostrouting.net.routes import OUR_PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.managers.managed import Managed
    from hostrouting.net.links import Device
    from hostrouting.route_overlap.snapshot import RoutingSnapshot


def set_down(devs: Sequence[str]) -> Iterator[NodeFinding]:
    """Yield a warning for each device that is administratively down."""
    reason = "is administratively down, so no traffic leaves through it"
    step = ""
    if len(devs) > 1:
        step = "set up the one that leads to the cluster: ip link set DEVICE up"
    for dev in devs:
        command = "" if step else quoted("ip", "link", "set", dev, "up")
        yield NodeFinding("device-down", dev, reason, "warning", step, command=command)


def absent(devs: Collection[str], node: RoutingSnapshot) -> Iterator[NodeFinding]:
    """Yield a warning for each device that the config names but the node does not have."""
    others = dict.fromkeys(dev for route in node.defaults for dev in route.devs)
    step = "check its driver (ip link show), or correct expectedDevs"
    if others:
        named = " or ".join(others)
        step = f"if {named} (with a default route) is the right one, name it in expectedDevs"
    for dev in devs:
        if not is_network(dev):
            reason = "is in expectedDevs, but this node has no such device"
            yield NodeFinding("no-device", dev, reason, "warning", step)


def unable(devs: Collection[str], links: Sequence[Device]) -> Iterator[NodeFinding]:
    """Yield a warning for each of these devices that is up but carries no packets."""
    devices = {link.name: link for link in links}
    for dev in devs:
        device = devices[dev]
        if not device.up:
            continue
        if master := enslaving(device, devices):
            reason = f"belongs to the {master.kind} {master.name}, which takes its packets"
            step = f"name {master.name} in expectedDevs"
            if not master.addresses:
                step = f"take it out: ip link set {dev} nomaster"
            yield NodeFinding("enslaved", dev, reason, "warning", step)
        else:
            step = "check its cable, the port of its switch and its driver (ip link show)"
            yield NodeFinding("no-carrier", dev, "has no carrier", "warning", step)


def lost_default(
    node: RoutingSnapshot, names: Sequence[str], config: HostRoutingConfig
) -> Iterator[NodeFinding]:
    """Yield a warning about the device that has no default route, or the devices that may lack it.

    These are the devices that a program manages, or else those that the config names.
    """
    # Imported here because most nodes have their default route.
    from hostrouting.managers import managed

    found = candidates(names, node.links)
    is_meant = any(map(is_network, names)) or named_devices(names, node.links)
    have_one = {dev for route in node.defaults for dev in route.devs}
    able = [link for link in found if link.up and link.carrier and link.name not in have_one]
    managers: dict[Device, Managed | None] = dict.fromkeys(able)
    if node.files is not None:
        managers |= {link: managed(link, node.files, node.family) for link in able}
    links = [link for link, manager in managers.items() if manager and manager.manages]
    # That a program does not manage a device says nothing about which device is the right one.
    if is_meant or len(found) == 1:
        links = links or able
    if links:
        yield _lack_of(node, links, [managers[link] for link in links], config)


def _lack_of(
    node: RoutingSnapshot,
    links: Sequence[Device],
    managers: Sequence[Managed | None],
    config: HostRoutingConfig,
) -> NodeFinding:
    """Return the warning, with the command of the program that manages the devices."""
    family = node.family
    has_address = any(family in address_families(link) for link in links)
    what = f"{FAMILY_NAMES[family]} {'default route' if has_address else 'address'}"
    names = " or ".join(link.name for link in links)
    manager = managers[0]
    if manager is None:
        reason = f"has no {what}; {GIVERS[family]} or you must provide it"
        form = "route add default via GATEWAY" if has_address else "address add ADDRESS/LENGTH"
        step = f"use ip {form} dev {names}, or see {LOGS[family]}"
        gateways = _gateways(node, links[0], config)
        command = ""
        if has_address and len(links) == len(gateways) == 1:
            command = quoted("ip", "route", "add", "default", "via", *gateways, "dev", names)
        return NodeFinding("lost-default", names, reason, "warning", step, command=command)
    programs = " or ".join(dict.fromkeys(each.program for each in managers if each))
    if not manager.manages:
        reason = f"has no {what}, and {manager.program} does not manage it"
        return NodeFinding("unmanaged", names, reason, "warning", manager.advice)
    commands = {each.command for each in managers if each}
    step = manager.advice or f"see {LOGS[family]}"
    reason = f"has no {what} (managed by {programs})"
    command = manager.command if len(commands) == 1 else ""
    # `networkctl reconfigure` removes routes of others, whatever ManageForeignRoutes= says.
    return NodeFinding(
        "lost-default", names, reason, "warning", step, command=command, drops_routes=True
    )


def _gateways(node: RoutingSnapshot, link: Device, config: HostRoutingConfig) -> set[str]:
    """Return the gateways on a device that our routes, or those of the config, use."""
    networks = [
        Prefix(own.family, own.peer, own.prefix_length)
        for own in link.addresses
        if own.family == node.family
    ]
    wanted = (route.gateway for route in config.static_routes.routes if route.gateway)
    in_force = {
        str(route.gateway)
        for route in node.routes
        if route.protocol == OUR_PROTOCOL and route.dev == link.name and route.gateway
    }
    return in_force | {
        gateway
        for gateway in wanted
        if any(network.masked.covers(Address.parse(gateway)) for network in networks)
    }
