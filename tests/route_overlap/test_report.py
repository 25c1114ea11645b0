"""The forms of a check: JSON for programs, the message for people."""

import json
import logging

import pytest
from support.kernel import connect
from support.printed import SEE_DHCP, UNKNOWN_EXIT
from support.static_route_scripts import static_route

from hostrouting.config.sections import HostRoutingConfig, StaticRoute, StaticRoutesConfig
from hostrouting.host import IPV4, ObservedRoute, Rule
from hostrouting.route_overlap.check import check_egress, prove_egress
from hostrouting.route_overlap.expectation import Expectation, expectation_on
from hostrouting.route_overlap.fabric import Fabric
from hostrouting.route_overlap.logs import log_notes
from hostrouting.route_overlap.report import CidrReport, OverlapReport, SuggestedRoute
from hostrouting.testing import FakeHost, MemoryBackend


class Node(MemoryBackend):
    """A node whose ib0 shadows 172.16.0.0/16."""

    def __init__(self, *marked: Rule, default: bool = True) -> None:
        super().__init__()
        self._marked = marked
        connect(self, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
        if default:
            self.add_route("default", gateway="10.224.0.1", dev="eth0")

    def rules(self, family: int = IPV4) -> list[Rule]:
        return [*self._marked, *super().rules(family)]


def test_the_json_is_the_agreed_one() -> None:
    """The JSON of a report has the names, the order and the values that `check --json` promises."""
    report = prove_egress(Node(), ["172.16.8.0/22", "10.96.0.0/16"])
    assert json.dumps(report.to_mapping(mode="STRICT")) == (
        '{"ok": false, "mode": "STRICT", "expected_devs": ["eth0"], "cidrs": ['
        '{"cidr": "172.16.8.0/22", "ok": false, "findings": ['
        '{"kind": "overlap", "first": "172.16.8.0", "last": "172.16.11.255", "devs": ["ib0"], "dev": "ib0", '
        '"route": "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4"}], '
        '"suggested_routes": [{"destination": "172.16.8.0/22", "gateway": "10.224.0.1", "dev": "eth0", '
        '"takes_from": ["ib0"]}]}, '
        '{"cidr": "10.96.0.0/16", "ok": true, "findings": [], "suggested_routes": []}]}'
    )


def test_the_message_is_the_documentation() -> None:
    """The message of a report has the fault, the route that decides, the config to paste, and the
    addresses that its routes take.
    """
    report = prove_egress(Node(), ["172.16.8.0/22", "10.96.0.0/16"])
    route = '{"destination": "172.16.8.0/22", "gateway": "10.224.0.1", "dev": "eth0"}'
    message = f"""\
1 of 2 expected CIDRs do not leave entirely through eth0:
  172.16.8.0/22
    172.16.8.0 to 172.16.11.255: leaves through ib0 (172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4)
To fix this, set the following in hostRouting in the agent's config, then apply that config again:
  "staticRoutes": {{"enabled": true, "routes": [{route}]}}
  172.16.8.0/22 takes addresses from ib0"""
    assert str(report) == message


def test_the_message_without_default_route() -> None:
    """The message of a report without a default route names that and the next step, and the way of
    addresses that have one.
    """
    assert str(prove_egress(Node(default=False), ["10.96.0.0/16", "10.97.0.0/16"])) == (
        "the node has no IPv4 default route, so there is no route to 10.96.0.0/16, 10.97.0.0/16\n"
        f"Give the node a default route: {SEE_DHCP}."
    )
    node = Node(default=False)
    unknown = f"the node has no IPv4 default route {UNKNOWN_EXIT}"
    route = "(172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4)"
    assert prove_egress(node, ["172.16.8.0/22"]).verdict == (
        f"{unknown} 172.16.8.0/22 should leave:\n"
        f"  172.16.8.0/22\n    172.16.8.0 to 172.16.11.255: leaves through ib0 {route}"
    )


def test_a_suggestion_takes_the_place_of_a_configured_route() -> None:
    """A configured IPv6 route is left out if a route is suggested for its place, in which a missing
    metric means 1.
    """
    offender = ObservedRoute.parse("fd00:9::/64", "ib0", metric=256)
    new = SuggestedRoute(
        destination="fd00:9::/64", gateway="fd00::1", dev="eth0", offender=offender
    )
    kept = StaticRoute(destination="fd00:8::/64")
    routes = static_route("FD00:9:0::/64 dev ib0"), kept
    config = HostRoutingConfig(static_routes=StaticRoutesConfig(enabled=True, routes=routes))
    cidr = CidrReport(cidr="fd00:9::/64", suggested_routes=(new,))
    report = OverlapReport(expected_devs=("eth0",), cidrs=(cidr,), config=config)
    assert report.merged_routes.routes == (kept, new.to_config())


def test_what_an_author_may_not_have_meant(caplog: pytest.LogCaptureFixture) -> None:
    """A pattern that allows every device, and a fabric in a network of the node itself, are
    warnings, also as values in the log.
    """
    section = {
        "expectedCidrs": ["172.16.0.0/16"],
        "fabric": ["127.1.0.0/16"],
        "allowedDevs": ["*", "?*", "a*", "?"],
    }
    config = HostRoutingConfig.from_mapping({"routeOverlap": section})
    report = check_egress(MemoryBackend(), Expectation.of(config))
    assert [(note.kind, note.severity, note.reason.partition(",")[0]) for note in report.notes] == [
        ("local-network", "warning", "'127.1.0.0/16' is in 127.0.0.0/8"),
        ("allows-all", "warning", "'*' allows every device"),
        ("allows-all", "warning", "'?*' allows every device"),
    ]
    caplog.set_level(logging.DEBUG)
    log_notes(report, logging.getLogger(), task="check")
    logged = [vars(record)["finding"] for record in caplog.records]
    assert logged == [note.to_mapping() for note in report.notes]


def test_a_route_that_the_config_has_is_not_suggested() -> None:
    """A route that the config has is named as configured, and not suggested."""
    routes = {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]}
    section = {"expectedCidrs": ["172.16.8.0/22"]}
    config = HostRoutingConfig.from_mapping({"routeOverlap": section, "staticRoutes": routes})
    host = FakeHost(routes=Node())
    [cidr] = check_egress(host, expectation_on(host, config, Fabric())).cidrs
    assert cidr.findings
    assert cidr.suggested_routes == ()
    assert cidr.configured_routes == ("172.16.8.0/22",)


def test_a_report_has_the_routes_of_both_families() -> None:
    """A report lists the IPv6 routes that decide, in any order of the CIDRs."""
    node = Node()
    node.add_address("eth0", "fd00:9::4/64")
    node.add_route("::/0", gateway="fd00:9::1", dev="eth0")
    for cidrs in ["10.96.0.0/16", "fd00:96::/64"], ["fd00:96::/64", "10.96.0.0/16"]:
        report = prove_egress(node, cidrs)
        assert report.ok
        assert [route.destination for route in report.deciding] == ["::/0"]


def test_suggestions_complete_the_section_that_an_apply_accepts() -> None:
    """Suggested routes are merged with the accepted routes of the config, which are computed only
    if a route is suggested.
    """
    requested: list[str] = []

    def accepted() -> StaticRoutesConfig:
        requested.append("accepted")
        return StaticRoutesConfig(enabled=True, routes=(StaticRoute(destination="10.9.0.0/16"),))

    host = FakeHost(routes=Node())
    section = {"expectedCidrs": ["172.16.8.0/22"], "expectedDevs": ["eth0"]}
    routes = {"enabled": True, "routes": [{"destination": "10.8.0.0/16"}]}
    config = HostRoutingConfig.from_mapping({"routeOverlap": section, "staticRoutes": routes})
    report = check_egress(host, expectation_on(host, config, Fabric(), accepted=accepted))
    assert [route.destination for route in report.merged_routes.routes] == [
        "10.9.0.0/16",
        "172.16.8.0/22",
    ]
    right = HostRoutingConfig.from_mapping(
        {"routeOverlap": section | {"expectedCidrs": ["10.0.0.0/16"]}}
    )
    assert check_egress(host, expectation_on(host, right, Fabric(), accepted=accepted)).ok
    assert requested == ["accepted"]
