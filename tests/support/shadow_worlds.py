"""The same node twice, with the same commands of another program: hostrouting works in one of the
two namespaces.

Shares no code with what it judges: `ip` changes the routes and shows them.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import attrs

from hostrouting.testing import KernelNode

#: Of the routes that the other program makes.
PROTOCOLS = ("static", "dhcp", "bird")
_MAKERS = (*PROTOCOLS, "kernel")
#: Of some of these routes: the routes of another tos are a place by themselves.
TOS = "0x10"
NODE = (
    "link add eth0 type ifb",
    "link add eth1 type ifb",
    "link set eth0 up",
    "link set eth1 up",
    "address add 10.1.0.2/24 dev eth0",
    "address add 10.1.0.3/24 dev eth0",
    "address add 10.2.0.2/24 dev eth1",
    "route add default via 10.1.0.1 dev eth0 proto dhcp metric 100",
)
#: Carrier comes and goes a moment after the device itself.
_FLAGS = re.compile(r" (linkdown|dead)\b")
_HANGS_AFTER = 60.0
_REFUSAL = re.compile(r"(?P<reason>[^\n]*)\nCommand failed -:(?P<line>\d+)\n")


class Hand:
    """Another program in a namespace: one `ip -batch`, which takes commands as long as it lives."""

    def __init__(self, namespace: str) -> None:
        self._process = subprocess.Popen(
            ["ip", "-n", namespace, "-force", "-details", "-oneline", "-batch", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._commands = self._process.stdin
        self._answers, self._refusals = self._process.stdout.fileno(), self._process.stderr.fileno()
        self._lines = 0

    def close(self) -> None:
        """Let it end."""
        self._process.communicate()

    def tell(self, *commands: str) -> list[str]:
        """Let it run commands; return a reason for each that was refused, and an empty text for the
        others.
        """
        first = self._lines + 1
        self._lines += len(commands) + 1
        # The last one is refused in any case, and so tells that all are done.
        self._commands.write("\n".join([*commands, "barrier", ""]).encode())
        told, last = "", f"Command failed -:{self._lines}\n"
        while not told.endswith(last):
            told += self._read(self._refusals)
        reasons = {int(match["line"]): match["reason"] for match in _REFUSAL.finditer(told)}
        return [reasons.get(first + at, "") for at in range(len(commands))]

    def routes(self) -> list[str]:
        """Return the routes of table main as `ip -details` shows them, in the order of the kernel."""
        self.tell("route show table main")
        shown = self._read(self._answers) if select.select([self._answers], [], [], 0)[0] else ""
        lines = [_FLAGS.sub("", line).strip() for line in shown.splitlines()]
        return [line for line in lines if not line.startswith("nh_info ")]

    @staticmethod
    def _read(pipe: int) -> str:
        assert select.select([pipe], [], [], _HANGS_AFTER)[0], "ip does not answer"
        read = os.read(pipe, 1 << 20)
        assert read, "ip has ended"
        return read.decode()


def destination(route: str) -> str:
    """Return the destination of a route as it is shown."""
    return route.split()[1]


def place(route: str) -> tuple[str, str, str]:
    """Return destination, tos and metric of a route as it is shown."""
    words = route.split()
    tos, metric = (
        words[words.index(name) + 1] if name in words else "" for name in ("tos", "metric")
    )
    return words[1], tos, metric


def ours(routes: Sequence[str]) -> list[str]:
    """Return the routes of hostrouting."""
    return [route for route in routes if " proto 142 " in f"{route} "]


def foreign(routes: Sequence[str]) -> list[str]:
    """Return the routes of other programs and of the kernel."""
    return [route for route in routes if " proto 142 " not in f"{route} "]


def first_is(routes: Sequence[str], wanted: str) -> bool:
    """Return whether a route is the first one of its place."""
    return next((route for route in routes if place(route) == place(wanted)), None) == wanted


@attrs.frozen
class Deed:
    """A command in both namespaces: its refusals, and the routes before and after."""

    command: str
    refused: str
    refused_in_shadow: str
    before: list[str]
    after: list[str]
    shadow_before: list[str]
    shadow_after: list[str]

    @property
    def counts(self) -> bool:
        """Whether both refused it alike, or both accepted it, and it met no route of ours."""
        return self.refused == self.refused_in_shadow and ours(self.before) == ours(self.after)


@attrs.frozen
class Twins:
    """A node on which hostrouting works, and its shadow, on which it does not."""

    node: KernelNode
    here: Hand
    there: Hand

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[Twins]:
        """Make the two."""
        with ExitStack() as stack:
            nodes = [stack.enter_context(KernelNode.made()) for _ in range(2)]
            hands = [Hand(node.name) for node in nodes]
            for hand in hands:
                stack.callback(hand.close)
            twins = cls(nodes[0], *hands)
            twins.agree(*NODE)
            yield twins

    def agree(self, *commands: str) -> None:
        """Run commands that both must answer alike, whatever the answer is."""
        answers = [hand.tell(*commands) for hand in (self.here, self.there)]
        assert answers[0] == answers[1], commands

    def act(self, command: str) -> Deed:
        """Run a command of the other program in both."""
        before, shadow_before = self.here.routes(), self.there.routes()
        [refused], [refused_in_shadow] = self.here.tell(command), self.there.tell(command)
        after, shadow_after = self.here.routes(), self.there.routes()
        return Deed(command, refused, refused_in_shadow, before, after, shadow_before, shadow_after)

    def forget(self, prefix: str) -> None:
        """Take away all foreign routes to a destination, from both."""
        for hand in (self.here, self.there):
            count = sum(destination(route) == prefix for route in hand.routes())
            # Without their next hops, since the kernel may show these in another form than it
            # takes.
            each_way = [
                f"route del {prefix} proto {each}{tos}"
                for each in _MAKERS
                for tos in ("", f" tos {TOS}")
            ]
            hand.tell(*each_way * count)
        self.same()

    def same(self) -> None:
        """Assert that the foreign routes are the same in both, in the same order."""
        assert foreign(self.here.routes()) == foreign(self.there.routes())
