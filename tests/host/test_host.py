"""The host, live and of an image: its parts, and the modules that it imports for them."""

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from hostrouting import Host
from hostrouting.exceptions import BackendError, HostFileError
from hostrouting.host.files.lock import FileLock
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.systemd.systemctl import OfflineUnits, Systemctl
from phases import Context

ON_FIRST_USE = [
    *("hostrouting.host.netlink.link_layer", "hostrouting.host.netlink.events"),
    *("hostrouting.host.packets.nft", "hostrouting.host.packets.ebtables", "hostrouting.host.imds"),
]
ADAPTERS = [
    *("hostrouting.host.files.store", "hostrouting.host.files.lock", "hostrouting.host.netlink"),
    *("hostrouting.host.systemd.systemctl", "subprocess", "pyroute2"),
]


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import hostrouting.host", [*ON_FIRST_USE, *ADAPTERS]),
        ("from hostrouting.host import Host; Host.live()", ON_FIRST_USE),
        (
            "from hostrouting.host.netlink import NetlinkBackend as B; B().routes()",
            ["pyroute2", "asyncio", "ctypes", "subprocess", "ipaddress", "json"],
        ),
        (
            "from hostrouting.host.netlink.link_layer import NetlinkLinkLayer as N; one = N(); one.neighbours(), one.stations('br0'), one.classifiers('lo'), one.newest_address('lo')",
            ["pyroute2", "asyncio", "subprocess", "ipaddress", "json"],
        ),
    ],
)
def test_no_module_is_loaded_before_it_is_needed(code: str, unwanted: list[str]) -> None:
    """A part of the host imports only the modules that it needs, so that a boot is not slowed down
    by others.
    """
    program = (
        f"import attrs, sys; before = {{*sys.modules}}; {code}; print(*{{*sys.modules}} - before)"
    )
    argv = [sys.executable, "-I", "-c", program]
    # `nox -s coverage` would have Python import more.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env=env)
    assert not {*unwanted} & {*done.stdout.split()}


class TestLive:
    def test_it_is_this_machine(self) -> None:
        """The live host has this machine's root, systemd and kernel."""
        from hostrouting.host.netlink import NetlinkBackend

        host = Host.live()
        assert host.is_live
        assert Host.given_or_live(None).is_live
        assert isinstance(host.routes, NetlinkBackend)
        assert isinstance(host.services, Systemctl)
        assert host.services.command == ("systemctl",)
        assert isinstance(host.files, RootedFiles)
        assert host.files.root == "/"
        assert repr(host.lock) == repr(FileLock(root="/"))

    def test_other_adapters_are_made_on_first_use(self) -> None:
        """Each adapter that a live host creates on first use is of its own module, and is made
        once.
        """
        host = Host.live()
        methods = (
            host.link_layer.neighbours,
            host.events.listen,
            host.nftables.load,
            host.ebtables.read,
            host.metadata.network_interfaces,
        )
        assert [method.__module__ for method in methods] == ON_FIRST_USE
        assert methods[0] == host.link_layer.neighbours


class TestOffline:
    def test_everything_is_below_the_root(self, tmp_path: Path) -> None:
        """The files, the units and the lock of an offline host are those below its root."""
        host = Host.offline(tmp_path)
        assert not host.is_live
        assert isinstance(host.services, OfflineUnits)
        assert host.services.root == str(tmp_path)
        assert host.files.write("/etc/own/a", b"one\n", mode=0o644)
        with host.lock.hold(Context()):
            assert (tmp_path / "run/hostrouting.lock").exists()
        assert (tmp_path / "etc/own/a").read_bytes() == b"one\n"

    @pytest.mark.parametrize("root", ["", None, "image", ".", Path("image")])
    def test_a_root_that_is_not_absolute_is_refused(
        self, root: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A root that is empty or relative is refused, since the working directory of a service is
        /.
        """
        (tmp_path / "image").mkdir()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(HostFileError) as caught:
            Host.offline(root)
        assert str(caught.value) == (
            f"cannot prepare the image {root!r}: its path must be absolute, because the working "
            "directory may be /; give one such as /mnt/image"
        )

    def test_there_must_be_an_image(self, tmp_path: Path) -> None:
        """A root that is absent or not a folder is refused before anything is created."""
        (tmp_path / "file").touch()
        for name in "typo", "file":
            with pytest.raises(HostFileError) as caught:
                Host.offline(tmp_path / name)
            assert (
                str(caught.value)
                == f"cannot prepare the image {tmp_path / name}: there is no such folder"
            )

    def test_it_lacks_a_kernel(self, tmp_path: Path) -> None:
        """An offline host refuses a use of its routes, as no answer would be true, and its stand-in
        can be copied and shows the reason.
        """
        routes = Host.offline(tmp_path).routes
        with pytest.raises(BackendError) as caught:
            routes.lookup([0])
        assert str(caught.value) == (
            "an offline image has no kernel whose routes could be read or changed; use Host.live() on a machine"
        )
        assert repr(deepcopy(routes)) == f"<{caught.value}>"
