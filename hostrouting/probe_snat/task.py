"""ConfigureProbeSNAT: see whether the node wants the rules, load them in one transaction, persist them."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hostrouting.boot import SCRIPT_DIRECTORY, Boot, RecordedFiles
from hostrouting.config import require_config
from hostrouting.exceptions import BackendError, PermissionDeniedError, ToolNotFoundError
from hostrouting.findings import refused
from hostrouting.host import Host
from hostrouting.probe_snat.boot_files import (
    AGAIN_PATH,
    NFT_PATHS,
    PATHS,
    RULESET_PATH,
    UNIT_NAME,
    UNIT_PATH,
    boot_unit,
    is_installed,
)
from hostrouting.probe_snat.detect import (
    NotWanted,
    Obstacle,
    assess,
    describes_ipv6,
    rules_to_install,
    seconds_to_settle,
    taken_before,
)
from hostrouting.probe_snat.ruleset import (
    FAMILY,
    TABLE,
    TABLE_NAME,
    ProbeRules,
    delete_script,
    effect_of,
    render,
)
from phases import Change, DeadlineExceededError

if TYPE_CHECKING:
    from hostrouting.boot import BootUnit
    from hostrouting.config import HostRoutingConfig
    from phases import Context

__all__ = ["ConfigureProbeSNAT", "drift", "wanted_now"]

_logger = logging.getLogger(__name__)

#: In all, for router advertisements.
_WAIT_SECONDS: Final = 30
_SECONDS_BETWEEN_LOOKS: Final = 0.5
#: For the cloud, where nobody waits for the answer.
_SECONDS_FOR_A_LOOK: Final = 5
_NO_IPV6: Final = NotWanted(reason="this node has no IPv6, says the cloud")


class ConfigureProbeSNAT:
    """Rewrite the source of IPv6 load-balancer probes, so that they reach pods; now and at every boot.

    It holds the run lock. Where the section is off, where the node has no IPv6, and where an eBPF programme
    does this job, what an earlier run installed is taken away; a table that we did not install is left alone.

    That replies leave by the device is asked of the routes once, for no source in particular: IPv6 policy rules that
    select by source (`ip -6 rule from ...`) may send those of some pods elsewhere, which is not seen here.
    """

    name = "configure-probe-snat"
    records = True

    def __init__(
        self, config: HostRoutingConfig, *, host: Host | None = None, logger: logging.Logger | None = None
    ) -> None:
        self._config = require_config(config)
        self._section = config.probe_snat
        self._host = host or Host.live()
        self._logger = logger or _logger

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'on' if self._section.enabled else 'off'}>"

    @property
    def _boot(self) -> Boot:
        return Boot(self._host, gates=self._config.gates, logger=self._logger)

    def _unit(self, rules: ProbeRules) -> BootUnit:
        return boot_unit(rules, required=self._section.required)

    def do(self, ctx: Context) -> None:
        """Decide if the node needs the rules, load them if they are missing or have drifted, and install boot files."""
        with self._host.lock.hold(ctx) as held:
            self._do(held)

    def _do(self, ctx: Context) -> None:
        if not self._section.enabled:
            self._undo(ctx)
            return
        if not self._host.is_live:
            self._boot.install(ctx, self._unit(rules_to_install(self._config, host=self._host)))
            self._tell(
                logging.INFO, "whether a node has IPv6 cannot be asked of an image: %s is for those with it", UNIT_NAME
            )
            if not any(map(self._host.files.exists, NFT_PATHS)):
                held = "or no gated unit will start" if self._section.required else "or probes will not reach pods"
                step = f"install the package nftables, {held}"
                self._tell(logging.WARNING, "%s needs nft, which is not in the image; %s", UNIT_NAME, step)
            return
        rules = self._wanted(ctx)
        if isinstance(rules, NotWanted):
            level = logging.WARNING if rules.is_remarkable else logging.INFO
            self._tell(level, "%s: no rules for IPv6 probes are needed, and those of an earlier run go", rules.reason)
            self._undo(ctx)
            return
        self._warn_of_cilium(rules)
        # A gate that is refused is refused before any rule is changed.
        self._boot.plan_install(ctx, self._unit(rules))
        self._converge(ctx, rules)
        self._boot.install(ctx, self._unit(rules))

    def plan(self, ctx: Context) -> list[Change]:
        """What `do` would change now: the rules, then files; nothing is waited for."""
        ctx.check()
        if not self._section.enabled:
            return self._plan_removal(ctx)
        if not self._host.is_live:
            return self._boot.plan_install(ctx, self._unit(rules_to_install(self._config, host=self._host)))
        outcome = wanted_now(ctx, self._config, self._host, otherwise=True, logger=self._logger)
        if isinstance(outcome, NotWanted):
            return self._plan_removal(ctx)
        if isinstance(outcome, Obstacle):
            missing = [Change("+", path) for path in PATHS if not self._host.files.exists(path)]
            return [Change("~" if self._has_table(ctx) else "+", TABLE, self._foreseen(outcome)), *missing]
        self._warn_of_cilium(outcome)
        return [*self._plan_rules(ctx, outcome), *self._boot.plan_install(ctx, self._unit(outcome))]

    def _foreseen(self, obstacle: Obstacle) -> str:
        if obstacle.may_change:
            return f"{obstacle.reason}: is done when that has come right"
        # A refusal of what is optional fails nothing, and so is none of the whole plan's.
        if self._section.required:
            return refused(f"{obstacle.reason}; {obstacle.step}")
        return f"{obstacle.reason}: {refused(obstacle.step)}"

    def undo(self, ctx: Context) -> None:
        """Remove the unit, then the table if hostrouting owns it, and last its file, which proves that."""
        with self._host.lock.hold(ctx) as held:
            self._undo(held)

    def _undo(self, ctx: Context) -> None:
        files = self._host.files
        ours = is_installed(files)
        if ours and not files.exists(RULESET_PATH):
            # Somebody's hands were quicker. A run that is killed after the unit's end must know the table by something.
            files.write(RULESET_PATH, delete_script().encode(), mode=0o644)
        # The unit first: a machine that starts meanwhile would have it bring the rules back.
        self._boot.remove(ctx, UNIT_NAME, (UNIT_PATH, AGAIN_PATH))
        files.remove_directory_if_empty(AGAIN_PATH.rpartition("/")[0])
        if not ours:
            return
        if self._host.is_live:
            self._delete_table(ctx)
        RecordedFiles(ctx, self._host).remove(RULESET_PATH)
        # The folder was not empty when Boot removed its files.
        files.remove_directory_if_empty(SCRIPT_DIRECTORY)

    # --- deciding

    def _wanted(self, ctx: Context) -> ProbeRules | NotWanted:
        """Decide; waits for routes and addresses that routers have yet to advertise."""
        if self._section.detect == "imds" and not describes_ipv6(self._host.metadata.network_interfaces(ctx)):
            return _NO_IPV6
        began = ctx.clock.monotonic()
        limits: dict[type, float] = {}
        told = False
        while True:
            outcome = assess(self._section, self._host)
            if isinstance(outcome, ProbeRules) or not outcome.may_change:
                break
            # What the first look says holds: whoever looks often waits no longer.
            seconds = limits.setdefault(type(outcome), self._patience(outcome))
            if ctx.clock.monotonic() >= began + seconds:
                break
            if not told:
                self._tell(logging.INFO, "waiting up to %.0f s: %s", seconds, outcome.reason)
                told = True
            try:
                ctx.sleep(_SECONDS_BETWEEN_LOOKS)
            except DeadlineExceededError as error:
                if isinstance(outcome, Obstacle):
                    # Whoever gave us less time wants to hear what we waited for.
                    raise _hindered(outcome, ", also not within the time that there was") from error
                raise
        if isinstance(outcome, Obstacle):
            raise _hindered(outcome, f", also not after {_WAIT_SECONDS} s" if outcome.may_change else "")
        return outcome

    def _warn_of_cilium(self, rules: ProbeRules) -> None:
        reason = taken_before(rules, self._host)
        if reason:
            self._tell(logging.WARNING, "%s", reason)

    def _patience(self, outcome: NotWanted | Obstacle) -> float:
        """How long this may take to come right; a node without IPv6 has it only while a router may still answer."""
        if isinstance(outcome, Obstacle):
            return _WAIT_SECONDS
        return min(seconds_to_settle(self._section, self._host), _WAIT_SECONDS)

    # --- changing rules

    def _converge(self, ctx: Context, rules: ProbeRules) -> None:
        """Bring the table to these rules, unless it has them."""
        nftables = self._host.nftables
        script = render(rules)
        before = nftables.table(ctx, FAMILY, TABLE_NAME)
        if effect_of(before) == rules:
            self._tell(logging.DEBUG, "%s is in place", TABLE)
            return
        nftables.check(ctx, script)
        # Before the table is there: a run that is killed in between can be undone all the same.
        RecordedFiles(ctx, self._host).write(RULESET_PATH, script.encode(), mode=0o644)
        nftables.load(ctx, script)
        change = Change("+", TABLE) if before is None else Change("~", TABLE, drift(before))
        ctx.record(change, undo=partial(self._restore_table, rules, None if before is None else effect_of(before)))
        if effect_of(nftables.table(ctx, FAMILY, TABLE_NAME)) != rules:
            self._tell(
                logging.WARNING,
                "%s was loaded, but is not as it was written: another program has changed the ruleset meanwhile; "
                "%s loads it at each start of a gated unit",
                TABLE,
                UNIT_NAME,
            )
            return
        done = "loaded" if before is None else f"replaced, for it had drifted ({drift(before)})"
        self._tell(logging.INFO, "%s %s: on %s, %s becomes %s", TABLE, done, rules.dev, rules.source, rules.address)

    def _delete_table(self, ctx: Context) -> None:
        try:
            before = self._host.nftables.table(ctx, FAMILY, TABLE_NAME)
            if before is not None:
                self._host.nftables.load(ctx, delete_script())
                ctx.record(Change("-", TABLE), undo=partial(self._restore_table, None, effect_of(before)))
                self._tell(logging.INFO, "%s is taken away", TABLE)
        except ToolNotFoundError as error:
            # Whoever took nft away is not to be held up by what only nft could do.
            self._tell(logging.WARNING, "%s, if it is still there, goes with the next boot: %s", TABLE, error)

    def _restore_table(self, left: ProbeRules | None, before: ProbeRules | None, ctx: Context) -> None:
        """Load the earlier rules again, or delete the table if there were none, unless it was changed since."""
        with self._host.lock.hold(ctx) as held:
            listing = self._host.nftables.table(held, FAMILY, TABLE_NAME)
            now = None if listing is None else effect_of(listing)
            if now == before and (listing is None) == (before is None):
                return
            if now != left or (listing is None) != (left is None):
                self._tell(logging.WARNING, "%s changed since this run loaded it; it stays as it is", TABLE)
                return
            self._host.nftables.load(held, delete_script() if before is None else render(before))

    # --- planning

    def _plan_rules(self, ctx: Context, rules: ProbeRules) -> list[Change]:
        try:
            before = self._host.nftables.table(ctx, FAMILY, TABLE_NAME)
        except PermissionDeniedError:
            return [Change("~", TABLE, "unless it is in place: without root that cannot be told")]
        if before is None:
            return [Change("+", TABLE)]
        return [] if effect_of(before) == rules else [Change("~", TABLE, drift(before))]

    def _has_table(self, ctx: Context) -> bool:
        try:
            return self._host.nftables.table(ctx, FAMILY, TABLE_NAME) is not None
        except (PermissionDeniedError, ToolNotFoundError):
            return is_installed(self._host.files)

    def _plan_removal(self, ctx: Context) -> list[Change]:
        """As `undo` goes about it."""
        changes = self._boot.plan_remove(ctx, UNIT_NAME, PATHS)
        if self._host.is_live and is_installed(self._host.files):
            try:
                if self._host.nftables.table(ctx, FAMILY, TABLE_NAME) is not None:
                    changes.append(Change("-", TABLE))
            except PermissionDeniedError:
                changes.append(Change("-", TABLE, "if it is there: without root that cannot be told"))
            except ToolNotFoundError as error:
                self._tell(logging.DEBUG, "%s cannot be looked for: %s", TABLE, error)
        return changes

    def _tell(self, level: int, message: str, *values: object) -> None:
        self._logger.log(level, message, *values, extra={"task": self.name})


def _hindered(obstacle: Obstacle, waited: str) -> BackendError:
    return BackendError(
        f"IPv6 probes cannot be made to reach pods: {obstacle.reason}{waited}. No rule was changed; {obstacle.step}"
    )


def wanted_now(
    ctx: Context, config: HostRoutingConfig, host: Host, *, otherwise: bool | None, logger: logging.Logger = _logger
) -> ProbeRules | NotWanted | Obstacle:
    """What belongs on a live node, decided as `do` does it, but at once.

    If the cloud does not answer, or not so that it can be read, the node is taken to have IPv6 or not, as `otherwise`
    says, and the log warns of that; with None that is raised.
    """
    section = config.probe_snat
    if not section.enabled:
        return NotWanted(reason="hostRouting.probeSnat.enabled is not true")
    if section.detect == "imds":
        left = ctx.remaining()
        # `apply` looks ahead before it begins: what is left then must be enough to say why the cloud does not answer.
        seconds = _SECONDS_FOR_A_LOOK if left is None else min(_SECONDS_FOR_A_LOOK, left / 2)
        try:
            has_ipv6 = describes_ipv6(host.metadata.network_interfaces(ctx.child(timeout=seconds)))
        except (BackendError, DeadlineExceededError) as error:
            ctx.check()
            if otherwise is None:
                raise
            logger.warning(
                "this node is taken to have %s, for whether it has the cloud does not say: %s",
                "IPv6" if otherwise else "no IPv6",
                error,
                extra={"task": ConfigureProbeSNAT.name},
            )
            has_ipv6 = otherwise
        if not has_ipv6:
            return _NO_IPV6
    return assess(section, host)


def drift(listing: list[dict[str, Any]]) -> str:
    """How a table that is not as it should be differs, in words."""
    if any("unreadable" in entry.get("table", {}) for entry in listing):
        return "it has flags, such as dormant or owner"
    found = effect_of(listing)
    if found is None:
        return "its rules are not those of hostrouting"
    return f"it rewrites {found.source} to {found.address} on {found.dev}"
