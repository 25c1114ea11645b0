"""What the log has: a fact is logged once until it changes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

import attrs

Subject = TypeVar("Subject", bound=Hashable)
Value = TypeVar("Value")


@attrs.frozen
class Facts(Generic[Subject, Value]):
    """The facts that the log has, by their subjects, and what the last ones brought.

    >>> facts = Facts[str, str]().after({"/run": "the disk is full"})
    >>> facts.new
    {'/run': 'the disk is full'}
    >>> facts.after({"/run": "the disk is full"}).new
    {}
    >>> facts.after({}).over
    {'/run': 'the disk is full'}
    """

    known: Mapping[Subject, Value] = attrs.field(factory=dict)
    #: The last facts that are to be logged: they were not known, or with another value.
    new: Mapping[Subject, Value] = attrs.field(factory=dict)
    #: The facts that were known before, and are not true any more.
    over: Mapping[Subject, Value] = attrs.field(factory=dict)

    @property
    def has_changed(self) -> bool:
        """True if the last facts are not those before."""
        return bool(self.new or self.over)

    def after(self, facts: Mapping[Subject, Value]) -> Facts[Subject, Value]:
        """Return the facts after these, which are all of now."""
        new = {
            subject: value
            for subject, value in facts.items()
            if subject not in self.known or self.known[subject] != value
        }
        over = {subject: value for subject, value in self.known.items() if subject not in facts}
        return Facts(dict(facts), new, over)
