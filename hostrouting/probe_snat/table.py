"""The table of a live node: its present rules, their differences from other rules, and its repair in `Watch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hostrouting.probe_snat.detect import NotWanted, assess
from hostrouting.probe_snat.ruleset import FAMILY, RULESET_PATH, TABLE, TABLE_NAME, ProbeRules, effect_of, parse, render
from phases import Change

if TYPE_CHECKING:
    from hostrouting.config import ProbeSNATConfig
    from hostrouting.host import Host
    from phases import Context

__all__ = ["Standing", "change_to", "drift_of", "repair", "standing_rules", "to_repair"]

#: The table: these rules, a sentence about others, or None without a table.
Standing: TypeAlias = ProbeRules | str | None


def standing_rules(ctx: Context, host: Host) -> Standing:
    """Return the rules that the table has, a sentence about a table with others, or None without a table."""
    listing = host.nftables.table(ctx, FAMILY, TABLE_NAME)
    if listing is None:
        return None
    if any("unreadable" in entry.get("table", {}) for entry in listing):
        return "it has flags, such as dormant or owner"
    return effect_of(listing) or "its rules are not those of hostrouting"


def drift_of(standing: ProbeRules | str) -> str:
    """Describe the difference between the rules and a table that has drifted."""
    if isinstance(standing, ProbeRules):
        return f"it rewrites {standing.source} to {standing.address} on {standing.dev}"
    return standing


def change_to(before: Standing, after: ProbeRules | None) -> Change:
    """Return the change of the table from one state to another."""
    if after is None:
        return Change("-", TABLE)
    return Change("+", TABLE) if before is None else Change("~", TABLE, drift_of(before))


# --- repair


def to_repair(ctx: Context, section: ProbeSNATConfig, host: Host) -> Change | NotWanted | None:
    """Return the change that `repair` would make now; None if the table is right, or if no rules are installed.

    An apply decided if the node wants the rules, and for which device. The installed file tells, so the cloud is not
    asked again.
    """
    found = _drifted(ctx, host)
    if found is None:
        return None
    outcome = assess(section, host)
    # ipv6-hp-bpf deletes the table when it takes over the job. An obstacle is none to the unit at boot either.
    return outcome if isinstance(outcome, NotWanted) else change_to(*found)


def repair(ctx: Context, section: ProbeSNATConfig, host: Host) -> Change | NotWanted | None:
    """Load the installed rules if the table has others, or is gone; call it under the run lock."""
    change, found = to_repair(ctx, section, host), _installed(host)
    if isinstance(change, Change) and found is not None:
        host.nftables.load(ctx, render(found))
    return change


def _drifted(ctx: Context, host: Host) -> tuple[Standing, ProbeRules] | None:
    """Return the table and the installed rules if they differ."""
    installed = _installed(host)
    if installed is None:
        return None
    standing = standing_rules(ctx, host)
    return None if standing == installed else (standing, installed)


def _installed(host: Host) -> ProbeRules | None:
    return parse((host.files.read(RULESET_PATH) or b"").decode(errors="replace"))
