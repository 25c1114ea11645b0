"""Next to programs that change the same places in a tight loop: none of their routes is lost or left stale.

The oracle is the state without hostrouting: each program keeps a list of the changes that it made.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from support.kernel import needs_kernel

from hostrouting.exceptions import RouteRejectedError
from hostrouting.host import OUR_PROTOCOL, Host, Route
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.namespaces import in_namespace, open_here
from hostrouting.host.netlink.route_writer import RouteWriter
from hostrouting.static_routes.converge import RECORDS_PATH, Convergence
from hostrouting.testing import FakeHost, KernelNode
from phases import Context

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

pytestmark = needs_kernel

#: A prefix for each way to change it; the last by itself, for two that replace ours all the time leave us no turn.
WAYS = {
    "172.16.1.0/24": "replace",
    "172.16.2.0/24": "add and delete",
    "172.16.3.0/24": "append and delete",
    "172.16.4.0/24": "flip",
}
ALTOGETHER = ("172.16.1.0/24", "172.16.2.0/24", "172.16.3.0/24")
FLIPPING = ("172.16.4.0/24",)
#: The longest pause of the first apply, in seconds; none later is shorter.
FIRST_PAUSE = 0.004
CREATE, REPLACE, EXCLUSIVE, APPEND = 0x400, 0x100, 0x200, 0x800


class Changer:
    """A program that keeps its own routes, and a list of those that it believes to have."""

    def __init__(self, opened: socket.socket, index: int, prefixes: Sequence[str], seed: int, *, pauses: bool) -> None:
        self._socket = opened
        self._index = index
        self._prefixes = prefixes
        self._pauses = pauses
        #: In seconds. A run doubles it after a refusal, because a slow machine needs more time, and halves it after an
        #: apply that succeeds.
        self.longest_pause = FIRST_PAUSE
        self._random = random.Random(seed)
        #: The routes of each place by the changer's list, in their order.
        self.account: dict[str, list[str]] = {prefix: [] for prefix in prefixes}
        #: Routes that their owner deleted while they were displaced: these may be restored.
        self.may_return: set[tuple[str, str]] = set()
        self.turn = threading.Lock()
        self.stop = threading.Event()
        self.count = 0

    def send(self, prefix: str, gateway: str, kind: int, flags: int) -> int:
        """One request of an owner's with protocol 16; the errno."""
        route = Route.parse(prefix, gateway=gateway, dev="eth0", protocol=16)
        writer = RouteWriter({"eth0": self._index})
        before, behind = writer._pack_signature((), route)
        body = before + route.network.to_bytes(4, "big") + behind
        header = (16 + len(body)).to_bytes(4, "little") + kind.to_bytes(2, "little")
        header += (0x5 | flags).to_bytes(2, "little") + (7).to_bytes(4, "little") + bytes(4)
        self._socket.send(header + body)
        answer = self._socket.recv(4096)
        return -int.from_bytes(answer[16:20], "little", signed=True)

    def run(self) -> None:
        while not self.stop.is_set():
            with self.turn:
                self.change(self._random.choice(self._prefixes))
            if self._pauses and self.count % 16 == 0:
                self.stop.wait(self._random.uniform(0, self.longest_pause))

    def change(self, prefix: str) -> None:
        """Change one place in its way, and keep account of it."""
        way = WAYS[prefix]
        self.count += 1
        gateway = f"10.224.{2 + self.count // 250 % 250}.{1 + self.count % 250}"
        if way == "flip":
            # Of two gateways only: the first route may be the one that was first before.
            gateway = self._random.choice(["10.224.0.73", "10.224.0.247"])
        account = self.account[prefix]
        if way in {"replace", "flip"}:
            if self.send(prefix, gateway, 24, CREATE | REPLACE) == 0:
                account[:1] = [gateway]
        elif account and (len(account) > 2 or self._random.random() < 0.5):
            gone = account.pop(self._random.randrange(len(account)))
            if self.send(prefix, gone, 25, 0):
                self.may_return.add((prefix, gone))
        else:
            flags = CREATE | (EXCLUSIVE if way == "add and delete" else APPEND)
            if self.send(prefix, gateway, 24, flags) == 0:
                account.append(gateway)


@contextmanager
def node_with_changer(prefixes: Sequence[str], seed: int, *, pauses: bool) -> Iterator[tuple[KernelNode, Changer]]:
    with KernelNode.made() as node:
        node.add_link("eth0")
        node.add_address("eth0", "10.224.0.4/16")
        with in_namespace(node.name, open_here) as opened:
            opened.setblocking(True)
            opened.bind((0, 0))
            index = next(link.ifindex for link in NetlinkBackend(netns=node.name).links() if link.name == "eth0")
            changer = Changer(opened, index, prefixes, seed, pauses=pauses)
            thread = threading.Thread(target=changer.run)
            interval = sys.getswitchinterval()
            # Both sides are to run in turn by the system call, not by Python's 5 ms.
            sys.setswitchinterval(1e-5)
            thread.start()
            try:
                yield node, changer
            finally:
                changer.stop.set()
                thread.join()
                sys.setswitchinterval(interval)


def standing(backend: NetlinkBackend) -> dict[str, list[str]]:
    """Each place as the changer writes it; ours as `ours`."""
    found: dict[str, list[str]] = {prefix: [] for prefix in WAYS}
    for route in backend.routes():
        if route.destination in found:
            gateway = str(route).split(" via ")[1].split()[0]
            found[route.destination].append("ours" if route.protocol == OUR_PROTOCOL else gateway)
    return found


def live_pairs(
    pairs: int, prefixes: Sequence[str], seed: int, caplog: pytest.LogCaptureFixture, *, pauses: bool
) -> dict[str, int]:
    """Apply and reset so often; a difference to the state without hostrouting is an assertion.

    A refusal names the routes that it could not restore, and keeps their record; the next reset restores them.
    """
    counted = "applied", "refused", "reported as remaining", "resets refused", "changes", "came back though deleted"
    figures = dict.fromkeys(counted, 0)
    ours = [Route.parse(prefix, gateway="10.224.0.1", dev="eth0") for prefix in prefixes]
    with node_with_changer(prefixes, seed, pauses=pauses) as (node, changer):
        backend = NetlinkBackend(netns=node.name)
        for number in range(pairs):
            fake = FakeHost()
            host = Host(routes=backend, services=fake.services, files=fake.files, lock=fake.lock, is_live=True)
            logger = logging.getLogger("changers")
            caplog.clear()
            try:
                Convergence(host, logger).run(Context(), ours)
                figures["applied"] += 1
                changer.longest_pause = max(FIRST_PAUSE, changer.longest_pause / 2)
            except RouteRejectedError as error:
                figures["reported as remaining"] += len(error.left_behind)
                figures["refused"] += 1
                changer.longest_pause *= 2
            while True:
                try:
                    Convergence(host, logger).run(Context(), ())
                    break
                except RouteRejectedError as error:
                    figures["reported as remaining"] += len(error.left_behind)
                    figures["resets refused"] += 1
            with changer.turn:
                there = standing(backend)
                for prefix, routes in ((prefix, there[prefix]) for prefix in prefixes):
                    extra = [route for route in routes if route not in changer.account[prefix]]
                    returned = [route for route in extra if (prefix, route) in changer.may_return]
                    figures["came back though deleted"] += len(returned)
                    kept = [route for route in routes if route not in returned]
                    assert kept == changer.account[prefix], (number, prefix, WAYS[prefix], caplog.messages)
                    changer.account[prefix] = list(routes)
                # A route that has not been restored by now never is.
                changer.may_return.clear()
                assert not fake.files.exists(RECORDS_PATH), caplog.messages
        figures["changes"] = changer.count
    return figures


LIVES = pytest.mark.parametrize(
    ("prefixes", "pauses"),
    [(ALTOGETHER, False), (ALTOGETHER, True), (FLIPPING, False), (FLIPPING, True)],
    ids=["altogether", "altogether with pauses", "flipping", "flipping with pauses"],
)


def check_pairs(pairs: int, prefixes: Sequence[str], *, pauses: bool, caplog: pytest.LogCaptureFixture) -> None:
    figures = live_pairs(pairs, prefixes, pairs, caplog, pauses=pauses)
    logging.getLogger(__name__).warning("%s", figures)
    assert figures["changes"] > pairs
    # A program that replaces ours without a pause leaves it no time to be seen, and is named instead.
    assert figures["applied"] > 0 or not pauses


@LIVES
def test_apply_and_reset_among_changers(
    prefixes: Sequence[str], pauses: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A sample of the soak run: 50 pairs of each life."""
    check_pairs(50, prefixes, pauses=pauses, caplog=caplog)


@pytest.mark.soak
@LIVES
def test_five_thousand_pairs_among_changers(
    prefixes: Sequence[str], pauses: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """5,000 pairs of apply and reset lose nothing and leave nothing stale."""
    check_pairs(5000, prefixes, pauses=pauses, caplog=caplog)
