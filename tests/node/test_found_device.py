"""An apply that finds the node right installs the device through which it leaves, which a config that
names none expects from then on: a default route that comes later moves nothing.
"""

import json
from typing import Any

import attrs
import pytest
from support.command_line import CHECKED, ROUTES
from support.kernel import connect, uplink
from support.patience import at_once
from support.run_nodes import own_routes, put_in_force

from hostrouting import (
    CheckRouteOverlap,
    Configure,
    ConfigureStaticRoutes,
    HostRoutingConfig,
    Reset,
    node_status,
)
from hostrouting.base.commands import FIX
from hostrouting.boot.installed_config import require_installed_config
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.fleet import NodeRecord, check_record, take_record
from hostrouting.host import OUR_PROTOCOL, Address, Host, NextHop, Route
from hostrouting.net.routes import default_route
from hostrouting.node.check import check_node
from hostrouting.node.fix import fixed
from hostrouting.static_routes.at_boot import repair_once
from hostrouting.testing import FakeHost
from phases import Report, plan, run

GATE = "systemd-nspawn@.service"
#: An address of a default route, whichever decides.
FAR = {"routeOverlap": {"expectedCidrs": ["10.96.0.0/16"], "mode": "STRICT"}}
#: What a router in the fabric, or its DHCP, brings.
LATER = "default via 172.16.0.1 dev ib0"


@pytest.fixture
def host() -> FakeHost:
    """A node whose default route through eth0 has a metric, as DHCP gives one."""
    host = FakeHost()
    uplink(host.routes, ib0="172.16.1.4/16")
    old = default_route(host.routes.routes())
    assert old
    host.routes.delete_route(old)
    host.routes.add_route("default", gateway="10.224.0.1", dev="eth0", metric=100)
    path = f"/lib/systemd/system/{GATE}"
    host.files.write(path, b"[Service]\nExecStart=/bin/sleep infinity\n", mode=0o644)
    return host


def config_of(*sections: dict[str, Any], **overlap: object) -> HostRoutingConfig:
    document: dict[str, Any] = {"gates": [GATE], "watch": {"enabled": True}}
    for section in sections:
        document |= section
    document["routeOverlap"] = {**document["routeOverlap"], **overlap}
    return HostRoutingConfig.from_mapping(document)


def applied(host: Host, config: HostRoutingConfig, **options: Any) -> Report:
    return run(Configure(config, host=host, **options), at_once())


def found_devs(host: Host) -> object:
    content = host.files.read(CONFIG_PATH)
    return None if content is None else json.loads(content)["hostRouting"].get("foundDevs")


def bring_the_later_route(host: FakeHost) -> None:
    host.routes.add_route("default", gateway="172.16.0.1", dev="ib0")


# --- what is found


def test_an_apply_finds_the_device(host: FakeHost) -> None:
    """An apply on a right node writes the device into the installed config and the script of the
    routes, and the next apply of the same config changes nothing.
    """
    config = config_of(ROUTES, CHECKED)
    assert applied(host, config).ok
    assert found_devs(host) == ["eth0"]
    script = host.files.read("/etc/aks-flex-node/static-routes.sh") or b""
    assert b"devs='eth0'" in script
    assert require_installed_config(host) == attrs.evolve(config, found_devs=("eth0",))
    assert plan(Configure(config, host=host), at_once()).changes == ()
    assert applied(host, config).changes == ()
    assert check_node(at_once(), config, host).findings == ()


def test_a_plan_foresees_the_device(host: FakeHost) -> None:
    """A plan over an installed config without the device lists the files that change with it."""
    config = config_of(ROUTES, CHECKED, {"watch": {}})
    assert applied(host, config).ok
    plain = json.dumps({"hostRouting": config.to_mapping()})
    put_in_force(host, plain.encode())
    assert found_devs(host) is None
    changes = plan(Configure(config, host=host), at_once()).changes
    assert CONFIG_PATH in [change.subject for change in changes]
    assert {*applied(host, config).changes} == {*changes}
    assert found_devs(host) == ["eth0"]


@pytest.mark.parametrize(
    "overlap", [{"expectedDevs": ["eth0"]}, {"expectedDevs": ["10.224.0.0/16"]}]
)
def test_a_config_that_names_its_devices_needs_no_other(
    host: FakeHost, overlap: dict[str, Any]
) -> None:
    """An apply of a config that names its devices removes the one found."""
    assert applied(host, config_of(ROUTES, CHECKED)).ok
    assert applied(host, config_of(ROUTES, CHECKED, **overlap)).ok
    assert found_devs(host) is None


@pytest.mark.parametrize(
    "devs", [["eth0"], ["10.224.0.0/16"], ["eth0", "ib0"]], ids=["one", "a network", "several"]
)
def test_a_config_that_names_its_devices_is_applied_once(host: FakeHost, devs: list[str]) -> None:
    """A config that names its devices is without findings after its first apply, and a second apply
    changes nothing.
    """
    config = config_of(ROUTES, CHECKED, expectedDevs=devs)
    assert applied(host, config).ok
    assert check_node(at_once(), config, host).findings == ()
    assert applied(host, config).changes == ()


@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
@pytest.mark.parametrize("named", ["10.224.0.0/16", "eth0"])
def test_a_later_default_route_moves_nothing_from_a_named_exit(
    host: FakeHost, named: str, mode: str
) -> None:
    """A later default route leaves a node right whose config names its exit, by device or network:
    neither an apply nor a repair changes a route, and the next step is None.
    """
    config = config_of(ROUTES, CHECKED, expectedDevs=[named], mode=mode)
    assert applied(host, config).ok
    bring_the_later_route(host)
    report = check_node(at_once(), config, host, path=CONFIG_PATH)
    assert (report.overlap.ok, report.next, node_status(at_once(), host).next) == (True, None, None)
    assert applied(host, config).changes == ()
    assert not repair_once(at_once(), config, host).changes
    assert own_routes(host) == ["172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"]


@pytest.mark.parametrize(
    ("is_lost", "default"),
    [
        (False, {"gateway": "172.16.0.1", "dev": "ib0", "metric": 100}),
        (True, {"gateway": "172.16.0.1", "dev": "ib0", "metric": 100}),
        # Neither by ib0, where the addresses go now, nor by the device found.
        (True, {"gateway": "10.9.0.1", "dev": "eth1"}),
    ],
)
def test_a_later_default_route_in_turns_or_before_the_first_one(
    host: FakeHost, default: dict[str, Any], *, is_lost: bool
) -> None:
    """A later default route that precedes the first one, or that the kernel takes in turns with it,
    moves no route of the config: a lost one is restored by the device found.
    """
    config = config_of(ROUTES, CHECKED)
    assert applied(host, config).ok
    if is_lost:
        [own] = host.routes.routes_of(OUR_PROTOCOL)
        host.routes.delete_route(own)
    connect(host.routes, eth1="10.9.0.4/16")
    host.routes.add_route("default", **default)
    assert (node_status(at_once(), host).next is None) is not is_lost
    assert applied(host, config).ok
    assert own_routes(host) == ["172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142"]
    status = node_status(at_once(), host)
    assert status.ok
    assert status.next is None


def test_a_wrong_node_changes_no_device(host: FakeHost) -> None:
    """An apply that finds the node wrong writes no device, and leaves an installed one."""
    assert not applied(host, config_of(CHECKED)).ok
    assert found_devs(host) is None
    assert applied(host, config_of(ROUTES, CHECKED)).ok
    host.routes.add_route("172.16.9.0/24", dev="ib0")
    assert not applied(host, config_of(ROUTES, CHECKED)).ok
    assert found_devs(host) == ["eth0"]


def test_an_image_has_no_device(host: FakeHost) -> None:
    """An apply to an image removes the device found, since the image may boot on another node: that
    of the live node of which it was made, or of the config.
    """
    config = config_of(ROUTES, CHECKED)
    assert applied(host, config).ok
    image = copied(host)
    assert found_devs(image) is not None
    for given in config, attrs.evolve(config, found_devs=("eth7",)):
        assert applied(image, given).ok
        assert found_devs(image) is None


def test_a_check_of_an_image_finds_the_device_of_another_node(host: FakeHost) -> None:
    """A check of an image that was made of a live node names the files with its device, which an
    apply changes.
    """
    config = config_of(ROUTES, CHECKED)
    assert applied(host, config).ok
    image = copied(host)
    changed = {finding.subject for finding in check_node(at_once(), config, image).findings}
    assert CONFIG_PATH in changed
    assert applied(image, config).ok
    changed = {finding.subject for finding in check_node(at_once(), config, image).findings}
    assert CONFIG_PATH not in changed


def test_addresses_that_leave_by_an_allowed_device(host: FakeHost) -> None:
    """An apply keeps the device found while all addresses leave through another one that is allowed."""
    config = config_of(ROUTES, FAR, allowedDevs=["ib*"])
    assert applied(host, config).ok
    host.routes.add_route("10.96.0.0/16", dev="ib0")
    assert applied(host, config).ok
    assert found_devs(host) == ["eth0"]


def test_a_device_of_ipv6_completes_no_route_of_ipv4(host: FakeHost) -> None:
    """The device through which IPv6 leaves is not found while a route of IPv4 follows several default
    routes, so that a second apply moves nothing.
    """
    connect(host.routes, eth1="10.9.0.4/16")
    [default] = [route for route in host.routes.routes() if not route.prefix_length]
    host.routes.delete_route(default)
    hops = NextHop(Address.parse("10.224.0.1"), "eth0"), NextHop(Address.parse("10.9.0.1"), "eth1")
    host.routes.insert_route(Route(network=0, prefix_length=0, nexthops=hops, protocol=3))
    host.routes.add_address("eth1", "2001:db8::4/64")
    host.routes.add_route("::/0", gateway="2001:db8::1", dev="eth1")
    config = config_of(ROUTES, {"routeOverlap": {"expectedCidrs": ["fd00:9::/64"]}})
    assert applied(host, config).ok
    before = own_routes(host)
    assert found_devs(host) is None
    assert applied(host, config).ok
    assert own_routes(host) == before


def test_an_image_has_the_device_that_its_config_names(host: FakeHost) -> None:
    """The script of an image completes the routes by the device that `expectedDevs` names."""
    image = copied(host)
    assert applied(image, config_of(ROUTES, CHECKED, expectedDevs=["eth0"])).ok
    script = image.files.read("/etc/aks-flex-node/static-routes.sh") or b""
    assert b"devs='eth0'" in script


def copied(host: FakeHost) -> FakeHost:
    """Return an image with the files of a node and a Python."""
    image = FakeHost(is_live=False)
    image.files.write("/usr/bin/python3", b"", mode=0o755)
    for path in host.files.tree.snapshot():
        target = host.files.read_link(path)
        if target is not None:
            image.files.link(path, target)
        elif not path.startswith("/run/") and (content := host.files.read(path)) is not None:
            image.files.write(path, content, mode=host.files.mode(path) or 0o644)
    return image


def test_a_task_of_the_pair_keeps_the_device(host: FakeHost) -> None:
    """A task of the pair that is run alone leaves the device in the installed config and in the script."""
    config = config_of(ROUTES, CHECKED)
    assert applied(host, config).ok
    files = {
        path: host.files.read(path) for path in (CONFIG_PATH, "/etc/aks-flex-node/static-routes.sh")
    }
    assert run(CheckRouteOverlap(config, host=host), at_once()).ok
    assert run(ConfigureStaticRoutes(config, host=host), at_once()).ok
    assert {path: host.files.read(path) for path in files} == files


# --- another default route comes


@pytest.mark.parametrize("explicit", [True, False])
def test_a_later_default_route_moves_no_route(host: FakeHost, *, explicit: bool) -> None:
    """A later default route leaves the own route in force and the node right, with a note on the
    route that decides now; an apply and a repair change nothing.
    """
    route = {"destination": "172.16.8.0/22"}
    given = {"gateway": "10.224.0.1", "dev": "eth0"} if explicit else {}
    section = {"staticRoutes": {"enabled": True, "routes": [route | given]}}
    config = config_of(section, CHECKED)
    assert applied(host, config).ok
    before = own_routes(host)
    bring_the_later_route(host)
    report = check_node(at_once(), config, host, path=CONFIG_PATH)
    assert (report.ok, report.next) == (True, None)
    assert [finding.kind for finding in report.findings] == ["chosen-exit"]
    assert not applied(host, config).changes
    assert not repair_once(at_once(), require_installed_config(host), host).changes
    assert own_routes(host) == before


def test_addresses_that_follow_a_later_default_route(host: FakeHost) -> None:
    """An address that follows a later default route is wrong, since the device found still works;
    the fix leads it by that device, and names none in the config.
    """
    config = config_of(FAR)
    assert applied(host, config).ok
    bring_the_later_route(host)
    status = node_status(at_once(), host)
    assert status.next == FIX
    assert status.sentence == "wrong: 10.96.0.0/16 leaves through ib0"
    assert not applied(host, config).ok
    mended = fixed(at_once(), config, host)
    assert isinstance(mended, HostRoutingConfig)
    assert mended.route_overlap.expected_devs == ()
    assert applied(host, mended).ok
    assert own_routes(host) == ["10.96.0.0/16 via 10.224.0.1 dev eth0 proto 142"]
    assert found_devs(host) == ["eth0"]


def test_a_fix_is_not_advised_where_its_apply_would_be_refused(host: FakeHost) -> None:
    """A fix is not advised while its apply would be refused for a file of another owner."""
    assert applied(host, config_of(FAR)).ok
    bring_the_later_route(host)
    assert node_status(at_once(), host).next == FIX
    unit = "/etc/systemd/system/check-route-overlap.service"
    host.files.write(unit, b"[Service]\nExecStart=/opt/site/check\n", mode=0o644)
    assert node_status(at_once(), host).next is None
    config = require_installed_config(host)
    assert check_node(at_once(), config, host, path=CONFIG_PATH).next is None


def test_two_next_hops_of_other_devices(host: FakeHost) -> None:
    """A later default route by several devices is wrong as one by a single device is."""
    connect(host.routes, eth1="10.9.0.4/16")
    config = config_of(FAR)
    assert applied(host, config).ok
    hops = (
        NextHop(Address.parse("172.16.0.1"), "ib0"),
        NextHop(Address.parse("10.9.0.1"), "eth1"),
    )
    host.routes.insert_route(Route(network=0, prefix_length=0, nexthops=hops, protocol=3))
    assert not check_node(at_once(), config, host).ok
    assert not applied(host, config).ok
    assert found_devs(host) == ["eth0"]


@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
def test_a_move_that_is_meant(host: FakeHost, mode: str) -> None:
    """A move to the device of a later default route is meant if the config names that device; one
    without the name finds it at the next apply on which the first device does not work any more.
    """
    assert applied(host, config_of(FAR, mode=mode)).ok
    bring_the_later_route(host)
    assert applied(host, config_of(FAR, mode=mode, expectedDevs=["ib0"])).ok
    assert found_devs(host) is None
    assert applied(host, config_of(FAR, mode=mode)).ok
    assert found_devs(host) == ["ib0"]


@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
def test_a_copied_config_finds_its_own_device(host: FakeHost, mode: str) -> None:
    """The installed config of another node, with the device found there, is applied as if it had
    none; so is one whose reader has changed it.
    """
    other = attrs.evolve(config_of(FAR, mode=mode), found_devs=("eth7",))
    assert check_node(at_once(), other, host).overlap.ok
    assert applied(host, other).ok
    assert found_devs(host) == ["eth0"]
    assert applied(host, other).changes == ()


def test_a_reset_and_an_empty_config_are_never_refused(host: FakeHost) -> None:
    """A reset and an empty config succeed on a node whose default route has moved, and remove the
    device found.
    """
    for task in (
        Reset(HostRoutingConfig(), host=host),
        Configure(HostRoutingConfig.from_mapping({"hostRouting": {}}), host=host),
    ):
        assert applied(host, config_of(FAR)).ok
        bring_the_later_route(host)
        assert run(task, at_once()).ok
        assert found_devs(host) is None
        [deciding] = [route for route in host.routes.routes() if str(route) == LATER]
        host.routes.delete_route(deciding)


@pytest.mark.parametrize("fails", [True, False])
def test_a_record_has_the_device(host: FakeHost, *, fails: bool) -> None:
    """A record has the device found and the gateways that are FAILED, so that its check expects the
    same devices as a live check.
    """
    config = config_of(FAR)
    assert applied(host, config).ok
    bring_the_later_route(host)
    if fails:
        host.routes.fail_neighbour("eth0", "10.224.0.1")
        host.routes.fail_neighbour("ib0", "172.16.9.9")
    record = NodeRecord.parse(take_record(at_once(), host).to_line())
    report = check_record(record).report
    assert report is not None
    recorded = report.overlap
    assert recorded.expected_devs == check_node(at_once(), config, host).overlap.expected_devs
    assert recorded.ok is fails
    failed = [str(gateway) for device in record.devices for gateway in device.failed]
    assert failed == (["10.224.0.1"] if fails else [])


# --- a migration is one apply


@pytest.mark.parametrize("section", [ROUTES, {}])
def test_a_config_that_names_the_new_device(host: FakeHost, section: dict[str, Any]) -> None:
    """An apply whose expectedDevs names the device of a later default route is ok, not degraded,
    and the config in force names that device alone.
    """
    expected = CHECKED if section else FAR
    assert applied(host, config_of(section, expected)).ok
    bring_the_later_route(host)
    report = applied(host, config_of(section, expected, expectedDevs=["ib0"]))
    assert report.ok
    assert not report.degraded
    assert found_devs(host) is None


@pytest.mark.parametrize("trouble", ["gone", "down", "FAILED"])
def test_an_old_exit_that_does_not_work(host: FakeHost, trouble: str) -> None:
    """An apply on a node whose first device is gone, down or FAILED follows the default route that
    decides, and finds the device of that one.
    """
    config = config_of(ROUTES, CHECKED)
    assert applied(host, config).ok
    bring_the_later_route(host)
    [old] = [r for r in host.routes.routes() if (r.prefix_length, r.dev) == (0, "eth0")]
    if trouble == "gone":
        host.routes.delete_route(old)
    elif trouble == "down":
        host.routes.set_up("eth0", up=False)
    else:
        host.routes.fail_neighbour("eth0", "10.224.0.1")
    assert check_node(at_once(), config, host).overlap.expected_devs == ("ib0",)
    report = applied(host, config)
    assert report.ok
    assert not report.degraded
    assert found_devs(host) == ["ib0"]
    assert own_routes(host) == ["172.16.8.0/22 via 172.16.0.1 dev ib0 proto 142"]
