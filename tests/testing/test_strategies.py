"""Random configs: the ones to which they shrink, and an image that accepts them."""

from collections.abc import Callable
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from support.examples import FEW

from hostrouting import Configure, Host, HostRoutingConfig, ProbeSNATConfig
from hostrouting.testing.strategies import configs, probe_snat_configs
from phases import run

#: By what a config has, the config that is left of it.
SIMPLEST: dict[str, tuple[Callable[[HostRoutingConfig], object], dict[str, Any]]] = {
    "anything": (bool, {}),
    "a route with a gateway": (
        lambda config: any(route.gateway for route in config.static_routes.routes),
        {
            "staticRoutes": {
                "enabled": True,
                "routes": [{"destination": "172.16.8.0/22", "gateway": "10.224.0.1"}],
            }
        },
    ),
    "two routes": (
        lambda config: len(config.static_routes.routes) == 2,
        {
            "staticRoutes": {
                "enabled": True,
                "routes": [
                    {"destination": "172.16.8.0/22"},
                    {"destination": "172.16.8.0/22", "metric": 1},
                ],
            }
        },
    ),
    "an expected CIDR of IPv6": (
        lambda config: any(":" in cidr for cidr in config.route_overlap.expected_cidrs),
        {"routeOverlap": {"expectedCidrs": ["fd00:9::/32"]}},
    ),
    "a sweep": (
        lambda config: config.stale_cni.enabled,
        {"staleCni": {"enabled": True, "podCidrs": ["172.16.8.0/22"]}},
    ),
    "a service that watches": (
        lambda config: config.watch.enabled and config.watch.mode == "service",
        {"watch": {"enabled": True, "mode": "service"}},
    ),
    "no gate": (lambda config: not config.gates, {"gates": []}),
}


@pytest.mark.parametrize(("wanted", "simplest"), SIMPLEST.values(), ids=SIMPLEST)
def test_a_failing_config_shrinks_to_what_fails(
    wanted: Callable[[HostRoutingConfig], object], simplest: dict[str, Any]
) -> None:
    """A failing random config shrinks within 400 configs to the failing part alone, with usual
    values.
    """
    drawn = 0

    def is_wanted(config: HostRoutingConfig) -> bool:
        nonlocal drawn
        drawn += 1
        return bool(wanted(config))

    only = settings(phases=[Phase.generate, Phase.shrink], max_examples=1000, database=None)
    found = find(configs(), is_wanted, settings=only, random=Random(0))
    assert found.to_mapping() == simplest
    assert drawn <= 400


@pytest.mark.slow
@settings(max_examples=FEW)
@given(configs(image=True))
def test_an_image_accepts_its_configs(config: HostRoutingConfig) -> None:
    """An apply of a random config for images succeeds in a folder that has nothing but the Python
    that a gate needs in STRICT mode.
    """
    with TemporaryDirectory() as folder:
        Host.offline(folder).files.write("/usr/bin/python3", b"", mode=0o755)
        report = run(Configure(config, host=Host.offline(folder)))
    assert report.error is None


@given(probe_snat_configs(image=True))
def test_the_device_of_probes_is_named_for_an_image(section: ProbeSNATConfig) -> None:
    """A random config for images names the device of probes, which only a live node can look up."""
    assert section.dev or not section.enabled


def test_a_config_at_random_may_need_a_live_node() -> None:
    """A random config without `image` may lack the device of probes."""
    once = settings(phases=[Phase.generate], max_examples=1000, database=None)
    find(
        configs(),
        lambda config: config.probe_snat.enabled and not config.probe_snat.dev,
        settings=once,
    )
