"""What `FileStore` promises, as tests. See `hostrouting.testing.contracts`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hostrouting.exceptions import HostFileError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from hostrouting.host import FileStore

__all__ = ["FileStoreContract"]


class FileStoreContract:
    """What `FileStore` promises. `files` has a tree of its own for every test, empty or with folders only."""

    @pytest.fixture
    def files(self) -> FileStore:
        """The files to be asked."""
        raise NotImplementedError

    def mode(self, files: FileStore, path: str) -> int:
        """The permission bits of a file."""
        raise NotImplementedError

    def stamp(self, files: FileStore, path: str) -> object:
        """Something that differs after every writing of the file's content: its mtime and inode, say."""
        raise NotImplementedError

    def make_link(self, files: FileStore, path: str, target: str) -> None:
        """Make a symbolic link; its folder exists."""
        raise NotImplementedError

    def give_away(self, files: FileStore, path: str, user: int) -> None:
        """Let another user own what bears this name; skip the test where that cannot be done."""
        raise NotImplementedError

    def open_up(self, files: FileStore, folder: str, mode: int) -> None:
        """Give a folder other permission bits."""
        raise NotImplementedError

    def locked(self, files: FileStore, path: str) -> AbstractContextManager[None]:
        """Let somebody hold a lock on an existing file while the block runs."""
        raise NotImplementedError

    def test_what_was_written_is_read(self, files: FileStore) -> None:
        """A written file reads back byte for byte, has its mode, and that was a change."""
        assert files.write("/etc/ours/a", b"\0one\n\xff", mode=0o644) is True
        assert files.read("/etc/ours/a") == b"\0one\n\xff"
        assert self.mode(files, "/etc/ours/a") == 0o644

    def test_an_empty_file_is_a_file(self, files: FileStore) -> None:
        """No content is content, too."""
        assert files.write("/etc/ours/a", b"", mode=0o600) is True
        assert files.read("/etc/ours/a") == b""
        assert files.exists("/etc/ours/a")

    def test_the_same_again_is_no_change(self, files: FileStore) -> None:
        """A file that is right already is not touched."""
        files.write("/etc/ours/a", b"one\n", mode=0o755)
        before = self.stamp(files, "/etc/ours/a")
        assert files.write("/etc/ours/a", b"one\n", mode=0o755) is False
        assert self.stamp(files, "/etc/ours/a") == before

    def test_other_content_is_a_change(self, files: FileStore) -> None:
        """A file of the same length but with other bytes is replaced, mode and all."""
        files.write("/etc/ours/a", b"one\n", mode=0o644)
        before = self.stamp(files, "/etc/ours/a")
        assert files.write("/etc/ours/a", b"two\n", mode=0o755) is True
        assert files.read("/etc/ours/a") == b"two\n"
        assert self.mode(files, "/etc/ours/a") == 0o755
        assert self.stamp(files, "/etc/ours/a") != before

    def test_another_mode_alone_is_a_change_of_the_mode_alone(self, files: FileStore) -> None:
        """Right bytes with the wrong mode: the mode is set, the content is not written again."""
        files.write("/etc/ours/a", b"one\n", mode=0o644)
        before = self.stamp(files, "/etc/ours/a")
        assert files.write("/etc/ours/a", b"one\n", mode=0o755) is True
        assert self.mode(files, "/etc/ours/a") == 0o755
        assert self.stamp(files, "/etc/ours/a") == before

    def test_nothing_reads_as_none(self, files: FileStore) -> None:
        """What is absent, or lies below what is absent or no folder, is an answer and no error."""
        files.write("/etc/ours/a", b"", mode=0o644)
        for path in ("/etc/ours/b", "/etc/theirs/b", "/etc/ours/a/b"):
            assert files.read(path) is None
            assert not files.exists(path)
            assert files.read_link(path) is None
            assert files.names(path) == []
            assert files.remove(path) is False
            assert files.remove_directory_if_empty(path) is False

    def test_names_are_sorted_and_those_of_one_folder(self, files: FileStore) -> None:
        """A folder lists its own entries, folders among them, and not what lies deeper."""
        for name in ("c", "a", "b/deeper"):
            files.write(f"/etc/ours/{name}", b"", mode=0o644)
        assert files.names("/etc/ours") == ["a", "b", "c"]

    def test_a_removed_file_is_gone(self, files: FileStore) -> None:
        """The first removal takes it away, the second finds nothing."""
        files.write("/etc/ours/a", b"one\n", mode=0o644)
        assert files.remove("/etc/ours/a") is True
        assert not files.exists("/etc/ours/a")
        assert files.remove("/etc/ours/a") is False

    def test_only_an_empty_folder_goes(self, files: FileStore) -> None:
        """A folder with something in it stays, an empty one goes."""
        files.write("/etc/ours/a", b"", mode=0o644)
        assert files.remove_directory_if_empty("/etc/ours") is False
        files.remove("/etc/ours/a")
        assert files.exists("/etc/ours")
        assert files.remove_directory_if_empty("/etc/ours") is True
        assert not files.exists("/etc/ours")

    def test_a_folder_is_no_file(self, files: FileStore) -> None:
        """Reading, replacing or removing a folder as if it were a file is refused, and the reason given."""
        files.write("/etc/ours/a", b"", mode=0o644)
        with pytest.raises(HostFileError, match=r"cannot read .*/etc/ours: Is a directory"):
            files.read("/etc/ours")
        with pytest.raises(HostFileError, match=r"cannot write .*/etc/ours: Is a directory"):
            files.write("/etc/ours", b"", mode=0o644)
        with pytest.raises(HostFileError, match=r"cannot remove .*/etc/ours: Is a directory"):
            files.remove("/etc/ours")
        assert files.names("/etc/ours") == ["a"]

    def test_a_file_is_no_folder(self, files: FileStore) -> None:
        """Writing below a file is refused."""
        files.write("/etc/ours", b"one\n", mode=0o644)
        with pytest.raises(HostFileError, match=r"cannot write .*/etc/ours/a: Not a directory"):
            files.write("/etc/ours/a", b"", mode=0o644)
        assert files.read("/etc/ours") == b"one\n"

    def test_reading_follows_links(self, files: FileStore) -> None:
        """A link reads as its target, and says where it leads."""
        files.write("/etc/ours/a", b"one\n", mode=0o644)
        self.make_link(files, "/etc/ours/near", "a")
        self.make_link(files, "/etc/ours/far", "/etc/ours/a")
        for link, target in (("/etc/ours/near", "a"), ("/etc/ours/far", "/etc/ours/a")):
            assert files.read(link) == b"one\n"
            assert files.read_link(link) == target
        assert files.read_link("/etc/ours/a") is None

    def test_a_link_to_nothing_exists(self, files: FileStore) -> None:
        """A link to nothing reads as nothing, but its name is taken."""
        files.write("/etc/ours/a", b"", mode=0o644)
        self.make_link(files, "/etc/ours/broken", "/nowhere")
        assert files.read("/etc/ours/broken") is None
        assert files.exists("/etc/ours/broken")
        assert files.names("/etc/ours") == ["a", "broken"]

    def test_writing_replaces_a_link(self, files: FileStore) -> None:
        """A file takes the link's place, even if its target has the same bytes; the target stays as it is."""
        files.write("/etc/ours/a", b"one\n", mode=0o644)
        self.make_link(files, "/etc/ours/link", "a")
        assert files.write("/etc/ours/link", b"one\n", mode=0o644) is True
        assert files.read_link("/etc/ours/link") is None
        assert files.write("/etc/ours/link", b"two\n", mode=0o644) is True
        assert files.read("/etc/ours/a") == b"one\n"

    def test_removing_takes_the_link(self, files: FileStore) -> None:
        """A link is removed, not what it leads to."""
        files.write("/etc/ours/a", b"one\n", mode=0o644)
        self.make_link(files, "/etc/ours/link", "a")
        assert files.remove("/etc/ours/link") is True
        assert not files.exists("/etc/ours/link")
        assert files.read("/etc/ours/a") == b"one\n"

    @pytest.mark.parametrize("target", ["/srv/ours", "../srv/ours", "../../../../../srv/ours", "/../srv/./ours/"])
    def test_links_to_folders_lead_on_inside_the_root(self, files: FileStore, target: str) -> None:
        """An absolute link, and one that climbs too high, start at the root of these files."""
        files.write("/srv/ours/a", b"one\n", mode=0o644)
        files.write("/etc/other", b"", mode=0o644)
        self.make_link(files, "/etc/ours", target)
        assert files.read("/etc/ours/a") == b"one\n"
        assert files.names("/etc/ours") == ["a"]
        assert files.write("/etc/ours/b", b"two\n", mode=0o644) is True
        assert files.read("/srv/ours/b") == b"two\n"
        assert files.remove("/etc/ours/a") is True
        assert files.names("/srv/ours") == ["b"]

    def test_a_link_is_made(self, files: FileStore) -> None:
        """It says what it was told to, is no change the second time, and leads there."""
        files.write("/etc/ours/new/a", b"one\n", mode=0o644)
        assert files.link("/etc/ours/now", "new") is True
        assert files.link("/etc/ours/now", "new") is False
        assert files.read_link("/etc/ours/now") == "new"
        assert files.read("/etc/ours/now/a") == b"one\n"

    def test_a_link_replaces_a_link_and_a_file(self, files: FileStore) -> None:
        """The earlier targets stay as they are, and missing folders are made."""
        files.write("/etc/ours/a", b"one\n", mode=0o644)
        assert files.link("/etc/other/folder/link", "/nowhere") is True
        assert files.link("/etc/other/folder/link", "/etc/ours/a") is True
        assert files.read("/etc/other/folder/link") == b"one\n"
        assert files.link("/etc/ours/a", "/nowhere") is True
        assert files.read_link("/etc/ours/a") == "/nowhere"

    def test_a_folder_does_not_become_a_link(self, files: FileStore) -> None:
        """What is in it would be lost."""
        files.write("/etc/ours/a", b"", mode=0o644)
        with pytest.raises(HostFileError, match=r"cannot link .*/etc/ours: Is a directory"):
            files.link("/etc/ours", "/srv/ours")
        assert files.names("/etc/ours") == ["a"]

    def test_modes_are_those_of_files(self, files: FileStore) -> None:
        """A link has the mode of its file; a folder, a link to nothing and nothing have none."""
        files.write("/etc/ours/a", b"", mode=0o750)
        files.link("/etc/ours/link", "a")
        files.link("/etc/ours/broken", "b")
        assert [files.mode(f"/etc/ours/{name}") for name in ("a", "link", "broken", "c")] == [0o750, 0o750, None, None]
        assert files.mode("/etc/ours") is None

    def test_an_owner_is_of_the_name_itself(self, files: FileStore) -> None:
        """A link has an owner of its own, a folder has one, and nothing has none; what is written is the writer's."""
        files.write("/etc/ours/a", b"one\n", mode=0o644)
        writer = files.owner("/etc/ours/a")
        files.link("/etc/ours/link", "a")
        self.give_away(files, "/etc/ours/a", 65534)
        assert [files.owner(f"/etc/ours{name}") for name in ("/a", "/link", "", "/b")] == [65534, writer, writer, None]
        files.write("/etc/ours/a", b"two\n", mode=0o644)
        self.give_away(files, "/etc/ours/link", 65534)
        assert [files.owner("/etc/ours/a"), files.owner("/etc/ours/link")] == [writer, 65534]

    def test_what_only_root_can_change_is_not_exposed(self, files: FileStore) -> None:
        """Folders of mode 0755 and less on the way; where the way ends, there is nothing to be changed."""
        files.write("/srv/ours/deep/a", b"", mode=0o644)
        for path in ("/srv/ours/deep/a", "/srv/ours", "/srv/ours/b/c/d", "/srv/ours/deep/a/b"):
            assert files.exposed(path) is None

    @pytest.mark.parametrize("mode", [0o1777, 0o775, 0o757])
    def test_a_folder_that_others_may_write_to_exposes_all_below(self, files: FileStore, mode: int) -> None:
        """What is in it and what is deeper, sticky or not; what lies beside it is not exposed."""
        files.write("/srv/ours/deep/a", b"", mode=0o644)
        files.write("/srv/theirs/a", b"", mode=0o644)
        self.open_up(files, "/srv/ours", mode)
        for path in ("/srv/ours", "/srv/ours/b", "/srv/ours/deep/a"):
            assert str(files.exposed(path)).endswith(f"/srv/ours (mode {mode:04o})")
        assert files.exposed("/srv/theirs/a") is None

    def test_another_users_folder_exposes_all_below(self, files: FileStore) -> None:
        """Its owner may put anything in the place of what is there."""
        files.write("/srv/ours/deep/a", b"", mode=0o644)
        self.give_away(files, "/srv/ours", 65534)
        assert str(files.exposed("/srv/ours/deep/a")).endswith("/srv/ours belongs to the user 65534")

    @pytest.mark.parametrize("target", ["/srv/open/deep", "../srv/open/deep", "/srv/between"])
    def test_links_are_followed_to_what_is_exposed(self, files: FileStore, target: str) -> None:
        """Every folder on the way counts, also of links to links."""
        files.write("/srv/open/deep/a", b"", mode=0o644)
        files.write("/etc/ours", b"", mode=0o644)
        files.link("/srv/between", "open/deep")
        files.link("/etc/link", target)
        assert files.exposed("/etc/link/a") is None
        self.open_up(files, "/srv/open", 0o777)
        assert str(files.exposed("/etc/link/a")).endswith("/srv/open (mode 0777)")

    def test_a_name_is_changed(self, files: FileStore) -> None:
        """Files, links and whole folders keep what they are; what is absent is an answer."""
        files.write("/etc/ours/a/b", b"one\n", mode=0o640)
        files.link("/etc/ours/link", "/nowhere")
        assert files.rename("/etc/ours/a", "c") is True
        assert files.rename("/etc/ours/link", "other") is True
        assert files.rename("/etc/ours/a", "d") is False
        assert files.rename("/etc/theirs/a", "d") is False
        assert files.names("/etc/ours") == ["c", "other"]
        assert (files.read("/etc/ours/c/b"), files.mode("/etc/ours/c/b")) == (b"one\n", 0o640)
        assert files.read_link("/etc/ours/other") == "/nowhere"

    def test_a_name_that_is_taken_is_refused(self, files: FileStore) -> None:
        """Neither of the two is changed."""
        files.write("/etc/ours/a", b"one\n", mode=0o644)
        files.write("/etc/ours/b", b"two\n", mode=0o644)
        with pytest.raises(HostFileError, match=r"cannot give the name 'b' to .*/etc/ours/a: File exists"):
            files.rename("/etc/ours/a", "b")
        assert (files.read("/etc/ours/a"), files.read("/etc/ours/b")) == (b"one\n", b"two\n")

    def test_where_there_is_room_nothing_is_refused(self, files: FileStore) -> None:
        """Nor is anything made, be the folder there or not."""
        files.write("/etc/ours/a", b"", mode=0o644)
        for folder in ("/etc/ours", "/etc/theirs/deep", "/"):
            files.refuse_unwritable(folder, size=4096)
        assert files.names("/etc") == ["ours"]

    def test_links_in_a_circle_are_refused(self, files: FileStore) -> None:
        """A way that never ends is an error, as in the kernel."""
        files.write("/etc/a", b"", mode=0o644)
        self.make_link(files, "/etc/here", "there")
        self.make_link(files, "/etc/there", "here")
        with pytest.raises(HostFileError, match=r"cannot read .*/etc/here: Too many levels of symbolic links"):
            files.read("/etc/here")
        with pytest.raises(HostFileError, match=r"cannot write .*/etc/here/a: Too many levels of symbolic links"):
            files.write("/etc/here/a", b"", mode=0o644)

    def test_a_lock_is_seen(self, files: FileStore) -> None:
        """While somebody holds a lock on a file it is locked, by whatever name it is reached; others are not."""
        for name in ("a", "b"):
            files.write(f"/run/other/{name}", b"", mode=0o644)
        self.make_link(files, "/run/other/link", "a")
        assert not files.is_locked("/run/other/a")
        with self.locked(files, "/run/other/a"):
            assert files.is_locked("/run/other/a")
            assert files.is_locked("/run/other/link")
            assert not files.is_locked("/run/other/b")
        assert not files.is_locked("/run/other/a")

    def test_what_is_absent_is_not_locked(self, files: FileStore) -> None:
        """No file, no folder, no lock."""
        assert not files.is_locked("/run/other/a")
