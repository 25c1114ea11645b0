import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from hostrouting.exceptions import BackendError, HostFileError
from hostrouting.host import Host, Route, RouteChange
from hostrouting.host.files.lock import FileLock
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.systemd.systemctl import OfflineUnits, Systemctl
from phases import Context


class TestLive:
    def test_it_is_this_machine(self) -> None:
        """The live host has this machine's root, systemd and kernel."""
        from hostrouting.host.netlink import NetlinkBackend

        host = Host.live()
        assert host.is_live
        assert isinstance(host.routes, NetlinkBackend)
        assert repr(host.services) == repr(Systemctl())
        assert repr(host.files) == repr(RootedFiles("/"))
        assert repr(host.lock) == repr(FileLock(root="/"))

    def test_other_adapters_are_made_on_first_use(self) -> None:
        """A part that a run does not need is not imported; each can be made."""
        code = "import sys; from hostrouting.host import Host; Host.live(); print(*sys.modules)"
        shown = subprocess.run(
            [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
        ).stdout
        parts = "netlink.link_layer", "netlink.events", "packets.nft", "packets.ebtables", "imds"
        assert {f"hostrouting.host.{part}" for part in parts}.isdisjoint(shown.split())
        host = Host.live()
        methods = (
            host.link_layer.neighbours,
            host.events.listen,
            host.nftables.load,
            host.ebtables.read,
            host.metadata.network_interfaces,
        )
        assert [method.__module__ for method in methods] == [
            f"hostrouting.host.{part}" for part in parts
        ]


class TestOffline:
    def test_everything_is_below_the_root(self, tmp_path: Path) -> None:
        """Files, units and lock are those of the image."""
        host = Host.offline(tmp_path)
        assert not host.is_live
        assert repr(host.services) == repr(OfflineUnits(str(tmp_path)))
        assert host.files.write("/etc/ours/a", b"one\n", mode=0o644)
        with host.lock.hold(Context()):
            assert (tmp_path / "run/hostrouting.lock").exists()
        assert (tmp_path / "etc/ours/a").read_bytes() == b"one\n"

    def test_a_relative_root_stays_where_it_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A later change of the working directory does not move the image."""
        (tmp_path / "image").mkdir()
        monkeypatch.chdir(tmp_path)
        host = Host.offline("image")
        monkeypatch.chdir("/")
        host.files.write("/a", b"", mode=0o644)
        assert (tmp_path / "image/a").exists()

    def test_there_must_be_an_image(self, tmp_path: Path) -> None:
        """A root that is absent or not a folder is refused before anything is created."""
        (tmp_path / "file").touch()
        for name in ("typo", "file"):
            with pytest.raises(HostFileError) as caught:
                Host.offline(tmp_path / name)
            assert (
                str(caught.value)
                == f"cannot prepare the image {tmp_path / name}: there is no such folder"
            )

    def test_it_has_no_kernel_to_ask(self, tmp_path: Path) -> None:
        """An offline host refuses every lookup and reading of routes, as no answer would be true."""
        routes = Host.offline(tmp_path).routes
        change = RouteChange.add(Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0"))
        for ask in (
            routes.links,
            routes.routes,
            routes.rules,
            lambda: routes.lookup([0]),
            lambda: routes.apply([change]),
        ):
            with pytest.raises(BackendError) as caught:
                ask()
            assert str(caught.value) == (
                "an offline image has no kernel to ask for routes or to change; use Host.live() on a machine"
            )


def test_a_host_is_a_value(tmp_path: Path) -> None:
    """A part can be exchanged in a copy, not in place."""
    host = Host.offline(tmp_path)
    other = attrs.evolve(host, files=RootedFiles("/"))
    assert other.lock is host.lock
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        host.files = RootedFiles("/")  # type: ignore[misc]  # that it is refused is the point


def test_the_doorway_is_light() -> None:
    """Importing the package loads no adapter, no subprocess and no pyroute2."""
    code = "import sys, hostrouting.host; print(*sorted(sys.modules))"
    shown = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    ).stdout
    names = ("files.store", "files.lock", "systemd.systemctl", "netlink", "packets.nft", "imds")
    adapters = {f"hostrouting.host.{name}" for name in names}
    # attrs imports platform, which imports subprocess before Python 3.11.
    heavy = {"pyroute2"} if sys.version_info < (3, 11) else {"pyroute2", "subprocess"}
    assert (adapters | heavy).isdisjoint(shown.split())
