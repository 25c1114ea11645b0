"""Next to programs that change the same places in a tight loop: none of their routes is lost, moved or left.

They append, prepend, or add exclusively, and delete by full description. The oracle is the state without hostrouting:
each program keeps a list of the changes that the kernel accepted.
"""

import logging
import random
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.kernel import needs_kernel

from hostrouting.exceptions import RouteRejectedError
from hostrouting.host import OUR_PROTOCOL, Host, Route
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.conversation import in_namespace, open_here
from hostrouting.host.netlink.route_writer import RouteWriter
from hostrouting.static_routes.converge import converge
from hostrouting.testing import FakeHost, KernelNode
from phases import Context

pytestmark = needs_kernel

CREATE, EXCLUSIVE, APPEND = 0x400, 0x200, 0x800
#: A prefix for each way to change it.
WAYS = {"172.16.1.0/24": APPEND, "172.16.2.0/24": 0, "172.16.3.0/24": EXCLUSIVE}
#: The longest pause of the first apply, in seconds; none later is shorter.
FIRST_PAUSE = 0.004


class Changer:
    """A program that keeps its own routes, and a list of those that it believes to have."""

    def __init__(self, opened: socket.socket, index: int, seed: int, *, pauses: bool) -> None:
        self._socket = opened
        self._index = index
        self._pauses = pauses
        #: In seconds. A run doubles it after a refusal, because a slow machine needs more time, and halves it after an
        #: apply that succeeds.
        self.longest_pause = FIRST_PAUSE
        self._random = random.Random(seed)
        #: The routes of each place by the changer's list, in their order.
        self.account: dict[str, list[str]] = {prefix: [] for prefix in WAYS}
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
                self.change(self._random.choice([*WAYS]))
            if self._pauses and self.count % 16 == 0:
                self.stop.wait(self._random.uniform(0, self.longest_pause))

    def change(self, prefix: str) -> None:
        """Change one place in its way, and keep account of it."""
        self.count += 1
        account, way = self.account[prefix], WAYS[prefix]
        if account and (len(account) > 2 or self._random.random() < 0.5):
            gone = account.pop(self._random.randrange(len(account)))
            assert self.send(prefix, gone, 25, 0) == 0
            return
        gateway = f"10.224.{2 + self.count // 250 % 250}.{1 + self.count % 250}"
        if self.send(prefix, gateway, 24, CREATE | way) == 0:
            account.insert(len(account) if way == APPEND else 0, gateway)


@contextmanager
def node_with_changer(seed: int, *, pauses: bool) -> Iterator[tuple[KernelNode, Changer]]:
    with KernelNode.made() as node:
        node.add_link("eth0")
        node.add_address("eth0", "10.224.0.4/16")
        with in_namespace(node.name, open_here) as opened:
            opened.setblocking(True)
            opened.bind((0, 0))
            index = next(link.ifindex for link in NetlinkBackend(netns=node.name).links() if link.name == "eth0")
            changer = Changer(opened, index, seed, pauses=pauses)
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


def live_pairs(pairs: int, *, pauses: bool) -> int:
    """Apply and reset so often; a difference to the state without hostrouting is an assertion.

    Return how many applies succeeded: a program that takes the place without a pause may leave none its turn.
    """
    applied = 0
    ours = [Route.parse(prefix, gateway="10.224.0.1", dev="eth0") for prefix in WAYS]
    with node_with_changer(pairs, pauses=pauses) as (node, changer):
        backend = NetlinkBackend(netns=node.name)
        fake, logger = FakeHost(), logging.getLogger("changers")
        host = Host(routes=backend, services=fake.services, files=fake.files, lock=fake.lock, is_live=True)
        for number in range(pairs):
            try:
                converge(Context(), ours, host, logger)
                applied += 1
                changer.longest_pause = max(FIRST_PAUSE, changer.longest_pause / 2)
            except RouteRejectedError:
                changer.longest_pause *= 2
            converge(Context(), (), host, logger)
            with changer.turn:
                assert standing(backend) == changer.account, number
        assert changer.count > pairs
    return applied


LIVES = pytest.mark.parametrize("pauses", [False, True], ids=["without pauses", "with pauses"])


@pytest.mark.slow
@LIVES
def test_apply_and_reset_among_changers(pauses: bool) -> None:
    """A sample of the soak run: 50 pairs of each life."""
    assert live_pairs(50, pauses=pauses) > 0 or not pauses


@pytest.mark.soak
@LIVES
def test_five_thousand_pairs_among_changers(pauses: bool) -> None:
    """5,000 pairs of apply and reset lose nothing and leave nothing stale."""
    assert live_pairs(5000, pauses=pauses) > 0 or not pauses
