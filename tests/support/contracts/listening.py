"""The promises of `NetworkEvents` for listening, as tests; with those for the events they are the
whole contract.
"""

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import pytest
from support.kernel import connect

from hostrouting import BackendError, EventsLostError
from hostrouting.host import (
    IPV4,
    IPV6,
    AddressEvent,
    DeviceEvent,
    Listener,
    NetworkEvent,
    NetworkEvents,
    Rule,
)
from hostrouting.testing import Node
from hostrouting.testing.contracts.routes import arrange
from phases import CancelledError, Context

#: Seconds after which an event of a slow machine counts as missed.
PATIENCE = 30
NINE = "9.0.0.0/8 dev ib0 scope link"
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


class ListeningContract:
    """See `NetworkEventsContract`.

    Further fixtures of a subclass are `other`, another node, and `most`: it lets a listener store
    little, and is a number of route events that is too many for it.
    """

    @pytest.fixture
    def ctx(self) -> Context:
        """The context of the listener."""
        return Context()

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

    def test_nothing_from_before_is_told(
        self, eth0: Node, events: NetworkEvents, ctx: Context
    ) -> None:
        """A listener has the changes since it listens, and each only once."""
        with events.listen(ctx) as listener:
            assert shown(listener.take()) == []
            arrange(eth0, NINE)
            assert shown(listener.take()) == [f"add {NINE}"]
            assert shown(listener.take()) == []

    def test_every_listener_is_told(
        self, eth0: Node, events: NetworkEvents, listener: Listener, ctx: Context
    ) -> None:
        """One that takes takes nothing from another."""
        with events.listen(ctx) as second:
            arrange(eth0, NINE)
            assert shown(second.take()) == shown(listener.take()) == [f"add {NINE}"]

    def test_one_family(
        self, eth0: Node, events: NetworkEvents, listener: Listener, ctx: Context
    ) -> None:
        """A listener of IPv4 hears nothing of IPv6, and is not woken by it; by default both are
        told.
        """
        with events.listen(ctx, families=(IPV4,)) as second:
            arrange(eth0, "fd00:9::/64 dev ib0 metric 1")
            eth0.add_rule(Rule(100, table=88, family=IPV6))
            eth0.add_address("ib0", "fd00:8::4/64")
            assert not second.has_news
            arrange(eth0, NINE)
            assert shown(second.take()) == [f"add {NINE}"]
            assert len(shown(listener.take())) > 3

    def test_another_node_is_not_heard(self, eth0: Node, other: Node, listener: Listener) -> None:
        """The events of other network namespaces are not told."""
        other.add_link("ib0")
        arrange(other, NINE)
        other.add_rule(Rule(100, table=88))
        assert listener.take() == []

    def test_a_change_wakes_the_context(self, eth0: Node, listener: Listener, ctx: Context) -> None:
        """A thread that waits in it goes on; without news it waits."""
        assert not ctx.wait(lambda: listener.has_news, until=ctx.clock.monotonic())
        awake: list[bool] = []
        until = ctx.clock.monotonic() + PATIENCE
        waiting = threading.Thread(
            target=lambda: awake.append(ctx.wait(lambda: listener.has_news, until=until))
        )
        waiting.start()
        arrange(eth0, NINE)
        waiting.join()
        assert awake == [True]
        assert shown(listener.take()) == [f"add {NINE}"]
        assert not listener.has_news

    def test_it_ends_with_its_block(self, eth0: Node, events: NetworkEvents, ctx: Context) -> None:
        """No thread stays, also after an error; nothing more can be taken."""
        threads = set(threading.enumerate())
        stack = ExitStack()
        listener = stack.enter_context(events.listen(ctx))
        with pytest.raises(KeyError, match="lost"), stack:
            raise KeyError("lost")
        assert set(threading.enumerate()) <= threads
        with pytest.raises(BackendError):
            listener.take()

    def test_a_cancelled_context_does_not_listen(self, events: NetworkEvents, ctx: Context) -> None:
        """The reason is in the error."""
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
        """It is told once, and the events after it are told again."""
        self.lose(eth0, listener, most)
        arrange(eth0, "8.0.0.0/8 dev ib0")
        with pytest.raises(EventsLostError, match="read everything anew"):
            listener.take()
        arrange(eth0, NINE)
        assert shown(listener.take()) == [f"add {NINE}"]
        assert listener.take() == []
