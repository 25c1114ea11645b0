"""The proof of IPv6, and of both families, agrees with an oracle that looks up address by
address.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import random
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from support.egress_oracle import answers_of_kernel
from support.examples import FEW
from support.ipv6_decisions import Decision, each_decision, two_links
from support.ipv6_worlds import DEVICES, IPv6World, arranged, ipv6_worlds, mixed_worlds
from support.kernel import kernel_of, needs_kernel
from support.overlap_proofs import told_alike
from support.routers import WiredNode

from hostrouting import OverlapReport, explain_routing, prove_egress
from hostrouting.fib import Fib, UnknownDecisionError

_REFUSALS = {
    # Of a question that is well-formed. A rule refuses by the same numbers.
    "Invalid argument": "blackhole",
    "No route to host": "unreachable",
    "Permission denied": "prohibit",
    "Network is unreachable": "no-route",
}
_HIGHEST = (1 << 128) - 1


class Way(NamedTuple):
    """The kind of the decision: `unicast`, `local`, `anycast`, a refusal, or `no-route`; and the devices by
    which it may leave.

    These are the devices of every next hop of every route that is equal to the deciding one.
    """

    kind: str
    devs: tuple[str, ...] = ()


class _Question(NamedTuple):
    address: int
    source: str | None = None
    oif: str | None = None
    fibmatch: bool = True

    def __str__(self) -> str:
        words = [
            "route get",
            *(["fibmatch"] if self.fibmatch else []),
            str(ipaddress.IPv6Address(self.address)),
        ]
        words += ["from", self.source] if self.source else []
        words += ["oif", self.oif] if self.oif else []
        return " ".join(words)


class IPv6Oracle:
    """Query the kernel of a namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._random = random.Random(0)

    def places(self, cidr: str) -> list[int]:
        """Return each address of a CIDR at which an answer may change, the address before it, and
        random ones.
        """
        network = ipaddress.IPv6Network(cidr)
        first, last = int(network[0]), int(network[-1])
        found = {first, last} | {self._random.randint(first, last) for _ in range(200)}
        for begin, end in self._edges():
            found |= {place for place in (begin - 1, begin, end, end + 1) if first <= place <= last}
        return sorted(found)

    def ways(
        self, addresses: Sequence[int], sources: Sequence[str | None] | None = None
    ) -> list[Way]:
        """Return the way of a packet to each address: from its source, or while it has none yet."""
        given = sources or [None] * len(addresses)
        questions = list(map(_Question, addresses, given))
        decided = self._query(questions)
        ways_out = [
            at for at, answer in enumerate(decided) if answer.get("type", "unicast") == "unicast"
        ]
        devs = self._devices()
        # The kernel shows one of several equal routes; a lookup by the device of each shows
        # that one.
        equal = iter(
            self._query([questions[at]._replace(oif=dev) for at in ways_out for dev in devs])
        )
        found = [
            Way(str(answer["type"]), _devs([answer])) if "type" in answer else Way("")
            for answer in decided
        ]
        for at in ways_out:
            others = [
                answer
                for answer in itertools.islice(equal, len(devs))
                if _is_equal(decided[at], answer)
            ]
            found[at] = Way("unicast", _devs([decided[at], *others]))
        return found

    def sources(self, addresses: Sequence[int], ways: Sequence[Way]) -> list[set[str]]:
        """Return the sources from which a packet to each address may go.

        That is the kernel's choice, and each global address of the devices by which it leaves that
        is not deprecated.
        """
        held: dict[str | None, set[str]] = {}
        for link in self._show("address", "show", "scope", "global"):
            # `ip` leaves an empty object for each address of another scope.
            usable = (
                one
                for one in link.get("addr_info", [])
                if one and not {"deprecated", "tentative"} & set(one)
            )
            held[link.get("ifname")] = {one["local"] for one in usable}
        chosen = self._query([_Question(address, fibmatch=False) for address in addresses])
        return [
            {source for source in [answer.get("prefsrc")] if source}.union(
                *(held.get(dev, ()) for dev in way.devs)
            )
            for answer, way in zip(chosen, ways, strict=True)
        ]

    def all_ways(self, addresses: Sequence[int]) -> list[set[Way]]:
        """Return the ways of each address: without a source, and from each that it may have."""
        plain = self.ways(addresses)
        packets = [
            (at, source)
            for at, some in enumerate(self.sources(addresses, plain))
            if plain[at].devs
            for source in sorted(some)
        ]
        found = [{way} for way in plain]
        bound = (
            self.ways([addresses[at] for at, _ in packets], [source for _, source in packets])
            if packets
            else []
        )
        for (at, _), way in zip(packets, bound, strict=True):
            found[at].add(way)
        return found

    def _edges(self) -> set[tuple[int, int]]:
        texts = {route["dst"] for route in self._show("route", "show", "table", "all")}
        for rule in self._show("rule", "show"):
            texts |= {f"{rule['dst']}/{rule.get('dstlen', 128)}"} if "dst" in rule else set()
        # The prefix of a rule keeps the bits behind it.
        networks = [
            ipaddress.IPv6Network("::/0" if text == "default" else text, strict=False)
            for text in texts
        ]
        return {(int(network[0]), min(int(network[-1]), _HIGHEST - 1)) for network in networks}

    def _devices(self) -> list[str]:
        return [
            link["ifname"] for link in self._show("link", "show", "up") if link["ifname"] != "lo"
        ]

    def _show(self, *words: str) -> list[dict[str, Any]]:
        argv = ["ip", "-n", self._namespace, "-6", "-j", *words]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        # It leaves an empty object for each thing that it was not to show.
        return [one for one in json.loads(shown or "[]") if one]

    def _query(self, questions: Sequence[_Question]) -> list[dict[str, Any]]:
        """One object for each question; that of a refusal has its `type` alone."""
        found: list[dict[str, Any]] = [
            {"type": _REFUSALS[answer["error"]]} if "error" in answer else answer
            for answer in answers_of_kernel(self._namespace, "-6", list(map(str, questions)))
        ]
        # Of a route by several next hops an answer shows the preference of the one that it picked,
        # a table that of all.
        if any("nexthops" in one for one in found):
            rows = {
                _whole(row): row.get("pref") for row in self._show("route", "show", "table", "all")
            }
            for one in found:
                if "nexthops" in one:
                    one["pref"] = rows.get(_whole(one), one.get("pref"))
        return found


def _whole(route: dict[str, Any]) -> tuple[object, ...]:
    legs = frozenset((leg.get("gateway"), leg.get("dev")) for leg in route.get("nexthops", ()))
    return route.get("dst"), route.get("from"), route.get("table"), route.get("metric"), legs


def _is_equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(
        one.get(name) == other.get(name)
        for name in ("type", "dst", "from", "table", "metric", "pref")
    )


def _devs(answers: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    legs = itertools.chain.from_iterable(answer.get("nexthops", [answer]) for answer in answers)
    # A dead one, too: packets take it as soon as its link is up again.
    return tuple(sorted({leg["dev"] for leg in legs if "dev" in leg}))


pytestmark = needs_kernel


def proven(
    node: WiredNode, cidrs: Sequence[str], *patterns: str, exits: Sequence[str] | None = ("e0",)
) -> OverlapReport:
    return prove_egress(kernel_of(node), cidrs, allowed_devs=patterns, expected_devs=exits)


def disagreements(
    node: WiredNode, world: IPv6World, report: OverlapReport
) -> list[tuple[str, set[Way], bool]]:
    fine = {
        dev
        for dev in DEVICES
        if dev == "e0" or any(fnmatchcase(dev, pattern) for pattern in world.allowed)
    }
    oracle = IPv6Oracle(node.name)
    found = []
    for one in report.cidrs:
        if ":" not in one.cidr:
            continue
        ranges = [finding.bounds for finding in one.findings]
        places = oracle.places(one.cidr)
        for place, ways in zip(places, oracle.all_ways(places), strict=True):
            wrong = {way for way in ways if not way.devs or not fine.issuperset(way.devs)}
            claimed = any(first <= place <= last for first, last in ranges)
            # Of an address of the node on several links, the oracle has one.
            is_own = any(way.kind in {"local", "anycast"} for way in ways)
            if claimed != bool(wrong) and not (claimed and is_own):
                found.append((str(ipaddress.IPv6Address(place)), ways, claimed))
    return found


@pytest.fixture(scope="module")
def links() -> Iterator[WiredNode]:
    with two_links() as made:
        yield made


@each_decision
def test_proof_and_oracle_decide_as_the_kernel(links: WiredNode, decision: Decision) -> None:
    """Both find the device that the kernel takes, or those of all routes that are equal to it."""
    with decision.arranged(links):
        for question, answer in decision.answers.items():
            address, *words = question.split()
            devs = decision.equal or (() if answer in {"", "local"} else (answer,))
            if "oif" in words:
                continue
            [way] = IPv6Oracle(links.name).ways(
                [int(ipaddress.IPv6Address(address))], [words[1] if words else None]
            )
            assert (way.devs if way.kind == "unicast" else ()) == devs
            if words or answer == "local":
                continue
            [[part]] = [each.parts for each in explain_routing(kernel_of(links), [address])]
            assert part.devs == devs
            report = proven(links, [f"{address}/128"], exits=devs or ["e0"])
            assert report.ok == bool(devs)


@settings(max_examples=FEW)
@given(ipv6_worlds())
def test_the_proof_agrees_with_the_kernel(world: IPv6World) -> None:
    """It finds a fault at each address that may leave by another device, and nowhere else; so does
    that of a model.
    """
    with arranged(world) as node:
        report = proven(node, world.cidrs, *world.allowed)
        assert not disagreements(node, world, report), report
        backend = kernel_of(node)
        routes = chain.from_iterable(map(backend.routes, backend.families))
        rules = chain.from_iterable(map(backend.rules, backend.families))
        with suppress(UnknownDecisionError):
            model = Fib.of(backend.links(), routes, rules)
            modelled = prove_egress(
                model, world.cidrs, allowed_devs=world.allowed, expected_devs=["e0"]
            )
            assert told_alike(modelled.cidrs) == told_alike(report.cidrs)


@settings(max_examples=FEW)
@given(mixed_worlds())
def test_both_families_are_proven_as_each_alone(world: IPv6World) -> None:
    """A mixed proof has the findings of both, in its order, and IPv6 agrees with the kernel."""
    with arranged(world) as node:
        report = proven(node, world.cidrs, *world.allowed)
        assert not disagreements(node, world, report), report
        assert [one.cidr for one in report.cidrs] == [
            str(ipaddress.ip_network(cidr)) for cidr in world.cidrs
        ]
        for one in report.cidrs:
            [alone] = proven(node, [one.cidr], *world.allowed).cidrs
            assert alone == one
