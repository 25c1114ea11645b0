"""Check recorded nodes line by line: verdicts in the same order, and a summary."""

from __future__ import annotations

import re
import signal
import sys
from collections import Counter
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import attrs

from hostrouting.base.errors import HostFileError
from hostrouting.base.refused_files import why_refused
from hostrouting.fleet.record import LONGEST, NodeRecord, NoRecordError
from hostrouting.fleet.verdict import NodeVerdict, check_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostrouting.config.sections import HostRoutingConfig

#: The most groups that are kept, and the most that are shown.
_MOST_GROUPS = 1000
_SHOWN = 50
_EXAMPLES = 3
#: The most CPU time for a line; a node with 64,000 routes takes 1 s.
_SECONDS = 20
#: The error is raised again, because the check itself may catch the first one.
_SECONDS_BETWEEN_ERRORS = 1
#: The most characters of the reason why a line is refused.
_MOST_CHARACTERS = 300


#: The position of a line (`file:number`), and its content.
_Line: TypeAlias = tuple[str, bytes]


def read_lines(names: Iterable[str]) -> Iterator[_Line]:
    """Yield the lines of files (`-` is stdin) with their positions; truncate long lines."""
    for name in names:
        try:
            with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
                for number, line in enumerate(iter(partial(file.readline, LONGEST + 1), b""), 1):
                    end = line
                    while len(line) > LONGEST and end and not end.endswith(b"\n"):
                        end = file.readline(1 << 16)
                    yield f"{name}:{number}", line
        except OSError as error:
            why = why_refused(error.errno, name)
            raise HostFileError(f"cannot read the records in {name!r}: {why}") from error


def verdict_on(
    line: _Line, config: HostRoutingConfig | None = None, *, planned: bool = False
) -> NodeVerdict:
    """Return the verdict on a recorded node, or why the line at a position is not a record."""
    try:
        with _limited():
            return check_record(NodeRecord.parse(line[1]), config, planned=planned)
    except ValueError as error:
        why = str(error)[:_MOST_CHARACTERS]
        if isinstance(error, NoRecordError):
            why += "; put CONFIG before --from"
        return NodeVerdict(hostname=line[0], undecided=why, is_record=False)


@contextmanager
def _limited() -> Iterator[None]:
    """Raise ValueError in a block that takes too long, if this is the main thread."""
    if current_thread() is not main_thread():
        yield
        return
    signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS, _SECONDS_BETWEEN_ERRORS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _give_up(*_: object) -> NoReturn:
    raise ValueError(f"checking it takes more than {_SECONDS} s")


@attrs.define
class Summary:
    """The number of verdicts, and groups of nodes by reason, ignoring digits in device names."""

    fail_on: str = "error"
    #: The numbers of nodes that are `bad` or `unknown`, of lines that are `refused`, and of nodes
    #: with an overlap: now, and after a plan.
    counts: Counter[str] = attrs.field(factory=Counter)
    #: The number of nodes by reason, and the first ones.
    groups: dict[str, tuple[int, list[str]]] = attrs.field(factory=dict)

    def add(self, verdict: NodeVerdict) -> bool:
        """Count a verdict; return True if it is to be printed."""
        state = "unknown" if verdict.is_record else "refused"
        report = verdict.report
        reasons = {state}
        if report is not None:
            state = "right" if report.severities.isdisjoint({"error", self.fail_on}) else "bad"
            reasons = {
                f"{cidr} {finding.kind} {re.sub('[0-9]+', '*', finding.dev or '')}".rstrip()
                for cidr, finding in report.overlap.findings
            }
            self._count("overlap", applies=bool(reasons))
            reasons |= {finding.kind for finding in report.findings if finding.severity != "note"}
        self._count(state)
        self._count("nodes", applies=verdict.is_record)
        self._count("overlap_now", applies=verdict.overlaps_now)
        for reason in sorted(reasons):
            # If there are too many groups, the others are counted together.
            is_full = len(self.groups) >= _MOST_GROUPS
            key = "other reasons" if is_full and reason not in self.groups else reason
            number, names = self.groups.get(key, (0, []))
            self.groups[key] = number + 1, [*names, verdict.hostname][:_EXAMPLES]
        return state != "right"

    def _count(self, name: str, *, applies: bool = True) -> None:
        """Count a verdict under a name; names without any are 0 in the summary."""
        self.counts.setdefault(name, 0)
        if applies:
            self.counts[name] += 1

    def _line_of_one(self) -> Iterator[str]:
        """Yield the verdict on the only node; an unknown node has a line already."""
        if self.counts["bad"]:
            yield "the node is bad"
        elif self.counts["right"] and self.groups:
            yield f"the node has warnings: {', '.join(self.groups)}; for more, use -v"
        elif self.counts["right"]:
            yield "the node is right"

    @property
    def status(self) -> int:
        """The exit status: 1 if a node is bad, 3 if any or all are unknown, else 0."""
        counts = self.counts
        if counts["bad"]:
            return 1
        if counts["unknown"] or counts["refused"] or not counts["right"]:
            return 3
        return 0

    def to_mapping(self) -> dict[str, Any]:
        """Return the summary for JSON, with the largest groups."""
        groups = sorted((-number, reason, names) for reason, (number, names) in self.groups.items())
        shown = [
            {"reason": reason, "nodes": -number, "examples": names}
            for number, reason, names in groups[:_SHOWN]
        ]
        return {**self.counts, "groups": shown, "more_groups": len(groups) - len(shown)}

    def lines(self, *, planned: bool) -> Iterator[str]:
        """Yield the summary as text lines."""
        mapping = self.to_mapping()
        counts = self.counts
        if counts["nodes"] == 1 and not counts["refused"] and not planned:
            yield from self._line_of_one()
            return
        for group in mapping["groups"]:
            shown = _some(group["nodes"], group["examples"])
            yield f"{group['nodes']:,} x {group['reason']}: {shown}"
        if mapping["more_groups"]:
            yield f"and {mapping['more_groups']} more reasons"
        if not counts["nodes"]:
            yield "no node was checked"
            return
        nodes = f"of {counts['nodes']:,} nodes"
        after = counts["overlap"]
        unknown = counts["unknown"]
        if not planned:
            yield f"{nodes} {counts['bad']:,} are bad"
            return
        then = "all are right"
        if after:
            then = f"{after:,} would"
        elif unknown:
            then = "none would"
        if unknown:
            then += f", {unknown:,} are unknown"
        if worse := self.groups.get("worse"):
            then += (
                f"; these {worse[0]:,} misroute an address that is routed correctly today: "
                f"{_some(*worse)}"
            )
        yield f"{nodes} {counts['overlap_now']:,} overlap now; with this config {then}"


def _some(number: int, names: Iterable[str]) -> str:
    shown = ", ".join(names)
    return f"{shown} ..." if number > _EXAMPLES else shown
