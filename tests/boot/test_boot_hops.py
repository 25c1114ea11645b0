"""From any configuration to any other: the result depends on the last one, not on the way to it."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.boot_units import CHECK, NSPAWN, STATIC, departure_of, install_upstream, stand_in
from support.boots import pids_of_machines, seen

from hostrouting.boot.boot import Boot
from hostrouting.testing import FakeHost
from phases import Context

pytestmark = pytest.mark.slow

GATES = NSPAWN, "kubelet.service", "systemd-nspawn@kube1.service", "absent.service"


class Configuration(NamedTuple):
    """A configuration: a program for each wanted capability, and the gates."""

    programs: dict[str, str]
    gates: list[str]


configurations = st.builds(
    Configuration,
    programs=st.dictionaries(st.sampled_from([STATIC, CHECK]), st.sampled_from(["", "exit 11\n"])),
    gates=st.lists(st.sampled_from(GATES), min_size=1, unique=True),
)


def machine(*, upstream: bool = False) -> FakeHost:
    host = FakeHost()
    for gate in NSPAWN, "kubelet.service":
        host.files.write(
            f"/lib/systemd/system/{gate}", b"[Service]\nExecStart=/bin/sleep infinity\n", mode=0o644
        )
    if upstream:
        install_upstream(host.files)
    for unit in "systemd-nspawn@kube1.service", "kubelet.service":
        host.services.start(Context(), unit)
    return host


def configure(host: FakeHost, wanted: Configuration) -> bool:
    """Do the work of the two tasks, each after its own plan; return if anything changed."""
    ctx = Context()
    boot = Boot(host, gates=wanted.gates)
    changed = False
    for name in STATIC, CHECK:
        before = seen(host.files.tree)
        if name in wanted.programs:
            unit = stand_in(name, wanted.programs[name])
            planned = boot.plan_install(ctx, unit)
            did = boot.install(ctx, unit)
        else:
            unit = stand_in(name)
            planned = boot.plan_install(ctx, departure_of(unit))
            did = boot.install(ctx, departure_of(unit))
        after = seen(host.files.tree)
        touched = {
            path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
        }
        assert {change.subject for change in planned} == touched
        assert did == bool(planned)
        changed |= did
    return changed


@given(st.booleans(), st.lists(configurations, min_size=1, max_size=5))
def test_hopping(upstream: bool, hops: list[Configuration]) -> None:
    """Every hop ends as a first install would, plans its changes exactly, and disturbs no running
    unit.
    """
    host = machine(upstream=upstream)
    pids = pids_of_machines(host)
    for wanted in hops:
        configure(host, wanted)
        fresh = machine()
        configure(fresh, wanted)
        assert host.files.tree.snapshot() == fresh.files.tree.snapshot()
        assert not configure(host, wanted)
        for unit in (
            "systemd-nspawn@kube1.service",
            "kubelet.service",
            "hostrouting-ready.service",
        ):
            now = host.services.state(Context(), unit)
            then = fresh.services.state(Context(), unit)
            assert now.drop_ins == then.drop_ins
            assert now.requires == then.requires
    assert pids_of_machines(host) == pids
    configure(host, Configuration({}, [NSPAWN]))
    assert host.files.tree.snapshot() == machine().files.tree.snapshot()
