"""Configure: the tasks of a config in their order, one run at a time. Reset: the command that removes everything."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from hostrouting.boot import Boot, is_refusal
from hostrouting.boot_files import boot_parts, wanted_and_gone
from hostrouting.config import HostRoutingConfig, refuse_unbuilt, require_config
from hostrouting.exceptions import InvalidConfigError
from hostrouting.host import Host
from hostrouting.probe_snat import ConfigureProbeSNAT
from hostrouting.route_overlap import CheckRouteOverlap
from hostrouting.stale_cni import CleanStaleCNI, fields_of
from hostrouting.static_routes import WAIT_SECONDS, ConfigureStaticRoutes
from phases import (
    CancelledError,
    DeadlineExceededError,
    Serial,
    TaskFailedError,
    execute,
    plan,
    tolerate,
    with_timeout,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.boot_files import BootPart
    from phases import Change, Context, Task

__all__ = ["Configure", "Reset"]

#: A sibling of the routing pair may take this long, and never more than half of the time that is left.
_SIBLING_SECONDS: Final = 60.0
_ENDED: Final = (CancelledError, DeadlineExceededError)


class Configure:
    """Configure a node, now and for every boot: routes, sweep, probes, and the check that holds the gates.

    >>> from hostrouting import HostRoutingConfig
    >>> from hostrouting.testing import FakeHost
    >>> for task in Configure(HostRoutingConfig(), host=FakeHost()).subtasks:
    ...     print(task.name)
    install-boot-files
    configure-static-routes
    clean-stale-cni
    configure-probe-snat
    check-route-overlap

    It holds the run lock from the first task to the last: no other run changes routes before they are proven.

    A failure does not stop the other tasks; one error with all failures is raised at the end. On a node without
    hostrouting the boot files come first: a node that fails the check must not start its machine at the next boot
    either. Over an installed config the routes come first, and a config that the kernel refuses leaves the old one as
    it was, live and for every boot. A sibling (the sweep, the probes) that fails is a warning, unless its section is
    `required`.
    """

    name = "configure"
    anonymous = False

    def __init__(
        self, config: HostRoutingConfig, *, host: Host | None = None, logger: logging.Logger | None = None
    ) -> None:
        refuse_unbuilt(require_config(config))
        self._config = config
        self._host = Host.given_or_live(host)
        self._logger = logger
        pair = _Pair(config, self._host, logger)
        self._boot_files = pair.boot_files
        self._routes, self._check = pair.routes, pair.check
        self._log = log = logger or logging.getLogger("hostrouting")
        self._sweep = CleanStaleCNI(config, host=self._host, logger=log)
        self._siblings = (
            # Before the proof: stale objects may shadow routes.
            self._sibling(self._sweep, required=config.stale_cni.required),
            self._sibling(ConfigureProbeSNAT(config, host=self._host, logger=log), required=config.probe_snat.required),
        )
        self.subtasks: tuple[Task, ...] = (self._boot_files, self._routes, *self._siblings, self._check)
        self._failures: list[TaskFailedError] = []

    @property
    def spared(self) -> list[dict[str, object]]:
        """The objects that the sweep left alone: object, address, kind and reason of each."""
        return [fields_of(verdict) for verdict in self._sweep.spared]

    def do(self, ctx: Context) -> None:
        """Do all tasks; raise one error with every failure in it."""
        with self._host.lock.hold(ctx) as held:
            self._failures = []
            try:
                self._do_all(held)
            except _ENDED as error:
                if self._failures:
                    raise TaskFailedError.combine(self._failures) from error
                raise
            if self._failures:
                raise TaskFailedError.combine(self._failures)

    def plan(self, ctx: Context) -> Sequence[Change]:
        """Return the changes that `do` would make; do not change or wait."""
        return plan(self, ctx).changes

    def undo(self, ctx: Context) -> None:
        """Undo all tasks, the gate first."""
        with self._host.lock.hold(ctx) as held:
            Serial(self._routes, *self._siblings, self._check, self._boot_files).undo(held)

    def _do_all(self, ctx: Context) -> None:
        # A gate that could never open is refused before anything is changed.
        self._boot_files.refuse_gates(ctx)
        patience = _Patience(ctx)
        self._routes.patience = self._check.patience = patience
        if not self._boot_files.is_installed or not self._config.static_routes.routes:
            self._attempt(self._boot_files, ctx)
            self._attempt(self._routes, ctx)
        else:
            # Otherwise this config would be live, and the next boot would install the routes of the earlier one.
            self._boot_files.refuse_unwritable(ctx)
            self._attempt(self._routes, ctx)
            if any(is_refusal(cause) for failure in self._failures for cause in failure.failures):
                return
            self._attempt(self._boot_files, ctx)
        if self._failures and self._boot_files.is_installed:
            self._log.warning(
                "this config is installed for the next boot all the same; gated units start once this is fixed"
            )
        for sibling in self._siblings:
            self._attempt(sibling, ctx)
        self._attempt(self._check, ctx)
        if not self._failures:
            self._release(ctx)

    def _release(self, ctx: Context) -> None:
        """Start the held gates: their units may have no `Restart=`."""
        held = Boot(self._host, gates=self._config.gates).release(ctx)
        if held:
            self._log.warning(
                "routing is right, so these start within seconds: %s", ", ".join(held), extra={"held": held}
            )

    def _attempt(self, task: Task, ctx: Context) -> None:
        try:
            execute(task, ctx, logger=self._logger)
        except TaskFailedError as error:
            self._failures.append(error)

    def _sibling(self, task: Task, *, required: bool) -> Task:
        bounded = with_timeout(task, _SIBLING_SECONDS, share=0.5)
        return bounded if required else tolerate(bounded, on_failure=self._keep_mistakes)

    def _keep_mistakes(self, failure: TaskFailedError) -> None:
        """Keep the failure of an optional task if the config is wrong: then it can never work."""
        if any(isinstance(cause, InvalidConfigError) for cause in failure.failures):
            self._failures.append(failure)


class Reset:
    """Remove everything that hostrouting installed, by any config, and restore displaced and swept objects.

    Most tasks remove their part if the config does not ask for it; only the sweep needs an explicit undo, since a
    config without its section must not restore stale objects. A failure does not stop the other tasks.
    """

    name = "reset"
    anonymous = False

    def __init__(
        self, config: HostRoutingConfig, *, host: Host | None = None, logger: logging.Logger | None = None
    ) -> None:
        require_config(config)
        self._host = Host.given_or_live(host)
        self._logger = logger
        nothing = HostRoutingConfig(gates=())
        pair = _Pair(nothing, self._host, logger)
        log = logger or logging.getLogger("hostrouting")
        self.subtasks: tuple[Task, ...] = (
            # The gate first: the units would add the routes again if a gated machine started meanwhile.
            pair.boot_files,
            pair.routes,
            ConfigureProbeSNAT(nothing, host=self._host, logger=log),
            pair.check,
            _RestoreStaleCNI(CleanStaleCNI(config, host=self._host, logger=log)),
        )

    def do(self, ctx: Context) -> None:
        """Remove and restore everything; raise one error with every failure in it."""
        failures: list[TaskFailedError] = []
        with self._host.lock.hold(ctx) as held:
            for task in self.subtasks:
                try:
                    execute(task, held, logger=self._logger)
                except TaskFailedError as error:
                    # The same failure of several tasks is reported once.
                    if str(error.cause) not in [str(failure.cause) for failure in failures]:
                        failures.append(error)
        if failures:
            raise TaskFailedError.combine(failures)


class _Pair:
    """The tasks of the pair, whose boot files are installed together: both scripts change at once."""

    def __init__(self, config: HostRoutingConfig, host: Host, logger: logging.Logger | None) -> None:
        logger = logger or logging.getLogger("hostrouting")
        self.routes = _LiveHalf(ConfigureStaticRoutes(config, host=host, logger=logger))
        self.check = _LiveHalf(CheckRouteOverlap(config, host=host, logger=logger))
        parts = list(zip((self.routes, self.check), boot_parts(config), strict=True))
        self.boot_files = _InstallBootFiles(Boot(host, gates=config.gates, logger=logger), parts)


class _Patience:
    """The time for which both tasks of the pair together wait for DHCP."""

    def __init__(self, ctx: Context) -> None:
        self._until = ctx.clock.monotonic() + WAIT_SECONDS

    def left(self, ctx: Context) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self._until - ctx.clock.monotonic())


class _LiveHalf:
    """A task of the pair without its boot files."""

    records = True

    def __init__(self, task: ConfigureStaticRoutes | CheckRouteOverlap) -> None:
        self.name = task.name
        self.patience: _Patience | None = None
        self._task = task

    def do(self, ctx: Context) -> None:
        """See the task's `act`."""
        self._task.act(ctx, seconds=WAIT_SECONDS if self.patience is None else self.patience.left(ctx))

    def plan(self, ctx: Context) -> Sequence[Change]:
        """See the task's `plan_act`."""
        return self._task.plan_act(ctx)

    def undo(self, ctx: Context) -> None:
        """See the task's `undo_act`."""
        self._task.undo_act(ctx)


class _InstallBootFiles:
    """Scripts, units and gates of the pair."""

    name = "install-boot-files"
    records = True

    def __init__(self, boot: Boot, parts: Sequence[tuple[Task, BootPart]]) -> None:
        self._boot = boot
        self._parts = parts

    @property
    def is_installed(self) -> bool:
        """True if an earlier run has installed a unit that gates wait for."""
        return self._boot.is_installed

    def refuse_gates(self, ctx: Context) -> None:
        """Raise UnitError for unsuitable gates."""
        units, _ = wanted_and_gone(self._present(ctx))
        self._boot.refuse_gates(ctx, *units)

    def refuse_unwritable(self, ctx: Context) -> None:
        """Raise HostFileError where `do` would have to write and could not."""
        units, gone = wanted_and_gone(self._present(ctx))
        self._boot.refuse_unwritable(*units, gone=gone)

    def do(self, ctx: Context) -> None:
        """Install the wanted units and remove the others; the part of a skipped task stays as it is."""
        units, gone = wanted_and_gone(self._present(ctx))
        self._boot.install(ctx, *units, gone=gone)

    def plan(self, ctx: Context) -> Sequence[Change]:
        """Return the changes that `do` would make."""
        units, gone = wanted_and_gone(self._present(ctx))
        return self._boot.plan_install(ctx, *units, gone=gone)

    def undo(self, ctx: Context) -> None:
        """Remove all of it."""
        self._boot.install(ctx, gone=[part.departure for _, part in self._parts])

    def _present(self, ctx: Context) -> list[BootPart]:
        return [part for task, part in self._parts if not ctx.skips(task)]


class _RestoreStaleCNI:
    """The undo of the sweep, as a task."""

    name = "restore-stale-cni"

    def __init__(self, sweep: CleanStaleCNI) -> None:
        self._sweep = sweep

    def do(self, ctx: Context) -> None:
        """See `CleanStaleCNI.undo`."""
        self._sweep.undo(ctx)

    def plan(self, ctx: Context) -> Sequence[Change]:
        """See `CleanStaleCNI.plan_undo`."""
        return self._sweep.plan_undo(ctx)
