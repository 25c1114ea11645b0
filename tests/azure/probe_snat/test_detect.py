"""The node's IPv6 as the cloud describes it, and the device through which probes come in: decided from
readings.
"""

import logging
import re
from typing import Any
from unittest.mock import patch

import attrs
import pytest
from support.imds import network_interface
from support.kernel import host_of, kernel_of
from support.memory_links import add_address, add_device, remove_device
from support.needs import needs
from support.printed import (
    CHOOSE_DEV,
    NO_DESCRIPTION,
    NO_DEVICE_NAME,
    NO_IPV6_ADDRESS,
    NO_IPV6_DEFAULT,
    NOTHING_LEADS,
    SEE_ROUTER,
    TWO_IPV6_EXITS,
)
from support.probe_nodes import CONFIG, lead
from support.probe_worlds import ADDRESS, RULES

from hostrouting import ProbeSNATConfig
from hostrouting.azure.probe_snat.detect import (
    NotWanted,
    Obstacle,
    assess,
    describes_ipv6,
    rules_to_install,
)
from hostrouting.azure.probe_snat.ruleset import ProbeRules
from hostrouting.exceptions import BackendError, InvalidConfigError
from hostrouting.host import Address, NextHop, ObservedRoute
from hostrouting.testing import FakeHost, KernelNode

ALWAYS = ProbeSNATConfig(enabled=True, detect="always")


class TestTheCloudsDescription:
    @pytest.mark.parametrize(
        ("document", "expected"),
        [
            ([], False),
            ([network_interface()], False),
            ([network_interface(ipv6=[""])], False),
            ([network_interface(), network_interface(ipv6=["fd00::4"])], True),
            ([network_interface(ipv6=["fd00::4"]), network_interface(ipv6=[""])], True),
            ([network_interface(ipv6=["", "fd00::4"])], True),
            ([{}], False),
            ([{"ipv6": None}], False),
            ([{"ipv6": {}}], False),
            ([{"ipv6": {"ipAddress": None}}], False),
            ([{"ipv6": {"ipAddress": [{}]}}], False),
            ([{"ipv6": {"ipAddress": [{"privateIpAddress": None}]}}], False),
        ],
    )
    def test_documents_with_ipv6(self, document: object, *, expected: bool) -> None:
        """A node has IPv6 if any interface of the cloud's description has an address that is not
        empty.
        """
        assert describes_ipv6(document) is expected

    @pytest.mark.parametrize(
        ("document", "reason"),
        [
            ({"error": "Bad request"}, "it should be a list, not dict"),
            (None, "it should be a list, not NoneType"),
            ("<html>", "it should be a list, not str"),
            ([7], "[0] should be an object, not int"),
            ([{}, {"ipv6": []}], "[1].ipv6 should be an object, not list"),
            ([{"ipv6": {"ipAddress": {}}}], "[0].ipv6.ipAddress should be a list, not dict"),
            (
                [{"ipv6": {"ipAddress": ["fd00::4"]}}],
                "[0].ipv6.ipAddress[0] should be an object, not str",
            ),
            (
                [
                    network_interface(ipv6=["fd00::4"]),
                    {"ipv6": {"ipAddress": [{"privateIpAddress": 7}]}},
                ],
                "[1].ipv6.ipAddress[0].privateIpAddress should be text, not int",
            ),
        ],
    )
    def test_another_shape(self, document: object, reason: str) -> None:
        """A description of an unknown shape is an error with place and next step, even after an
        interface with an address.
        """
        words = f"{NO_DESCRIPTION}{reason}; hostRouting."
        with pytest.raises(BackendError, match=re.escape(words)):
            describes_ipv6(document)


def node(*defaults: str) -> FakeHost:
    host = FakeHost()
    for dev in sorted({"eth0", "eth1", *defaults}):
        add_device(host.link_layer, dev)
    lead(host, *defaults)
    host.link_layer.operations.calls.clear()
    return host


class TestAssess:
    @pytest.mark.parametrize(
        ("settings", "defaults", "outcome"),
        [
            ({}, ["eth0"], RULES),
            (
                {"source": "fe80::1"},
                ["eth0"],
                ProbeRules(dev="eth0", source="fe80::1", address=ADDRESS),
            ),
            (
                {},
                [],
                Obstacle(
                    reason=NO_IPV6_DEFAULT,
                    step=SEE_ROUTER,
                    may_change=True,
                ),
            ),
            (
                {},
                ["eth0", "eth1"],
                Obstacle(
                    reason=TWO_IPV6_EXITS,
                    step=CHOOSE_DEV,
                ),
            ),
            (
                {},
                ["eth*"],
                Obstacle(
                    reason="the device of the IPv6 default route is unsuitable: "
                    f"'eth*' {NO_DEVICE_NAME}'*' is not allowed; see: ip link",
                    step="rename the device",
                ),
            ),
            (
                {"dev": "eth0"},
                [],
                Obstacle(
                    reason=f"{NOTHING_LEADS}{ADDRESS}",
                    step=f"add a route to {ADDRESS} through eth0",
                    may_change=True,
                ),
            ),
            *(
                (
                    {"dev": "eth7", "detect": detect},
                    ["eth0"],
                    Obstacle(
                        reason="there is no device eth7",
                        step="correct hostRouting.probeSnat.dev",
                        may_change=True,
                    ),
                )
                for detect in ("address", "always")
            ),
        ],
    )
    def test_the_device(
        self, settings: dict[str, Any], defaults: list[str], outcome: object
    ) -> None:
        """The rules are for the device of the config, or for that of the one IPv6 default route by
        which the address leaves; anything else is an obstacle with its step.
        """
        section = ProbeSNATConfig(enabled=True, **{"detect": "always", **settings})
        assert assess(section, node(*defaults)) == outcome

    @pytest.mark.parametrize(
        ("devs", "reason"),
        [
            (("eth1",), "leave through eth1, not only through eth0"),
            (("eth0", "eth1"), "leave through eth1, not only through eth0"),
            (("lo",), "leave through lo, not only through eth0"),
        ],
    )
    def test_a_reply_that_would_leak(self, devs: tuple[str, ...], reason: str) -> None:
        """A reply that would leave through another device, always or by a hash, is an obstacle that does
        not go away by itself.
        """
        host = node("eth0")
        bare = ObservedRoute.parse("2603:1062::/32", metric=1024)
        hops = tuple(NextHop(Address.parse("fe80::1"), dev) for dev in devs)
        foreign = bare._replace(dev="lo") if devs == ("lo",) else bare._replace(nexthops=hops)
        host.routes.insert_route(foreign.to_route())
        outcome = assess(ALWAYS, host)
        assert isinstance(outcome, Obstacle)
        assert reason in outcome.reason
        assert (
            outcome.step
            == f"add a route to {ADDRESS} through eth0, or correct hostRouting.probeSnat.dev"
        )
        assert not outcome.may_change

    @needs("kernel")
    def test_no_reply_leaves_by_a_dead_next_hop(self) -> None:
        """A dead next hop of the route for replies is not an obstacle, as the kernel passes over
        it.
        """
        fake = node()
        with KernelNode.made() as made:
            for dev in "eth0", "eth1":
                made.add_link(dev)
            hops = "nexthop via fe80::1 dev eth0 nexthop via fe80::1 dev eth1"
            made.ip(f"-6 route add 2603:1062::/32 {hops}")
            made.set_up("eth1", up=False)
            host = host_of(kernel_of(made), fake, link_layer=fake.link_layer)
            assert assess(attrs.evolve(ALWAYS, dev="eth0"), host) == RULES

    @pytest.mark.parametrize("defaults", [[], ["eth1"]])
    def test_a_device_without_ipv6(self, defaults: list[str]) -> None:
        """A device on which IPv6 is off is the named obstacle, and not a route that is missing or
        leads elsewhere.
        """
        host = node(*defaults)
        host.files.write("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", b"1\n", mode=0o644)
        section = ProbeSNATConfig(enabled=True, detect="always", dev="eth0")
        assert assess(section, host) == Obstacle(
            reason="IPv6 is disabled on eth0",
            command="sysctl -w net/ipv6/conf/eth0/disable_ipv6=0",
            may_change=True,
        )
        host.files.write("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", b"0\n", mode=0o644)
        outcome = assess(section, host)
        assert isinstance(outcome, Obstacle)
        assert outcome.step.startswith("add a route to ")

    @pytest.mark.parametrize("detect", ["address", "always"])
    @pytest.mark.parametrize("defaults", [[], ["eth1"]])
    def test_a_device_that_is_down(self, detect: Any, defaults: list[str]) -> None:
        """A device that is down is the named obstacle, and not the routes and addresses that it
        lost.
        """
        host = node(*defaults)
        remove_device(host.link_layer, "eth0")
        add_device(host.link_layer, "eth0", up=False)
        outcome = assess(ProbeSNATConfig(enabled=True, detect=detect, dev="eth0"), host)
        assert outcome == Obstacle(
            reason="the device eth0 is down", command="ip link set eth0 up", may_change=True
        )

    def test_by_address(self) -> None:
        """A device without a global address has no IPv6 with `detect` address, nor has a node
        without an IPv6 default route; two such routes are an obstacle.
        """
        section = ProbeSNATConfig(enabled=True, detect="address")
        host = node("eth0")
        no_address = NO_IPV6_ADDRESS
        assert assess(section, host) == NotWanted(reason=no_address, may_change=True)
        add_address(host.link_layer, "eth0", "2001:db8::4/64")
        assert assess(section, host) == RULES
        no_route = f"this node has no IPv6: {NO_IPV6_DEFAULT}"
        assert assess(section, node()) == NotWanted(reason=no_route, may_change=True)
        assert isinstance(assess(section, node("eth0", "eth1")), Obstacle)

    def test_an_address_that_failed_its_test_for_duplicates(self) -> None:
        """An address that failed its test for duplicates does not count as IPv6 of the device,
        since the kernel does not send from it.
        """
        section = ProbeSNATConfig(enabled=True, detect="address")
        host = node("eth0")
        add_address(host.link_layer, "eth0", "2001:db8::4/64")
        [eth0] = [device for device in host.routes.links() if device.name == "eth0"]
        failed = [own._replace(usable=False) for own in eth0.addresses]
        with patch.object(host.routes, "links", lambda: [eth0._replace(addresses=tuple(failed))]):
            found = assess(section, host)
        lacks = NO_IPV6_ADDRESS
        assert found == NotWanted(reason=lacks, may_change=True)

    @pytest.mark.parametrize("programmes", [("ipv6_hp_ingress",), ("ipv6_hp_egress", "other")])
    def test_the_programme_that_does_the_same(self, programmes: tuple[str, ...]) -> None:
        """An eBPF programme that does the same job on the device makes rules unnecessary, whatever
        the routes are; on another device it is ignored.
        """
        host = node("eth0")
        host.link_layer.programs = {"eth1": programmes}
        assert assess(ALWAYS, host) == RULES
        host.link_layer.programs = {"eth0": programmes}
        host.routes.add_route("2603:1062::/32", dev="eth1")
        assert assess(ALWAYS, host) == NotWanted(
            reason=f"the eBPF program ipv6-hp-bpf ({programmes[0]}) already does this on eth0",
            level=logging.WARNING,
        )


class TestToInstall:
    def test_a_device_that_is_looked_up(self) -> None:
        """The rules of a config without a device are for that of the IPv6 default route, and are an
        error without one.
        """
        host = node("eth0")
        assert rules_to_install(CONFIG, host=host) == RULES
        assert host.link_layer.operations.calls == []
        with pytest.raises(
            BackendError,
            match=f"receives IPv6 probes is not known: {NO_IPV6_DEFAULT}; find",
        ):
            rules_to_install(CONFIG, host=node())

    @pytest.mark.parametrize("host", [None, FakeHost(is_live=False)])
    def test_there_is_no_cloud(self, host: FakeHost | None) -> None:
        """A config that names no device is refused where there is no cloud."""
        with pytest.raises(
            InvalidConfigError, match=r"^hostRouting\.probeSnat\.dev: is missing; name the device"
        ):
            rules_to_install(CONFIG, host=host)
