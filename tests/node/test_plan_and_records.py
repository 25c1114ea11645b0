"""An apply makes what its plan shows, and leaves nothing to make, on random nodes."""

import attrs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from node.test_transaction import configs, on, worlds
from support import node_worlds
from support.examples import FEW
from support.kernel import needs_kernel
from support.patience import at_once

from hostrouting import Configure, HostRoutingConfig, OverlapMode, ProbeSNATConfig
from hostrouting.boot.layout import STATE_DIRECTORY
from hostrouting.host import Host
from hostrouting.node.configure import RELEASED
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend, strategies
from phases import Change, plan, run

#: 200 in `make check`, 2,000 in a soak.
_MANY = min(2000, 2 * settings().max_examples)


@st.composite
def wanted_configs(
    draw: st.DrawFn, world: node_worlds.World, *, siblings: bool = False
) -> HostRoutingConfig:
    """A config of the small world; with optional features, gates and units to wait for by its arguments.
    Most nodes can carry it out: it names no absent device, and WARN installs it whatever the check
    finds.
    """
    pair = draw(configs(world))
    routes = [each for each in pair.static_routes.routes if each.dev != "absent"]
    if draw(st.booleans()):
        routes = [attrs.evolve(each, gateway=None, dev=None) for each in routes]
    alone = HostRoutingConfig()
    return attrs.evolve(
        draw(st.just(alone) | strategies.configs()) if siblings else alone,
        # A random node has no device for it.
        probe_snat=ProbeSNATConfig(),
        static_routes=attrs.evolve(pair.static_routes, enabled=bool(routes), routes=tuple(routes)),
        route_overlap=attrs.evolve(pair.route_overlap, mode=OverlapMode.WARN),
    )


def compare(host: Host, wanted: HostRoutingConfig) -> None:
    """Assert that an apply without interference makes the changes of its plan, and that the plan
    after it is empty.

    The task that comes first makes a file that several share and plan, and writes before it
    removes: so the changes of all tasks are compared, in any order. Their details are for people.
    Nothing is claimed about a run with a failed task, which undoes it; nor of one whose check only the
    kernel decides, since the next one pins the device through which the node leaves.
    """
    planned = {_what(change) for change in plan(Configure(wanted, host=host, force=True)).changes}
    task = Configure(wanted, host=host, force=True)
    assume(not task.planned(at_once()).forecast.undecided)
    report = run(task, at_once())
    assume(all(each.ok for each in report.walk()))
    made = [_what(change) for change in report.changes if not _is_of_a_run(change)]
    assert sorted(made) == sorted(planned)
    assert plan(Configure(wanted, host=host, force=True)).changes == ()


def _what(change: Change) -> tuple[str, str]:
    return change.action, change.subject


def _is_of_a_run(change: Change) -> bool:
    """Return whether a plan does not foresee it: the marker of the check, or a unit that was held."""
    return change.subject.startswith(f"{STATE_DIRECTORY}/") or change.kind == RELEASED


@pytest.mark.slow
@settings(max_examples=_MANY, suppress_health_check=list(HealthCheck))
@given(worlds, st.data())
def test_an_apply_makes_what_its_plan_shows(world: node_worlds.World, data: st.DataObject) -> None:
    """On a fake of the whole node an apply makes the changes of its plan, with or without an
    installed config.
    """
    host = FakeHost(MemoryBackend())
    # How routes go on without a device is for a kernel.
    world._replace(down=None).arrange(host.routes)
    earlier = data.draw(st.none() | wanted_configs(world, siblings=True))
    if earlier is not None:
        run(Configure(earlier, host=host, force=True), at_once())
    compare(host, data.draw(wanted_configs(world, siblings=True)))


@needs_kernel
@pytest.mark.slow
@settings(max_examples=FEW, suppress_health_check=list(HealthCheck))
@given(worlds, st.data())
def test_an_apply_of_a_kernel_makes_what_its_plan_shows(
    world: node_worlds.World, data: st.DataObject
) -> None:
    """On a node of the kernel an apply of a config of the pair makes the changes of its plan."""
    with KernelNode.made() as kernel:
        world.arrange(kernel)
        host, _ = on(kernel)
        run(Configure(data.draw(wanted_configs(world)), host=host, force=True), at_once())
        compare(host, data.draw(wanted_configs(world)))
