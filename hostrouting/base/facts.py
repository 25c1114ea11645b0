"""Facts for the log: each is logged once, until it changes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

import attrs

Subject = TypeVar("Subject", bound=Hashable)
Value = TypeVar("Value")


@attrs.frozen
class Facts(Generic[Subject, Value]):
    """The facts that were logged, by subject, and what the latest ones changed.

    >>> facts = Facts[str, str]().after({"/run": "the disk is full"})
    >>> facts.new
    {'/run': 'the disk is full'}
    >>> facts.after({"/run": "the disk is full"}).new
    {}
    >>> facts.after({}).over
    {'/run': 'the disk is full'}
    """

    known: Mapping[Subject, Value] = attrs.field(factory=dict)
    #: The latest facts to log: they are new, or their values changed.
    new: Mapping[Subject, Value] = attrs.field(factory=dict)
    #: The facts that are no longer true.
    over: Mapping[Subject, Value] = attrs.field(factory=dict)

    @property
    def has_changed(self) -> bool:
        """True if the latest facts differ from the previous ones."""
        return bool(self.new or self.over)

    def after(self, facts: Mapping[Subject, Value]) -> Facts[Subject, Value]:
        """Return the facts updated to `facts`, which are all that are true now."""
        new = {
            subject: value
            for subject, value in facts.items()
            if subject not in self.known or self.known[subject] != value
        }
        over = {subject: value for subject, value in self.known.items() if subject not in facts}
        return Facts(dict(facts), new, over)
