"""The sections of the siblings, which the node can do without, and that of `Watch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from hostrouting.config import rules
from hostrouting.config.wire import WireValue, wire
from hostrouting.exceptions import ConfigMistake

if TYPE_CHECKING:
    from collections.abc import Iterator


@attrs.frozen(kw_only=True)
class ProbeSNATConfig(WireValue):
    """IPv6 load-balancer probes that a router may forward: their link-local source becomes a global address."""

    enabled: bool = False
    #: None (or empty) stands for the device of the IPv6 default route.
    dev: str | None = attrs.field(default=None, metadata=wire(rules.optional_device))
    #: Where the cloud's probes come from.
    source: str = attrs.field(
        default="fe80::1234:5678:9abc",
        metadata=wire(rules.ipv6_address(0xFE80 >> 6, 10, "a link-local IPv6 address such as 'fe80::1234:5678:9abc'")),
    )
    #: The source that pods see instead.
    address: str = attrs.field(
        default="2603:1062:0:1:fe80:1234:5678:9abc",
        metadata=wire(rules.ipv6_address(1, 3, "a global unicast IPv6 address (2000::/3)")),
    )
    #: How to find out if the node has IPv6: ask the cloud, look for a global address on `dev`, or assume it.
    detect: Literal["imds", "address", "always"] = attrs.field(
        default="imds", metadata=wire(rules.one_of("imds", "address", "always"))
    )
    #: If true, a failure fails `Configure` and holds the gates; otherwise it is a warning.
    required: bool = False


@attrs.frozen(kw_only=True)
class StaleCNIForce(WireValue):
    """Signs of a live CNI that the sweep ignores, if the operator knows that none of its pods is alive."""

    #: A file in /etc/cni/net.d that still names the CNI.
    conflist: bool = False
    #: A lock that one of its programs still holds.
    lock: bool = False


@attrs.frozen(kw_only=True)
class StaleCNIConfig(WireValue):
    """The sweep of a removed CNI's objects: only those of pod addresses in `pod_cidrs`."""

    enabled: bool = False
    #: IPv4 and IPv6, masked, and each once.
    pod_cidrs: tuple[str, ...] = attrs.field(default=(), metadata=wire(rules.list_of(rules.cidr)))
    bridge: str = attrs.field(default="azure0", metadata=wire(rules.device))
    #: The number of readings in a row that must agree before an object is removed.
    confirmations: int = attrs.field(default=2, metadata=wire(rules.whole_number(1, 10)))
    backup_dir: str = attrs.field(default="/var/lib/hostrouting/stale-cni", metadata=wire(rules.folder))
    #: Clean even while the CNI still looks configured, or at work.
    force: StaleCNIForce = StaleCNIForce()
    #: If true, a failure fails `Configure`; otherwise it is a warning.
    required: bool = False
    #: Objects that become stale while `Watch` runs: it reports them, or removes them as an apply does.
    sweep: Literal["report", "clean"] = attrs.field(default="report", metadata=wire(rules.one_of("report", "clean")))

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterator[ConfigMistake]:
        if not broken & {"enabled", "podCidrs"} and self.enabled and not self.pod_cidrs:
            yield ConfigMistake("podCidrs", "is required when enabled: the range that the removed CNI gave to pods")


@attrs.frozen(kw_only=True)
class WatchConfig(WireValue):
    """Keeping routing right after the boot.

    >>> WatchConfig.from_mapping({"enabled": True, "interval": "1m30s"}).interval
    90.0
    """

    enabled: bool = False
    #: Its unit: a timer runs the boot scripts again, a service runs `Watch`.
    mode: Literal["timer", "service"] = attrs.field(default="timer", metadata=wire(rules.one_of("timer", "service")))
    #: Seconds between two full comparisons; text such as "60s" on the wire.
    interval: float = attrs.field(
        default=60.0,
        metadata=wire(rules.seconds(1, 86_400), read=rules.duration(1, 86_400), write=rules.write_duration),
    )
    #: The number of bad readings of the proof in a row that make an alarm; runs of the timer count none.
    readings: int = attrs.field(default=2, metadata=wire(rules.whole_number(1, 10)))
    #: If true, a drop-in tells systemd-networkd to leave foreign routes and rules in place; only with `enabled`.
    keep_foreign_routes: bool = False

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterator[ConfigMistake]:
        if not broken & {"enabled", "keepForeignRoutes"} and self.keep_foreign_routes and not self.enabled:
            yield ConfigMistake(
                "keepForeignRoutes",
                "true counts only if watch.enabled is true, too; set that to true, or take this one out",
            )
