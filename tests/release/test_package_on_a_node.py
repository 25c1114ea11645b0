"""A node with nothing but the package, and its own Python: of Debian 12 and 13, and of Ubuntu 22.04 and 24.04."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from support.needs import require
from support.systemd_box import SystemdBox
from support.trees import build_packages, install_package, make_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

SUITES: Final = [
    pytest.param("bookworm", marks=pytest.mark.thorough),
    *(pytest.param(suite, marks=pytest.mark.soak) for suite in ("jammy", "noble", "trixie")),
]
WATCH: Final = "hostrouting-watch.service"
NETWORK: Final = """
ip link add eth0 type veth peer name peer0; ip link set peer0 up
ip addr add 10.224.0.4/16 dev eth0; ip link set eth0 up; ip route add default via 10.224.0.1
"""
OVERLAP: Final = """
ip link add mesh0 type veth peer name peer1; ip link set mesh0 up; ip link set peer1 up
ip route add 172.16.8.0/22 dev mesh0
"""
GATE: Final = """
cat > /etc/systemd/system/kubelet.service <<END
[Service]
Type=exec
ExecStart=/bin/sleep infinity
END
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -sf ../kubelet.service /etc/systemd/system/multi-user.target.wants/
"""


@pytest.fixture
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a tree in which the package is installed, and a config lies in /."""
    require("systemd", "dpkg-deb", "rpmbuild", "debootstrap")
    packages = "python3", "systemd", "systemd-container", "dbus", "iproute2", "nftables", "procps"
    tree = make_tree(request.param, tmp_path / "tree", *packages)
    install_package(tree, build_packages(tmp_path / "packages"))
    config = {
        "staticRoutes": {"enabled": True, "routes": [{"destination": "172.20.0.0/16"}]},
        "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"},
        "watch": {"enabled": True, "mode": "service"},
        "gates": ["kubelet.service"],
    }
    (tree / "config.json").write_text(json.dumps(config))
    yield tree
    shutil.rmtree(tree)


def masks(folder: str, names: list[str]) -> list[str]:
    """Return the units that every machine masks by itself."""
    links = (name for name in names if Path(folder, name).is_symlink())
    return [name for name in links if str(Path(folder, name).readlink()) == "/dev/null"]


def until(box: SystemdBox, condition: str) -> None:
    """Wait until a command of bash succeeds in the machine."""
    box.run("timeout", "60", "bash", "-c", f"until {condition}; do :; done")


def until_watch_repairs(box: SystemdBox) -> None:
    """Wait for the service, take the route away, and wait until it is back."""
    until(box, f"systemctl is-active --quiet {WATCH}")
    assert box.run("pgrep", "--full", "/usr/bin/hostrouting watch").stdout.split()
    box.run("ip", "route", "delete", "172.20.0.0/16")
    until(box, "[[ $(ip route show 172.20.0.0/16) == *10.224.0.1* ]]")


@pytest.mark.parametrize("node", SUITES, indirect=True)
def test_a_node_with_nothing_but_the_package(node: Path, tmp_path: Path) -> None:
    """Apply, a reboot that is held and one that starts, watch, and a reset, by the distribution's Python alone."""
    image = tmp_path / "image"
    with SystemdBox(tree=node, prepare=GATE + NETWORK) as box:
        box.run("hostrouting", "apply", "/config.json")
        assert "via 10.224.0.1" in box.run("ip", "route", "show", "172.20.0.0/16").stdout
        until_watch_repairs(box)
        # The machine's disk is what it has in these folders; its systemd/ is all from this run.
        for folder in ("etc/aks-flex-node", "etc/systemd/system"):
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
