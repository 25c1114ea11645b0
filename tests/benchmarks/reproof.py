"""The proof that follows events: one event among many routes, beside a whole proof on the same model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks import world
from benchmarks.cases import OURS, Result, Setting
from benchmarks.measure import Contender, contest, in_process

from hostrouting.config import RouteOverlapConfig
from hostrouting.fib import Fib
from hostrouting.fib.live import LiveFib
from hostrouting.fib.model import resting
from hostrouting.host import Device, Route, RouteEvent
from hostrouting.net.addresses import Address
from hostrouting.route_overlap.fabric import Fabric
from hostrouting.route_overlap.live import LiveProof

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized

    from hostrouting.host import NetworkEvent

EVENT: Final = "proof, one event"
WHOLE: Final = "proof, whole"
EVENTS: Final = 100
_EXPECTED: Final = ("11.0.0.0/8", "12.0.0.0/8")
_DEVICES: Final = (Device("lo", 1, up=True, loopback=True), Device(world.DEVICE, 2, up=True))


def reproof(setting: Setting) -> list[Result]:
    """Hear routes that come and go inside the expected CIDRs; every route of the node is there, too."""
    count = max(setting.sizes)
    default = Route(network=0, prefix_length=0, gateway=Address.parse(world.GATEWAY), dev=world.DEVICE)
    live = LiveFib(Fib.of(_DEVICES, [resting(default)._replace(protocol=3), *map(resting, world.uniform(count))]))
    proof = LiveProof(RouteOverlapConfig(expected_cidrs=_EXPECTED))
    proof.findings(live.fib, Fabric())
    events = _events(count)

    def one_by_one() -> Sized:
        return [proof.hear(live.fib, effect) for effect in map(live.apply, events)]

    def whole() -> Sized:
        proof.forget()
        return proof.findings(live.fib, Fabric())

    remark = f"among {count:,} routes"
    contests = [
        contest([Contender(OURS, in_process(work, expected=expected))], items, rounds=setting.rounds(items))
        for work, items, expected in ((one_by_one, EVENTS, EVENTS), (whole, 1, len(_EXPECTED)))
    ]
    event, all_of_it = (one._replace(clock="cpu") for one in contests)
    return [Result(EVENT, [event], [], remark), Result(WHOLE, [all_of_it], [], remark, whole=True)]


def _events(count: int) -> Sequence[list[NetworkEvent]]:
    """Return as many routes that come as routes that go, spread over the table."""
    step = max(1, count // EVENTS * 2)
    gateway = Address.parse(world.GATEWAY)
    routes = [
        resting(
            Route(network=world.FIRST + number * step * world.STEP, prefix_length=26, gateway=gateway, dev=world.DEVICE)
        )
        for number in range(EVENTS // 2)
    ]
    come: list[NetworkEvent] = [RouteEvent("add", route) for route in routes]
    return [[event] for event in (*come, *(RouteEvent("remove", route) for route in routes))]
