"""Checks of a node whose routing changes between the snapshot and the lookups.

If they fail, a check calls a misrouted address healthy, or a healthy one misrouted, while another
program changes routes. Each verdict has to be one that was true at a moment of the check.
"""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.kernel import uplink
from support.needs import needs
from support.overlap_checks import prove, shapes

from hostrouting import prove_egress
from hostrouting.exceptions import EventsLostError
from hostrouting.host import IPV4, Address, Lookup, NetworkEvent, RouteBackend, Rule
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import Prefix, format_ipv4, parse_cidr
from hostrouting.route_overlap.explain import explain_routing
from hostrouting.route_overlap.report import Finding
from hostrouting.route_overlap.waiting import lasting_kinds
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
def kernel(needs_kernel: None) -> Iterator[KernelNode]:  # noqa: ARG001
    """The same node on the kernel, which announces also what is gone before the next reading."""
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
    """A route to one address that comes during a check counts for that address, and the rest of the
    part stays as it was; the routes are not read again.
    """
    pod = "172.16.8.0/32 via 10.224.0.1 dev eth0"
    meanwhile = Meanwhile(backend, plain=[add(node, pod)])
    assert shapes(prove(meanwhile, FABRIC)) == [("overlap", "172.16.8.1", "172.16.8.255", "ib0")]
    assert meanwhile.readings == 1


def test_pods_at_the_end_and_within(node: Any, backend: Any) -> None:
    """A pod at the last address of a part, whose answer counts for all of it, and another one within
    make no other address of the part right.
    """
    pods = [f"172.16.8.{number}/32 via 10.224.0.1 dev eth0" for number in (9, 255)]
    meanwhile = Meanwhile(backend, plain=[add(node, *pods)])
    assert shapes(prove(meanwhile, FABRIC)) == [
        ("overlap", "172.16.8.0", "172.16.8.8", "ib0"),
        ("overlap", "172.16.8.10", "172.16.8.254", "ib0"),
    ]


def test_many_pods_at_once(node: Any, backend: Any) -> None:
    """Routes to many addresses that come during a check take one more lookup."""
    pods = [f"172.16.8.{number}/32 via 10.224.0.1 dev eth0" for number in range(60)]
    meanwhile = Meanwhile(backend, plain=[add(node, *pods)])
    assert shapes(prove(meanwhile, FABRIC)) == [("overlap", "172.16.8.60", "172.16.8.255", "ib0")]
    assert meanwhile.asked == 2


def test_a_route_to_the_whole_part_hides_no_other(node: Any, backend: Any) -> None:
    """A route to a whole part that comes during a check does not hide a longer one that came with
    it.
    """
    new = add(node, f"{FABRIC} via 10.224.0.1 dev eth0", "172.16.8.9/32 dev ib0")
    meanwhile = Meanwhile(backend, plain=[new])
    assert shapes(prove(meanwhile, FABRIC)) == [("overlap", "172.16.8.9", "172.16.8.9", "ib0")]


FIRST, _ = parse_cidr(FABRIC)
#: The networks of the property below, inside of FABRIC, which has a route itself.
NETWORKS = st.builds(
    lambda length, number: Prefix(IPV4, FIRST + (number << 32 - length) % 256, length),
    st.sampled_from([25, 26, 28, 30, 31, 32, 32, 32]),
    st.integers(0, 255),
)


class Moments:
    """The routes to networks inside FABRIC, and through which device each address
    left at any moment.
    """

    def __init__(self, routes: dict[Prefix, str]) -> None:
        self.node = MemoryBackend()
        uplink(self.node, ib0="172.16.1.4/16")
        self._routes: dict[Prefix, str] = {}
        self.left: list[set[str]] = [set() for _ in range(256)]
        for network, dev in routes.items():
            self.exchange(network, dev)
        self.left = [set() for _ in range(256)]
        self.note()

    def note(self) -> None:
        """Note through which device each address leaves now: that of its longest network."""
        by_length = sorted(self._routes.items(), key=lambda pair: pair[0].length)
        devs = ["ib0"] * 256
        for network, dev in by_length:
            for number in range(network.network - FIRST, network.last - FIRST + 1):
                devs[number] = dev
        for seen, dev in zip(self.left, devs, strict=True):
            seen.add(dev)

    def exchange(self, network: Prefix, dev: str) -> None:
        """Delete the route to a network if there is one, or else add one by a device."""
        if before := self._routes.pop(network, None):
            self.node.delete_route(route(f"{network} {BY[before]}"))
        else:
            self._routes[network] = dev
            self.node.insert_route(route(f"{network} {BY[dev]}"))
        self.note()


BY = {"eth0": "via 10.224.0.1 dev eth0", "ib0": "dev ib0"}
_DEVICES = st.sampled_from(["eth0", "ib0"])


@example(
    routes={Prefix.parse(FABRIC): "ib0"},
    changes=[[(Prefix.parse("172.16.8.9/32"), "eth0"), (Prefix.parse("172.16.8.255/32"), "eth0")]],
)
@given(
    routes=st.dictionaries(NETWORKS, _DEVICES, max_size=5),
    changes=st.lists(st.lists(st.tuples(NETWORKS, _DEVICES), max_size=4), max_size=4),
)
def test_each_address_is_judged_as_it_was_at_a_moment(
    routes: dict[Prefix, str], changes: list[list[tuple[Prefix, str]]]
) -> None:
    """Whatever changes before each lookup, an address is right only if it left through its device at
    a moment of the check, and wrong only if it did not.
    """
    moments = Moments(routes)
    steps = iter(changes)

    def change(_: object) -> None:
        for network, dev in next(steps, ()):
            moments.exchange(network, dev)

    report = prove(Meanwhile(moments.node, always=change), FABRIC)
    wrong: set[int] = set()
    for found in report.findings:
        first, last = found.bounds
        wrong.update(range(first - FIRST, last - FIRST + 1))
    for number, devs in enumerate(moments.left):
        assert ("ib0" if number in wrong else "eth0") in devs, number


#: What a program changes between the snapshot and the first lookup, so that one address leaves
#: through ib0 or ib1 at each moment: commands before the check, and those meanwhile.
EXCHANGES = {
    "a narrower prefix": (
        ["route add 172.16.9.0/24 dev ib0"],
        ["route add 172.16.9.64/26 dev ib0", "route del 172.16.9.0/24 dev ib0"],
    ),
    "one address": (
        ["route add 172.16.9.0/24 dev ib0"],
        ["route add 172.16.9.77/32 dev ib0", "route del 172.16.9.0/24 dev ib0"],
    ),
    "an address of the device": (
        ["addr add 172.16.9.4/16 dev ib0"],
        ["addr add 172.16.9.5/24 dev ib0", "addr del 172.16.9.4/16 dev ib0"],
    ),
    "another table": (
        ["route add 172.16.9.0/24 dev ib0 table 90", "rule add pref 90 to 172.16.0.0/16 lookup 90"],
        ["route add 172.16.9.77/32 dev ib0", "route del 172.16.9.0/24 table 90"],
    ),
    "another rule": (
        ["route add 172.16.9.0/24 dev ib0 table 90", "rule add pref 90 to 172.16.9.0/24 lookup 90"],
        ["rule add pref 91 to 172.16.9.64/26 lookup 90", "rule del pref 90"],
    ),
    "another device": (
        ["route add 172.16.9.0/24 dev ib0"],
        ["route add 172.16.9.64/26 dev ib1", "link set ib0 down"],
    ),
    "a nexthop object": (
        [
            "nexthop add id 7 dev ib0",
            "nexthop add id 8 via 10.224.0.1 dev eth0",
            "route add 172.16.9.64/26 nhid 8",
            "route add 172.16.9.0/24 nhid 7",
        ],
        ["nexthop replace id 8 dev ib1", "route del 172.16.9.0/24"],
    ),
}
IPV6_EXCHANGE = (
    ["-6 route add fd96:9::/32 dev ib0"],
    ["-6 route add fd96:9:0:7::/64 dev ib0", "-6 route del fd96:9::/32"],
)


@needs("kernel")
@pytest.mark.parametrize("is_announced", [True, False], ids=["events", "comparison"])
@pytest.mark.parametrize(
    ("before", "meanwhile", "cidr", "address"),
    [
        *((*each, "172.16.0.0/16", "172.16.9.77") for each in EXCHANGES.values()),
        (*IPV6_EXCHANGE, "fd96::/16", "fd96:9:0:7::1"),
    ],
    ids=[*EXCHANGES, "IPv6"],
)
def test_an_exchanged_route_hides_no_address(
    before: list[str], meanwhile: list[str], cidr: str, address: str, *, is_announced: bool
) -> None:
    """An address that leaves through a wrong device at each moment is a finding, though another route
    decides it at the snapshot than at the lookup.
    """
    with KernelNode.made() as node:
        uplink(node)
        node.add_link("ib0")
        node.add_link("ib1")
        for command in ["addr add fd24::4/64 dev eth0", *before]:
            node.ip(command)
        backend = NetlinkBackend(netns=node.name)
        if not is_announced:
            backend.listen = lambda: None  # type: ignore[method-assign]
        changes = [partial(node.ip, command) for command in meanwhile]
        checked = Meanwhile(backend, plain=[lambda: [change() for change in changes]])
        report = prove_egress(checked, [cidr], expected_devs=["eth0"])
        number = Address.parse(address).number
        assert any(
            Address.parse(finding.first).number <= number <= Address.parse(finding.last).number
            for _, finding in report.findings
            # Linux 5.15 refuses the lookup of a route whose object lost its gateway.
            if finding.kind in {"overlap", "blocked"}
        )


def test_a_throw_that_comes_leaves_its_address(node: Any, backend: Any) -> None:
    """A throw that comes during a check leaves its address to the next table, and the rest of the
    part is found.
    """
    arrange(node, f"{PODS} dev ib0 table 88")
    node.add_rule(Rule(100, table=88))
    meanwhile = Meanwhile(backend, plain=[add(node, "throw 10.96.0.0/32 table 88")])
    assert shapes(prove(meanwhile, PODS)) == [("overlap", "10.96.0.1", "10.96.0.255", "ib0")]


@pytest.mark.parametrize("kind", ["blackhole", "unreachable", "prohibit"])
def test_a_refusal_for_a_moment_is_no_finding(node: Any, backend: Any, kind: str) -> None:
    """A refusal that lasts for a moment of a check is not a finding."""
    pod = "10.96.0.0/32"
    changes = [add(node, f"{kind} {pod}"), partial(node.delete_route, route(f"{kind} {pod}"))]
    meanwhile = Meanwhile(backend, plain=changes)
    assert shapes(prove(meanwhile, PODS)) == []


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
    kernel: KernelNode, cidr: str, pod: str
) -> None:
    """A route that lives only while the source is looked up, and chooses another one, does not hide
    the rule by the usual source.
    """
    kernel.add_address("eth0", "10.224.0.9/16")
    arrange(kernel, f"{PODS} dev ib0 table 88")
    kernel.add_rule(Rule(100, table=88, source=parse_cidr("10.224.0.4/32")))
    gone = partial(kernel.delete_route, route(pod))
    meanwhile = Meanwhile(
        NetlinkBackend(netns=kernel.name), resolved=[add(kernel, pod)], sourced=[gone]
    )
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
    """Addresses of a node whose rules change at each lookup are undecided after nine lookups, also
    for `explain`, and may be right later.
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
    assert meanwhile.asked == 9
    [explanation] = explain_routing(meanwhile, [PODS])
    [part] = explanation.parts
    assert (part.devs, part.route, part.reason) == (
        (),
        None,
        "routing changed while it was being read",
    )


def test_pods_without_end_are_undecided(node: Any, backend: Any) -> None:
    """A part in which a route comes at each lookup is undecided in the end."""

    def follow(addresses: Sequence[int]) -> None:
        pod = format_ipv4(min(addresses))
        node.insert_route(route(f"{pod}/32 via 10.224.0.1 dev eth0"))

    meanwhile = Meanwhile(backend, always=follow)
    findings = prove(meanwhile, "172.16.8.0/21").findings
    assert findings[-1].kind == "undecided"
    assert meanwhile.asked == 33


@pytest.mark.parametrize("count", [1, 100])
def test_pods_beside_each_other_leave_a_node_right(node: Any, backend: Any, count: int) -> None:
    """A node on which a pod gets the next address at each lookup, and another one goes, is right
    after a second look: the rest of a network stays as it was.
    """
    pods = iter(range(count, 250))

    def exchange(_: object) -> None:
        new = next(pods)
        node.insert_route(route(f"{_pod(new)}/32 via 10.224.0.1 dev eth0"))
        node.delete_route(route(f"{_pod(new - count)}/32 via 10.224.0.1 dev eth0"))

    for number in range(count):
        node.insert_route(route(f"{_pod(number)}/32 via 10.224.0.1 dev eth0"))
    meanwhile = Meanwhile(backend, always=exchange)
    assert prove_egress(meanwhile, [PODS]).findings == ()
    assert meanwhile.asked <= 3


def _pod(number: int) -> str:
    return format_ipv4(parse_cidr(PODS)[0] + number)


class Losing(Meanwhile):
    """A backend whose announcements are lost, so many times; `listened` counts the listeners."""

    def __init__(self, inner: RouteBackend, times: int, **changes: Any) -> None:
        super().__init__(inner, **changes)
        self._times = times
        self.listened = 0

    def listen(self) -> Any:
        self.listened += 1
        return self

    def take(self, names: Mapping[int, str]) -> list[NetworkEvent]:
        self._times -= 1
        if self._times >= 0:
            raise EventsLostError("too many network events came at once")
        return []


@pytest.mark.parametrize("times", [1, 3, 100])
def test_lost_announcements(node: Any, backend: Any, times: int) -> None:
    """After lost announcements the node is read again, so the verdict is right; if they are lost
    each time, the addresses are undecided.
    """
    pod = "172.16.8.9/32 via 10.224.0.1 dev eth0"
    losing = Losing(backend, times, plain=[add(node, pod)])
    found = [(kind, first, last) for kind, first, last, _ in shapes(prove(losing, FABRIC))]
    if times == 100:
        assert found == [("undecided", "172.16.8.0", "172.16.8.255")]
        return
    ranges = ("172.16.8.0", "172.16.8.8"), ("172.16.8.10", "172.16.8.255")
    assert found == [("overlap", *each) for each in ranges]
    assert losing.listened == times + 1


#: The routes that a program exchanges without end; 172.16.9.77 goes out through ib0 all the time.
ENDLESS = """
route add 172.16.9.64/26 dev ib0
route del 172.16.9.0/24 dev ib0
route add 172.16.9.77/32 dev ib0
route del 172.16.9.64/26 dev ib0
route add 172.16.9.0/24 dev ib0
route del 172.16.9.77/32 dev ib0
"""


@needs("kernel")
@pytest.mark.slow
def test_no_check_calls_a_misrouted_address_healthy() -> None:
    """While a program exchanges wrong routes as fast as it can, no check says that all is right.

    A check that misses what changes meanwhile says so about once in a hundred times.
    """
    with KernelNode.made() as node:
        uplink(node)
        node.add_link("ib0")
        node.ip("route add 172.16.9.0/24 dev ib0")
        backend = NetlinkBackend(netns=node.name)
        argv = ["ip", "-n", node.name, "-batch", "-"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, text=True) as program:
            assert program.stdin
            for _ in range(1000):
                program.stdin.write(ENDLESS * 20)
                program.stdin.flush()
                assert not prove_egress(backend, ["172.16.0.0/16"]).ok
