"""The base class of sections, and the sections of optional features."""

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
    """The config of one capability, and what an apply installs for it."""

    __slots__ = ()

    #: Its units; none of them may be a gate, because it would wait for itself.
    units: ClassVar[tuple[str, ...]] = ()
    #: The paths of its files, except the unit files.
    files: ClassVar[tuple[str, ...]] = ()
    #: True if its unit does the work at each boot: gates may wait for it and run its script, and
    #: the timer of the watch runs it again.
    runs_at_boot: ClassVar[bool] = False
    #: True if its unit depends on the state of the node or on the cloud: it is created when its
    #: task runs, after the routes.
    reads_node: ClassVar[bool] = False
    #: False if an agent's config may use the same key for something else.
    is_reserved: ClassVar[bool] = True
    #: Why it installs nothing, if it does not.
    idle: ClassVar[str] = "enabled is not true"
    #: True if a failure fails the apply and may hold the gates.
    required: bool = True

    @property
    def asks(self) -> bool:
        """True if an apply has anything to do for it."""
        raise NotImplementedError

    @classmethod
    def part_names(cls) -> tuple[str, ...]:
        """Return what an apply installs for it: its units, or its files if it has no unit."""
        return cls.units or cls.files

    @property
    def unit(self) -> str:
        """The unit that an apply would install; "" if there is none."""
        return self.units[0] if self.units else ""


class OptionalSection(LightValue, Section):
    """The section of an optional feature."""

    __slots__ = ()

    enabled: bool
    required: bool = False

    @property
    def asks(self) -> bool:
        """True if an apply has something to do for it."""
        return self.enabled


@attrs.frozen(kw_only=True)
class ProbeSNATConfig(OptionalSection):
    """IPv6 load-balancer probes: their link-local source becomes a global, routable address."""

    units: ClassVar[tuple[str, ...]] = ("probe-snat.service",)
    files: ClassVar[tuple[str, ...]] = (
        "/etc/aks-flex-node/probe-snat.nft",
        # A drop-in for AgentBaker's unit, which writes to the same table.
        "/etc/systemd/system/ipv6_nftables.service.d/10-probe-snat.conf",
    )
    runs_at_boot = True
    reads_node = True

    enabled: bool = setting("Installs the rules.")
    dev: str | None = setting(
        "The device of the probes; required in an image. Default: that of the IPv6 default route.",
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
        "How to detect IPv6: imds queries the cloud, address reads the device, always assumes it.",
        rules.one_of("imds", "address", "always"),
        default="imds",
    )
    required: bool = setting(
        "Whether a failure fails the apply and holds the gates; otherwise it is a warning."
    )


@attrs.frozen(kw_only=True)
class StaleCNIConfig(OptionalSection):
    """The cleanup after azure-vnet: removes only entries for addresses in podCidrs."""

    enabled: bool = setting("Sweeps at each apply.")
    pod_cidrs: tuple[str, ...] = setting(
        "The pod networks of the removed CNI, of both families; required if enabled.",
        rules.list_of(rules.cidr),
        default=(),
    )
    bridge: str = setting("The bridge of the removed CNI.", rules.device, default="azure0")
    backup_dir: str = setting(
        "Where a cleanup saves the previous state, with the commands that restore it.",
        rules.folder,
        default="/var/lib/hostrouting/stale-cni",
    )
    required: bool = setting("Whether a failure fails the apply; otherwise it is a warning.")
    sweep: Literal["report", "clean"] = setting(
        "For objects that become stale, if watch.mode is service: report logs, clean removes them.",
        rules.one_of("report", "clean"),
        default="report",
    )

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterator[ConfigMistake]:
        if not broken & {"enabled", "podCidrs"} and self.enabled and not self.pod_cidrs:
            yield ConfigMistake(
                "podCidrs",
                "is required if enabled is true: give the pod networks of the removed CNI",
            )


@attrs.frozen(kw_only=True)
class WatchConfig(OptionalSection):
    """A unit that keeps the routing correct after the boot.

    >>> WatchConfig.from_mapping({"enabled": True, "interval": "1m30s"}).interval
    90.0
    """

    units: ClassVar[tuple[str, ...]] = ("hostrouting-watch.timer", "hostrouting-watch.service")
    files: ClassVar[tuple[str, ...]] = ("/etc/systemd/networkd.conf.d/10-hostrouting.conf",)
    is_reserved = False
    idle = ""

    enabled: bool = setting("Installs the unit.")
    mode: Literal["timer", "service"] = setting(
        "timer runs the boot units again; service repairs at once.",
        rules.one_of("timer", "service"),
        default="timer",
    )
    interval: float = setting(
        "The time between two full checks, such as 60s or 1m30s.",
        rules.seconds(1, 86_400),
        default=60.0,
        read=rules.duration(1, 86_400),
        write=rules.write_duration,
    )
    readings: int = setting(
        "How many checks in a row must fail to raise an alarm. Ignored if mode is timer.",
        rules.whole_number(1, 10),
        default=2,
    )
    keep_foreign_routes: bool = setting(
        "Makes systemd-networkd keep the routes and rules of other programs; requires enabled."
    )

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterator[ConfigMistake]:
        is_known = not broken & {"enabled", "keepForeignRoutes"}
        if is_known and self.keep_foreign_routes and not self.enabled:
            reason = "true has no effect unless watch.enabled is true"
            step = "set watch.enabled to true, or remove this key"
            yield ConfigMistake("keepForeignRoutes", f"{reason}; {step}")

    @property
    def asks(self) -> bool:
        """False: it only maintains what other sections install."""
        return False

    @property
    def unit(self) -> str:
        """The unit of its mode, which an apply installs."""
        timer, service = self.units
        return timer if self.mode == "timer" else service


OPTIONAL_SECTIONS: Final[tuple[type[OptionalSection], ...]] = (
    ProbeSNATConfig,
    StaleCNIConfig,
    WatchConfig,
)
