"""The model of a node's routing: how fast it is built, changed and asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks import world
from benchmarks.cases import OURS, Result, Setting
from benchmarks.measure import Contender, Contest, contest, in_process

from hostrouting.fib import Fib
from hostrouting.fib.model import resting
from hostrouting.net.addresses import Address
from hostrouting.net.changes import RouteChange
from hostrouting.net.links import Device
from hostrouting.net.routes import LOCAL_TABLE, MAIN_TABLE, ObservedRoute
from hostrouting.net.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Sized

LOOKUPS: Final = "model, lookups with ten rules"
BUILT: Final = "model, 64 routes built"
DERIVED: Final = "model, 10 changes derived"
ASKED: Final = 1000
NODE: Final = 64
CHANGES: Final = 10

_DEVICES: Final = (Device("lo", 1, up=True, loopback=True), Device(world.DEVICE, 2, up=True))
_OTHER_GATEWAY: Final = Address.parse("192.0.2.9")
#: Eight tables with one address each, between the local and the main table.
_TABLES: Final = range(1000, 1008)


def model(setting: Setting) -> list[Result]:
    """Everything that the model promises, among as many routes as the setting has."""
    count = max(setting.sizes)
    routes = [resting(route) for route in world.uniform(count)]
    full = Fib.of(_DEVICES, routes)
    ruled = Fib.of(_DEVICES, [*routes, *_inner_routes()], _ten_rules())
    asked = [world.FIRST + 1 + number * (count * world.STEP // ASKED) for number in range(ASKED)]
    changes = _changes(routes)
    remark = f"among {count:,} routes"
    return [
        Result(LOOKUPS, [_timed(setting, ASKED, lambda: ruled.lookup(asked), expected=ASKED)], [], remark),
        Result(BUILT, [_timed(setting, NODE, lambda: Fib.of(_DEVICES, routes[:NODE]).devices)], [], whole=True),
        Result(DERIVED, [_timed(setting, CHANGES, lambda: full.changed(changes).devices)], [], remark, whole=True),
    ]


def _timed(setting: Setting, items: int, work: Callable[[], Sized], *, expected: int = len(_DEVICES)) -> Contest:
    measured = contest([Contender(OURS, in_process(work, expected=expected))], items, rounds=setting.rounds(items))
    # So short a work is measured by its processor time: another process on the machine would be most of it.
    return measured._replace(clock="cpu")


def _ten_rules() -> list[Rule]:
    inner = [Rule(table - 900, table=table) for table in _TABLES]
    return [Rule(0, table=LOCAL_TABLE), *inner, Rule(32766, table=MAIN_TABLE)]


def _inner_routes() -> list[ObservedRoute]:
    return [ObservedRoute(10 << 24 | table, 32, dev=world.DEVICE, table=table) for table in _TABLES]


def _changes(routes: Sequence[ObservedRoute]) -> list[RouteChange]:
    """Move routes to another gateway, spread over the table."""
    some = routes[:: max(1, len(routes) // CHANGES)][:CHANGES]
    return [RouteChange.replace(route, route._replace(gateway=_OTHER_GATEWAY).to_route()) for route in some]
