"""The way of a node's packets, address by address: it judges the proof, and shares no code with it.

The kernel is asked through `ip`, with as many flows as it takes to meet every next hop; a node in memory through the
fake's own model, which the contract suite holds to the kernel.
"""

import errno
import ipaddress
import itertools
import json
import subprocess
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from hostrouting.fib import Packet
from hostrouting.fib.model import source_by
from hostrouting.net.routes import NextHop
from hostrouting.testing import KernelNode, MemoryBackend

#: So many flows meet a next hop of weight 1 among seven for all but one in 10^6 destinations.
_FLOWS: Final = 90


class Answer(NamedTuple):
    """`unicast`, `local`, ..., `no-route` or `blocked`; the devices of every next hop."""

    kind: str
    devs: tuple[str, ...] = ()
    is_multipath: bool = False
    #: Devices to which the kernel sends nothing now.
    passed_over: frozenset[str] = frozenset()


class Oracle(Protocol):
    """A node that can be asked about one address after the other."""

    def expected(self) -> tuple[str, ...]:
        """The devices of the default route."""
        ...

    def decided(self, packets: Sequence[tuple[int, int | None]]) -> list[Answer]:
        """Return the decision for each packet, by its destination and source."""
        ...

    def sources(self, destinations: Sequence[int], answers: Sequence[Answer]) -> list[set[int]]:
        """Every source that the kernel may send from, where a packet has none yet."""
        ...

    def without_carrier(self) -> frozenset[str]:
        """The devices that lead nowhere now."""
        ...


def wrong_of(
    oracle: Oracle, cidr: str, allowed: frozenset[str], dead_ends: frozenset[str] = frozenset()
) -> dict[int, set[tuple[str, tuple[str, ...]]]]:
    """Return the fault of each address of a CIDR: kind and devices of each of its bad answers.

    `dead_ends` are allowed devices by which nothing leaves.
    """
    addresses = [int(address) for address in ipaddress.ip_network(cidr)]
    plain = oracle.decided([(address, None) for address in addresses])
    sources = oracle.sources(addresses, plain)
    packets = [(address, source) for address, own in zip(addresses, sources, strict=True) for source in own]
    wrong: dict[int, set[tuple[str, tuple[str, ...]]]] = {}
    for address, answer in [*zip(addresses, plain, strict=True), *_asked(oracle, packets)]:
        if not answer.devs:
            wrong.setdefault(address, set()).add((answer.kind, ()))
        elif not allowed.issuperset(answer.devs):
            wrong.setdefault(address, set()).add(("local" if answer.kind == "local" else "overlap", answer.devs))
        elif answer.kind != "local" and dead_ends.intersection(answer.devs) - answer.passed_over:
            wrong.setdefault(address, set()).add(("dead-end", answer.devs))
    return wrong


def _asked(oracle: Oracle, packets: Sequence[tuple[int, int | None]]) -> Iterable[tuple[int, Answer]]:
    return zip([address for address, _ in packets], oracle.decided(packets), strict=True)


class KernelOracle:
    """Asks the kernel of a namespace; its flows are told apart by their ports from now on."""

    def __init__(self, node: KernelNode) -> None:
        self._node = node
        node.run("sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=1")

    def expected(self) -> tuple[str, ...]:
        for route in json.loads(self._node.ip("-4", "-j", "route", "show", "table", "main", "default")):
            legs = route.get("nexthops", [route])
            is_ours = route.get("protocol") == "142"
            if not (is_ours or route.get("type") or route.get("tos")) and any(
                "dead" not in leg["flags"] for leg in legs
            ):
                return tuple(dict.fromkeys(leg["dev"] for leg in legs))
        return ()

    def decided(self, packets: Sequence[tuple[int, int | None]]) -> list[Answer]:
        told = self._ask(
            [
                f"route get fibmatch {_dotted(destination)}" + (f" from {_dotted(source)}" if source else "")
                for destination, source in packets
            ]
        )
        return [_answer(one) for one in told]

    def sources(self, destinations: Sequence[int], answers: Sequence[Answer]) -> list[set[int]]:
        ports = [
            range(1000, 1000 + _FLOWS) if answer.is_multipath else (1000,) if answer.devs else () for answer in answers
        ]
        told = iter(
            self._ask(
                [
                    f"route get {_dotted(destination)} ipproto udp sport {port} dport 9"
                    for destination, some in zip(destinations, ports, strict=True)
                    for port in some
                ]
            )
        )
        found = [{one["prefsrc"] for one in (next(told) for _ in some) if "prefsrc" in one} for some in ports]
        return [{int(ipaddress.ip_address(text)) for text in texts} for texts in found]

    def without_carrier(self) -> frozenset[str]:
        links = json.loads(self._node.ip("-j", "link", "show"))
        return frozenset(link["ifname"] for link in links if "LOWER_UP" not in link["flags"])

    def _ask(self, questions: Sequence[str]) -> list[dict[str, Any]]:
        """One object for each question; a refusal has the kernel's words under `error`."""
        argv = ["nsenter", f"--net=/run/netns/{self._node.name}", "ip", "-4", "-j", "-force", "-batch", "-"]
        text = "".join(f"{question}\n" for question in questions)
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
        said = done.stderr.splitlines()
        errors = {
            int(line.rpartition(":")[2]): before.partition(": ")[2]
            for before, line in itertools.pairwise(said)
            if line.startswith("Command failed -:")
        }
        answers = iter(done.stdout.splitlines())
        found = [
            {"error": errors[number]} if number in errors else json.loads(next(answers))[0]
            for number in range(1, len(questions) + 1)
        ]
        assert not list(answers), done
        return found


def _answer(told: dict[str, Any]) -> Answer:
    if "error" in told:
        return Answer("no-route" if told["error"] == "Network is unreachable" else "blocked")
    legs = told.get("nexthops", [told])
    passed_over = frozenset(leg["dev"] for leg in legs if "dead" in leg["flags"])
    devs = tuple(dict.fromkeys(leg["dev"] for leg in legs))
    return Answer(told.get("type", "unicast"), devs, "nexthops" in told, passed_over)


def _dotted(address: int) -> str:
    return str(ipaddress.ip_address(address))


class MemoryOracle:
    """Asks the fake about one packet at a time."""

    def __init__(self, node: MemoryBackend) -> None:
        self._node = node

    def expected(self) -> tuple[str, ...]:
        for route in self._node.routes():
            is_default = (route.prefix_length, route.table, route.tos, route.kind) == (0, 254, 0, "unicast")
            if is_default and route.protocol != 142:
                return route.devs
        return ()

    def decided(self, packets: Sequence[tuple[int, int | None]]) -> list[Answer]:
        answers = []
        for destination, source in packets:
            [answer] = self._node.lookup([destination], sources=[source])
            if answer.route is None:
                answers.append(Answer("no-route" if answer.errno == errno.ENETUNREACH else "blocked"))
            else:
                passed_over = frozenset(hop.dev for hop in answer.route.hops if hop.dead)
                answers.append(Answer(answer.route.kind, answer.route.devs, bool(answer.route.nexthops), passed_over))
        return answers

    def sources(self, destinations: Sequence[int], answers: Sequence[Answer]) -> list[set[int]]:
        found: list[set[int]] = []
        for destination, answer in zip(destinations, answers, strict=True):
            route = self._node.fib.decide(Packet(destination)).route if answer.devs else None
            hops = [hop for hop in route.hops if not hop.dead] if route else []
            found.append({source for hop in hops if (source := self._source(destination, hop))})
        return found

    def without_carrier(self) -> frozenset[str]:
        return frozenset(link.name for link in self._node.links() if not (link.up and link.carrier))

    def _source(self, destination: int, hop: NextHop) -> int | None:
        route = self._node.fib.decide(Packet(destination)).route
        assert route is not None
        own = destination if route.kind == "local" else source_by(hop, route.scope, self._node.links())
        return route.source or own
