"""The common parts of tasks: their constructor, and the boot half of the routing pair."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from hostrouting.boot.boot import Boot
from hostrouting.boot.intent import Intent
from hostrouting.boot.layout import Departure
from hostrouting.config import HostRoutingConfig, require_config
from hostrouting.exceptions import BackendError
from hostrouting.host import Host
from hostrouting.net.addresses import IPV6

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.boot.layout import BootUnit
    from phases import Change, Context


_T = TypeVar("_T")


class NamedTask:
    """A task that is called by its name, and takes all but its config by name, too."""

    name: str

    def __new__(cls: type[_T], *arguments: object, **_options: object) -> _T:
        """Refuse options by position: most programs give a logger second."""
        if len(arguments) > 1:
            raise TypeError(f"{cls.__name__} takes its options by name: {cls.__name__}(config, logger=..., host=...)")
        return object.__new__(cls)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class NodeTask(NamedTask):
    """A task made of a config, a host (this machine) and a logger (that of its module)."""

    #: The runner reverses the changes that a run recorded; it does not call `undo`, which also reverses earlier runs.
    records = True

    def __init__(
        self, config: HostRoutingConfig, *, host: Host | None = None, logger: logging.Logger | None = None
    ) -> None:
        self._config = require_config(config)
        self._host = Host.given_or_live(host)
        self._logger = logger or logging.getLogger(type(self).__module__)
        if IPV6 in config.families and self._host.is_live and IPV6 not in self._host.routes.families:
            named = (*(route.destination for route in config.static_routes.routes), *config.route_overlap.cidrs)
            ipv6 = [text for text in named if ":" in text]
            backend = type(self._host.routes).__name__
            step = f"use another one, or remove {', '.join(ipv6)} from the config"
            raise BackendError(f"the backend {backend} knows no IPv6: see its 'families'; {step}")

    @property
    def _boot(self) -> Boot:
        return Boot(self._host, gates=self._config.gates, logger=self._logger)

    def _intent_with(self, part: BootUnit | Departure) -> Intent:
        return Intent.of_part(part, self._config)


class PairTask(NodeTask, ABC):
    """A task with a live half, and with a unit that does the same at every boot.

    `Configure` uses the live half alone, because it installs the boot files of all its tasks at once.
    """

    #: Returns the unit for a config; its departure if the config asks for nothing.
    _boot_part: Callable[[HostRoutingConfig], BootUnit | Departure]

    @property
    def _part(self) -> BootUnit | Departure:
        return self._boot_part(self._config)

    @abstractmethod
    def plan_act(self, ctx: Context) -> list[Change]:
        """Return the changes that the live half would make now."""

    @abstractmethod
    def undo_act(self, ctx: Context) -> None:
        """Reverse the live half."""

    def plan(self, ctx: Context) -> list[Change]:
        """Return the changes that `do` would make now; do not wait."""
        ctx.check()
        part = self._part
        planned = self._boot.plan_install(ctx, part, self._intent_with(part))
        # In the order of the work.
        return planned + self.plan_act(ctx) if isinstance(part, Departure) else self.plan_act(ctx) + planned

    def undo(self, ctx: Context) -> None:
        """Remove the unit with its files, then reverse the live half."""
        part = self._boot_part(HostRoutingConfig())
        self._remove(ctx, part, Intent.of_departure(part))

    def _remove(self, ctx: Context, part: BootUnit | Departure, intent: Intent) -> None:
        with self._host.lock.hold(ctx) as held:
            # The unit first: it would do its work again if a gated machine started meanwhile.
            self._boot.install(held, part, intent)
            self.undo_act(held)
