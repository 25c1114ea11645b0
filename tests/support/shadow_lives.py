"""Random lives of a node beside another program: apply, reset and undo, and what the program
notices of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias, TypeVar

import attrs
from support.patience import in_time
from support.shadow_worlds import (
    PROTOCOLS,
    TOS,
    Deed,
    Twins,
    destination,
    first_is,
    foreign,
    ours,
    place,
)
from support.tasks import FailingTask
from support.watched_nodes import kernel_host

from hostrouting import Configure, Host, HostRoutingConfig, Reset, StaticRoute
from phases import Context, Serial, TaskFailedError, execute, run, task

#: What another program may notice of ours, by the letters of the list in docs/limits.md.
REMAINDERS = (
    "acts on ours instead",
    "is refused while ours is there",
    "deletes ours instead",
)
CONNECTED = "10.3.0.0/24"
_PREFIXES = ("172.16.1.0/24", "172.16.8.0/22", "172.16.9.0/24", CONNECTED)
_VERBS = ("add", "append", "prepend", "replace", "replace", "change")
_HOPS = (
    "via 10.1.0.1 dev eth0",
    "via 10.1.0.9 dev eth0",
    "via 10.2.0.1 dev eth1",
    "dev eth1",
    "via 10.1.0.9 dev eth0 src 10.1.0.3",
    "via 10.1.0.9 dev eth0 mtu 1400",
    "nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev eth1",
    "nhid 1",
    "nhid 2",
    "nhid 3",
)
_KINDS = ("blackhole", "unreachable", "prohibit", "throw")
_OBJECTS = (
    "nexthop add id 1 via 10.1.0.9 dev eth0",
    "nexthop add id 2 blackhole",
    "nexthop add id 4 via 10.2.0.1 dev eth1",
    "nexthop add id 3 group 1/4",
)
#: Events of devices, addresses and objects; each happens in both namespaces alike.
_EVENTS = (
    ("link set eth1 down",),
    ("link set eth1 up",),
    ("link set eth1 down", "link set eth1 up"),
    ("link set eth0 down", "link set eth0 up"),
    (
        "link del eth1",
        "link add eth1 type ifb",
        "link set eth1 up",
        "address add 10.2.0.2/24 dev eth1",
    ),
    (
        "link set eth1 down",
        "link set eth1 name other",
        "link set other name eth1",
        "link set eth1 up",
    ),
    ("address del 10.1.0.3/24 dev eth0", "address add 10.1.0.3/24 dev eth0"),
    (
        "address del 10.1.0.2/24 dev eth0",
        "address add 10.1.0.2/24 dev eth0",
        "address add 10.1.0.3/24 dev eth0",
    ),
    ("address del 10.2.0.2/24 dev eth1",),
    ("address add 10.2.0.2/24 dev eth1",),
    ("address add 10.3.0.2/24 dev eth1",),
    ("address del 10.3.0.2/24 dev eth1",),
    ("nexthop del id 2", "nexthop add id 2 blackhole"),
    ("nexthop replace id 1 via 10.1.0.10 dev eth0",),
)
#: Makes the node able to take all routes again.
_WHOLE = (
    "link set eth1 up",
    "address add 10.2.0.2/24 dev eth1",
    "address del 10.3.0.2/24 dev eth1",
)
_REFUSED = "RTNETLINK answers: File exists"


def remainder(deed: Deed) -> str:
    """Return the name of what the program noticed, and assert that it is no more than the list
    tells.
    """
    spots = {destination(route) for routes in (deed.before, deed.shadow_before) for route in routes}
    words = deed.command.split()
    verb, [prefix] = words[1], [word for word in words if word in {*spots, *_PREFIXES}]
    hidden, shadow_before, after, shadow_after = (
        [route for route in foreign(routes) if destination(route) == prefix]
        for routes in (deed.before, deed.shadow_before, deed.after, deed.shadow_after)
    )
    assert hidden == shadow_before
    ours_before, ours_after = ours(deed.before), ours(deed.after)
    if deed.refused and not deed.refused_in_shadow:
        # The exclusive one, and the refresh of a route that is hidden.
        assert deed.refused == _REFUSED
        assert verb in {"add", "replace", "change"}
        assert (ours_after, after) == (ours_before, hidden)
        assert verb == "add" or shadow_after == shadow_before
        return REMAINDERS[1]
    assert not deed.refused
    [lost] = [route for route in ours_before if route not in ours_after]
    assert [route for route in ours_before if route != lost] == ours_after
    if verb == "del":
        # Its own stays: without ours it had been deleted, if it exists.
        assert after == hidden
        assert (
            shadow_after == shadow_before
            if deed.refused_in_shadow
            else len(shadow_after) == len(hidden) - 1
        )
        return REMAINDERS[2]
    assert verb in {"replace", "change"}
    assert first_is(deed.before, lost)
    [new] = [route for route in after if route not in hidden]
    at = next((at for at, route in enumerate(hidden) if place(route) == place(lost)), None)
    assert first_is(deed.after, new)
    assert [route for route in after if route != new] == hidden
    if deed.refused_in_shadow:
        # There is nothing to change.
        assert (verb, at, shadow_after) == ("change", None, shadow_before)
    else:
        assert first_is(deed.shadow_after, new)
        left = hidden if at is None else [*hidden[:at], *hidden[at + 1 :]]
        assert [route for route in shadow_after if route != new] == left
    return REMAINDERS[0]


_T = TypeVar("_T")
_Places: TypeAlias = "dict[tuple[str, str, str], _T]"


@attrs.define
class Life:
    """A node beside another program; the seed decides all."""

    _random: random.Random
    _twins: Twins
    #: What happened since the last reset.
    history: list[str] = attrs.field(factory=list)
    _host: Host = attrs.field(init=False)
    _wanted: _Places[str] = attrs.field(factory=dict)
    _made: list[str] = attrs.field(factory=list)

    @_host.default
    def _host_of_node(self) -> Host:
        return kernel_host(self._twins.node)

    @classmethod
    def of_seed(cls, seed: int, stack: ExitStack) -> Life:
        """Begin a life."""
        return cls(random.Random(seed), stack.enter_context(Twins.made()))

    def cycle(self) -> None:
        """Let the other program work before, beside and after hostrouting, which is then reset."""
        self.history = list(self._twins.here.routes())
        if self._random.random() < 0.9:
            self._twins.agree(*_WHOLE)
        self._twins.agree(*_OBJECTS)
        self._some(0, 3, self.operation)
        way = self._random.choice([self.applies, self.applies, self.undoes])
        self.history.append(way.__name__)
        way()
        self._some(0, 2, self.operation)
        self.reset()

    def _some(self, least: int, most: int, *steps: Callable[[], None]) -> None:
        for _ in range(self._random.randint(least, most)):
            self._random.choice(steps)()

    # --- hostrouting

    def applies(self) -> None:
        """Apply configs, and let the other program work after each."""
        for _ in range(self._random.randint(1, 2)):
            self.apply(self._config())
            self._some(2, 6, self.operation, self.operation, self.intrusion, self.event)

    def undoes(self) -> None:
        """Apply a config in a run that fails later, and is undone whole; the other program works
        meanwhile.
        """
        if self._random.random() < 0.5:
            self.apply(self._config())
            self._some(1, 4, self.operation, self.intrusion)
        before = self._twins.here.routes()
        deeds = self._random.choice([0, 0, 1, 3])
        wrong: list[AssertionError] = []

        @task("other-program")
        def late(_ctx: Context) -> None:
            try:
                self._some(deeds, deeds, self.operation)
            except AssertionError as error:
                wrong.append(error)

        self.history.append("a run that is undone")
        steps = Configure(self._config(), host=self._host), late, FailingTask("late", OSError("x"))
        run(Serial(*steps), self._context(), undo_on_failure=True)
        for error in wrong:
            raise error
        self.history.append("undone")
        self._twins.same()
        if not deeds:
            self._as_before(before)

    def apply(self, config: HostRoutingConfig) -> None:
        """Apply a config: ours are the first of their places, or nothing has changed."""
        before, wanted = self._twins.here.routes(), _wanted(config)
        try:
            execute(Configure(config, host=self._host), self._context())
        except TaskFailedError as error:
            self.history.append(f"refused: {error}")
            reasons = _reasons(wanted, before)
            assert reasons
            # Ours come first in the last step: if a new route is refused before, nothing has moved.
            self._as_before(before, may_move=any(route in before for route in reasons))
            return
        self._is_applied(wanted, before)

    def _is_applied(self, wanted: _Places[str], before: Sequence[str]) -> None:
        """Assert that ours are the first of their places, and that nothing else has changed."""
        after = self._twins.here.routes()
        assert foreign(after) == foreign(before)
        assert sorted(ours(after)) == sorted(wanted.values())
        assert all(first_is(after, route) for route in wanted.values())
        for route in _reasons(wanted, before):
            # It was there before.
            assert any(place(each) == place(route) for each in ours(before))
        self._wanted = wanted

    def reset(self) -> None:
        """Reset: nothing of ours is left, and everything else is as in the shadow."""
        self.history.append("reset")
        execute(Reset(HostRoutingConfig(), host=self._host), self._context())
        self._wanted = {}
        assert self._twins.here.routes() == self._twins.there.routes()

    def _as_before(self, before: Sequence[str], *, may_move: bool = True) -> None:
        """Assert that the routes are as before; one of ours that stood in the middle of its place
        may stand last.

        One of ours whose gateway is no longer reachable the kernel does not take back.
        """
        after = self._twins.here.routes()
        assert foreign(after) == foreign(before)
        assert may_move or after == before
        for spot in {place(route) for route in (*ours(before), *ours(after))}:
            then, now = (
                [route for route in routes if place(route) == spot] for routes in (before, after)
            )
            moved = [route for route in then[1:-1] if route in ours(then)]
            last = [*(route for route in then if route not in moved), *moved]
            lost = [route for route in then if route in foreign(then) or reachable(route, before)]
            assert now in (then, last, lost), (then, now)

    # --- the other program

    def operation(self) -> None:
        """Let the other program change a route; what it notices of ours is on the list."""
        self._act(
            self._deletion() if self._made and self._random.random() < 0.35 else self._addition()
        )

    def intrusion(self) -> None:
        """Let the other program put a route before one of ours."""
        if self._wanted:
            prefix, _, metric = self._random.choice([*self._wanted])
            self._act(
                f"route prepend {prefix} proto static metric {metric or 0} {self._random.choice(_HOPS)}"
            )

    def _act(self, command: str) -> None:
        self.history.append(command)
        deed = self._twins.act(command)
        self._remember(deed)
        if deed.counts:
            self._twins.same()
        else:
            name = remainder(deed)
            self.history.append(f"({name})")
            self._twins.forget(next(word for word in command.split() if word in _PREFIXES))

    def event(self) -> None:
        """Let a device, an address or a nexthop object come or go."""
        commands = self._random.choice(_EVENTS)
        self.history.append("; ".join(commands))
        self._twins.agree(*commands, *_OBJECTS)
        self._twins.same()

    def _addition(self) -> str:
        return f"route {self._random.choice(_VERBS)} {self._route()}"

    def _route(self) -> str:
        pick = self._random.choice
        prefixes = [prefix for prefix, _, _ in self._wanted]
        prefix = pick(prefixes if prefixes and self._random.random() < 0.6 else _PREFIXES)
        metric, protocol = pick(["", "", "", " metric 100"]), pick(PROTOCOLS)
        tos = pick(["", "", "", "", "", f" tos {TOS}"])
        hops, kind = (pick(_HOPS), "") if self._random.random() < 0.85 else ("", f"{pick(_KINDS)} ")
        route = f"{kind}{prefix}{tos} proto {protocol}{metric} {hops}".strip()
        if self._made and self._random.random() < 0.4:
            route = pick(self._made)
        return route

    def _remember(self, deed: Deed) -> None:
        """Note which routes the other program takes for its own."""
        _, verb, route = deed.command.split(maxsplit=2)
        if verb == "del" and route in self._made:
            self._made.remove(route)
        elif verb != "del" and not deed.refused_in_shadow:
            self._made = [*self._made[-7:], route]

    def _deletion(self) -> str:
        pick = self._random.choice
        route = pick(self._made)
        prefix = next(word for word in route.split() if word in _PREFIXES)
        some = [
            "",
            f" proto {pick(PROTOCOLS)}",
            " metric 100",
            " dev eth0",
            " dev eth0 metric 100",
            " via 10.1.0.1",
        ]
        return (
            f"route del {route}"
            if self._random.random() < 0.6
            else f"route del {prefix}{pick(some)}"
        )

    # --- what is wanted

    def _config(self) -> HostRoutingConfig:
        routes: list[dict[str, Any]] = []
        for prefix in self._random.sample(_PREFIXES, self._random.randint(1, 3)):
            gateway, dev = self._random.choice(
                [("10.1.0.1", "eth0"), ("10.1.0.5", "eth0"), ("10.2.0.1", "eth1")]
            )
            metric = self._random.choice([0, 0, 0, 100])
            routes.append({"destination": prefix, "gateway": gateway, "dev": dev, "metric": metric})
        if self._random.random() < 0.1:
            routes.append({"destination": "172.16.99.0/24", "gateway": "10.9.9.9", "dev": "eth0"})
        sections = {"staticRoutes": {"enabled": True, "routes": routes}, "gates": []}
        self.history.append(f"config: {routes}")
        return HostRoutingConfig.from_mapping(sections)

    def _context(self) -> Context:
        # Nothing heals while it waits.
        return in_time()


def _wanted(config: HostRoutingConfig) -> _Places[str]:
    return {place(route): route for route in map(_shown, config.static_routes.routes)}


def _reasons(wanted: _Places[str], routes: Sequence[str]) -> list[str]:
    """Return the routes that may be refused: the kernel has its own in their place, or does not
    reach their gateway.
    """
    in_places = {spot: [route for route in routes if place(route) == spot] for spot in wanted}
    return [
        route
        for spot, route in wanted.items()
        if (route not in in_places[spot] and is_connected(in_places[spot]))
        or not reachable(route, routes)
    ]


def _shown(route: StaticRoute) -> str:
    """Return a route of a config as `ip` shows it."""
    metric = f" metric {route.metric}" if route.metric else ""
    return f"unicast {route.destination} via {route.gateway} dev {route.dev} proto 142 scope global{metric}"


def reachable(route: str, routes: Sequence[str]) -> bool:
    """Return whether the gateway of a route of ours is on a connected network of its device."""
    gateway, dev = (route.split()[route.split().index(name) + 1] for name in ("via", "dev"))
    network = f"{gateway.rpartition('.')[0]}.0/24"
    return any(
        destination(each) == network and f" dev {dev} proto kernel " in each for each in routes
    )


def is_connected(in_place: Sequence[str]) -> bool:
    """Return whether a place has a route of the kernel's own."""
    return any(" proto kernel " in f"{route} " for route in in_place)
