"""Proofs of a node whose routing changes between the reading and the lookups.

Whatever comes in between, each verdict is one that was true at a moment of the proof.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from support.kernel import uplink
from support.overlap_proofs import prove, shapes

from hostrouting import prove_egress
from hostrouting.host import IPV4, Lookup, RouteBackend, Rule
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import format_ipv4, parse_cidr
from hostrouting.route_overlap.explain import explain_routing
from hostrouting.route_overlap.look import lasting_kinds
from hostrouting.route_overlap.proven import Finding
from hostrouting.testing import KernelNode, MemoryBackend
from hostrouting.testing.contracts.routes import arrange
from hostrouting.testing.route_texts import route

Change = Callable[[], object]


class Meanwhile:
    """A backend that makes changes of the node before its lookups, one before each of a kind.

    The kinds are `plain`, `resolved` and `sourced`. `always` is called before every plain lookup
    with its addresses; `asked` counts these lookups.
    """

    def __init__(
        self,
        inner: RouteBackend,
        *,
        plain: Sequence[Change] = (),
        resolved: Sequence[Change] = (),
        sourced: Sequence[Change] = (),
        always: Callable[[Sequence[int]], object] | None = None,
    ) -> None:
        self._inner = inner
        self._changes: dict[str, Iterator[Change]] = {
            "plain": iter(plain),
            "resolved": iter(resolved),
            "sourced": iter(sourced),
        }
        self._always = always
        self.asked = 0
        self.readings = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def routes(self, family: int = IPV4) -> Any:
        self.readings += 1
        return self._inner.routes(family)

    def lookup(self, destinations: Sequence[int], **options: Any) -> list[Lookup]:
        kind = "resolved" if options.get("resolve") else "plain"
        if any(options.get("sources") or ()):
            kind = "sourced"
        if change := next(self._changes[kind], None):
            change()
        if kind == "plain":
            self.asked += 1
            if self._always:
                self._always(destinations)
        return self._inner.lookup(destinations, **options)


FABRIC = "172.16.8.0/24"
PODS = "10.96.0.0/24"


@pytest.fixture(params=["memory", "kernel"])
def node(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A node whose ib0 shadows part of the addresses, as a model and on the kernel."""
    if request.param == "memory":
        memory = MemoryBackend()
        uplink(memory, ib0="172.16.1.4/16")
        yield memory
        return
    request.getfixturevalue("needs_kernel")
    with KernelNode.made() as made:
        uplink(made, ib0="172.16.1.4/16")
        yield made


@pytest.fixture
def backend(node: Any) -> Any:
    """The backend of the node."""
    return NetlinkBackend(netns=node.name) if isinstance(node, KernelNode) else node


def add(node: Any, *texts: str) -> partial[None]:
    """Return the change that adds these routes."""
    return partial(arrange, node, *texts)


def test_a_pod_that_comes_counts_for_its_address(node: Any, backend: Any) -> None:
    """A route to one address that comes during a proof counts for that address; the rest of the
    part is looked up from there, without another reading.
    """
    pod = "172.16.8.0/32 via 10.224.0.1 dev eth0"
    meanwhile = Meanwhile(backend, plain=[add(node, pod)])
    assert shapes(prove(meanwhile, FABRIC)) == [("overlap", "172.16.8.1", "172.16.8.255", "ib0")]
    assert meanwhile.readings == 1


def test_pods_one_after_the_other(node: Any, backend: Any) -> None:
    """Routes to many addresses that come during a proof take few lookups, as each round looks up
    twice as many addresses.
    """
    pods = [f"172.16.8.{number}/32 via 10.224.0.1 dev eth0" for number in range(60)]
    meanwhile = Meanwhile(backend, plain=[add(node, *pods)])
    assert shapes(prove(meanwhile, FABRIC)) == [("overlap", "172.16.8.60", "172.16.8.255", "ib0")]
    assert meanwhile.readings == 1
    assert meanwhile.asked <= 8


def test_a_route_to_the_whole_part_is_read_anew(node: Any, backend: Any) -> None:
    """A route to a whole part that comes during a proof leads to another reading of the node, as it
    may hide others that came with it.
    """
    new = add(node, f"{FABRIC} via 10.224.0.1 dev eth0", "172.16.8.9/32 dev ib0")
    meanwhile = Meanwhile(backend, plain=[new])
    assert shapes(prove(meanwhile, FABRIC)) == [("overlap", "172.16.8.9", "172.16.8.9", "ib0")]
    assert meanwhile.readings == 2


def test_a_throw_that_comes_is_read_anew(node: Any, backend: Any) -> None:
    """A throw that comes during a proof leaves its address to the next table, and the rest of the
    part is found.
    """
    arrange(node, f"{PODS} dev ib0 table 88")
    node.add_rule(Rule(100, table=88))
    meanwhile = Meanwhile(backend, plain=[add(node, "throw 10.96.0.0/32 table 88")])
    assert shapes(prove(meanwhile, PODS)) == [("overlap", "10.96.0.1", "10.96.0.255", "ib0")]


@pytest.mark.parametrize("kind", ["blackhole", "unreachable", "prohibit"])
def test_a_refusal_for_a_moment_is_read_anew(node: Any, backend: Any, kind: str) -> None:
    """A refusal that lasts for a moment of a proof leads to another reading of the node, as its
    answer has no prefix, and is not a finding.
    """
    pod = "10.96.0.0/32"
    changes = [add(node, f"{kind} {pod}"), partial(node.delete_route, route(f"{kind} {pod}"))]
    meanwhile = Meanwhile(backend, plain=changes)
    assert shapes(prove(meanwhile, PODS)) == []
    assert meanwhile.readings == 2


@pytest.mark.parametrize("cidr", [PODS, "10.96.0.0/32"])
@pytest.mark.parametrize(
    "pod",
    [
        "10.96.0.0/32 via 10.224.0.1 dev eth0 src 10.224.0.9",
        "10.96.0.0/32 via 10.224.0.7 dev eth0 src 10.224.0.9",
        "10.96.0.0/32 dev ib0",
    ],
)
def test_a_route_that_lives_while_the_source_is_asked(
    node: Any, backend: Any, cidr: str, pod: str
) -> None:
    """A route that lives only while the source is looked up, and chooses another one, does not hide
    the rule by the usual source.
    """
    node.add_address("eth0", "10.224.0.9/16")
    arrange(node, f"{PODS} dev ib0 table 88")
    node.add_rule(Rule(100, table=88, source=parse_cidr("10.224.0.4/32")))
    gone = partial(node.delete_route, route(pod))
    meanwhile = Meanwhile(backend, resolved=[add(node, pod)], sourced=[gone])
    last = "10.96.0.255" if cidr == PODS else "10.96.0.0"
    assert shapes(prove(meanwhile, cidr)) == [("overlap", "10.96.0.0", last, "ib0")]


def test_a_route_that_is_gone_when_the_path_is_asked_again(node: Any, backend: Any) -> None:
    """A route that exists only at the first lookup of the path does not hide the rule by the source
    of the plain answer.
    """
    node.add_address("eth0", "10.224.0.9/16")
    arrange(node, f"{PODS} dev ib0 table 88")
    node.add_rule(Rule(100, table=88, source=parse_cidr("10.224.0.4/32")))
    pod = "10.96.0.0/32 via 10.224.0.1 dev eth0 src 10.224.0.9"
    gone = partial(node.delete_route, route(pod))
    meanwhile = Meanwhile(backend, plain=[int, gone], resolved=[add(node, pod)])
    assert shapes(prove(meanwhile, PODS)) == [("overlap", "10.96.0.0", "10.96.0.255", "ib0")]


def test_a_pod_in_the_table_of_a_source(node: Any, backend: Any) -> None:
    """A route to one address that comes into the table of a rule by source counts for that
    address.
    """
    arrange(node, f"{PODS} dev ib0 table 88")
    node.add_rule(Rule(100, table=88, source=parse_cidr("10.224.0.4/32")))
    pod = add(node, "10.96.0.0/32 via 10.224.0.1 dev eth0 table 88")
    meanwhile = Meanwhile(backend, sourced=[pod])
    assert shapes(prove(meanwhile, PODS)) == [("overlap", "10.96.0.1", "10.96.0.255", "ib0")]


def test_a_quiet_node_is_asked_once_about_its_own_address(node: Any, backend: Any) -> None:
    """An own address of a node that does not change is looked up once, though the kernel answers by
    lo.
    """
    node.add_rule(Rule(100, table=78, source=(0xAC100104, 32)))
    meanwhile = Meanwhile(backend)
    assert prove(meanwhile, "10.224.0.4/32").ok
    assert meanwhile.asked == 1


def test_what_changes_each_time_is_undecided(node: Any, backend: Any) -> None:
    """Addresses of a node that changes at each lookup are undecided after three readings, also for
    `explain`, and may be right later.
    """
    numbers = iter(range(200, 300))

    def change(_: object) -> None:
        node.add_rule(Rule(next(numbers), table=88))

    meanwhile = Meanwhile(backend, always=change)
    report = prove_egress(meanwhile, [PODS])
    [(_, finding)] = report.findings
    first, last = "10.96.0.0", "10.96.0.255"
    assert finding == Finding(kind="undecided", first=first, last=last, cause="changing")
    assert not lasting_kinds(report)
    assert meanwhile.readings == 3
    [explanation] = explain_routing(meanwhile, [PODS])
    [part] = explanation.parts
    assert (part.devs, part.route, part.reason) == ((), None, "routing changes while it is read")


def test_pods_without_end_are_undecided(node: Any, backend: Any) -> None:
    """A part in which a route comes at each lookup is undecided after three readings."""

    def follow(addresses: Sequence[int]) -> None:
        pod = format_ipv4(max(addresses))
        node.insert_route(route(f"{pod}/32 via 10.224.0.1 dev eth0"))

    meanwhile = Meanwhile(backend, always=follow)
    *_, finding = prove(meanwhile, "172.16.8.0/21").findings
    assert (finding.kind, finding.last, meanwhile.readings) == ("undecided", "172.16.15.255", 3)
