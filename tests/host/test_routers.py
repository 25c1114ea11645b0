"""The routers of the tests: the kernel takes their advertisements as it takes those of real ones."""

from collections.abc import Iterator

import pytest
from support.kernel import needs_kernel
from support.routers import SECOND_ROUTER, Prefix, RouteInformation, WiredNode, advertisement

pytestmark = needs_kernel


@pytest.fixture
def node() -> Iterator[WiredNode]:
    with WiredNode.made() as made:
        made.add_links("e0", "e1")
        made.switch(e0__accept_ra_rt_info_max_plen=64)
        yield made


def routes(node: WiredNode, destination: str) -> list[str]:
    """Return the routes of a destination, without the time to their end."""
    lines = node.ip("-6", "route", "show", "exact", destination).splitlines()
    return [" ".join(word for word in line.split() if not word.endswith("sec")) for line in lines]


def addresses(node: WiredNode) -> list[str]:
    shown = node.ip("-6", "-o", "address", "show", "dev", "e0", "scope", "global")
    return [line.split()[3] for line in shown.splitlines()]


def test_nothing_happens_unasked(node: WiredNode) -> None:
    """Without an advertisement a device has the addresses and routes that it was given."""
    assert node.ip("-6", "route", "show", "default") == ""
    assert addresses(node) == []
    assert routes(node, "fe80::/64") == [
        f"fe80::/64 dev {dev} proto kernel metric 256 pref medium" for dev in ("e0", "e1")
    ]


@pytest.mark.parametrize("preference", ["high", "medium", "low"])
def test_a_default_route(node: WiredNode, preference: str) -> None:
    """It has the router as its gateway, its preference and its lifetime, until the router takes it back."""
    with node.router("e0") as router:
        router.advertise(preference=preference, lifetime=600)
        wanted = f"default via fe80::a dev e0 proto ra metric 1024 expires hoplimit 64 pref {preference}"
        assert routes(node, "default") == [wanted]
        assert "expires 600sec" in node.ip("-6", "route") or "expires 599sec" in node.ip("-6", "route")
        router.advertise(lifetime=0)
    assert routes(node, "default") == []


def test_two_routers_of_a_link(node: WiredNode) -> None:
    """Each has its own default route."""
    with node.router("e0") as one, node.router("e0", SECOND_ROUTER) as other:
        one.advertise()
        other.advertise()
    assert [line.split()[2] for line in routes(node, "default")] == ["fe80::a", "fe80::b"]


@pytest.mark.parametrize(
    ("prefix", "is_route", "is_address"),
    [
        (Prefix("fd02::/64"), True, True),
        (Prefix("fd02::/64", autonomous=False), True, False),
        (Prefix("fd02::/64", on_link=False), False, True),
        (Prefix("fd02::/60"), True, False),
    ],
)
def test_a_prefix(node: WiredNode, prefix: Prefix, *, is_route: bool, is_address: bool) -> None:
    """It is on the link, and one of 64 bits is that of an address, unless it says otherwise."""
    with node.router("e0") as router:
        router.advertise(lifetime=0, options=[prefix])
    assert bool(routes(node, prefix.cidr)) == is_route
    assert bool(addresses(node)) == is_address
    assert routes(node, "default") == []


def test_a_more_specific_route(node: WiredNode) -> None:
    """It has its own preference and lifetime."""
    with node.router("e0") as router:
        router.advertise(lifetime=0, options=[RouteInformation("fd02::/48", preference="low")])
        [route] = routes(node, "fd02::/48")
        assert route.startswith("fd02::/48 via fe80::a dev e0 proto ra metric 1024 expires")
        assert route.endswith("pref low")
        router.advertise(lifetime=0, options=[RouteInformation("fd02::/48", lifetime=0)])
    assert routes(node, "fd02::/48") == []


def test_the_bytes_of_an_advertisement() -> None:
    """Type, hop limit 64, preference, lifetime; then the options, whose lengths count eight bytes each."""
    options: list[Prefix | RouteInformation] = [Prefix("fd02::/64"), RouteInformation("fd03::/16", preference="high")]
    packed = advertisement(lifetime=258, preference="low", options=options)
    assert packed[:8].hex() == "8600000040180102"
    assert packed[16:20].hex() == "030440c0"
    assert packed[48:52].hex() == "18031008"
    assert len(packed) == 16 + 32 + 24
