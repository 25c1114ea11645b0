"""The sentences of a report: its findings in short, and in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import CHECK
from hostrouting.net.addresses import Prefix
from hostrouting.route_overlap.report import CAUSES, CLAUSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.base.findings import NodeFinding

#: The kinds whose subject and reason read as a sentence.
_SENTENCES: Final = frozenset({*CAUSES, "no-lock", "no-room", "read-only"})
#: The columns of the first line of an answer.
_COLUMNS: Final = 80
#: The findings below the first line; `check` has all of them.
_MOST: Final = 8


def cut(text: str) -> str:
    """Return the clauses of a text that fit into 80 columns, and always the first one.

    >>> cut("right: " + ", ".join(f"10.{number}.0.0/16" for number in range(10)))
    'right: 10.0.0.0/16, 10.1.0.0/16, 10.2.0.0/16, 10.3.0.0/16, 10.4.0.0/16, ...'
    """
    if len(text) <= _COLUMNS:
        return text
    fitting, _, _ = text[: _COLUMNS - len(", ...")].rpartition(", ")
    return f"{fitting or text.partition(', ')[0]}, ..." if ", " in text else text


def in_short(findings: Sequence[NodeFinding]) -> str:
    """Return the first finding in short, and the number of the rest, which stands before a clause.

    >>> from hostrouting.base.findings import NodeFinding
    >>> in_short([NodeFinding("no-program", "ip", "is not installed")] * 3)
    'ip (1 of 3): is not installed'
    >>> in_short([NodeFinding("no-carrier", "eth0", "has no carrier", "warning")] * 3)
    'eth0 has no carrier, and 2 more'
    """
    subject, clause = _parts_of(findings[0])
    more = len(findings) - 1
    if not more:
        return f"{subject}{clause}"
    if not clause:
        return f"{subject}, and {more} more"
    # The clause is not about the others.
    return f"{subject} (1 of {more + 1}){clause}"


def in_full(findings: Sequence[NodeFinding], command: str | None) -> Iterator[str]:
    """Yield lines on what the first line of an answer has in short, or as a number.

    A command that follows them is left out.
    """
    yield from (f"  {text_of(finding, command)}" for finding in findings[:_MOST])
    if rest := len(findings[_MOST:]):
        yield f"  and {rest} more: {CHECK}"


def sentence_of(finding: NodeFinding) -> str:
    """Return the whole of a finding as a sentence.

    >>> from hostrouting.base.findings import NodeFinding
    >>> sentence_of(NodeFinding("no-carrier", "eth0", "has no carrier", step="check its cable"))
    'eth0 has no carrier; check its cable'
    """
    if finding.kind in _SENTENCES:
        return f"{finding.subject} {finding.sentence}"
    return finding.text if finding.reason else finding.subject


def text_of(finding: NodeFinding, command: str | None) -> str:
    """Return the whole of a finding, without a command that follows it."""
    if finding.part is not None:
        return finding.reason
    return finding.text_before(command) if finding.reason else finding.subject


def _parts_of(finding: NodeFinding) -> tuple[str, str]:
    """Return what is wrong, and how: a number of others goes between the two."""
    subject = finding.subject
    if (part := finding.part) is not None:
        cidr = Prefix.parse(subject)
        whole = "" if part.bounds == (cidr.network, cidr.last) else "part of "
        return f"{whole}{subject} {CLAUSES[finding.kind].format(dev=part.dev)}", ""
    if not finding.reason:
        return subject, ""
    if finding.kind in _SENTENCES:
        return f"{subject} {finding.reason}", ""
    if finding.is_refused:
        # Behind a long route it would be cut off.
        subject = f"will be refused: {subject}"
    return subject, f": {finding.reason}"
