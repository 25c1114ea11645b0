"""Properties of the script of any config."""

import subprocess

from hypothesis import example, given, settings
from support.examples import FEW

from hostrouting import HostRoutingConfig
from hostrouting.config.sections import DEFAULT_ALLOWED_DEVS
from hostrouting.net.addresses import Prefix
from hostrouting.route_overlap.script import config_in, render_script
from hostrouting.testing import strategies


@settings(max_examples=FEW)
@given(strategies.configs())
def test_any_config_is_data_to_bash(config: HostRoutingConfig) -> None:
    """Bash reads the values of any valid config as the words that the config has, and runs nothing
    of them.
    """
    script = render_script(config)
    values = script[script.index(b"mode=") : script.index(b"# --- functions of both")]
    words = (
        b'"$mode" "${roots[@]}" "${points[@]}" "${firsts[*]}" "${lasts[*]}" "$verdict" '
        b'"$allowed" "${given[*]}" "$fabric" "$beyond"'
    )
    program = b'LC_ALL=C\nset -f\n%b\nprintf "%%s\\n" %b\n' % (values, words)
    done = subprocess.run(["bash", "-r"], input=program, capture_output=True, check=True, env={})
    section = config.route_overlap
    patterns = dict.fromkeys((*DEFAULT_ALLOWED_DEVS, *section.allowed_devs))
    output = done.stdout.decode().splitlines()
    assert len(output) == 12
    assert output[0] == section.mode
    points = map(Prefix.parse, [*output[3].split(), *output[4].split()])
    assert {str(point.masked) for point in points} == {*section.cidrs}
    assert output[7].rpartition(" leave")[0] == ", ".join(section.cidrs)
    assert output[8] == "|".join(patterns)
    assert output[9].split() == [*section.expected_devs]
    assert output[10] in {"auto", "off"}
    assert output[11] in {"", "after", "fabric"}
    assert done.stderr == b""


@example(
    HostRoutingConfig.from_mapping(
        {"routeOverlap": {"expectedCidrs": [], "expectedDevs": ["eth0", "10.224.0.0/16"]}}
    )
)
@given(strategies.configs())
def test_it_has_the_section_of_its_config(config: HostRoutingConfig) -> None:
    """The addresses, devices, patterns and mode of a config can be read from its script."""
    section = config.route_overlap
    rendered = config_in(render_script(config))
    assert rendered is not None
    read = rendered.route_overlap
    assert {*read.cidrs} == {*section.cidrs}
    assert {*read.expected_devs} == {*section.expected_devs}
    assert {*read.allowed_devs} == {*section.allowed_devs} - {*DEFAULT_ALLOWED_DEVS}
    assert read.mode is section.mode
