"""ConfigureProbeSNAT on a fake machine: its work, the nodes that it leaves alone, and the answers
of the cloud.
"""

import logging
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest
from support.imds import network_interface
from support.memory_links import add_address, remove_address
from support.patience import at_once
from support.printed import DRIFTED, NO_IPV6_ADDRESS, NO_IPV6_DEFAULT, SEE_ROUTER, WAITING
from support.probe_listings import expected_listing, rules_in
from support.probe_nodes import (
    ADDRESS,
    CONFIG,
    FOREIGN,
    OFF,
    OWN_TABLE,
    TABLE,
    apply,
    check,
    config,
    lead,
    made_host,
    messages_at,
    planned,
)
from support.probe_worlds import RULES

from hostrouting import ConfigureProbeSNAT, HostRoutingConfig
from hostrouting.azure.probe_snat.ruleset import REMOVAL, RULESET_PATH, boot_unit, render
from hostrouting.boot.layout import CONFIG_PATH, PROGRAM_PATH
from hostrouting.exceptions import BackendError, ToolNotFoundError, UnitError
from hostrouting.testing import FakeHost
from hostrouting.testing.contracts.routes import arrange
from phases import CancelledError, Context, Serial, run, task
from phases.testing import ManualClock

#: Reasons for which a node needs no rules of hostrouting.
REASONS = ["off", "no IPv6 by the cloud", "no IPv6 address", "eBPF"]
UNIT_PATH = REMOVAL.paths[1]


def state(host: FakeHost) -> object:
    """All that a run can change."""
    return dict(host.nftables.tables), host.files.tree.snapshot()


def takes_no_part(host: FakeHost, why: str) -> HostRoutingConfig:
    """Arrange a node that needs no rules of hostrouting; return a config with which the task finds
    the reason.
    """
    if why == "off":
        return OFF
    if why == "no IPv6 by the cloud":
        host.metadata.document = [network_interface()]
        return CONFIG
    if why == "no IPv6 address":
        remove_address(host.link_layer, "eth0", ADDRESS)
        return config(detect="address")
    host.link_layer.programs = {"eth0": ("ipv6_hp_egress", "ipv6_hp_ingress")}
    return CONFIG


class LaterClock(ManualClock):
    """A clock at which something happens after 10 s, once."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__(auto=True)
        self._happens: Callable[[], object] | None = happens

    def wait(self, doorbell: threading.Lock, until: float | None) -> None:
        super().wait(doorbell, until)
        if self._happens is not None and self.monotonic() >= 10:
            self._happens()
            self._happens = None


EARLY = b"[Unit]\nBefore=network.target\n[Service]\nExecStart=/bin/true\n"


class TestDo:
    def test_live_and_for_every_boot(
        self, host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A run loads exactly the rules of hostrouting and installs ruleset and unit, next to
        foreign tables; a second run changes nothing.
        """
        caplog.set_level(logging.INFO)
        foreign_table = host.nftables.tables["ip6", "foreign"]
        apply(host, ctx)
        assert rules_in(host.nftables.tables[OWN_TABLE]) == RULES
        assert host.nftables.tables["ip6", "foreign"] == foreign_table
        for file in boot_unit(RULES).files:
            assert host.files.read(file.path) == file.content
        assert host.files.exists(
            "/etc/systemd/system/hostrouting-ready.service.wants/probe-snat.service"
        )
        assert messages_at(caplog, logging.INFO) == [f"{TABLE} loaded: {RULES}"]
        before = state(host)
        host.nftables.operations.calls.clear()
        apply(host, ctx)
        assert state(host) == before
        assert host.nftables.operations.calls == [("table", *OWN_TABLE)]

    def test_a_table_with_flags(
        self, host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A table with flags, whose rules cannot be read, is found, planned for, replaced, and
        deleted.
        """
        caplog.set_level(logging.INFO)
        task = ConfigureProbeSNAT(CONFIG, host=host)
        task.do(ctx)
        host.nftables.texts[OWN_TABLE] = "flags dormant"
        detail = "it has flags, such as dormant or owner"
        assert check(host, ctx) == [
            f"error: probe-snat: {TABLE}: has changed: {detail}; apply the config"
        ]
        assert [str(change) for change in task.plan(ctx)] == [f"~ {TABLE} ({detail})"]
        task.do(ctx)
        assert host.nftables.tables[OWN_TABLE] == expected_listing(RULES)
        assert messages_at(caplog, logging.INFO)[-1].startswith(f"{TABLE} {DRIFTED}")
        host.nftables.texts[OWN_TABLE] = "flags dormant"
        task.undo(ctx)
        assert OWN_TABLE not in host.nftables.tables

    def test_a_race_with_a_flush(
        self, host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A flush right after the load is logged and is not a failure, since the unit is
        installed.
        """
        host.nftables.operations.plan(4, partial(setattr, host.nftables, "texts", {}))
        apply(host, ctx)
        assert host.files.exists(UNIT_PATH)
        assert messages_at(caplog, logging.WARNING) == [
            (
                f"{TABLE} has changed since it was loaded, so another program changes the ruleset; "
                "probe-snat.service loads it again at each start of a gated unit"
            )
        ]

    def test_a_run_that_is_killed_at_the_table(self, host: FakeHost, ctx: Context) -> None:
        """A run that is killed as it loads or deletes the table leaves the file by which a reset
        knows that the table is hostrouting's, and no unit that would load it again.
        """
        for settings in CONFIG, OFF:
            host.nftables.fail_at(1, KeyboardInterrupt(), of="load")
            with pytest.raises(KeyboardInterrupt):
                apply(host, ctx, settings)
            assert host.files.exists(RULESET_PATH)
            assert not host.files.exists(UNIT_PATH)
            apply(host, ctx)

    def test_a_table_whose_unit_is_masked_is_removed(self, host: FakeHost, ctx: Context) -> None:
        """A table is removed although a mask is all that is left of the unit's files."""
        apply(host, ctx)
        for path in (*REMOVAL.paths, UNIT_PATH):
            host.files.remove(path)
        host.files.link(UNIT_PATH, "/dev/null")
        apply(host, ctx, HostRoutingConfig())
        assert OWN_TABLE not in host.nftables.tables

    def test_an_undo_leaves_a_table_that_changed(
        self, host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An undo leaves a table that another program has changed meanwhile, with a warning, and
        its change stays in the report.
        """

        @task("later", records=True)
        def later(_: Context) -> None:
            host.nftables.texts[OWN_TABLE] = "flags dormant"
            raise OSError

        report = run(
            Serial(ConfigureProbeSNAT(CONFIG, host=host), later), ctx, undo_on_failure=True
        )
        assert host.nftables.texts[OWN_TABLE] == "flags dormant"
        assert [change.subject for change in report.changes] == [TABLE]
        assert messages_at(caplog, logging.WARNING) == [
            f"{TABLE} has changed since this run loaded it and is left as it is"
        ]

    def test_an_undo_is_silent_where_the_table_is_as_before(
        self, host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An undo logs no warning if another program has removed the table that the run loaded."""

        @task("later", records=True)
        def later(_: Context) -> None:
            del host.nftables.texts[OWN_TABLE]
            raise OSError

        run(Serial(ConfigureProbeSNAT(CONFIG, host=host), later), ctx, undo_on_failure=True)
        assert OWN_TABLE not in host.nftables.texts
        assert messages_at(caplog, logging.WARNING) == []

    def test_late_routers(self, host: FakeHost, caplog: pytest.LogCaptureFixture) -> None:
        """A run uses a default route that comes during its wait, and logs the wait once."""
        caplog.set_level(logging.INFO)
        lead(host)
        apply(host, Context(clock=LaterClock(lambda: lead(host, "eth0"))))
        assert rules_in(host.nftables.tables[OWN_TABLE]) == RULES
        assert messages_at(caplog, logging.INFO)[0] == f"{WAITING}{NO_IPV6_DEFAULT}"
        assert len(messages_at(caplog, logging.INFO)) == 2

    @pytest.mark.parametrize(
        ("arrange", "settings", "error", "words", "seconds"),
        [
            (
                lead,
                CONFIG,
                BackendError,
                f"IPv6 probes cannot reach pods: {NO_IPV6_DEFAULT}, still so after 30 s. No rule was",
                30,
            ),
            (
                lambda host: add_address(
                    host.link_layer, "eth0", f"{CONFIG.probe_snat.address}/128"
                ),
                CONFIG,
                BackendError,
                "is an address of this node, ",
                0,
            ),
            (
                lambda host: setattr(host.nftables, "is_installed", False),
                CONFIG,
                ToolNotFoundError,
                "install the package nftables",
                0,
            ),
            # The rules are checked after the reading of the table.
            (
                lambda host: host.nftables.fail_at(2, BackendError("no")),
                CONFIG,
                BackendError,
                "no",
                0,
            ),
            (
                lambda host: host.files.write(
                    "/etc/systemd/system/early.service", EARLY, mode=0o644
                ),
                attrs.evolve(CONFIG, gates=("early.service",)),
                UnitError,
                "early.service cannot be a gate",
                0,
            ),
        ],
        ids=[
            "no router",
            "an address of the node",
            "no nft",
            "refused rules",
            "a gate",
        ],
    )
    def test_a_run_that_fails(
        self,
        host: FakeHost,
        ctx: Context,
        *,
        arrange: Any,
        settings: Any,
        error: Any,
        words: str,
        seconds: int,
    ) -> None:
        """A run that fails changes neither a file nor a rule, and waits only for what may become
        right.
        """
        arrange(host)
        before = state(host)
        with pytest.raises(error, match=re.escape(words)):
            apply(host, ctx, settings)
        assert state(host) == before
        assert ctx.clock.monotonic() == seconds

    def test_less_time_than_we_would_wait(self, host: FakeHost) -> None:
        """The error of a deadline before the end of the wait has the awaited route and the next
        step.
        """
        lead(host)
        before = state(host)
        with pytest.raises(BackendError) as caught:
            apply(host, at_once(3))
        assert str(caught.value) == (
            f"IPv6 probes cannot reach pods: {NO_IPV6_DEFAULT}, still so when the "
            f"time was up. No rule was changed; {SEE_ROUTER}"
        )
        assert state(host) == before

    def test_an_image(self, ctx: Context, caplog: pytest.LogCaptureFixture) -> None:
        """An image gets ruleset and unit, by plan and by run, and loses them by undo, whether or
        not its nodes will have IPv6.
        """
        caplog.set_level(logging.INFO)
        host = FakeHost(is_live=False)
        task = ConfigureProbeSNAT(config(dev="eth0"), host=host)
        changes = [str(change) for change in task.plan(ctx)]
        assert changes[:4] == [
            f"+ {path}" for path in (CONFIG_PATH, PROGRAM_PATH, RULESET_PATH, UNIT_PATH)
        ]
        task.do(ctx)
        assert [record.getMessage() for record in caplog.records if hasattr(record, "task")] == [
            "whether a node has IPv6 cannot be seen in an image: probe-snat.service is for nodes that have it",
            (
                "probe-snat.service needs nft, which is not in the image; "
                "install the package nftables, or probes will not reach pods"
            ),
        ]
        assert host.files.read(RULESET_PATH) == render(RULES).encode()
        assert task.plan(ctx) == []
        # Wherever systemd looks for it, nothing is warned of.
        host.files.write("/usr/local/sbin/nft", b"", mode=0o755)
        caplog.clear()
        task.do(ctx)
        assert messages_at(caplog, logging.WARNING) == []
        host.files.remove("/usr/local/sbin/nft")
        task.undo(ctx)
        assert host.files.tree.snapshot() == {}

    @pytest.mark.parametrize("is_required", [True, False])
    def test_gates_check_only_required_rules(self, ctx: Context, is_required: bool) -> None:
        """Gates wait for the rules' unit exactly if the rules are required, whatever the config was
        before.
        """
        host = FakeHost(is_live=False)
        for required in not is_required, is_required:
            apply(host, ctx, config(dev="eth0", required=required))
        links = "/etc/systemd/system/hostrouting-ready.service.{}/probe-snat.service"
        folders = "requires", "wants"
        assert [host.files.exists(links.format(folder)) for folder in folders] == [
            is_required,
            not is_required,
        ]


class TestNoPart:
    """A node that needs no rules, and has none afterwards."""

    @pytest.mark.parametrize("why", REASONS)
    def test_files_of_an_earlier_run_are_removed(
        self, host: FakeHost, ctx: Context, why: str
    ) -> None:
        """A run on a node that needs no rules removes table, ruleset and unit of an earlier run,
        and leaves foreign tables.
        """
        before = state(host)
        apply(host, ctx)
        settings = takes_no_part(host, why)
        changes = planned(host, ctx, settings)
        assert {f"- {UNIT_PATH}", f"- {RULESET_PATH}", f"- {TABLE}"} <= {*changes}
        apply(host, ctx, settings)
        assert state(host) == before
        assert planned(host, ctx, settings) == []

    @pytest.mark.parametrize("why", REASONS)
    def test_zero_impact(self, ctx: Context, why: str) -> None:
        """On a node that needs no rules and never had any, a run calls neither nft nor systemd, and
        leaves upstream's table.
        """
        host = made_host(FOREIGN)
        settings = takes_no_part(host, why)
        before = state(host)
        task = ConfigureProbeSNAT(settings, host=host)
        assert task.plan(ctx) == []
        assert why == "off" or task.findings(ctx) == []
        task.do(ctx)
        task.undo(ctx)
        assert state(host) == before
        assert host.nftables.operations.calls == []
        assert host.services.operations.calls == []

    @pytest.mark.parametrize(
        ("why", "message"),
        [
            ("no IPv6 by the cloud", "INFO: this node has no IPv6 according to the cloud"),
            ("no IPv6 address", f"INFO: {NO_IPV6_ADDRESS}"),
            (
                "eBPF",
                "WARNING: the eBPF program ipv6-hp-bpf (ipv6_hp_egress, ipv6_hp_ingress) already does this on eth0",
            ),
        ],
    )
    def test_why(
        self, host: FakeHost, caplog: pytest.LogCaptureFixture, why: str, message: str
    ) -> None:
        """The log has the reason for which a node needs no rules, as a warning if another program
        does the job.
        """
        caplog.set_level(logging.INFO)
        apply(host, at_once(), takes_no_part(host, why))
        logged = [f"{record.levelname}: {record.getMessage()}" for record in caplog.records]
        assert (
            f"{message}, so the node needs no rules for IPv6 probes; earlier ones are removed"
            in logged
        )

    @pytest.mark.parametrize(
        ("ages", "dev", "seconds"),
        [
            ({}, None, 0),
            ({"eth0": 1000.0}, None, 0),
            ({"eth0": 1000.0, "eth1": 1.0}, None, 0),
            ({"eth0": 3.0}, None, 12),
            ({"eth0": 3.0, "eth1": 1000.0}, "eth1", 0),
            ({"eth0": 1000.0, "eth1": 3.0}, "eth1", 12),
        ],
    )
    def test_a_node_without_ipv6_waits_for_routers_only(
        self, host: FakeHost, ctx: Context, ages: dict[str, float], dev: str | None, seconds: int
    ) -> None:
        """A node without IPv6 waits for routers until 15 s after its device came up, and not at
        later applies.
        """
        remove_address(host.link_layer, "eth0", ADDRESS)
        host.link_layer.ages = ages
        lead(host)
        arrange(host.routes, "default dev eth0")
        apply(host, ctx, config(dev=dev, detect="address"))
        assert seconds <= ctx.clock.monotonic() <= seconds + 1
        assert OWN_TABLE not in host.nftables.tables

    @pytest.mark.parametrize("age", [13.0, 0.0], ids=["older meanwhile", "renewed"])
    def test_the_first_look_limits_the_wait_for_routers(self, host: FakeHost, age: float) -> None:
        """The wait for routers ends 15 s after the arrival of the address that the first look
        found, whatever the age of addresses is later.
        """
        remove_address(host.link_layer, "eth0", ADDRESS)
        host.link_layer.ages = {"eth0": 3.0}
        lead(host)
        arrange(host.routes, "default dev eth0")
        ctx = Context(clock=LaterClock(partial(host.link_layer.ages.update, eth0=age)))
        apply(host, ctx, config(detect="address"))
        assert 12 <= ctx.clock.monotonic() <= 13

    @pytest.mark.parametrize("path", [RULESET_PATH, UNIT_PATH])
    def test_a_file_went_first(self, host: FakeHost, ctx: Context, path: str) -> None:
        """The table is removed as hostrouting's, and planned to be, as long as either of its files
        exists.
        """
        before = state(host)
        apply(host, ctx)
        host.files.remove(path)
        assert str(ConfigureProbeSNAT(OFF, host=host).plan(ctx)[-1]) == f"- {TABLE}"
        apply(host, ctx, OFF)
        assert state(host) == before

    def test_nft_went_first(
        self, host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A removal without nft removes the files, and the log names the table that stays until the
        next boot.
        """
        apply(host, ctx)
        host.nftables.is_installed = False
        ConfigureProbeSNAT(OFF, host=host).plan(ctx)
        apply(host, ctx, OFF)
        assert host.files.tree.snapshot() == {}
        [logged] = messages_at(caplog, logging.WARNING)
        assert logged.startswith(
            f"{TABLE} cannot be deleted, but will be gone after the next boot: nft is needed"
        )


class TestCloud:
    """The answers of the cloud."""

    def test_an_unreadable_answer(self, host: FakeHost, ctx: Context) -> None:
        """An unreadable answer of the cloud is an error if the probes are required, and the files
        of an earlier run stay.
        """
        apply(host, ctx, config(required=True))
        before = state(host)
        host.metadata.document = {"error": "x"}
        with pytest.raises(BackendError):
            apply(host, ctx, config(required=True))
        assert state(host) == before

    def test_a_cancellation_during_the_question_is_not_a_lack_of_an_answer(
        self, host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A cancellation during the query of the cloud ends the run, which does not assume IPv6
        then.
        """
        host.metadata.operations.plan(1, partial(ctx.cancel, "stop"))
        host.metadata.error = BackendError("no answer")
        with pytest.raises(CancelledError, match="stop"):
            ConfigureProbeSNAT(config(), host=host).do(ctx)
        assert messages_at(caplog, logging.WARNING) == []

    @pytest.mark.parametrize("detect", ["address", "always"])
    def test_is_not_queried_in_vain(self, host: FakeHost, ctx: Context, detect: str) -> None:
        """The cloud is queried only for `detect` imds."""
        ConfigureProbeSNAT(config(detect=detect), host=host).plan(ctx)
        check(host, ctx, config(detect=detect))
        apply(host, ctx, config(detect=detect))
        assert host.metadata.operations.calls == []

    @pytest.mark.parametrize(
        ("section", "leads_by", "dev"),
        [
            ({}, ["eth0"], "eth0"),
            ({}, [], "eth1"),
            ({"dev": "eth7"}, [], "eth7"),
            ({"dev": "eth1"}, ["eth0"], "eth1"),
        ],
    )
    def test_a_silent_cloud_does_not_keep_the_rules_from_a_node(
        self, host: FakeHost, ctx: Context, section: Any, leads_by: list[str], dev: str
    ) -> None:
        """A node without an answer of the cloud has the rules at once, on the device of the config,
        of the IPv6 default route, or of the IPv4 one.
        """
        host.metadata.error = BackendError("no answer")
        host.routes.add_address("eth1", "10.224.0.4/16")
        arrange(host.routes, "default via 10.224.0.1 dev eth1")
        lead(host, *leads_by)
        task = ConfigureProbeSNAT(config(**section), host=host)
        planned = task.plan(ctx)
        task.do(ctx)
        assert ctx.clock.monotonic() == 0
        rules = rules_in(host.nftables.tables[OWN_TABLE])
        assert rules is not None
        assert rules.dev == dev
        assert str(planned[0]) == f"+ {TABLE}"
        assert task.plan(ctx) == []
        apply(host, ctx, OFF)
        with pytest.raises(BackendError, match="no answer"):
            apply(host, ctx, config(**section, required=True))
        assert OWN_TABLE not in host.nftables.tables
