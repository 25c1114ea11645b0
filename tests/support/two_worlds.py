"""A state machine that leads the same random life in the model in memory and in the kernel, and
compares every step.
"""

import errno
import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support import small_world
from support.kernel import batch
from support.small_world import packets, places, selecting_rules

from hostrouting.exceptions import BackendError, LinkNotFoundError, RouteRejectedError
from hostrouting.fib import Packet, UnknownDecisionError
from hostrouting.host import (
    IPV4,
    IPV6,
    Device,
    Lookup,
    NetworkEvent,
    NetworkEvents,
    ObservedRoute,
    Route,
    RouteChange,
    Rule,
)
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.events import NetlinkEvents
from hostrouting.net.addresses import format_address, format_ipv4, mask_of
from hostrouting.net.events import AddressEvent, DeviceEvent, RouteEvent, RuleEvent
from hostrouting.net.routes import LOCAL_TABLE, SCOPE_LINK, RouteKey, resting, route_key
from hostrouting.testing import KernelNode, MemoryBackend
from phases import Context

#: Forward, and take packets whose source the node holds itself or reaches by another device: only
#: the tables decide.
_SETTINGS = {"forwarding": 1, "accept_local": 1, "rp_filter": 0, "send_redirects": 0}


def let_packets_in(node: KernelNode) -> None:
    """Switch off the kernel's checks of packets that come in; for devices that are added later,
    too.
    """
    settings = [
        f"net.ipv4.conf.{which}.{name}={value}"
        for which in ("all", "default")
        for name, value in _SETTINGS.items()
    ]
    node.run("sysctl", "-qw", *settings, "net.ipv6.conf.all.forwarding=1")


#: Words of the kernel about the state of a link, and those of IPv6 without a meaning.
_STATES = re.compile(r" (dead|linkdown|pref medium|metric 0|iif \S+)(?= |$)")


def decisions(node: KernelNode, packets: Sequence[Packet]) -> list[str]:
    """Return for each packet the deciding route as `ip` prints it, or the words of the refusal."""
    family = "-4" if not packets or packets[0].family == IPV4 else "-6"
    commands = [f"route get fibmatch {_words(packet)}" for packet in packets]
    lines, refusals = batch(node.name, family, "-o", commands=commands)
    # With -o `ip` joins the lines of several next hops by a backslash.
    answers = (_plain(" ".join(line.replace("\\", " ").split())) for line in lines)
    return [
        refusals[number].split(": ")[-1] if number in refusals else next(answers)
        for number in range(1, len(packets) + 1)
    ]


def _plain(answer: str) -> str:
    """Return an answer without the state of links; of IPv6 the next hops are in no order."""
    if "pref medium" not in answer:
        return answer
    first, *hops = _STATES.sub("", answer).split(" nexthop ")
    return " nexthop ".join([first, *sorted(hops)])


def _words(packet: Packet) -> str:
    words = [format_address(packet.family, packet.destination)]
    words += ["from", format_address(packet.family, packet.source)] if packet.source else []
    words += ["iif", packet.iif] if packet.iif != "lo" else ["uid", str(packet.uid)]
    words += ["oif", packet.oif] if packet.oif else []
    words += ["mark", str(packet.mark), "tos", f"{packet.tos:#04x}"]
    protocol = {6: "tcp", 17: "udp"}[packet.ip_protocol]
    words += [
        "ipproto",
        protocol,
        "sport",
        str(packet.source_port),
        "dport",
        str(packet.destination_port),
    ]
    return " ".join(words)


#: RTPROT_KERNEL.
_KERNEL = 2
_REMOVED_WITH_A_SOURCE = re.compile("remove .* src ")
DEVICES = small_world.DEVICES


def of_its_family(
    make: Callable[..., st.SearchStrategy[Any]], **options: object
) -> st.SearchStrategy[Any]:
    """Return a strategy of the small world for the family of the machine that draws from it."""
    return st.runner().flatmap(lambda machine: make(family=machine.family, **options))


class MemoryRouter(MemoryBackend):
    """The fake with what it leaves out: a router's anycast addresses, and the broadcast addresses
    of older kernels.
    """

    def __init__(self, *, is_old: bool) -> None:
        self.is_old = is_old
        super().__init__()

    def own_routes(self, device: Device) -> list[ObservedRoute]:
        """Add a route for any of the network's routers; before Linux 5.14 its first address is for
        broadcasts, too.
        """
        routes = super().own_routes(device)
        held = [own for own in device.addresses if own.family == IPV6 and own.prefix_length <= 126]
        for network in sorted({own.local & mask_of(IPV6, own.prefix_length) for own in held}):
            own = ObservedRoute(
                network, 128, dev=device.name, table=LOCAL_TABLE, protocol=_KERNEL, kind="anycast"
            )
            routes.append(own._replace(family=IPV6))
        networks = [
            route
            for route in routes
            if self.is_old and route.family == IPV4 and route.prefix_length < 31
        ]
        return routes + [
            route._replace(prefix_length=32, table=LOCAL_TABLE, kind="broadcast", scope=SCOPE_LINK)
            for route in networks
        ]


class TwoWorlds(RuleBasedStateMachine):
    """One node twice: in memory and in the kernel."""

    family = IPV4

    @initialize()
    def begin(self) -> None:
        self.stack = ExitStack()
        self.node = self.stack.enter_context(KernelNode.made())
        let_packets_in(self.node)
        self.kernel = NetlinkBackend(netns=self.node.name)
        self.memory = MemoryRouter(
            is_old="127.0.0.0/32" in [route.destination for route in self.kernel.routes()]
        )
        for dev in DEVICES:
            self.memory.add_link(dev, up=dev in DEVICES[:2])
            self.node.add_link(dev, up=dev in DEVICES[:2])
        # A rule counts only where a packet has a way.
        first = small_world.moved("192.168.7.1/24", self.family)
        self.both(lambda world: world.add_address(DEVICES[0], first))
        announced: list[NetworkEvents] = [self.memory.events, NetlinkEvents(netns=self.node.name)]
        self.listeners = [
            self.stack.enter_context(events.listen(Context())) for events in announced
        ]

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    def both(self, act: Callable[[MemoryBackend | KernelNode], None]) -> None:
        """Do it in both worlds: both refuse, or neither. What the model cannot decide is left out."""
        refusals = []
        for world in self.memory, self.node:
            try:
                act(world)
            except UnknownDecisionError:
                return
            except BackendError as error:
                refusals.append(str(error))
        assert len(refusals) in {0, 2}, refusals

    @rule(dev=small_world.devices(), up=st.booleans())
    def link_goes_up_or_down(self, dev: str, up: bool) -> None:
        self.both(lambda world: world.set_up(dev, up=up))

    @rule(dev=small_world.devices())
    def link_goes_and_comes_back(self, dev: str) -> None:
        self.both(lambda world: world.remove_link(dev))
        self.both(lambda world: world.add_link(dev))

    @rule(dev=small_world.devices(), address=of_its_family(small_world.addresses))
    def address_comes(self, dev: str, address: tuple[str, str | None]) -> None:
        text, peer = address
        self.both(lambda world: world.add_address(dev, text, peer=peer))

    @rule(data=st.data())
    def address_goes(self, data: st.DataObject) -> None:
        held = [
            (link.name, own)
            for link in self.memory.links()
            for own in link.addresses
            if not link.loopback
        ]
        if not held:
            return
        dev, own = data.draw(st.sampled_from(held))
        peer = None if own.peer == own.local else format_address(own.family, own.peer)
        self.both(lambda world: world.remove_address(dev, str(own), peer=peer))

    @rule(rule=of_its_family(small_world.rules) | of_its_family(selecting_rules))
    def rule_comes(self, rule: Rule) -> None:
        self.both(lambda world: world.add_rule(rule))

    @rule(goal=st.sampled_from([50, 32766, 40000]))
    def way_around_rules_comes(self, goal: int) -> None:
        self.both(lambda world: world.add_rule(Rule(1, "goto", goto=goal, family=self.family)))

    @rule(dev=small_world.devices(), group=st.sampled_from([0, 5]))
    def device_joins_a_group(self, dev: str, group: int) -> None:
        if dev in self.memory.fib.devices:
            devices = self.memory.fib.devices
            self.memory.fib = attrs.evolve(
                self.memory.fib, devices={**devices, dev: devices[dev]._replace(group=group)}
            )
            self.node.ip(f"link set {dev} group", str(group))

    @rule(data=st.data())
    def packets_are_routed(self, data: st.DataObject) -> None:
        asked = data.draw(st.lists(packets(self.own(), self.family), min_size=10, max_size=20))
        in_memory = [decided(self.memory, packet) for packet in asked]
        in_kernel = decisions(self.node, asked)
        pairs = list(zip(asked, in_memory, in_kernel, strict=True))
        assert in_memory == in_kernel, [pair for pair in pairs if pair[1] != pair[2]]

    @rule(data=st.data())
    def rule_goes(self, data: st.DataObject) -> None:
        # Until an IPv6 rule is added, the kernel reads local and main, whatever the rules are.
        kept = {0, 32766} if self.family == IPV6 else set()
        held = [rule for rule in self.memory.rules(self.family) if rule.priority not in kept]
        if held:
            rule = data.draw(st.sampled_from(held))
            self.both(lambda world: world.remove_rule(rule))

    @rule(
        route=of_its_family(small_world.routes, protocols=(3, 4, 16)),
        verb=st.sampled_from(["append", "add", "replace"]),
    )
    def foreign_route_comes(self, route: Route, verb: str) -> None:
        if route.from_prefix and route_key(route) in self.taken():
            return
        self.both(lambda world: world.insert_route(route, verb=verb))

    @rule(data=st.data())
    def foreign_hand_deletes(self, data: st.DataObject) -> None:
        held = self.memory.routes(self.family)
        if held:
            route = data.draw(st.sampled_from(held))
            self.both(lambda world: world.delete_route(route))

    @rule(verify=st.booleans(), data=st.data())
    def batch_is_applied(self, verify: bool, data: st.DataObject) -> None:
        drawn = data.draw(small_world.changes_of(self.memory.routes(self.family), self.family))
        taken, changes = self.taken(), []
        for change in drawn:
            if (
                change.after is None
                or change.after.from_prefix is None
                or route_key(change.after) not in taken
            ):
                changes.append(change)
                taken |= {route_key(change.after)} if change.after else set()
        before = self.memory.fib
        try:
            in_memory = self.outcome(self.memory, changes, verify)
        except UnknownDecisionError:
            # The model cannot resolve a gateway: as if nothing had been drawn.
            self.memory.fib = before
            self.listeners[0].take()
            return
        in_kernel = self.outcome(self.kernel, changes, verify)
        assert in_memory == in_kernel, (in_memory, in_kernel)

    @staticmethod
    def outcome(
        backend: MemoryBackend | NetlinkBackend, changes: list[RouteChange], verify: bool
    ) -> object:
        try:
            backend.apply(changes, verify=verify)
        except RouteRejectedError as error:
            return error.refusals, error.rolled_back, error.left_behind
        except LinkNotFoundError as error:
            return error.dev
        return None

    @precondition(lambda self: hasattr(self, "kernel"))
    @invariant()
    def same_routes(self) -> None:
        self.compare(
            *(
                sorted(map(_comparable, world.routes(self.family)))
                for world in (self.memory, self.kernel)
            )
        )

    @staticmethod
    def compare(in_memory: Sequence[object], in_kernel: Sequence[object]) -> None:
        only_memory = [thing for thing in in_memory if thing not in in_kernel]
        only_kernel = [thing for thing in in_kernel if thing not in in_memory]
        assert in_memory == in_kernel, (
            f"only in memory: {only_memory}; only in the kernel: {only_kernel}"
        )

    @precondition(lambda self: hasattr(self, "kernel"))
    @invariant()
    def same_events(self) -> None:
        taken = [listener.take() for listener in self.listeners]
        if self.family == IPV6:
            return
        in_memory, in_kernel = (list(map(_event, events)) for events in taken)
        # Newer kernels announce the routes that send from a removed address, too.
        told = [
            event
            for event in in_kernel
            if event in in_memory or not _REMOVED_WITH_A_SOURCE.match(event)
        ]
        self.compare(sorted(filter(None, in_memory)), sorted(filter(None, told)))

    @precondition(lambda self: hasattr(self, "kernel"))
    @invariant()
    def same_rules_and_addresses(self) -> None:
        # Newer kernels show the mask of a single port, too.
        in_kernel = [rule._replace(unknown=()) for rule in self.kernel.rules(self.family)]
        assert self.memory.rules(self.family) == in_kernel
        devices = [link._replace(mac="", kind="") for link in self.kernel.links()]
        assert [link[2:] for link in self.memory.links()] == [link[2:] for link in devices]

    @precondition(lambda self: hasattr(self, "kernel"))
    @invariant()
    def same_lookups(self) -> None:
        family, asked = self.family, places(self.family)
        worlds = self.memory, self.kernel
        for source in [None, *self.own()[:2], small_world.ONE_SOURCE[family]]:
            given = None if source is None else [source] * len(asked)
            self.compare(
                *(
                    list(map(_answer, world.lookup(asked, sources=given, family=family)))
                    for world in worlds
                )
            )
        if family == IPV6:
            return
        # Of several next hops the kernel picks one by a hash.
        answers = self.memory.lookup(asked)
        single = [
            answer.destination for answer in answers if not (answer.route and answer.route.nexthops)
        ]
        self.compare(*(list(map(_path, world.lookup(single, resolve=True))) for world in worlds))

    def taken(self) -> set[RouteKey]:
        """Return the places of routes with a source prefix.

        Once the kernel has refused another one there, its lookups may pass over the first, so
        nothing is added there.
        """
        return {route_key(route) for route in self.memory.routes(self.family) if route.from_prefix}

    def own(self) -> list[int]:
        addresses = [
            own for link in self.memory.links() for own in link.addresses if not link.loopback
        ]
        return [own.local for own in addresses if own.family == self.family]


def _comparable(route: ObservedRoute) -> tuple[object, ...]:
    text = str(route if route.family == IPV4 else resting(route))
    return (route.table, route.network, route.prefix_length, route.tos, route.metric, text)


def _event(event: NetworkEvent) -> str:
    """Return an event as text; empty for one that is not the same in both worlds: the kernel
    repeats a device's.
    """
    if isinstance(event, AddressEvent):
        return f"{event.verb} {event.dev} {event.address!r}"
    if isinstance(event, RuleEvent):
        # Newer kernels show the mask of a single port, too.
        return f"{event.verb} {event.rule._replace(unknown=())}"
    # Only the kernel announces the routes that it makes for addresses.
    is_silent = isinstance(event, DeviceEvent) or (
        isinstance(event, RouteEvent) and event.route.protocol == _KERNEL
    )
    return "" if is_silent else f"{event.verb} {event[1]}"


def _answer(lookup: Lookup) -> object:
    if lookup.route is None:
        return lookup.destination, errno.errorcode[lookup.errno]
    return lookup.destination, str(resting(lookup.route))


def decided(memory: MemoryBackend, packet: Packet) -> str:
    decision = memory.fib.egress(packet) if packet.iif == "lo" else memory.fib.decide(packet)
    if decision.route is None:
        return os.strerror(decision.errno)
    # Of a packet that it takes to be on the link the kernel has no route to show.
    return str(decision.route) if decision.route.table else os.strerror(errno.EHOSTUNREACH)


def _path(lookup: Lookup) -> object:
    if lookup.route is None:
        return format_ipv4(lookup.destination), errno.errorcode[lookup.errno]
    route = lookup.route
    return (
        format_ipv4(lookup.destination),
        route.kind,
        route.dev,
        route.gateway,
        route.source and format_ipv4(route.source),
    )
