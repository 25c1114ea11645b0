"""The rules as text and as nft shows them: to the byte, to the real nft, and back."""

import re
from collections.abc import Generator
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.boot_units import assert_systemd_accepts
from support.filled import asset, changes
from support.needs import needs
from support.probe_listings import expected_listing, rules_in
from support.probe_nodes import AGENTBAKERS
from support.probe_worlds import RULES
from support.processes import ended

from hostrouting import ProbeSNATConfig
from hostrouting.azure.probe_snat.ruleset import (
    AGAIN_PATH,
    FAMILY,
    RULESET_PATH,
    TABLE_NAME,
    ProbeRules,
    boot_unit,
    delete_script,
    effect_of,
    render,
)
from hostrouting.boot.layout import PROGRAM_FOLDERS
from hostrouting.exceptions import InvalidConfigError
from hostrouting.host.packets.nft import NftCommand
from hostrouting.testing import KernelNode
from hostrouting.testing.strategies import probe_snat_configs
from phases import Context

CTX = Context()


class TestFiles:
    def test_a_device_may_be_called_as_a_placeholder(self) -> None:
        """A device that is called like a placeholder is rendered as it is."""
        rules = attrs.evolve(RULES, dev="@ADDRESS@")
        assert render(rules) == render(RULES).replace("eth0", "@ADDRESS@")

    def test_unit(self) -> None:
        """The unit is its asset with the places for order and installation filled in."""
        assert changes(
            asset("azure/probe_snat/probe-snat.service"), boot_unit(RULES).files[1].content
        ) == [
            "-# @ORDER@",
            "+# No Before= and no RequiredBy=, so that a failure does not prevent the node from starting.",
            *("-# @INSTALL@", "+WantedBy=hostrouting-ready.service"),
        ]

    def test_where_they_go(self) -> None:
        """The files are the ruleset, the unit that names it, and the drop-in, in this order, and
        readable for all.
        """
        unit = boot_unit(RULES)
        assert unit.name == "probe-snat.service"
        assert unit.words("ExecStart") == ["nft", "-f", RULESET_PATH]
        assert [(file.path, oct(file.mode)) for file in unit.files] == [
            ("/etc/aks-flex-node/probe-snat.nft", "0o644"),
            ("/etc/systemd/system/probe-snat.service", "0o644"),
            (AGAIN_PATH, "0o644"),
        ]

    def test_the_drop_in_loads_the_rules_again(self) -> None:
        """The drop-in for AgentBaker's unit is its asset, and our rules contain the words that it
        searches for.
        """
        [again] = [file for file in boot_unit(RULES).files if file.path == AGAIN_PATH]
        assert again.content.decode() == asset("azure/probe_snat/ipv6_nftables.conf")
        [looked_for] = re.findall('grep -qF "(.*?)"', again.content.decode())
        assert render(RULES).count(f'comment "{looked_for}"') == 1

    @needs("systemd-analyze", "nft")
    def test_systemd_verifies_them(self, tmp_path: Path) -> None:
        """`systemd-analyze verify` prints nothing for the unit, whose exposure is 1.7 at most."""
        assert_systemd_accepts(boot_unit(RULES), tmp_path, most=17)

    @needs("systemd-path")
    def test_where_systemd_looks_for_nft(self) -> None:
        """Each folder of the search path that is built into systemd is searched for nft."""
        path = ended("systemd-path", "search-binaries-default", check=True).stdout.strip()
        # Where a distribution has merged its folders, systemd names each of them once.
        assert {*path.split(":")} <= {*PROGRAM_FOLDERS}


class TestValues:
    @pytest.mark.parametrize(
        "addresses",
        [
            {"source": "2001:db8::1"},
            {"address": "fe80::1"},
            {"address": "::"},
            {"source": "fe80::1; drop"},
        ],
    )
    def test_addresses_of_the_wrong_kind(self, addresses: dict[str, str]) -> None:
        """Addresses of a wrong kind are refused as in the config."""
        with pytest.raises(InvalidConfigError):
            ProbeRules(
                **{"dev": "eth0", "source": RULES.source, "address": RULES.address, **addresses}
            )


class TestListings:
    def test_a_name_that_is_a_pattern(self) -> None:
        """A name with a pattern in a listing is not read as that of a device."""
        text = repr(expected_listing(RULES)).replace("'eth0'", "'eth*'")
        assert rules_in(eval(text)) is None  # noqa: S307 - the test's own text


#: Changes that give the rules another effect.
_OTHERWISE = {
    "priority": ("prerouting priority -300", "prerouting priority -200"),
    "hook": ("hook postrouting", "hook output"),
    "no exemption": (
        'iifname "eth0" icmpv6 type { nd-neighbor-solicit, nd-router-advert, nd-neighbor-advert } counter accept\n',
        "\n",
    ),
    "too few": ("nd-router-advert, ", ""),
    "too many": ("nd-router-advert, ", "nd-router-advert, echo-request, "),
    "dropped": ("counter accept", "counter drop"),
    "exempted elsewhere": ('iifname "eth0" icmpv6', 'iifname "eth1" icmpv6'),
    "way back": ('oifname "eth0"', 'oifname "eth1"'),
    "another address back": ("ip6 daddr set fe80::1234", "ip6 daddr set fe80::1235"),
    "after the rewriting": (
        "set 2603:1062:0:1:fe80:1234:5678:9abc counter",
        "set 2603:1062:0:1:fe80:1234:5678:9abc drop",
    ),
    "one more chain": ("  chain postrouting {", "  chain more { }\n  chain postrouting {"),
    "a set": ("  chain postrouting {", "  set more { type ipv6_addr; }\n  chain postrouting {"),
}


@needs("kernel", "nft")
class TestKernel:
    @pytest.fixture(scope="class")
    @staticmethod
    def nft() -> Generator[NftCommand]:
        with KernelNode.made() as node:
            yield NftCommand(("ip", "netns", "exec", node.name, "nft"))

    @given(section=probe_snat_configs())
    def test_any_section(self, nft: NftCommand, section: ProbeSNATConfig) -> None:
        """The real nft accepts the rendered rules, in place of the section before, and lists them
        as expected.
        """
        dev = section.dev or "eth0"
        rules = ProbeRules(dev=dev, source=section.source, address=section.address)
        nft.check(CTX, render(rules))
        nft.load(CTX, render(rules))
        listing = nft.table(CTX, FAMILY, TABLE_NAME)
        assert listing == expected_listing(rules)
        assert rules_in(listing) == rules

    @given(dev=st.text(st.sampled_from('ab0.@+-_"\\*;{}$#,!ü語 \n\t\xa0/'), max_size=15))
    def test_any_device_name(self, nft: NftCommand, dev: str) -> None:
        """A device name is refused before nft sees it, or nft reads it as the same name."""
        try:
            rules = attrs.evolve(RULES, dev=dev)
        except ValueError:
            return
        nft.load(CTX, render(rules))
        assert rules_in(nft.table(CTX, FAMILY, TABLE_NAME) or []) == rules

    def test_the_same_effect_in_other_words(self, nft: NftCommand) -> None:
        """AgentBaker's table, loaded over hostrouting's or alone, has the same effect on its device
        in other words.
        """
        for before in delete_script(), render(RULES):
            nft.load(CTX, before + AGENTBAKERS)
            listing = nft.table(CTX, FAMILY, TABLE_NAME) or []
            assert effect_of(listing) == RULES
            assert rules_in(listing) is None
        nft.load(CTX, AGENTBAKERS.replace("eth0", "eth1"))
        other = effect_of(nft.table(CTX, FAMILY, TABLE_NAME) or [])
        assert other == attrs.evolve(RULES, dev="eth1")

    @pytest.mark.parametrize("difference", _OTHERWISE)
    def test_another_effect(self, nft: NftCommand, difference: str) -> None:
        """A table that treats any packet differently, or has a further chain, has an unknown
        effect.
        """
        before, after = _OTHERWISE[difference]
        assert before in AGENTBAKERS
        # The block alone: nft 0.9.8 dies of SIGSEGV if a set follows a declaration or flush of its
        # table in one script.
        block = AGENTBAKERS[AGENTBAKERS.index("table ip6 azureSLBProbe {") :]
        nft.load(CTX, delete_script())
        nft.load(CTX, block.replace(before, after, 1))
        assert effect_of(nft.table(CTX, FAMILY, TABLE_NAME) or []) is None

    @pytest.mark.parametrize(
        "drifted",
        [
            "table ip6 azureSLBProbe",
            "table ip6 azureSLBProbe {\nchain prerouting {\ntype filter hook input priority 7\n}\n}",
            "table ip6 azureSLBProbe {\nchain prerouting {\n}\nchain mine {\n}\n}",
            "table ip6 azureSLBProbe {\nset mine {\ntype ipv6_addr\n}\nmap more {\ntype ipv6_addr : ipv6_addr\n}\n}",
            render(RULES) + 'insert rule ip6 azureSLBProbe prerouting iifname "eth*" accept\n',
            render(RULES).replace("priority -300", "priority -200"),
        ],
    )
    def test_whatever_the_table_was(self, nft: NftCommand, drifted: str) -> None:
        """One load replaces a table with any other chains, hooks, priorities, rules or sets;
        foreign tables stay.
        """
        nft.load(CTX, delete_script())
        nft.load(CTX, f"{drifted}\n")
        nft.load(
            CTX,
            "table ip6 foreign {\nchain prerouting {\ntype filter hook prerouting priority -300\n}\n}\n",
        )
        foreign_table = nft.table(CTX, "ip6", "foreign")
        assert nft.table(CTX, FAMILY, TABLE_NAME) != expected_listing(RULES)
        nft.load(CTX, render(RULES))
        assert nft.table(CTX, FAMILY, TABLE_NAME) == expected_listing(RULES)
        assert nft.table(CTX, "ip6", "foreign") == foreign_table
