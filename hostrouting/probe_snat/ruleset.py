"""The packet rules: a frozen value, the nft script that brings them about, and what nft shows of them; pure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from hostrouting.config import ProbeSNATConfig
from hostrouting.net.addresses import check_device_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "FAMILY",
    "TABLE",
    "TABLE_NAME",
    "ProbeRules",
    "delete_script",
    "effect_of",
    "expected_listing",
    "render",
    "rules_in",
]

FAMILY: Final = "ip6"
#: As upstream calls it: a node that has its table is brought to ours.
TABLE_NAME: Final = "azureSLBProbe"
#: How people call it.
TABLE: Final = f"nft table {FAMILY} {TABLE_NAME}"

_ASSET: Final = Path(__file__).parent / "assets" / "probe-snat.nft"
#: Before connection tracking, which is at -200.
_PRIORITY: Final = -300
#: ICMPv6 130 to 137, and 143; in the order in which nft shows them.
_OF_THE_LINK: Final = (
    "mld-listener-query",
    "mld-listener-report",
    "mld-listener-done",
    "nd-router-solicit",
    "nd-router-advert",
    "nd-neighbor-solicit",
    "nd-neighbor-advert",
    "nd-redirect",
    "mld2-listener-report",
)
#: Without these IPv6 dies sooner or later, though the source be rewritten in all other packets.
_NEEDED: Final = frozenset({"nd-router-advert", "nd-neighbor-solicit", "nd-neighbor-advert"})
#: Why each rule is there, for those who read the live ruleset, which keeps these and no others.
_COMMENTS: Final = {
    "KEPT_IN": "neighbour discovery and multicast groups need their link-local sources",
    "REWRITTEN": "a router may not forward a link-local source",
    "KEPT_OUT": "neighbour discovery and multicast groups stay as they are",
    "RESTORED": "the load balancer awaits replies at its link-local address",
}


@attrs.frozen(kw_only=True)
class ProbeRules:
    """What the rules are made of: probes that come in by `dev` from `source` get `address` instead.

    >>> ProbeRules(dev="eth0", source="fe80::1", address="2001:db8::1").dev
    'eth0'
    >>> ProbeRules(dev="eth*", source="fe80::1", address="2001:db8::1")
    Traceback (most recent call last):
    ValueError: 'eth*' is not a device name: '*' is not allowed in it
    """

    dev: str
    source: str
    address: str

    def __attrs_post_init__(self) -> None:
        """Refuse what the config would, also of a device that the kernel named: to nft a quote, say, is no letter."""
        check_device_name(self.dev)
        ProbeSNATConfig(source=self.source, address=self.address)


def render(rules: ProbeRules) -> str:
    """The nft script, one transaction that ends in these rules from wherever the table is; same rules, same text."""
    text = _ASSET.read_text(encoding="utf-8")
    values = {"SOURCE": rules.source, "ADDRESS": rules.address, **_COMMENTS}
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    # Last, for a device may be called as a placeholder.
    return text.replace("@DEV@", rules.dev)


def delete_script() -> str:
    """The nft script that takes the table away, also where there is none.

    >>> print(delete_script(), end="")
    table ip6 azureSLBProbe
    delete table ip6 azureSLBProbe
    """
    return f"table {FAMILY} {TABLE_NAME}\ndelete table {FAMILY} {TABLE_NAME}\n"


def expected_listing(rules: ProbeRules) -> list[dict[str, Any]]:
    """What `Nftables.table` shows when exactly these rules are in force."""
    inward = _meta("iifname", rules.dev)
    outward = _meta("oifname", rules.dev)
    return [
        {"table": {"family": FAMILY, "name": TABLE_NAME}},
        _chain("prerouting"),
        _chain("postrouting"),
        _rule("prerouting", "KEPT_IN", inward, _of_the_link(), {"return": None}),
        _rule("prerouting", "REWRITTEN", inward, *_rewrite("saddr", rules.source, rules.address)),
        _rule("postrouting", "KEPT_OUT", outward, _of_the_link(), {"return": None}),
        _rule("postrouting", "RESTORED", outward, *_rewrite("daddr", rules.address, rules.source)),
    ]


def rules_in(listing: Sequence[dict[str, Any]]) -> ProbeRules | None:
    """The rules behind what nft shows; None unless they are, in every detail, ours.

    >>> rules = ProbeRules(dev="eth0", source="fe80::1", address="2001:db8::1")
    >>> rules_in(expected_listing(rules)) == rules, rules_in(expected_listing(rules)[:-1])
    (True, None)
    """
    rules = _named(listing)
    return rules if rules is not None and list(listing) == expected_listing(rules) else None


def effect_of(listing: Sequence[dict[str, Any]] | None) -> ProbeRules | None:
    """The rules that have the effect of what nft shows, be it written otherwise; None where there are none.

    Such a table rewrites both ways at the same priority, on one device, and spares at least what keeps IPv6 alive; the
    one that AgentBaker's images fill is of that sort.

    >>> rules = ProbeRules(dev="eth0", source="fe80::1", address="2001:db8::1")
    >>> effect_of(expected_listing(rules)) == rules
    True
    """
    rules = _named(listing or ())
    if rules is None or any(entry.keys().isdisjoint({"table", "chain", "rule"}) for entry in listing or ()):
        return None
    chains = {entry["chain"]["name"]: entry["chain"] for entry in listing or () if "chain" in entry}
    written = [(entry["rule"]["chain"], _effective(entry["rule"])) for entry in listing or () if "rule" in entry]
    inward, outward = _meta("iifname", rules.dev), _meta("oifname", rules.dev)
    wanted = {
        "prerouting": ([inward, *_rewrite("saddr", rules.source, rules.address)], inward, _NEEDED),
        "postrouting": ([outward, *_rewrite("daddr", rules.address, rules.source)], outward, frozenset()),
    }
    hooks = {chain.get("hook"): name for name, chain in chains.items()}
    if len(chains) != len(wanted) or hooks.keys() != wanted.keys():
        return None
    for hook, (rewrite, match, needed) in wanted.items():
        chain = {**chains[hooks[hook]], "name": hook}
        *spared, last = [expressions for name, expressions in written if name == hooks[hook]] or [[]]
        types = [_spared_types(expressions, match) for expressions in spared]
        known = {one for some in types for one in some or ()}
        if {"chain": chain} != _chain(hook) or last != rewrite or None in types or not needed <= known:
            return None
    return rules


def _effective(rule: dict[str, Any]) -> list[dict[str, Any]]:
    """What a rule does, without what it counts; what becomes of a packet that is spared is the same either way."""
    return [{"return": None} if one == {"accept": None} else one for one in rule["expr"] if one != {"counter": None}]


def _spared_types(expressions: list[dict[str, Any]], dev: dict[str, Any]) -> frozenset[str] | None:
    """The types of ICMPv6 messages that a rule spares; None if it does something else."""
    match expressions[1:] if expressions[:1] == [dev] else expressions:
        case [{"match": {"op": "==", "left": left, "right": right}}, {"return": None}]:
            types = right.get("set") if isinstance(right, dict) else [right]
            if (
                left == _payload("icmpv6", "type")
                and isinstance(types, list)
                and set(map(str, types)) <= {*_OF_THE_LINK}
            ):
                return frozenset(map(str, types))
    return None


def _named(listing: Sequence[dict[str, Any]]) -> ProbeRules | None:
    """The rules of the names that are in a listing, whatever is done with them."""
    found: dict[object, object] = {}
    for field, value in _matches(listing):
        found.setdefault(field, value)
    values = [found.get(field) for field in ("iifname", "saddr", "daddr")]
    if not all(isinstance(value, str) for value in values):
        return None
    dev, source, address = map(str, values)
    try:
        return ProbeRules(dev=dev, source=source, address=address)
    except ValueError:
        return None


def _matches(listing: Sequence[dict[str, Any]]) -> Iterator[tuple[object, object]]:
    """What the rules compare with what: a name of meta data or a field of the packet, and the value."""
    for entry in listing:
        for expression in entry.get("rule", {}).get("expr", []):
            match expression:
                case {"match": {"left": {"meta": {"key": field}} | {"payload": {"field": field}}, "right": value}}:
                    yield field, value


def _chain(name: str) -> dict[str, Any]:
    hook = {"type": "filter", "hook": name, "prio": _PRIORITY, "policy": "accept"}
    return {"chain": {"family": FAMILY, "table": TABLE_NAME, "name": name, **hook}}


def _rule(chain: str, comment: str, *expressions: dict[str, Any]) -> dict[str, Any]:
    *matches, verdict = expressions
    place = {"family": FAMILY, "table": TABLE_NAME, "chain": chain}
    return {"rule": {**place, "comment": _COMMENTS[comment], "expr": [*matches, {"counter": None}, verdict]}}


def _rewrite(field: str, before: str, after: str) -> tuple[dict[str, Any], dict[str, Any]]:
    where = _payload("ip6", field)
    return _match(where, before), {"mangle": {"key": where, "value": after}}


def _of_the_link() -> dict[str, Any]:
    return _match(_payload("icmpv6", "type"), {"set": list(_OF_THE_LINK)})


def _meta(key: str, dev: str) -> dict[str, Any]:
    return _match({"meta": {"key": key}}, dev)


def _payload(protocol: str, field: str) -> dict[str, Any]:
    return {"payload": {"protocol": protocol, "field": field}}


def _match(left: dict[str, Any], right: object) -> dict[str, Any]:
    return {"match": {"op": "==", "left": left, "right": right}}
