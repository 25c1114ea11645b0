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
LOG = '-A OUTPUT --log-level info --log-prefix "a b  !" -j CONTINUE'
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

    def rule(self, line: str, position: int = 1) -> EbtablesRule:
        """Return the rule of a line."""
        return EbtablesRule.parse(line, backend=self.backend, position=position)

    def pick(self, ebtables: Ebtables, *lines: str) -> list[EbtablesRule]:
        """Return the rules of these lines from a reading."""
        return [rule for rule in ebtables.read(Context()).rules if rule.line in lines]

    def test_rules_are_read_chain_by_chain(self, ebtables: Ebtables, ctx: Context) -> None:
        """A reading returns the rules by chain, each with its position in the chain and its words
        as printed.
        """
        self.load(ebtables, ONE, SNAT, DNAT, LOG, INVERTED)
        rules = ebtables.read(ctx).rules
        assert [(rule.chain, rule.position, rule.line) for rule in rules] == [
            ("PREROUTING", 1, ONE),
            ("PREROUTING", 2, DNAT),
            ("OUTPUT", 1, LOG),
            ("OUTPUT", 2, rules[3].line),
            ("POSTROUTING", 1, SNAT),
        ]
        # Newer releases print the exclamation mark before the option.
        assert rules[3].normal == self.rule(INVERTED).normal
        assert {rule.backend for rule in rules} == {self.backend}
        assert rules[0].spec[:4] == ("-p", "ARP", "--arp-op", "Request")

    def test_a_reading_has_the_text_for_a_backup(self, ebtables: Ebtables, ctx: Context) -> None:
        """A reading has the text of ebtables-save for each backend."""
        self.load(ebtables, ONE, LOG)
        text = dict(ebtables.read(ctx).texts)[self.backend].split("\n")
        assert "*nat" in text
        assert ONE in text
        assert LOG in text

    def test_only_the_rules_named_go_and_they_come_back(
        self, ebtables: Ebtables, ctx: Context
    ) -> None:
        """A deletion removes only the named rules and keeps the order of the rest; an insertion
        restores each to its position, in whatever order the rules are named.
        """
        self.load(ebtables, ONE, TWO, THREE, FOUR, DNAT, SNAT, LOG, INVERTED)
        before = self.lines(ebtables)
        named = [FOUR, ONE, TWO, DNAT, SNAT, LOG]
        chosen = self.pick(ebtables, *named)[::-1]
        ebtables.delete(ctx, chosen)
        assert self.lines(ebtables) == [line for line in before if line not in named]
        ebtables.insert(ctx, chosen)
        assert self.lines(ebtables) == before

    def test_an_insertion_beyond_the_end_is_at_the_end(
        self, ebtables: Ebtables, ctx: Context
    ) -> None:
        """A rule that is inserted beyond the end of its chain, which got shorter meanwhile, is the
        last of the chain.
        """
        self.load(ebtables, ONE)
        ebtables.insert(ctx, [self.rule(THREE, 90), self.rule(TWO, 80), self.rule(FOUR, 1)])
        assert self.lines(ebtables) == [FOUR, ONE, TWO, THREE]

    @pytest.mark.parametrize(
        ("count", "left"), [(1, [TWO, ONE, THREE, ONE]), (2, [TWO, THREE, ONE])]
    )
    def test_of_identical_rules_as_many_go_as_were_named(
        self, ebtables: Ebtables, ctx: Context, count: int, left: list[str]
    ) -> None:
        """A deletion removes as many of identical rules as are named, the first ones, and an
        insertion restores them to their positions.
        """
        self.load(ebtables, ONE, TWO, ONE, THREE, ONE)
        before = self.lines(ebtables)
        rules = self.pick(ebtables, ONE)[:count]
        ebtables.delete(ctx, rules)
        assert self.lines(ebtables) == left
        ebtables.insert(ctx, rules)
        assert self.lines(ebtables) == before

    def test_a_rule_that_is_not_there_is_refused(self, ebtables: Ebtables, ctx: Context) -> None:
        """The deletion of a rule that is absent, or that is named twice, is refused with the name
        of the rule, and all rules stay.
        """
        self.load(ebtables, ONE, TWO)
        with pytest.raises(
            BackendError, match=r"nothing was deleted: .*--arp-ip-dst 10\.0\.0\.3 .*is not there"
        ):
            ebtables.delete(
                ctx, [*self.pick(ebtables, ONE), self.rule(THREE, 2), *self.pick(ebtables, TWO)]
            )
        with pytest.raises(BackendError, match="not there"):
            ebtables.delete(ctx, [*self.pick(ebtables, ONE), *self.pick(ebtables, ONE)])
        assert self.lines(ebtables) == [ONE, TWO]

    def test_an_insertion_into_a_chain_that_is_not_there_is_refused(
        self, ebtables: Ebtables, ctx: Context
    ) -> None:
        """An insertion into an absent chain is refused; the error names the rule, or the batch if
        the program does not name the rule.
        """
        self.load(ebtables, ONE)
        with pytest.raises(
            BackendError, match=r"not inserted: (.*-A NOWHERE -j DROP|one of these: )"
        ):
            ebtables.insert(ctx, [self.rule(TWO), self.rule("-A NOWHERE -j DROP")])

    def test_words_that_the_tool_would_misread_are_refused(
        self, ebtables: Ebtables, ctx: Context
    ) -> None:
        """A batch with a word that the tool would misread is refused before any change, and the
        error quotes the word.
        """
        self.load(ebtables, ONE)
        odd = self.rule('-A OUTPUT --log-level info --log-prefix "a"b" -j DROP')
        for change, line in (ebtables.insert, TWO), (ebtables.delete, ONE):
            with pytest.raises(BackendError, match=r'the word "a"b" has a quote'):
                change(ctx, [self.rule(line), odd])
        assert self.lines(ebtables) == [ONE]

    def test_a_context_that_is_over_changes_nothing(self, ebtables: Ebtables) -> None:
        """A cancelled context ends every method before any rule is read or changed."""
        self.load(ebtables, ONE)
        ctx = Context()
        ctx.cancel("enough")
        with pytest.raises(CancelledError):
            ebtables.read(ctx)
        for change, line in (ebtables.insert, TWO), (ebtables.delete, ONE):
            with pytest.raises(CancelledError):
                change(ctx, [self.rule(line)])
        assert self.lines(ebtables) == [ONE]
