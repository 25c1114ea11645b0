"""What a capability gives to a watch: a keeper of its part of the node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host, NetworkEvent
    from phases import Context

#: The name of the task, which each log record of a watch has in its field `task`. Some have an
#: `event`, too: `keeps`, `repair`, `alarm`, `stale`, or `over` for the end of an alarm or a
#: trouble.
WATCH_TASK: Final = "watch-routes"


class ConfigInForce(Protocol):
    """The installed config, which an apply or a reset changes."""

    config: HostRoutingConfig
    #: A reset removed it: there is nothing to keep any more.
    is_reset: bool

    def read(self) -> HostRoutingConfig:
        """Return the config in force, under the run lock."""


@attrs.define(eq=False, repr=False)
class Keeper(ABC):
    """Keeps one part of the node right; one thread calls it, in the order of the events."""

    #: The beginning of the message about a failed `act`.
    failure: ClassVar[str]
    _host: Host
    _logger: logging.Logger
    _installed: ConfigInForce

    def receive(self, events: Sequence[NetworkEvent]) -> float:  # noqa: ARG002
        """Return the seconds until the events require an `act`: 0 for at once, `inf` for never."""
        return inf

    def lose(self) -> None:  # noqa: B027 - most have nothing to forget
        """Forget all events, since some were lost; `act` follows at once, and reads everything."""

    @abstractmethod
    def act(self, ctx: Context) -> float:
        """Look, and repair; return the seconds until the next `act` without an event."""


#: Makes the keeper of an optional capability; that is usually its class.
SiblingKeeper: TypeAlias = "Callable[[Host, logging.Logger, ConfigInForce], Keeper]"
