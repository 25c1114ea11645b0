"""Decide if a node needs the rules and which, from its IPv6 state and the cloud's description.

Also compare the table of a live node with them, and repair it. Nothing here waits.

ProbeRules   the rules that the node needs
NotWanted    why the node does not need rules
Obstacle     why the node needs rules but is not (yet) ready for them
"""

from __future__ import annotations

from logging import INFO, WARNING
from typing import TYPE_CHECKING, TypeAlias

import attrs

from hostrouting.azure.probe_snat.ruleset import (
    FAMILY,
    RULESET_PATH,
    TABLE,
    TABLE_NAME,
    ProbeRules,
    effect_of,
    parse,
    render,
)
from hostrouting.base.commands import quoted
from hostrouting.base.errors import BackendError, ConfigMistake, InvalidConfigError
from hostrouting.net.addresses import IPV6, Address
from hostrouting.net.mappings import typed, typed_or_null
from hostrouting.net.routes import best_default_devs, default_routes
from phases import Change, Context

if TYPE_CHECKING:
    from hostrouting.config.optional import ProbeSNATConfig
    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host

#: The eBPF programs of ipv6-hp-bpf, which do the same on a device.
_SAME_JOB = frozenset({"ipv6_hp_ingress", "ipv6_hp_egress"})
#: When a device comes up, the kernel adds its link-local address, waits a second, and solicits
#: routers three times, 4 s apart (router_solicitation_delay, router_solicitations,
#: router_solicitation_interval): together 13 s.
_SECONDS_FOR_ROUTERS = 15.0
_DEV = "hostRouting.probeSnat.dev"


@attrs.frozen
class NotWanted:
    """The node needs no rules."""

    reason: str
    #: The level at which a run logs the reason.
    level: int = INFO
    may_change: bool = False


@attrs.frozen
class Obstacle:
    """Why the rules would not work, and the next step; `may_change` if it may resolve itself."""

    reason: str
    step: str = ""
    may_change: bool = False
    #: Instead of a step.
    command: str = ""

    @property
    def remedy(self) -> str:
        """The step or the command, as a clause."""
        return f"run: {self.command}" if self.command else self.step


def assess(section: ProbeSNATConfig, host: Host) -> ProbeRules | NotWanted | Obstacle:
    """Return the rules for a live node as it is now, if the cloud describes IPv6 addresses."""
    rules = _rules(section, host)
    if isinstance(rules, Obstacle):
        if section.detect == "address" and rules.may_change:
            return NotWanted(f"this node has no IPv6: {rules.reason}", may_change=True)
        return rules
    dev = rules.dev
    # A device from a default route exists and is up.
    if section.dev:
        device = next((device for device in host.routes.links() if device.name == dev), None)
        # Before the addresses: a misspelt device would have none.
        if device is None:
            return Obstacle(f"there is no device {dev}", f"correct {_DEV}", may_change=True)
        if not device.up:
            command = quoted("ip", "link", "set", dev, "up")
            return Obstacle(f"the device {dev} is down", may_change=True, command=command)
    if section.detect == "address" and not _addresses(host, dev):
        return NotWanted(f"this node has no IPv6: {dev} has no global address", may_change=True)
    programs = sorted(_SAME_JOB.intersection(host.link_layer.classifiers(dev)))
    if programs:
        reason = f"the eBPF program ipv6-hp-bpf ({', '.join(programs)}) already does this on {dev}"
        return NotWanted(reason, level=WARNING)
    return _wrong_route(section, host, dev) or rules


def assume(section: ProbeSNATConfig, host: Host) -> ProbeRules | NotWanted | Obstacle:
    """Return the rules for a node that may have IPv6; without IPv6 they match no packet.

    If there is no IPv6 default route, the device of the IPv4 default route is used.
    """
    outcome = assess(section, host)
    if not isinstance(outcome, Obstacle):
        return outcome
    return _rules(section, host, best_default_devs(host.routes.routes()))


def bypass(rules: ProbeRules, host: Host) -> str | None:
    """Return why probes may bypass these rules, or None.

    If Cilium replaces kube-proxy, its program on the device forwards packets for services directly
    to the pods, so nftables never sees them.
    """
    # In tc, the device's name follows it.
    names = [name for name in host.link_layer.classifiers(rules.dev) if "cil_from_netdev" in name]
    if not names:
        return None
    return (
        f"Cilium's program {names[0]} on {rules.dev} handles packets before nftables sees them; if "
        "it replaces kube-proxy, IPv6 probes do not reach these rules; use ipv6-hp-bpf instead"
    )


def seconds_for_routers(section: ProbeSNATConfig, host: Host) -> float:
    """Return how many seconds a router may still take to advertise an address and a route.

    If the section names no device, the devices of the IPv4 default routes are used.
    """
    if section.dev:
        devs = {section.dev}
    else:
        devs = {dev for route in default_routes(host.routes.routes()) for dev in route.devs}
    ages = [host.link_layer.newest_address(dev) for dev in devs]
    return max([0, *(_SECONDS_FOR_ROUTERS - age for age in ages if age is not None)])


def rules_to_install(config: HostRoutingConfig, *, host: Host | None = None) -> ProbeRules:
    """Return the rules of a config, even without IPv6; on a live node, find the device."""
    if host is None or not host.is_live:
        if config.probe_snat.dev:
            return ProbeRules.of(config.probe_snat, config.probe_snat.dev)
        reason = (
            "is missing; name the device that receives probes, because only a live node can find it"
        )
        raise InvalidConfigError([ConfigMistake(_DEV, reason)])
    rules = _rules(config.probe_snat, host)
    if isinstance(rules, Obstacle):
        raise BackendError(
            f"the device that receives IPv6 probes is not known: {rules.reason}; {rules.remedy}"
        )
    return rules


def describes_ipv6(document: object) -> bool:
    """Return True if any interface in the cloud's description has an IPv6 address.

    >>> describes_ipv6([{"ipv6": {"ipAddress": [{"privateIpAddress": "fd00::4"}]}}])
    True
    >>> describes_ipv6({"error": "Bad request"})
    Traceback (most recent call last):
    hostrouting.base.errors.BackendError: the cloud's description of the network interfaces \
cannot be read: it should be a list, not dict; \
hostRouting.probeSnat.detect 'address' or 'always' does not need it
    """
    has_ipv6 = False
    try:
        for number, interface in enumerate(typed(document, list, "it")):
            path = f"[{number}].ipv6"
            ipv6 = typed_or_null(typed(interface, dict, f"[{number}]").get("ipv6"), dict, path)
            path += ".ipAddress"
            for index, address in enumerate(typed_or_null(ipv6.get("ipAddress"), list, path)):
                private = typed(address, dict, f"{path}[{index}]").get("privateIpAddress")
                # Read to the end, so that a malformed description is always an error.
                has_ipv6 |= bool(typed_or_null(private, str, f"{path}[{index}].privateIpAddress"))
    except ValueError as error:
        raise BackendError(
            f"the cloud's description of the network interfaces cannot be read: {error}; "
            f"hostRouting.probeSnat.detect 'address' or 'always' does not need it"
        ) from error
    return has_ipv6


def _rules(
    section: ProbeSNATConfig, host: Host, otherwise: tuple[str, ...] = ()
) -> ProbeRules | Obstacle:
    """Return the rules for the device of the default route, or for `otherwise` if there is none."""
    if section.dev:
        return ProbeRules.of(section, section.dev)
    devs = best_default_devs(host.routes.routes(IPV6)) or otherwise
    if not devs:
        step = f"find out why no router advertises itself, or set {_DEV}"
        return Obstacle("there is no IPv6 default route", step, may_change=True)
    if len(devs) > 1:
        reason = f"IPv6 default routes leave through {', '.join(devs)}"
        return Obstacle(reason, f"choose the device that receives probes with {_DEV}")
    try:
        return ProbeRules.of(section, devs[0])
    except ValueError as error:
        return Obstacle(
            f"the device of the IPv6 default route is unsuitable: {error}", "rename the device"
        )


def _addresses(host: Host, dev: str) -> set[str]:
    """Return the usable IPv6 addresses of global scope on a device."""
    return {
        str(own.address)
        for device in host.routes.links()
        for own in device.addresses
        if device.name == dev and own.family == IPV6 and own.scope == 0 and own.usable
    }


def _wrong_route(section: ProbeSNATConfig, host: Host, dev: str) -> Obstacle | None:
    """Return why replies to probes would not leave through the device, or would not be rewritten.

    Without rewriting, a probe would get no answer, and the address would leak.
    """
    numbers = [Address.parse(section.address).number]
    [answer] = host.routes.lookup(numbers, family=IPV6)
    if answer.route and not answer.route.hops:
        # Some kernels show only the number of a nexthop object; a packet's path has its device.
        [answer] = host.routes.lookup(numbers, resolve=True, family=IPV6)
    hops = answer.route.hops if answer.route else ()
    leaves_by = sorted({hop.dev for hop in hops if not hop.dead})
    if leaves_by == [dev]:
        if section.address not in _addresses(host, dev):
            return None
        return Obstacle(
            f"{section.address} is an address of this node, so replies to probes would end there",
            "choose another hostRouting.probeSnat.address",
        )
    switch = f"net/ipv6/conf/{dev}/disable_ipv6"
    if (host.files.read(f"/proc/sys/{switch}") or b"").strip() == b"1":
        command = quoted("sysctl", "-w", f"{switch}=0")
        return Obstacle(f"IPv6 is disabled on {dev}", may_change=True, command=command)
    step = f"add a route to {section.address} through {dev}"
    if not leaves_by:
        return Obstacle(f"no route leads to {section.address}", step, may_change=True)
    elsewhere = ", ".join(name for name in leaves_by if name != dev)
    return Obstacle(
        f"packets to {section.address} leave through {elsewhere}, not only through {dev}, "
        "so replies to probes would not be rewritten for the load balancer",
        f"{step}, or correct {_DEV}",
    )


#: The table: its rules, why it differs from any rules of ours, or None if there is no table.
Loaded: TypeAlias = ProbeRules | str | None


def loaded_rules(ctx: Context, host: Host) -> Loaded:
    """Return the rules in the table."""
    listing = host.nftables.table(ctx, FAMILY, TABLE_NAME)
    if listing is None:
        return None
    if any("unreadable" in entry.get("table", {}) for entry in listing):
        return "it has flags, such as dormant or owner"
    return effect_of(listing) or "its rules are not those of hostrouting"


def change_to(before: Loaded, after: ProbeRules | None) -> Change:
    """Return the change of the table from one state to another."""
    if after is None:
        return Change("-", TABLE)
    return Change("+", TABLE) if before is None else Change("~", TABLE, str(before))


# --- repair


def repair(
    ctx: Context, section: ProbeSNATConfig, host: Host, *, is_dry: bool = False
) -> Change | NotWanted | None:
    """Load the installed rules unless the table has them; call under the run lock unless `is_dry`.

    Return the change, or None. The installed file shows what an apply decided: if the node needs
    the rules, and for which device. So the cloud is not queried again.
    """
    installed = parse((host.files.read(RULESET_PATH) or b"").decode(errors="replace"))
    if installed is None or (loaded := loaded_rules(ctx, host)) == installed:
        return None
    outcome = assess(section, host)
    # ipv6-hp-bpf deletes the table when it takes over. An obstacle stops neither the boot unit nor
    # this.
    if isinstance(outcome, NotWanted):
        return outcome
    if not is_dry:
        host.nftables.load(ctx, render(installed))
    return change_to(loaded, installed)
