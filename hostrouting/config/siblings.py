"""The sections of the siblings, which the node can do without, and that of `Watch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from hostrouting.config import rules
from hostrouting.config.wire import WireValue, switch, wire
from hostrouting.exceptions import ConfigMistake

if TYPE_CHECKING:
    from collections.abc import Iterator


@attrs.frozen(kw_only=True)
class ProbeSNATConfig(WireValue):
    """IPv6 load-balancer probes that a router may forward: their link-local source becomes a global address."""

    enabled: bool = switch("Installs the rules.")
    dev: str | None = attrs.field(
        default=None,
        metadata=wire(
            "The device that the probes arrive on. Without it: that of the IPv6 default route, which an image has not.",
            rules.optional_device,
        ),
    )
    source: str = attrs.field(
        default="fe80::1234:5678:9abc",
        metadata=wire(
            "The link-local address that the probes come from.",
            rules.ipv6_address(0xFE80 >> 6, 10, "a link-local IPv6 address such as 'fe80::1234:5678:9abc'"),
        ),
    )
    address: str = attrs.field(
        default="2603:1062:0:1:fe80:1234:5678:9abc",
        metadata=wire(
            "The global address that pods see instead.",
            rules.ipv6_address(1, 3, "a global unicast IPv6 address (2000::/3)"),
        ),
    )
    detect: Literal["imds", "address", "always"] = attrs.field(
        default="imds",
        metadata=wire(
            "How the node's IPv6 is found: imds queries the cloud, address looks on the device, always assumes it.",
            rules.one_of("imds", "address", "always"),
        ),
    )
    required: bool = switch("A failure fails the apply and holds the gates; otherwise it is a warning.")


@attrs.frozen(kw_only=True)
class StaleCNIForce(WireValue):
    """Signs of a live CNI that the sweep ignores, for operators who are sure that its pods ended."""

    conflist: bool = switch("Sweep although a file in /etc/cni/net.d still names the CNI.")
    lock: bool = switch("Sweep although one of its programs still holds a lock.")


@attrs.frozen(kw_only=True)
class StaleCNIConfig(WireValue):
    """The sweep of what azure-vnet left behind on a node: only objects of pod addresses in podCidrs."""

    enabled: bool = switch("Sweeps at each apply.")
    pod_cidrs: tuple[str, ...] = attrs.field(
        default=(),
        metadata=wire(
            "The networks that the removed CNI gave to pods, of both families; required when enabled.",
            rules.list_of(rules.cidr),
        ),
    )
    bridge: str = attrs.field(default="azure0", metadata=wire("The bridge of the removed CNI.", rules.device))
    confirmations: int = attrs.field(
        default=2,
        metadata=wire(
            "The number of readings in a row that must agree before an object is removed.", rules.whole_number(1, 10)
        ),
    )
    backup_dir: str = attrs.field(
        default="/var/lib/hostrouting/stale-cni",
        metadata=wire("Where removed objects are recorded, for a reset.", rules.folder),
    )
    force: StaleCNIForce = StaleCNIForce()
    required: bool = switch("A failure fails the apply; otherwise it is a warning.")
    sweep: Literal["report", "clean"] = attrs.field(
        default="report",
        metadata=wire(
            "Objects that become stale later: report logs them, clean removes them. It needs watch in mode service.",
            rules.one_of("report", "clean"),
        ),
    )

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterator[ConfigMistake]:
        if not broken & {"enabled", "podCidrs"} and self.enabled and not self.pod_cidrs:
            yield ConfigMistake("podCidrs", "is required when enabled: the range that the removed CNI gave to pods")


@attrs.frozen(kw_only=True)
class WatchConfig(WireValue):
    """A unit that keeps routing right after the boot.

    >>> WatchConfig.from_mapping({"enabled": True, "interval": "1m30s"}).interval
    90.0
    """

    enabled: bool = switch("Installs the unit.")
    mode: Literal["timer", "service"] = attrs.field(
        default="timer",
        metadata=wire(
            "timer runs the boot's scripts again, without Python; service runs the command, which repairs at once.",
            rules.one_of("timer", "service"),
        ),
    )
    interval: float = attrs.field(
        default=60.0,
        metadata=wire(
            "The time between two full comparisons, such as 60s or 1m30s.",
            rules.seconds(1, 86_400),
            read=rules.duration(1, 86_400),
            write=rules.write_duration,
        ),
    )
    readings: int = attrs.field(
        default=2,
        metadata=wire(
            "The number of bad proofs in a row that make an alarm. The timer counts none.", rules.whole_number(1, 10)
        ),
    )
    keep_foreign_routes: bool = switch(
        "Makes systemd-networkd leave the routes and rules of other programs in place; only with enabled."
    )

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterator[ConfigMistake]:
        if not broken & {"enabled", "keepForeignRoutes"} and self.keep_foreign_routes and not self.enabled:
            yield ConfigMistake(
                "keepForeignRoutes",
                "true counts only if watch.enabled is true, too; set that to true, or take this one out",
            )
