"""Nodes with nothing but the package and their own Python: Debian 12 and 13, and Ubuntu 22.04 and
24.04.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.needs import require
from support.systemd_box import SystemdBox
from support.trees import DEB, build_packages, install_package, make_tree

SUITES = [
    pytest.param("bookworm", marks=pytest.mark.slow),
    *(pytest.param(suite, marks=pytest.mark.soak) for suite in ("jammy", "noble", "trixie")),
]
WATCH = "hostrouting-watch.service"
NETWORK = """
ip link add eth0 type veth peer name peer0; ip link set peer0 up
ip addr add 10.224.0.4/16 dev eth0; ip link set eth0 up; ip route add default via 10.224.0.1
"""
OVERLAP = """
ip link add mesh0 type veth peer name peer1; ip link set mesh0 up; ip link set peer1 up
ip route add 172.16.8.0/22 dev mesh0
"""
GATE = """
cat > /etc/systemd/system/kubelet.service <<END
[Service]
Type=exec
ExecStart=/bin/sleep infinity
END
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -sf ../kubelet.service /etc/systemd/system/multi-user.target.wants/
"""


@pytest.fixture(scope="module", params=SUITES)
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Yield a tree in which the package is installed; a machine is a copy of it."""
    require("systemd", "dpkg-deb", "rpmbuild", "debootstrap")
    packages = "python3", "systemd", "systemd-container", "dbus", "iproute2", "nftables", "procps"
    folder = tmp_path_factory.mktemp("node")
    tree = make_tree(request.param, folder / "tree", *packages)
    install_package(tree, build_packages(folder / "packages"))
    yield tree
    shutil.rmtree(tree)


def masks(folder: str, names: list[str]) -> list[str]:
    """Return the units that every machine masks by itself."""
    links = (name for name in names if Path(folder, name).is_symlink())
    return [name for name in links if str(Path(folder, name).readlink()) == "/dev/null"]


def until_watch_repairs(box: SystemdBox) -> None:
    """Wait for the service, take the route away, and wait until it is back."""
    box.until(f"systemctl is-active --quiet {WATCH}")
    assert box.run("pgrep", "--full", "/usr/bin/hostrouting watch").stdout.split()
    box.run("ip", "route", "delete", "172.20.0.0/16")
    box.until("[[ $(ip route show 172.20.0.0/16) == *10.224.0.1* ]]")


def test_a_node_with_nothing_but_the_package(node: Path, tmp_path: Path) -> None:
    """A node with nothing but the package applies a config, boots held and starting, watches, and
    resets, by the distribution's Python alone.
    """
    config = {
        "staticRoutes": {"enabled": True, "routes": [{"destination": "172.20.0.0/16"}]},
        "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"},
        "watch": {"enabled": True, "mode": "service"},
        "gates": ["kubelet.service"],
    }
    (node / "config.json").write_text(json.dumps(config))
    image = tmp_path / "image"
    with SystemdBox(tree=node, prepare=GATE + NETWORK) as box:
        box.run("hostrouting", "apply", "/config.json")
        assert "via 10.224.0.1" in box.run("ip", "route", "show", "172.20.0.0/16").stdout
        until_watch_repairs(box)
        # The machine's disk is what it has in these folders; its systemd/ is all from this run.
        for folder in "etc/aks-flex-node", "etc/systemd/system":
            shutil.copytree(Path(box.root, folder), image / folder, symlinks=True, ignore=masks)
    with SystemdBox(tree=node, image=image, prepare=NETWORK + OVERLAP) as box:
        assert box.run("systemctl", "is-active", "kubelet.service", check=False).returncode != 0
        assert Path(box.root, "run/aks-flex-node/route-overlap.detected").exists()
    with SystemdBox(tree=node, image=image, prepare=NETWORK) as box:
        box.run("systemctl", "is-active", "kubelet.service")
        assert "via 10.224.0.1" in box.run("ip", "route", "show", "172.20.0.0/16").stdout
        until_watch_repairs(box)
        box.run("hostrouting", "check", "/config.json")
        box.run("hostrouting", "reset")
        assert box.run("ip", "route", "show", "172.20.0.0/16").stdout == ""
        assert box.run("systemctl", "is-active", WATCH, check=False).returncode != 0
        box.run("systemctl", "is-active", "kubelet.service")
        assert not Path(box.root, "etc/aks-flex-node/hostrouting.json").exists()


def test_a_watch_that_runs_gets_the_next_package(node: Path) -> None:
    """A running watch outlives the removal of the package; an installation restarts it, without a
    wait for another run.

    That it needs no file of the package then is test_cli.py::test_a_watch_has_loaded_all.
    """
    config = {
        "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"]},
        "watch": {"enabled": True, "mode": "service"},
    }
    (node / "config.json").write_text(json.dumps(config))
    with SystemdBox(tree=node, prepare=NETWORK) as box:
        box.run("hostrouting", "apply", "/config.json")
        # Waits until it is ready.
        box.run("systemctl", "start", WATCH)
        first = box.run("systemctl", "show", "--property=MainPID", WATCH).stdout
        box.run("dpkg", "--remove", "hostrouting")
        assert box.run("systemctl", "show", "--property=MainPID", WATCH).stdout == first
        box.run("timeout", "60", "flock", "/run/hostrouting.lock", "dpkg", "--install", f"/{DEB}")
        # Waits for the restart.
        box.run("systemctl", "start", WATCH)
        assert box.run("systemctl", "show", "--property=MainPID", WATCH).stdout != first


def test_an_installation_on_a_node_without_a_watch_has_nothing_to_restart(node: Path) -> None:
    """The scripts of the package print nothing on stderr on a node without a watch, at the first
    installation or at an upgrade.
    """
    with SystemdBox(tree=node) as box:
        again = box.run("dpkg", "--install", f"/{DEB}")
        box.run("dpkg", "--remove", "hostrouting")
        first = box.run("dpkg", "--install", f"/{DEB}")
        assert again.stderr == ""
        assert first.stderr == ""
