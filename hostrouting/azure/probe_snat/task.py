"""ConfigureProbeSNAT: decide if the node needs the rules, load them at once, and persist them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from logging import DEBUG, INFO, WARNING
from typing import TYPE_CHECKING, Literal

from hostrouting.azure.probe_snat.detect import (
    Loaded,
    NotWanted,
    Obstacle,
    assess,
    assume,
    bypass,
    change_to,
    describes_ipv6,
    loaded_rules,
    rules_to_install,
    seconds_for_routers,
)
from hostrouting.azure.probe_snat.ruleset import (
    AGAIN_PATH,
    REMOVAL,
    RULESET_PATH,
    TABLE,
    ProbeRules,
    boot_unit,
    delete_script,
    render,
)
from hostrouting.base.errors import BackendError, PermissionDeniedError, ToolNotFoundError
from hostrouting.base.findings import LEFT, NodeFinding, hindered
from hostrouting.base.waits import begin_wait
from hostrouting.boot.layout import SCRIPT_DIRECTORY, BootUnit, program_path
from hostrouting.boot.recorded import RecordedFiles
from hostrouting.boot.steps import Survey
from hostrouting.boot.task import SectionTask
from phases import Change, Context, DeadlineExceededError

if TYPE_CHECKING:
    from hostrouting.boot.installed_config import NewConfig

#: How long to wait for router advertisements.
_WAIT_SECONDS = 30
_SECONDS_BETWEEN_CHECKS = 0.5
#: How long plan and check wait for the cloud's answer; they wait for nothing else.
_SECONDS_FOR_A_CHECK = 5


class ConfigureProbeSNAT(SectionTask):
    """Rewrite the source of IPv6 load-balancer probes, now and at every boot, so they reach pods.

    If the section is disabled, the node has no IPv6, or an eBPF program already does this, the task
    removes the rules of an earlier run, but leaves a table of another program alone. It holds the
    run lock.

    It checks once which device replies use, without a source address. IPv6 policy rules that select
    by source (`ip -6 rule from ...`) may send the replies of some pods elsewhere, which the task
    does not notice.

    >>> from hostrouting import HostRoutingConfig, ProbeSNATConfig
    >>> from hostrouting.testing import FakeHost
    >>> from phases import run
    >>> config = HostRoutingConfig(probe_snat=ProbeSNATConfig(enabled=True, dev="eth0"))
    >>> run(ConfigureProbeSNAT(config, host=FakeHost(is_live=False))).degraded
    False
    """

    name = "configure-probe-snat"
    section = "probe_snat"

    @property
    def _is_installed(self) -> bool:
        return self._boot.has_part_of(self._config.probe_snat)

    def _parts(self, rules: ProbeRules) -> tuple[BootUnit, NewConfig]:
        return boot_unit(rules, required=self._config.probe_snat.required), self._new_config

    def do(self, ctx: Context) -> None:
        """Load the rules and install boot files if the node needs them; otherwise remove both."""
        with self._host.lock.hold(ctx) as held:
            if reason := self._idle_reason:
                ctx.skip(reason)
                return
            rules = self._wanted(held)
            if isinstance(rules, NotWanted):
                text = "%s, so the node needs no rules for IPv6 probes; earlier ones are removed"
                self._log(rules.level, text, rules.reason)
                self._remove(held)
                return
            parts = self._parts(rules)
            if self._host.is_live:
                self._warn_of_bypass(rules)
                # A gate is refused before any rule is changed.
                self._boot.steps_to_install(held, *parts)
                self._converge(held, rules)
            else:
                self._warn_of_image()
            self._boot.install(held, *parts)

    def _warn_of_image(self) -> None:
        text = "whether a node has IPv6 cannot be seen in an image: %s is for nodes that have it"
        self._log(INFO, text, REMOVAL.name)
        if not program_path(self._host.files, "nft"):
            required = self._config.probe_snat.required
            effect = "no gated unit will start" if required else "probes will not reach pods"
            text = "%s needs nft, which is not in the image; install the package nftables, or %s"
            self._log(WARNING, text, REMOVAL.name, effect)

    def plan(self, ctx: Context) -> list[Change]:
        """Return the changes that `do` would make now, rules before files; does not wait."""
        ctx.check()
        if self._idle_reason:
            return []
        outcome = self._decide(ctx, is_assumed=True)
        if isinstance(outcome, NotWanted):
            changes = self._boot.plan_install(ctx, REMOVAL, self._new_config)
            if self._host.is_live and self._is_installed:
                with suppress(ToolNotFoundError):
                    changes += self._plan_table(ctx, None)
            return changes
        if isinstance(outcome, Obstacle):
            missing = [
                Change("+", path) for path in REMOVAL.paths if not self._host.files.exists(path)
            ]
            action: Literal["~", "+"] = "~" if self._is_installed else "+"
            # A refused optional task does not refuse the whole plan.
            reason = f"{outcome.reason}; {outcome.remedy}"
            refused = hindered(action, TABLE, reason, optional=not self._config.probe_snat.required)
            later = Change(action, TABLE, f"{outcome.reason}: follows once that is fixed")
            return [later if outcome.may_change else refused, *missing]
        files = self._boot.plan_install(ctx, *self._parts(outcome))
        masked = [change for change in files if change.kind == LEFT]
        if masked or not self._host.is_live:
            return masked or files
        self._warn_of_bypass(outcome)
        return [*self._plan_table(ctx, outcome), *files]

    def _remove(self, ctx: Context) -> None:
        """Remove the unit, the table if hostrouting owns it, and last the file that shows that."""
        files = self._host.files
        was_installed = self._is_installed
        if was_installed and not files.exists(RULESET_PATH):
            # The file was removed by hand, but the next run needs it if this one is killed after
            # removing the unit.
            files.write(RULESET_PATH, delete_script().encode(), mode=0o644)
        # The unit first: a machine that boots in the meantime would load the rules again.
        paths = tuple(path for path in REMOVAL.paths if path != RULESET_PATH)
        self._boot.install(ctx, REMOVAL._replace(paths=paths), self._new_config)
        files.remove_directory_if_empty(AGAIN_PATH.rpartition("/")[0])
        if was_installed:
            if self._host.is_live:
                self._delete_table(ctx)
            if Survey(files).owns(RULESET_PATH):
                RecordedFiles(ctx, self._host).remove(RULESET_PATH)
            # Boot leaves the directory if it is not empty.
            files.remove_directory_if_empty(SCRIPT_DIRECTORY)

    # --- deciding

    def _wanted(self, ctx: Context) -> ProbeRules | NotWanted:
        """Decide, after waiting for routes and addresses that routers have not yet advertised."""
        section = self._config.probe_snat
        # If the cloud does not answer, an optional task still needs time for its work.
        outcome = self._decide(ctx, seconds=_WAIT_SECONDS)
        began = ctx.clock.monotonic()
        limits: dict[type, float] = {}
        while not isinstance(outcome, ProbeRules) and outcome.may_change:
            is_first = not limits
            patience = float(_WAIT_SECONDS)
            if isinstance(outcome, NotWanted):
                patience = seconds_for_routers(section, self._host)
            # The limit of the first check stays, so that further checks do not extend the wait.
            seconds = limits.setdefault(type(outcome), patience)
            if ctx.clock.monotonic() >= began + seconds:
                break
            if is_first:
                begin_wait(ctx, self._logger, outcome.reason, seconds=seconds, task=self.name)
            try:
                ctx.sleep(_SECONDS_BETWEEN_CHECKS)
            except DeadlineExceededError as error:
                if isinstance(outcome, Obstacle):
                    # The deadline ended the wait; the error names the obstacle.
                    raise _hindered(outcome, ", still so when the time was up") from error
                raise
            outcome = assess(section, self._host)
        if isinstance(outcome, Obstacle):
            waited = f", still so after {_WAIT_SECONDS} s" if outcome.may_change else ""
            raise _hindered(outcome, waited)
        return outcome

    def _decide(
        self, ctx: Context, *, seconds: float = _SECONDS_FOR_A_CHECK, is_assumed: bool = False
    ) -> ProbeRules | NotWanted | Obstacle:
        """Return the rules for a node as it is now, or for an image those of its config.

        If the cloud does not answer within `seconds`, or its answer cannot be read, IPv6 is assumed
        and a warning logged; if the section is `required`, raise the error unless `is_assumed`.
        """
        section = self._config.probe_snat
        if not section.enabled:
            return NotWanted("hostRouting.probeSnat.enabled is not true", level=DEBUG)
        if not self._host.is_live:
            return rules_to_install(self._config, host=self._host)
        if section.detect == "imds":
            left = ctx.remaining()
            # There must be enough time left if there is no answer.
            query = ctx.child(timeout=seconds if left is None else min(seconds, left / 2))
            try:
                if not describes_ipv6(self._host.metadata.network_interfaces(query)):
                    return NotWanted("this node has no IPv6 according to the cloud")
            except (BackendError, DeadlineExceededError) as error:
                if section.required and not is_assumed:
                    raise
                ctx.check()
                self._log(
                    WARNING,
                    "assuming IPv6, because the cloud's description is not available: %s",
                    error,
                )
                return assume(section, self._host)
        return assess(section, self._host)

    def _warn_of_bypass(self, rules: ProbeRules) -> None:
        if reason := bypass(rules, self._host):
            self._log(WARNING, "%s", reason)

    # --- changing rules

    def _converge(self, ctx: Context, rules: ProbeRules) -> None:
        """Load these rules unless the table has them."""
        before = loaded_rules(ctx, self._host)
        if before == rules:
            self._log(DEBUG, "%s is in place", TABLE)
            return
        script = render(rules)
        self._host.nftables.check(ctx, script)
        # Before the table exists, so that the next run can undo this one if it is killed.
        RecordedFiles(ctx, self._host).write(RULESET_PATH, script.encode(), mode=0o644)
        self._load(ctx, before, rules)
        if loaded_rules(ctx, self._host) != rules:
            text = (
                "%s has changed since it was loaded, so another program changes the ruleset; "
                "%s loads it again at each start of a gated unit"
            )
            self._log(WARNING, text, TABLE, REMOVAL.name)
            return
        done = "loaded" if before is None else f"replaced, because it had changed ({before})"
        self._log(INFO, "%s %s: %s", TABLE, done, rules)

    def _delete_table(self, ctx: Context) -> None:
        try:
            before = loaded_rules(ctx, self._host)
            if before is not None:
                self._load(ctx, before, None)
                self._log(INFO, "%s is deleted", TABLE)
        except ToolNotFoundError as error:
            # If nft was removed, the rest of the undo continues without it.
            self._log(
                WARNING,
                "%s cannot be deleted, but will be gone after the next boot: %s",
                TABLE,
                error,
            )

    def _load(self, ctx: Context, before: Loaded, after: ProbeRules | None) -> None:
        self._host.nftables.load(ctx, render(after) if after else delete_script())
        ctx.record(change_to(before, after), undo=partial(self._restore_table, after, before))

    def _restore_table(self, left: Loaded, before: Loaded, ctx: Context) -> bool:
        """Load the earlier rules again, or delete the table; return False if it has changed."""
        earlier = before if isinstance(before, ProbeRules) else None
        with self._host.lock.hold(ctx) as held:
            now = loaded_rules(held, self._host)
            if now not in (left, earlier):
                self._log(
                    WARNING, "%s has changed since this run loaded it and is left as it is", TABLE
                )
                return False
            if now != earlier:
                self._host.nftables.load(held, render(earlier) if earlier else delete_script())
            return True

    # --- planning

    def _plan_table(self, ctx: Context, wanted: ProbeRules | None) -> list[Change]:
        try:
            before = loaded_rules(ctx, self._host)
        except PermissionDeniedError:
            doubt = "unless it is in place" if wanted else "if it exists"
            return [Change("~" if wanted else "-", TABLE, f"{doubt}: only root can read it")]
        return [] if before == wanted else [change_to(before, wanted)]

    # --- findings

    def findings(self, ctx: Context, *, asks: bool = True) -> list[NodeFinding]:
        """Return the reasons why IPv6 probes do not reach the pods of a live node.

        Needs CAP_NET_ADMIN, changes nothing, and does not wait. If the cloud does not answer, IPv6
        is assumed as in an apply; if the section is `required` and no unit is installed, the error
        is raised. Without `asks`, the cloud is not queried if optional rules are installed.
        """
        ctx.check()
        if not self._host.is_live:
            return []
        section = self._config.probe_snat
        is_assumed = self._is_installed
        decides = asks or section.required or not is_assumed or section.detect != "imds"
        outcome = (
            self._decide(ctx, is_assumed=is_assumed) if decides else assume(section, self._host)
        )
        if isinstance(outcome, NotWanted):
            return []
        if isinstance(outcome, Obstacle):
            step, command = outcome.step, outcome.command
            return [NodeFinding("probe-snat", TABLE, outcome.reason, step=step, command=command)]
        reason = "differs from what this config needs at the next boot"
        findings = [
            NodeFinding("probe-snat", change.subject, reason, apply="now")
            for change in self._boot.drift(ctx, *self._parts(outcome))
            if REMOVAL.name in change.subject or change.subject in REMOVAL.paths
        ]
        loaded = loaded_rules(ctx, self._host)
        if loaded != outcome:
            reason = "is not loaded" if loaded is None else f"has changed: {loaded}"
            findings.insert(0, NodeFinding("probe-snat", TABLE, reason, apply="now"))
        if warning := bypass(outcome, self._host):
            findings.append(NodeFinding("probe-snat", outcome.dev, warning, "warning"))
        return findings

    def wants_rules(self, ctx: Context) -> bool:
        """Return True if the node needs the rules now; raise if the cloud does not answer."""
        return not isinstance(self._decide(ctx), NotWanted)

    def _log(self, level: int, message: str, *values: object) -> None:
        self._logger.log(level, message, *values, extra={"task": self.name})


def _hindered(obstacle: Obstacle, waited: str) -> BackendError:
    return BackendError(
        f"IPv6 probes cannot reach pods: {obstacle.reason}{waited}. No rule was changed; "
        f"{obstacle.remedy}"
    )
