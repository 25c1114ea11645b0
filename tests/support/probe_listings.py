"""The listing that nft prints for the rules of the probes, written out here and not taken from the
product.
"""

from typing import Any

from host.contracts.nftables import device, hook, listing, match, payload, rewriting

from hostrouting.azure.probe_snat.ruleset import ProbeRules, effect_of

#: In the order in which nft prints them.
_OF_THE_LINK = [
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
    kept = [
        match(payload("icmpv6", "type"), {"set": _OF_THE_LINK}),
        {"counter": None},
        {"return": None},
    ]
    inward, outward = (device(key, rules.dev) for key in ("iifname", "oifname"))
    written = {
        "neighbour discovery and multicast groups need their link-local sources": [inward, *kept],
        "a router may not forward a link-local source": [
            inward,
            *rewriting("saddr", rules.source, rules.address),
        ],
        "neighbour discovery and multicast groups stay as they are": [outward, *kept],
        "the load balancer awaits replies at its link-local address": [
            outward,
            *rewriting("daddr", rules.address, rules.source),
        ],
    }
    return listing(
        "ip6",
        "azureSLBProbe",
        {name: hook(name, -300, "accept") for name in ("prerouting", "postrouting")},
        [
            {
                "chain": "prerouting" if words[0] == inward else "postrouting",
                "comment": comment,
                "expr": words,
            }
            for comment, words in written.items()
        ],
    )


def rules_in(listed: list[dict[str, Any]]) -> ProbeRules | None:
    """Return the rules of a listing; None unless the listing is, in every detail, that of
    hostrouting.
    """
    rules = effect_of(listed)
    return rules if rules is not None and listed == expected_listing(rules) else None
