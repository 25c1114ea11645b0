"""The verdict on a record is that of `check` and `plan`, by a function that works without a machine
and fits into a pickle.
"""

import pickle
import re
import subprocess
import sys

import attrs
import pytest
from support.fleets import CONFIG, FULL, OWN_ROUTE, fleet

from hostrouting import HostRoutingConfig
from hostrouting.fleet import NodeRecord, NodeVerdict, check_record
from hostrouting.host import IPV6, ObservedRoute, Rule

LOST, RIGHT = (NodeRecord.parse(line) for line in fleet(2))
STRICT = HostRoutingConfig.from_mapping(
    {**CONFIG.to_mapping(), "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"}}
)


def kinds(verdict: NodeVerdict) -> list[tuple[str, str]]:
    assert verdict.report is not None
    return [
        *((cidr, found.kind) for cidr, found in verdict.report.overlap.findings),
        *(("", found.kind) for found in verdict.report.findings),
    ]


def test_it_loads_no_adapter_and_no_test_tool() -> None:
    """A worker of a cluster that unpickles `check_record` imports neither an adapter nor a test
    tool.
    """
    program = (
        # Older releases of attrs load others, too.
        "import attrs, pickle, sys; known = {*sys.modules}; from hostrouting.fleet import check_record;"
        "pickle.loads(pickle.dumps(check_record));"
        "print(*sorted({*sys.modules} - known))"
    )
    words = [sys.executable, "-c", program]
    loaded = set(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())
    absent = (
        "hostrouting.host.(netlink|files|imds|pyroute|systemd.systemctl|packets.(nft|ebtables))$"
        "|pytest|hypothesis|pyroute2|hostrouting.testing|subprocess|ctypes"
    )
    assert not [name for name in loaded if re.match(absent, name)]


@pytest.mark.parametrize("planned", [False, True])
def test_a_verdict_can_be_pickled(planned: bool) -> None:
    """A verdict that was pickled comes back equal."""
    verdict = check_record(LOST, STRICT, planned=planned)
    assert pickle.loads(pickle.dumps(verdict)) == verdict  # noqa: S301


def test_without_a_config_the_nodes_own_counts() -> None:
    """A record is checked by the node's own config, with its lost routes as errors, or by a given
    config, which is not applied yet.
    """
    own = check_record(LOST)
    tried = check_record(LOST, STRICT)
    assert kinds(own) == [("172.16.8.0/22", "overlap"), ("", "lost-route")]
    assert kinds(tried) == [("172.16.8.0/22", "overlap")]
    assert own.report is not None
    assert tried.report is not None
    assert own.report.severities == {"warning", "error"}
    assert tried.report.severities == {"error"}
    assert kinds(check_record(RIGHT)) == []


def test_networks_of_the_config_count_as_announced() -> None:
    """A network in `fabric` of the config counts as announced if it is longer than the route,
    though the record does not have the agent's files.
    """
    section = attrs.evolve(STRICT.route_overlap, fabric=("172.16.8.0/24",))
    config = attrs.evolve(STRICT, route_overlap=section)
    assert kinds(check_record(RIGHT, config)) == [("172.16.8.0/22", "announced")]


def test_a_node_without_a_config() -> None:
    """A record without a config has a finding of its own, and other words for a damaged file; with
    a given config it is checked.
    """
    bare = attrs.evolve(RIGHT, config=None, checksum="")
    assert kinds(check_record(bare)) == [("", "not-applied")]
    assert str(check_record(bare)) != str(check_record(attrs.evolve(bare, checksum="0123456789ab")))
    assert kinds(check_record(bare, STRICT)) == []


def test_what_a_record_cannot_answer_is_listed() -> None:
    """A verdict lists what a record cannot answer, such as units and files, and is undecided where
    only the kernel could answer.
    """
    plain = check_record(RIGHT)
    dual = check_record(FULL)
    assert plain.report is not None
    assert dual.report is not None
    assert (
        {"units, gates and boot files", "silent routers"}
        <= {*plain.report.not_asked}
        < {*dual.report.not_asked}
    )
    way_out = ObservedRoute.parse("::/0", "eth0", "fe80::1")
    rules = *FULL.rules, Rule(5, table=9, source=(1, 128), family=IPV6)
    by_source = attrs.evolve(RIGHT, routes=(*RIGHT.routes, way_out), rules=rules)
    assert " source " in check_record(by_source, CONFIG).undecided
    rules = *RIGHT.rules, Rule(9, table=9, source=(1, 32))
    unseen = attrs.evolve(RIGHT, routes=(ObservedRoute(0, 0, nexthop_id=7),), rules=rules)
    assert "next hops" in check_record(unseen).undecided


@pytest.mark.parametrize(
    ("merged", "found", "undecided"),
    [
        (True, [], ""),
        (False, [("172.16.8.0/22", "local")], ""),
        (None, [], "if no rule was ever changed"),
    ],
)
def test_a_record_says_which_of_two_tables_is_searched_first(
    merged: bool | None, found: list[tuple[str, str]], undecided: str
) -> None:
    """A record says which of the tables local and main is searched first, which depends on the
    rules that the node ever had; without that, the verdict is undecided.
    """
    local = ObservedRoute.parse("172.16.0.0/16", "lo", kind="local", table=255)
    verdict = check_record(
        attrs.evolve(RIGHT, routes=(*RIGHT.routes, local), merged=merged), STRICT
    )
    assert undecided in verdict.undecided
    if not undecided:
        assert kinds(verdict) == found


def test_a_plan_is_proven() -> None:
    """A plan of a record is checked with the routes that an apply would change; what it would make
    worse is an error, and what cannot be added leaves it undecided.
    """
    mended = check_record(LOST, STRICT, planned=True)
    assert kinds(mended) == []
    assert mended.changes == 1
    assert mended.overlaps_now
    already = check_record(RIGHT, STRICT, planned=True)
    assert kinds(already) == []
    assert already.changes == 0
    assert not already.overlaps_now
    none = HostRoutingConfig.from_mapping({"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"]}})
    worse = check_record(RIGHT, none, planned=True)
    assert kinds(worse) == [("172.16.8.0/22", "overlap"), ("", "worse")]
    assert f"- {OWN_ROUTE}" in str(worse)
    # `{}` is meant to drop all addresses.
    dropped = check_record(RIGHT, HostRoutingConfig(), planned=True)
    assert (kinds(dropped), dropped.changes) == ([], 1)
    stuck = check_record(attrs.evolve(LOST, devices=LOST.devices[:1]), STRICT, planned=True)
    assert "there is no network device eth0" in stuck.undecided
    assert stuck.report is None
    assert stuck.overlaps_now


def test_a_route_that_waits_is_not_a_change() -> None:
    """A route that waits for the default route which the node does not have does not count as a change."""
    config = HostRoutingConfig.from_mapping(
        {"staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]}}
    )
    waiting = check_record(attrs.evolve(LOST, routes=LOST.routes[1:]), config, planned=True)
    assert waiting.changes == 0
