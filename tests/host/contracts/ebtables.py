"""The promises of `Ebtables`, as tests."""

import pytest

from hostrouting.exceptions import BackendError
from hostrouting.host import Ebtables, EbtablesRule
from phases import CancelledError, Context


def arp_rule(number: int) -> str:
    """Return a rule that answers for a pod."""
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    return f"-A PREROUTING -p ARP --arp-op Request --arp-ip-dst {address} -j arpreply --arpreply-mac 02:00:00:00:00:01"


ONE, TWO, THREE, FOUR = (arp_rule(number) for number in range(1, 5))
DNAT = "-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.0.0.1 -j dnat --to-dst 02:00:00:00:00:01 --dnat-target ACCEPT"
SNAT = "-A POSTROUTING -s Unicast -o eth0 -j snat --to-src 02:00:00:00:00:02 --snat-arp --snat-target ACCEPT"
LOG = '-A OUTPUT --log-level info --log-prefix "a b !" -j CONTINUE'
INVERTED = "-A OUTPUT -p IPv4 -o ! eth0 --ip-src ! 10.0.0.0/8 -j DROP"


class EbtablesContract:
    """The promises of `Ebtables`. The fixture `ebtables` has no rules at first; `load` and `lines`
    write and read its rules without the adapter.
    """

    #: The backend that the tests use.
    backend = "nft"

    def load(self, ebtables: Ebtables, *lines: str) -> None:
        """Append rules."""
        raise NotImplementedError

    def lines(self, ebtables: Ebtables) -> list[str]:
        """Return all rules, as ebtables-save prints them."""
        raise NotImplementedError

    def rule(self, line: str) -> EbtablesRule:
        """Return the rule of a line."""
        return EbtablesRule.parse(line, backend=self.backend)

    def pick(self, ebtables: Ebtables, *lines: str) -> list[EbtablesRule]:
        """Return the rules of these lines from a reading."""
        return [rule for rule in ebtables.read(Context()).rules if rule.line in lines]

    def test_rules_are_read_in_order(self, ebtables: Ebtables, ctx: Context) -> None:
        """A reading returns the rules in the order of their chains, with their words as printed."""
        self.load(ebtables, ONE, SNAT, DNAT, LOG, INVERTED)
        rules = ebtables.read(ctx).rules
        assert [rule.line for rule in rules[:3]] == [ONE, DNAT, LOG]
        # Newer releases print the exclamation mark before the option.
        assert sorted(rules[3].spec) == sorted(self.rule(INVERTED).spec)
        assert rules[4].line == SNAT
        assert {rule.backend for rule in rules} == {self.backend}
        assert rules[0].spec[:4] == ("-p", "ARP", "--arp-op", "Request")

    def test_a_reading_has_the_text_for_a_backup(self, ebtables: Ebtables, ctx: Context) -> None:
        """A reading has the text of ebtables-save for each backend, and the program's name."""
        self.load(ebtables, ONE, LOG)
        reading = ebtables.read(ctx)
        assert dict(reading.programs)[self.backend] == f"ebtables-{self.backend}"
        lines = dict(reading.texts)[self.backend].split("\n")
        assert {"*nat", ONE, LOG} <= {*lines}

    def test_only_the_rules_named_go(self, ebtables: Ebtables, ctx: Context) -> None:
        """A deletion removes only the named rules and keeps the order of the rest."""
        self.load(ebtables, ONE, TWO, THREE, FOUR, DNAT, SNAT, LOG, INVERTED)
        before = self.lines(ebtables)
        named = [FOUR, ONE, TWO, DNAT, SNAT]
        ebtables.delete(ctx, self.pick(ebtables, *named)[::-1])
        assert self.lines(ebtables) == [line for line in before if line not in named]

    @pytest.mark.parametrize(
        ("count", "left"), [(1, [TWO, ONE, THREE, ONE]), (2, [TWO, THREE, ONE])]
    )
    def test_of_identical_rules_as_many_go_as_were_named(
        self, ebtables: Ebtables, ctx: Context, count: int, left: list[str]
    ) -> None:
        """A deletion removes as many of identical rules as are named, the first ones."""
        self.load(ebtables, ONE, TWO, ONE, THREE, ONE)
        ebtables.delete(ctx, self.pick(ebtables, ONE)[:count])
        assert self.lines(ebtables) == left

    def test_a_rule_that_is_not_there_is_refused(self, ebtables: Ebtables, ctx: Context) -> None:
        """The deletion of an absent rule is an error. Of nft's rules all stay, of legacy's those
        before it are gone.
        """
        self.load(ebtables, ONE, TWO)
        first, second = self.pick(ebtables, ONE, TWO)
        with pytest.raises(BackendError, match="deleted"):
            ebtables.delete(ctx, [first, self.rule(THREE), second])
        assert self.lines(ebtables) == ([ONE, TWO] if self.backend == "nft" else [TWO])

    def test_a_context_that_is_over_changes_nothing(self, ebtables: Ebtables) -> None:
        """A cancelled context ends every method before any rule is read or changed."""
        self.load(ebtables, ONE)
        ctx = Context()
        ctx.cancel("enough")
        with pytest.raises(CancelledError):
            ebtables.read(ctx)
        with pytest.raises(CancelledError):
            ebtables.delete(ctx, [self.rule(ONE)])
        assert self.lines(ebtables) == [ONE]
