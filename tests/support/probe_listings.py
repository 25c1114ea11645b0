"""The listing that nft prints for the rules of the probes, written out here and not taken from the product."""

from typing import Any, Final

from hostrouting.azure.probe_snat.ruleset import ProbeRules, effect_of

_TABLE: Final = {"family": "ip6", "table": "azureSLBProbe"}
#: In the order in which nft prints them.
_OF_THE_LINK: Final = [
    "mld-listener-query",
    "mld-listener-report",
    "mld-listener-done",
    "nd-router-solicit",
    "nd-router-advert",
    "nd-neighbor-solicit",
    "nd-neighbor-advert",
    "nd-redirect",
    "mld2-listener-report",
]


def expected_listing(rules: ProbeRules) -> list[dict[str, Any]]:
    """Return the listing of `Nftables.table` for exactly these rules."""
    inward, outward = {"meta": {"key": "iifname"}}, {"meta": {"key": "oifname"}}
    kept = [_match(_field("icmpv6", "type"), {"set": _OF_THE_LINK})]
    return [
        {"table": {"family": "ip6", "name": "azureSLBProbe"}},
        _chain("prerouting"),
        _chain("postrouting"),
        _rule(
            "prerouting",
            "neighbour discovery and multicast groups need their link-local sources",
            [_match(inward, rules.dev), *kept],
            {"return": None},
        ),
        _rule(
            "prerouting",
            "a router may not forward a link-local source",
            [_match(inward, rules.dev), _match(_field("ip6", "saddr"), rules.source)],
            {"mangle": {"key": _field("ip6", "saddr"), "value": rules.address}},
        ),
        _rule(
            "postrouting",
            "neighbour discovery and multicast groups stay as they are",
            [_match(outward, rules.dev), *kept],
            {"return": None},
        ),
        _rule(
            "postrouting",
            "the load balancer awaits replies at its link-local address",
            [_match(outward, rules.dev), _match(_field("ip6", "daddr"), rules.address)],
            {"mangle": {"key": _field("ip6", "daddr"), "value": rules.source}},
        ),
    ]


def rules_in(listing: list[dict[str, Any]]) -> ProbeRules | None:
    """Return the rules of a listing; None unless the listing is, in every detail, that of hostrouting."""
    rules = effect_of(listing)
    return rules if rules is not None and listing == expected_listing(rules) else None


def _chain(name: str) -> dict[str, Any]:
    return {"chain": {**_TABLE, "name": name, "type": "filter", "hook": name, "prio": -300, "policy": "accept"}}


def _rule(chain: str, comment: str, matches: list[dict[str, Any]], verdict: dict[str, Any]) -> dict[str, Any]:
    return {"rule": {**_TABLE, "chain": chain, "comment": comment, "expr": [*matches, {"counter": None}, verdict]}}


def _match(left: dict[str, Any], right: object) -> dict[str, Any]:
    return {"match": {"op": "==", "left": left, "right": right}}


def _field(protocol: str, field: str) -> dict[str, Any]:
    return {"payload": {"protocol": protocol, "field": field}}
