"""The promises of `FileStore`, as tests."""

import errno
from contextlib import AbstractContextManager
from typing import Any

import pytest

from hostrouting import HostFileError
from hostrouting.host import FileStore

#: Calls on a disk that is read-only and has the file /a, with the result or the error of each.
READ_ONLY: list[tuple[str, dict[str, Any], str]] = [
    (
        "remove",
        {"path": "/a"},
        "cannot remove /a: Read-only file system; mount it writable, see: findmnt -T /",
    ),
    ("remove", {"path": "/absent"}, "False"),
    (
        "rename",
        {"path": "/a", "name": "b"},
        "cannot give the name 'b' to /a: Read-only file system; mount it writable, see: findmnt -T /",
    ),
    ("rename", {"path": "/absent", "name": "b"}, "False"),
    (
        "write",
        {"path": "/a", "content": b"x", "mode": 0o644},
        "cannot write /a: Read-only file system; mount it writable, see: findmnt -T /",
    ),
    ("write", {"path": "/a", "content": b"", "mode": 0o644}, "False"),
    ("remove_directory_if_empty", {"path": "/absent"}, "False"),
]


class FileStoreContract:
    """The promises of `FileStore`. `files` of a subclass is a fresh tree, empty or with folders
    only.
    """

    def stamp(self, files: FileStore, path: str) -> object:
        """Return a value that differs after every write of the file's content, such as its mtime
        and inode.
        """
        raise NotImplementedError

    def give_away(self, files: FileStore, path: str, user: int) -> None:
        """Let another user own the path; skip the test if that is impossible."""
        raise NotImplementedError

    def touch(self, files: FileStore, path: str, seconds: float) -> None:
        """Set the time of the last change of an existing file, in seconds since the epoch."""
        raise NotImplementedError

    def open_up(self, files: FileStore, folder: str, mode: int) -> None:
        """Give a folder other permission bits."""
        raise NotImplementedError

    def locked(self, files: FileStore, path: str) -> AbstractContextManager[None]:
        """Let another process hold a lock on an existing file while the block runs."""
        raise NotImplementedError

    @pytest.fixture
    def ours(self, files: FileStore) -> FileStore:
        """The same files, with `/etc/ours/a`."""
        files.write("/etc/ours/a", b"one\n", mode=0o644)
        return files

    @pytest.mark.parametrize("content", [b"\0one\n\xff", b""])
    def test_what_was_written_is_read(self, files: FileStore, content: bytes) -> None:
        """A written file, even an empty one, reads back byte for byte, has its mode, and counts as
        a change.
        """
        assert files.write("/etc/ours/a", content, mode=0o600) is True
        assert (files.read("/etc/ours/a"), files.mode("/etc/ours/a")) == (content, 0o600)
        assert files.exists("/etc/ours/a")

    @pytest.mark.parametrize(
        ("content", "mode", "rewritten"),
        [
            (b"one\n", 0o644, False),
            (b"one\n", 0o755, False),
            (b"two\n", 0o644, True),
            (b"two\n", 0o755, True),
        ],
    )
    def test_only_what_differs_is_changed(
        self, ours: FileStore, content: bytes, mode: int, rewritten: bool
    ) -> None:
        """A file that is right stays untouched; a wrong mode alone is set, and the content is not
        written again.
        """
        before = self.stamp(ours, "/etc/ours/a")
        assert ours.write("/etc/ours/a", content, mode=mode) is (rewritten or mode != 0o644)
        assert (ours.read("/etc/ours/a"), ours.mode("/etc/ours/a")) == (content, mode)
        assert (self.stamp(ours, "/etc/ours/a") != before) is rewritten

    def test_nothing_reads_as_none(self, ours: FileStore) -> None:
        """A path that is absent, or lies below one that is absent or no folder, is an answer and no
        error.
        """
        for path in ("/etc/ours/b", "/etc/theirs/b", "/etc/ours/a/b"):
            assert ours.read(path) is None
            assert not ours.exists(path)
            assert ours.read_link(path) is None
            assert ours.names(path) == []
            assert ours.remove(path) is False
            assert ours.remove_directory_if_empty(path) is False
            assert not ours.is_locked(path)

    def test_names_are_sorted_and_those_of_one_folder(self, files: FileStore) -> None:
        """A folder lists its own entries, folders among them, and no deeper ones."""
        for name in ("c", "a", "b/deeper"):
            files.write(f"/etc/ours/{name}", b"", mode=0o644)
        assert files.names("/etc/ours") == ["a", "b", "c"]

    def test_a_removed_file_is_gone(self, ours: FileStore) -> None:
        """The first removal removes the file, the second finds none."""
        assert ours.remove("/etc/ours/a") is True
        assert not ours.exists("/etc/ours/a")
        assert ours.remove("/etc/ours/a") is False

    def test_only_an_empty_folder_goes(self, ours: FileStore) -> None:
        """A folder that is not empty stays, an empty one goes."""
        assert ours.remove_directory_if_empty("/etc/ours") is False
        ours.remove("/etc/ours/a")
        assert ours.exists("/etc/ours")
        assert ours.remove_directory_if_empty("/etc/ours") is True
        assert not ours.exists("/etc/ours")

    def test_a_folder_is_no_file(self, ours: FileStore) -> None:
        """Reading, replacing or removing a folder as if it were a file is refused with the reason;
        so is linking.
        """
        with pytest.raises(HostFileError, match=r"cannot read .*/etc/ours: Is a directory"):
            ours.read("/etc/ours")
        with pytest.raises(HostFileError, match=r"cannot write .*/etc/ours: Is a directory"):
            ours.write("/etc/ours", b"", mode=0o644)
        with pytest.raises(HostFileError, match=r"cannot remove .*/etc/ours: Is a directory"):
            ours.remove("/etc/ours")
        with pytest.raises(HostFileError, match=r"cannot link .*/etc/ours: Is a directory"):
            ours.link("/etc/ours", "/srv/ours")
        assert ours.names("/etc/ours") == ["a"]

    def test_a_file_is_no_folder(self, ours: FileStore) -> None:
        """Writing below a file is refused."""
        with pytest.raises(HostFileError, match=r"cannot write .*/etc/ours/a/b: Not a directory"):
            ours.write("/etc/ours/a/b", b"", mode=0o644)
        assert ours.read("/etc/ours/a") == b"one\n"

    def test_a_link_to_nothing_exists(self, ours: FileStore) -> None:
        """A link to an absent file reads as absent, but its name is taken."""
        ours.link("/etc/ours/broken", "/nowhere")
        assert ours.read("/etc/ours/broken") is None
        assert ours.exists("/etc/ours/broken")
        assert ours.names("/etc/ours") == ["a", "broken"]

    def test_writing_replaces_a_link(self, ours: FileStore) -> None:
        """A file takes the link's place, even if its target has the same bytes; the target stays as
        it is.
        """
        ours.link("/etc/ours/link", "a")
        assert ours.write("/etc/ours/link", b"one\n", mode=0o644) is True
        assert ours.read_link("/etc/ours/link") is None
        assert ours.write("/etc/ours/link", b"two\n", mode=0o644) is True
        assert ours.read("/etc/ours/a") == b"one\n"

    def test_removing_takes_the_link(self, ours: FileStore) -> None:
        """Removing a link keeps its target."""
        ours.link("/etc/ours/link", "a")
        assert ours.remove("/etc/ours/link") is True
        assert not ours.exists("/etc/ours/link")
        assert ours.read("/etc/ours/a") == b"one\n"

    @pytest.mark.parametrize(
        "target", ["/srv/ours", "../srv/ours", "../../../../../srv/ours", "/../srv/./ours/"]
    )
    def test_links_to_folders_lead_on_inside_the_root(self, files: FileStore, target: str) -> None:
        """An absolute link, and one that climbs too high, start at the root of these files."""
        files.write("/srv/ours/a", b"one\n", mode=0o644)
        files.write("/etc/other", b"", mode=0o644)
        files.link("/etc/ours", target)
        assert files.read("/etc/ours/a") == b"one\n"
        assert files.names("/etc/ours") == ["a"]
        assert files.write("/etc/ours/b", b"two\n", mode=0o644) is True
        assert files.read("/srv/ours/b") == b"two\n"
        assert files.remove("/etc/ours/a") is True
        assert files.names("/srv/ours") == ["b"]

    @pytest.mark.parametrize("target", ["a", "/etc/ours/a"])
    def test_a_link_is_made(self, ours: FileStore, target: str) -> None:
        """It has the given text, is no change the second time, and reads as its target."""
        assert ours.link("/etc/ours/link", target) is True
        assert ours.link("/etc/ours/link", target) is False
        assert ours.read("/etc/ours/link") == b"one\n"
        assert [ours.read_link(f"/etc/ours/{name}") for name in ("link", "a")] == [target, None]

    def test_a_link_replaces_a_link_and_a_file(self, ours: FileStore) -> None:
        """The earlier targets stay as they are, and missing folders are made."""
        assert ours.link("/etc/other/folder/link", "/nowhere") is True
        assert ours.link("/etc/other/folder/link", "/etc/ours/a") is True
        assert ours.read("/etc/other/folder/link") == b"one\n"
        assert ours.link("/etc/ours/a", "/nowhere") is True
        assert ours.read_link("/etc/ours/a") == "/nowhere"

    def test_modes_are_those_of_files(self, files: FileStore) -> None:
        """A link has the mode of its file; a folder, a broken link and an absent path have none."""
        files.write("/etc/ours/a", b"", mode=0o750)
        files.link("/etc/ours/link", "a")
        files.link("/etc/ours/broken", "b")
        assert [files.mode(f"/etc/ours/{name}") for name in ("a", "link", "broken", "c")] == [
            0o750,
            0o750,
            None,
            None,
        ]
        assert files.mode("/etc/ours") is None

    def test_modes_of_folders(self, ours: FileStore) -> None:
        """They have a method of their own, since a folder is no program; links are followed."""
        ours.link("/etc/link", "/etc/ours")
        paths = "/etc/ours", "/etc/ours/", "/etc/link", "/etc/ours/a", "/etc/absent"
        assert [ours.folder_mode(path) for path in paths] == [0o755, 0o755, 0o755, None, None]
        ours.set_folder_mode("/etc/link", 0o700)
        assert ours.folder_mode("/etc/ours") == 0o700
        ours.set_folder_mode("/etc/ours/", 0o755)
        assert (ours.folder_mode("/etc/ours"), ours.mode("/etc/ours/a")) == (0o755, 0o644)
        for path, reason in (
            ("/etc/absent", "No such file or directory"),
            ("/etc/ours/a", "Not a directory"),
        ):
            with pytest.raises(
                HostFileError, match=rf"cannot change the mode of .*{path}: {reason}"
            ):
                ours.set_folder_mode(path, 0o755)

    def test_a_limit_ends_a_read(self, files: FileStore) -> None:
        """No more than the first bytes are returned; a limit of the whole file or beyond changes
        nothing.
        """
        files.write("/etc/ours/a", b"\0one\n", mode=0o644)
        read = [files.read("/etc/ours/a", limit=limit) for limit in (0, 3, 5, 6)]
        assert read == [b"", b"\0on", b"\0one\n", b"\0one\n"]
        assert files.read("/etc/ours/b", limit=3) is None

    def test_a_time_is_of_the_last_change(self, files: FileStore) -> None:
        """A link has the time of its file; a folder, a broken link and an absent path have none."""
        files.write("/etc/ours/a", b"one\n", mode=0o644)
        files.link("/etc/ours/link", "a")
        files.link("/etc/ours/broken", "b")
        self.touch(files, "/etc/ours/a", 1700000000.5)
        paths = ("/etc/ours/a", "/etc/ours/link", "/etc/ours/broken", "/etc/ours/c", "/etc/ours")
        assert list(map(files.modified, paths)) == [1700000000.5, 1700000000.5, None, None, None]
        files.write("/etc/ours/a", b"one\n", mode=0o600)
        assert files.modified("/etc/ours/a") == 1700000000.5
        files.write("/etc/ours/a", b"two\n", mode=0o600)
        assert files.modified("/etc/ours/a") != 1700000000.5

    @pytest.mark.parametrize("mode", [0o1777, 0o775, 0o757])
    def test_a_folder_that_others_may_write_to_exposes_all_below(
        self, files: FileStore, mode: int
    ) -> None:
        """The content and all below it, with a sticky bit or not, and the remedy; the folder next
        to it is not.
        """
        files.write("/srv/ours/deep/a", b"", mode=0o644)
        files.write("/srv/theirs/a", b"", mode=0o644)
        self.open_up(files, "/srv/ours", mode)
        remedy = "use another place" if mode > 0o777 else "run: chown "
        for path in ("/srv/ours", "/srv/ours/b", "/srv/ours/deep/a"):
            said = str(files.exposed(path))
            assert "/srv/ours (owner " in said
            assert f", mode {mode:04o}); {remedy}" in said
        assert files.exposed("/srv/theirs/a") is None

    def test_another_users_file_is_exposed_until_it_is_written_anew(self, files: FileStore) -> None:
        """A file that is replaced belongs to its writer."""
        files.write("/srv/ours/a", b"one\n", mode=0o644)
        self.give_away(files, "/srv/ours/a", 65534)
        assert "/srv/ours/a (owner 65534, mode 0644); run: " in str(files.exposed("/srv/ours/a"))
        files.write("/srv/ours/a", b"two\n", mode=0o644)
        assert files.exposed("/srv/ours/a") is None

    def test_another_users_folder_exposes_all_below(self, files: FileStore) -> None:
        """Its owner may replace all that is there."""
        files.write("/srv/ours/deep/a", b"", mode=0o644)
        self.give_away(files, "/srv/ours", 65534)
        assert "/srv/ours (owner 65534, mode 0755); run: " in str(files.exposed("/srv/ours/deep/a"))

    @pytest.mark.parametrize("target", ["/srv/open/deep", "../srv/open/deep", "/srv/between"])
    def test_links_are_followed_to_what_is_exposed(self, files: FileStore, target: str) -> None:
        """Every folder on the way counts, and links to links, too."""
        files.write("/srv/open/deep/a", b"", mode=0o644)
        files.write("/etc/ours", b"", mode=0o644)
        files.link("/srv/between", "open/deep")
        files.link("/etc/link", target)
        assert files.exposed("/etc/link/a") is None
        self.open_up(files, "/srv/open", 0o777)
        said = str(files.exposed("/etc/link/a"))
        assert "/srv/open (owner " in said
        assert ", mode 0777); run: " in said

    def test_a_name_is_changed(self, files: FileStore) -> None:
        """Files, links and whole folders stay the same; an absent path is an answer."""
        files.write("/etc/ours/a/b", b"one\n", mode=0o640)
        files.link("/etc/ours/link", "/nowhere")
        assert files.rename("/etc/ours/a", "c") is True
        assert files.rename("/etc/ours/link", "other") is True
        assert files.rename("/etc/ours/a", "d") is False
        assert files.rename("/etc/theirs/a", "d") is False
        assert files.names("/etc/ours") == ["c", "other"]
        assert (files.read("/etc/ours/c/b"), files.mode("/etc/ours/c/b")) == (b"one\n", 0o640)
        assert files.read_link("/etc/ours/other") == "/nowhere"

    def test_a_name_that_is_taken_is_refused(self, ours: FileStore) -> None:
        """Neither of the two is changed; the error has the number of the system's."""
        ours.write("/etc/ours/b", b"two\n", mode=0o644)
        with pytest.raises(
            HostFileError, match=r"cannot give the name 'b' to .*/etc/ours/a: File exists"
        ) as raised:
            ours.rename("/etc/ours/a", "b")
        assert raised.value.errno == errno.EEXIST
        assert (ours.read("/etc/ours/a"), ours.read("/etc/ours/b")) == (b"one\n", b"two\n")

    def test_where_there_is_room_nothing_is_refused(self, ours: FileStore) -> None:
        """The call makes nothing, if the folder exists or not."""
        for folder in ("/etc/ours", "/etc/theirs/deep", "/"):
            ours.refuse_unwritable(folder, size=4096)
        assert ours.names("/etc") == ["ours"]

    def test_links_in_a_circle_are_refused(self, files: FileStore) -> None:
        """An endless chain of links is an error, as in the kernel."""
        files.write("/etc/a", b"", mode=0o644)
        files.link("/etc/here", "there")
        files.link("/etc/there", "here")
        with pytest.raises(
            HostFileError, match=r"cannot read .*/etc/here: Too many levels of symbolic links"
        ):
            files.read("/etc/here")
        with pytest.raises(
            HostFileError, match=r"cannot write .*/etc/here/a: Too many levels of symbolic links"
        ):
            files.write("/etc/here/a", b"", mode=0o644)

    def test_a_lock_is_seen(self, files: FileStore) -> None:
        """While a lock is held, the file is locked under each of its names; other files are not."""
        for name in ("a", "b"):
            files.write(f"/run/other/{name}", b"", mode=0o644)
        files.link("/run/other/link", "a")
        assert not files.is_locked("/run/other/a")
        with self.locked(files, "/run/other/a"):
            assert files.is_locked("/run/other/a")
            assert files.is_locked("/run/other/link")
            assert not files.is_locked("/run/other/b")
        assert not files.is_locked("/run/other/a")
