"""A metric of a config arrives wherever routes are completed, compared, printed or rendered."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.static_route_scripts import config_of, static_route

from hostrouting import HostRoutingConfig, InvalidConfigError, StaticRoute
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.routes import Route, resting
from hostrouting.static_routes.reconcile import resolve
from hostrouting.static_routes.script import render_script
from hostrouting.testing.strategies import static_routes

ROUTES = static_routes(IPV4) | static_routes(IPV6)


def completed(route: StaticRoute) -> Route:
    """Return the route that an apply would install, by a device and gateway of its config."""
    [made] = resolve(
        [attrs.evolve(route, dev="eth0", gateway=route.gateway or "fe80::1")], []
    ).routes
    return made


@given(ROUTES)
def test_a_text_has_the_metric(route: StaticRoute) -> None:
    """A route of a config is read back from its text, and equal."""
    assert static_route(str(route)) == route


@given(ROUTES)
def test_an_installed_route_has_the_metric(route: StaticRoute) -> None:
    """An apply sets it, and recognises the route that it made."""
    installed = resting(completed(route))
    assert installed.metric == route.metric
    assert attrs.evolve(route, dev=None, gateway=None).is_met_by(installed)


@given(route=ROUTES, data=st.data())
def test_a_route_with_another_metric_is_another_route(
    route: StaticRoute, data: st.DataObject
) -> None:
    """It does not meet the config, and its text is another one."""
    others = st.integers(1, 0xFFFFFFFF).filter(lambda number: number != route.metric)
    other = data.draw(others)
    changed = attrs.evolve(route, metric=other)
    installed = resting(completed(changed))
    assert not route.is_met_by(installed)
    assert f" metric {other}" in str(installed)
    assert str(installed) != str(completed(route))


@pytest.mark.parametrize("number", [-1, 4294967296])
def test_a_metric_that_no_route_has_is_refused(number: int) -> None:
    """The first one beyond either end."""
    with pytest.raises(InvalidConfigError) as caught:
        StaticRoute.from_mapping({"destination": "172.16.1.0/24", "metric": number})
    assert [(error.path, error.message) for error in caught.value.errors] == [
        ("metric", f"expected a whole number from 0 to 4294967295, found the number {number}")
    ]


def test_a_metric_is_rendered_for_the_boot() -> None:
    """With the word of ip, between next hop and end; so it is in the intent."""
    route = StaticRoute(
        destination="172.16.1.0/24", gateway="10.224.0.1", dev="eth0", metric=4294967295
    )
    config = config_of([route])
    line = "\n172.16.1.0/24 via 10.224.0.1 dev eth0 metric 4294967295 \n"
    assert line in render_script(config).decode()
    assert HostRoutingConfig.from_mapping(config.to_mapping()) == config
