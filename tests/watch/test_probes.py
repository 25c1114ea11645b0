"""The reconciler of the rules for IPv6 probes, over a fake node on which an apply installed them."""

import logging

import pytest
from hypothesis import given
from support.probe_nodes import AGENTBAKERS, FOREIGN, OWN_TABLE, config, made_host
from support.run_nodes import put_in_force

from hostrouting import ConfigureProbeSNAT, HostRoutingConfig, Reset
from hostrouting.azure.probe_snat.reconciler import ProbeReconciler
from hostrouting.azure.probe_snat.ruleset import (
    RULESET_PATH,
    ProbeRules,
    delete_script,
    parse,
    render,
)
from hostrouting.boot.reconciler import InstalledConfig
from hostrouting.testing import FakeHost, strategies
from phases import Context, execute

ALWAYS = config(detect="always")


@pytest.fixture
def host() -> FakeHost:
    host = made_host()
    execute(ConfigureProbeSNAT(ALWAYS, host=host), Context(timeout=60))
    host.nftables.operations.calls.clear()
    return host


def reconciler_of(host: FakeHost, wanted: HostRoutingConfig = ALWAYS) -> ProbeReconciler:
    logger = logging.getLogger("test")
    return ProbeReconciler(host, logger, InstalledConfig(wanted, host.files, logger))


def checked_units(host: FakeHost) -> list[str]:
    return [call[0] for call in host.nftables.operations.calls]


def delete_table(host: FakeHost) -> None:
    host.nftables.load(Context(), delete_script())


def table(host: FakeHost) -> object:
    return host.nftables.tables.get(OWN_TABLE)


@pytest.mark.parametrize(("change", "sign"), [(delete_script(), "+"), (FOREIGN, "~")])
def test_a_table_that_changed_is_loaded_again(
    host: FakeHost, change: str, sign: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A table of the probes that is deleted, or has another program's rules, is loaded again, which
    one line reports.
    """
    before = table(host)
    host.nftables.load(Context(), change)
    caplog.clear()
    reconciler = reconciler_of(host)
    assert reconciler.act(Context()) == ALWAYS.watch.interval
    assert table(host) == before
    assert [message[:11] for message in caplog.messages] == [f"repaired: {sign}"]
    reconciler.act(Context())
    assert len(caplog.messages) == 1


def test_a_table_that_is_right_is_only_listed(host: FakeHost) -> None:
    """A right table of the probes is listed once, without the run lock, and so is a table of
    AgentBaker with the same effect.
    """
    reconciler = reconciler_of(host)
    reconciler.act(Context())
    assert checked_units(host) == ["table"]
    host.nftables.load(Context(), AGENTBAKERS.replace("flush table", "delete table"))
    host.nftables.operations.calls.clear()
    host.lock.holder = 4242
    reconciler.act(Context())
    assert checked_units(host) == ["table"]


def test_a_node_without_the_file_has_no_rules(host: FakeHost) -> None:
    """Rules whose file is lost, or is that of an undo that was killed, are not loaded."""
    delete_table(host)
    for content in delete_script().encode(), b"", b"\xff":
        host.files.write(RULESET_PATH, content, mode=0o644)
        reconciler_of(host).act(Context())
    host.files.remove(RULESET_PATH)
    reconciler_of(host).act(Context())
    assert table(host) is None
    assert "load" not in checked_units(host)[1:]


def test_a_program_that_does_the_job_is_left(
    host: FakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    """Rules are not loaded again once ipv6-hp-bpf has taken over and deleted the table, which is
    logged once.
    """
    delete_table(host)
    host.link_layer.programs = {"eth0": ("ipv6_hp_egress", "ipv6_hp_ingress")}
    reconciler = reconciler_of(host)
    caplog.clear()
    for _ in range(2):
        reconciler.act(Context())
    assert table(host) is None
    assert ["ipv6-hp-bpf" in message for message in caplog.messages] == [True]


@pytest.mark.parametrize("by", ["reset", "config"])
def test_after_the_look_the_config_is_read(host: FakeHost, by: str) -> None:
    """Rules are not loaded if a reset, or an apply of a config without the section, came between
    the look and the lock.
    """
    reconciler = reconciler_of(host)
    if by == "reset":
        execute(Reset(HostRoutingConfig(), host=host), Context(timeout=60))
        host.files.write(RULESET_PATH, render(RULES).encode(), mode=0o644)
    else:
        delete_table(host)
        put_in_force(host, b'{"hostRouting": {"routeOverlap": {"expected": ["azure"]}}}')
    reconciler.act(Context())
    assert table(host) is None


RULES = ProbeRules(
    dev="eth0", source="fe80::1234:5678:9abc", address="2603:1062:0:1:fe80:1234:5678:9abc"
)


@given(strategies.device_names(), strategies.probe_snat_configs())
def test_the_values_of_a_script_are_found_in_it(dev: str, section: object) -> None:
    """`parse` reads the rules back from the script that `render` writes."""
    rules = ProbeRules(dev=dev, source=section.source, address=section.address)  # type: ignore[attr-defined]
    assert parse(render(rules)) == rules
