"""The commands that help against findings: an apply, an edit, or the answer of `check --fix`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

import attrs

from hostrouting.base.commands import FIX, command_line
from hostrouting.base.errors import HostRoutingError
from hostrouting.boot.boot import Boot
from hostrouting.boot.installed_config import edited_config, installed_over, is_edited
from hostrouting.boot.layout import APPLIED_PATH, CONFIG_PATH
from hostrouting.config.sections import HostRoutingConfig, OverlapMode
from hostrouting.node.sentences import sentence_of
from hostrouting.static_routes.plan import plan_routes
from phases import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hostrouting.base.findings import NodeFinding
    from hostrouting.host import Host
    from hostrouting.node.report import NodeReport
    from hostrouting.route_overlap.report import OverlapReport
    from phases import Context

#: Restores the config in force over an edited one, which is kept.
RESTORE = f"cp -p {CONFIG_PATH} {CONFIG_PATH}.rejected && hostrouting apply {APPLIED_PATH}"


class Remedies(NamedTuple):
    """Findings, each with the command or step that helps against it, and those of a report."""

    findings: tuple[NodeFinding, ...]
    #: The apply that brings back our routes after a command that drops them.
    reapply: str | None = None
    #: See `NodeReport`.
    command: str | None = None
    edit: str | None = None
    fix: str | None = None


class _Edit(NamedTuple):
    """An edit of the installed config that is not in force."""

    #: Why its apply would fail; empty if it would not.
    refusal: str = ""


def lacks_routes(overlap: OverlapReport) -> bool:
    """Return True if routes of a config would resolve findings about addresses."""
    return any(report.suggested_routes for report in overlap.cidrs)


def fix_line(path: str) -> str:
    """Return the command line that applies the answer of `check --fix`."""
    if path == CONFIG_PATH:
        return FIX
    return f"{command_line('check', path)} --fix | {command_line('apply', '-')}"


@attrs.frozen(eq=False, repr=False)
class Advisor:
    """Finds the commands that help a node under a config."""

    ctx: Context
    config: HostRoutingConfig
    host: Host
    overlap: OverlapReport
    #: True if a run has just applied the config.
    is_applied: bool
    #: Returns the report on the node under another config.
    check_under: Callable[[HostRoutingConfig], NodeReport]

    def remedies(self, findings: tuple[NodeFinding, ...], path: str, root: str | None) -> Remedies:
        """Return the commands that help; `path` and `root` are arguments of the command.

        An apply does not help if it would be refused, or would make the node worse.
        """
        apply, plan = (command_line(verb, path, root=root) for verb in ("apply", "plan"))
        is_installed = path == CONFIG_PATH and not root
        edit = self._edit() if is_installed else None
        if edit and edit.refusal:
            findings = tuple(_without_edit(findings, edit.refusal))
            apply = RESTORE
        applies = any(finding.apply for finding in findings)
        # An edit that works was checked already, and the apply brings it into force.
        works = edit is not None and not edit.refusal
        is_worse = applies and not works and self._is_worse()
        refused = [finding for finding in findings if finding.is_refused]
        # The answer of `check --fix` would be refused as well.
        is_foreign = any(finding.kind == "foreign-file" for finding in refused)
        is_fixable = not is_foreign and self._is_fixable(is_worse=is_worse)
        fix = fix_line(path) if is_fixable else None
        command = fix if is_worse else apply
        if not applies or (refused and not is_worse):
            command = None
        # An apply waits for each route, and fails without it, unless it is refused at once.
        waits = not refused and any(finding.apply == "later" for finding in findings)
        step = "" if command else f"see why: {plan}"
        return Remedies(
            _with_command(findings, command or "", step, "later" if waits else "now"),
            # For another config, nobody knows yet if its apply helps.
            reapply=apply if is_installed and self.config.static_routes.routes else None,
            command=command,
            edit=command if works else None,
            fix=fix,
        )

    def _edit(self) -> _Edit | None:
        """Return the edit of the installed config, and why its apply would fail; None without one.

        While a lower layer fails, no apply helps.
        """
        try:
            if not is_edited(self.host.files):
                return None
            report = self.check_under(edited_config(self.host.files))
        except (HostRoutingError, DeadlineExceededError) as error:
            return _Edit(str(error).partition("\n")[0])
        if report.command == command_line("apply", "CONFIG") and not report.causes:
            return _Edit()
        refused = [finding.text for finding in report.findings if finding.is_refused]
        causes = [sentence_of(cause) for cause in report.causes]
        worse = "it would misroute addresses, or hold the gates"
        return _Edit(next(iter([*refused, *causes]), worse))

    @property
    def _is_strict(self) -> bool:
        return self.config.route_overlap.mode is OverlapMode.STRICT

    @property
    def _is_new(self) -> bool:
        """True for a config that is not in force."""
        return installed_over(self.host.files, self.config) is not self.config

    def _is_fixable(self, *, is_worse: bool) -> bool:
        """Return True if `check --fix` may help, and has an answer."""
        if not (lacks_routes(self.overlap) or is_worse):
            return False
        stays = any(finding.stays for _, finding in self.overlap.findings)
        if is_worse and stays and self._is_strict and self._is_new:
            # The answer would hold the gates as well.
            return False
        # Imported here because most nodes need no other config.
        from hostrouting.node.fix import fixed

        try:
            answer = fixed(self.ctx, self.config, self.host, now=self.overlap)
        except (HostRoutingError, DeadlineExceededError):
            return False
        return isinstance(answer, HostRoutingConfig)

    def _is_worse(self) -> bool:
        """Return True if an apply would be refused, misroute addresses, or hold the gates.

        A config that is not in force yet holds them if addresses would be misrouted in STRICT mode.
        """
        if self.is_applied or not self.host.is_live:
            return False
        left = [finding for _, finding in self.overlap.findings]
        with suppress(HostRoutingError, DeadlineExceededError):
            if left and self._is_strict and all(each.stays for each in left):
                return not Boot(self.host, gates=self.config.gates).has_traces
            return self._is_worse_by_forecast()
        return False

    def _is_worse_by_forecast(self) -> bool:
        # Imported here because only an unhealthy node needs the forecast.
        from hostrouting.static_routes.forecast import Forecaster

        # `{}` intentionally drops all addresses.
        is_counted = self.config.asks
        earlier = installed_over(self.host.files, self.config) if is_counted else None
        forecaster = Forecaster(self.ctx, self.config, self.host, earlier=earlier, now=self.overlap)
        # If nothing is expected, a forecast would read all routes in vain.
        if not forecaster.expects:
            return False
        forecast = forecaster.of(plan_routes(self.config, forecaster.node))
        is_wrong = forecast.report is not None and not forecast.report.is_correct
        holds_gates = is_wrong and self._is_strict and is_counted and self._is_new
        return holds_gates or bool(forecast.lost or forecast.worse)


def _with_command(
    findings: Iterable[NodeFinding], command: str, step: str, moment: Literal["now", "later"]
) -> tuple[NodeFinding, ...]:
    """Give those findings that an apply repairs the command, or the step, and its moment."""
    return tuple(
        attrs.evolve(finding, command=command, step=step, apply=moment)
        if finding.apply
        else finding
        for finding in findings
    )


def _without_edit(findings: Iterable[NodeFinding], refusal: str) -> Iterator[NodeFinding]:
    """Yield the findings; the one about an edit says why its apply would fail."""
    step = f"its apply would fail: {refusal}; correct it, or restore the config in force: {RESTORE}"
    for finding in findings:
        is_edit = (finding.kind, finding.subject) == ("boot-file", CONFIG_PATH)
        yield attrs.evolve(finding, step=step, apply="") if is_edit else finding
