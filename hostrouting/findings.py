"""Findings of `check` other than those of the proof: one value for all capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from phases import Change

Severity = Literal["error", "warning", "note"]

_WILL_BE: Final = "will be refused: "
#: The kinds of planned changes: an apply fails; it leaves an optional part that cannot be done; it waits for a lease.
REFUSED, LEFT, AWAITED = "refused", "left", "awaited"
#: The step of many findings, now or later. `check`, which knows the path of the config, names the command line instead.
APPLY: Final = "apply the config"
APPLY_LATER: Final = f"when that is there, {APPLY}"
#: Why the refusal of an optional task fails nothing.
OPTIONAL: Final = "it is optional, and the rest goes on"
#: What is wrong where an apply would make a change, by its action.
STATES: Final = {"+": "is missing", "-": "is not of this config", "~": "is not as this config wants it"}


@attrs.frozen
class NodeFinding:
    """One difference between node and config: its kind, its subject and the reason.

    An `error` keeps the node from doing its work, now or after the next boot; a `warning` should be looked at; a
    `note` is information.

    >>> print(NodeFinding("probe-snat", "nft table ip6 azureSLBProbe", "is missing", step=APPLY))
    error: probe-snat: nft table ip6 azureSLBProbe: is missing; apply the config
    """

    #: `not-applied`, `lost-route`, `hides-connected`, `boot-file`, `gate-open`, `gate-missing` and other gate troubles,
    #: `held`, `gate-down`, `failed-unit`, `disabled`, `exposed`, `fabric`, `nothing-proven`, `idle-device`,
    #: `silent-gateway`, `several-exits`, `fallback-by-fabric`, `foreign-source`, `will-vanish`, `networkd`,
    #: `policy-rule`, of an image `missing-tool`; or a sibling's: `probe-snat`, `stale-cni`, `watch`.
    kind: str
    subject: str
    reason: str
    severity: Severity = "error"
    #: What to do about it, if that is not clear.
    step: str = ""
    #: That of the planned change that would mend it.
    action: str = ""

    def to_mapping(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return {"kind": self.kind, "subject": self.subject, "reason": self.sentence, "severity": self.severity}

    @property
    def sentence(self) -> str:
        """The reason and the step."""
        return f"{self.reason}; {self.step}" if self.step else self.reason

    @property
    def text(self) -> str:
        """The subject and the sentence, for a log that shows the severity otherwise."""
        return f"{self.subject}: {self.sentence}"

    def __str__(self) -> str:
        return f"{self.severity}: {self.kind}: {self.text}"


def refused(reason: str) -> str:
    """Return the detail of a planned change that will be refused.

    >>> refused("the kernel's own route is never overwritten")
    "will be refused: the kernel's own route is never overwritten"
    """
    return f"{_WILL_BE}{reason}"


def of_optional(changes: Iterable[Change], paths: Container[str]) -> list[Change]:
    """Return the planned changes of an optional task, whose refusal at its own `paths` refuses no plan as a whole.

    It is all that there is then: the task changes nothing.

    >>> from phases import Change
    >>> [change] = of_optional([Change("~", "/etc/a.service", refused("it is masked"), REFUSED)], ["/etc/a.service"])
    >>> print(change, change.kind)
    ~ /etc/a.service (it is masked: will be refused: it is optional, and the rest goes on) left
    """
    planned = list(changes)
    return [
        change._replace(detail=f"{(change.detail or '').removeprefix(_WILL_BE)}: {refused(OPTIONAL)}", kind=LEFT)
        for change in planned
        if change.subject in paths and change.kind == REFUSED
    ] or planned
