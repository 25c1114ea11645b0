"""The repair of static routes by the program of a boot: its answers, and the routes that it leaves."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from support.kernel import connect
from support.patience import boot_clock
from support.printed import CORRECT_GATEWAY, NEVER_OVERWRITTEN, NO_DEVICE, SEE_DHCP, UNTIL_REMOVED
from support.run_nodes import own_routes
from support.static_route_nodes import CONFIG, WANTED, other_routes
from support.static_route_scripts import config_of, install, static_route

from hostrouting.exceptions import HostFileError, LockHeldError, Refusal, RouteRejectedError
from hostrouting.host import RouteChange
from hostrouting.node.at_boot import answer
from hostrouting.static_routes.script import LOGGED
from hostrouting.testing import FakeHost, MemoryBackend
from hostrouting.testing.route_texts import route
from phases import Context


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the program has waited."""
    return boot_clock(monkeypatch)


def test_a_first_run(host: FakeHost) -> None:
    """A boot ends in the routes of the task, keeps foreign routes, and logs no repair."""
    before = other_routes(host)
    install(host, CONFIG)
    assert answer(["routes"], host) == (10, [(5, "routes in force: 3")])
    assert own_routes(host) == WANTED
    assert other_routes(host) == before
    assert answer(["ask", "STRICT"], host) == (10, [])


def test_a_repair_after_the_boot_is_logged(host: FakeHost) -> None:
    """A repair after the boot is logged each time, with the routes that it hides."""
    install(host, config_of([static_route("172.16.8.0/22 via 10.224.0.1 dev eth0")]))
    host.files.write(LOGGED, b"routes in force: 1", mode=0o644)
    assert answer(["ask", "STRICT"], host) == (
        10,
        [
            (
                4,
                (
                    "repaired: + 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142 (hides "
                    f"'172.16.8.0/22 via 10.224.0.9 dev eth0 proto static' {UNTIL_REMOVED})"
                ),
            ),
            (4, "repaired: - 172.20.0.0/16 via 10.224.0.1 dev eth0 table 100 proto 142"),
        ],
    )


@pytest.mark.parametrize("mode", ["WARN", "STRICT"])
@pytest.mark.parametrize(
    ("text", "reason", "may_heal"),
    [
        (
            "172.21.0.0/16",
            f"table main has no IPv4 default route; {SEE_DHCP}",
            True,
        ),
        ("172.21.0.0/16 via 10.224.0.1 dev eth9", NO_DEVICE, True),
        (
            "172.21.0.0/16 via 10.225.0.1 dev eth0",
            (
                "Nexthop has invalid gateway (Network is unreachable); the gateway 10.225.0.1 is "
                f"not on a network of eth0; {CORRECT_GATEWAY}"
            ),
            False,
        ),
        (
            "10.224.0.0/16 via 10.224.0.1 dev eth0",
            (
                "the kernel's own route '10.224.0.0/16 dev eth0 proto kernel scope link src 10.224.0.4' "
                f"{NEVER_OVERWRITTEN}"
            ),
            False,
        ),
    ],
)
def test_a_route_that_is_refused(
    slept: list[float], mode: str, text: str, reason: str, *, may_heal: bool
) -> None:
    """A refused route is named as the config has it and refuses a gate in either mode, and all
    other routes are in force; a unit waits for what may be late.
    """
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16")
    host = FakeHost(node)
    other = static_route("172.22.0.0/16 via 10.224.0.1 dev eth0")
    install(host, config_of([static_route(text), other]))
    host.files.write(LOGGED, b"", mode=0o644)
    repaired = (4, "repaired: + 172.22.0.0/16 via 10.224.0.1 dev eth0 proto 142")
    refused = (3, f"refused: {text}: {reason}")
    assert answer(["ask", mode], host) == (11, [repaired, refused])
    assert own_routes(host) == ["172.22.0.0/16 via 10.224.0.1 dev eth0 proto 142"]
    assert slept == []
    host.files.remove(LOGGED)
    assert answer(["routes"], host) == (11, [refused])
    assert sum(slept) == (30 if may_heal else 0)


def test_the_route_of_a_place_that_waits_stays() -> None:
    """An own route whose new form waits for its device stays, and is not reported as one that
    another program has changed.
    """
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16")
    stale = "172.21.0.0/16 via 10.224.0.1 dev eth0 proto 142"
    node.insert_route(route(stale))
    host = FakeHost(node)
    waiting = "172.21.0.0/16 via 10.224.0.1 dev eth9"
    install(host, config_of([static_route(waiting)]))
    assert answer(["ask", "WARN"], host) == (11, [(3, f"refused: {waiting}: {NO_DEVICE}")])
    assert own_routes(host) == [stale]


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EBUSY, errno.ENOBUFS])
def test_a_kernel_without_memory(host: FakeHost, slept: list[float], number: int) -> None:
    """A boot that waits for routing answers at once if the kernel does not have memory, as nothing is late;
    the next call succeeds.
    """
    install(host, config_of([static_route("172.22.0.0/16 via 10.224.0.1 dev eth0")]))
    host.routes.refuse_at(1, number=number)
    status, [(priority, line)] = answer(["routes"], host)
    assert (status, priority) == (11, 3)
    assert line.startswith("refused: 172.22.0.0/16 via 10.224.0.1 dev eth0: ")
    assert slept == []
    assert answer(["routes"], host)[0] == 10


def test_an_undo_that_is_incomplete(
    host: FakeHost, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal whose rollback is incomplete ends the repair, and the verdict names what was
    refused and what is left.
    """
    apply = host.routes.apply
    refused = Refusal(RouteChange.add(route(WANTED[0])), errno.ESRCH, "No such process")

    def refuse_once(*_: object, **_options: object) -> None:
        monkeypatch.setattr(host.routes, "apply", apply)
        raise RouteRejectedError([refused], rolled_back=False, left_behind=["missing: a route"])

    monkeypatch.setattr(host.routes, "apply", refuse_once)
    install(host, CONFIG)
    lines = [(3, f"refused: {refused}"), (3, "refused: missing: a route")]
    assert answer(["routes"], host) == (11, lines)
    assert slept == []


def test_another_program_is_faster(
    host: FakeHost, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A route that another program removes at once is a reason to wait while a boot waits, and is
    refused then.
    """
    apply = host.routes.apply

    def lose(changes: Sequence[RouteChange], **options: Any) -> None:
        apply(changes, **options)
        [lost] = [route for route in host.routes.routes() if str(route) == WANTED[0]]
        apply([RouteChange.remove(lost)])

    monkeypatch.setattr(host.routes, "apply", lose)
    install(host, CONFIG)
    refused = f"refused: + {WANTED[0]}: another program has changed it in the meantime"
    assert answer(["routes"], host) == (11, [(3, refused)])
    assert sum(slept) == 30


def test_a_run_is_under_way(host: FakeHost) -> None:
    """A repair next to a run gets no answer and changes nothing, as the run may be undone."""
    install(host, CONFIG)
    before = own_routes(host)
    with host.lock.hold(Context()), pytest.raises(LockHeldError):
        answer(["ask", "WARN"], host)
    assert own_routes(host) == before


def test_an_apply_ends_before_the_lock_is_free(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair that waited for an apply of another config gets no answer and changes nothing."""
    hold = host.lock.hold
    before = own_routes(host)

    @contextmanager
    def end_an_apply(ctx: Context) -> Iterator[None]:
        with hold(ctx):
            install(host, config_of([static_route("172.21.0.0/16 via 10.224.0.1 dev eth0")]))
            yield

    monkeypatch.setattr(host.lock, "hold", end_an_apply)
    install(host, CONFIG)
    with pytest.raises(HostFileError, match="another config has just been applied"):
        answer(["ask", "WARN"], host)
    assert own_routes(host) == before
