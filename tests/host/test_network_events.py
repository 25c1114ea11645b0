"""The contract of `NetworkEvents` on the fake and on the kernel, and facts that only the kernel can
show.
"""

import errno
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from random import Random

import attrs
import pytest
from support.kernel import connect, kernel_of, many, needs_kernel, powerless
from support.patience import wait_until

from hostrouting.exceptions import BackendError, EventsLostError
from hostrouting.host import (
    IPV4,
    IPV6,
    Device,
    Listener,
    NetworkEvent,
    NetworkEvents,
    ObservedRoute,
    Route,
    RouteBackend,
    RouteChange,
    Rule,
)
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.events import NetlinkEvents, NetlinkListener
from hostrouting.net.events import (
    AddressEvent,
    DeviceEvent,
    NexthopEvent,
    RouteEvent,
    RuleEvent,
    SettingEvent,
)
from hostrouting.net.routes import route_key
from hostrouting.testing import KernelNode, MemoryBackend, MemoryEvents, Node
from hostrouting.testing.contracts.routes import arrange, competing_routes, find, in_order
from hostrouting.testing.route_texts import route
from phases import CancelledError, Context
from phases.context import notify, wait

#: Seconds after which an event of a slow machine counts as missed.
PATIENCE = 30
#: By the device of the fabric.
BY_FABRIC = "9.0.0.0/8 dev ib0 scope link"
_TO_A_FIRST_ADDRESS = re.compile(r" broadcast \d+\.\d+\.0\.0 ")


def shown(events: Iterable[NetworkEvent]) -> list[str]:
    """Return the events as text, without those of devices, which the kernel may repeat at any time.

    Without the routes, too, that only Linux before 5.14 adds: to the first address of a network,
    for broadcasts; and without that of each device to the IPv6 groups.
    """
    texts = [_text(event) for event in events if not isinstance(event, DeviceEvent)]
    return [
        text for text in texts if not (_TO_A_FIRST_ADDRESS.search(text) or " ff00::/8 " in text)
    ]


def _text(event: NetworkEvent) -> str:
    if isinstance(event, AddressEvent):
        return f"{event.verb} {event.address} dev {event.dev}"
    return f"{event.verb} {event[1]}"


@contextmanager
def woken(ctx: Context, listener: Listener) -> Iterator[None]:
    """Assert that the news of the block wakes a thread, which nothing else would."""
    waiting = threading.Thread(target=wait, args=(ctx, lambda: listener.has_news), daemon=True)
    waiting.start()
    wait_until(lambda: ctx._doorbells, "no thread waits")
    yield
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


class ListeningContract:
    """The promises about a listener itself, for a subclass with the fixtures of
    `NetworkEventsContract`.

    Further fixtures of a subclass are `other`, another node, and `most`: it lets a listener store
    little, and is a number of route events that is too many for it.
    """

    @pytest.fixture
    def eth0(self, node: Node) -> Node:
        """The same node with two devices that are up; eth0 has an address."""
        connect(node, eth0="10.224.0.4/16")
        node.add_link("ib0")
        return node

    @pytest.fixture
    def listener(self, eth0: Node, events: NetworkEvents, ctx: Context) -> Iterator[Listener]:
        """A listener of that node."""
        with events.listen(ctx) as listener:
            yield listener

    # --- listening

    def test_nothing_from_before_arrives(
        self, eth0: Node, events: NetworkEvents, ctx: Context
    ) -> None:
        """A listener receives the changes that were made since it began to listen, each only
        once.
        """
        with events.listen(ctx) as listener:
            assert shown(listener.take()) == []
            arrange(eth0, BY_FABRIC)
            assert shown(listener.take()) == [f"add {BY_FABRIC}"]
            assert shown(listener.take()) == []

    def test_every_listener_gets_each_event(
        self, eth0: Node, events: NetworkEvents, listener: Listener, ctx: Context
    ) -> None:
        """Each of two listeners receives every event, whichever takes first."""
        with events.listen(ctx) as second:
            arrange(eth0, BY_FABRIC)
            assert shown(second.take()) == shown(listener.take()) == [f"add {BY_FABRIC}"]

    def test_one_family(
        self, eth0: Node, events: NetworkEvents, listener: Listener, ctx: Context
    ) -> None:
        """A listener of IPv4 receives no event of IPv6 and is not woken by one; a listener receives
        both families by default.
        """
        with events.listen(ctx, families=(IPV4,)) as second:
            arrange(eth0, "fd00:9::/64 dev ib0 metric 1")
            eth0.add_rule(Rule(100, table=88, family=IPV6))
            eth0.add_address("ib0", "fd00:8::4/64")
            assert not second.has_news
            arrange(eth0, BY_FABRIC)
            assert shown(second.take()) == [f"add {BY_FABRIC}"]
            assert len(shown(listener.take())) > 3

    def test_events_of_another_node_do_not_arrive(
        self, eth0: Node, other: Node, listener: Listener
    ) -> None:
        """A listener gets no event of another network namespace."""
        other.add_link("ib0")
        arrange(other, BY_FABRIC)
        other.add_rule(Rule(100, table=88))
        assert listener.take() == []

    def test_a_change_wakes_the_context(self, eth0: Node, listener: Listener, ctx: Context) -> None:
        """A thread that waits for news in the listener's context is woken by a change, and waits
        while there is none.
        """
        assert not wait(ctx, lambda: listener.has_news, until=ctx.clock.monotonic())
        with woken(ctx, listener):
            arrange(eth0, BY_FABRIC)
        assert shown(listener.take()) == [f"add {BY_FABRIC}"]
        assert not listener.has_news

    def test_it_ends_with_its_block(self, eth0: Node, events: NetworkEvents, ctx: Context) -> None:
        """A listener ends with its block, also by an error: its thread ends, and a later `take` is
        refused.
        """
        threads = set(threading.enumerate())
        stack = ExitStack()
        listener = stack.enter_context(events.listen(ctx))
        with pytest.raises(KeyError, match="lost"), stack:
            raise KeyError("lost")
        assert set(threading.enumerate()) <= threads
        with pytest.raises(BackendError):
            listener.take()

    def test_a_cancelled_context_does_not_listen(self, events: NetworkEvents, ctx: Context) -> None:
        """Listening with a cancelled context raises its error with the reason."""
        ctx.cancel("enough")
        with pytest.raises(CancelledError, match="enough"), events.listen(ctx):
            pytest.fail("it listens")

    # --- loss

    def lose(self, node: Node, listener: Listener, most: int) -> None:
        """Let the listener lose the events of so many routes."""
        arrange(node, *(f"9.0.{number}.0/24 dev ib0" for number in range(most)))
        assert listener.has_news

    def test_what_is_not_taken_in_time_is_lost(
        self, eth0: Node, listener: Listener, most: int
    ) -> None:
        """A loss of events is reported once, and later events are received again."""
        self.lose(eth0, listener, most)
        arrange(eth0, "8.0.0.0/8 dev ib0")
        with pytest.raises(EventsLostError, match="read everything again"):
            listener.take()
        arrange(eth0, BY_FABRIC)
        assert shown(listener.take()) == [f"add {BY_FABRIC}"]
        assert listener.take() == []


#: By four gateways on the network of eth0.
NINE, *OTHERS = (f"9.0.0.0/8 via 10.224.0.{last} dev eth0" for last in range(11, 15))


class NetworkEventsContract(ListeningContract):
    """Each test has a fresh `node` with a loopback device only; `backend` reads the node, and
    `events` is tested.
    """

    def devices_until(
        self, listener: Listener, ctx: Context, done: Callable[[Device], bool]
    ) -> list[DeviceEvent]:
        """Wait for an event that shows a device so, and return the events of all devices."""
        taken: list[DeviceEvent] = []
        until = ctx.clock.monotonic() + PATIENCE
        while not any(done(event.device) for event in taken):
            assert wait(ctx, lambda: listener.has_news, until=until), taken
            taken += [event for event in listener.take() if isinstance(event, DeviceEvent)]
        return taken

    # --- routes

    def test_a_new_route_is_announced_with_its_place(
        self, eth0: Node, listener: Listener, backend: RouteBackend
    ) -> None:
        """The event of a new route has its position: alone in its place, last, first, or instead of
        the first.
        """
        texts = NINE, *OTHERS
        for text, verb in zip(texts, ("add", "append", "prepend", "replace"), strict=True):
            eth0.insert_route(route(text), verb=verb)
            new = find(backend, text)
            assert [event[:2] for event in listener.take()] == [(verb, new)]
        assert competing_routes(backend) == in_order(texts[3], *texts[:2])

    @pytest.mark.parametrize("verb", ["prepend", "append", "replace"])
    def test_a_route_alone_in_its_place_is_added(
        self, eth0: Node, listener: Listener, verb: str
    ) -> None:
        """A route that is alone in its place is announced as added, whatever the program's verb;
        another metric is another place.
        """
        for metric in 50, 40:
            eth0.insert_route(route(f"{NINE} metric {metric}"), verb=verb)
        assert [event[0] for event in listener.take()] == ["add", "add"]

    def test_a_replacement_by_the_same_route_is_no_event(
        self, eth0: Node, listener: Listener
    ) -> None:
        """A replacement of a route by itself changes nothing and is not announced."""
        for _ in range(2):
            eth0.insert_route(route(NINE), verb="replace")
        assert shown(listener.take()) == [f"add {NINE}"]

    def test_a_deleted_route_is_announced(
        self, eth0: Node, listener: Listener, backend: RouteBackend
    ) -> None:
        """A deleted route is announced in every detail, though the deletion named fewer."""
        arrange(eth0, "9.0.0.0/8 dev ib0 metric 50 proto 99 table 100")
        [added] = listener.take()
        eth0.delete_route(attrs.evolve(route("9.0.0.0/8 dev ib0 table 100"), protocol=0))
        assert [event[:2] for event in listener.take()] == [("remove", added[1])]

    def test_a_batch_is_announced_in_its_order(
        self, eth0: Node, listener: Listener, backend: RouteBackend
    ) -> None:
        """A batch of this process is announced in its order; a replacement in place is two events,
        and the place is never empty.
        """
        arrange(eth0, NINE)
        first, second = "8.0.0.0/8 dev ib0 proto 142 scope link", f"{OTHERS[0]} proto 142"
        replacement = RouteChange.replace(find(backend, NINE), route(second))
        backend.apply([RouteChange.add(route(first)), replacement])
        assert shown(listener.take()) == [
            f"add {NINE}",
            f"add {first}",
            f"prepend {second}",
            f"remove {NINE}",
        ]

    # --- devices and addresses

    def test_neighbours_are_not_announced(self, eth0: Node, listener: Listener) -> None:
        """Neighbours are not announced, whether they answer or have failed."""
        eth0.add_neighbour("eth0", "10.224.0.8")
        eth0.fail_neighbour("eth0", "10.224.0.9")
        assert listener.take() == []

    def test_a_device_that_comes_back_has_another_index(
        self, eth0: Node, listener: Listener
    ) -> None:
        """A device that is removed and added again has another index in its events."""
        eth0.remove_link("ib0")
        eth0.add_link("ib0")
        events = [event for event in listener.take() if isinstance(event, DeviceEvent)]
        assert len({event.device.ifindex for event in events if event.device.name == "ib0"}) == 2

    # --- rules

    def test_rules_are_announced(
        self, eth0: Node, listener: Listener, backend: RouteBackend
    ) -> None:
        """A new and a removed rule are announced as a reading shows the rule."""
        eth0.add_rule(Rule(100, table=88, mark=1, mark_mask=0xFF, protocol=99))
        _, rule, *_ = backend.rules()
        eth0.remove_rule(rule)
        assert listener.take() == [RuleEvent("add", rule), RuleEvent("remove", rule)]


class KernelEventsContract(NetworkEventsContract):
    """The promises of the port, and those of the kernel about the routes that it adds, and about
    renamed devices.
    """

    def test_a_device_that_goes_down_takes_its_routes_in_silence(
        self, eth0: Node, listener: Listener
    ) -> None:
        """A device that goes down loses its routes without an event for each; once it is up again,
        the routes that the kernel adds are announced.
        """
        arrange(eth0, NINE)
        listener.take()
        eth0.set_up("eth0", up=False)
        taken = listener.take()
        assert shown(taken) == []
        assert DeviceEvent in map(type, taken)
        eth0.set_up("eth0")
        assert sorted(shown(listener.take())) == [
            "add 10.224.0.0/16 dev eth0 proto kernel scope link src 10.224.0.4",
            "add broadcast 10.224.255.255 dev eth0 table local proto kernel scope link src 10.224.0.4",
        ]

    def test_a_new_address_comes_before_its_routes(
        self, eth0: Node, listener: Listener, backend: RouteBackend
    ) -> None:
        """A new address is announced before the routes that the kernel adds for it, which are the
        last of their places.
        """
        arrange(eth0, "172.16.0.0/16 via 10.224.0.1 dev eth0")
        eth0.add_address("ib0", "172.16.1.4/16")
        _, address, *routes = listener.take()
        [held] = [link.addresses for link in backend.links() if link.name == "ib0"]
        assert address == AddressEvent("set", "ib0", *held)
        assert sorted(shown(routes)) == [
            "add broadcast 172.16.255.255 dev ib0 table local proto kernel scope link src 172.16.1.4",
            "add local 172.16.1.4 dev ib0 table local proto kernel scope host src 172.16.1.4",
            "append 172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4",
        ]

    def test_a_removed_address_takes_other_routes_in_silence(
        self, eth0: Node, listener: Listener
    ) -> None:
        """A removed address is announced with the routes that the kernel had added for it; a route
        by a gateway is lost without an event.
        """
        arrange(eth0, NINE)
        listener.take()
        eth0.remove_address("eth0", "10.224.0.4/16")
        address, *routes = shown(listener.take())
        assert address == "remove 10.224.0.4/16 dev eth0"
        assert sorted(routes) == [
            "remove 10.224.0.0/16 dev eth0 proto kernel scope link src 10.224.0.4",
            "remove broadcast 10.224.255.255 dev eth0 table local proto kernel scope link src 10.224.0.4",
            "remove local 10.224.0.4 dev eth0 table local proto kernel scope host src 10.224.0.4",
        ]

    def test_secondary_addresses_go_before_their_primary_one(
        self, eth0: Node, listener: Listener
    ) -> None:
        """The secondary addresses of a removed address are announced before it, each before its
        local route.
        """
        for last in 5, 6:
            eth0.add_address("eth0", f"10.224.0.{last}/16")
        listener.take()
        eth0.remove_address("eth0", "10.224.0.4/16")
        # The routes of the primary one follow.
        assert shown(listener.take())[:5] == [
            "remove 10.224.0.5/16 dev eth0",
            "remove local 10.224.0.5 dev eth0 table local proto kernel scope host src 10.224.0.4",
            "remove 10.224.0.6/16 dev eth0",
            "remove local 10.224.0.6 dev eth0 table local proto kernel scope host src 10.224.0.4",
            "remove 10.224.0.4/16 dev eth0",
        ]

    def test_a_removed_device_is_announced_last(self, eth0: Node, listener: Listener) -> None:
        """A removed device is announced after its addresses and the local route of the primary one;
        its other routes, also the local route of a secondary address, are lost without an event.
        """
        eth0.add_address("eth0", "10.224.0.5/16")
        arrange(eth0, NINE)
        listener.take()
        eth0.remove_link("eth0")
        taken = listener.take()
        assert shown(taken) == [
            "remove 10.224.0.4/16 dev eth0",
            "remove local 10.224.0.4 dev eth0 table local proto kernel scope host src 10.224.0.4",
            "remove 10.224.0.5/16 dev eth0",
        ]
        assert isinstance(taken[-1], DeviceEvent)
        device = taken[-1].device
        assert (taken[-1].verb, device.name, device.up) == ("remove", "eth0", False)

    def test_a_renamed_device_keeps_its_index(
        self, eth0: Node, listener: Listener, backend: RouteBackend
    ) -> None:
        """A renamed device is announced with its index and former name, and later events have the
        new name.
        """
        [index] = [link.ifindex for link in backend.links() if link.name == "eth0"]
        arrange(eth0, NINE)
        eth0.delete_route(route(NINE))
        eth0.set_up("eth0", up=False)
        listener.take()
        rename(eth0, "eth0", "fab0")
        [event, *_] = listener.take()
        assert isinstance(event, DeviceEvent)
        assert (event.verb, event.device.name, event.device.ifindex) == ("set", "fab0", index)
        assert event.former == "eth0"
        eth0.set_up("fab0")
        arrange(eth0, "9.0.0.0/8 dev fab0")
        eth0.remove_address("fab0", "10.224.0.4/16")
        taken = listener.take()
        assert "add 9.0.0.0/8 dev fab0 scope link" in shown(taken)
        assert "remove 10.224.0.4/16 dev fab0" in shown(taken)
        assert "eth0" not in repr(taken)

    def test_a_lost_rename_does_no_harm(self, eth0: Node, listener: Listener, most: int) -> None:
        """Events after a loss have the new name of a device whose rename was lost."""
        eth0.set_up("ib0", up=False)
        rename(eth0, "ib0", "fab0")
        eth0.set_up("fab0")
        eth0.add_link("ib0")
        self.lose(eth0, listener, most)
        with pytest.raises(EventsLostError):
            listener.take()
        arrange(eth0, "7.0.0.0/8 dev fab0")
        assert shown(listener.take()) == ["add 7.0.0.0/8 dev fab0 scope link"]

    def test_a_device_is_announced_as_it_is(
        self, eth0: Node, listener: Listener, backend: RouteBackend, ctx: Context
    ) -> None:
        """The last event of a device shows the same as a reading, after it was added, put into a
        group, set down and up.

        The kernel does not announce the group of a device that is down.
        """
        eth0.add_link("ib1")
        group(eth0, "ib1", "7")
        eth0.set_up("ib1", up=False)
        group(eth0, "ib1", "8")
        eth0.set_up("ib1")
        taken = self.devices_until(listener, ctx, lambda device: device.group == 8)
        [ib1] = [link for link in backend.links() if link.name == "ib1"]
        assert taken[-1] == DeviceEvent("set", ib1)
        assert {event.device.name for event in taken} == {"ib1"}
        assert [event.device.group for event in taken if not event.device.up][-1] == 7


def rename(node: Node, name: str, new: str) -> None:
    """Give a device another name."""
    assert isinstance(node, KernelNode)
    node.ip(f"link set {name} name {new}")


def group(node: Node, name: str, number: str) -> None:
    """Give a device another group."""
    assert isinstance(node, KernelNode)
    node.ip(f"link set {name} group {number}")


class TestMemoryEvents(NetworkEventsContract):
    """The contract on the fake."""

    @pytest.fixture
    def node(self) -> MemoryBackend:
        return MemoryBackend()

    @pytest.fixture
    def backend(self, node: MemoryBackend) -> RouteBackend:
        return node

    @pytest.fixture
    def events(self, node: MemoryBackend) -> NetworkEvents:
        return node.events

    @pytest.fixture
    def other(self) -> Node:
        return MemoryBackend()

    @pytest.fixture
    def most(self, events: MemoryEvents) -> int:
        events.most = 3
        return 4


@needs_kernel
class TestNetlinkEvents(KernelEventsContract):
    """The contract on the kernel."""

    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        with KernelNode.made() as node:
            yield node

    @pytest.fixture
    def events(self, node: KernelNode) -> NetworkEvents:
        return NetlinkEvents(netns=node.name)

    @pytest.fixture
    def other(self) -> Iterator[Node]:
        with KernelNode.made() as other:
            yield other

    @pytest.fixture
    def most(self, monkeypatch: pytest.MonkeyPatch) -> int:
        monkeypatch.setattr("hostrouting.host.netlink.events._MOST_BYTES", 5 * 60)
        return 6


# --- only the kernel


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as made:
        connect(made, eth0="10.224.0.4/16")
        yield made


@pytest.fixture
def backend(node: KernelNode) -> NetlinkBackend:
    return kernel_of(node)


@pytest.fixture
def ctx() -> Context:
    return Context()


@pytest.fixture
def listener(node: KernelNode, ctx: Context) -> Iterator[NetlinkListener]:
    with NetlinkEvents(netns=node.name).listen(ctx) as listener:
        yield listener


@pytest.fixture
def small_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sockets have the smallest buffer that the kernel permits: it holds two events."""
    monkeypatch.setattr("hostrouting.host.netlink.events.SOCKET_BYTES", 1)


def by_place(routes: Sequence[ObservedRoute]) -> dict[object, list[ObservedRoute]]:
    """Return the routes of each place, in their order."""
    places: dict[object, list[ObservedRoute]] = {}
    for one in routes:
        places.setdefault(route_key(one), []).append(one)
    return places


def replay(standing: dict[object, list[ObservedRoute]], event: RouteEvent) -> None:
    """Make the change of the event, and refuse what cannot be."""
    routes = standing.setdefault(route_key(event.route), [])
    match event.verb:
        case "remove":
            routes.remove(event.route)
        case "replace":
            routes[0] = event.route
        case _:
            assert (event.verb == "add") == (not routes)
            routes.insert(0 if event.verb == "prepend" else len(routes), event.route)


def churn(node: KernelNode, seed: int) -> None:
    """Change few places at random, thousands of times; the kernel refuses a part."""
    random = Random(seed)
    lines = [
        f"route {random.choice(['add', 'append', 'prepend', 'replace', 'delete'])} 9.0.{random.randrange(4)}.0/24 "
        f"via 10.224.0.{random.randrange(1, 5)} metric {random.choice([0, 50])}"
        for _ in range(4000)
    ]
    command = ["ip", "-n", node.name, "-force", "-batch", "-"]
    subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)


@needs_kernel
class TestInTheKernel:
    """Bursts, losses, privileges, and announcements that are not events."""

    def test_a_storm_wakes_the_caller_every_five_milliseconds(
        self, node: KernelNode, backend: NetlinkBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Announcements in quick succession wake the caller at most once in five milliseconds."""
        calls: list[Context] = []
        monkeypatch.setattr("hostrouting.host.netlink.events.notify", calls.append)
        with NetlinkEvents(netns=node.name).listen(Context()) as listener:
            started = time.monotonic()
            for change in many(1000):
                backend.apply([change], verify=False)
            listener.take()
            milliseconds = 1000 * (time.monotonic() - started)
        assert 0 < len(calls) <= milliseconds / 5 + 1

    def test_a_storm_while_its_events_are_not_read_fits_the_socket(
        self, backend: NetlinkBackend, listener: NetlinkListener
    ) -> None:
        """The socket of a privileged listener buffers 15,000 route events while its thread does not
        read.
        """
        with listener._lock:
            backend.apply(many(15_000), verify=False)
        assert len(listener.take()) == 15_000

    @pytest.mark.usefixtures("small_socket")
    def test_a_socket_that_overflowed_reports_it(
        self, backend: NetlinkBackend, listener: NetlinkListener, ctx: Context
    ) -> None:
        """A socket that overflowed wakes its waiters and reports the loss, drops the events before
        it, and receives every later event.
        """
        with woken(ctx, listener), listener._lock:
            backend.apply(many(250), verify=False)
        with pytest.raises(
            EventsLostError, match="in the socket's buffer; read everything again"
        ) as heard_events:
            listener.take()
        assert heard_events.value.errno == errno.ENOBUFS
        assert listener.take() == []
        backend.apply([RouteChange.add(Route.parse("9.0.0.0/8", dev="eth0"))], verify=False)
        assert [str(event[1]) for event in listener.take()] == [
            "9.0.0.0/8 dev eth0 proto 142 scope link"
        ]

    def test_a_caller_that_does_not_take_bounds_the_memory(
        self, backend: NetlinkBackend, listener: NetlinkListener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A listener whose stored events exceed the limit drops them and reports a loss."""
        monkeypatch.setattr("hostrouting.host.netlink.events._MOST_BYTES", 100 * 60)
        backend.apply(many(1000), verify=False)
        listener._receive()
        assert listener.has_news
        assert listener._stored == []
        with pytest.raises(EventsLostError, match="before they were taken"):
            listener.take()

    def test_listening_needs_no_privilege(self, node: KernelNode) -> None:
        """A process without capabilities can listen."""
        program = (
            "from hostrouting.host.netlink.events import NetlinkEvents\n"
            "from phases import Context\n"
            "with NetlinkEvents().listen(Context()) as listener: print(listener.take())"
        )
        assert node.run(*powerless(), sys.executable, "-c", program) == "[]\n"

    def test_a_port_that_leaves_its_bridge_is_still_there(
        self, node: KernelNode, listener: NetlinkListener
    ) -> None:
        """A port that leaves its bridge is not announced as removed, although the bridge announces
        a removed link; its events show its master.
        """
        node.ip("link add br0 type bridge")
        node.ip("link set eth0 master br0")
        node.ip("link set eth0 nomaster")
        heard_events = [
            event
            for event in listener.take()
            if isinstance(event, DeviceEvent) and event.device.name == "eth0"
        ]
        assert [event.verb for event in heard_events] == ["set"] * len(heard_events)
        assert "br0" in {event.device.master for event in heard_events}
        assert heard_events[-1].device.master is None

    def test_other_announcements_wake_nobody(
        self, node: KernelNode, listener: NetlinkListener
    ) -> None:
        """Announced IPv6 neighbours, stations of bridges and the settings of a new device do not
        wake a listener; a change of one setting does.
        """
        node.ip("link add br0 type bridge")
        node.ip("link set eth0 master br0")
        assert not any(isinstance(event, SettingEvent) for event in listener.take())
        node.ip("neigh add fd00::9 lladdr 02:00:00:00:00:09 dev eth0")
        node.run("bridge", "fdb", "add", "02:00:00:00:00:09", "dev", "eth0", "master", "static")
        listener._receive()
        assert not listener.has_news
        node.run("sysctl", "-qw", "net.ipv4.conf.br0.ignore_routes_with_linkdown=1")
        assert listener.take() == [SettingEvent("set", "ignore_routes_with_linkdown")]

    def test_a_changed_nexthop_object_replaces_its_routes_where_they_stand(
        self, node: KernelNode, listener: NetlinkListener, backend: NetlinkBackend
    ) -> None:
        """A route whose nexthop object changes is announced as replaced, also if it is not the
        first of its place.
        """
        node.ip("nexthop add id 7 via 10.224.0.1 dev eth0")
        node.ip("route add 9.0.0.0/8 via 10.224.0.9")
        node.ip("route append 9.0.0.0/8 nhid 7")
        listener.take()
        node.ip("nexthop replace id 7 via 10.224.0.2 dev eth0")
        heard_events = listener.take()
        assert NexthopEvent("set", 7) in heard_events
        [event] = [event for event in heard_events if isinstance(event, RouteEvent)]
        standing = [route for route in backend.routes() if route.network == 9 << 24]
        assert event[:2] == ("replace", standing[1])

    def test_a_change_of_a_route_names_its_sender(
        self, node: KernelNode, listener: NetlinkListener
    ) -> None:
        """The event of a route has the process that changed it, and none if the kernel did."""
        for verb in "add", "delete":
            command = ["ip", "-n", node.name, "route", verb, "blackhole", "9.0.0.0/8"]
            with subprocess.Popen(command) as process:
                assert process.wait() == 0
            [event] = listener.take()
            assert isinstance(event, RouteEvent)
            assert event.sender == process.pid
        node.ip("address add 10.225.0.4/16 dev eth0")
        senders = [event.sender for event in listener.take() if isinstance(event, RouteEvent)]
        assert set(senders) == {0}

    def test_a_failure_of_the_thread_is_reported(
        self, node: KernelNode, listener: NetlinkListener, ctx: Context
    ) -> None:
        """A failure of the listener's thread is raised by each later `take`."""
        with socket.socket() as closed:
            pass
        listener._socket = closed
        with woken(ctx, listener):
            node.add_route("9.0.0.0/8", dev="eth0")
        for _ in range(2):
            with pytest.raises(
                BackendError, match=r"^listening to network events has ended: .*Bad file"
            ) as heard_events:
                listener.take()
            assert isinstance(heard_events.value.__cause__, OSError)

    def test_replayed_events_end_in_the_reading(
        self, node: KernelNode, listener: NetlinkListener, backend: NetlinkBackend, ctx: Context
    ) -> None:
        """The events of two programs that change the same places, replayed in order, end in the
        routes that a reading returns.
        """
        standing = by_place(backend.routes())
        assert listener.take() == []
        events: list[NetworkEvent] = []
        with ThreadPoolExecutor() as pool:
            churns = [pool.submit(churn, node, seed) for seed in (1, 2)]
            for each in churns:
                each.add_done_callback(lambda _: notify(ctx))
            while not all(each.done() for each in churns):
                wait(ctx, lambda: listener.has_news or all(each.done() for each in churns))
                events += listener.take()
        events += listener.take()
        assert len(events) > 1000
        for event in events:
            assert isinstance(event, RouteEvent)
            replay(standing, event)
        assert {key: routes for key, routes in standing.items() if routes} == by_place(
            backend.routes()
        )

    def test_a_reading_between_two_takes_without_news_is_exact(
        self, node: KernelNode, listener: NetlinkListener, backend: NetlinkBackend
    ) -> None:
        """Every change that was made before `take` is in its events, whether or not the thread has
        received it.
        """
        for number in range(50):
            with listener._lock:
                node.add_route(f"9.0.{number}.0/24", dev="eth0")
                assert not listener._stored
            assert len(listener.take()) == 1
        before = backend.routes()
        assert listener.take() == []
        assert before == backend.routes()
