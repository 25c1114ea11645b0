"""Findings of `check` other than those of the proof: one value for all capabilities."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from hostrouting.base.values import LightValue
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Sequence

Severity = Literal["error", "warning", "note"]


# The kinds of planned changes.
#: An apply fails.
REFUSED = "refused"
#: It leaves an optional part that cannot be done.
LEFT = "left"
#: It waits for a lease.
AWAITED = "awaited"
#: A unit does not run, and is started.
STARTED = "started"
#: It runs with an earlier config, and is started anew.
RESTARTED = "restarted"
#: It ends the proof of addresses that the installed config expects.
UNPROVEN = "unproven"
#: The state where an apply would make a change, by its action.
STATES: Final = {
    "+": "is missing",
    "-": "is not of this config",
    "~": "is not as this config wants it",
}
#: Why addresses are undecided that no route with a header decides, by the cause.
UNDECIDED_WORDS: Final = {
    "changing": "routing changes while it is read",
    "by-flow": "a rule with suppress_ifgroup takes some of their flows from their route",
}


def rfc3339(seconds: float) -> str:
    """Return a time of the clock for a program.

    >>> rfc3339(1785542400.5)
    '2026-08-01T00:00:00Z'
    """
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def first_of(texts: Sequence[str]) -> str:
    """Return the first of several texts, and the number of the rest.

    >>> first_of(["ib0 is down", "ib1 is down"]), first_of(["ib0 is down"])
    ('ib0 is down and 1 more', 'ib0 is down')
    """
    return f"{texts[0]} and {len(texts) - 1} more" if texts[1:] else texts[0]


@attrs.frozen
class NodeFinding(LightValue):
    """One difference between node and config: its kind, its subject and the reason.

    An `error` keeps the node from doing its work, now or after the next boot; a `warning` should be
    looked at; a `note` is information.

    >>> print(NodeFinding("boot-file", "/etc/a.service", "is missing", apply="now"))
    error: boot-file: /etc/a.service: is missing; apply the config
    """

    #: A word such as `lost-route`; `release/findings.py` describes each.
    kind: str
    subject: str
    reason: str
    severity: Severity = "error"
    #: What to do about it, if that is not clear.
    step: str = ""
    #: Not empty if an apply of the config repairs it: `now`, or `later`, once each route of the
    #: config can be added.
    apply: Literal["", "now", "later"] = ""
    #: The action of the planned change that would repair it.
    action: str = ""
    #: The command that resolves it; then the step is another way.
    command: str = ""
    #: True if the command removes our routes from a device, so an apply has to follow.
    drops_routes: bool = False
    #: The time since when it is so, if that is known.
    since: float | None = None
    #: The `Finding` of the proof that has its addresses, if they are a part of the CIDR that is the
    #: subject; or None.
    part: Any = attrs.field(default=None, eq=False)

    def to_mapping(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        mapping = {
            "kind": self.kind,
            "subject": self.subject,
            "reason": self.sentence,
            "severity": self.severity,
        }
        if self.command:
            mapping["command"] = self.command
        if self.since is not None:
            mapping["since"] = rfc3339(self.since)
        return mapping if self.part is None else mapping | self.part.to_mapping()

    @property
    def is_refused(self) -> bool:
        """True for what an apply would be refused."""
        is_foreign = (self.kind, self.severity) == ("foreign-file", "error")
        return is_foreign or (self.kind == "lost-route" and not self.apply)

    @property
    def sentence(self) -> str:
        """The reason and the step."""
        command = f"run: {self.command}" if self.command else ""
        step = ", or ".join(filter(None, [command, self.step]))
        step = step or ("apply the config" if self.apply else "")
        later = "once each route can be added, " if self.apply == "later" else ""
        return f"{self.reason}; {later}{step}" if step else self.reason

    @property
    def text(self) -> str:
        """The subject and the sentence, for a log that shows the severity otherwise."""
        return f"{self.subject}: {self.sentence}"

    def text_before(self, command: str | None) -> str:
        """Return the text, without a command with which the one that follows it begins."""
        is_repeated = self.command and command and command.startswith(self.command)
        return f"{self.subject}: {self.reason}" if is_repeated else self.text

    def __str__(self) -> str:
        return f"{self.severity}: {self.kind}: {self.text}"


@attrs.frozen
class NextStep(LightValue):
    """What to do next: a command, or what somebody has to do where no command helps.

    >>> print(NextStep("fix", command="ip link set eth0 up"))
    ip link set eth0 up
    >>> print(NextStep("owner", text="see the cable of eth0"))
    no command repairs this: see the cable of eth0
    """

    #: `fix` for a command that removes the finding, `look` for one that waits and shows more, and
    #: `owner` for what a person has to do.
    type: Literal["fix", "look", "owner"]
    command: str = ""
    text: str = ""

    def to_mapping(self) -> dict[str, str | None]:
        """Return the step for JSON."""
        return {
            "type": self.type,
            "command": self.command or None,
            "owner": self.text or None,
        }

    def __str__(self) -> str:
        return self.command or f"no command repairs this: {self.text}"


def hindered(
    action: Literal["+", "-", "~"], subject: str, reason: str, *, optional: bool = False
) -> Change:
    """Return a planned change that cannot be made; an optional one leaves the plan valid.

    >>> print(hindered("+", "172.16.0.0/16 dev eth0", "it is the kernel's own route"))
    + 172.16.0.0/16 dev eth0 (will be refused: it is the kernel's own route)
    >>> print(hindered("~", "/etc/a.service", "it is masked", optional=True))
    ~ /etc/a.service (will be left out: it is masked)
    """
    fate, kind = ("left out", LEFT) if optional else ("refused", REFUSED)
    return Change(action, subject, f"will be {fate}: {reason}", kind)


def boot_file(change: Change) -> NodeFinding:
    """Return the finding about a file that an apply would change for the next boot.

    >>> print(boot_file(Change("+", "/etc/systemd/system/a.service")))
    error: boot-file: /etc/systemd/system/a.service: is missing; apply the config
    """
    state = change.detail or STATES[change.action]
    return NodeFinding("boot-file", change.subject, state, apply="" if change.kind else "now")
