"""Configure: the tasks of a config in their order, one run at a time. Reset: the command that removes everything."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from hostrouting.boot import WAIT_SECONDS, Boot, Intent, is_refusal
from hostrouting.boot_files import boot_parts, watch_units
from hostrouting.config import HostRoutingConfig, require_config
from hostrouting.exceptions import InvalidConfigError
from hostrouting.host import Host
from hostrouting.probe_snat import ConfigureProbeSNAT
from hostrouting.route_overlap import CheckRouteOverlap
from hostrouting.stale_cni import CleanStaleCNI
from hostrouting.static_routes import ConfigureStaticRoutes
from hostrouting.watch import ConfigureWatch
from phases import (
    CancelledError,
    DeadlineExceededError,
    Serial,
    TaskFailedError,
    execute,
    plan,
    task,
    tolerate,
    with_timeout,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.boot import Part
    from phases import Change, Context, Task

#: A sibling of the routing pair may take this long, and never more than half of the time that is left.
_SIBLING_SECONDS: Final = 60.0
#: The tasks that install a unit, each with the section of the config that it is made of.
_WITH_UNIT: Final = (
    (ConfigureStaticRoutes, "static_routes"),
    (CheckRouteOverlap, "route_overlap"),
    (ConfigureProbeSNAT, "probe_snat"),
    (ConfigureWatch, "watch"),
)


class _Pipeline(ABC):
    """Tasks under one hold of the run lock; a failure does not stop the others, and one error at the end has all."""

    anonymous = False

    def __init__(self, config: HostRoutingConfig, host: Host | None, logger: logging.Logger | None) -> None:
        """Make the tasks of the pair, whose boot files are installed together: both scripts change at once."""
        self._config = config
        self._host = Host.given_or_live(host)
        self._logger = logger
        self._log = log = logger or logging.getLogger("hostrouting")
        self._until = math.inf
        self._routes = self._live_half(ConfigureStaticRoutes(config, host=self._host, logger=log))
        self._check = self._live_half(CheckRouteOverlap(config, host=self._host, logger=log))
        self._parts = tuple(zip((self._routes, self._check), boot_parts(config), strict=True))
        self._boot = Boot(self._host, gates=config.gates, logger=log)
        self._boot_files = self._boot_half()
        self._failures: list[TaskFailedError] = []
        #: The units that their gate holds after the run, and those that it held before, and that start now.
        self.held: list[str] = []
        self.released: list[str] = []

    def do(self, ctx: Context) -> None:
        """Do all tasks; raise one error with every failure in it."""
        self._failures = []
        with self._host.lock.hold(ctx) as held:
            self._until = held.clock.monotonic() + WAIT_SECONDS
            before = self._boot.held(held)
            try:
                self._do_all(held)
            except (CancelledError, DeadlineExceededError):
                if not self._failures:
                    raise
            self._account_for(held, before)
        if self._failures:
            raise TaskFailedError.combine(self._failures)

    def account(self) -> dict[str, object]:
        """Return the held units and those that start, for the JSON of a run; left out if there are none."""
        return {name: units for name, units in (("held", self.held), ("released", self.released)) if units}

    def _account_for(self, ctx: Context, before: Sequence[str]) -> None:
        """Start what was held and is right now, and tell it."""
        self.held, self.released = self._boot.release(ctx, before, is_right=not self._failures)
        if self.released:
            told = ", ".join(self.released)
            self._log.warning("these were held, and start within seconds: %s", told, extra={"released": self.released})
        if self.held:
            told = ", ".join(self.held)
            self._log.warning("these are held until routing is right: %s", told, extra={"held": self.held})

    @abstractmethod
    def _do_all(self, ctx: Context) -> None:
        """Attempt the tasks, under the lock."""

    def _attempt(self, subtask: Task, ctx: Context) -> None:
        try:
            execute(subtask, ctx, logger=self._logger)
        except TaskFailedError as error:
            self._failures.append(error)

    def _live_half(self, whole: ConfigureStaticRoutes | CheckRouteOverlap) -> Task:
        """Return a task of the pair without its boot files."""

        @task(whole.name, plan=whole.plan_act, undo=whole.undo_act, records=True)
        def act(ctx: Context) -> None:
            # Both halves together wait for DHCP as long as one of them would.
            whole.act(ctx, seconds=min(WAIT_SECONDS, max(0.0, self._until - ctx.clock.monotonic())))

        return act

    def _boot_half(self) -> Task:
        """Return a task for the scripts, units and gates of the pair, and for the intent of the whole config."""

        def plan_files(ctx: Context) -> Sequence[Change]:
            return self._boot.plan_install(ctx, *self._present(ctx))

        def remove(ctx: Context) -> None:
            nothing = HostRoutingConfig()
            self._boot.install(ctx, *boot_parts(nothing), Intent(config=nothing))

        @task("install-boot-files", plan=plan_files, undo=remove, records=True)
        def install(ctx: Context) -> None:
            self._boot.install(ctx, *self._present(ctx))

        return install

    def _present(self, ctx: Context) -> list[Part]:
        """Return the parts to install or remove; that of a skipped task stays as it is."""
        kept = frozenset(section for each, section in _WITH_UNIT if ctx.skips(each))
        parts = [part for each, part in self._parts if not ctx.skips(each)]
        return [*parts, Intent(config=self._config, kept=kept)]


class Configure(_Pipeline):
    """Configure a node, now and for every boot: routes, sweep, probes, the check that holds the gates, and the watch.

    >>> from hostrouting import HostRoutingConfig
    >>> from hostrouting.testing import FakeHost
    >>> for task in Configure(HostRoutingConfig(), host=FakeHost()).subtasks:
    ...     print(task.name)
    install-boot-files
    configure-static-routes
    clean-stale-cni
    configure-probe-snat
    check-route-overlap
    configure-watch

    It holds the run lock from the first task to the last: no other run changes routes before they are proven.

    A failure does not stop the other tasks; one error with all failures is raised at the end. On a node without
    hostrouting the boot files come first: a node that fails the check must not start its machine at the next boot
    either. Over an installed config the routes come first, and a config that the kernel refuses leaves the old one as
    it was, live and for every boot. A sibling (the sweep, the probes, the watch) that fails is a warning, unless its
    section is `required`. A config that asks for nothing changes nothing, and is refused over an installed one; a whole
    agent config without `hostRouting` leaves that in force, and `{"hostRouting": {}}` removes it.
    """

    name = "configure"

    def __init__(
        self, config: HostRoutingConfig, *, host: Host | None = None, logger: logging.Logger | None = None
    ) -> None:
        super().__init__(require_config(config), host, logger)
        self._sweep = CleanStaleCNI(config, host=self._host, logger=self._log)
        probes = ConfigureProbeSNAT(config, host=self._host, logger=self._log)
        self._siblings = (
            # Before the proof: stale objects may shadow routes.
            self._sibling(self._sweep, required=config.stale_cni.required),
            self._sibling(probes, required=config.probe_snat.required),
        )
        self._watch = self._sibling(ConfigureWatch(config, host=self._host, logger=self._log), required=False)
        self.subtasks: tuple[Task, ...] = (
            self._boot_files,
            self._routes,
            *self._siblings,
            self._check,
            self._watch,
        )
        if config.void:
            self.subtasks = tuple(map(self._idle, self.subtasks))

    def _idle(self, each: Task) -> Task:
        """Return a stand-in for a task of a config that asks for nothing; the first plan tells what `do` would do."""

        def plan_nothing(_ctx: Context) -> Sequence[Change]:
            if each is self._boot_files:
                self._boot.changes_nothing(self._config)
            return ()

        return task(each.name, plan=plan_nothing, records=True)(lambda _: None)

    def do(self, ctx: Context) -> None:
        """Do all tasks, unless the config asks for nothing; raise one error with every failure in it."""
        if not self._boot.changes_nothing(self._config):
            super().do(ctx)

    def account(self) -> dict[str, object]:
        """The same, with the objects that the sweep left alone: object, address, kind and reason of each."""
        spared = [verdict.to_mapping() for verdict in self._sweep.spared]
        return {**({"spared": spared} if spared else {}), **super().account()}

    def plan(self, ctx: Context) -> Sequence[Change]:
        """Return the changes that `do` would make; do not change or wait."""
        return plan(self, ctx).changes

    def undo(self, ctx: Context) -> None:
        """Undo all tasks, the gate first; a whole agent config without ours has nothing to undo."""
        if self._config.given is None:
            return
        with self._host.lock.hold(ctx) as held:
            Serial(self._routes, *self._siblings, self._check, self._boot_files, self._watch).undo(held)

    def _do_all(self, ctx: Context) -> None:
        self._boot.refuse_exposed(*watch_units(self._config, self._host))
        # A gate that could never open is refused before anything is changed.
        self._boot.refuse_gates(ctx, *self._present(ctx))
        if not self._boot.is_installed or not self._config.static_routes.routes:
            self._attempt(self._boot_files, ctx)
            self._attempt(self._routes, ctx)
        else:
            # Otherwise this config would be live, and the next boot would install the routes of the earlier one.
            self._boot.refuse_unwritable(*self._present(ctx))
            self._attempt(self._routes, ctx)
            if any(is_refusal(cause) for failure in self._failures for cause in failure.failures):
                return
            self._attempt(self._boot_files, ctx)
        if self._failures and self._boot.is_installed:
            self._log.warning(
                "this config is installed for the next boot all the same; gated units start once this is fixed"
            )
        for sibling in self._siblings:
            self._attempt(sibling, ctx)
        self._attempt(self._check, ctx)
        self._attempt(self._watch, ctx)

    def _sibling(self, optional: Task, *, required: bool) -> Task:
        bounded = with_timeout(optional, _SIBLING_SECONDS, share=0.5)
        return bounded if required else tolerate(bounded, on_failure=self._keep_mistakes)

    def _keep_mistakes(self, failure: TaskFailedError) -> None:
        """Keep the failure of an optional task if the config is wrong: then it can never work."""
        if any(isinstance(cause, InvalidConfigError) for cause in failure.failures):
            self._failures.append(failure)


class Reset(_Pipeline):
    """Remove everything that hostrouting installed, by any config, and restore swept objects.

    Most tasks remove their part if the config does not ask for it; only the sweep needs an explicit undo, since a
    config without its section must not restore stale objects. A failure does not stop the other tasks.
    """

    name = "reset"

    def __init__(
        self, config: HostRoutingConfig, *, host: Host | None = None, logger: logging.Logger | None = None
    ) -> None:
        nothing = HostRoutingConfig(gates=())
        super().__init__(nothing, host, logger)
        sweep = CleanStaleCNI(require_config(config), host=self._host, logger=self._log)
        self.subtasks: tuple[Task, ...] = (
            # The gate first: the units would add the routes again if a gated machine started meanwhile.
            self._boot_files,
            ConfigureWatch(nothing, host=self._host, logger=self._log),
            self._routes,
            ConfigureProbeSNAT(nothing, host=self._host, logger=self._log),
            self._check,
            task("restore-stale-cni", plan=sweep.plan_undo)(sweep.undo),
        )

    def _do_all(self, ctx: Context) -> None:
        for each in self.subtasks:
            self._attempt(each, ctx)
        # The same failure of several tasks is reported once.
        causes = [str(failure.cause) for failure in self._failures]
        self._failures = [each for at, each in enumerate(self._failures) if causes.index(causes[at]) == at]
