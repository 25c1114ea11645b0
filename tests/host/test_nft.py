"""The nftables port: the fake and nft keep the same promises, with tests of each alone."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from host.contracts.nftables import NftablesContract, foreign_table, own_table
from hypothesis import given, settings
from hypothesis import strategies as st
from support import nft_chain_by_chain
from support.examples import FEW
from support.needs import needs
from support.printed import LACKING_TOOL
from support.tool_versions import version_of

from hostrouting.exceptions import BackendError, PermissionDeniedError, ToolNotFoundError
from hostrouting.host import Nftables
from hostrouting.host.netlink.conversation import in_namespace
from hostrouting.host.netlink.frames import attribute
from hostrouting.host.packets.nft import NftCommand
from hostrouting.testing import KernelNode, MemoryNftables
from phases import Context

_NETLINK_NETFILTER = 12
_NFNL_SUBSYS_NFTABLES = 10
_NFT_TABLE_F_OWNER = 0x2


@contextmanager
def owned_table(node: KernelNode, name: str) -> Iterator[None]:
    """An empty table of the family ip6 that belongs to a socket, as that of some daemons, and
    goes with it.
    """

    def message(number: int, flags: int, family: int, body: bytes = b"") -> bytes:
        packed = struct.pack("=BBH", family, 0, socket.htons(_NFNL_SUBSYS_NFTABLES)) + body
        return struct.pack("=IHHII", 16 + len(packed), number, flags, 1, 0) + packed

    body = attribute(1, name.encode() + b"\0") + attribute(2, struct.pack(">I", _NFT_TABLE_F_OWNER))
    batch = message(0x10, 0x1, socket.AF_UNSPEC)
    batch += message(_NFNL_SUBSYS_NFTABLES << 8, 0x405, socket.AF_INET6, body)
    batch += message(0x11, 0x1, socket.AF_UNSPEC)
    with in_namespace(
        node.name, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    ) as owner:
        owner.bind((0, 0))
        owner.send(batch)
        assert struct.unpack_from("=i", owner.recv(4096), 16) == (0,), (
            "the kernel refuses the table"
        )
        yield


def inside(node: KernelNode) -> NftCommand:
    return NftCommand(("ip", "netns", "exec", node.name, "nft"))


class TestMemoryNftables(NftablesContract):
    @pytest.fixture
    def nftables(self) -> MemoryNftables:
        """See the contract."""
        return MemoryNftables()

    @pytest.mark.parametrize(
        "rule",
        ["jump elsewhere", "iifname eth0 accept", "icmpv6 type 133 accept", "log prefix 'x'"],
    )
    def test_it_refuses_unknown_rules(self, nftables: MemoryNftables, rule: str) -> None:
        """The nft in memory refuses a rule that it cannot list, and the error quotes its first
        unknown part.
        """
        with pytest.raises(
            BackendError, match=f"the nft in memory refuses '{rule[:4]}|\"log prefix"
        ):
            nftables.load(Context(), f"table ip6 own {{\nchain a {{\n{rule}\n}}\n}}")


@needs("kernel", "nft")
class TestNftCommand(NftablesContract):
    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        """A namespace without any ruleset."""
        with KernelNode.made() as made:
            yield made

    @pytest.fixture
    def nftables(self, node: KernelNode) -> Nftables:
        """See the contract."""
        return inside(node)

    def test_a_flushed_table_keeps_its_chains(self, loaded: Nftables) -> None:
        """A flushed table loses its rules and keeps its chains with hooks and policies, so that a
        drifted table is deleted instead.
        """
        before = foreign_table(loaded) or []
        loaded.load(Context(), "flush table inet foreign")
        assert foreign_table(loaded) == [entry for entry in before if "rule" not in entry]

    def test_a_table_of_another_process(self, node: KernelNode, nftables: Nftables) -> None:
        """A table that another process owns is found; the refusal of a change names the owner, and
        does not advise root.
        """
        with owned_table(node, "own"):
            listed = own_table(nftables)
            # nft before 1.0.0 has no owners.
            unreadable = {"unreadable": True} if version_of("nft") >= (1, 0, 0) else {}
            assert listed == [{"table": {"family": "ip6", "name": "own", **unreadable}}]
            for refused_by in nftables.check, nftables.load:
                with pytest.raises(
                    BackendError, match="another process owns the table, and only this process"
                ) as caught:
                    refused_by(Context(), "table ip6 own\ndelete table ip6 own\n")
                assert not isinstance(caught.value, PermissionDeniedError)
                assert "are you root" not in str(caught.value)
        # The table is removed with its owner.
        assert own_table(nftables) is None

    def test_a_path_without_sbin_will_do(
        self, node: KernelNode, nftables: Nftables, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`nft` and `ip` are found with the PATH of an ordinary user, which has no sbin folder."""
        with monkeypatch.context() as patch:
            patch.setenv("PATH", "/nonexistent")
            nftables.load(Context(), "table ip6 own")
            assert own_table(nftables) is not None
        assert "table ip6 own" in node.run("nft", "list", "ruleset")

    def test_errors_have_the_words_of_nft(self, nftables: Nftables) -> None:
        """An error of nft has the exit status, the place and the reason, from nft or from the
        kernel.
        """
        with pytest.raises(
            BackendError,
            match=r"cannot load the ruleset: nft failed \(status 1\)\n.*1:10-10: Error: syntax",
        ):
            nftables.load(Context(), "bogus one")
        with pytest.raises(
            BackendError, match=r"cannot accept the ruleset: (?s:.*)No such file or directory"
        ):
            nftables.check(Context(), "delete table ip6 absent")

    def test_reading_and_changing_need_privilege(self, node: KernelNode) -> None:
        """Reading, changing and checking without privilege raise a `PermissionDeniedError`."""
        nobody = "setpriv", "--reuid=65534", "--clear-groups"
        # Through a pipe that the user owns: nft 0.9.8 opens its input by name.
        piped = "bash", "-c", 'cat | nft "$@"', "bash"
        nftables = NftCommand(("ip", "netns", "exec", node.name, *nobody, *piped))
        for call, words in (
            (nftables.table, ("ip6", "own")),
            (nftables.load, ("flush ruleset",)),
            (nftables.check, ("table ip6 own",)),
        ):
            with pytest.raises(
                PermissionDeniedError, match=r"(?s)needs root or CAP_NET_ADMIN.*not permitted"
            ):
                call(Context(), *words)

    def test_counters_that_count_do_not_differ(self, node: KernelNode, nftables: Nftables) -> None:
        """Readings of a table before and after its counters count packets are equal."""
        hook = "type filter hook output priority 0; counter name mine counter;"
        counting = f"table ip6 c {{ counter mine {{ }}; chain o {{ {hook} }}; }}"
        nftables.load(Context(), counting)
        before = nftables.table(Context(), "ip6", "c")
        with pytest.raises(BackendError):
            node.run("bash", "-c", "exec 3<>/dev/tcp/::1/9")
        assert nftables.table(Context(), "ip6", "c") == before
        assert "packets 0 " not in node.run("nft", "list", "table", "ip6", "c")
        assert {"counter": {"family": "ip6", "table": "c", "name": "mine"}} in (before or [])
        assert (before or [])[-1]["rule"]["expr"] == [{"counter": "mine"}, {"counter": None}]


@needs("kernel", "nft")
class TestChainByChain(NftablesContract):
    """The contract for an nft that lists as those before 1.0.6 do (Ubuntu 22.04, Debian 11)."""

    @pytest.fixture
    def nftables(self) -> Iterator[Nftables]:
        """See the contract."""
        with KernelNode.made() as node:
            yield NftCommand(("ip", "netns", "exec", node.name, *nft_chain_by_chain.COMMAND))


def rules() -> st.SearchStrategy[str]:
    """Rules that the fake can read, written as nft prints them."""
    addresses = st.sampled_from(["fe80::1", "2001:db8::1", "::"])
    names = ["mld-listener-done", "nd-router-solicit", "nd-redirect"]
    matches = st.one_of(
        st.sampled_from(["eth0", "bond0.100", "fifteen-letters"]).map('iifname "{}"'.format),
        addresses.map("ip6 saddr {}".format),
        st.sampled_from([names, names[1:]]).map(
            lambda types: f"icmpv6 type {{ {', '.join(types)} }}"
        ),
    )
    ends = st.sampled_from(["accept", "return", "drop", "counter", ""]) | addresses.map(
        "ip6 daddr set {}".format
    )
    # A field that is matched twice is printed as one match or as none.
    unique = st.lists(matches, max_size=3, unique_by=lambda match: match.split()[0])
    comment = st.sampled_from(["", 'comment "why # {"'])
    return st.builds(
        lambda first, *rest: " ".join([*first, *filter(None, rest)]), unique, ends, comment
    ).filter(lambda rule: not rule.startswith("comment") and rule != "")


@pytest.fixture(scope="module")
def shared_node() -> Iterator[KernelNode]:
    """A namespace in which every example flushes first."""
    with KernelNode.made() as made:
        yield made


@needs("kernel", "nft")
@settings(max_examples=FEW)
@given(chains=st.lists(st.lists(rules(), max_size=5), min_size=1, max_size=3))
def test_a_script_means_the_same_to_the_fake_and_to_nft(
    shared_node: KernelNode, chains: list[list[str]]
) -> None:
    """The fake lists the rules of any script as nft does."""
    fake = MemoryNftables()
    real = inside(shared_node)
    hook = "type filter hook prerouting priority -150; policy drop;\n"
    script = ""
    for number, chain in enumerate(chains):
        body = hook * (number % 2) + "\n".join(chain)
        script += f"table ip6 t {{\nchain c{number} {{\n{body}\n}}\n}}\n"
    for nftables in fake, real:
        nftables.load(Context(), "flush ruleset\n" + script)
    assert real.table(Context(), "ip6", "t") == fake.table(Context(), "ip6", "t")


class TestNftCommandAlone:
    """Tests without nft: another program stands in for it."""

    def query(self, answer: str, ctx: Context | None = None) -> object:
        """List a table with a line of bash in the place of nft."""
        return NftCommand(("bash", "-c", answer)).table(ctx or Context(), "ip6", "own")

    def test_nft_is_not_installed(self) -> None:
        """Every method raises an error that names the tool if nft is not installed."""
        nftables = NftCommand(("/nonexistent/nft",))
        with pytest.raises(
            ToolNotFoundError, match=f"nft is needed to list the table ip6 own, {LACKING_TOOL}"
        ) as caught:
            own_table(nftables)
        assert caught.value.tool == "nft"
        assert caught.value.package == "nftables"
        with pytest.raises(
            ToolNotFoundError,
            match=f"to load the ruleset, {LACKING_TOOL}; install the package nftables",
        ):
            nftables.load(Context(), "")
        with pytest.raises(ToolNotFoundError, match=f"to accept the ruleset, {LACKING_TOOL}"):
            nftables.check(Context(), "")

    def test_a_file_that_is_not_a_programme(self, tmp_path: Path) -> None:
        """A file nft that cannot be executed is an error that does not advise a package."""
        (tmp_path / "nft").touch()
        with pytest.raises(
            BackendError, match=r"could not be started: .*Permission denied"
        ) as caught:
            NftCommand((str(tmp_path / "nft"),)).load(Context(), "")
        assert not isinstance(caught.value, ToolNotFoundError)

    @pytest.mark.parametrize(
        "answer",
        [
            "",
            "flush",
            "[]",
            '{"nftables": 4}',
            '{"nftables": [4]}',
            '{"nftables": ["table"]}',
            '{"nftables": [{"table": {"flags": ',
            "{}",
            "[" * 100_000,
        ],
        ids=["nothing", "text", "list", "number", "numbers", "words", "cut", "empty", "deep"],
    )
    def test_an_answer_that_is_not_a_listing(self, answer: str, tmp_path: Path) -> None:
        """Output other than a listing, with status 0, is an error that shows its start."""
        (tmp_path / "answer").write_text(answer)
        with pytest.raises(
            BackendError, match="cannot list the table ip6 own: nft printed no listing"
        ):
            self.query(f"cat {tmp_path}/answer")

    def test_flags_of_uninitialised_memory(self) -> None:
        """A table with flags is recognised by the text of its listing; the JSON of its flags,
        damaged or whole, is ignored.
        """
        for message in (
            '{"nftables": [{"table": {"flags": ',
            '{"nftables": [{"table": {"flags": "Lester Gooch #5"}}]}',
        ):
            script = f"[[ $0 == -j ]] && echo '{message}' || echo 'table ip6 own {{ flags dormant'"
            assert self.query(script) == [
                {"table": {"family": "ip6", "name": "own", "unreadable": True}}
            ]

    def test_the_comment_of_a_table_does_not_differ(self) -> None:
        """The comment of a table, which only nft 1.1 and later show, is left out of its listing."""
        shown = '{"nftables": [{"table": {"name": "own", "comment": "of a test"}}]}'
        assert self.query(f"echo '{shown}'") == [{"table": {"name": "own"}}]

    def test_an_absent_table_in_the_words_of_other_versions(self) -> None:
        """An absent table is recognised in the words of older and newer versions of nft; a missing
        namespace is an error.
        """
        older = "Error: Could not process rule: No such file or directory"
        newer = "Error: No such file or directory; did you mean table 'owner' in family ip6?"
        for message in older, newer:
            assert self.query(f'echo "{message}" >&2; exit 1') is None
        with pytest.raises(BackendError, match="Cannot open network namespace"):
            self.query(
                "echo 'Cannot open network namespace \"x\": No such file or directory' >&2; exit 1"
            )

    def test_the_signal_that_killed_nft_is_named(self) -> None:
        """The error of a crash without output names the signal."""
        with pytest.raises(BackendError, match=r"cannot list the table ip6 own: .*SIGABRT"):
            self.query("kill -ABRT $$")
