"""The next step of a node ends: a command that repairs it, or what a person has to do.

A command that cannot help is never offered: not for a device that does not have its carrier, and not the
apply of an edited config that would be refused. On a fake machine.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from support.kernel import connect
from support.patience import at_once
from support.run_nodes import lose_our_routes

from hostrouting import Configure, HostRoutingConfig, NextStep, node_status
from hostrouting.boot.installed_config import require_installed_config
from hostrouting.boot.layout import APPLIED_PATH, CONFIG_PATH
from hostrouting.host import OUR_PROTOCOL
from hostrouting.testing import FakeHost
from phases import run

CIDR = "172.16.8.0/22"
CONFIG: dict[str, Any] = {
    "routeOverlap": {"mode": "STRICT", "expectedCidrs": [CIDR], "expectedDevs": ["eth0"]},
    "staticRoutes": {"enabled": True, "routes": [{"destination": CIDR}]},
    "gates": [],
}
APPLY = f"hostrouting apply {CONFIG_PATH}"
RESTORE = f"cp -p {CONFIG_PATH} {CONFIG_PATH}.rejected && hostrouting apply {APPLIED_PATH}"


@pytest.fixture
def host() -> FakeHost:
    """A node that an apply found right."""
    host = FakeHost()
    connect(host.routes, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
    host.routes.add_route("default", gateway="10.224.0.1", dev="eth0")
    assert run(Configure(HostRoutingConfig.from_mapping(CONFIG), host=host), at_once()).ok
    return host


def edit(host: FakeHost, text: str) -> None:
    """Edit the installed config."""
    host.files.write(CONFIG_PATH, text.encode(), mode=0o644)


def edited(**sections: Any) -> str:
    """Return an edited config as text."""
    return json.dumps({**CONFIG, **sections})


# --- layers


def rename(host: FakeHost) -> None:
    """Give the device another name, as a new kernel or a changed udev rule does."""
    connect(host.routes, net0="10.224.0.5/16")
    host.routes.remove_link("eth0")
    host.routes.add_route("default", gateway="10.224.0.1", dev="net0")


def exchange(host: FakeHost, **options: Any) -> None:
    """Put another device of the name in its place, with the same address and default route."""
    host.routes.remove_link("eth0")
    host.routes.add_link("eth0", **options)
    host.routes.add_address("eth0", "10.224.0.4/16")
    host.routes.add_route("default", gateway="10.224.0.1", dev="eth0")


def lose_carrier(host: FakeHost) -> None:
    """Unplug the cable."""
    exchange(host, carrier=False)


def enslave(host: FakeHost) -> None:
    """Put the device into a bridge, and leave it its address and default route."""
    host.routes.add_link("br0", kind="bridge")
    exchange(host, master="br0")


@pytest.mark.parametrize(
    ("trouble", "kind", "sentence", "advice"),
    [
        (
            rename,
            "no-device",
            "wrong: eth0 is in expectedDevs, but this node has no such device",
            "if net0 (with a default route) is the right one, name it in expectedDevs",
        ),
        (lose_carrier, "no-carrier", "wrong: eth0 has no carrier", "check its cable"),
        (
            enslave,
            "enslaved",
            "wrong: eth0 belongs to the bridge br0, which takes its packets",
            "ip link set eth0 nomaster",
        ),
    ],
)
def test_no_apply_helps_a_device(
    host: FakeHost, trouble: Any, kind: str, sentence: str, advice: str
) -> None:
    """Where the device of the node is missing, does not have its carrier or is a port of a bridge, the first
    line says so, no apply is offered though its routes are lost, too, and a person is told what to
    do.
    """
    trouble(host)
    status = node_status(at_once(), host)
    assert status.sentence.startswith(sentence)
    assert [each.kind for each in status.check.causes] == [kind]
    assert status.next is None
    assert status.step
    assert (status.step.type, status.step.command) == ("owner", "")
    assert status.step.text.startswith(sentence.removeprefix("wrong: "))
    assert advice in status.step.text
    assert status.lines()[-1] == f"next: {status.step}"
    assert status.to_mapping()["step"] == {
        "type": "owner",
        "command": None,
        "owner": status.step.text,
    }


def test_routes_follow_the_device_that_carries_packets(host: FakeHost) -> None:
    """Of two expected devices the one that is a port of a bridge completes no route, though its
    default route comes first.
    """
    connect(host.routes, eth1="10.9.0.4/16")
    enslave(host)
    host.routes.add_route("default", gateway="10.9.0.1", dev="eth1", metric=100)
    section = {**CONFIG["routeOverlap"], "expectedDevs": ["eth0", "eth1"]}
    config = HostRoutingConfig.from_mapping({**CONFIG, "routeOverlap": section})
    assert run(Configure(config, host=host), at_once()).ok
    [own] = [route for route in host.routes.routes() if route.protocol == OUR_PROTOCOL]
    assert own.dev == "eth1"


# --- edits of the installed config


class Edit(NamedTuple):
    """An edit of the installed config whose apply would fail, and what the step says about it."""

    text: str
    reason: str


EDITS = {
    "a network with host bits": Edit(
        edited().replace(CIDR, "172.16.8.1/22"), "'172.16.8.1/22' has host bits"
    ),
    "half a file": Edit(edited()[:40], "is not JSON"),
    "a device that is not there": Edit(
        edited(
            staticRoutes={
                "enabled": True,
                "routes": [{"destination": CIDR, "gateway": "10.9.0.1", "dev": "eth9"}],
            }
        ),
        "there is no network device eth9",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_that_an_apply_would_refuse(host: FakeHost, name: str) -> None:
    """The apply of an edit that would be refused is not offered: a node that is otherwise right has
    a person correct it, and one that lost its routes gets those of the config in force, which keeps
    the edit in a file next to it.
    """
    edit(host, EDITS[name].text)
    step = node_status(at_once(), host).step
    assert step
    assert (step.type, step.command) == ("owner", "")
    assert EDITS[name].reason in step.text
    assert RESTORE in step.text
    lose_our_routes(host)
    assert node_status(at_once(), host).step == NextStep("fix", RESTORE)


def test_an_edit_that_an_apply_accepts(host: FakeHost) -> None:
    """An edit whose apply works is the next step, also on a node that lost its routes."""
    wider = {"destination": "172.16.16.0/22"}
    routes = {"enabled": True, "routes": [{"destination": CIDR}, wider]}
    edit(host, edited(staticRoutes=routes))
    assert node_status(at_once(), host).step == NextStep("fix", APPLY)
    lose_our_routes(host)
    assert node_status(at_once(), host).step == NextStep("fix", APPLY)


def test_an_edit_that_names_the_renamed_device(host: FakeHost) -> None:
    """Who follows the advice to name the renamed device in the installed config is offered its apply,
    after which the node is right.
    """
    rename(host)
    section = {**CONFIG["routeOverlap"], "expectedDevs": ["net0"]}
    edit(host, edited(routeOverlap=section))
    assert node_status(at_once(), host).step == NextStep("fix", APPLY)
    config = HostRoutingConfig.from_json((host.files.read(CONFIG_PATH) or b"").decode())
    assert run(Configure(config, host=host), at_once()).ok
    assert node_status(at_once(), host).step is None


def test_an_edit_that_would_make_a_right_node_wrong(host: FakeHost) -> None:
    """The apply of an edit that drops the route of an expected address is not offered."""
    edit(host, edited(staticRoutes={}))
    step = node_status(at_once(), host).step
    assert step
    assert (step.type, step.command) == ("owner", "")
    assert "its apply would fail" in step.text


def test_the_config_in_force_can_be_applied_again(host: FakeHost) -> None:
    """The config in force, with the device that an apply found, is one that an apply accepts."""
    edit(host, EDITS["half a file"].text)
    lose_our_routes(host)
    config = HostRoutingConfig.from_json((host.files.read(APPLIED_PATH) or b"").decode())
    assert run(Configure(config, host=host), at_once()).ok
    assert node_status(at_once(), host).step is None
    assert require_installed_config(host).static_routes == config.static_routes


# --- the lock


def test_a_folder_in_the_place_of_the_lock(host: FakeHost) -> None:
    """A folder in the place of the run lock, which no apply gets past, is moved away before the
    apply that restores the routes.
    """
    lose_our_routes(host)
    host.files.write("/run/hostrouting.lock/of-somebody", b"", mode=0o644)
    status = node_status(at_once(), host)
    assert status.step == NextStep("fix", "mv /run/hostrouting.lock /run/hostrouting.lock.moved")
    assert status.sentence.startswith("wrong: /run/hostrouting.lock is a folder")
