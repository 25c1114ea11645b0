"""The way of a node's packets, address by address: it judges the proof, and shares no code with it.

The kernel answers through `ip`, with as many flows as it takes to meet every next hop.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from support.kernel import batch

from hostrouting.testing import KernelNode

#: So many flows meet a next hop of weight 1 among seven for all but one in 10^6 destinations.
_FLOWS = 90


class Answer(NamedTuple):
    """`unicast`, `local`, ..., `no-route` or `blocked`; the devices of every next hop."""

    kind: str
    devs: tuple[str, ...] = ()
    is_multipath: bool = False
    #: Devices to which the kernel sends nothing now.
    passed_over: frozenset[str] = frozenset()


def wrong_of(
    oracle: KernelOracle,
    cidr: str,
    allowed: frozenset[str],
    dead_ends: frozenset[str] = frozenset(),
) -> dict[int, set[tuple[str, tuple[str, ...]]]]:
    """Return the fault of each address of a CIDR: kind and devices of each of its bad answers.

    `dead_ends` are allowed devices through which nothing leaves.
    """
    addresses = [int(address) for address in ipaddress.ip_network(cidr)]
    plain = oracle.decided([(address, None) for address in addresses])
    sources = oracle.sources(addresses, plain)
    packets = [
        (address, source) for address, own in zip(addresses, sources, strict=True) for source in own
    ]
    wrong: dict[int, set[tuple[str, tuple[str, ...]]]] = {}
    for address, answer in [*zip(addresses, plain, strict=True), *_with_addresses(oracle, packets)]:
        if not answer.devs:
            faults = wrong.setdefault(address, set())
            faults.add((answer.kind, ()))
            if answer.kind == "no-route" and oracle.has_unreachable_rule:
                faults.add(("blocked", ()))
        elif not allowed.issuperset(answer.devs):
            wrong.setdefault(address, set()).add(
                ("local" if answer.kind == "local" else "overlap", answer.devs)
            )
        elif answer.kind != "local" and dead_ends.intersection(answer.devs) - answer.passed_over:
            wrong.setdefault(address, set()).add(("dead-end", answer.devs))
    return wrong


def _with_addresses(
    oracle: KernelOracle, packets: Sequence[tuple[int, int | None]]
) -> Iterable[tuple[int, Answer]]:
    return zip([address for address, _ in packets], oracle.decided(packets), strict=True)


class KernelOracle:
    """Query the kernel of a namespace; from now on it distinguishes flows by their ports."""

    def __init__(self, node: KernelNode) -> None:
        self._node = node
        node.run("sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=1")

    @cached_property
    def has_unreachable_rule(self) -> bool:
        """True if a rule refuses packets by the errno of a packet without any route."""
        return any(
            rule.get("action") == "unreachable"
            for rule in json.loads(self._node.ip("-4 -j rule show"))
        )

    def expected(self) -> tuple[str, ...]:
        """Return the devices of the default route."""
        for route in json.loads(self._node.ip("-4 -j route show table main default")):
            legs = route.get("nexthops", [route])
            is_own = route.get("protocol") == "142"
            if not (is_own or route.get("type") or route.get("tos")) and any(
                "dead" not in leg["flags"] for leg in legs
            ):
                return tuple(dict.fromkeys(leg["dev"] for leg in legs))
        return ()

    def decided(self, packets: Sequence[tuple[int, int | None]]) -> list[Answer]:
        """Return the decision for each packet, by its destination and source."""
        shown = answers_of_kernel(
            self._node.name,
            "-4",
            [
                f"route get fibmatch {_dotted(destination)}"
                + (f" from {_dotted(source)}" if source else "")
                for destination, source in packets
            ],
        )
        return [_answer(one) for one in shown]

    def sources(self, destinations: Sequence[int], answers: Sequence[Answer]) -> list[set[int]]:
        """Return every source that the kernel may send from, where a packet has none yet."""
        ports = [
            range(1000, 1000 + _FLOWS) if answer.is_multipath else (1000,) if answer.devs else ()
            for answer in answers
        ]
        shown = iter(
            answers_of_kernel(
                self._node.name,
                "-4",
                [
                    f"route get {_dotted(destination)} ipproto udp sport {port} dport 9"
                    for destination, some in zip(destinations, ports, strict=True)
                    for port in some
                ],
            )
        )
        found = [
            {one["prefsrc"] for one in (next(shown) for _ in some) if "prefsrc" in one}
            for some in ports
        ]
        return [{int(ipaddress.ip_address(text)) for text in texts} for texts in found]

    def without_carrier(self) -> frozenset[str]:
        """Return the devices that lead nowhere now."""
        links = json.loads(self._node.ip("-j link show"))
        return frozenset(link["ifname"] for link in links if "LOWER_UP" not in link["flags"])


def answers_of_kernel(
    namespace: str, family: str, questions: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the output of `ip -j` for each command of a batch; a refusal has the kernel's words
    under `error`.
    """
    answers, errors = batch(namespace, family, "-j", commands=questions)
    found = [
        {"error": errors[number]} if number in errors else json.loads(next(answers))[0]
        for number in range(1, len(questions) + 1)
    ]
    assert not [*answers], errors
    return found


def _answer(shown: dict[str, Any]) -> Answer:
    if "error" in shown:
        return Answer("no-route" if shown["error"] == "Network is unreachable" else "blocked")
    legs = shown.get("nexthops", [shown])
    passed_over = frozenset(leg["dev"] for leg in legs if "dead" in leg["flags"])
    devs = tuple(dict.fromkeys(leg["dev"] for leg in legs))
    return Answer(shown.get("type", "unicast"), devs, "nexthops" in shown, passed_over)


def _dotted(address: int) -> str:
    return str(ipaddress.ip_address(address))
