"""The command `hostrouting watch`."""

from __future__ import annotations

import gc
import logging
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hostrouting.commands import Answer
from phases import CancelledError, Context, cancel_on_signals

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host

#: What a watch loads only when it wants it.
_LATE: Final = (
    "hostrouting.host.imds",
    "hostrouting.host.netlink.batches",
    "hostrouting.host.netlink.events",
    "hostrouting.host.netlink.link_layer",
    "hostrouting.host.netlink.probes",
    "hostrouting.host.packets.ebtables",
    "hostrouting.host.packets.nft",
    "hostrouting.host.systemd.notify",
    "hostrouting.route_overlap.announced",
    "hostrouting.route_overlap.lasting",
    "hostrouting.route_overlap.policy",
    "hostrouting.route_overlap.suggest",
)
_logger = logging.getLogger("hostrouting")


def run(host: Host, options: Namespace, read_config: Callable[[], HostRoutingConfig]) -> Answer:
    """Keep the routing of a config right, until a signal ends it."""
    # The process of a command is without a collector, since it ends soon. This one does not.
    gc.enable()
    # It waits until the task can take it; by default it would end this process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    # The signals that end it first: to import the rest takes a while.
    with cancel_on_signals(Context(timeout=options.timeout)) as ctx:
        from hostrouting.watch.signs import LivingClock
        from hostrouting.watch.task import Watch

        ctx.clock = clock = LivingClock(host.supervisor)
        with clock.woken_by_signals():
            config = _config_to_watch(ctx, host, options, read_config)
            _load_the_rest()
            if config is not None:
                watch = Watch(config, host=host, logger=_logger)
                signal.signal(signal.SIGHUP, lambda *_: watch.reload(read_config))
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
                watch.do(ctx)
    return Answer({"ok": True})


def _config_to_watch(
    ctx: Context, host: Host, options: Namespace, read_config: Callable[[], HostRoutingConfig]
) -> HostRoutingConfig | None:
    """Return the config; the service of the installed one waits for it, and gets None if it is to end before."""
    from hostrouting.boot import INTENT_PATH
    from hostrouting.host.offline import NoSupervisor
    from hostrouting.watch.installed import wait_for_installed

    if options.config not in {None, INTENT_PATH} or isinstance(host.supervisor, NoSupervisor):
        # A pipe may never be written to.
        with suppress(CancelledError), ctx.interruptible():
            return read_config()
        return None
    return wait_for_installed(ctx, host, _logger)


def _load_the_rest() -> None:
    """Load all that a watch may want later: its process outlives an upgrade or a removal of the files that have it."""
    from importlib import import_module

    from hostrouting.probe_snat.ruleset import template

    for name in _LATE:
        import_module(name)
    template()
