"""Watch, with the reconcilers of all features, and the command `hostrouting watch`."""

from __future__ import annotations

import gc
import logging
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING

from hostrouting.base.errors import ConfigMistake, InvalidConfigError
from hostrouting.boot.installed_config import NOT_INSTALLED
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.host.offline import NoSupervisor
from hostrouting.node.capabilities import OPTIONAL_SECTIONS
from hostrouting.watch.installed import wait_for_installed
from hostrouting.watch.signs import LivingClock
from hostrouting.watch.task import WatchTask
from phases import CancelledError, Context
from phases.hosting import cancel_on_signals, interruptible

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from hostrouting.boot.reconciler import Reconciler
    from hostrouting.host import Host

#: The modules that a watch loads late.
_LATE = (
    "hostrouting.host.imds",
    "hostrouting.host.netlink.events",
    "hostrouting.host.netlink.link_layer",
    "hostrouting.host.netlink.transport",
    "hostrouting.host.packets.ebtables",
    "hostrouting.host.packets.nft",
    "hostrouting.host.systemd.notify",
    "hostrouting.host.trial",
    "hostrouting.managers",
    "hostrouting.route_overlap.announced",
    "hostrouting.route_overlap.policy",
    "hostrouting.route_overlap.suggest",
)
_logger = logging.getLogger("hostrouting")


class Watch(WatchTask):
    """Keep routes, check and optional features right until the context ends, which is no failure.

    >>> from hostrouting import HostRoutingConfig
    >>> from hostrouting.testing import FakeHost
    >>> from phases import Context
    >>> Watch(HostRoutingConfig(), host=FakeHost()).do(Context(timeout=0.01))

    If a route of the config is deleted or replaced, it is restored within milliseconds, before
    other routes with the same key; routes of other programs are never touched. If it is replaced or
    deleted a fourth time within an hour, it is restored after a pause of 1 s to 60 s, and an error
    is logged. The routes are also compared every `interval` of the config.

    Soon after events that may misroute an expected address, all expected CIDRs are checked. Several
    bad checks in a row (`readings` in the config, with a second between them) are an alarm: its
    findings are logged, and the marker file is written. The end of an alarm is logged as well.
    Nothing that runs is ever stopped. All CIDRs are also checked every `interval`.

    A worker thread runs the optional features of the config: it restores the rules for IPv6 probes
    that an apply installed, and reports or removes stale objects of azure-vnet, depending on
    `staleCni.sweep`. Their failures are logged, and the routes never wait for them.

    Each repair takes the run lock and then reads the installed config, so it never works against an
    apply: the config that an apply installs replaces the given one. After a reset, the task ends.
    On a node without an installed config, it cannot distinguish a reset from any other removal of
    its routes, so end the task before the reset.

    `host.supervisor` is notified of the first repair, and of each change of state.
    """

    @property
    def _optional(self) -> Sequence[type[Reconciler]]:
        reconcilers = [
            each.reconciler() for each in OPTIONAL_SECTIONS if each.reconciler is not None
        ]
        # Quick ones should not wait for a sweep.
        return sorted(reconcilers, key=attrgetter("seconds"))


def run(host: Host, options: Namespace, read_config: Callable[[], HostRoutingConfig]) -> None:
    """Keep the routing of a config right, until a signal ends it."""
    # Commands run without the garbage collector because they end soon. This one does not.
    gc.enable()
    with cancel_on_signals(Context(timeout=options.timeout)) as ctx:
        ctx.clock = clock = LivingClock(host.supervisor)
        with clock.woken_by_signals():
            config: HostRoutingConfig | None = None
            if options.config not in {None, CONFIG_PATH} or isinstance(
                host.supervisor, NoSupervisor
            ):
                # A pipe may never be written to.
                with suppress(CancelledError), interruptible(ctx):
                    is_installed = host.files.exists(CONFIG_PATH)
                    if is_installed or options.config is not None:
                        config = read_config()
                    # Otherwise it would leave routes behind that nothing restores after its end.
                    if not is_installed:
                        reason = f"{NOT_INSTALLED}; a watch keeps an applied one: apply it first"
                        raise InvalidConfigError([ConfigMistake("", reason)])
            else:
                config = wait_for_installed(ctx, host, _logger)
            # The process may outlive an upgrade or a removal of its files.
            for name in _LATE:
                import_module(name)
            if config is not None:
                Watch(config, host=host, logger=_logger).do(ctx)
