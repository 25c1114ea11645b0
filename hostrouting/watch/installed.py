"""The config that `Watch` keeps in force: the installed one, or else that of its caller."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from hostrouting.base.errors import HostFileError, InvalidConfigError
from hostrouting.boot.intent import read_intent
from hostrouting.boot.keeper import WATCH_TASK, Trouble
from hostrouting.boot.layout import INTENT_PATH
from hostrouting.config.rules import write_duration
from phases.exceptions import CONTEXT_OVER

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import FileStore, Host
    from phases import Context

_SECONDS_BETWEEN_LOOKS = 1.0


def wait_for_installed(
    ctx: Context, host: Host, logger: logging.Logger
) -> HostRoutingConfig | None:
    """Return the installed config as soon as it can be read; None if there is none.

    None, too, if the context ends before. For a service: one that ended because of a damaged file
    would be started again every few seconds. It is reported as ready, as after a first look that
    failed, with the trouble as its state.
    """
    trouble = Trouble(logger, "the installed config cannot be read, so nothing is kept")
    while not ctx.over:
        before = str(trouble)
        try:
            config = read_intent(host.files)
        except (HostFileError, InvalidConfigError) as error:
            trouble.log(_in_one_line(error))
        else:
            trouble.end()
            return config
        if str(trouble) != before:
            host.supervisor.notify(READY="1", STATUS=str(trouble))
        # A file sends no event.
        with suppress(*CONTEXT_OVER):
            ctx.sleep(_SECONDS_BETWEEN_LOOKS)
    host.supervisor.notify(STOPPING="1")
    return None


def _in_one_line(error: Exception) -> str:
    first, *more = (line.strip() for line in str(error).splitlines())
    return " ".join(filter(None, [first, "; ".join(more)]))


def duties_of(config: HostRoutingConfig) -> str:
    """Return what a watch keeps of a config, in a line.

    >>> from hostrouting import HostRoutingConfig
    >>> duties_of(HostRoutingConfig())
    'static routes: 0, expected CIDRs: 0 (WARN); looks at all of it every 60s, and after events'
    """
    parts = [
        f"static routes: {len(config.static_routes.routes)}",
        f"expected CIDRs: {len(config.route_overlap.cidrs)} ({config.route_overlap.mode})",
        *["the rules for IPv6 probes"] * config.probe_snat.enabled,
        *[f"stale objects of azure-vnet ({config.stale_cni.sweep})"] * config.stale_cni.enabled,
    ]
    interval = write_duration(config.watch.interval)
    return f"{', '.join(parts)}; looks at all of it every {interval}, and after events"


@attrs.define(eq=False)
class InstalledConfig:
    """Follows the intent, which an apply or reset changes under the run lock."""

    config: HostRoutingConfig
    _files: FileStore
    _logger: logging.Logger
    #: A reset removed it while this ran: there is nothing to keep any more.
    is_reset: bool = False
    _is_there: bool = attrs.field(init=False)
    _trouble: Trouble = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        # Before the first `read` has the lock, a reset may have come and gone.
        self._is_there = self._files.exists(INTENT_PATH)
        failure = "the installed config cannot be read, and the one before it stays in force"
        self._trouble = Trouble(self._logger, failure)

    @property
    def interval(self) -> float:
        """See `ConfigInForce`."""
        return self.config.watch.interval

    def read(self) -> HostRoutingConfig:
        """Return the config in force, under the run lock; if it cannot be read, the last one."""
        try:
            intent = read_intent(self._files)
        except (HostFileError, InvalidConfigError) as error:
            # A file is there: it may have been damaged before this began, and a reset removes it.
            self._is_there = True
            self._trouble.log(_in_one_line(error))
            return self.config
        self._trouble.end()
        self.is_reset = intent is None and self._is_there
        if intent is not None:
            self._is_there = True
            self.config = intent
        return self.config

    def replace(self, read: Callable[[], HostRoutingConfig]) -> None:
        """Keep the config that `read` returns if none is installed; if it fails, the last one."""
        try:
            self.config = read()
        except Exception as error:  # noqa: BLE001 - a function of the caller, which may open a file by itself
            message = "the config cannot be read, and the one before it stays in force: %s"
            self._logger.error(message, str(error) or repr(error), extra={"task": WATCH_TASK})  # noqa: TRY400 - for the operator
