"""What the ebtables port speaks: rules of the table `nat`, as ebtables-save prints them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["EbtablesReading", "EbtablesRule"]


class EbtablesRule(NamedTuple):
    """A rule, and where it stands."""

    #: `nft` or `legacy`: each has a ruleset of its own, and both are in force.
    backend: str
    chain: str
    #: From 1, among the rules of its chain.
    position: int
    #: The rule's description word by word, as its backend prints it, without `-A CHAIN` and without counters.
    spec: tuple[str, ...]


class EbtablesReading(NamedTuple):
    """All the rules that could be seen, and what could not."""

    rules: tuple[EbtablesRule, ...]
    #: Why a backend was not read: it is not installed, the kernel does not support it, privilege is missing.
    notes: tuple[str, ...] = ()
    #: What each backend's ebtables-save printed, for the backup: (backend, text).
    texts: tuple[tuple[str, str], ...] = ()
