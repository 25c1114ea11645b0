"""The command lines in outputs: each can be pasted as it is, and one function renders those with a
path.
"""

import re
import shlex
from argparse import Namespace
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import FEW
from support.static_route_nodes import made_host

from hostrouting.base.commands import command_line
from hostrouting.boot import INTENT_PATH
from hostrouting.cli.parser import parser
from hostrouting.config import HostRoutingConfig
from hostrouting.exceptions import HostRoutingError
from hostrouting.host import OUR_PROTOCOL, RouteChange
from hostrouting.net.addresses import IPV4
from hostrouting.node.boot_files import boot_files
from hostrouting.node.check import check_node
from hostrouting.node.configure import Configure, Reset
from hostrouting.testing.strategies import configs
from phases import Context, Task, plan, run
from phases.testing import ManualClock

COMMANDS = "plan|apply|check|record|explain|render|reset|sweep|watch|schema|status"
#: A command line ends with its line, or before a mark that a shell would not give to the command
#: either.
LINE = re.compile(rf"\bhostrouting (?:{COMMANDS})\b(?: (?:'[^'\n]*'|[^\s'\",;`)]+))*")
PATHS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@cache
def understood(line: str) -> Namespace:
    """What our parser makes of a command line; it ends the test if it refuses it."""
    return parser().parse_args(shlex.split(line)[1:])


@given(PATHS, st.none() | PATHS)
def test_a_command_line_means_the_paths_that_it_was_made_of(path: str, root: str | None) -> None:
    """Whatever the paths contain; one that looks like an option is written as a path."""
    meant = understood(command_line("apply", path, root=root))
    assert (meant.config.removeprefix("./"), meant.root) == (path.removeprefix("./"), root)
    assert command_line("apply", "-") == "hostrouting apply -"


@given(
    configs(IPV4), st.sets(st.sampled_from(["static-routes.sh", "hostrouting.json", "hostrouting"]))
)
@settings(max_examples=FEW)
def test_every_command_line_in_an_output_can_be_run(
    config: HostRoutingConfig, lost: set[str]
) -> None:
    """Checks, files, plans, applies and resets, of any config, on a node that then loses its routes
    and some files.
    """
    host, told = made_host(), list[object]()

    def ask(*tasks: Task) -> None:
        ctx = Context(clock=ManualClock(auto=True))
        told.extend(
            check_node(ctx, config, host, seconds=0, path="my config.json").to_mapping().items()
        )
        try:
            told.extend(file.content.decode() for file in boot_files(config, host=host))
            told.extend(plan(Configure(config, host=host), ctx))
        except HostRoutingError as error:
            told.append(error)
        told.extend(run(task, ctx).error for task in tasks)

    ask(Configure(config, host=host))
    ours = [route for route in host.routes.routes() if route.protocol == OUR_PROTOCOL]
    host.routes.apply([RouteChange.remove(route) for route in ours])
    for name in lost:
        host.files.remove(f"/etc/aks-flex-node/{name}")
    ask(Configure(config, host=host), Reset(config, host=host))
    lines = [understood(line) for text in told for line in LINE.findall(str(text))]
    assert {getattr(line, "config", None) for line in lines} <= {
        None,
        "my config.json",
        INTENT_PATH,
    }
