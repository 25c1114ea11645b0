"""A number of a config arrives wherever routes are completed, compared, printed or rendered.

These tests hold for each row of `ATTRIBUTES`, also for one that is added later.
"""

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.static_route_scripts import config_of, static_route

from hostrouting import HostRoutingConfig, InvalidConfigError, StaticRoute
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.routes import ATTRIBUTES, Route, RouteAttribute, resting
from hostrouting.static_routes.reconcile import resolve
from hostrouting.static_routes.script import render_script
from hostrouting.testing.strategies import static_routes

ROUTES = static_routes(IPV4) | static_routes(IPV6)
each_attribute = pytest.mark.parametrize("attribute", ATTRIBUTES, ids=lambda each: each.name)


def completed(route: StaticRoute) -> Route:
    """Return the route that an apply would install, by a device and gateway of its config."""
    [made] = resolve(
        [attrs.evolve(route, dev="eth0", gateway=route.gateway or "fe80::1")], []
    ).routes
    return made


@given(ROUTES)
def test_a_text_has_every_number(route: StaticRoute) -> None:
    """A route of a config is read back from its text, and equal."""
    assert static_route(str(route)) == route


@given(ROUTES)
def test_an_installed_route_has_every_number(route: StaticRoute) -> None:
    """An apply sets it, and recognises the route that it made."""
    installed = resting(completed(route))
    assert [each.read(installed) for each in ATTRIBUTES] == [
        getattr(route, each.name) for each in ATTRIBUTES
    ]
    assert attrs.evolve(route, dev=None, gateway=None).is_met_by(installed)


@each_attribute
@given(route=ROUTES, data=st.data())
def test_a_route_with_another_number_is_another_route(
    attribute: RouteAttribute, route: StaticRoute, data: st.DataObject
) -> None:
    """It does not meet the config, and its text is another one."""
    others = st.integers(max(1, attribute.numbers[0]), attribute.numbers[-1])
    other = data.draw(others.filter(lambda number: number != getattr(route, attribute.name)))
    change: dict[str, Any] = {attribute.name: other}
    changed = attrs.evolve(route, **change)
    installed = resting(completed(changed))
    assert not route.is_met_by(installed)
    assert f" {attribute.name} {other}" in str(installed)
    assert str(installed) != str(completed(route))


@each_attribute
def test_a_number_that_no_route_has_is_refused(attribute: RouteAttribute) -> None:
    """The first one beyond either end."""
    lowest = attribute.numbers[0]
    highest = attribute.numbers[-1]
    for number in lowest - 1, highest + 1:
        with pytest.raises(InvalidConfigError) as caught:
            StaticRoute.from_mapping({"destination": "172.16.1.0/24", attribute.name: number})
        assert [(error.path, error.message) for error in caught.value.errors] == [
            (
                attribute.name,
                f"expected a whole number from {lowest} to {highest}, found the number {number}",
            )
        ]


@each_attribute
def test_a_number_is_rendered_for_the_boot(attribute: RouteAttribute) -> None:
    """With the word of ip, between next hop and end; so it is in the intent."""
    highest = attribute.numbers[-1]
    way = {"destination": "172.16.1.0/24", "gateway": "10.224.0.1", "dev": "eth0"}
    route = StaticRoute.from_mapping({**way, attribute.name: highest})
    line = f"\n172.16.1.0/24 via 10.224.0.1 dev eth0 {attribute.name} {highest} \n"
    assert line in render_script(config_of([route])).decode()
    config = config_of([route])
    assert HostRoutingConfig.from_mapping(config.to_mapping()) == config
