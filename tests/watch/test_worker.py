"""A running watch keeps its routes next to optional capabilities whose programs hang or fail, and
sweeps after a removed CNI.
"""

import json
import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import attrs
import pytest
from support.needs import needs
from support.printed import IN_USE, OVER
from support.probe_nodes import made_host
from support.run_nodes import own_routes
from support.stale_cni_nodes import LIVE, REUSED, SHORT, SOON, World
from support.stale_cni_sweeps import CONFLIST
from support.stale_cni_worlds import POD_CIDRS, config_of
from support.watched_nodes import SECONDS, running

from hostrouting import (
    Host,
    HostRoutingConfig,
    ProbeSNATConfig,
    StaleCNIConfig,
    StaticRoute,
    StaticRoutesConfig,
    Watch,
    WatchConfig,
)
from hostrouting.azure.probe_snat.ruleset import RULESET_PATH, ProbeRules, delete_script, render
from hostrouting.host import Neighbour
from hostrouting.host.netlink.events import NetlinkEvents
from hostrouting.host.packets.ebtables import EbtablesCommand
from hostrouting.host.packets.nft import NftCommand
from hostrouting.testing import FakeHost, MemoryLinkLayer, MemorySupervisor
from phases import Context

OWN_ROUTE = "172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"
RULES = ProbeRules(
    dev="eth0", source="fe80::1234:5678:9abc", address="2603:1062:0:1:fe80:1234:5678:9abc"
)
CONFIG = HostRoutingConfig(
    static_routes=StaticRoutesConfig(
        enabled=True,
        routes=(StaticRoute(destination="172.16.1.0/24", gateway="10.224.0.1", dev="eth0"),),
    ),
    probe_snat=ProbeSNATConfig(enabled=True, dev="eth0", detect="always"),
    stale_cni=StaleCNIConfig(enabled=True, pod_cidrs=POD_CIDRS, sweep="clean"),
    watch=WatchConfig(enabled=True, interval=1.0),
)


def exchanged(host: Host, **ports: object) -> Host:
    """Return the same node with other ports."""
    return Host(
        **{**{field.name: getattr(host, field.name) for field in attrs.fields(Host)}, **ports}
    )


@pytest.fixture
def host() -> FakeHost:
    """A node whose installed rules for probes are not loaded, with a route to keep."""
    host = made_host()
    host.routes.add_address("eth0", "10.224.0.4/16")
    host.files.write(RULESET_PATH, render(RULES).encode(), mode=0o644)
    return host


def stand_in(folder: Path, text: str) -> tuple[str, ...]:
    """Return a program that runs these commands of a shell, with `$hangs` to wait for ever; it
    prints when it does.
    """
    program = folder / "program"
    hangs = f"echo $$ >>{folder}/hanging; exec sleep 1000"
    program.write_text(f"#!/bin/sh\n{text.replace('$hangs', hangs)}\n")
    program.chmod(0o755)
    return (str(program),)


@pytest.mark.parametrize("moment", ["nft lists", "nft loads", "ebtables"])
def test_a_program_hangs_while_routes_are_deleted(
    host: FakeHost, tmp_path: Path, moment: str
) -> None:
    """While a program of an optional capability hangs, even under the run lock, deleted routes are
    restored one after another.
    """
    absent = "case $* in *list*) echo 'Error: No such file or directory' >&2; exit 1;; esac"
    command = stand_in(tmp_path, f"{absent if moment == 'nft loads' else ''}\n$hangs")
    port = (
        {"ebtables": EbtablesCommand(command)}
        if moment == "ebtables"
        else {"nftables": NftCommand(command)}
    )
    with running(Watch(CONFIG, host=exchanged(host, **port))) as watch:
        watch.until((tmp_path / "hanging").exists)
        watch.until(lambda: own_routes(host) == [OWN_ROUTE])
        # A fourth time within an hour it would pause.
        for _ in range(3):
            host.routes.delete_route(
                next(route for route in host.routes.routes() if str(route) == OWN_ROUTE)
            )
            watch.until(lambda: own_routes(host) == [OWN_ROUTE])
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


def test_the_trouble_of_a_sibling_is_part_of_the_state(
    host: FakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    """The trouble of an optional capability is a part of the state that the manager receives, and
    is logged once with its end, while the routes are kept.
    """
    caplog.set_level(logging.INFO)
    layer = BrokenLinkLayer(host.routes)
    supervisor = MemorySupervisor()
    broken = exchanged(host, link_layer=layer, supervisor=supervisor)
    troubles = [
        "the rules for IPv6 probes cannot be checked now",
        "stale objects of azure-vnet cannot be searched for now",
    ]

    def state() -> str:
        return next((sign["STATUS"] for sign in reversed(supervisor.heard) if "STATUS" in sign), "")

    with running(Watch(CONFIG, host=broken)) as watch:
        reasons = [f"{trouble}: ZeroDivisionError()" for trouble in troubles]
        watch.until(lambda: state() == "; ".join(["routes in force: 1", *reasons]))
        assert own_routes(host) == [OWN_ROUTE]
        layer.is_broken = False
        watch.until(lambda: state() == "routes in force: 1")
    assert {f"{OVER}{trouble}" for trouble in troubles} <= set(caplog.messages)
    assert [caplog.messages.count(line) for line in reasons] == [1, 1]


def test_the_end_does_not_wait_for_a_sibling(host: FakeHost) -> None:
    """A watch ends while an optional capability is stuck."""
    stuck = Event()
    released = Event()
    went_on = Event()

    class Stuck(MemoryLinkLayer):
        def neighbours(self) -> list[Neighbour]:
            stuck.set()
            if released.wait(SECONDS):
                went_on.set()
            return super().neighbours()

    with running(Watch(CONFIG, host=exchanged(host, link_layer=Stuck(host.routes)))):
        assert stuck.wait(SECONDS)
    # The block is left: the watch has ended.
    released.set()
    assert went_on.wait(SECONDS)


def test_they_look_after_the_events_of_the_routes(host: FakeHost) -> None:
    """The rules for probes are loaded again after an event of a deleted route, since its program
    may have deleted more.
    """
    seldom = attrs.evolve(CONFIG, watch=WatchConfig(enabled=True, interval=3600.0))
    watch = Watch(seldom, host=host)
    calls: list[Callable[[], object]] = [
        bool,
        lambda: host.routes.delete_route(
            next(route for route in host.routes.routes() if str(route) == OWN_ROUTE)
        ),
    ]
    with running(watch) as it:
        for call in calls:
            call()
            it.until(lambda: ("ip6", "azureSLBProbe") in host.nftables.tables)
            it.until(lambda: OWN_ROUTE in map(str, host.routes.routes()))
            it.until(lambda: not host.lock.is_held)
            host.nftables.load(Context(), delete_script())


@needs("kernel", "ebtables-nft")
def test_the_cni_is_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pod with the address of a dead one is reachable once the old CNI is gone, and a live pod
    does not lose a packet.
    """
    for name, value in SHORT.items():
        monkeypatch.setattr(f"hostrouting.{name}", value)
    for folder in "var/lib", "etc/cni/net.d":
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / CONFLIST[1:]).write_text(json.dumps({"plugins": [{"type": "azure-vnet"}]}))
    with World.made(tmp_path) as world, ExitStack() as streams:
        host = attrs.evolve(world.host(), events=NetlinkEvents(netns=world.node.name))
        assert world.reaches(LIVE)
        with running(
            Watch(attrs.evolve(config_of(sweep="clean"), watch=CONFIG.watch), host=host)
        ) as watch:
            watch.until(lambda: any(IN_USE in message for message in caplog.messages))
            assert not world.reaches(REUSED, patience=SOON)
            lost = streams.enter_context(world.stream(LIVE))
            (world.root / CONFLIST[1:]).unlink()
            watch.until(lambda: world.reaches(REUSED, patience=SOON))
            # The end of the sweep, in the middle of which the pod could be reached.
            watch.until(lambda: any(f"removed: {REUSED}" in message for message in caplog.messages))
            streams.close()
        assert lost == []
        rules = world.shown()["ebtables"]
    assert [
        len([line for line in rules if address in line]) for address in (LIVE, f"{REUSED} ")
    ] == [2, 0]
