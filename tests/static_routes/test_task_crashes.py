"""ConfigureStaticRoutes on a fake machine: runs that are killed, and those after them."""

from collections.abc import Callable

import pytest
from support.static_route_nodes import CONFIG, WANTED, Killed, made_host, others, ours

from hostrouting.exceptions import HostRoutingError
from hostrouting.static_routes import ConfigureStaticRoutes
from hostrouting.testing import FakeHost
from hostrouting.testing.faults import Operations
from phases import Context
from phases.testing import ManualClock


def attempts(prepare: Callable[[FakeHost, int], None]) -> list[FakeHost]:
    """Hosts on which `do` was broken at its first, second, ... operation, as long as there was one to break."""
    broken: list[FakeHost] = []
    for number in range(1, 400):
        host = made_host()
        prepare(host, number)
        try:
            ConfigureStaticRoutes(CONFIG, host=host).do(Context(clock=ManualClock(auto=True)))
        except (HostRoutingError, Killed):
            broken.append(host)
        else:
            return broken
    raise AssertionError("there is no end to it")


FAULTS: dict[str, Callable[[FakeHost, int], None]] = {
    "a file operation fails": lambda host, number: host.files.fail_at(number),
    "killed at a file operation": lambda host, number: host.files.fail_at(number, Killed()),
    "systemd does not answer": lambda host, number: host.services.fail_at(number),
    "killed at a request to systemd": lambda host, number: host.services.fail_at(number, Killed()),
    "the kernel refuses a route": lambda host, number: host.routes.fail_at(number),
    "killed within a batch": lambda host, number: host.routes.steps.fail(number, Killed()),
}


@pytest.mark.slow
class TestCrashes:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_the_next_run_ends_in_the_wanted_state(self, fault: str, ctx: Context) -> None:
        """Wherever a run broke off, the next one completes its work."""
        right = made_host()
        ConfigureStaticRoutes(CONFIG, host=right).do(ctx)
        broken = attempts(FAULTS[fault])
        assert len(broken) > 1
        for host in broken:
            host.routes.steps = Operations()
            ConfigureStaticRoutes(CONFIG, host=host).do(ctx)
            assert ours(host) == ours(right)
            ConfigureStaticRoutes(CONFIG, host=host).undo(ctx)
            assert others(host) == others(made_host())

    @pytest.mark.parametrize("fault", FAULTS)
    def test_it_can_be_undone(self, fault: str, ctx: Context) -> None:
        """Wherever a run broke off, undo leaves the node as it was before."""
        before = others(made_host())
        for host in attempts(FAULTS[fault]):
            host.routes.steps = Operations()
            ConfigureStaticRoutes(CONFIG, host=host).undo(ctx)
            assert others(host) == before
            assert ours(host) == []
            assert host.files.tree.snapshot() == {}

    @pytest.mark.parametrize(
        "fault", ["a file operation fails", "systemd does not answer", "the kernel refuses a route"]
    )
    def test_routes_change_all_or_not_at_all(self, fault: str) -> None:
        """A run that fails has changed every route, or none."""
        before = list(map(str, made_host().routes.routes()))
        for host in attempts(FAULTS[fault]):
            assert list(map(str, host.routes.routes())) == before or ours(host) == WANTED
