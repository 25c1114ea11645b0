"""What a section declares; those of the siblings, which the node can do without, and of `Watch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Literal

import attrs

from hostrouting.base.errors import ConfigMistake
from hostrouting.base.values import LightValue
from hostrouting.config import rules
from hostrouting.config.wire import WireValue, setting

if TYPE_CHECKING:
    from collections.abc import Iterator


class Section(WireValue):
    """One capability's part of the config, and what an apply installs for it."""

    __slots__ = ()

    #: The units; none of them may be a gate, which would wait for itself.
    units: ClassVar[tuple[str, ...]] = ()
    #: The paths of the files besides those of the units.
    files: ClassVar[tuple[str, ...]] = ()
    #: True if its unit does the work at each boot: a gate may wait for it, and ask its script, and
    #: a timer of `Watch` runs it again.
    runs_at_boot: ClassVar[bool] = False
    #: True if its unit depends on the state of the node, or on the cloud: it is made when its task
    #: runs, never before the routes.
    reads_node: ClassVar[bool] = False
    #: False if the config of an agent may have another key of its name.
    is_reserved: ClassVar[bool] = True
    #: Why it installs nothing, if that is so.
    idle: ClassVar[str] = "enabled is not true"
    #: True if its failure fails an apply, and may hold the gates.
    required: bool = True

    @property
    def asks(self) -> bool:
        """True if an apply has anything to do for it."""
        raise NotImplementedError

    @classmethod
    def part_names(cls) -> tuple[str, ...]:
        """Return what an apply installs for it: its units, or its files if it has none."""
        return cls.units or cls.files

    @property
    def unit(self) -> str:
        """The one of its units that an apply would install; "" without any."""
        return self.units[0] if self.units else ""


class Sibling(LightValue, Section):
    """The section of an optional capability."""

    __slots__ = ()

    enabled: bool
    required: bool = False

    @property
    def asks(self) -> bool:
        """See `Section`."""
        return self.enabled


@attrs.frozen(kw_only=True)
class ProbeSNATConfig(Sibling):
    """IPv6 load-balancer probes: their link-local source becomes a global, routable address."""

    units: ClassVar[tuple[str, ...]] = ("probe-snat.service",)
    files: ClassVar[tuple[str, ...]] = (
        "/etc/aks-flex-node/probe-snat.nft",
        # A drop-in for AgentBaker's unit, which fills the same table.
        "/etc/systemd/system/ipv6_nftables.service.d/10-probe-snat.conf",
    )
    runs_at_boot = True
    reads_node = True

    enabled: bool = setting("Installs the rules.")
    dev: str | None = setting(
        "The device of the probes; an image needs it. Without it: that of the IPv6 default route.",
        rules.optional_device,
        default=None,
    )
    source: str = setting(
        "The link-local address that the probes come from.",
        rules.ipv6_address(
            0xFE80 >> 6, 10, "a link-local IPv6 address such as 'fe80::1234:5678:9abc'"
        ),
        default="fe80::1234:5678:9abc",
    )
    address: str = setting(
        "The global address that pods see instead.",
        rules.ipv6_address(1, 3, "a global unicast IPv6 address such as '2001:db8::1'"),
        default="2603:1062:0:1:fe80:1234:5678:9abc",
    )
    detect: Literal["imds", "address", "always"] = setting(
        "How IPv6 is found: imds queries the cloud, address reads the device, always assumes it.",
        rules.one_of("imds", "address", "always"),
        default="imds",
    )
    required: bool = setting(
        "A failure fails the apply and holds the gates; otherwise it is a warning."
    )


@attrs.frozen(kw_only=True)
class StaleCNIConfig(Sibling):
    """The removal of what azure-vnet left on a node: only entries of addresses in podCidrs."""

    enabled: bool = setting("Sweeps at each apply.")
    pod_cidrs: tuple[str, ...] = setting(
        "The networks that the removed CNI gave to pods, of both families; required when enabled.",
        rules.list_of(rules.cidr),
        default=(),
    )
    bridge: str = setting("The bridge of the removed CNI.", rules.device, default="azure0")
    backup_dir: str = setting(
        "Where a cleanup writes what was there before, and the commands that add it again.",
        rules.folder,
        default="/var/lib/hostrouting/stale-cni",
    )
    required: bool = setting("A failure fails the apply; otherwise it is a warning.")
    sweep: Literal["report", "clean"] = setting(
        "In watch mode service, for objects that become stale: report logs, clean removes them.",
        rules.one_of("report", "clean"),
        default="report",
    )

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterator[ConfigMistake]:
        if not broken & {"enabled", "podCidrs"} and self.enabled and not self.pod_cidrs:
            yield ConfigMistake(
                "podCidrs", "is required when enabled: the range that the removed CNI gave to pods"
            )


@attrs.frozen(kw_only=True)
class WatchConfig(Sibling):
    """A unit that keeps routing right after the boot.

    >>> WatchConfig.from_mapping({"enabled": True, "interval": "1m30s"}).interval
    90.0
    """

    units: ClassVar[tuple[str, ...]] = ("hostrouting-watch.timer", "hostrouting-watch.service")
    files: ClassVar[tuple[str, ...]] = ("/etc/systemd/networkd.conf.d/10-hostrouting.conf",)
    is_reserved = False
    idle = ""

    enabled: bool = setting("Installs the unit.")
    mode: Literal["timer", "service"] = setting(
        "timer runs the units of the boot again; service repairs at once.",
        rules.one_of("timer", "service"),
        default="timer",
    )
    interval: float = setting(
        "The time between two full comparisons, such as 60s or 1m30s.",
        rules.seconds(1, 86_400),
        default=60.0,
        read=rules.duration(1, 86_400),
        write=rules.write_duration,
    )
    readings: int = setting(
        "The number of bad proofs in a row that make an alarm. The timer counts none.",
        rules.whole_number(1, 10),
        default=2,
    )
    keep_foreign_routes: bool = setting(
        "Makes systemd-networkd keep routes and rules of other programs; needs enabled."
    )

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterator[ConfigMistake]:
        is_known = not broken & {"enabled", "keepForeignRoutes"}
        if is_known and self.keep_foreign_routes and not self.enabled:
            reason = "true counts only if watch.enabled is true, too"
            step = "set that to true, or take this one out"
            yield ConfigMistake("keepForeignRoutes", f"{reason}; {step}")

    @property
    def asks(self) -> bool:
        """False: it keeps what other sections install."""
        return False

    @property
    def unit(self) -> str:
        """See `Section`."""
        timer, service = self.units
        return timer if self.mode == "timer" else service


SIBLINGS: Final[tuple[type[Sibling], ...]] = (ProbeSNATConfig, StaleCNIConfig, WatchConfig)
