"""Records that root puts back: whose word is taken, on real files; the rest is shown with the records themselves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from support.needs import needs

from hostrouting.exceptions import HostFileError
from hostrouting.host.files.store import RootedFiles
from hostrouting.journal import read_record, refuse_unsafe_folder, set_aside

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = 65534


@needs("root")
def test_a_planted_record_is_not_read(tmp_path: Path) -> None:
    """A file of nobody's in a folder of root's, as one that was there before root closed it."""
    files = RootedFiles(str(tmp_path))
    files.write("/run/ours/record.json", b"precious", mode=0o644)
    assert read_record(files, "/run/ours/record.json", bytes.decode) == "precious"
    os.chown(tmp_path / "run/ours/record.json", NOBODY, -1)
    with pytest.raises(HostFileError, match=r"it belongs to the user 65534, and only root's word is taken"):
        read_record(files, "/run/ours/record.json", bytes.decode)


def test_what_is_absent_is_no_record(tmp_path: Path) -> None:
    """Nothing to be read, and nothing to be told."""
    assert read_record(RootedFiles(str(tmp_path)), "/run/ours/record.json", bytes.decode) is None


def test_a_sticky_folder_is_not_safe(tmp_path: Path) -> None:
    """In one like /tmp anybody may be the first to have a folder's name."""
    files = RootedFiles(str(tmp_path))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    with pytest.raises(HostFileError, match=r"/open/records is no place .* others may write to .*/open \(mode 1777\)"):
        refuse_unsafe_folder(files, "/open/records")


def test_what_cannot_be_set_aside_is_told(tmp_path: Path) -> None:
    """It stops nobody: a name that is too long for its folder, say."""
    files = RootedFiles(str(tmp_path))
    name = "r" * 250
    (tmp_path / name).touch()
    assert set_aside(files, f"/{name}").startswith("it could not be set aside: cannot look for ")
