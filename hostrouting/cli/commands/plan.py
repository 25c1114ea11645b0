"""`hostrouting plan`: show what an apply would change."""

from __future__ import annotations

import logging
from difflib import unified_diff
from typing import TYPE_CHECKING

import attrs

from hostrouting.base.commands import BAD, DIFFERS, FAILED, FINE
from hostrouting.base.errors import HostFileError
from hostrouting.base.findings import LEFT, REFUSED
from hostrouting.boot.boot import RELOAD, Boot
from hostrouting.boot.gates import why_gates_are_open
from hostrouting.boot.installed_config import NewConfig, mode_of
from hostrouting.boot.layout import BOOT_FOLDERS, GATE_LOCK, PROGRAM_PATH
from hostrouting.cli.command import INSTALLED, RECORDS, ROOT, Command, switch
from hostrouting.cli.shared import context, host_of, new_config_of, print_answer
from hostrouting.config.sections import AGENT_LIST
from hostrouting.host.systemd.systemctl import OfflineUnits
from hostrouting.node.boot_files import installs_units, missing_programs, render_files
from hostrouting.node.capabilities import warnings_of
from hostrouting.node.configure import Configure, plan_of
from hostrouting.node.plan_report import planned_report
from hostrouting.node.units import with_read_units
from phases import TaskFailedError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator, Sequence

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.node.plan_report import PlanReport
    from phases import Change, Context

_NO_SYSTEMD = (
    "systemd does not run here, so its files are read instead; "
    "an apply needs it, or --live, or --root DIR"
)
_logger = logging.getLogger("hostrouting")


def run(arguments: Namespace) -> int:
    """Print the changes that an apply would make, or check recorded nodes as planned."""
    if arguments.records:
        # Imported here because --from is rare.
        from hostrouting.cli.recorded_nodes import prove_records

        return prove_records(arguments, planned=True, fail_on="error")
    return show_plan(arguments, diff=arguments.diff, exit_code=arguments.exit_code)


COMMAND = Command(
    run=run,
    summary="show what apply would change; changes nothing, needs no root",
    position=20,
    config=INSTALLED,
    options={
        **ROOT,
        "--exit-code": switch(f"exit with {DIFFERS} if something would change"),
        "--diff": switch("show changed files as a unified diff"),
        **RECORDS,
    },
)


def show_plan(arguments: Namespace, *, diff: bool = False, exit_code: bool = False) -> int:
    """Print the changes that an apply would make, and the check of the planned node.

    With `diff`, print the changed files as well; with `exit_code`, the status is DIFFERS if
    something would change.
    """
    config = new_config_of(arguments)
    with context(arguments.timeout) as ctx:
        host = with_read_units(ctx, host_of(arguments), config.gates)
        plan = _plan(ctx, config, host)
    diffs = _diffs(plan.changes, config, host) if diff else ()
    # A diff names each file.
    lists_files = arguments.verbose or diff
    shown = [str(each) for each in plan.changes if lists_files or not _is_plain_file(each)]
    files = [] if lists_files else [each for each in plan.changes if _is_plain_file(each)]
    lines = [*shown, *diffs, *plan.report.lines(), *_counted(files)]
    print_answer(arguments, plan.to_mapping(), lines)
    return plan.status(exit_code=exit_code)


@attrs.frozen(eq=False)
class _Plan:
    """All changes of an apply, and the node after it."""

    changes: Sequence[Change]
    report: PlanReport
    #: What to know before the apply.
    notices: Sequence[str]
    #: True if all files could be compared: only root may list some folders.
    is_whole: bool

    def to_mapping(self) -> dict[str, object]:
        """Return the plan for JSON."""
        verdict = "; ".join(filter(None, [f"changes: {len(self.changes)}", self.report.sentence]))
        answer = self.report.to_mapping()
        answer |= {"verdict": verdict, "changes": [each.to_mapping() for each in self.changes]}
        return answer | ({"notices": self.notices} if self.notices else {})

    def status(self, *, exit_code: bool) -> int:
        """Return the exit status of the command."""
        if self.report.fails or any(change.kind == REFUSED for change in self.changes):
            return BAD
        if not self.is_whole:
            return FAILED
        differs = any(change.kind != LEFT for change in self.changes)
        return DIFFERS if exit_code and differs else FINE


def _plan(ctx: Context, config: HostRoutingConfig, host: Host) -> _Plan:
    """Plan an apply, and log the notices about it."""
    task = Configure(config, host=host)
    by_task: list[Sequence[Change]] = []
    unread: dict[str, None] = {}
    planned = task.planned(ctx)
    for subtask in task.subtasks:
        # The routes can be planned even if some files cannot be read.
        try:
            by_task.append(plan_of(subtask, ctx, planned))
        except TaskFailedError as error:
            if not isinstance(error.cause, HostFileError):
                raise error.under(task.name) from error.cause
            unread[f"not compared: {error.cause}"] = None
    first = [*unread]
    if host.is_live and isinstance(host.services, OfflineUnits):
        first.insert(0, _NO_SYSTEMD)
    # A file where the config needs its own is a change that is refused.
    foreign = [] if unread else Boot(host).foreign(NewConfig(config=config))
    first += [found.text for found in foreign if found.severity == "note"]
    notices = log_notices(ctx, config, host, *first, reads=not unread)
    broken = None if unread else why_gates_are_open(host.files)
    report = planned_report(config, planned.forecast, broken=broken)
    return _Plan(_without_repeats(by_task), report, notices, is_whole=not unread)


def _is_plain_file(change: Change) -> bool:
    """Return True for a file to be written or removed that needs no explanation."""
    return change.subject.startswith("/") and not change.detail


def _counted(files: Sequence[Change]) -> Iterator[str]:
    """Yield a line with the number of files instead of each one."""
    if files:
        actions = [change.action for change in files]
        counts = {"new": "+", "changed": "~", "removed": "-"}
        parts = [
            f"{actions.count(sign)} {word}" for word, sign in counts.items() if sign in actions
        ]
        yield f"files: {', '.join(parts)}; all with -v"


def _diffs(changes: Iterable[Change], config: HostRoutingConfig, host: Host) -> Iterator[str]:
    """Yield the unified diff of each file that the changes write or remove."""
    wanted = {file.path: file.content for file in render_files(config, host=host).files}
    for path in dict.fromkeys(change.subject for change in changes):
        # The lock is empty, and only root can read it.
        if path == GATE_LOCK:
            continue
        if path == PROGRAM_PATH:
            yield f"Binary files {path} and {path} differ"
            continue
        # Scripts are links as well; the links that start a unit have no content.
        if path in wanted or (path.startswith("/") and not path.endswith((".service", ".timer"))):
            contents = (host.files.read(path) or b"", wanted.get(path, b""))
            before, after = (content.decode(errors="replace").splitlines() for content in contents)
            yield from unified_diff(before, after, path, path, lineterm="")


def log_notices(
    ctx: Context, config: HostRoutingConfig, host: Host, *first: str, reads: bool = True
) -> list[str]:
    """Log and return the notices: the given ones, then those about gates and programs."""
    boot = Boot(host, gates=config.gates)
    is_asked = reads and installs_units(ctx, config, host)
    findings = boot.notices(ctx, mode=mode_of(config)) if is_asked else []
    findings += missing_programs(config, host)
    findings += warnings_of(ctx, config, host)
    notices = [*first, *(finding.text for finding in findings)]
    if config.inherits_after:
        step = "to change that, set hostRouting.after"
        notices.append(f"after: {', '.join(config.after)}, from {AGENT_LIST}; {step}")
    for notice in notices:
        _logger.warning("%s", notice)
    return notices


def _without_repeats(by_task: Iterable[Sequence[Change]]) -> list[Change]:
    """Return the changes of all tasks; those that several tasks share (the gates) appear once."""
    changes: list[Change] = []
    for planned in by_task:
        earlier = set(changes)
        changes += [change for change in planned if change not in earlier]
    # These files need a reload anyway, which includes one that a killed run left to do.
    is_read_anyway = any(change.subject.startswith(BOOT_FOLDERS) for change in changes)
    return [change for change in changes if not (is_read_anyway and change == RELOAD)]
