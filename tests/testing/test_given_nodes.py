"""A machine in memory in one expression, and the texts of its routes."""

from typing import Any

import pytest
from support.kernel import needs_kernel

from hostrouting import Configure, HostRoutingConfig, check_node
from hostrouting.exceptions import BackendError, LinkNotFoundError
from hostrouting.host import IPV6, Address, Route
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend
from hostrouting.testing.route_texts import route
from phases import Context, run

DEFAULT = "default via 10.224.0.1 dev eth0"


def test_a_node_is_given_in_one_expression() -> None:
    """A node that is given in one expression has the links, addresses and routes that the methods
    would add.
    """
    given = MemoryBackend(
        links={"eth0": ["10.224.0.4/16", "fd00:1::4/64"], "ib0": []},
        routes=[DEFAULT, "default via fd00:1::1 dev eth0", "unreachable 9.0.0.0/8 metric 7"],
    )
    made = MemoryBackend()
    made.add_link("eth0")
    made.add_address("eth0", "10.224.0.4/16")
    made.add_address("eth0", "fd00:1::4/64")
    made.add_link("ib0")
    made.add_route("default", gateway="10.224.0.1", dev="eth0")
    made.add_route("::/0", gateway="fd00:1::1", dev="eth0")
    made.add_route("9.0.0.0/8", kind="unreachable", metric=7)
    assert given.links() == made.links()
    assert given.routes() == made.routes()
    assert given.routes(IPV6) == made.routes(IPV6)


def test_routes_of_one_place_keep_their_order() -> None:
    """Given routes of one place keep their order."""
    routes = ["9.0.0.0/8 via 10.224.0.9 dev eth0 proto dhcp", "9.0.0.0/8 via 10.224.0.8 dev eth0"]
    node = MemoryBackend(links={"eth0": ["10.224.0.4/16"]}, routes=routes)
    assert [str(each) for each in node.routes() if each.network == 9 << 24] == routes


def test_a_fake_has_a_readable_line() -> None:
    """The parts of a fake machine have a readable `repr`, for the fixtures of a failing test."""
    host = FakeHost(MemoryBackend(links={"eth0": []}))
    host.files.write("/etc/hosts", b"", mode=0o644)
    parts = host.routes, host.files, host.files.tree, host.services, host.lock
    assert [*map(repr, parts)] == [
        "MemoryBackend(lo, eth0)",
        "<MemoryFiles: 1 calls>",
        "<MemoryTree: 1 files and links>",
        "<MemoryServices: 0 calls>",
        "<MemoryLock: 0 calls>",
    ]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            {"links": ["eth0"]},
            TypeError,
            "links must map names to addresses (got ['eth0']); give {'eth0': []}",
        ),
        (
            {"links": {"eth0": "10.0.0.4/8"}},
            TypeError,
            "links['eth0'] must be a list of addresses (got '10.0.0.4/8'); give ['10.0.0.4/8']",
        ),
        (
            {"routes": [9]},
            TypeError,
            f"a route is text such as '{DEFAULT}' (got 9); insert_route takes a Route",
        ),
        (
            {"routes": [DEFAULT]},
            LinkNotFoundError,
            "no such device: eth0; give it in links, or add it by add_link",
        ),
        (
            {"links": {"eth0": []}, "routes": [DEFAULT]},
            BackendError,
            f"route {DEFAULT}: Nexthop has invalid gateway (Network is unreachable)",
        ),
    ],
)
def test_a_node_that_cannot_be_is_refused(
    given: dict[str, Any], error: type[Exception], text: str
) -> None:
    """A node that cannot exist is refused with the argument, its value and the correct form, or
    with the kernel's words.
    """
    with pytest.raises(error) as caught:
        MemoryBackend(**given)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it has no destination"),
        ("blackhole", "it has no destination"),
        (
            "default 10.224.0.1",
            "'10.224.0.1' is not one of via, dev, src, proto, table, scope, metric",
        ),
        ("default via", "'via' has no value"),
        ("default dev eth0 metric low", "'low' is not a metric"),
        ("default dev eth0 proto upstream", "'upstream' is not a proto"),
        ("10.0.0.1/8 dev eth0", "10.0.0.1/8 has host bits, the network is 10.0.0.0/8"),
        ("9.0.0.0/8 via 10.224.0.1", "9.0.0.0/8 needs a 'dev', because it is a unicast route"),
    ],
)
def test_a_text_that_is_not_a_route_is_refused(text: str, problem: str) -> None:
    """A text that is not a route is refused with the text, the fault in it, and a correct route."""
    with pytest.raises(ValueError, match="cannot read the route") as caught:
        route(text)
    step = f"write it as '{DEFAULT}'; insert_route takes any other route"
    assert str(caught.value) == f"cannot read the route {text!r}: {problem}; {step}"


def test_a_text_is_what_ip_shows() -> None:
    """The text of a route is read as `ip` prints it, with names or numbers of protocol and table,
    and with IPv6 gateways and metrics.
    """
    texts = [
        "9.0.0.0/8 via inet6 fe80::1 dev eth0 table 99 proto 77 metric 3",
        "9.9.9.9 dev eth0 proto static scope link src 10.224.0.4",
        "prohibit fd00:9::/32 metric 1024",
    ]
    assert [str(route(text)) for text in texts] == texts
    assert route(texts[0]).gateway == Address.parse("fe80::1")
    assert route("default dev eth0 table local scope global") == Route.parse(
        "0.0.0.0/0", dev="eth0", table=255, protocol=3, scope=0
    )
    assert route("default via fd00:1::1 dev eth0").metric == 1024


@needs_kernel
def test_a_kernel_node_may_have_the_config_of_the_readme() -> None:
    """A network in `expectedDevs` stands for a device of a KernelNode, as it does on a real node,
    whose gateway answers; so a test of an agent may use its real config.
    """
    config = HostRoutingConfig.from_mapping(
        {
            "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]},
            "routeOverlap": {
                "expectedCidrs": ["172.16.8.0/22"],
                "mode": "STRICT",
                "expectedDevs": ["10.224.0.0/16"],
            },
        }
    )
    with KernelNode.made() as node:
        for dev, address in (("eth0", "10.224.0.4/16"), ("ib0", "172.16.1.4/16")):
            node.add_link(dev)
            node.add_address(dev, address)
        node.add_route("default via 10.224.0.1 dev eth0")
        backend = NetlinkBackend(netns=node.name)
        report = run(Configure(config, host=FakeHost(backend)), timeout=20)
        assert report.ok, report
        assert not report.degraded
        assert check_node(Context(), config, FakeHost(backend)).overlap.ok
        link = next(each for each in backend.links() if each.name == "eth0")
        assert (link.kind, link.carrier) == ("veth", True)
