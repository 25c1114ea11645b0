"""Change: one line of a plan, a report or a record."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Change"]


class _Change(NamedTuple):
    action: Literal["+", "-", "~"]
    subject: str
    detail: str | None = None


class Change(_Change):
    """One line of a plan or a report: `+` is added, `-` is removed, `~` is changed.

    >>> print(Change("~", "/etc/hosts", "2 lines"))
    ~ /etc/hosts (2 lines)
    >>> Change("*", "/etc/hosts")
    Traceback (most recent call last):
    ValueError: the action of a change is '+', '-' or '~', not '*'
    """

    __slots__ = ()

    def __new__(cls, action: Literal["+", "-", "~"], subject: str, detail: str | None = None) -> Change:
        """Refuse an unknown action."""
        if action not in ("+", "-", "~"):
            raise ValueError(f"the action of a change is '+', '-' or '~', not {action!r}")
        return tuple.__new__(cls, (action, subject, detail))

    def __str__(self) -> str:
        return f"{self.action} {self.subject}" + (f" ({self.detail})" if self.detail else "")

    def to_mapping(self) -> dict[str, str | None]:
        """Return the change for JSON.

        >>> Change("+", "/etc/hosts").to_mapping()
        {'action': '+', 'subject': '/etc/hosts', 'detail': None}
        """
        return self._asdict()
