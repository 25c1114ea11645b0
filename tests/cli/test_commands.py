"""The command lines in outputs: each can be pasted as it is, and one function renders those with a
path.
"""

import json
import re
import shlex
from argparse import Namespace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command_line import OTHER_COMMAND
from support.examples import FEW
from support.in_process import run_here
from support.patience import at_once
from support.static_route_nodes import made_host

from hostrouting import (
    Configure,
    HostRoutingConfig,
    OverlapReport,
    ProbeSNATConfig,
    Reset,
    WatchConfig,
    check_node,
    render_files,
)
from hostrouting.base.commands import BAD, FAILED, command_line
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.cli.commands import all_commands
from hostrouting.cli.parser import parser
from hostrouting.cli.shared import status_after
from hostrouting.exceptions import HostRoutingError, RouteOverlapError, UnitError
from hostrouting.host import OUR_PROTOCOL, RouteChange
from hostrouting.testing.strategies import configs
from phases import Task, TaskFailedError, plan, run

COMMANDS = "|".join(all_commands())
#: A command line ends with its line, or before a mark that a shell would not give to the command
#: either.
LINE = re.compile(rf"\bhostrouting (?:{COMMANDS})\b(?: (?:'[^'\n]*'|[^\s'\",;`)]+))*")
PATHS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
#: A shell reads those in ANSI-C quotes: tests/cli/test_escapes.py.
PATHS = PATHS.filter(str.isprintable)


@cache
def understood(line: str) -> Namespace:
    """Return what our parser makes of a command line; a line that it refuses ends the test."""
    return parser().parse_args(shlex.split(line)[1:])


@given(PATHS, st.none() | PATHS)
def test_a_command_line_means_the_paths_that_it_was_made_of(path: str, root: str | None) -> None:
    """A command line in an output parses back to the paths that it was made of, whatever the paths
    contain.
    """
    meant = understood(command_line("apply", path, root=root))
    assert meant.config.removeprefix("./") == path.removeprefix("./")
    assert meant.root == root
    assert command_line("apply", "-") == "hostrouting apply -"


@given(configs())
@settings(max_examples=FEW)
def test_rendered_files_are_those_below_out(config: HostRoutingConfig) -> None:
    """The files below --out have the same paths, contents and modes as the rendered ones of each
    config, and the same links of units.
    """
    # The probes' device may be that of the machine, and the watch runs the command that wrote it.
    config = evolve(config, probe_snat=ProbeSNATConfig(), watch=WatchConfig())
    with TemporaryDirectory() as folder:
        rendered = render_files(config)
        source = Path(folder, "config.json")
        source.write_text(json.dumps(config.to_mapping()), encoding="utf-8")
        written = Path(folder, "out")
        assert run_here("render", "--allow-empty", "--out", written, source).returncode == 0
        found = {f"/{path.relative_to(written)}": path for path in written.rglob("*")}
        assert {path for path in found if not found[path].is_dir()} == {*rendered.paths}
        for file in rendered.files:
            path = found[file.path]
            assert path.stat().st_mode & 0o777 == file.mode
            # The program is made of the installation that writes it.
            if file.is_text or not OTHER_COMMAND:
                is_same = path.read_bytes() == file.content
                assert is_same, path
        assert {path: str(found[path].readlink()) for path in rendered.links} == rendered.links


@given(configs(), st.sets(st.sampled_from(["static-routes.sh", "hostrouting.json", "hostrouting"])))
@settings(max_examples=FEW)
def test_every_command_line_in_an_output_can_be_run(
    config: HostRoutingConfig, lost: set[str]
) -> None:
    """Every command line in the outputs of checks, files, plans, applies and resets can be parsed,
    with the path of the given config, the installed one, or CONFIG.
    """
    host = made_host()
    calls = list[object]()

    def run_tasks(*tasks: Task) -> None:
        ctx = at_once()
        calls.extend(check_node(ctx, config, host, path="my config.json").to_mapping().items())
        try:
            rendered = render_files(config, host=host).files
            calls.extend(file.content.decode() for file in rendered if file.is_text)
            calls.extend(plan(Configure(config, host=host), ctx))
        except HostRoutingError as error:
            calls.append(error)
        calls.extend(run(task, ctx).error for task in tasks)

    run_tasks(Configure(config, host=host))
    own_routes = [route for route in host.routes.routes() if route.protocol == OUR_PROTOCOL]
    host.routes.apply([RouteChange.remove(route) for route in own_routes])
    for name in lost:
        host.files.remove(f"/etc/aks-flex-node/{name}")
    run_tasks(Configure(config, host=host), Reset(config, host=host))
    lines = [understood(line) for text in calls for line in LINE.findall(str(text))]
    assert {getattr(line, "config", None) for line in lines} <= {
        None,
        "CONFIG",
        "my config.json",
        CONFIG_PATH,
    }


def test_a_failure_beside_an_overlap_could_not_be_done() -> None:
    """The exit status of a run is 1 only if nothing but the check has failed."""
    overlap = TaskFailedError(["check-route-overlap"], RouteOverlapError(OverlapReport()))
    unit = TaskFailedError(["install-boot-files"], UnitError("systemd refused"))
    statuses = [
        status_after(TaskFailedError.combine(errors)) for errors in ([overlap], [overlap, unit])
    ]
    assert statuses == [BAD, FAILED]
