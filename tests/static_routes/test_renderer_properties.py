"""Properties of the script of any config."""

import subprocess

from hypothesis import given, settings
from support.examples import FEW

from hostrouting import HostRoutingConfig, StaticRoute
from hostrouting.static_routes.script import render_script
from hostrouting.testing import strategies


def row_of(route: StaticRoute) -> str:
    """Return the route's row in the script, in the words of `ip`, with `?` for what is completed."""
    gateway = route.gateway or "?"
    dev = route.dev or "?"
    if ":" in route.destination:
        destination = route.destination.removesuffix("/128")
        end = "pref medium"
    else:
        destination = route.destination.removesuffix("/32")
        end = ""
        if ":" in gateway:
            gateway = f"inet6 {gateway}"
    metric = f"metric {route.metric} " if route.metric else ""
    return f"{destination} via {gateway} dev {dev} {metric}{end}"


@settings(max_examples=FEW)
@given(strategies.configs())
def test_any_config_is_data_to_bash(config: HostRoutingConfig) -> None:
    """Bash reads the routes of any valid config as the words that the config has, and runs nothing
    of them.
    """
    script = render_script(config)
    start = script.index(b"routes[4]=")
    text = script[start : script.index(b"\n\n", start)]
    program = b"LC_ALL=C\nset -f\n" + text + b'\nprintf %s "${routes[@]}"\n'
    done = subprocess.run(["bash", "-r"], input=program, capture_output=True, check=True, env={})
    rows = done.stdout.decode().replace("|", "").splitlines()
    expected = [row_of(route) for route in config.static_routes.routes]
    assert sorted(row for row in rows if row) == sorted(expected)
    assert done.stderr == b""
