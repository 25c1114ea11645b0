from __future__ import annotations

import os
import shlex
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ebtables_backends import BACKENDS
from support.ebtables_lines import cni_lines, rule_lines
from support.needs import needs
from support.tool_versions import version_of

from hostrouting.exceptions import BackendError, PermissionDeniedError, ToolNotFoundError
from hostrouting.host.packets.ebtables import EbtablesCommand
from hostrouting.host.packets.ebtables_rules import EbtablesRule, parse_save
from hostrouting.host.packets.ebtables_tools import legacy_may_have_rules
from hostrouting.testing.contracts import EbtablesContract
from hostrouting.testing.contracts.ebtables import DNAT, LOG, ONE, SNAT, THREE, TWO, arp_rule
from hostrouting.testing.kernel_node import KernelNode
from hostrouting.testing.memory_ebtables import MemoryEbtables
from phases import CancelledError, Context

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hostrouting.host import Ebtables

#: Debian 11's ebtables-save ends at rules that only nft can show, or shows them differently.
_LACKS_CARE = version_of("ebtables-nft") < (1, 8, 8)


class TestMemory(EbtablesContract):
    """The contract on the fake."""

    @pytest.fixture
    def ebtables(self) -> Ebtables:
        return MemoryEbtables()

    def load(self, ebtables: Ebtables, *lines: str) -> None:
        assert isinstance(ebtables, MemoryEbtables)
        for line in lines:
            ebtables.add(line, backend=self.backend)

    def lines(self, ebtables: Ebtables) -> list[str]:
        assert isinstance(ebtables, MemoryEbtables)
        chains = {"PREROUTING": 0, "OUTPUT": 1, "POSTROUTING": 2}
        return sorted(ebtables.lines(self.backend), key=lambda line: chains[line.split()[1]])


class TestMemoryLegacy(TestMemory):
    """The contract on the fake's other backend."""

    backend = "legacy"


def namespace(ebtables: Ebtables) -> str:
    """Return the name of the namespace in which the adapter works."""
    assert isinstance(ebtables, EbtablesCommand)
    return ebtables._prefix[3]


def run(name: str, *argv: str, stdin: str = "") -> str:
    """Run a program in a namespace."""
    done = subprocess.run(
        ["ip", "netns", "exec", name, *argv], input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def load(name: str, lines: Sequence[str], *, chains: Sequence[str] = ()) -> None:
    """Append rules with a tool that the adapter does not use for this."""
    run(name, "ebtables-nft-restore", "--noflush", stdin="\n".join(["*nat", *chains, *lines, "COMMIT", ""]))


def saved(name: str) -> list[str]:
    """Return the output of ebtables-save without its dated comments."""
    return [line for line in run(name, "ebtables-nft-save").split("\n") if not line.startswith("#")]


@pytest.fixture
def node() -> Iterator[KernelNode]:
    """A namespace for a test."""
    with KernelNode.made() as node:
        yield node


@pytest.fixture
def ctx() -> Context:
    return Context()


@needs("kernel", "ebtables-nft")
class TestNft(EbtablesContract):
    """The contract on the kernel, by way of ebtables-nft."""

    @pytest.fixture
    def ebtables(self, node: KernelNode) -> Ebtables:
        return EbtablesCommand(("ip", "netns", "exec", node.name))

    def load(self, ebtables: Ebtables, *lines: str) -> None:
        load(namespace(ebtables), lines)

    def lines(self, ebtables: Ebtables) -> list[str]:
        return [line for line in saved(namespace(ebtables)) if line.startswith("-A")]


LEGACY_STAND_IN = """#!/bin/sh
[ "$1" = --version ] && echo "ebtables v2.0.11 (legacy) (December 2011)" && exit
[ "$1" = --concurrent ] && shift
exec /usr/sbin/ebtables-nft "$@"
"""


def write_tool(folder: Path, name: str, script: str) -> None:
    """Put a program into a folder."""
    tool = folder / name
    tool.write_text(script)
    tool.chmod(0o755)


@pytest.fixture
def legacy_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the adapter ask the legacy tool on any kernel; for tests that replace the tool with a stand-in."""
    monkeypatch.setattr("hostrouting.host.packets.ebtables.legacy_may_have_rules", lambda: True)


if "legacy" in BACKENDS:

    class TestLegacyTable:
        """The legacy tool, on a kernel that has its table: its rules are deleted, and restored as they were.

        The contract itself compares lines, and this tool has its own spelling of hardware addresses and defaults.
        """

        @pytest.fixture
        def command(self, node: KernelNode) -> EbtablesCommand:
            for line in (ONE, DNAT, TWO, SNAT, ONE, LOG, THREE):
                run(node.name, "ebtables-legacy", "-t", "nat", *shlex.split(line))
            return EbtablesCommand(("ip", "netns", "exec", node.name))

        def test_rules_are_those_of_the_other_tool_in_another_spelling(
            self, command: EbtablesCommand, ctx: Context
        ) -> None:
            """Both tools list the same rules in normal form, each in its chain and place, and none from nft."""
            expected = [
                EbtablesRule.parse(line, backend="legacy", position=position)
                for line, position in ((ONE, 1), (DNAT, 2), (TWO, 3), (ONE, 4), (THREE, 5), (LOG, 1), (SNAT, 1))
            ]
            found = command.read(ctx).rules
            assert [(rule.backend, rule.chain, rule.position, rule.normal) for rule in found] == [
                (rule.backend, rule.chain, rule.position, rule.normal) for rule in expected
            ]

        def test_what_was_deleted_comes_back_where_it_was(self, command: EbtablesCommand, ctx: Context) -> None:
            """The tool's own listing is the same after deletion and restore, also for identical rules."""
            before = command.read(ctx)
            # Of identical rules the first is deleted.
            chosen = [before.rules[number] for number in (6, 1, 0, 5, 4)]
            command.delete(ctx, chosen)
            assert len(command.read(ctx).rules) == 2
            command.insert(ctx, sorted(chosen, key=lambda rule: (rule.chain, rule.position)))
            assert command.read(ctx) == before

        def test_a_refusal_leaves_everything_as_it_was(self, command: EbtablesCommand, ctx: Context) -> None:
            """If the last of several insertions names an absent chain, the others are rolled back."""
            before = command.read(ctx)
            with pytest.raises(BackendError, match="are as they were; nothing has changed"):
                command.insert(ctx, [*before.rules[:2], before.rules[0]._replace(chain="NOWHERE")])
            assert command.read(ctx) == before


@needs("kernel", "ebtables-nft")
class TestLegacyWay(TestNft):
    """The contract for the legacy tool's way: a listing, and a process per rule.

    Hardly any kernel has the legacy table. ebtables-nft stands in for the tool: its commands and listing are the same.
    """

    backend = "legacy"

    @pytest.fixture
    def ebtables(self, node: KernelNode, tmp_path: Path, legacy_is_loaded: None) -> Ebtables:
        write_tool(tmp_path, "ebtables-legacy", LEGACY_STAND_IN)
        return EbtablesCommand(("ip", "netns", "exec", node.name, "/usr/bin/env", f"PATH={tmp_path}"))


@pytest.fixture
def ebtables(node: KernelNode) -> EbtablesCommand:
    """The adapter in the namespace."""
    return EbtablesCommand(("ip", "netns", "exec", node.name))


@pytest.fixture
def command(node: KernelNode) -> tuple[str, ...]:
    """The command prefix for the namespace."""
    return ("ip", "netns", "exec", node.name)


@needs("kernel", "ebtables-nft", "nft")
class TestWhatCannotBeSeen:
    def test_not_installed_is_a_note(
        self, command: tuple[str, ...], ctx: Context, tmp_path: Path, legacy_is_loaded: None
    ) -> None:
        """Without ebtables a reading has a note that names the package, and a change is refused."""
        for prefix in ((*command, "/usr/bin/env", f"PATH={tmp_path}"), ("/usr/bin/env", f"PATH={tmp_path}")):
            ebtables = EbtablesCommand(prefix)
            reading = ebtables.read(ctx)
            assert reading.rules == ()
            assert reading.texts == ()
            assert reading.notes == tuple(
                f"ebtables-{backend} is needed to see the rules of ebtables ({backend}), if there are any, "
                f"but not installed; install the package {package}"
                for backend, package in (("nft", "iptables"), ("legacy", "ebtables"))
            )
            with pytest.raises(ToolNotFoundError, match=r"ebtables-nft is needed .*iptables"):
                ebtables.delete(ctx, [EbtablesRule.parse(ONE, backend="nft")])

    def test_not_installed_on_the_path_of_this_process(
        self, ctx: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, legacy_is_loaded: None
    ) -> None:
        """Without a command prefix it is a note, too, if the tool is neither on PATH nor in the sbin folders."""
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr("hostrouting.host.search_path._FOLDERS", ())
        assert len(EbtablesCommand().read(ctx).notes) == 2

    @needs("ebtables-legacy")
    def test_a_path_without_sbin_will_do(
        self, node: KernelNode, ebtables: EbtablesCommand, ctx: Context, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The tools and `ip` are found with the PATH of an ordinary user, which has no sbin folder."""
        load(node.name, [ONE, TWO])
        with monkeypatch.context() as patch:
            patch.setenv("PATH", "/nonexistent")
            reading = ebtables.read(ctx)
            ebtables.delete(ctx, reading.rules[:1])
        assert "not installed" not in "".join(reading.notes)
        assert [rule.line for rule in reading.rules] == [ONE, TWO]
        assert [line for line in saved(node.name) if line.startswith("-A")] == [TWO]

    def test_a_prefix_that_does_not_work_is_an_error(self, ctx: Context) -> None:
        """A namespace that does not exist must not look like a machine without ebtables."""
        with pytest.raises(BackendError, match=r"cannot run ebtables: .*no-such-namespace"):
            EbtablesCommand(("ip", "netns", "exec", "no-such-namespace")).read(ctx)
        with pytest.raises(BackendError, match=r"cannot run ebtables: .*no-such-program"):
            EbtablesCommand(("no-such-program",)).read(ctx)

    @pytest.mark.parametrize("backend", ["nft", "legacy"])
    def test_plain_names_are_the_backend_that_they_say(
        self,
        *,
        command: tuple[str, ...],
        node: KernelNode,
        ctx: Context,
        tmp_path: Path,
        backend: str,
        legacy_is_loaded: None,
    ) -> None:
        """If only `ebtables` is installed, its version tells the backend; the other backend is absent."""
        load(node.name, [ONE, TWO])
        if backend == "nft":
            for name in ("ebtables", "ebtables-save", "ebtables-restore"):
                (tmp_path / name).symlink_to("/usr/sbin/xtables-nft-multi")
        else:
            write_tool(tmp_path, "ebtables", LEGACY_STAND_IN)
        ebtables = EbtablesCommand((*command, "/usr/bin/env", f"PATH={tmp_path}"))
        reading = ebtables.read(ctx)
        assert [(rule.backend, rule.line) for rule in reading.rules] == [(backend, ONE), (backend, TWO)]
        assert len(reading.notes) == 1
        assert "but not installed" in reading.notes[0]
        ebtables.delete(ctx, reading.rules[:1])
        assert [rule.line for rule in ebtables.read(ctx).rules] == [TWO]

    def test_legacy_that_the_kernel_lacks_is_a_note(
        self, command: tuple[str, ...], ctx: Context, tmp_path: Path, legacy_is_loaded: None
    ) -> None:
        """The note quotes the tool: here ebtables 2.0.11 on a kernel without the table."""
        words = "The kernel doesn't support the ebtables 'nat' table."
        refusal = f'#!/bin/sh\n[ "$1" = --version ] && exit\necho "{words}" >&2\nexit 255\n'
        write_tool(tmp_path, "ebtables-legacy", refusal)
        notes = EbtablesCommand((*command, "/usr/bin/env", f"PATH={tmp_path}")).read(ctx).notes
        assert notes[1:] == (f"ebtables (legacy) is not supported by the kernel: {words}",)

    def test_legacy_without_its_module_has_no_rules(
        self, ebtables: EbtablesCommand, ctx: Context, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The tool is not called, as that would load the module; the reading is complete all the same."""
        monkeypatch.setattr("hostrouting.host.packets.ebtables.legacy_may_have_rules", lambda: False)
        assert ebtables.read(ctx).notes == ()

    def test_no_privilege_is_a_note_and_a_refusal(
        self, command: tuple[str, ...], node: KernelNode, ctx: Context
    ) -> None:
        """Without privilege a reading has a note with the reason, and a change names the privilege that it needs."""
        load(node.name, [ONE])
        ebtables = EbtablesCommand((*command, "setpriv", "--reuid=65534", "--clear-groups"))
        reading = ebtables.read(ctx)
        assert reading.rules == ()
        assert "ebtables (nft) may not be read without CAP_NET_ADMIN: " in reading.notes[0]
        assert reading.denied
        with pytest.raises(PermissionDeniedError, match="CAP_NET_ADMIN"):
            ebtables.delete(ctx, [EbtablesRule.parse(ONE, backend="nft")])
        with pytest.raises(PermissionDeniedError, match="CAP_NET_ADMIN"):
            ebtables.insert(ctx, [EbtablesRule.parse(ONE, backend="nft")])
        assert ONE in saved(node.name)

    def test_a_rule_that_only_nft_can_show_is_a_note(
        self, node: KernelNode, ebtables: EbtablesCommand, ctx: Context
    ) -> None:
        """A base chain that is not ebtables' own is named; the other rules are read."""
        load(node.name, [ONE])
        node.run("nft", "add chain bridge nat mine { type filter hook prerouting priority -5; }")
        if _LACKS_CARE:
            with pytest.raises(BackendError, match=r"cannot read the rules of ebtables .*SIGABRT"):
                ebtables.read(ctx)
            return
        reading = ebtables.read(ctx)
        assert [rule.line for rule in reading.rules] == [ONE]
        assert any("Table `nat' contains incompatible base-chains" in note for note in reading.notes)

    def test_rules_that_the_tool_cannot_read_are_an_error(
        self, node: KernelNode, ebtables: EbtablesCommand, ctx: Context
    ) -> None:
        """Half of the rules must not pass for all of them."""
        load(node.name, [ONE])
        node.run("nft", "add set bridge nat x { type ipv4_addr; }")
        node.run("nft", "add rule bridge nat PREROUTING ip saddr @x counter")
        if _LACKS_CARE:
            # It shows them all, as well as it can; no such rule looks like a pod's.
            assert [rule.line for rule in ebtables.read(ctx).rules] == [ONE, "-A PREROUTING -j CONTINUE"]
            return
        with pytest.raises(BackendError, match="cannot read the rules of ebtables"):
            ebtables.read(ctx)

    def test_reading_makes_nothing(self, node: KernelNode, ebtables: EbtablesCommand, ctx: Context) -> None:
        """A reading leaves an empty ruleset empty: it adds no table and no chain."""
        assert ebtables.read(ctx).rules == ()
        assert node.run("nft", "list", "ruleset") == ""

    def test_legacy_is_asked_only_where_that_loads_no_module(self, tmp_path: Path) -> None:
        """The legacy table is read if it is loaded already, or if the kernel has no modules to load."""
        modules, built_in = tmp_path / "modules", tmp_path / "modules.builtin"
        assert legacy_may_have_rules(str(modules), str(built_in))
        modules.write_text("ebtable_filter 12288 0 - Live 0x0\nebtables 45056 1 ebtable_filter, Live 0x0\n")
        assert not legacy_may_have_rules(str(modules), str(built_in))
        built_in.write_text("kernel/net/bridge/netfilter/ebtable_nat.ko\n")
        assert legacy_may_have_rules(str(modules), str(built_in))
        built_in.unlink()
        modules.write_text("ebtable_nat 12288 1 - Live 0x0\n")
        assert legacy_may_have_rules(str(modules), str(built_in))


@needs("kernel", "ebtables-nft")
class TestAllOrNothing:
    def test_thousands_go_and_come_in_batches(self, node: KernelNode, ebtables: EbtablesCommand, ctx: Context) -> None:
        """3,000 of 3,100 rules take three processes; after the undo, ebtables-save prints the same bytes."""
        lines = [arp_rule(number) for number in range(3100)]
        load(node.name, lines)
        before = saved(node.name)
        chosen = [rule for rule in ebtables.read(ctx).rules if rule.position % 31]
        calls: list[int] = []
        ebtables.delete(ctx, chosen, progress=calls.append)
        assert calls == [1000, 2000, 3000]
        assert len(ebtables.read(ctx).rules) == 100
        calls.clear()
        ebtables.insert(ctx, chosen, progress=calls.append)
        assert calls == [1000, 2000, 3000]
        assert saved(node.name) == before

    def test_a_batch_that_fails_puts_the_earlier_ones_back(
        self, node: KernelNode, ebtables: EbtablesCommand, ctx: Context
    ) -> None:
        """If a rule of the third batch vanishes during the first, the tool refuses it, and the others are restored."""
        load(node.name, [SNAT, *(arp_rule(number) for number in range(2500))])
        before = saved(node.name)
        calls: list[int] = []

        def progress(done: int) -> None:
            calls.append(done)
            if len(calls) == 1:
                run(node.name, "ebtables-nft", "-t", "nat", *arp_rule(2400).replace("-A", "-D", 1).split())

        # Where the kernel refuses, 1.8.7 does not say which it was.
        which = r"one of these: .*\(and 500 more\)" if _LACKS_CARE else r".* 10\.0\.9\.96 .*does a matching rule exist"
        with pytest.raises(BackendError, match=f"not deleted: {which}") as caught:
            ebtables.delete(ctx, ebtables.read(ctx).rules, progress=progress)
        assert "the 2000 rules that had been deleted before it are as they were" in str(caught.value)
        assert calls == [1000, 2000]
        assert saved(node.name) == [line for line in before if line != arp_rule(2400)]

    def test_rules_that_cannot_be_restored_are_named(
        self, node: KernelNode, ebtables: EbtablesCommand, ctx: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Rules whose chain is gone at the rollback are named, and all others are restored."""
        load(
            node.name,
            [*(arp_rule(number) for number in range(1500)), "-A MINE -p ARP -j DROP"],
            chains=[":MINE ACCEPT"],
        )
        rules = ebtables.read(ctx).rules
        first = [rule for rule in rules if rule.chain == "MINE"]
        rest = [rule for rule in rules if rule.chain != "MINE"]

        def progress(done: int) -> None:
            run(node.name, "ebtables-nft", "-t", "nat", "-X", "MINE")
            raise KeyError(done)

        # MINE comes after PREROUTING in a reading, so that it is in the last batch.
        with pytest.raises(KeyError):
            ebtables.delete(ctx, [*rest[:10], *first], progress=progress)
        assert (
            "THE ROLLBACK IS INCOMPLETE, of 11 rules these could not be restored:\n  -A MINE -p ARP -j DROP"
            in caplog.text
        )
        assert [rule.line for rule in ebtables.read(ctx).rules] == [rule.line for rule in rest]

    def test_rules_stand_where_ascending_insertion_would_have_put_them(
        self, node: KernelNode, ebtables: EbtablesCommand, ctx: Context
    ) -> None:
        """In each chain rules stand as after an ascending insertion, also beyond its end, or if two claim one place."""
        load(node.name, [*(arp_rule(number) for number in range(4)), SNAT])
        positions = {10: 1, 11: 3, 12: 3, 13: 4, 14: 7, 15: 9, 16: 40, 17: 0}
        rules = [
            EbtablesRule.parse(arp_rule(number), backend="nft", position=position)
            for number, position in positions.items()
        ]
        other = EbtablesRule.parse(SNAT.replace("eth0", "eth1"), backend="nft", position=1)
        fake = MemoryEbtables()  # which inserts in ascending order; the adapter inserts from the end to the beginning
        for rule in ebtables.read(ctx).rules:
            fake.add(rule.line, backend="nft")
        fake.insert(ctx, [*rules, other])
        ebtables.insert(ctx, [*rules, other])
        assert [rule.line for rule in ebtables.read(ctx).rules] == [rule.line for rule in fake.read(ctx).rules]

    def test_an_insertion_that_fails_is_taken_back(
        self, node: KernelNode, ebtables: EbtablesCommand, ctx: Context
    ) -> None:
        """If a batch is refused, the rules of the batches before it are deleted again."""
        load(node.name, [ONE, LOG])
        before = saved(node.name)
        more = [EbtablesRule.parse(arp_rule(number), backend="nft", position=number) for number in range(10, 1510)]
        bad = EbtablesRule.parse("-A PREROUTING -j arpreply", backend="nft", position=5000)
        with pytest.raises(BackendError, match=r"not inserted: .*\nthe 1000 rules that had been inserted"):
            ebtables.insert(ctx, [*more, bad])
        assert saved(node.name) == before

    def test_a_context_that_ends_midway_leaves_nothing_changed(
        self, node: KernelNode, ebtables: EbtablesCommand, caplog: pytest.LogCaptureFixture
    ) -> None:
        """If the context ends midway, the rules that were deleted are restored."""
        load(node.name, [arp_rule(number) for number in range(2500)])
        before = saved(node.name)
        ctx = Context()
        with pytest.raises(CancelledError):
            ebtables.delete(ctx, ebtables.read(ctx).rules, progress=lambda done: ctx.cancel(f"at {done}"))
        assert "the 1000 rules that had been deleted" in caplog.text
        assert saved(node.name) == before

    def test_a_process_that_is_killed_after_its_work_is_taken_back(
        self, node: KernelNode, command: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """If the context ends after the kernel took a batch, a reading finds the batch, and it is rolled back."""
        load(node.name, [ONE, TWO, THREE])
        before = saved(node.name)
        for name in ("ebtables-nft", "ebtables-nft-save"):
            (tmp_path / name).symlink_to("/usr/sbin/xtables-nft-multi")
        done, first = tmp_path / "done", tmp_path / "first"
        os.mkfifo(done)
        write_tool(
            tmp_path,
            "ebtables-nft-restore",
            f'#!/bin/sh\n/usr/sbin/ebtables-nft-restore "$@" || exit\n[ -e {first} ] && exit\n: > {first}\n'
            f"echo > {done}\nexec /usr/bin/sleep 600\n",
        )
        ebtables = EbtablesCommand((*command, "/usr/bin/env", f"PATH={tmp_path}"))
        ctx = Context()
        rules = ebtables.read(ctx).rules

        def cancel() -> None:
            done.read_text()  # as soon as the batch is in force
            ctx.cancel("killed")

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(CancelledError):
            ebtables.delete(ctx, rules[:2])
        thread.join()
        assert "the 2 rules that had been deleted" in caplog.text
        assert saved(node.name) == before

    def test_a_rule_that_another_program_restores_at_once_is_reported(
        self, node: KernelNode, ebtables: EbtablesCommand, ctx: Context
    ) -> None:
        """If the reading after the deletion finds the rule again, all is restored, and the error says why."""
        load(node.name, [ONE, TWO, THREE])

        def progress(_done: int) -> None:
            load(node.name, [TWO])

        with pytest.raises(BackendError, match=r"10\.0\.0\.2 .*was deleted, and at once it was not: something alive"):
            ebtables.delete(ctx, ebtables.read(ctx).rules[:2], progress=progress)
        assert sorted(rule.line for rule in ebtables.read(ctx).rules) == [ONE, TWO, THREE]

    def test_foreign_rules_chains_and_policies_stay(
        self, node: KernelNode, ebtables: EbtablesCommand, ctx: Context
    ) -> None:
        """Other chains, their policies, other tables and the rules between ours keep every byte."""
        load(
            node.name,
            [ONE, "-A PREROUTING -p LLDP -j MINE", TWO, "-A MINE -d BGA -j RETURN", DNAT, SNAT],
            chains=[":MINE DROP", ":OUTPUT DROP"],
        )
        run(node.name, "ebtables-nft", "-t", "filter", "-A", "FORWARD", "-p", "ARP", "-j", "ACCEPT")
        before = saved(node.name)
        chosen = [rule for rule in ebtables.read(ctx).rules if rule.line in (ONE, TWO, DNAT)]
        ebtables.delete(ctx, chosen)
        assert saved(node.name) == [line for line in before if line not in (ONE, TWO, DNAT)]
        ebtables.insert(ctx, chosen)
        assert saved(node.name) == before

    def test_a_rule_that_the_tool_cannot_delete_stops_its_batch(
        self, node: KernelNode, ebtables: EbtablesCommand, ctx: Context
    ) -> None:
        """The error quotes the tool, and names no rule if the tool does not name one."""
        load(node.name, [ONE, "-A PREROUTING --among-dst 1:2:3:4:5:6 -j DROP"])
        before = saved(node.name)
        try:
            ebtables.delete(ctx, ebtables.read(ctx).rules)
        except BackendError as error:  # ebtables 1.8.9 cannot compare --among
            assert f"not deleted: one of these: {ONE} (nft) (and 1 more): " in str(error)  # noqa: PT017
            assert "Invalid argument" in str(error)  # noqa: PT017
            assert saved(node.name) == before
        else:
            assert ebtables.read(ctx).rules == ()


@pytest.fixture(scope="module")
def shared() -> Iterator[KernelNode]:
    """One namespace for all examples."""
    with KernelNode.made() as node:
        yield node


def normal_forms(rules: Sequence[EbtablesRule]) -> list[tuple[str, object]]:
    return sorted((rule.chain, rule.normal) for rule in rules)


@needs("kernel", "ebtables-nft", "nft")
@given(lines=st.lists(cni_lines() | rule_lines(), max_size=15), data=st.data())
def test_any_rules_survive_the_kernel(shared: KernelNode, lines: list[str], data: st.DataObject) -> None:
    """Loaded rules read as equal; any part of them is deleted alone, and restored without a different byte."""
    node = shared
    node.run("nft", "flush", "ruleset")
    if _LACKS_CARE:
        lines = [line for line in lines if "Length" not in line]  # which it forgets
    load(node.name, lines)
    ebtables = EbtablesCommand(("ip", "netns", "exec", node.name))
    ctx = Context()
    rules = ebtables.read(ctx).rules
    assert normal_forms(rules) == normal_forms([EbtablesRule.parse(line, backend="nft") for line in lines])
    assert [rule.line for rule in rules] == [line for line in saved(node.name) if line.startswith("-A")]
    before = saved(node.name)
    # Of identical rules the first are deleted, so all of them are chosen or none.
    lines_chosen = data.draw(st.sets(st.sampled_from(sorted({rule.line for rule in rules})))) if rules else set()
    chosen = [rule for rule in rules if rule.line in lines_chosen]
    ebtables.delete(ctx, data.draw(st.permutations(chosen)))
    assert saved(node.name) == [line for line in before if line not in lines_chosen]
    ebtables.insert(ctx, data.draw(st.permutations(chosen)))
    assert saved(node.name) == before


@needs("kernel", "ebtables-nft")
def test_the_defaults_of_targets_are_those_of_the_tool(node: KernelNode) -> None:
    """The normal form of a rule with or without its default is that of the tool's output."""
    lines = [
        "-A PREROUTING -p ARP -j arpreply --arpreply-mac 02:00:00:00:00:01",
        "-A PREROUTING -j dnat --to-dst 02:00:00:00:00:01",
        "-A PREROUTING -j redirect",
        "-A PREROUTING -j mark --mark-set 0x1",
        "-A POSTROUTING -j snat --to-src 02:00:00:00:00:01",
    ]
    load(node.name, lines)
    printed = parse_save("\n".join(saved(node.name)), backend="nft")
    assert [rule.normal for rule in printed] == [EbtablesRule.parse(line, backend="nft").normal for line in lines]
