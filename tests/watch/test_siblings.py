"""The siblings beside the routes, in a running Watch: programs that hang or fail, and the story of a removed CNI."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import attrs
import pytest
from support.needs import needs
from support.probe_nodes import made_host
from support.stale_cni_nodes import LIVE, REUSED, SHORT, SOON, World, add_link
from support.stale_cni_sweeps import CONFLIST
from support.stale_cni_worlds import POD_CIDRS, arp_reply, config_of, dnat
from support.watched_nodes import SECONDS, running

from hostrouting import HostRoutingConfig, Watch
from hostrouting.azure.probe_snat.ruleset import RULESET_PATH, ProbeRules, delete_script, render
from hostrouting.config import ProbeSNATConfig, StaleCNIConfig, StaticRoute, StaticRoutesConfig, WatchConfig
from hostrouting.host import OUR_PROTOCOL, Host
from hostrouting.host.netlink.events import NetlinkEvents
from hostrouting.host.packets.ebtables import EbtablesCommand
from hostrouting.host.packets.nft import NftCommand
from hostrouting.net.links import Neighbour
from hostrouting.testing import FakeHost, KernelNode, MemoryLinkLayer, MemorySupervisor
from phases import Context

OURS = "172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"
RULES = ProbeRules(dev="eth0", source="fe80::1234:5678:9abc", address="2603:1062:0:1:fe80:1234:5678:9abc")
CONFIG = HostRoutingConfig(
    static_routes=StaticRoutesConfig(
        enabled=True, routes=(StaticRoute(destination="172.16.1.0/24", gateway="10.224.0.1", dev="eth0"),)
    ),
    probe_snat=ProbeSNATConfig(enabled=True, dev="eth0", detect="always"),
    stale_cni=StaleCNIConfig(enabled=True, pod_cidrs=POD_CIDRS, sweep="clean"),
    watch=WatchConfig(enabled=True, interval=1.0),
)


def ours(host: Host) -> list[str]:
    return [str(route) for route in host.routes.routes() if route.protocol == OUR_PROTOCOL]


@pytest.fixture
def host() -> FakeHost:
    """A node whose installed rules for probes are not loaded, with a route to keep."""
    host = made_host()
    host.routes.add_address("eth0", "10.224.0.4/16")
    host.files.write(RULESET_PATH, render(RULES).encode(), mode=0o644)
    return host


def stand_in(folder: Path, text: str) -> tuple[str, ...]:
    """Return a program that runs these commands of a shell, with `$hangs` to wait for ever; it says when it does."""
    program = folder / "program"
    hangs = f"echo $$ >>{folder}/hanging; exec sleep 1000"
    program.write_text(f"#!/bin/sh\n{text.replace('$hangs', hangs)}\n")
    program.chmod(0o755)
    return (str(program),)


@pytest.mark.parametrize("moment", ["nft lists", "nft loads", "ebtables"])
def test_a_program_hangs_while_routes_are_deleted(host: FakeHost, tmp_path: Path, moment: str) -> None:
    """While a program of a sibling hangs, even under the run lock, deleted routes are restored one after the other."""
    absent = "case $* in *list*) echo 'Error: No such file or directory' >&2; exit 1;; esac"
    command = stand_in(tmp_path, f"{absent if moment == 'nft loads' else ''}\n$hangs")
    ports = {field.name: getattr(host, field.name) for field in attrs.fields(Host)}
    if moment == "ebtables":
        hanging = Host(**{**ports, "ebtables": EbtablesCommand(command)})
    else:
        hanging = Host(**{**ports, "nftables": NftCommand(command)})
    with running(Watch(CONFIG, host=hanging)) as watch:
        watch.until((tmp_path / "hanging").exists)
        watch.until(lambda: ours(host) == [OURS])
        # A fourth time within an hour it would pause.
        for _ in range(3):
            host.routes.delete_route(next(route for route in host.routes.routes() if str(route) == OURS))
            watch.until(lambda: ours(host) == [OURS])
        # The first one still hangs: nothing of the above waited for it.
        assert len((tmp_path / "hanging").read_text().split()) == 1
        # A repair is seen before its lock is released.
        watch.until(lambda: host.lock.is_held == (moment == "nft loads"))


class BrokenLinkLayer(MemoryLinkLayer):
    is_broken = True

    def neighbours(self) -> list[Neighbour]:
        if self.is_broken:
            raise ZeroDivisionError
        return super().neighbours()

    def classifiers(self, dev: str) -> tuple[str, ...]:
        if self.is_broken:
            raise ZeroDivisionError
        return super().classifiers(dev)


def test_a_mistake_in_a_sibling(host: FakeHost, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a sibling raises is one line, and it goes on later; the routes are kept, and so are the others."""
    layer = BrokenLinkLayer(host.routes)
    ports = {field.name: getattr(host, field.name) for field in attrs.fields(Host)}
    broken = Host(**{**ports, "link_layer": layer})
    with running(Watch(CONFIG, host=broken)) as watch:
        watch.until(lambda: len([call for call in host.ebtables.operations.calls if call[0] == "read"]) >= 3)
        assert ours(host) == [OURS]
        told = [message for message in caplog.messages if "cannot be looked for now" in message]
        assert told == ["stale objects of azure-vnet cannot be looked for now: ZeroDivisionError()"]


def test_the_trouble_of_a_sibling_is_part_of_the_state(host: FakeHost, caplog: pytest.LogCaptureFixture) -> None:
    """The manager hears of it, and of its end, which the log has, too."""
    caplog.set_level(logging.INFO)
    layer, supervisor = BrokenLinkLayer(host.routes), MemorySupervisor()
    ports = {field.name: getattr(host, field.name) for field in attrs.fields(Host)}
    broken = Host(**{**ports, "link_layer": layer, "supervisor": supervisor})
    troubles = ["the rules for IPv6 probes cannot be kept now", "stale objects of azure-vnet cannot be looked for now"]

    def state() -> str:
        return next((sign["STATUS"] for sign in reversed(supervisor.heard) if "STATUS" in sign), "")

    with running(Watch(CONFIG, host=broken)) as watch:
        told = [f"{trouble}: ZeroDivisionError()" for trouble in troubles]
        watch.until(lambda: state() == "; ".join(["routes in force: 1", *told]))
        layer.is_broken = False
        watch.until(lambda: state() == "routes in force: 1")
    assert {f"this is over: {trouble}" for trouble in troubles} <= set(caplog.messages)


def test_the_end_does_not_wait_for_a_sibling(host: FakeHost) -> None:
    """A watch ends while a sibling is stuck, as one that restores what it removed with a program that hangs."""
    stuck, released, went_on = Event(), Event(), Event()

    class Stuck(MemoryLinkLayer):
        def neighbours(self) -> list[Neighbour]:
            stuck.set()
            if released.wait(SECONDS):
                went_on.set()
            return super().neighbours()

    ports = {field.name: getattr(host, field.name) for field in attrs.fields(Host)}
    with running(Watch(CONFIG, host=Host(**{**ports, "link_layer": Stuck(host.routes)}))):
        assert stuck.wait(SECONDS)
    # The block is left: the watch has ended.
    released.set()
    assert went_on.wait(SECONDS)


def test_they_look_after_the_events_of_the_routes(host: FakeHost) -> None:
    """A program that deletes routes may have deleted more; a reload looks at everything, too."""
    seldom = attrs.evolve(CONFIG, watch=WatchConfig(enabled=True, interval=3600.0))
    watch = Watch(seldom, host=host)
    calls: list[Callable[[], object]] = [
        bool,
        lambda: host.routes.delete_route(next(route for route in host.routes.routes() if str(route) == OURS)),
        lambda: watch.reload(lambda: seldom),
    ]
    with running(watch) as it:
        for call in calls:
            call()
            it.until(lambda: ("ip6", "azureSLBProbe") in host.nftables.tables)
            it.until(lambda: OURS in map(str, host.routes.routes()))
            it.until(lambda: not host.lock.is_held)
            host.nftables.load(Context(), delete_script())


def test_the_rules_for_probes_are_kept(host: FakeHost, caplog: pytest.LogCaptureFixture) -> None:
    """A running Watch loads the table that is missing, and again after another program deleted it."""
    with running(Watch(CONFIG, host=host)) as watch:
        for _ in range(2):
            watch.until(lambda: ("ip6", "azureSLBProbe") in host.nftables.tables)
            host.nftables.load(Context(), delete_script())
        watch.until(lambda: ("ip6", "azureSLBProbe") in host.nftables.tables)
        watch.until(lambda: caplog.messages.count("repaired: + nft table ip6 azureSLBProbe") == 3)


class Story(World):
    """The node of the issue, on which azure-vnet has two more pods of its own."""

    def pod(self, number: int) -> str:
        """Return the address of one of them."""
        return f"10.240.0.{20 + number}"

    def mac(self, number: int) -> str:
        return f"aa:bb:cc:00:00:{20 + number}"

    def add_pods(self) -> None:
        for number in 1, 2:
            there = self.stack.enter_context(KernelNode.made())
            device, address, mac = f"azv2{number}", self.pod(number), self.mac(number)
            add_link(self.node, device, f"fe:00:00:00:00:2{number}", there=there, peer="eth0", peer_mac=mac)
            self.node.ip("link", "set", device, "master", "azure0")
            there.ip("address", "add", f"{address}/16", "dev", "eth0")
            self.rule(arp_reply(address, mac))
            self.rule(dnat(address, mac))
            self.node.ip("neigh", "add", address, "lladdr", mac, "nud", "permanent", "dev", "azure0")
            self.fabric.ip("neigh", "add", address, "lladdr", "00:0d:3a:00:00:04", "nud", "permanent", "dev", "wire")
            self.answer(there)
            assert self.asks(address)

    def recreate(self, number: int) -> None:
        """Delete a pod; the new CNI gives its address to another one."""
        self.node.ip("link", "delete", f"azv2{number}")
        there = self.stack.enter_context(KernelNode.made())
        device = f"lxc2{number}"
        add_link(
            self.node,
            device,
            f"fe:00:00:00:01:2{number}",
            there=there,
            peer="eth0",
            peer_mac=f"0a:00:00:00:00:2{number}",
        )
        self.node.ip("route", "add", f"{self.pod(number)}/32", "dev", device)
        there.ip("address", "add", f"{self.pod(number)}/32", "dev", "eth0")
        there.ip("route", "add", "default", "dev", "eth0")
        there.ip(
            "neigh", "add", "10.240.0.100", "lladdr", f"fe:00:00:00:01:2{number}", "nud", "permanent", "dev", "eth0"
        )
        self.answer(there)


def often(**section: str) -> HostRoutingConfig:
    """Return a config whose watch looks every second."""
    return attrs.evolve(config_of(**section), watch=CONFIG.watch)


@needs("kernel", "ebtables-nft")
class TestStory:
    """The CNI is exchanged, and its pods are recreated one by one with the addresses of their predecessors."""

    @pytest.fixture
    def world(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
        for name, value in SHORT.items():
            monkeypatch.setattr(f"hostrouting.{name}", value)
        for folder in "proc/sys/kernel/random", "var/lib", "etc/cni/net.d":
            (tmp_path / folder).mkdir(parents=True)
        (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-1\n")
        (tmp_path / CONFLIST[1:]).write_text(json.dumps({"plugins": [{"type": "azure-vnet"}]}))
        with Story.made(tmp_path) as made:
            assert isinstance(made, Story)
            made.add_pods()
            assert made.asks(LIVE)
            yield made

    def host_of(self, world: Story) -> Host:
        host = world.host()
        return attrs.evolve(host, events=NetlinkEvents(netns=world.node.name))

    def test_clean(self, world: Story, caplog: pytest.LogCaptureFixture) -> None:
        """Each new pod is reachable once its predecessor is gone; the pods that live lose no packet meanwhile."""
        with running(Watch(often(sweep="clean"), host=self.host_of(world))) as watch, ExitStack() as streams:
            watch.until(lambda: any("azure-vnet is still in use" in message for message in caplog.messages))
            assert not world.asks(REUSED, patience=SOON)
            lost = [streams.enter_context(world.stream(address)) for address in (LIVE, world.pod(2))]
            (world.root / CONFLIST[1:]).unlink()
            watch.until(lambda: world.asks(REUSED, patience=SOON))
            streams.close()
            assert lost == [[], []]
            live = streams.enter_context(world.stream(LIVE))
            for number in 1, 2:
                world.recreate(number)
                watch.until(lambda number=number: world.asks(world.pod(number), patience=SOON))  # type: ignore[misc]
            streams.close()
            assert live == []
            # The end of a sweep that a pod could be reached in the middle of.
            watch.until(lambda: any(f"removed: {world.pod(2)}" in message for message in caplog.messages))
        assert not any("10.240.0.2" in line or REUSED in line for line in world.shown()["ebtables"])
        assert len([line for line in world.shown()["ebtables"] if LIVE in line]) == 2

    def test_report(self, world: Story, caplog: pytest.LogCaptureFixture) -> None:
        """Nothing is changed, and the log names each object once."""
        (world.root / CONFLIST[1:]).unlink()
        with running(Watch(often(), host=self.host_of(world))) as watch:
            watch.until(lambda: any(dnat(REUSED, "aa:bb:cc:00:00:09") in message for message in caplog.messages))
            world.recreate(1)
            before = world.shown()
            watch.until(lambda: any(world.pod(1) in message for message in caplog.messages))
            # Another look, after which nothing is named again.
            world.node.ip("link", "delete", "azv22")
            watch.until(lambda: any(world.pod(2) in message for message in caplog.messages))
            assert not world.asks(world.pod(1), patience=SOON)
            after = world.shown()
        assert (after["ebtables"], after["neigh"]) == (before["ebtables"], before["neigh"])
        named = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        named = [line for line in named if line.startswith("stale: ")]
        # The two rules and the neighbour of each of three pods, and those of IPv6 of the first.
        assert len(named) == len(set(named)) == 3 * 3 + 2
