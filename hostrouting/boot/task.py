"""The base classes of tasks."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from hostrouting.base.errors import BackendError
from hostrouting.boot.boot import Boot
from hostrouting.boot.installed_config import (
    ATTRIBUTES,
    NewConfig,
    as_installed,
    installed_config_has,
)
from hostrouting.config.sections import HostRoutingConfig, require_config
from hostrouting.host import Host
from hostrouting.net.addresses import IPV6
from phases import Change, Context, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.boot.installed_config import BootPart
    from hostrouting.config.optional import OptionalSection


#: Why a step is skipped.
NOT_CONFIGURED: Final = "not in the config"
NOT_IN_IMAGE: Final = "an image is not running"
ROUTES_ONLY: Final = "on this host, only routes are changed and checked"


class NamedTask:
    """A task with a name; its config is its only positional argument."""

    name: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class NodeTask(NamedTask, ABC):
    """A task with a config, a host (default: this machine) and a logger (default: its module's)."""

    #: The runner undoes the recorded changes of a run; `undo` would also undo earlier runs.
    records = True

    def __init__(
        self,
        config: HostRoutingConfig,
        *,
        host: Host | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self._config = require_config(config)
        self._host = Host.given_or_live(host)
        self._logger = logger or logging.getLogger(type(self).__module__)
        is_ipv4_only = self._host.is_live and IPV6 not in self._host.routes.families
        if is_ipv4_only and IPV6 in config.families:
            destinations = [route.destination for route in config.static_routes.routes]
            cidrs = [*destinations, *config.route_overlap.cidrs]
            ipv6 = ", ".join(cidr for cidr in cidrs if ":" in cidr)
            raise BackendError(
                f"the backend {type(self._host.routes).__name__} does not support IPv6 (see its "
                f"'families'); use another backend, or remove {ipv6} from the config"
            )

    @classmethod
    def reset(cls, _config: HostRoutingConfig, host: Host, logger: logging.Logger) -> Task:
        """Return the task with which a reset removes what any config has installed."""
        return cls(HostRoutingConfig(gates=()), host=host, logger=logger)

    @abstractmethod
    def do(self, ctx: Context) -> None:
        """Do the task."""

    @property
    def _boot(self) -> Boot:
        return Boot(self._host, gates=self._config.gates, logger=self._logger)


class SectionTask(NodeTask):
    """A task that installs a unit for one section of the config."""

    #: The attribute of the config.
    section: str
    #: Options of the task that undoes this one.
    _undo_options: ClassVar[Mapping[str, Any]] = {}

    @property
    def _idle_reason(self) -> str:
        """Why there is nothing to do: the feature is neither enabled nor installed; or ""."""
        section: OptionalSection = getattr(self._config, self.section)
        if not self._host.has_boot:
            return ROUTES_ONLY
        if section.enabled or self._boot.has_part_of(section):
            return ""
        # An earlier run may have to be finished.
        is_left = self._boot.is_unfinished or installed_config_has(self._host.files, self.section)
        return "" if is_left else NOT_CONFIGURED

    def _installed(self, part: BootPart) -> tuple[BootPart, ...]:
        """Return what this task installs: nothing on a host where only routes are changed."""
        return (part, self._new_config) if self._host.has_boot else ()

    def _plan_files(
        self, ctx: Context, parts: Sequence[BootPart], *, force: bool = False
    ) -> list[Change]:
        return self._boot.plan_install(ctx, *parts, force=force) if parts else []

    @property
    def _on_node(self) -> HostRoutingConfig:
        """The config as it will be installed here."""
        return as_installed(self._config, self._host)

    @property
    def _new_config(self) -> NewConfig:
        """The config that this task installs; the sections of other tasks stay as they are."""
        # No other task installs a section that has neither units nor files.
        config = self._on_node
        asking = {name: section for name, section in config.sections.items() if section.asks}
        free = {name for name, section in asking.items() if not section.part_names()}
        return NewConfig(config=config, kept=ATTRIBUTES - free - {self.section, "gates"})

    def undo(self, ctx: Context) -> None:
        """Do the task for a config without the section."""
        empty = type(getattr(self._config, self.section))()
        config = attrs.evolve(self._config, **{self.section: empty})
        type(self)(config, host=self._host, logger=self._logger, **self._undo_options).do(ctx)
