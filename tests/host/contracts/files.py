"""The promises of `FileStore`, as tests."""

import errno
from contextlib import AbstractContextManager
from typing import Any

import pytest

from hostrouting.exceptions import HostFileError
from hostrouting.host import FileStore

WHY = '''Read-only file system; run: mount -o remount,rw "$(findmnt -n -o TARGET -T /)"'''
#: Calls on a disk that is read-only and has the file /a, with the result or the error of each.
READ_ONLY: list[tuple[str, dict[str, Any], str]] = [
    (
        "remove",
        {"path": "/a"},
        f"cannot remove /a: {WHY}",
    ),
    ("remove", {"path": "/absent"}, "False"),
    (
        "write",
        {"path": "/a", "content": b"x", "mode": 0o644},
        f"cannot write /a: {WHY}",
    ),
    ("write", {"path": "/a", "content": b"", "mode": 0o644}, "False"),
    ("remove_directory_if_empty", {"path": "/absent"}, "False"),
]


class FileStoreContract:
    """The promises of `FileStore`. The fixture `files` of a subclass is a fresh tree, empty or with
    folders only.
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
    def own_files(self, files: FileStore) -> FileStore:
        """The same files, with `/etc/own/a`."""
        files.write("/etc/own/a", b"one\n", mode=0o644)
        return files

    @pytest.mark.parametrize("content", [b"\0one\n\xff", b""])
    def test_what_was_written_is_read(self, files: FileStore, content: bytes) -> None:
        """A written file, even an empty one, reads back byte for byte, has its mode, and counts as
        a change.
        """
        assert files.write("/etc/own/a", content, mode=0o600) is True
        assert (files.read("/etc/own/a"), files.mode("/etc/own/a")) == (content, 0o600)
        assert files.exists("/etc/own/a")

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
        self, own_files: FileStore, content: bytes, mode: int, rewritten: bool
    ) -> None:
        """A write of the present content and mode changes nothing; if only the mode differs, the
        mode alone is set and the content is not written again.
        """
        before = self.stamp(own_files, "/etc/own/a")
        assert own_files.write("/etc/own/a", content, mode=mode) is (rewritten or mode != 0o644)
        assert (own_files.read("/etc/own/a"), own_files.mode("/etc/own/a")) == (content, mode)
        assert (self.stamp(own_files, "/etc/own/a") != before) is rewritten

    def test_nothing_reads_as_none(self, own_files: FileStore) -> None:
        """A path that is absent, or whose parent is absent or a file, is read as nothing, without
        an error.
        """
        for path in ("/etc/own/b", "/etc/foreign/b", "/etc/own/a/b"):
            assert own_files.read(path) is None
            assert not own_files.exists(path)
            assert own_files.read_link(path) is None
            assert own_files.names(path) == []
            assert own_files.remove(path) is False
            assert own_files.remove_directory_if_empty(path) is False
            assert not own_files.is_locked(path)

    def test_names_are_sorted_and_those_of_one_folder(self, files: FileStore) -> None:
        """A folder lists its own files and folders in order, without the entries below them."""
        for name in ("c", "a", "b/deeper"):
            files.write(f"/etc/own/{name}", b"", mode=0o644)
        assert files.names("/etc/own") == ["a", "b", "c"]

    def test_a_removed_file_is_gone(self, own_files: FileStore) -> None:
        """The first removal of a file removes the file, the second finds nothing."""
        assert own_files.remove("/etc/own/a") is True
        assert not own_files.exists("/etc/own/a")
        assert own_files.remove("/etc/own/a") is False

    def test_only_an_empty_folder_goes(self, own_files: FileStore) -> None:
        """The removal of an empty folder removes the folder; one with a file stays."""
        assert own_files.remove_directory_if_empty("/etc/own") is False
        own_files.remove("/etc/own/a")
        assert own_files.exists("/etc/own")
        assert own_files.remove_directory_if_empty("/etc/own") is True
        assert not own_files.exists("/etc/own")

    def test_a_folder_is_no_file(self, own_files: FileStore) -> None:
        """Reading, writing, removing or linking a folder as if it were a file is refused with the
        reason.
        """
        with pytest.raises(HostFileError, match=r"cannot read .*/etc/own: Is a directory"):
            own_files.read("/etc/own")
        with pytest.raises(HostFileError, match=r"cannot write .*/etc/own: Is a directory"):
            own_files.write("/etc/own", b"", mode=0o644)
        with pytest.raises(HostFileError, match=r"cannot remove .*/etc/own: Is a directory"):
            own_files.remove("/etc/own")
        with pytest.raises(HostFileError, match=r"cannot link .*/etc/own: Is a directory"):
            own_files.link("/etc/own", "/srv/own")
        assert own_files.names("/etc/own") == ["a"]

    def test_a_file_is_no_folder(self, own_files: FileStore) -> None:
        """Writing below a file is refused, and the file stays as it is."""
        message = r"cannot write .*/etc/own/a/b: Not a directory"
        with pytest.raises(HostFileError, match=message) as caught:
            own_files.write("/etc/own/a/b", b"", mode=0o644)
        assert caught.value.errno == errno.ENOTDIR
        assert own_files.read("/etc/own/a") == b"one\n"

    def test_a_link_to_nothing_exists(self, own_files: FileStore) -> None:
        """A link to an absent file reads as absent, but the name of the link is taken."""
        own_files.link("/etc/own/broken", "/nowhere")
        assert own_files.read("/etc/own/broken") is None
        assert own_files.exists("/etc/own/broken")
        assert own_files.names("/etc/own") == ["a", "broken"]

    def test_writing_replaces_a_link(self, own_files: FileStore) -> None:
        """A written file takes the place of a link, even if the target has the same bytes; the
        target stays as it is.
        """
        own_files.link("/etc/own/link", "a")
        assert own_files.write("/etc/own/link", b"one\n", mode=0o644) is True
        assert own_files.read_link("/etc/own/link") is None
        assert own_files.write("/etc/own/link", b"two\n", mode=0o644) is True
        assert own_files.read("/etc/own/a") == b"one\n"

    def test_removing_takes_the_link(self, own_files: FileStore) -> None:
        """Removing a link keeps its target."""
        own_files.link("/etc/own/link", "a")
        assert own_files.remove("/etc/own/link") is True
        assert not own_files.exists("/etc/own/link")
        assert own_files.read("/etc/own/a") == b"one\n"

    @pytest.mark.parametrize(
        "target", ["/srv/own", "../srv/own", "../../../../../srv/own", "/../srv/./own/"]
    )
    def test_links_to_folders_lead_on_inside_the_root(self, files: FileStore, target: str) -> None:
        """A link to a folder with an absolute target, or one that climbs above the root, is
        resolved inside the root.
        """
        files.write("/srv/own/a", b"one\n", mode=0o644)
        files.write("/etc/other", b"", mode=0o644)
        files.link("/etc/own", target)
        assert files.read("/etc/own/a") == b"one\n"
        assert files.names("/etc/own") == ["a"]
        assert files.write("/etc/own/b", b"two\n", mode=0o644) is True
        assert files.read("/srv/own/b") == b"two\n"
        assert files.remove("/etc/own/a") is True
        assert files.names("/srv/own") == ["b"]

    @pytest.mark.parametrize("target", ["a", "/etc/own/a"])
    def test_a_link_is_made(self, own_files: FileStore, target: str) -> None:
        """A link has the given target text and reads as its target's content; making the same link
        again changes nothing.
        """
        assert own_files.link("/etc/own/link", target) is True
        assert own_files.link("/etc/own/link", target) is False
        assert own_files.read("/etc/own/link") == b"one\n"
        assert [own_files.read_link(f"/etc/own/{name}") for name in ("link", "a")] == [target, None]

    def test_a_link_replaces_a_link_and_a_file(self, own_files: FileStore) -> None:
        """A new link replaces a link or a file, creates missing folders, and leaves the earlier
        target as it is.
        """
        assert own_files.link("/etc/other/folder/link", "/nowhere") is True
        assert own_files.link("/etc/other/folder/link", "/etc/own/a") is True
        assert own_files.read("/etc/other/folder/link") == b"one\n"
        assert own_files.link("/etc/own/a", "/nowhere") is True
        assert own_files.read_link("/etc/own/a") == "/nowhere"

    def test_modes_are_those_of_files(self, files: FileStore) -> None:
        """A link has the mode of its file; a folder, a broken link and an absent path have none."""
        files.write("/etc/own/a", b"", mode=0o750)
        files.link("/etc/own/link", "a")
        files.link("/etc/own/broken", "b")
        assert [files.mode(f"/etc/own/{name}") for name in ("a", "link", "broken", "c")] == [
            0o750,
            0o750,
            None,
            None,
        ]
        assert files.mode("/etc/own") is None

    def test_modes_of_folders(self, own_files: FileStore) -> None:
        """The mode of a folder is read and changed through a link as well; a file and an absent
        path have no folder mode.
        """
        own_files.link("/etc/link", "/etc/own")
        paths = "/etc/own", "/etc/own/", "/etc/link", "/etc/own/a", "/etc/absent"
        assert [own_files.folder_mode(path) for path in paths] == [0o755, 0o755, 0o755, None, None]
        own_files.set_folder_mode("/etc/link", 0o700)
        assert own_files.folder_mode("/etc/own") == 0o700
        own_files.set_folder_mode("/etc/own/", 0o755)
        assert (own_files.folder_mode("/etc/own"), own_files.mode("/etc/own/a")) == (0o755, 0o644)
        for path, reason in (
            ("/etc/absent", "No such file or directory"),
            ("/etc/own/a", "Not a directory"),
        ):
            with pytest.raises(
                HostFileError, match=rf"cannot change the mode of .*{path}: {reason}"
            ):
                own_files.set_folder_mode(path, 0o755)

    def test_a_limit_ends_a_read(self, files: FileStore) -> None:
        """A read with a limit returns at most so many bytes; a limit of the file's size or more
        returns the whole file.
        """
        files.write("/etc/own/a", b"\0one\n", mode=0o644)
        read = [files.read("/etc/own/a", limit=limit) for limit in (0, 3, 5, 6)]
        assert read == [b"", b"\0on", b"\0one\n", b"\0one\n"]
        assert files.read("/etc/own/b", limit=3) is None

    def test_a_time_is_of_the_last_change(self, files: FileStore) -> None:
        """A link has the time of its file; a folder, a broken link and an absent path have none."""
        files.write("/etc/own/a", b"one\n", mode=0o644)
        files.link("/etc/own/link", "a")
        files.link("/etc/own/broken", "b")
        self.touch(files, "/etc/own/a", 1700000000.5)
        paths = ("/etc/own/a", "/etc/own/link", "/etc/own/broken", "/etc/own/c", "/etc/own")
        assert list(map(files.modified, paths)) == [1700000000.5, 1700000000.5, None, None, None]
        files.write("/etc/own/a", b"one\n", mode=0o600)
        assert files.modified("/etc/own/a") == 1700000000.5
        files.write("/etc/own/a", b"two\n", mode=0o600)
        assert files.modified("/etc/own/a") != 1700000000.5

    @pytest.mark.parametrize("mode", [0o1777, 0o775, 0o757])
    def test_a_folder_that_others_may_write_to_exposes_all_below(
        self, files: FileStore, mode: int
    ) -> None:
        """A folder that other users may write to exposes itself and all paths below it, sticky or
        not, with a remedy; a folder next to it is not exposed.
        """
        files.write("/srv/own/deep/a", b"", mode=0o644)
        files.write("/srv/foreign/a", b"", mode=0o644)
        self.open_up(files, "/srv/own", mode)
        remedy = "use another folder" if mode > 0o777 else "run: chown "
        for path in ("/srv/own", "/srv/own/b", "/srv/own/deep/a"):
            reason = str(files.exposed(path))
            assert "/srv/own (owner " in reason
            assert f", mode {mode:04o}); {remedy}" in reason
        assert files.exposed("/srv/foreign/a") is None

    def test_another_users_file_is_exposed_until_it_is_written_anew(self, files: FileStore) -> None:
        """Another user's file is exposed until it is written again, and so belongs to its writer."""
        files.write("/srv/own/a", b"one\n", mode=0o644)
        self.give_away(files, "/srv/own/a", 65534)
        assert "/srv/own/a (owner 65534, mode 0644); run: " in str(files.exposed("/srv/own/a"))
        files.write("/srv/own/a", b"two\n", mode=0o644)
        assert files.exposed("/srv/own/a") is None

    def test_another_users_folder_exposes_all_below(self, files: FileStore) -> None:
        """Another user's folder exposes all paths below it, since its owner may replace them."""
        files.write("/srv/own/deep/a", b"", mode=0o644)
        self.give_away(files, "/srv/own", 65534)
        assert "/srv/own (owner 65534, mode 0755); run: " in str(files.exposed("/srv/own/deep/a"))

    @pytest.mark.parametrize("target", ["/srv/open/deep", "../srv/open/deep", "/srv/between"])
    def test_links_are_followed_to_what_is_exposed(self, files: FileStore, target: str) -> None:
        """A path over links, or links to links, is exposed by every folder on the way to the
        target.
        """
        files.write("/srv/open/deep/a", b"", mode=0o644)
        files.write("/etc/own", b"", mode=0o644)
        files.link("/srv/between", "open/deep")
        files.link("/etc/link", target)
        assert files.exposed("/etc/link/a") is None
        self.open_up(files, "/srv/open", 0o777)
        reason = str(files.exposed("/etc/link/a"))
        assert "/srv/open (owner " in reason
        assert ", mode 0777); run: " in reason

    def test_where_there_is_room_nothing_is_refused(self, own_files: FileStore) -> None:
        """A check for room in a writable folder passes and creates nothing, even if the folder is
        absent.
        """
        for folder in ("/etc/own", "/etc/foreign/deep", "/"):
            own_files.refuse_unwritable(folder, size=4096)
        assert own_files.names("/etc") == ["own"]

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
        """A file is locked under each of its names while another process holds its lock; other
        files are not.
        """
        for name in ("a", "b"):
            files.write(f"/run/other/{name}", b"", mode=0o644)
        files.link("/run/other/link", "a")
        assert not files.is_locked("/run/other/a")
        with self.locked(files, "/run/other/a"):
            assert files.is_locked("/run/other/a")
            assert files.is_locked("/run/other/link")
            assert not files.is_locked("/run/other/b")
            files.remove("/run/other/a")
            assert not files.is_locked("/run/other/a")
