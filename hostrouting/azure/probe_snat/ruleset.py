"""The packet rules as a value, as an nft script, and as the effect of a table; and the boot files.

The boot files are the script, its unit, and a drop-in that makes AgentBaker's unit load the script
again.
"""

from __future__ import annotations

import functools
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from hostrouting.boot.layout import BootTemplate, BootUnit
from hostrouting.config.optional import ProbeSNATConfig
from hostrouting.net.addresses import check_device_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FAMILY: Final = "ip6"
#: Upstream's name, so that our rules replace the table that upstream left.
TABLE_NAME: Final = "azureSLBProbe"
#: How messages call it.
TABLE: Final = f"nft table {FAMILY} {TABLE_NAME}"

RULESET_PATH, AGAIN_PATH = ProbeSNATConfig.files

_REQUIRED = ("Before=hostrouting-ready.service\n", "RequiredBy=hostrouting-ready.service\n")
_OPTIONAL = (
    "# No Before= and no RequiredBy=, so that a failure does not prevent the node from starting.\n",
    "WantedBy=hostrouting-ready.service\n",
)
_TEMPLATE = BootTemplate(
    "probe-snat", "probe-snat.nft", __file__, {AGAIN_PATH: "ipv6_nftables.conf"}
)
REMOVAL: Final = _TEMPLATE.removal

_HOOKS = ("prerouting", "postrouting")
#: Without these, IPv6 fails sooner or later.
_NEEDED = frozenset({"nd-router-advert", "nd-neighbor-solicit", "nd-neighbor-advert"})
#: ICMPv6 130 to 137, and 143.
_OF_THE_LINK = _NEEDED | {
    "mld-listener-query",
    "mld-listener-report",
    "mld-listener-done",
    "nd-router-solicit",
    "nd-redirect",
    "mld2-listener-report",
}

#: The line of a script that contains all values.
_REWRITING = re.compile(
    r'^[ \t]*iifname "(?P<dev>[^"\n]+)" ip6 saddr (?P<source>\S+) counter '
    r"ip6 saddr set (?P<address>\S+)",
    re.MULTILINE,
)

_Expressions: TypeAlias = list[dict[str, Any]]


@attrs.frozen(kw_only=True)
class ProbeRules:
    """The values of the rules: probes through `dev` from `source` get the source `address` instead.

    >>> ProbeRules(dev="eth0", source="fe80::1", address="2001:db8::1").dev
    'eth0'
    >>> ProbeRules(dev="eth*", source="fe80::1", address="2001:db8::1")
    Traceback (most recent call last):
    ValueError: 'eth*' is not a device name: '*' is not allowed; see: ip link
    """

    dev: str
    source: str
    address: str

    @classmethod
    def of(cls, section: ProbeSNATConfig, dev: str) -> ProbeRules:
        """Return the rules of a config for a device."""
        return cls(dev=dev, source=section.source, address=section.address)

    def __attrs_post_init__(self) -> None:
        """Refuse what the config would refuse, such as a device name that nft would misread."""
        check_device_name(self.dev)
        ProbeSNATConfig(source=self.source, address=self.address)

    def __str__(self) -> str:
        """Describe the effect of these rules."""
        return f"it rewrites {self.source} to {self.address} on {self.dev}"


@functools.cache
def template() -> str:
    """Return the nft script with placeholders; read once, since a watch may outlive the file."""
    return _TEMPLATE.read_script().decode()


def render(rules: ProbeRules) -> str:
    """Return an nft script that replaces the table with these rules in one transaction."""
    text = template().replace("@SOURCE@", rules.source).replace("@ADDRESS@", rules.address)
    # Last, because a device may be named like a placeholder.
    return text.replace("@DEV@", rules.dev)


def parse(script: str) -> ProbeRules | None:
    """Return the rules in a script that `render` wrote; None for any other text.

    >>> parse(render(ProbeRules(dev="eth0", source="fe80::1", address="2001:db8::1")))
    ProbeRules(dev='eth0', source='fe80::1', address='2001:db8::1')
    >>> parse(delete_script()) is None
    True
    """
    if values := _REWRITING.search(script):
        with suppress(ValueError):
            return ProbeRules(**values.groupdict())
    return None


def delete_script() -> str:
    """Return an nft script that deletes the table if it exists.

    >>> print(delete_script(), end="")
    # Installed by hostrouting, for a removal.
    table ip6 azureSLBProbe
    delete table ip6 azureSLBProbe
    """
    head = "# Installed by hostrouting, for a removal.\n"
    return f"{head}table {FAMILY} {TABLE_NAME}\ndelete table {FAMILY} {TABLE_NAME}\n"


def effect_of(listing: Sequence[dict[str, Any]]) -> ProbeRules | None:
    """Return the rules with the same effect as a listing of `Nftables.table`, or None.

    Such a table rewrites in both directions at the same priority, on one device, and exempts at
    least the messages that IPv6 needs. Its text may differ from that of `render`, as in
    AgentBaker's images.
    """
    chains = {entry["chain"].get("hook"): entry["chain"] for entry in listing if "chain" in entry}
    written = [entry["rule"] for entry in listing if "rule" in entry]
    # Only the table, two chains and their rules are allowed; the names of the chains do not matter.
    is_all = len(listing) == 1 + len(_HOOKS) + len(written)
    if not is_all or not all(_is_at(hook, chains.get(hook, {})) for hook in _HOOKS):
        return None
    inward = _rules_in(chains["prerouting"], written)
    outward = _rules_in(chains["postrouting"], written)
    rules = _rewriting(inward)
    if rules is None:
        return None
    spared = _spared(inward, _rewrite("iifname", rules.dev, "saddr", rules.source, rules.address))
    back = _spared(outward, _rewrite("oifname", rules.dev, "daddr", rules.address, rules.source))
    if spared is None or back is None or not spared >= _NEEDED:
        return None
    return rules


def _is_at(hook: str, chain: dict[str, Any]) -> bool:
    """Return True if a chain, apart from its name, is what `render` writes for a hook."""
    return {**chain, "name": hook} == {
        "family": FAMILY,
        "table": TABLE_NAME,
        "name": hook,
        "type": "filter",
        "hook": hook,
        # Before connection tracking, which is at -200.
        "prio": -300,
        "policy": "accept",
    }


def _rules_in(chain: dict[str, Any], written: Iterable[dict[str, Any]]) -> list[_Expressions]:
    """Return the effective expressions of each rule of a chain."""
    return [_effective(rule) for rule in written if rule["chain"] == chain["name"]]


def _effective(rule: dict[str, Any]) -> _Expressions:
    """Return a rule's expressions without counters, and with `return` instead of `accept`.

    For an exempted packet both mean the same.
    """
    effective: _Expressions = []
    for expression in rule["expr"]:
        if expression == {"accept": None}:
            effective.append({"return": None})
        elif expression != {"counter": None}:
            effective.append(expression)
    return effective


def _rewriting(inward: Sequence[_Expressions]) -> ProbeRules | None:
    """Return the rules made from the values in the last rule of a chain."""
    match inward[-1:]:
        case [
            [
                {"match": {"right": str(dev)}},
                {"match": {"right": str(source)}},
                {"mangle": {"value": str(address)}},
            ]
        ]:
            with suppress(ValueError):
                return ProbeRules(dev=dev, source=source, address=address)
    return None


def _spared(written: Sequence[_Expressions], rewrite: _Expressions) -> frozenset[str] | None:
    """Return the types of ICMPv6 messages that a chain exempts before it rewrites.

    Return None if it does anything else.
    """
    *exemptions, last = written or [[]]
    if last != rewrite:
        return None
    spared = frozenset[str]()
    for expressions in exemptions:
        # For the device, or for all devices.
        match [expression for expression in expressions if expression != rewrite[0]]:
            case [{"match": {"op": "==", "left": left, "right": right}}, {"return": None}]:
                is_set = isinstance(right, dict) and isinstance(right.get("set"), list)
                types = frozenset(map(str, right["set"] if is_set else [right]))
                if left != _payload("icmpv6", "type") or not types or types - _OF_THE_LINK:
                    return None
                spared |= types
            case _:
                return None
    return spared


def _rewrite(key: str, dev: str, field: str, before: str, after: str) -> _Expressions:
    where = _payload("ip6", field)
    return [
        _match({"meta": {"key": key}}, dev),
        _match(where, before),
        {"mangle": {"key": where, "value": after}},
    ]


def _payload(protocol: str, field: str) -> dict[str, Any]:
    return {"payload": {"protocol": protocol, "field": field}}


def _match(left: dict[str, Any], right: str) -> dict[str, Any]:
    return {"match": {"op": "==", "left": left, "right": right}}


# --- boot files


def boot_unit(rules: ProbeRules, *, required: bool = False) -> BootUnit:
    """Return the unit and its files for these rules; gates wait only for a `required` unit."""
    order, install = _REQUIRED if required else _OPTIONAL
    return _TEMPLATE.fill(render(rules).encode(), ORDER=order, INSTALL=install)
