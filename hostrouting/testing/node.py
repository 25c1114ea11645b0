"""The handles of a node, in memory or in a namespace, that the contract of backends uses."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from hostrouting.base.errors import BackendError
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.routes import DEVICELESS_KINDS, ObservedRoute, Route, resting
from hostrouting.net.rules import Rule
from hostrouting.testing.route_texts import route
from phases import CommandFailedError, Context, run_command


class Node(Protocol):
    """The handles of a node. A refused call raises `BackendError`."""

    def add_link(self, name: str, *, up: bool = True, carrier: bool = True) -> None:
        """Add a device without addresses."""

    def remove_link(self, name: str) -> None:
        """Remove a device with every route over it, multipath routes too."""

    def set_up(self, name: str, *, up: bool = True) -> None:
        """Set the device up or down.

        Down removes its routes, but for the routes of its addresses. Up restores only the
        kernel's own routes, and the next hops of multipath routes.
        """

    def add_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """Add an address as `ip address add` does; `peer` is the far end of a link."""

    def remove_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """Remove an address, with the kernel's routes for it and routes in main with it as source.

        Its secondaries go first. With the last address of a device all its routes go.
        """

    def add_neighbour(self, dev: str, address: str) -> None:
        """Add a neighbour with its hardware address; it goes with a down device."""

    def fail_neighbour(self, dev: str, address: str) -> None:
        """Let the kernel give up a neighbour that does not answer; it goes with a down device."""

    def insert_route(self, route: Route, *, verb: str = "add") -> None:
        """Add a foreign route; `verb` is `add`, `prepend`, `append` or `replace`."""

    def delete_route(self, route: Route | ObservedRoute) -> None:
        """Delete a route, as another program does."""

    def add_rule(self, rule: Rule) -> None:
        """Add a rule, as `ip rule add` does."""

    def remove_rule(self, rule: Rule) -> None:
        """Delete the first rule that fits; an absent selector fits any."""

    def add_route(self, text: str, **fields: Any) -> None:
        """Append a foreign route that `ip route` shows so, with further fields by their names.

        As for `ip`, it is of the protocol boot, and one of IPv6 has the metric 1024.
        """
        self.insert_route(route(text, **fields), verb="append")


_numbers = itertools.count()
#: Puts a namespace into the kernel's own state: systemd changes the first setting. Link-local
#: addresses would come some time after their link. A kernel may have no IPv6.
_BEGINNING = """
for setting in /proc/sys/net/ipv4/conf/{all,default}/promote_secondaries; do
    echo 0 > $setting
done
ip link set lo up
if cd /proc/sys/net/ipv6/conf/default; then
    echo 1 > addr_gen_mode
fi 2> /dev/null
"""


class KernelNode(Node):
    """A network namespace for a test; `name` is its name for `ip netns`. Needs root and iproute2.

    Devices are of the type `veth`, with their other ends in a namespace of their own. They have
    carrier while they are up, and ask for no hardware address, so that every gateway answers.

        with KernelNode.made() as node:
            node.add_link("eth0")
            node.add_address("eth0", "10.224.0.4/16")
            host = attrs.evolve(Host.live(), routes=NetlinkBackend(netns=node.name))
    """

    def __init__(self, name: str) -> None:
        self.name = name
        #: The namespace of the other ends.
        self._far: str = f"{name}-far"

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[KernelNode]:
        """Make a fresh namespace with its loopback device up; delete it at the end."""
        node = cls(f"hostrouting-{os.getpid()}-{next(_numbers)}")
        with _namespace(node.name), _namespace(node._far):
            node.run("bash", "-ec", _BEGINNING)
            yield node

    def run(self, *argv: str) -> str:
        """Run a program in the namespace; return its output."""
        return _run("nsenter", f"--net=/run/netns/{self.name}", *argv)

    def ip(self, *words: str) -> str:
        """Run `ip` in the namespace; return its output. An argument may have several words."""
        return _run("ip", "-n", self.name, *" ".join(words).split())

    def add_link(self, name: str, *, up: bool = True, carrier: bool = True) -> None:
        """Add a device without addresses; without carrier it is an unused tunnel."""
        if carrier:
            # The other end is up first, so that the device has carrier as soon as it is up.
            far = ("ip", "-n", self._far, "link")
            # The kernel sees the carrier at once only if the two ends have different numbers.
            index = str(1000 + next(_numbers))
            # A device of this name may have another one now.
            end = f"far{index}"
            words = ("type", "veth", "peer", "name", name, "netns", self.name)
            _run(*far, "add", end, "index", index, *words)
            _run(*far, "set", end, "up")
            self.ip("link set", name, "arp off")
        else:
            self.ip("tuntap add", name, "mode tun")
        if up:
            self.set_up(name)

    def remove_link(self, name: str) -> None:
        """Run `ip link delete`."""
        self.ip("link delete", name)

    def set_up(self, name: str, *, up: bool = True) -> None:
        """Run `ip link set up` or `down`."""
        self.ip("link set", name, "up" if up else "down")
        # IPv6 takes a device once its state is up, which comes a moment after its carrier.
        ctx = Context(timeout=10)
        while up and {"LOWER_UP", "DOWN"} <= set(re.findall(r"\w+", self.ip("link show", name))):
            ctx.sleep(0.001)

    def add_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """Run `ip address add`; wait for the route of an IPv6 address."""
        words = f"{_with_peer(address, peer)} dev {dev}"
        if ":" not in address:
            self.ip("address add", words)
            return
        # Usable at once, and its route comes a moment later.
        self.ip("address add", words, "nodad")
        local = f"-6 route show table local dev {dev} {address.partition('/')[0]}"
        ctx = Context(timeout=10)
        while not self.ip(local):
            ctx.sleep(0.001)

    def remove_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """Run `ip address delete`."""
        self.ip("address delete", _with_peer(address, peer), "dev", dev)

    def add_neighbour(self, dev: str, address: str) -> None:
        """Run `ip neigh add`."""
        self.ip("neigh add", address, "lladdr 02:00:00:00:00:01 nud permanent dev", dev)

    def fail_neighbour(self, dev: str, address: str) -> None:
        """Run `ip neigh replace`."""
        self.ip("neigh replace", address, "nud failed dev", dev)

    def delete_route(self, route: Route | ObservedRoute) -> None:
        """Run `ip route delete` with every field; without next hops for a multipath IPv6 route."""
        named = resting(route)._replace(nexthops=()) if route.family == IPV6 else route
        self.insert_route(named, verb="delete")

    def insert_route(self, route: Route | ObservedRoute, *, verb: str = "add") -> None:
        """Run `ip route` with every field."""
        wanted = resting(route)
        # Without these words `ip` would choose the table and scope by the type.
        words = f"table {wanted.table}"
        if wanted.family == IPV4:
            words += f" scope {wanted.scope}"
        elif wanted.kind in DEVICELESS_KINDS:
            # A deletion without a device would take any route.
            words += " dev lo"
        self.ip(_family(wanted), "route", verb, words, str(wanted))

    def add_rule(self, rule: Rule) -> None:
        """Run `ip rule add`."""
        self.ip(_family(rule), "rule add", *_rule_words(rule), f"protocol {rule.protocol}")

    def remove_rule(self, rule: Rule) -> None:
        """Run `ip rule delete`."""
        self.ip(_family(rule), "rule delete", *_rule_words(rule))


@contextmanager
def _namespace(name: str) -> Iterator[None]:
    """Make a network namespace; delete it at the end."""
    _run("ip", "netns", "add", name)
    try:
        yield
    finally:
        _run("ip", "netns", "delete", name)


def _run(*argv: str) -> str:
    try:
        return run_command(Context(), argv).stdout
    except CommandFailedError as error:
        raise BackendError(f"{' '.join(argv)}: {error.stderr.strip()}") from error


def _with_peer(address: str, peer: str | None) -> str:
    local, _, length = address.partition("/")
    return address if peer is None else f"{local} peer {peer}/{length}"


def _family(item: Route | ObservedRoute | Rule) -> str:
    return "-6" if item.family == IPV6 else "-4"


def _rule_words(rule: Rule) -> list[str]:
    _, *words = str(rule).split()
    if rule.l3mdev:
        words = [*words[:-2], "l3mdev"]
    # A deletion takes a rule of any mask unless it names one.
    words += [f"fwmark {rule.mark}/{rule.mark_mask}"] if rule.mark_mask else []
    if rule.suppress_prefix_length is not None:
        words.append(f"suppress_prefixlength {rule.suppress_prefix_length}")
    if rule.suppress_group is not None:
        words.append(f"suppress_ifgroup {rule.suppress_group}")
    return [f"priority {rule.priority}", *words]
