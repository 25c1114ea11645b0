"""The entry that a command leaves in the journal, in the form in which systemd reads it."""

import socket
from argparse import Namespace
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import ROOT

from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.cli.shared import recorded_run
from hostrouting.exceptions import BackendError
from hostrouting.host.systemd.notify import entry
from hostrouting.node.history import recorded
from hostrouting.testing import MemoryFiles


def fields_of(datagram: bytes) -> dict[str, str]:
    """The fields of an entry: a name on a line, the length in 8 bytes, the value, and the end of
    the line.
    """
    name, _, rest = datagram.partition(b"\n")
    end = 8 + int.from_bytes(rest[:8], "little")
    assert rest[end : end + 1] == b"\n"
    return {name.decode(): rest[8:end].decode()} | (
        fields_of(rest[end + 1 :]) if rest[end + 1 :] else {}
    )


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]*", fullmatch=True), st.text(), min_size=1))
def test_no_value_becomes_another_field(fields: dict[str, str]) -> None:
    """A value of any text stays in its own field of a journal's entry; text that is not valid is
    escaped, and a value that is too long for a datagram is cut.
    """
    valid = {
        name: value.encode(errors="backslashreplace").decode() for name, value in fields.items()
    }
    assert fields_of(entry(**fields)) == valid
    assert len(entry(A=100_000 * "x")) < 10_000


def test_an_entry_has_the_user_and_the_change_of_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry of a command has the checksums of the installed config, an error as far as its
    first cause, and the user behind sudo.
    """
    monkeypatch.setenv("SUDO_UID", "1000\nMESSAGE=forged")
    files = MemoryFiles()
    options = Namespace(command="apply", verdict="")
    path = f"{tmp_path}/socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(path)
        journal.settimeout(10)
        with suppress(OSError), recorded(options, files, journal=path):
            files.write(CONFIG_PATH, b"{}\n", mode=0o644)
            options.verdict = BackendError(
                "1 of 2 CIDRs as a whole:\n  172.16.8.0/22: by ib0\n  another"
            )
            raise OSError
        fields = fields_of(journal.recv(10_000))
    names = "COMMAND", "SUDO_UID", "BEFORE", "AFTER"
    assert [fields[f"HOSTROUTING_{name}"] for name in names] == [
        "apply",
        "1000\nMESSAGE=forged",
        "",
        "ca3d163bab05",
    ]
    assert f"`journalctl -o cat MESSAGE_ID={fields['MESSAGE_ID']}`" in (
        ROOT / "docs/operators.md"
    ).read_text(encoding="utf-8")
    assert fields["MESSAGE"].endswith(
        ": 1 of 2 CIDRs as a whole: 172.16.8.0/22: by ib0; installed config: none -> ca3d163bab05"
    )


@pytest.mark.parametrize(
    ("root", "dry_run", "is_recorded"),
    [(None, False, True), ("/mnt", False, False), ("/", False, False), (None, True, False)],
)
def test_runs_of_this_machine_alone_are_in_its_journal(
    root: str | None, dry_run: bool, is_recorded: bool
) -> None:
    """A run with --root, or one that changes nothing, is not recorded in the journal."""
    command = Namespace(has_history=True)
    run = recorded_run(Namespace(chosen=command, root=root, dry_run=dry_run))
    assert isinstance(run, nullcontext) is not is_recorded
