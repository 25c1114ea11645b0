"""The verb of the boot's program that repairs static routes: its answers, and the routes that it
leaves.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from support.kernel import connect
from support.printed import CORRECT_GATEWAY, NEVER_OVERWRITTEN, NO_DEVICE, SEE_DHCP, UNTIL_REMOVED
from support.static_route_nodes import CONFIG, WANTED, other_routes, own_routes
from support.static_route_scripts import config_of, install, static_route

from hostrouting.exceptions import LockHeldError, Refusal, RouteRejectedError
from hostrouting.host import RouteChange
from hostrouting.node.at_boot import BootVerdict, answer, log_lines
from hostrouting.testing import FakeHost, MemoryBackend
from hostrouting.testing.route_texts import route
from phases import Context

LOGGED = "/run/aks-flex-node/static-routes.told"


def verdict_at_boot(host: FakeHost, *options: str) -> BootVerdict:
    return answer(["routes", "row", *options], host)


def test_a_node_that_is_not_plain(host: FakeHost) -> None:
    """The program of a boot ends in the routes of the task, keeps foreign routes, and logs no
    repair.
    """
    before = other_routes(host)
    install(host, CONFIG)
    assert verdict_at_boot(host) == BootVerdict(10, "routes in force: 3", 5, LOGGED)
    assert own_routes(host) == WANTED
    assert other_routes(host) == before
    assert verdict_at_boot(host, "wait") == BootVerdict(10, "routes in force: 3", 5, LOGGED)


def test_a_repair_after_the_boot_is_logged(host: FakeHost) -> None:
    """A repair after the boot is logged with the routes that it hides, before the verdict, even if
    the verdict is the old one.
    """
    install(host, config_of([static_route("172.16.8.0/22 via 10.224.0.1 dev eth0")]))
    host.files.write(LOGGED, b"routes in force: 1", mode=0o644)
    verdict = verdict_at_boot(host)
    assert verdict.changes == (
        (
            "repaired: + 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142 (hides '172.16.8.0/22 via "
            f"10.224.0.9 dev eth0 proto static' {UNTIL_REMOVED})"
        ),
        "repaired: - 172.20.0.0/16 via 10.224.0.1 dev eth0 table 100 proto 142",
    )
    assert log_lines(verdict, host, is_journal=True) == [f"<4>{line}" for line in verdict.changes]
    assert log_lines(verdict, host, is_journal=False) == [*verdict.changes, "routes in force: 1"]


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
                "Nexthop has invalid gateway (Network is unreachable); no network of eth0 has the "
                f"gateway 10.225.0.1; {CORRECT_GATEWAY}"
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
def test_a_route_that_is_refused(text: str, reason: str, *, may_heal: bool) -> None:
    """A refused route is named as the config has it, and all other routes are in force.

    What may be late is a reason to wait, and nothing is logged then. After the boot the other
    routes are logged as repairs.
    """
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16")
    host = FakeHost(node)
    other = static_route("172.22.0.0/16 via 10.224.0.1 dev eth0")
    install(host, config_of([static_route(text), other]))
    host.files.write(LOGGED, b"", mode=0o644)
    repaired = ("repaired: + 172.22.0.0/16 via 10.224.0.1 dev eth0 proto 142",)
    verdict = BootVerdict(11, f"refused: {text}: {reason}", 3, LOGGED)
    assert verdict_at_boot(host, "wait") == (
        BootVerdict(14, f"{text}: {reason}") if may_heal else verdict._replace(changes=repaired)
    )
    assert verdict_at_boot(host) == verdict
    assert own_routes(host) == ["172.22.0.0/16 via 10.224.0.1 dev eth0 proto 142"]


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
    assert verdict_at_boot(host) == BootVerdict(11, f"refused: {waiting}: {NO_DEVICE}", 3, LOGGED)
    assert own_routes(host) == [stale]


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EBUSY, errno.ENOBUFS])
def test_a_kernel_without_memory(host: FakeHost, number: int) -> None:
    """A boot that waits for routing answers at once if the kernel lacks memory, as nothing is late;
    the next call succeeds.
    """
    install(host, config_of([static_route("172.22.0.0/16 via 10.224.0.1 dev eth0")]))
    host.routes.refuse_at(1, number=number)
    verdict = verdict_at_boot(host, "wait")
    assert verdict.status == 11
    assert verdict.priority == 3
    assert verdict.text.startswith("refused: 172.22.0.0/16 via 10.224.0.1 dev eth0: ")
    assert verdict_at_boot(host, "wait").status == 10


def test_an_undo_that_is_incomplete(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
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
    lines = f"refused: {refused}\nrefused: missing: a route"
    assert verdict_at_boot(host, "wait") == BootVerdict(11, lines, 3, LOGGED)


def test_another_program_is_faster(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that another program removes at once is a reason to wait while a boot waits, and is
    refused by a call that does not wait.
    """
    apply = host.routes.apply

    def lose(changes: Sequence[RouteChange], **options: Any) -> None:
        apply(changes, **options)
        [lost] = [route for route in host.routes.routes() if str(route) == WANTED[0]]
        apply([RouteChange.remove(lost)])

    monkeypatch.setattr(host.routes, "apply", lose)
    install(host, CONFIG)
    reason = f"+ {WANTED[0]}: another program has changed it meanwhile"
    assert verdict_at_boot(host, "wait") == BootVerdict(14, reason)
    assert verdict_at_boot(host) == BootVerdict(11, f"refused: {reason}", 3, LOGGED)


def test_a_run_is_under_way(host: FakeHost) -> None:
    """A repair beside a run gets no answer and changes nothing, as the run may be undone."""
    install(host, CONFIG)
    before = own_routes(host)
    with host.lock.hold(Context()), pytest.raises(LockHeldError):
        verdict_at_boot(host)
    assert own_routes(host) == before


def test_an_apply_ends_before_the_lock_is_free(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair that waited for an apply uses the config that the apply has installed."""
    hold = host.lock.hold
    new = static_route("172.21.0.0/16 via 10.224.0.1 dev eth0")

    @contextmanager
    def end_an_apply(ctx: Context) -> Iterator[None]:
        with hold(ctx):
            install(host, config_of([new]))
            yield

    monkeypatch.setattr(host.lock, "hold", end_an_apply)
    install(host, CONFIG)
    assert verdict_at_boot(host) == BootVerdict(10, "routes in force: 1", 5, LOGGED)
    assert own_routes(host) == [f"{new} proto 142"]
