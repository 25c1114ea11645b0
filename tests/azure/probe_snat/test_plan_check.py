"""`plan` names the changes of `do`, and `check` the faults; neither changes anything or waits."""

import logging

import attrs
import pytest
from support.printed import (
    CHOOSE_DEV,
    DRIFTED,
    NO_DESCRIPTION,
    NO_IPV6_DEFAULT,
    NOT_LOADED,
    TWO_IPV6_EXITS,
)
from support.probe_listings import rules_in
from support.probe_nodes import (
    AGENTBAKERS,
    CONFIG,
    FOREIGN,
    OFF,
    OWN_TABLE,
    TABLE,
    apply,
    check,
    config,
    lead,
    messages_at,
    planned,
)
from support.probe_worlds import RULES

from hostrouting import ConfigureProbeSNAT, HostRoutingConfig
from hostrouting.azure.probe_snat.capability import PROBE_SNAT
from hostrouting.azure.probe_snat.ruleset import (
    AGAIN_PATH,
    REMOVAL,
    RULESET_PATH,
    ProbeRules,
    render,
)
from hostrouting.base.findings import LEFT, REFUSED
from hostrouting.exceptions import BackendError, PermissionDeniedError
from hostrouting.testing import FakeHost
from phases import Context

UNIT_PATH = REMOVAL.paths[1]


class TestPlan:
    @pytest.mark.parametrize(
        ("ruleset", "detail"),
        [
            (FOREIGN, "its rules are not those of hostrouting"),
            (
                render(ProbeRules(dev="eth1", source="fe80::1", address="2001:db8::1")),
                "it rewrites fe80::1 to 2001:db8::1 on eth1",
            ),
        ],
    )
    def test_drifted(self, host: FakeHost, ctx: Context, ruleset: str, detail: str) -> None:
        """The plan for a table with other rules shows how the table differs."""
        apply(host, ctx)
        assert planned(host, ctx) == []
        host.nftables.texts.clear()
        host.nftables.load(ctx, ruleset)
        assert planned(host, ctx) == [f"~ {TABLE} ({detail})"]

    def test_without_root(self, host: FakeHost, ctx: Context) -> None:
        """A plan without root names the table as unknown, since its rules cannot be read; a check
        is an error then.
        """
        apply(host, ctx)
        host.nftables.may_read = False
        unknown = "only root can read it"
        assert planned(host, ctx) == [f"~ {TABLE} (unless it is in place: {unknown})"]
        last = ConfigureProbeSNAT(OFF, host=host).plan(ctx)[-1]
        assert str(last) == f"- {TABLE} (if it exists: {unknown})"
        with pytest.raises(PermissionDeniedError):
            check(host, ctx)

    def test_whether_an_apply_would_install_rules(self, host: FakeHost, ctx: Context) -> None:
        """An apply would install rules into every image, and on a node if it has IPv6."""
        installs = PROBE_SNAT.would_install
        for node in FakeHost(is_live=False), host:
            assert [installs(ctx, each, node) for each in (CONFIG, OFF)] == [True, False]
        host.metadata.document = []
        assert not installs(ctx, CONFIG, host)

    def test_nothing_is_waited_for(self, host: FakeHost, ctx: Context) -> None:
        """A plan without an IPv6 default route or an answer of the cloud names the missing route
        and does not wait.
        """
        lead(host)
        host.metadata.error = BackendError("no answer")
        assert planned(host, ctx) == [
            f"+ {TABLE} ({NO_IPV6_DEFAULT}: follows once that is fixed)",
            f"+ {RULESET_PATH}",
            f"+ {UNIT_PATH}",
            f"+ {AGAIN_PATH}",
        ]
        assert ctx.clock.monotonic() == 0

    def test_a_table_that_is_there(self, host: FakeHost, ctx: Context) -> None:
        """A plan names a loaded table as changed and not as added, even if an obstacle exists or
        the table cannot be read.
        """
        apply(host, ctx)
        lead(host)
        expected = [f"~ {TABLE} ({NO_IPV6_DEFAULT}: follows once that is fixed)"]
        assert planned(host, ctx) == expected
        host.nftables.may_read = False
        assert planned(host, ctx) == expected

    @pytest.mark.parametrize("error", [BackendError("no answer"), None])
    def test_a_cloud_without_an_answer(
        self,
        host: FakeHost,
        ctx: Context,
        caplog: pytest.LogCaptureFixture,
        error: BackendError | None,
    ) -> None:
        """A plan without a readable answer of the cloud assumes that the node has IPv6, and its log
        warns.
        """
        host.metadata.error = error
        host.metadata.document = {"error": "x"}
        ConfigureProbeSNAT(CONFIG, host=host).plan(ctx)
        why = "no answer" if error else NO_DESCRIPTION
        [logged] = messages_at(caplog, logging.WARNING)
        assert logged.partition(why)[:2] == (
            "assuming IPv6, because the cloud's description is not available: ",
            why,
        )

    def test_refusals_are_in_the_plan(self, host: FakeHost, ctx: Context) -> None:
        """The plan reports that rules will be left out, or that required ones will be refused, with
        the next step.
        """
        lead(host, "eth0", "eth1")
        first = ConfigureProbeSNAT(CONFIG, host=host).plan(ctx)[0]
        assert str(first) == (f"+ {TABLE} (will be left out: {TWO_IPV6_EXITS}; {CHOOSE_DEV})")
        assert first.kind == LEFT
        required = HostRoutingConfig(probe_snat=attrs.evolve(CONFIG.probe_snat, required=True))
        assert ConfigureProbeSNAT(required, host=host).plan(ctx)[0].kind == REFUSED


class TestCheck:
    def test_in_place(self, host: FakeHost, ctx: Context) -> None:
        """A check finds nothing if the rules are in place or not wanted, or in an image.

        After a foreign flush a check finds that the table is not loaded, with the next step. Of the
        boot files it names those of the rules alone.
        """
        assert check(host, ctx, OFF) == []
        apply(host, ctx)
        assert check(host, ctx) == []
        assert check(FakeHost(is_live=False), ctx) == []
        host.nftables.texts.clear()
        assert check(host, ctx) == [f"error: probe-snat: {TABLE}: {NOT_LOADED}; apply the config"]
        apply(host, ctx)
        wanted_by = "/etc/systemd/system/hostrouting-ready.service.wants/probe-snat.service"
        for path in (*REMOVAL.paths, wanted_by):
            host.files.remove(path)
        reason = "differs from what this config needs at the next boot; apply the config"
        assert check(host, ctx) == [
            f"error: probe-snat: {path}: {reason}" for path in (*REMOVAL.paths, wanted_by)
        ]

    def test_the_same_effect_in_other_words(
        self, host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        """AgentBaker's table with the same effect on the same device counts as the wanted one, and
        stays; on another device it is replaced.
        """
        caplog.set_level(logging.INFO)
        apply(host, ctx)
        # With `delete` the script replaces the table that is loaded.
        reloaded_table = AGENTBAKERS.replace("flush table", "delete table")
        host.nftables.load(ctx, reloaded_table)
        agentbakers_table = host.nftables.tables[OWN_TABLE]
        assert check(host, ctx) == []
        assert planned(host, ctx) == []
        apply(host, ctx)
        assert host.nftables.tables[OWN_TABLE] == agentbakers_table
        host.nftables.load(ctx, reloaded_table.replace('"eth0"', '"eth1"'))
        how = "it rewrites fe80::1234:5678:9abc to 2603:1062:0:1:fe80:1234:5678:9abc on eth1"
        assert check(host, ctx) == [
            f"error: probe-snat: {TABLE}: has changed: {how}; apply the config"
        ]
        apply(host, ctx)
        assert rules_in(host.nftables.tables[OWN_TABLE]) == RULES
        assert any(f"{DRIFTED} ({how})" in logged for logged in messages_at(caplog, logging.INFO))

    @pytest.mark.parametrize("name", ["cil_from_netdev", "cil_from_netdev-eth0"])
    def test_cilium_before_nftables(
        self, host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture, name: str
    ) -> None:
        """Cilium's program before nftables, by tcx or tc, does not prevent the rules; plan, apply
        and check warn of it.
        """
        host.link_layer.programs = {"eth0": (name, "cil_to_netdev")}
        words = f"Cilium's program {name} on eth0 handles packets before nftables sees them"
        ConfigureProbeSNAT(CONFIG, host=host).plan(ctx)
        apply(host, ctx)
        assert rules_in(host.nftables.tables[OWN_TABLE]) == RULES
        logged = messages_at(caplog, logging.WARNING)
        assert [line.startswith(words) for line in logged] == [True, True]
        [found] = check(host, ctx)
        assert found.startswith(f"warning: probe-snat: eth0: {words}")
        assert all(text.endswith("use ipv6-hp-bpf instead") for text in (*logged, found))

    def test_a_node_that_went_wrong(self, host: FakeHost, ctx: Context) -> None:
        """A check finds rules that cannot work any more, without waiting."""
        apply(host, ctx)
        host.routes.add_route("2603:1062::/32", dev="eth1")
        [found] = check(host, ctx)
        assert "leave through eth1, not only through eth0" in found
        lead(host)
        assert NO_IPV6_DEFAULT in check(host, ctx)[0]
        assert ctx.clock.monotonic() == 0

    def test_a_cloud_that_does_not_answer(self, host: FakeHost, ctx: Context) -> None:
        """A check without an answer of the cloud relies on an earlier run; without an earlier run,
        a check of required rules is an error.
        """
        host.metadata.error = BackendError("no answer")
        with pytest.raises(BackendError, match="no answer"):
            check(host, ctx, config(required=True))
        host.metadata.error = None
        apply(host, ctx)
        host.metadata.error = BackendError("no answer")
        host.nftables.texts.clear()
        assert len(check(host, ctx)) == 1
