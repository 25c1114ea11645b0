"""The packet rules: a frozen value, its nft script, the effect of a table that nft lists, and the boot files.

The boot files are the script, its unit, and a drop-in that makes AgentBaker's unit load it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from hostrouting.boot import SCRIPT_DIRECTORY, UNIT_DIRECTORY, BootTemplate
from hostrouting.config import ProbeSNATConfig
from hostrouting.net.addresses import check_device_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.boot import BootUnit
    from hostrouting.host import FileStore

__all__ = [
    "AGAIN_PATH",
    "DEPARTURE",
    "FAMILY",
    "RULESET_PATH",
    "TABLE",
    "TABLE_NAME",
    "ProbeRules",
    "boot_unit",
    "delete_script",
    "effect_of",
    "is_installed",
    "render",
]

FAMILY: Final = "ip6"
#: Upstream's name: a node that has its table gets the rules of hostrouting in it.
TABLE_NAME: Final = "azureSLBProbe"
#: The name in messages.
TABLE: Final = f"nft table {FAMILY} {TABLE_NAME}"

RULESET_PATH: Final = f"{SCRIPT_DIRECTORY}/probe-snat.nft"
#: A drop-in for AgentBaker's unit, which fills the same table. It is no gate's, so it has another name than theirs.
AGAIN_PATH: Final = f"{UNIT_DIRECTORY}/ipv6_nftables.service.d/10-probe-snat.conf"

_REQUIRED: Final = ("Before=hostrouting-ready.service\n", "RequiredBy=hostrouting-ready.service\n")
_OPTIONAL: Final = (
    "# No Before= and no RequiredBy=: probes are not worth a node that does not start.\n",
    "WantedBy=hostrouting-ready.service\n",
)
_TEMPLATE: Final = BootTemplate("probe-snat", "probe-snat.nft", __file__, {AGAIN_PATH: "ipv6_nftables.conf"})
DEPARTURE: Final = _TEMPLATE.departure

#: Before connection tracking, which is at -200.
_PRIORITY: Final = -300
#: ICMPv6 130 to 137, and 143; in the order in which nft prints them.
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
#: Without these IPv6 fails sooner or later, even if all other packets are right.
_NEEDED: Final = frozenset({"nd-router-advert", "nd-neighbor-solicit", "nd-neighbor-advert"})
#: The reason for each rule, for readers of the live ruleset, which keeps these comments and no others.
_COMMENTS: Final = {
    "KEPT_IN": "neighbour discovery and multicast groups need their link-local sources",
    "REWRITTEN": "a router may not forward a link-local source",
    "KEPT_OUT": "neighbour discovery and multicast groups stay as they are",
    "RESTORED": "the load balancer awaits replies at its link-local address",
}


@attrs.frozen(kw_only=True)
class ProbeRules:
    """The values of the rules: probes that come in by `dev` from `source` get `address` instead.

    >>> ProbeRules(dev="eth0", source="fe80::1", address="2001:db8::1").dev
    'eth0'
    >>> ProbeRules(dev="eth*", source="fe80::1", address="2001:db8::1")
    Traceback (most recent call last):
    ValueError: 'eth*' is not a device name: '*' is not allowed in it
    """

    dev: str
    source: str
    address: str

    @classmethod
    def of(cls, section: ProbeSNATConfig, dev: str) -> ProbeRules:
        """Return the rules that a config asks for on a device."""
        return cls(dev=dev, source=section.source, address=section.address)

    def __attrs_post_init__(self) -> None:
        """Refuse values that the config would refuse, such as a device whose name nft would misread."""
        check_device_name(self.dev)
        ProbeSNATConfig(source=self.source, address=self.address)


def render(rules: ProbeRules) -> str:
    """Return the nft script: one transaction that ends in these rules, whatever the table has before."""
    text = _TEMPLATE.read_script()
    values = {"SOURCE": rules.source, "ADDRESS": rules.address, **_COMMENTS}
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    # Last, because a device may have the name of a placeholder.
    return text.replace("@DEV@", rules.dev)


def delete_script() -> str:
    """Return the nft script that deletes the table, if there is one.

    >>> print(delete_script(), end="")
    table ip6 azureSLBProbe
    delete table ip6 azureSLBProbe
    """
    return f"table {FAMILY} {TABLE_NAME}\ndelete table {FAMILY} {TABLE_NAME}\n"


def effect_of(listing: Sequence[dict[str, Any]] | None) -> ProbeRules | None:
    """Return the rules that have the effect of a listing of `Nftables.table`; None if there are none.

    Such a table rewrites both ways at the same priority, on one device, and spares at least the messages that keep IPv6
    alive. It may be written differently from ours: AgentBaker's images fill such a table.
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
    """Return a rule's expressions without counters; for a spared packet `accept` and `return` mean the same."""
    return [{"return": None} if one == {"accept": None} else one for one in rule["expr"] if one != {"counter": None}]


def _spared_types(expressions: list[dict[str, Any]], dev: dict[str, Any]) -> frozenset[str] | None:
    """Return the types of ICMPv6 messages that a rule spares; None if it does anything else."""
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
    """Return the rules made of the values in a listing, in whatever expressions they are."""
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
    """Yield the comparisons of the rules: a name of meta data or a field of the packet, and the value."""
    for entry in listing:
        for expression in entry.get("rule", {}).get("expr", []):
            match expression:
                case {"match": {"left": {"meta": {"key": field}} | {"payload": {"field": field}}, "right": value}}:
                    yield field, value


def _chain(name: str) -> dict[str, Any]:
    hook = {"type": "filter", "hook": name, "prio": _PRIORITY, "policy": "accept"}
    return {"chain": {"family": FAMILY, "table": TABLE_NAME, "name": name, **hook}}


def _rewrite(field: str, before: str, after: str) -> tuple[dict[str, Any], dict[str, Any]]:
    where = _payload("ip6", field)
    return _match(where, before), {"mangle": {"key": where, "value": after}}


def _meta(key: str, dev: str) -> dict[str, Any]:
    return _match({"meta": {"key": key}}, dev)


def _payload(protocol: str, field: str) -> dict[str, Any]:
    return {"payload": {"protocol": protocol, "field": field}}


def _match(left: dict[str, Any], right: object) -> dict[str, Any]:
    return {"match": {"op": "==", "left": left, "right": right}}


# --- boot files


def is_installed(files: FileStore) -> bool:
    """Return True if any of the files exists."""
    return any(files.exists(path) for path in DEPARTURE.paths)


def boot_unit(rules: ProbeRules, *, required: bool = False) -> BootUnit:
    """Return the unit and its files for these rules; gates wait for the unit only if it is `required`."""
    order, install = _REQUIRED if required else _OPTIONAL
    return _TEMPLATE.fill(render(rules).encode(), ORDER=order, INSTALL=install)
