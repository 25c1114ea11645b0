"""The promises of `Nftables`, as tests."""

from typing import Any

import pytest

from hostrouting.exceptions import BackendError
from hostrouting.host import Nftables
from phases import CancelledError, Context

#: Both directions of a rewriting, replaced as a whole.
_OWN = """\
# Why it is there.
table ip6 own
delete table ip6 own

table ip6 own {
  comment "of a test"
  chain prerouting {
    comment "inbound"
    type filter hook prerouting priority -300; policy accept;
    iifname "eth0" icmpv6 type { nd-router-solicit, nd-redirect } counter return comment "not those"
    iifname "eth0" ip6 saddr fe80::1 counter ip6 saddr set 2001:db8::1 comment "inbound: # 1"   # a comment after a comment
  }
  chain postrouting {
    type filter hook postrouting priority -300; policy accept
    oifname "eth0" ip6 daddr 2001:db8::1 counter ip6 daddr set fe80::1
  }
}
"""

_FOREIGN = """\
table inet foreign {
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


_COUNTER = {"counter": None}
_UNREADABLE = [{"table": {"family": "ip6", "name": "own", "unreadable": True}}]


def payload(protocol: str, field: str) -> dict[str, Any]:
    return {"payload": {"protocol": protocol, "field": field}}


def match(left: dict[str, Any], right: Any) -> dict[str, Any]:
    return {"match": {"op": "==", "left": left, "right": right}}


def device(key: str, name: str) -> dict[str, Any]:
    return match({"meta": {"key": key}}, name)


def rewriting(field: str, before: str, after: str) -> list[dict[str, Any]]:
    where = payload("ip6", field)
    return [match(where, before), _COUNTER, {"mangle": {"key": where, "value": after}}]


def hook(hook: str, priority: int, policy: str) -> dict[str, Any]:
    return {"type": "filter", "hook": hook, "prio": priority, "policy": policy}


def listing(
    family: str, name: str, chains: dict[str, dict[str, Any]], rules: list[dict[str, Any]]
) -> list[Any]:
    whose = {"family": family, "table": name}
    return [
        {"table": {"family": family, "name": name}},
        *({"chain": {**whose, "name": chain, **hook}} for chain, hook in chains.items()),
        *({"rule": {**whose, **rule}} for rule in rules),
    ]


_OWN_LISTED = listing(
    "ip6",
    "own",
    {chain: hook(chain, -300, "accept") for chain in ("prerouting", "postrouting")},
    [
        {
            "chain": "prerouting",
            "comment": "not those",
            "expr": [
                device("iifname", "eth0"),
                match(payload("icmpv6", "type"), {"set": ["nd-router-solicit", "nd-redirect"]}),
                _COUNTER,
                {"return": None},
            ],
        },
        {
            "chain": "prerouting",
            "comment": "inbound: # 1",
            "expr": [device("iifname", "eth0"), *rewriting("saddr", "fe80::1", "2001:db8::1")],
        },
        {
            "chain": "postrouting",
            "expr": [device("oifname", "eth0"), *rewriting("daddr", "2001:db8::1", "fe80::1")],
        },
    ],
)
_FOREIGN_LISTED = listing(
    "inet",
    "foreign",
    {"input": hook("input", 0, "drop"), "plain": {}},
    [
        {"chain": "input", "expr": [device("iifname", "lo"), {"accept": None}]},
        {"chain": "input", "expr": [_COUNTER, {"drop": None}]},
        {"chain": "plain", "expr": [{"return": None}]},
    ],
)


def own_table(nftables: Nftables) -> list[dict[str, Any]] | None:
    return nftables.table(Context(), "ip6", "own")


def foreign_table(nftables: Nftables) -> list[dict[str, Any]] | None:
    return nftables.table(Context(), "inet", "foreign")


class NftablesContract:
    """The promises of `Nftables`. The fixture `nftables` of a subclass has an empty ruleset."""

    @pytest.fixture
    def loaded(self, nftables: Nftables) -> Nftables:
        """The same ruleset with two tables: one as of hostrouting, and one as of another program."""
        nftables.load(Context(), _FOREIGN + _OWN)
        return nftables

    def test_what_was_loaded_is_listed(self, loaded: Nftables) -> None:
        """A loaded table is listed with its chains, its rules in order and their comments, without
        handles and counts.

        A table of another family may have another policy, and a chain without a hook.
        """
        assert own_table(loaded) == _OWN_LISTED
        assert foreign_table(loaded) == _FOREIGN_LISTED

    def test_an_absent_table_is_none(self, nftables: Nftables) -> None:
        """An absent table reads as none, as does the name of a table of another family."""
        assert own_table(nftables) is None
        nftables.load(Context(), _OWN)
        assert nftables.table(Context(), "ip", "own") is None
        assert nftables.table(Context(), "ip6", "our") is None

    @pytest.mark.parametrize("name", ["a b", "a; flush ruleset", "", "-h", "a\nflush ruleset", "4"])
    def test_no_name_is_more_than_a_name(self, loaded: Nftables, name: str) -> None:
        """A name that nft would read as more than a name is refused, and changes nothing."""
        with pytest.raises(BackendError, match="is not a table of nft"):
            loaded.table(Context(), "ip6", name)
        assert own_table(loaded) == _OWN_LISTED

    def test_defining_again_after_deleting_does_not(self, loaded: Nftables) -> None:
        """A script that declares, deletes and defines a table leaves no duplicates, and changes no
        other table.
        """
        loaded.load(Context(), _OWN)
        assert own_table(loaded) == _OWN_LISTED
        assert foreign_table(loaded) == _FOREIGN_LISTED

    def test_a_deleted_table_is_gone(self, loaded: Nftables) -> None:
        """A script that declares and deletes a table removes the table, also if it is absent, and
        leaves other tables as they are.
        """
        for _ in range(2):
            loaded.load(Context(), "table ip6 own\ndelete table ip6 own")
            assert own_table(loaded) is None
        assert foreign_table(loaded) == _FOREIGN_LISTED

    @pytest.mark.parametrize(
        ("script", "expected"),
        [(_OWN, _OWN_LISTED), ("delete table ip6 own", None), ("flush ruleset", None)],
    )
    def test_a_table_with_flags_is_there_and_no_more(
        self, loaded: Nftables, script: str, expected: object
    ) -> None:
        """A table with flags is listed by its name alone, and is replaced and deleted as any
        table.
        """
        loaded.load(Context(), "table ip6 own {\nflags dormant\n}")
        assert own_table(loaded) == _UNREADABLE
        loaded.load(Context(), script)
        assert own_table(loaded) == expected

    @pytest.mark.parametrize(
        "mistake",
        ["bogus", "delete table ip6 absent", "table ip6 own {\n chain a {\n accept\n }\n"],
    )
    def test_a_refused_script_changes_nothing(self, loaded: Nftables, mistake: str) -> None:
        """A script with a mistake in its last line is refused by `check` and by `load`, and the
        lines before it change nothing.
        """
        for refused_by in (loaded.check, loaded.load):
            with pytest.raises(BackendError):
                refused_by(Context(), f"table ip6 before\ndelete table inet foreign\n{mistake}\n")
            assert loaded.table(Context(), "ip6", "before") is None
            assert foreign_table(loaded) == _FOREIGN_LISTED

    def test_checking_changes_nothing(self, loaded: Nftables) -> None:
        """A script that `check` accepts does not take effect."""
        for script in ("table ip6 before", "delete table ip6 own"):
            loaded.check(Context(), script)
        assert loaded.table(Context(), "ip6", "before") is None
        assert own_table(loaded) == _OWN_LISTED

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
                change(over, _OWN)
        with pytest.raises(CancelledError, match="maintenance"):
            nftables.table(over, "ip6", "own")
        assert own_table(nftables) is None
