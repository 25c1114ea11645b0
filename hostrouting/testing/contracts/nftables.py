"""The promises of `Nftables`, as tests. See `hostrouting.testing.contracts`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hostrouting.exceptions import BackendError
from phases import CancelledError, Context

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.host import Nftables

__all__ = ["NftablesContract"]

#: Both directions of a rewriting, replaced as a whole.
_OURS = """\
# Why it is there.
table ip6 ours
delete table ip6 ours

table ip6 ours {
  comment "of a test"
  chain prerouting {
    comment "inbound"
    type filter hook prerouting priority -300; policy accept;
    iifname "eth0" icmpv6 type { nd-router-solicit, nd-redirect } counter return comment "not those"
    iifname "eth0" ip6 saddr fe80::1 counter ip6 saddr set 2001:db8::1 comment "inbound: # 1"   # said twice
  }
  chain postrouting {
    type filter hook postrouting priority -300; policy accept
    oifname "eth0" ip6 daddr 2001:db8::1 counter ip6 daddr set fe80::1
  }
}
"""

_THEIRS = """\
table inet theirs {
  chain input {
    type filter hook input priority 0; policy drop;
    iifname "lo" accept
    counter drop
  }
  chain plain {
    return;
  }
}
"""


def _payload(protocol: str, field: str) -> dict[str, Any]:
    return {"payload": {"protocol": protocol, "field": field}}


def _match(left: dict[str, Any], right: Any) -> dict[str, Any]:
    return {"match": {"op": "==", "left": left, "right": right}}


def _device(key: str, name: str) -> dict[str, Any]:
    return _match({"meta": {"key": key}}, name)


def _mangle(field: str, value: str) -> dict[str, Any]:
    return {"mangle": {"key": _payload("ip6", field), "value": value}}


def _hook(hook: str, priority: int, policy: str = "accept") -> dict[str, Any]:
    return {"type": "filter", "hook": hook, "prio": priority, "policy": policy}


def _listing(family: str, name: str, chains: dict[str, dict[str, Any]], rules: list[dict[str, Any]]) -> list[Any]:
    whose = {"family": family, "table": name}
    return [
        {"table": {"family": family, "name": name}},
        *({"chain": {**whose, "name": chain, **hook}} for chain, hook in chains.items()),
        *({"rule": {**whose, **rule}} for rule in rules),
    ]


_NOT_THOSE = {"set": ["nd-router-solicit", "nd-redirect"]}
_OURS_LISTED = _listing(
    "ip6",
    "ours",
    {"prerouting": _hook("prerouting", -300), "postrouting": _hook("postrouting", -300)},
    [
        {
            "chain": "prerouting",
            "comment": "not those",
            "expr": [
                _device("iifname", "eth0"),
                _match(_payload("icmpv6", "type"), _NOT_THOSE),
                {"counter": None},
                {"return": None},
            ],
        },
        {
            "chain": "prerouting",
            "comment": "inbound: # 1",
            "expr": [
                _device("iifname", "eth0"),
                _match(_payload("ip6", "saddr"), "fe80::1"),
                {"counter": None},
                _mangle("saddr", "2001:db8::1"),
            ],
        },
        {
            "chain": "postrouting",
            "expr": [
                _device("oifname", "eth0"),
                _match(_payload("ip6", "daddr"), "2001:db8::1"),
                {"counter": None},
                _mangle("daddr", "fe80::1"),
            ],
        },
    ],
)
_THEIRS_LISTED = _listing(
    "inet",
    "theirs",
    {"input": _hook("input", 0, "drop"), "plain": {}},
    [
        {"chain": "input", "expr": [_device("iifname", "lo"), {"accept": None}]},
        {"chain": "input", "expr": [{"counter": None}, {"drop": None}]},
        {"chain": "plain", "expr": [{"return": None}]},
    ],
)


class NftablesContract:
    """The promises of `Nftables`. Each test has an empty ruleset in `nftables`."""

    @pytest.fixture
    def give_flag(self) -> Callable[[str, str], None]:
        """A function that gives a table, by family and name, the flag `dormant`."""
        raise NotImplementedError

    @pytest.fixture
    def nftables(self) -> Nftables:
        """The ruleset under test."""
        raise NotImplementedError

    def test_what_was_loaded_is_listed(self, nftables: Nftables) -> None:
        """The table, its chains, its rules in order and their comments; no handles, and no numbers in counters."""
        nftables.load(Context(), _OURS)
        assert nftables.table(Context(), "ip6", "ours") == _OURS_LISTED

    def test_a_table_of_another_sort_is_listed(self, nftables: Nftables) -> None:
        """Another family and policy, a chain without a hook, as another program may have them."""
        nftables.load(Context(), _THEIRS)
        assert nftables.table(Context(), "inet", "theirs") == _THEIRS_LISTED

    def test_an_absent_table_is_none(self, nftables: Nftables) -> None:
        """Neither a table nor the same name in another family is an error."""
        assert nftables.table(Context(), "ip6", "ours") is None
        nftables.load(Context(), _OURS)
        assert nftables.table(Context(), "ip", "ours") is None
        assert nftables.table(Context(), "ip6", "our") is None

    @pytest.mark.parametrize("name", ["a b", "a; flush ruleset", "", "-h", "a\nflush ruleset", "4"])
    def test_no_name_is_more_than_a_name(self, nftables: Nftables, name: str) -> None:
        """A name that nft would read as more than a name is refused, and changes nothing."""
        nftables.load(Context(), _OURS)
        with pytest.raises(BackendError, match="nft knows no table"):
            nftables.table(Context(), "ip6", name)
        assert nftables.table(Context(), "ip6", "ours") == _OURS_LISTED

    def test_defining_again_without_deleting_adds(self, nftables: Nftables) -> None:
        """Rules are added to the existing ones."""
        nftables.load(Context(), _THEIRS)
        nftables.load(Context(), _THEIRS)
        listing = nftables.table(Context(), "inet", "theirs")
        assert listing == [
            *_THEIRS_LISTED[:3],
            *_THEIRS_LISTED[3:5] * 2,
            *_THEIRS_LISTED[5:] * 2,
        ]

    def test_a_flushed_table_keeps_its_chains(self, nftables: Nftables) -> None:
        """Only rules go. Hooks and policies stay, so a drifted table is deleted instead."""
        nftables.load(Context(), _THEIRS)
        nftables.load(Context(), "flush table inet theirs")
        assert nftables.table(Context(), "inet", "theirs") == _THEIRS_LISTED[:3]

    def test_a_deleted_table_is_gone(self, nftables: Nftables) -> None:
        """A declaration before the deletion makes it right for an absent table, too."""
        nftables.load(Context(), _OURS)
        for _ in range(2):
            nftables.load(Context(), "table ip6 ours\ndelete table ip6 ours")
            assert nftables.table(Context(), "ip6", "ours") is None

    def test_a_table_with_flags_is_there_and_no_more(
        self, nftables: Nftables, give_flag: Callable[[str, str], None]
    ) -> None:
        """The listing says only that the table is there; it is replaced and deleted as any other."""
        unreadable = [{"table": {"family": "ip6", "name": "ours", "unreadable": True}}]
        for after, expected in ((_OURS, _OURS_LISTED), ("delete table ip6 ours", None), ("flush ruleset", None)):
            nftables.load(Context(), _OURS)
            give_flag("ip6", "ours")
            assert nftables.table(Context(), "ip6", "ours") == unreadable
            nftables.load(Context(), after)
            assert nftables.table(Context(), "ip6", "ours") == expected

    def test_loading_twice_is_loading_once(self, nftables: Nftables) -> None:
        """A script that declares, deletes and defines leaves no duplicates, and changes no other table."""
        nftables.load(Context(), _THEIRS)
        nftables.load(Context(), _OURS)
        nftables.load(Context(), _OURS)
        assert nftables.table(Context(), "ip6", "ours") == _OURS_LISTED
        nftables.load(Context(), "delete table ip6 ours")
        assert nftables.table(Context(), "inet", "theirs") == _THEIRS_LISTED

    def test_a_flush_of_all_is_of_all(self, nftables: Nftables) -> None:
        """Another program does it."""
        nftables.load(Context(), _THEIRS + _OURS)
        nftables.load(Context(), "flush ruleset")
        assert nftables.table(Context(), "inet", "theirs") is None
        assert nftables.table(Context(), "ip6", "ours") is None

    @pytest.mark.parametrize(
        "mistake", ["bogus", "delete table ip6 absent", "table ip6 ours {\n chain a {\n accept\n }\n"]
    )
    def test_a_refused_script_changes_nothing(self, nftables: Nftables, mistake: str) -> None:
        """A mistake in the last line: `check` and `load` refuse it, and the lines before it change nothing."""
        nftables.load(Context(), _THEIRS)
        for refused_by in (nftables.check, nftables.load):
            with pytest.raises(BackendError):
                refused_by(Context(), f"table ip6 before\nflush table inet theirs\n{mistake}\n")
            assert nftables.table(Context(), "ip6", "before") is None
            assert nftables.table(Context(), "inet", "theirs") == _THEIRS_LISTED

    def test_checking_changes_nothing(self, nftables: Nftables) -> None:
        """A right script is accepted, and does not take effect."""
        nftables.check(Context(), _OURS)
        assert nftables.table(Context(), "ip6", "ours") is None
        nftables.load(Context(), _OURS)
        nftables.check(Context(), "delete table ip6 ours")
        assert nftables.table(Context(), "ip6", "ours") == _OURS_LISTED

    def test_an_empty_script_is_a_script(self, nftables: Nftables) -> None:
        """An empty script changes nothing."""
        nftables.load(Context(), "")
        nftables.load(Context(), "# nothing\n;\n")

    def test_nothing_is_done_for_a_context_that_is_over(self, nftables: Nftables) -> None:
        """A cancelled context ends every method before it does anything."""
        over = Context()
        over.cancel("maintenance")
        for change in (nftables.load, nftables.check):
            with pytest.raises(CancelledError, match="maintenance"):
                change(over, _OURS)
        with pytest.raises(CancelledError, match="maintenance"):
            nftables.table(over, "ip6", "ours")
        assert nftables.table(Context(), "ip6", "ours") is None
