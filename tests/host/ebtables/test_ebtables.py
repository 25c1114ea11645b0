"""The contract of ebtables: on the fake, by ebtables-nft, and by the legacy tool."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from host.contracts.ebtables import ONE, TWO, EbtablesContract
from host.ebtables.lines import cni_lines, rule_lines
from host.ebtables.nodes import LACKS_CARE, LEGACY_STAND_IN, Table, write_tool
from hypothesis import given
from hypothesis import strategies as st
from support.needs import needs
from support.printed import LACKING_TOOL

from hostrouting.exceptions import BackendError, PermissionDeniedError, ToolNotFoundError
from hostrouting.host import Ebtables
from hostrouting.host.packets.ebtables import EbtablesCommand, legacy_may_have_rules
from hostrouting.host.packets.ebtables_rules import EbtablesRule, parse_save
from hostrouting.testing import KernelNode, MemoryEbtables
from phases import Context


class TestMemory(EbtablesContract):
    """The contract on the fake."""

    @pytest.fixture
    def ebtables(self) -> Ebtables:
        return MemoryEbtables()

    def load(self, ebtables: Any, *lines: str) -> None:
        for line in lines:
            ebtables.add(line, backend=self.backend)

    def lines(self, ebtables: Any) -> list[str]:
        chains = {"PREROUTING": 0, "OUTPUT": 1, "POSTROUTING": 2}
        return sorted(ebtables.lines(self.backend), key=lambda line: chains[line.split()[1]])


class TestMemoryLegacy(TestMemory):
    """The contract on the fake's other backend."""

    backend = "legacy"


@needs("kernel", "ebtables-nft")
class TestNft(EbtablesContract):
    """The contract on the kernel, by way of ebtables-nft."""

    def load(self, ebtables: Any, *lines: str) -> None:
        Table(ebtables.prefix[3]).load(*lines)

    def lines(self, ebtables: Any) -> list[str]:
        return [line for line in Table(ebtables.prefix[3]).saved() if line.startswith("-A")]


@needs("kernel", "ebtables-nft")
class TestLegacyWay(TestNft):
    """The contract for the way of the legacy tool: a listing, and a process per rule.

    Hardly any kernel has the legacy table. ebtables-nft stands in for the tool: its commands and
    listing are the same.
    """

    backend = "legacy"

    @pytest.fixture
    def ebtables(self, node: KernelNode, tmp_path: Path, legacy_is_loaded: None) -> Ebtables:
        write_tool(tmp_path, "ebtables-legacy", LEGACY_STAND_IN)
        return EbtablesCommand(
            ("ip", "netns", "exec", node.name, "/usr/bin/env", f"PATH={tmp_path}")
        )


@needs("kernel", "ebtables-nft", "nft")
class TestWhatCannotBeSeen:
    def test_not_installed_is_a_note(
        self, command: tuple[str, ...], ctx: Context, tmp_path: Path, legacy_is_loaded: None
    ) -> None:
        """A reading without ebtables has a note that names the package, and a change is refused."""
        for prefix in (
            (*command, "/usr/bin/env", f"PATH={tmp_path}"),
            ("/usr/bin/env", f"PATH={tmp_path}"),
        ):
            ebtables = EbtablesCommand(prefix)
            reading = ebtables.read(ctx)
            assert reading.rules == ()
            assert reading.texts == ()
            assert reading.notes == tuple(
                f"ebtables-{backend} is needed to see the rules of ebtables ({backend}), if there are any, "
                f"{LACKING_TOOL}; install the package {package}"
                for backend, package in (("nft", "iptables"), ("legacy", "ebtables"))
            )
            with pytest.raises(ToolNotFoundError, match=r"ebtables-nft is needed .*iptables"):
                ebtables.delete(ctx, [EbtablesRule.parse(ONE, backend="nft")])

    def test_a_prefix_that_does_not_work_is_an_error(self, ctx: Context) -> None:
        """A namespace that does not exist is an error, and not a machine without ebtables."""
        for prefix in ("ip", "netns", "exec", "no-such-namespace"), ("no-such-program",):
            with pytest.raises(BackendError, match=rf"cannot run ebtables: .*{prefix[-1]}"):
                EbtablesCommand(prefix).read(ctx)

    @pytest.mark.parametrize("backend", ["nft", "legacy"])
    def test_plain_names_are_the_backend_of_their_version(
        self,
        *,
        command: tuple[str, ...],
        table: Table,
        ctx: Context,
        tmp_path: Path,
        backend: str,
        legacy_is_loaded: None,
    ) -> None:
        """A lone program `ebtables` is the backend that its version names; the second backend is
        noted as absent.
        """
        table.load(ONE, TWO)
        if backend == "nft":
            for name in "ebtables", "ebtables-save", "ebtables-restore":
                (tmp_path / name).symlink_to("/usr/sbin/xtables-nft-multi")
        else:
            write_tool(tmp_path, "ebtables", LEGACY_STAND_IN)
        ebtables = EbtablesCommand((*command, "/usr/bin/env", f"PATH={tmp_path}"))
        reading = ebtables.read(ctx)
        assert [(rule.backend, rule.line) for rule in reading.rules] == [
            (backend, ONE),
            (backend, TWO),
        ]
        assert len(reading.notes) == 1
        assert LACKING_TOOL in reading.notes[0]
        ebtables.delete(ctx, reading.rules[:1])
        assert [rule.line for rule in ebtables.read(ctx).rules] == [TWO]
        assert reading.programs == ((backend, "ebtables"),)

    def test_legacy_that_the_kernel_lacks_is_a_note(
        self, command: tuple[str, ...], ctx: Context, tmp_path: Path, legacy_is_loaded: None
    ) -> None:
        """A legacy table that the kernel does not support is a note that quotes the tool, here
        ebtables 2.0.11.
        """
        words = "The kernel doesn't support the ebtables 'nat' table."
        refusal = f'#!/bin/sh\n[ "$1" = --version ] && exit\necho "{words}" >&2\nexit 255\n'
        write_tool(tmp_path, "ebtables-legacy", refusal)
        notes = EbtablesCommand((*command, "/usr/bin/env", f"PATH={tmp_path}")).read(ctx).notes
        assert notes[1:] == (f"ebtables (legacy) is not supported by the kernel: {words}",)

    def test_legacy_without_its_module_has_no_rules(
        self, ebtables: EbtablesCommand, ctx: Context, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reading without the legacy module is complete and does not run the legacy tool, which
        would load the module.
        """
        monkeypatch.setattr(
            "hostrouting.host.packets.ebtables.legacy_may_have_rules", lambda: False
        )
        assert ebtables.read(ctx).notes == ()

    def test_no_privilege_is_a_note_and_a_refusal(
        self, command: tuple[str, ...], table: Table, ctx: Context
    ) -> None:
        """A reading without privilege has a note with the privilege that it needs, and a change
        is refused.
        """
        table.load(ONE)
        ebtables = EbtablesCommand((*command, "setpriv", "--reuid=65534", "--clear-groups"))
        reading = ebtables.read(ctx)
        assert reading.rules == ()
        assert "ebtables (nft) may not be read without CAP_NET_ADMIN: " in reading.notes[0]
        assert reading.denied
        with pytest.raises(BackendError, match="none of 1 ebtables rules"):
            ebtables.delete(ctx, [EbtablesRule.parse(ONE, backend="nft")])
        assert ONE in table.saved()

    def test_a_missing_tool_hides_no_lack_of_privilege(
        self, ctx: Context, monkeypatch: pytest.MonkeyPatch, legacy_is_loaded: None
    ) -> None:
        """A reading that does not have privilege for one backend is denied, even if the other backend is
        not installed.
        """
        errors = PermissionDeniedError("nft"), ToolNotFoundError("", package="", purpose="")
        monkeypatch.setattr("hostrouting.host.packets.ebtables.find", Mock(side_effect=errors))
        assert EbtablesCommand().read(ctx).denied

    def test_a_rule_that_only_nft_can_show_is_a_note(
        self, table: Table, ebtables: EbtablesCommand, ctx: Context
    ) -> None:
        """A base chain that is not ebtables' own is named in a note, and all other rules are
        read.
        """
        table.load(ONE)
        table.run("nft", "add chain bridge nat mine { type filter hook prerouting priority -5; }")
        if LACKS_CARE:
            with pytest.raises(BackendError, match=r"cannot read the rules of ebtables .*SIGABRT"):
                table.rules()
            return
        reading = ebtables.read(ctx)
        assert [rule.line for rule in reading.rules] == [ONE]
        assert any(
            "Table `nat' contains incompatible base-chains" in note for note in reading.notes
        )

    def test_rules_that_the_tool_cannot_read_are_an_error(self, table: Table) -> None:
        """Rules that the tool cannot read are an error, so that a part of the rules never counts as
        all of them.
        """
        table.load(ONE)
        table.run("nft", "add set bridge nat x { type ipv4_addr; }")
        table.run("nft", "add rule bridge nat PREROUTING ip saddr @x counter")
        if LACKS_CARE:
            # It shows them all, as well as it can; no such rule looks like a pod's.
            assert [rule.line for rule in table.rules()] == [ONE, "-A PREROUTING -j CONTINUE"]
            return
        with pytest.raises(BackendError, match="cannot read the rules of ebtables"):
            table.rules()

    def test_reading_makes_nothing(self, table: Table) -> None:
        """A reading of an empty ruleset adds neither a table nor a chain."""
        assert table.rules() == ()
        assert table.run("nft", "list", "ruleset") == ""

    def test_legacy_is_read_only_where_that_loads_no_module(self, tmp_path: Path) -> None:
        """The legacy table is read if it is loaded already, or if the kernel has no modules to
        load.
        """
        modules = tmp_path / "modules"
        built_in = tmp_path / "modules.builtin"
        assert legacy_may_have_rules(str(modules), str(built_in))
        modules.write_text(
            "ebtable_filter 12288 0 - Live 0x0\nebtables 45056 1 ebtable_filter, Live 0x0\n"
        )
        assert not legacy_may_have_rules(str(modules), str(built_in))
        built_in.write_text("kernel/net/bridge/netfilter/ebtable_nat.ko\n")
        assert legacy_may_have_rules(str(modules), str(built_in))
        built_in.unlink()
        modules.write_text("ebtable_nat 12288 1 - Live 0x0\n")
        assert legacy_may_have_rules(str(modules), str(built_in))


@pytest.fixture(scope="module")
def shared() -> Iterator[Table]:
    """One namespace for all examples."""
    with KernelNode.made() as node:
        yield Table(node.name)


@needs("kernel", "ebtables-nft", "nft")
@given(
    made=st.lists(cni_lines(), max_size=10),
    others=st.lists(rule_lines(), max_size=5),
    data=st.data(),
)
def test_any_rules_of_azure_vnet_survive_the_kernel(
    shared: Table, made: list[str], others: list[str], data: st.DataObject
) -> None:
    """Among any other rules, those of azure-vnet are read as they were loaded, and any part of them
    is deleted alone.
    """
    table = shared
    table.run("nft", "flush", "ruleset")
    if LACKS_CARE:
        others = [line for line in others if "Length" not in line]  # which it forgets
    table.load(*data.draw(st.permutations([*made, *others])))
    rules = table.rules()
    loaded = [EbtablesRule.parse(line, backend="nft") for line in made]
    for rule in loaded:
        assert rule.options in [each.options for each in rules if each.chain == rule.chain]
    before = table.saved()
    assert [rule.line.split() for rule in rules] == [
        line.split() for line in before if line.startswith("-A")
    ]
    # Of identical rules the first are deleted, so all of them are chosen or none.
    lines_chosen = data.draw(st.sets(st.sampled_from(sorted(made)))) if made else set()
    chosen = [rule for rule in rules if rule.line in lines_chosen]
    table.delete(data.draw(st.permutations(chosen)))
    assert table.saved() == [line for line in before if line not in lines_chosen]


@needs("kernel", "ebtables-nft")
def test_the_defaults_of_targets_are_those_of_the_tool(table: Table) -> None:
    """A rule with the default of its target and one without have the options of the tool's
    output.
    """
    lines = [
        "-A PREROUTING -p ARP -j arpreply --arpreply-mac 02:00:00:00:00:01",
        "-A PREROUTING -j dnat --to-dst 02:00:00:00:00:01",
        "-A POSTROUTING -j snat --to-src 02:00:00:00:00:01",
    ]
    table.load(*lines)
    printed = parse_save("\n".join(table.saved()), backend="nft")
    assert [rule.options for rule in printed] == [
        EbtablesRule.parse(line, backend="nft").options for line in lines
    ]
