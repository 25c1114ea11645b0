"""Changes of ebtables' rules: in batches, among foreign rules, and against other programs."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from host.contracts.ebtables import DNAT, ONE, SNAT, THREE, TWO, arp_rule
from host.ebtables.nodes import LACKS_CARE, Table
from support.needs import needs

from hostrouting.exceptions import BackendError
from hostrouting.host.packets.ebtables import EbtablesCommand
from phases import CancelledError, Context


@contextmanager
def after_each_batch(act: Callable[[int], object]) -> Iterator[None]:
    """Call `act` with the number of finished rules after each batch; its error is one of the
    adapter.
    """

    class Hook(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if hasattr(record, "progress"):
                act(record.progress[0])

    logger = logging.getLogger(EbtablesCommand.__module__)
    hook = Hook()
    level = logger.level
    logger.addHandler(hook)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(hook)
        logger.setLevel(level)


@needs("kernel", "ebtables-nft")
class TestBatches:
    def test_thousands_go_and_come_in_batches(
        self,
        table: Table,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The deletion of 3,000 of 3,100 rules runs three processes, each with a line in the log;
        the insertion restores every byte.
        """
        caplog.set_level(logging.INFO)
        lines = [arp_rule(number) for number in range(3100)]
        table.load(*lines)
        before = table.saved()
        chosen = [rule for rule in table.rules() if rule.position % 31]
        table.delete(chosen)
        assert len(table.rules()) == 100
        table.insert(chosen)
        assert table.saved() == before
        messages = [
            (record.getMessage(), record.progress)
            for record in caplog.records
            if hasattr(record, "progress")
        ]
        assert messages == [
            (f"{done} of 3000 ebtables rules {verb}", (done, 3000))
            for verb in ("deleted", "inserted")
            for done in (1000, 2000, 3000)
        ]

    def test_a_batch_that_fails_ends_a_deletion(self, table: Table) -> None:
        """A deletion ends at the batch that fails; the error has the number of removed rules, and
        an insertion restores them in their places.
        """
        table.load(SNAT, *(arp_rule(number) for number in range(2500)))
        before = table.saved()
        rules = table.rules()
        calls: list[int] = []

        def progress(done: int) -> None:
            calls.append(done)
            if len(calls) == 1:
                deletion = arp_rule(2400).replace("-A", "-D", 1)
                table.run("ebtables-nft", "-t", "nat", *deletion.split())

        # Where the kernel refuses, 1.8.7 does not name the rule.
        which = (
            r"one of these: .*\(and 500 more\)"
            if LACKS_CARE
            else r".* 10\.0\.9\.96 .*does a matching rule exist"
        )
        with (
            after_each_batch(progress),
            pytest.raises(BackendError, match=f"not deleted: {which}") as caught,
        ):
            table.delete(rules)
        assert str(caught.value).endswith("\n2000 rules were deleted before it")
        assert calls == [1000, 2000]
        left = [rule.line for rule in table.rules()]
        table.insert([rule for rule in rules if rule.line not in left])
        assert table.saved() == before

    def test_a_context_that_ends_midway_ends_a_deletion(self, table: Table) -> None:
        """A deletion whose context is cancelled begins no further batch, and an insertion restores
        the rules that were removed.
        """
        table.load(*(arp_rule(number) for number in range(2500)))
        before = table.saved()
        rules = table.rules()
        short = Context()
        with (
            after_each_batch(lambda done: short.cancel(f"at {done}")),
            pytest.raises(CancelledError),
        ):
            table.delete(rules, short)
        assert len(table.rules()) == 1500
        table.insert(rules[:1000])
        assert table.saved() == before

    def test_a_rule_that_another_program_restores_at_once_is_reported(self, table: Table) -> None:
        """A deleted rule that another program restores at once is an error with that reason."""
        table.load(ONE, TWO, THREE)

        def progress(_done: int) -> None:
            table.load(TWO)

        reason = r"10\.0\.0\.2 .*was deleted, and at once it was not: something alive"
        with after_each_batch(progress), pytest.raises(BackendError, match=reason):
            table.delete(table.rules()[:2])

    def test_foreign_rules_chains_and_policies_stay(self, table: Table) -> None:
        """A deletion and an insertion leave foreign rules, chains, policies and tables as they are,
        byte for byte.
        """
        foreign = "-A PREROUTING -p LLDP -j MINE", "-A MINE -d BGA -j RETURN"
        table.load(":MINE DROP", ":OUTPUT DROP", ONE, foreign[0], TWO, foreign[1], DNAT, SNAT)
        table.run(*["ebtables-nft", "-t", "filter", "-A", "FORWARD", "-p", "ARP", "-j", "ACCEPT"])
        before = table.saved()
        chosen = [rule for rule in table.rules() if rule.line in (ONE, TWO, DNAT)]
        table.delete(chosen)
        assert table.saved() == [line for line in before if line not in (ONE, TWO, DNAT)]
        table.insert(chosen)
        assert table.saved() == before

    def test_a_rule_that_the_tool_cannot_delete_stops_its_batch(self, table: Table) -> None:
        """A rule that the tool cannot delete is an error that quotes the tool and has the first
        rule of the batch, and the rules stay.
        """
        table.load(ONE, "-A PREROUTING --among-dst 1:2:3:4:5:6 -j DROP")
        before = table.saved()
        try:
            table.delete(table.rules())
        except BackendError as error:  # ebtables 1.8.9 cannot compare --among
            assert f"not deleted: one of these: {ONE} (nft) (and 1 more): " in str(error)  # noqa: PT017
            assert "Invalid argument" in str(error)  # noqa: PT017
            assert table.saved() == before
        else:
            assert table.rules() == ()
