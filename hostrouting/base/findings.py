"""Findings of `check` from all capabilities, except those about expected addresses."""

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
#: The apply fails.
REFUSED = "refused"
#: The apply skips an optional change that cannot be made.
LEFT = "left"
#: The apply waits for a lease.
AWAITED = "awaited"
#: A unit is not running and is started.
STARTED = "started"
#: A unit runs with an earlier config and is restarted.
RESTARTED = "restarted"
#: Addresses that the installed config expects are no longer checked.
UNPROVEN = "unproven"
#: What is wrong now where an apply would make a change, by the change's action.
STATES: Final = {
    "+": "is missing",
    "-": "does not belong to this config",
    "~": "differs from what this config needs",
}
#: Why it is undecided where packets for an address go, by cause, if tunnels are not the reason.
UNDECIDED_WORDS: Final = {
    "changing": "routing changed while it was being read",
    "by-flow": "a rule with suppress_ifgroup diverts some of their flows",
}


def rfc3339(seconds: float) -> str:
    """Return a Unix time in RFC 3339 format.

    >>> rfc3339(1785542400.5)
    '2026-08-01T00:00:00Z'
    """
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def first_of(texts: Sequence[str]) -> str:
    """Return the first of several texts and how many more there are.

    >>> first_of(["ib0 is down", "ib1 is down"]), first_of(["ib0 is down"])
    ('ib0 is down and 1 more', 'ib0 is down')
    """
    return f"{texts[0]} and {len(texts) - 1} more" if texts[1:] else texts[0]


@attrs.frozen
class NodeFinding(LightValue):
    """One difference between the node and its config: its kind, its subject and the reason.

    An `error` keeps the node from working properly, now or after the next boot; a `warning` should
    be looked into; a `note` is for information only.

    >>> print(NodeFinding("boot-file", "/etc/a.service", "is missing", apply="now"))
    error: boot-file: /etc/a.service: is missing; apply the config
    """

    #: A word such as `lost-route`; `docs/reference.md` describes each.
    kind: str
    subject: str
    reason: str
    severity: Severity = "error"
    #: What to do about it, if that is not obvious.
    step: str = ""
    #: Not empty if applying the config repairs it: `now`, or `later`, once each route of the
    #: config can be added.
    apply: Literal["", "now", "later"] = ""
    #: The action of the planned change that would repair it.
    action: str = ""
    #: The command that resolves it; `step` is then an alternative.
    command: str = ""
    #: True if the command removes our routes from a device, so an apply has to follow.
    drops_routes: bool = False
    #: Since when it has been so, if known.
    since: float | None = None
    #: The `Finding` that lists the affected addresses, if they are only a part of the CIDR that is
    #: the subject; or None.
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
        """True if an apply would be refused because of it."""
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
        """The subject and the sentence, for a log that shows the severity separately."""
        return f"{self.subject}: {self.sentence}"

    def text_before(self, command: str | None) -> str:
        """Return the text, leaving out a command with which the caller's next `command` begins."""
        is_repeated = self.command and command and command.startswith(self.command)
        return f"{self.subject}: {self.reason}" if is_repeated else self.text

    def __str__(self) -> str:
        return f"{self.severity}: {self.kind}: {self.text}"


@attrs.frozen
class NextStep(LightValue):
    """What to do next: a command, or what a person has to do if no command helps.

    >>> print(NextStep("fix", command="ip link set eth0 up"))
    ip link set eth0 up
    >>> print(NextStep("owner", text="check the cable of eth0"))
    no command repairs this: check the cable of eth0
    """

    #: `fix`: the command removes the finding; `look`: it waits or shows more; `owner`: a person has
    #: to do something.
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
    """Return a planned change that cannot be made; if it is optional, the plan stays valid.

    >>> print(hindered("+", "172.16.0.0/16 dev eth0", "it is the kernel's own route"))
    + 172.16.0.0/16 dev eth0 (will be refused: it is the kernel's own route)
    >>> print(hindered("~", "/etc/a.service", "it is masked", optional=True))
    ~ /etc/a.service (will be left out: it is masked)
    """
    fate, kind = ("left out", LEFT) if optional else ("refused", REFUSED)
    return Change(action, subject, f"will be {fate}: {reason}", kind)


def boot_file(change: Change) -> NodeFinding:
    """Return the finding for a boot file that an apply would change.

    >>> print(boot_file(Change("+", "/etc/systemd/system/a.service")))
    error: boot-file: /etc/systemd/system/a.service: is missing; apply the config
    """
    state = change.detail or STATES[change.action]
    return NodeFinding("boot-file", change.subject, state, apply="" if change.kind else "now")
