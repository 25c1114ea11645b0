"""Small nodes on which static routes meet foreign routes and routes of earlier configs; and configs
for them.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from support import small_world
from support.command_line import enter
from support.overlap_worlds import World
from support.small_world import pick

from hostrouting import HostRoutingConfig, StaticRoute, StaticRoutesConfig
from hostrouting.boot import INTENT_PATH, Intent
from hostrouting.boot.program import program_for
from hostrouting.host import Route
from hostrouting.net.routes import ATTRIBUTE_NAMES, ATTRIBUTES, RouteAttribute
from hostrouting.static_routes import render_script
from hostrouting.testing import FakeHost, KernelNode

#: Without a virtual environment: its folders would be of no use to the program.
_PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
_DESTINATIONS = (
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.0.0/24",
    "10.1.0.2/32",
    "192.168.7.0/24",
    "172.16.0.0/12",
)
_GATEWAYS = ("10.0.0.7", "10.1.0.3", "10.1.0.200", "10.3.0.2", "192.168.7.254", "172.16.0.1")


@st.composite
def default_routes(draw: DrawFn) -> Route:
    """Draw a default route of any kind; some wrongly carry our mark."""
    route = draw(
        small_world.routes(protocols=(3, 16, 142)).filter(lambda route: route.kind == "unicast")
    )
    return Route(
        network=0,
        prefix_length=0,
        gateway=route.gateway,
        dev=route.dev,
        metric=pick(draw, 0, 50, 100),
        protocol=route.protocol,
        nexthops=route.nexthops,
        tos=route.tos,
        onlink=route.onlink,
    )


@st.composite
def worlds(draw: DrawFn) -> World:
    """A node on which much stands in each other's way."""
    foreign = small_world.routes(protocols=(3, 4, 16, 142, 142))
    pairs = st.tuples(small_world.devices(), small_world.addresses())
    return World(
        addresses=draw(st.lists(pairs, min_size=1, max_size=4)),
        routes=draw(st.lists(default_routes(), max_size=3)) + draw(st.lists(foreign, max_size=8)),
        repeated=draw(st.integers(0, 0x7FF)),
        down=draw(st.none() | st.none() | small_world.devices()),
    )


def configs() -> st.SearchStrategy[HostRoutingConfig]:
    """Configs of the same small world; some name a device that does not exist."""
    routes = st.builds(
        StaticRoute,
        destination=st.sampled_from(_DESTINATIONS),
        gateway=st.none() | st.sampled_from(_GATEWAYS),
        dev=st.none() | small_world.devices() | st.sampled_from([*small_world.DEVICES, "absent"]),
        **{each.name: st.sampled_from([0, 0, *_numbers(each)]) for each in ATTRIBUTES},
    )
    several = st.lists(
        routes, min_size=1, max_size=5, unique_by=lambda route: (route.destination, route.metric)
    )
    return several.map(config_of)


def _numbers(attribute: RouteAttribute) -> list[int]:
    """Numbers that foreign routes have, too."""
    return [number for number in (50, attribute.numbers[-1]) if number in attribute.numbers]


def static_route(text: str) -> StaticRoute:
    """Return a route of a config, by the text that `str` returns of it."""
    destination, *words = text.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    return StaticRoute(
        destination=destination,
        gateway=given.get("via"),
        dev=given.get("dev"),
        **{name: int(given.get(name, 0)) for name in ATTRIBUTE_NAMES},
    )


def config_of(routes: Sequence[StaticRoute]) -> HostRoutingConfig:
    """A config of these routes."""
    return HostRoutingConfig(static_routes=StaticRoutesConfig(enabled=True, routes=tuple(routes)))


def install(host: FakeHost, config: HostRoutingConfig, **beside: object) -> FakeHost:
    """Install a config, with members beside it; return the host."""
    text = json.loads(Intent(config=config).file.content) | beside
    host.files.write(INTENT_PATH, json.dumps(text).encode(), mode=0o644)
    return host


def impatient(
    config: HostRoutingConfig,
    *,
    waits: int = 0,
    folder: str = "/nonexistent",
    exits: Mapping[int, str] | None = None,
    program: str = "/nonexistent",
) -> bytes:
    """The boot script with less patience than it has, with another folder than this machine's own
    under /run, and without the program.
    """
    script = render_script(config, exits)
    for usual, other in (
        ("waits=30\n", f"waits={waits}\n"),
        ("folder=/run/aks-flex-node\n", f"folder={folder}\n"),
        ("program=/etc/aks-flex-node/hostrouting.zip\n", f"program={program}\n"),
    ):
        assert script.count(usual.encode()) == 1
        script = script.replace(usual.encode(), other.encode())
    return script


def boot(
    node: KernelNode,
    *routes: StaticRoute,
    now: bool = False,
    waits: int = 0,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, list[str]]:
    """Run the boot script with less patience and without the program; return its exit status, and
    the output that an operator reads.
    """
    with tempfile.TemporaryDirectory() as fresh:
        script = impatient(config_of(routes), waits=waits, folder=str(folder or fresh))
        prefix = ["nsenter", f"--net=/run/netns/{node.name}"]
        return _run(prefix, script, now=now, environment=environment)


#: Installs the files of a folder on an entered node.
_INSTALL = """
mkdir -p /etc/aks-flex-node /run/aks-flex-node
cp "$0"/* /etc/aks-flex-node/
exec "$@"
"""


def boot_with_program(
    node: KernelNode,
    config: HostRoutingConfig,
    *,
    now: bool = False,
    waits: int = 0,
    exits: Mapping[int, str] | None = None,
    before: str = "",
    environment: Mapping[str, str] | None = None,
) -> tuple[int, list[str]]:
    """Do the same where the program and the config are installed; first run the commands `before`
    on the node, beside which its files are gone afterwards.
    """
    with tempfile.TemporaryDirectory() as folder:
        intent = Intent(config=config, exits=exits).text_over(None, others=())
        Path(folder, "hostrouting.json").write_bytes(intent or b"")
        Path(folder, "hostrouting.zip").write_bytes(program_for(None, _PYTHON))
        script = impatient(
            config,
            waits=waits,
            folder="/run/aks-flex-node",
            exits=exits,
            program="/etc/aks-flex-node/hostrouting.zip",
        )
        prefix = [*enter(node), "sh", "-ec", _INSTALL, folder]
        return _run(
            [*prefix, "bash", "-ec", f'{before}\nexec "$@"', "bash"],
            script,
            now=now,
            environment=environment,
        )


def _run(
    prefix: Sequence[str],
    script: bytes,
    *,
    now: bool,
    environment: Mapping[str, str] | None,
) -> tuple[int, list[str]]:
    variables = [f"{name}={value}" for name, value in (environment or {}).items()]
    argv = [*prefix, "env", *variables, "bash", "-s", *(["now"] if now else [])]
    done = subprocess.run(argv, input=script, capture_output=True, check=False, timeout=300)
    return done.returncode, (done.stdout + done.stderr).decode().splitlines()
