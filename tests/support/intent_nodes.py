"""Configs and a node in memory for tests of the installed config."""

from typing import Any

import attrs
from support.kernel import uplink
from support.memory_links import add_address
from support.patience import at_once

from hostrouting import Configure, HostRoutingConfig
from hostrouting.boot.installed_config import NewConfig, require_installed_config
from hostrouting.boot.layout import APPLIED_PATH, CONFIG_PATH
from hostrouting.testing import FakeHost
from phases import execute

ROUTES: dict[str, Any] = {
    "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]}
}
OVERLAP = {"routeOverlap": {"expectedCidrs": ["10.224.0.0/16"], "mode": "WARN"}}
PROBES = {"probeSnat": {"enabled": True, "dev": "eth0", "detect": "address"}}
SWEEP = {"staleCni": {"enabled": True, "podCidrs": ["10.240.0.0/16"]}}
GATES = {"gates": ["systemd-nspawn@.service"]}
READY = "/etc/systemd/system/hostrouting-ready.service"


def node(*, ipv6: bool = True) -> FakeHost:
    """A node with a default route, and with IPv6 if its probes are to have rules."""
    host = FakeHost()
    host.files.write(
        "/lib/systemd/system/systemd-nspawn@.service",
        b"[Service]\nExecStart=/bin/true\n",
        mode=0o644,
    )
    host.files.write("/proc/sys/kernel/random/boot_id", b"this-boot\n", mode=0o444)
    uplink(host.routes)
    if ipv6:
        add_address(host.link_layer, "eth0", "2001:db8::4/64")
        host.routes.add_route("::/0", dev="eth0")
    return host


def config(**sections: object) -> HostRoutingConfig:
    return HostRoutingConfig.from_mapping({**GATES, **sections})


def apply(host: FakeHost, **sections: object) -> None:
    execute(Configure(config(**sections), host=host), at_once())


def forget_devs(host: FakeHost) -> None:
    """Let the node be one that was made of an image, where no apply has found its device."""
    config = attrs.evolve(require_installed_config(host), found_devs=())
    put_in_force(host, NewConfig(config=config).file.content)


def put_in_force(host: FakeHost, content: bytes) -> None:
    """Let a node with an installed config be one on which an apply has written this one."""
    for path in CONFIG_PATH, APPLIED_PATH:
        host.files.write(path, content, mode=0o644)
