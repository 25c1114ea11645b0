"""Decide if a node needs the rules, and which, by its IPv6 and the cloud's description.

Compare the table of a live node with them, and repair it. Nothing here waits.

ProbeRules   wanted, and complete
NotWanted    the node does not need them, with the reason
Obstacle     wanted, but the node is not (yet) ready for them
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

#: The programs of ipv6-hp-bpf, which do the same job on a device.
_SAME_JOB = frozenset({"ipv6_hp_ingress", "ipv6_hp_egress"})
#: When a device comes up, the kernel adds its link-local address, waits a second, and solicits
#: routers three times, 4 s apart (router_solicitation_delay, router_solicitations,
#: router_solicitation_interval): together 13 s.
_SECONDS_FOR_ROUTERS = 15.0
_DEV = "hostRouting.probeSnat.dev"


@attrs.frozen
class NotWanted:
    """No rules belong on this node."""

    reason: str
    #: The level at which a run logs the reason.
    level: int = INFO
    may_change: bool = False


@attrs.frozen
class Obstacle:
    """The reason why the rules would not work, and the next step; `may_change` if it may pass."""

    reason: str
    step: str = ""
    may_change: bool = False
    #: In place of a step.
    command: str = ""

    @property
    def remedy(self) -> str:
        """The step, or the command, as a clause."""
        return f"run: {self.command}" if self.command else self.step


def assess(section: ProbeSNATConfig, host: Host) -> ProbeRules | NotWanted | Obstacle:
    """Return the rules for a live node as it is now, if the cloud describes IPv6 addresses."""
    rules = _rules(section, host)
    if isinstance(rules, Obstacle):
        if section.detect == "address" and rules.may_change:
            return NotWanted(f"this node lacks IPv6: {rules.reason}", may_change=True)
        return rules
    dev = rules.dev
    # A device that was looked up has a route, so it exists and is up.
    if section.dev:
        device = next((device for device in host.routes.links() if device.name == dev), None)
        # Also if an address decides on IPv6: that a mistyped device lacks one proves nothing.
        if device is None:
            return Obstacle(f"there is no device {dev}", f"correct {_DEV}", may_change=True)
        if not device.up:
            command = quoted("ip", "link", "set", dev, "up")
            return Obstacle(f"the device {dev} is down", may_change=True, command=command)
    if section.detect == "address" and not _addresses(host, dev):
        return NotWanted(f"this node lacks IPv6: {dev} lacks a global address", may_change=True)
    programmes = sorted(_SAME_JOB.intersection(host.link_layer.classifiers(dev)))
    if programmes:
        reason = f"the eBPF programme ipv6-hp-bpf ({', '.join(programmes)}) does this job on {dev}"
        return NotWanted(reason, level=WARNING)
    return _wrong_route(section, host, dev) or rules


def assume(section: ProbeSNATConfig, host: Host) -> ProbeRules | NotWanted | Obstacle:
    """Return the rules for a node that may have IPv6; on a node without it they match no packet.

    Without an IPv6 default route the device of the IPv4 one counts: it leads to the cloud.
    """
    outcome = assess(section, host)
    if not isinstance(outcome, Obstacle):
        return outcome
    return _rules(section, host, best_default_devs(host.routes.routes()))


def bypass(rules: ProbeRules, host: Host) -> str | None:
    """Return the reason why probes may bypass these rules; None without one.

    If Cilium replaces kube-proxy, its program on the device sends packets of services to their pods
    itself, so nftables never sees them.
    """
    # For tc the device's name follows it.
    names = [name for name in host.link_layer.classifiers(rules.dev) if "cil_from_netdev" in name]
    if not names:
        return None
    return (
        f"Cilium's program {names[0]} on {rules.dev} takes packets before nftables sees them: if "
        "it replaces kube-proxy, IPv6 probes do not reach these rules; use ipv6-hp-bpf there, "
        "which does the same job"
    )


def seconds_for_routers(section: ProbeSNATConfig, host: Host) -> float:
    """Return the seconds that a router may still take to advertise an address and a route.

    Without a device in the section, those of the IPv4 default routes count: they lead to the cloud.
    """
    if section.dev:
        devs = {section.dev}
    else:
        devs = {dev for route in default_routes(host.routes.routes()) for dev in route.devs}
    ages = [host.link_layer.newest_address(dev) for dev in devs]
    return max([0, *(_SECONDS_FOR_ROUTERS - age for age in ages if age is not None)])


def rules_to_install(config: HostRoutingConfig, *, host: Host | None = None) -> ProbeRules:
    """Return the rules of a config, even for a node without IPv6; a live node has the device."""
    if host is None or not host.is_live:
        if config.probe_snat.dev:
            return ProbeRules.of(config.probe_snat, config.probe_snat.dev)
        reason = (
            "is missing; name the device that probes come in by, which only a live node can look up"
        )
        raise InvalidConfigError([ConfigMistake(_DEV, reason)])
    rules = _rules(config.probe_snat, host)
    if isinstance(rules, Obstacle):
        raise BackendError(
            f"the device that IPv6 probes come in by is not known: {rules.reason}; {rules.remedy}"
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
hostRouting.probeSnat.detect 'address' or 'always' does without it
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
            f"hostRouting.probeSnat.detect 'address' or 'always' does without it"
        ) from error
    return has_ipv6


def _rules(
    section: ProbeSNATConfig, host: Host, otherwise: tuple[str, ...] = ()
) -> ProbeRules | Obstacle:
    """Return the rules for the device of the default route; without a route, for `otherwise`."""
    if section.dev:
        return ProbeRules.of(section, section.dev)
    devs = best_default_devs(host.routes.routes(IPV6)) or otherwise
    if not devs:
        step = f"see why no router advertises itself, or give {_DEV}"
        return Obstacle("there is no IPv6 default route", step, may_change=True)
    if len(devs) > 1:
        reason = f"IPv6 default routes leave by {', '.join(devs)}"
        return Obstacle(reason, f"choose the device that probes come in by with {_DEV}")
    try:
        return ProbeRules.of(section, devs[0])
    except ValueError as error:
        return Obstacle(f"of the device of the IPv6 default route {error}", "rename the device")


def _addresses(host: Host, dev: str) -> set[str]:
    """Return the IPv6 addresses of global scope on a device that the node may send from."""
    return {
        str(own.address)
        for device in host.routes.links()
        for own in device.addresses
        if device.name == dev and own.family == IPV6 and own.scope == 0 and own.usable
    }


def _wrong_route(section: ProbeSNATConfig, host: Host, dev: str) -> Obstacle | None:
    """Return the reason why replies to probes would not leave by the device, or not rewritten.

    Without the rewriting a probe gets no answer, and the address leaks.
    """
    numbers = [Address.parse(section.address).number]
    [answer] = host.routes.lookup(numbers, family=IPV6)
    if answer.route and not answer.route.hops:
        # Some kernels show a nexthop object by its number alone, and the path of a packet with its
        # device.
        [answer] = host.routes.lookup(numbers, resolve=True, family=IPV6)
    hops = answer.route.hops if answer.route else ()
    leaves_by = sorted({hop.dev for hop in hops if not hop.dead})
    if leaves_by == [dev]:
        if section.address not in _addresses(host, dev):
            return None
        return Obstacle(
            f"{section.address} is an address of the node, so replies to probes would end there",
            "give another hostRouting.probeSnat.address",
        )
    switch = f"net/ipv6/conf/{dev}/disable_ipv6"
    if (host.files.read(f"/proc/sys/{switch}") or b"").strip() == b"1":
        command = quoted("sysctl", "-w", f"{switch}=0")
        return Obstacle(f"IPv6 is disabled on {dev}", may_change=True, command=command)
    step = f"add a route to {section.address} by {dev}"
    if not leaves_by:
        return Obstacle(f"no route leads to {section.address}", step, may_change=True)
    elsewhere = ", ".join(name for name in leaves_by if name != dev)
    return Obstacle(
        f"packets to {section.address} leave by {elsewhere}, not by {dev} alone, "
        "so that replies to probes would not become the load balancer's again",
        f"{step}, or correct {_DEV}",
    )


#: The table: these rules, the reason why it has different ones, or None without a table.
Loaded: TypeAlias = ProbeRules | str | None


def loaded_rules(ctx: Context, host: Host) -> Loaded:
    """Return the rules of the table."""
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
    """Load the installed rules unless the table has them, under the run lock unless it `is_dry`.

    Return the change; None without one. An apply has decided if the node needs the rules, and for
    which device. The installed file shows its decision, so the cloud is not queried again.
    """
    installed = parse((host.files.read(RULESET_PATH) or b"").decode(errors="replace"))
    if installed is None or (loaded := loaded_rules(ctx, host)) == installed:
        return None
    outcome = assess(section, host)
    # ipv6-hp-bpf deletes the table when it takes over the job. An obstacle does not stop the unit
    # at boot, nor this.
    if isinstance(outcome, NotWanted):
        return outcome
    if not is_dry:
        host.nftables.load(ctx, render(installed))
    return change_to(loaded, installed)
