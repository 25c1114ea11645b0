"""The contract of `NetworkEvents` on the fake and on the kernel, and facts that only the kernel can
show.
"""

import errno
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from support.contracts.network_events import KernelEventsContract, NetworkEventsContract
from support.kernel import connect, kernel_of, many, needs_kernel, powerless

from hostrouting import BackendError, EventsLostError
from hostrouting.host import (
    DeviceEvent,
    NetworkEvent,
    NetworkEvents,
    NexthopEvent,
    ObservedRoute,
    Route,
    RouteBackend,
    RouteChange,
    RouteEvent,
)
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.events import NetlinkEvents, NetlinkListener
from hostrouting.net.routes import place
from hostrouting.testing import KernelNode, MemoryBackend, MemoryEvents, Node
from phases import Context
from phases.hosting import notify, wait


class TestMemoryEvents(NetworkEventsContract):
    """The fake."""

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
    """The kernel."""

    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        with KernelNode.made() as node:
            yield node

    @pytest.fixture
    def backend(self, node: KernelNode) -> RouteBackend:
        return kernel_of(node)

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
    monkeypatch.setattr("hostrouting.host.netlink.events._SOCKET_BYTES", 1)


def by_place(routes: Sequence[ObservedRoute]) -> dict[object, list[ObservedRoute]]:
    """Return the routes of each place, in their order."""
    places: dict[object, list[ObservedRoute]] = {}
    for route in routes:
        places.setdefault(place(route), []).append(route)
    return places


def replay(standing: dict[object, list[ObservedRoute]], event: RouteEvent) -> None:
    """Make the change of the event, and refuse what cannot be."""
    routes = standing.setdefault(place(event.route), [])
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
    """Bursts, losses, privileges, and what is no event."""

    def test_a_storm_wakes_the_caller_every_five_milliseconds(
        self, node: KernelNode, backend: NetlinkBackend
    ) -> None:
        """Announcements that follow each other at once are received together."""

        class Counted(Context):
            calls = 0

            def _notify(self) -> None:
                self.calls += 1
                super()._notify()

        ctx = Counted()
        with NetlinkEvents(netns=node.name).listen(ctx) as listener:
            started = time.monotonic()
            for change in many(1000):
                backend.apply([change], verify=False)
            listener.take()
            milliseconds = 1000 * (time.monotonic() - started)
        assert 0 < ctx.calls <= milliseconds / 5 + 1

    def test_a_storm_while_its_events_are_not_read_fits_the_socket(
        self, backend: NetlinkBackend, listener: NetlinkListener
    ) -> None:
        """The thread may be late: the buffer of a privileged process holds 15,000 routes by itself."""
        with listener._lock:
            backend.apply(many(15_000), verify=False)
        assert len(listener.take()) == 15_000

    @pytest.mark.usefixtures("small_socket")
    def test_a_socket_that_overflowed_reports_it(
        self, backend: NetlinkBackend, listener: NetlinkListener
    ) -> None:
        """Nothing of before the loss is reported after it, and no event is missed from then on."""
        with listener._lock:
            backend.apply(many(250), verify=False)
        with pytest.raises(
            EventsLostError, match="in the socket's buffer; read everything anew"
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
        """More than the limit is a loss, and from then on nothing is stored."""
        monkeypatch.setattr("hostrouting.host.netlink.events._MOST_BYTES", 100 * 60)
        backend.apply(many(1000), verify=False)
        listener._receive()
        assert listener.has_news
        assert listener._stored == []
        with pytest.raises(EventsLostError, match="before they were taken"):
            listener.take()

    def test_listening_needs_no_privilege(self, node: KernelNode) -> None:
        """A process without capabilities receives the rest, with a buffer as large as the system
        permits.
        """
        program = (
            "from hostrouting.host.netlink.events import NetlinkEvents\n"
            "from phases import Context\n"
            "with NetlinkEvents().listen(Context()) as listener: print(listener.take())"
        )
        assert node.run(*powerless(), sys.executable, "-c", program) == "[]\n"

    def test_a_port_that_leaves_its_bridge_is_still_there(
        self, node: KernelNode, listener: NetlinkListener
    ) -> None:
        """The bridge announces a removed link for it; the events of the device show its master."""
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
        """Neighbours of IPv6 and stations of bridges come by the same groups, and there may be
        many.
        """
        node.ip("link add br0 type bridge")
        node.ip("link set eth0 master br0")
        listener.take()
        node.ip("neigh add fd00::9 lladdr 02:00:00:00:00:09 dev eth0")
        node.run("bridge", "fdb", "add", "02:00:00:00:00:09", "dev", "eth0", "master", "static")
        listener._receive()
        assert not listener.has_news

    def test_a_changed_nexthop_object_replaces_its_routes_where_they_stand(
        self, node: KernelNode, listener: NetlinkListener, backend: NetlinkBackend
    ) -> None:
        """The verb does not show that such a route is the first of its place."""
        node.ip("nexthop add id 7 via 10.224.0.1 dev eth0")
        node.ip("route add 9.0.0.0/8 via 10.224.0.9")
        node.ip("route append 9.0.0.0/8 nhid 7")
        listener.take()
        node.ip("nexthop replace id 7 via 10.224.0.2 dev eth0")
        heard_events = listener.take()
        assert NexthopEvent("set", 7) in heard_events
        [event] = [event for event in heard_events if isinstance(event, RouteEvent)]
        standing = [route for route in backend.routes() if route.network == 9 << 24]
        assert event == RouteEvent("replace", standing[1])

    def test_a_failure_of_the_thread_is_reported(
        self, node: KernelNode, listener: NetlinkListener, ctx: Context
    ) -> None:
        """Each call raises it: no event will come any more."""
        with socket.socket() as closed:
            pass
        listener._socket = closed
        node.add_route("9.0.0.0/8", dev="eth0")
        assert wait(ctx, lambda: listener.has_news, until=ctx.clock.monotonic() + 30)
        for _ in range(2):
            with pytest.raises(
                BackendError, match=r"^listening to network events has ended: .*Bad file"
            ) as heard_events:
                listener.take()
            assert isinstance(heard_events.value.__cause__, OSError)

    def test_replayed_events_end_in_the_reading(
        self, node: KernelNode, listener: NetlinkListener, backend: NetlinkBackend, ctx: Context
    ) -> None:
        """While two programs change the same places, no event is missed, and the verbs keep the
        order of each place.
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
        """Every change that was made before `take` is in it, whether or not the thread has seen it."""
        for number in range(50):
            with listener._lock:
                node.add_route(f"9.0.{number}.0/24", dev="eth0")
                assert not listener._stored
            assert len(listener.take()) == 1
        before = backend.routes()
        assert listener.take() == []
        assert before == backend.routes()
