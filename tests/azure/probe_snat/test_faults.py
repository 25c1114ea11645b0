"""Every call of every port that can fail, and runs that are killed at any of them."""

from collections.abc import Callable

import pytest
from support.patience import in_time
from support.probe_listings import rules_in
from support.probe_nodes import (
    CONFIG,
    FOREIGN,
    NEIGHBOUR,
    OFF,
    OWN_TABLE,
    apply,
    made_host,
    planned,
    state,
)

from hostrouting import ConfigureProbeSNAT, HostRoutingError
from hostrouting.azure.probe_snat.ruleset import DEPARTURE, RULESET_PATH
from hostrouting.testing import FakeHost
from phases import Context

pytestmark = pytest.mark.slow


UNIT_PATH = DEPARTURE.paths[1]


PORTS = ["files", "services", "nftables", "link_layer", "metadata"]


class Killed(BaseException):
    """As if by `kill -9`: no handler catches it."""


def fails(act: Callable[[Context], None]) -> bool:
    """Return True if `act` raised one of our errors or the planned one; any other error passes."""
    try:
        act(in_time())
    except (HostRoutingError, Killed):
        return True
    return False


class TestFaults:
    """Whatever fails, and wherever a run is killed: the next run, or the way back, ends where it
    should.
    """

    @pytest.mark.parametrize(
        ("port", "ruleset"),
        [*((port, NEIGHBOUR) for port in PORTS), ("nftables", NEIGHBOUR + FOREIGN)],
    )
    @pytest.mark.parametrize("error", [None, Killed()])
    def test_do(self, ctx: Context, port: str, error: BaseException | None, ruleset: str) -> None:
        """At every single call."""
        wanted = made_host(ruleset)
        pristine = made_host()
        ConfigureProbeSNAT(CONFIG, host=wanted).do(ctx)
        calls = len(getattr(wanted, port).operations.calls)
        for number in range(1, calls + 1):
            for way in "again", "back":
                host = made_host(ruleset)
                getattr(host, port).fail_at(number, error)
                failed = fails(ConfigureProbeSNAT(CONFIG, host=host).do)
                untouched = (
                    OWN_TABLE in host.nftables.tables
                    and rules_in(host.nftables.tables[OWN_TABLE]) is None
                )
                assert failed or state(host) == state(wanted)
                if way == "again":
                    apply(host, ctx)
                    assert state(host) == state(wanted)
                    assert planned(host, ctx) == []
                else:
                    ConfigureProbeSNAT(CONFIG, host=host).undo(ctx)
                    assert host.files.tree.snapshot() == {}
                    assert untouched or state(host) == state(pristine)

    @pytest.mark.parametrize("port", ["files", "services", "nftables"])
    @pytest.mark.parametrize("error", [None, Killed()])
    @pytest.mark.parametrize("gone", [(), (RULESET_PATH,), (UNIT_PATH,)])
    def test_undo(
        self, ctx: Context, port: str, error: BaseException | None, gone: tuple[str, ...]
    ) -> None:
        """At every single call; also if an operator has removed one of the files."""

        def installed() -> FakeHost:
            host = made_host()
            apply(host, ctx)
            for path in gone:
                host.files.remove(path)
            return host

        pristine = made_host()
        counted = installed()
        getattr(counted, port).operations.calls.clear()
        ConfigureProbeSNAT(CONFIG, host=counted).undo(ctx)
        assert state(counted) == state(pristine)
        for number in range(1, len(getattr(counted, port).operations.calls) + 1):
            host = installed()
            getattr(host, port).fail_at(number, error)
            fails(ConfigureProbeSNAT(OFF, host=host).do)
            apply(host, ctx, OFF)
            assert state(host) == state(pristine)
