"""The words of the command: its parser."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from hostrouting import __version__
from hostrouting.base.commands import DIFFERS, SHOW_HISTORY, USAGE, printable
from hostrouting.cli import commands as run
from hostrouting.node.capabilities import sweep_command, watch_command
from hostrouting.node.output import end_streams, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_JSON_OF_A_WATCH = (
    "each line of stdout is an object: version, time (UTC), severity (info, warning, error), kind "
    "(keeps, repair, alarm, stale, trouble, over: the end of one of these three, note), subject "
    "(the route, CIDR, object or failure; null for several), text; lost is the number of lines "
    "left out while the reader stood still; the last line has ok, and error if false"
)


_RESET = "`hostrouting reset` removes everything that hostrouting installed"
_IS_A_WORD = "CONFIG is a word of its own, such as `hostrouting apply CONFIG`"
#: Of commands without these options; the last three are for a plan as `apply --dry-run`.
_ABSENT: Final = {
    "root": None,
    "live": False,
    "dry_run": False,
    "records": None,
    "exit_code": False,
    "diff": False,
}
CHANGING: Final = run.CHANGING | {"watch"}
#: Of the other commands, and of these.
HEADINGS: Final = ("only read", "change the node")
_OF_APPLY: Final = {
    "--dry-run": "the same as plan",
    "--live": "change and prove the routes until the next boot, and install nothing",
    "--force": "go on even if addresses that leave right would leave wrong",
}
#: What people type, and the way to what they want. `reset` is explained, and never guessed.
_WAYS: Final = {
    **dict.fromkeys(("validate", "verify", "test", "lint"), "run: hostrouting check CONFIG"),
    **dict.fromkeys(("uninstall", "remove", "delete", "clean"), _RESET),
    **dict.fromkeys(("undo", "rollback", "revert"), f"apply the earlier CONFIG again; {_RESET}"),
    **dict.fromkeys(("install", "run", "configure", "start"), "run: hostrouting apply CONFIG"),
    **dict.fromkeys(("-f", "-c", "--file", "--config", "--filename"), _IS_A_WORD),
    **dict.fromkeys(("-y", "--yes", "--no-input"), "no command asks for a confirmation"),
    **dict.fromkeys(("-o", "--output"), "for JSON: --json"),
    **dict.fromkeys(("-d", "--debug", "-vv"), "for more on stderr: --verbose"),
    **dict.fromkeys(("-n", "--netns"), "run: nsenter --net=/run/netns/NAME hostrouting ..."),
    "--mode": "the mode is a field of CONFIG: hostRouting.routeOverlap.mode, WARN or STRICT",
    "--device": "devices are fields of CONFIG, such as hostRouting.routeOverlap.expectedDevs",
    "diff": "run: hostrouting plan --diff",
    "version": "run: hostrouting --version",
    "-V": "run: hostrouting --version",
    "history": f"run: {SHOW_HISTORY}",
    "logs": f"run: {SHOW_HISTORY}",
    "show": "run: hostrouting status, or hostrouting explain ADDRESS",
    "list": "run: hostrouting status, or hostrouting render CONFIG",
}


class _Formatter(argparse.HelpFormatter):
    """The help, with the commands in two groups."""

    def add_argument(self, action: argparse.Action) -> None:
        if not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse lacks these
            super().add_argument(action)
            return
        for changes, heading in enumerate(HEADINGS):
            shown = action._get_subactions()  # noqa: SLF001
            self.start_section(heading)
            self.add_arguments(each for each in shown if (each.dest in CHANGING) == changes)
            self.end_section()


def parser(*, as_json: bool = False, words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the command; with `as_json` it reports usage errors as JSON.

    The next step in an error is that of the first known mistake among the `words`.
    """

    class Parser(argparse.ArgumentParser):
        def switch(self, name: str, text: str) -> None:
            self.add_argument(name, action="store_true", help=text)

        def error(self, message: str) -> NoReturn:
            message = printable(f"{message}{_step(message, words, commands.choices)}")
            if as_json:
                print_json({"ok": False, "error": message})
            try:
                # For some Pythons a stderr that takes nothing is an error.
                with suppress(OSError):
                    super().error(message)
                sys.exit(USAGE)
            finally:
                end_streams()

    # Without a width, argparse loads shutil to find out how wide the terminal is.
    formatter = partial(_Formatter, width=78)
    # They stand before the command or after it, where a default would hide the former.
    common = Parser(add_help=False, formatter_class=formatter, argument_default=argparse.SUPPRESS)
    common.switch("--json", "the answer as JSON")
    common.add_argument("-v", "--verbose", action="store_true", help="write more to stderr")
    common.add_argument(
        "--timeout", type=_seconds, metavar="S", help="the limit for the run, in seconds"
    )
    root = Parser(
        prog="hostrouting",
        formatter_class=formatter,
        allow_abbrev=False,
        parents=[common],
        description="Make a Kubernetes node's host routing right, and prove it.",
        epilog="Exit status: 0 fine; 1 the answer is bad; 2 usage or an invalid config; 3 it could "
        "not be done; 4 plan --exit-code, sweep --dry-run --exit-code: "
        "there is something to change.",
    )
    root.add_argument("--version", action="version", version=f"hostrouting {__version__}")
    commands = root.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands"
    )

    def command(
        name: str,
        run: Callable[[argparse.Namespace], int],
        text: str,
        *,
        config: str | None = None,
        has_root: bool = False,
    ) -> Parser:
        added = commands.add_parser(
            name,
            help=text,
            description=text,
            formatter_class=formatter,
            allow_abbrev=False,
            parents=[common],
        )
        added.set_defaults(run=run, verdict="", **_ABSENT)
        if config is not None:
            text = (
                "a JSON file, or - for stdin: the hostRouting object, or a whole config that has it"
            )
            text += config and f"; without it: {config}"
            added.add_argument("config", nargs="?" if config else None, metavar="CONFIG", help=text)
            added.switch(
                "--allow-empty",
                "accept a CONFIG that installs nothing, which means: remove everything",
            )
        if has_root:
            added.add_argument(
                "--root",
                type=_folder,
                metavar="DIR",
                help="an image: files and units below DIR, nothing live",
            )
        return added

    installed = "the installed config"
    command(
        "status",
        run.status,
        "show in one sentence if this node is right, and the next step; needs no root",
    )
    added = command(
        "plan",
        run.plan,
        "show the changes that apply would make; changes nothing, needs no root",
        config=installed,
        has_root=True,
    )
    added.switch("--exit-code", f"exit with {DIFFERS} if there is something to change")
    added.switch("--diff", "show the changed files as a unified diff")
    _from_records(added)
    added = command(
        "check",
        run.check,
        "prove every expected CIDR, and compare all else; changes nothing, needs no root",
        config=installed,
        has_root=True,
    )
    added.add_argument(
        "--fail-on",
        choices=["error", "warning"],
        default="error",
        help="exit with 1 for findings of this severity or a worse one; the default is error",
    )
    _from_records(added)
    added.switch("--fix", "write CONFIG with the routes that repair this node, to apply it")
    added.add_argument(
        "--format",
        choices=["prometheus"],
        help="the answer as metrics of this node, for the textfile collector of node_exporter",
    )
    added.add_argument(
        "--out", metavar="FILE", help="write the metrics to FILE, which is replaced as a whole"
    )
    command("record", run.record, "print this node as a line of JSON, for --from; needs no root")
    command(
        "explain", run.explain, "show which route and device decide each part, and why"
    ).add_argument(
        "targets", nargs="+", metavar="ADDRESS|CIDR", help="one or more, of either family"
    )
    added = command("render", run.render, "show the files that apply would install", config="")
    added.add_argument(
        "name", nargs="?", metavar="NAME", help="only this file, by its path or last part"
    )
    added.add_argument(
        "--out", type=_folder, metavar="DIR", help="write them and the links of the units below DIR"
    )
    command(
        "schema",
        run.schema,
        "print the JSON Schema of CONFIG, for editors and for programs that write one",
    )
    command("init", run.init, "print a first CONFIG for this node, under WARN").add_argument(
        "--cidr",
        action="append",
        default=[],
        metavar="CIDR",
        help="an expected CIDR; repeat it for several",
    )
    added = command(
        "apply", run.apply, "correct this node now and for every boot", config="", has_root=True
    )
    for name, text in _OF_APPLY.items():
        added.switch(name, text)
    command(
        "reset",
        run.reset,
        "remove everything that hostrouting installed, and restore swept objects",
        config="any config; only the records of a sweep with a backupDir need one",
        has_root=True,
    )
    added = command(
        "sweep",
        partial(run.optional, sweep_command),
        "remove the stale objects of azure-vnet; `reset` restores them",
        config=installed,
    )
    added.switch("--dry-run", "only show the objects that a sweep would remove")
    added.switch("--exit-code", "with --dry-run: exit with 4 if there is something to sweep")
    text = "keep the routing of an applied config right, until SIGTERM or SIGINT"
    added = command("watch", partial(run.optional, watch_command), text, config=installed)
    added.description = f"{text}; with --json, {_JSON_OF_A_WATCH}"
    return root


def _step(
    message: str, words: Sequence[str], commands: Mapping[str, argparse.ArgumentParser]
) -> str:
    """Return the next step after a usage error, as the end of its message."""
    import re

    from hostrouting.boot import INTENT_PATH
    from hostrouting.config.wire import closest

    chosen = next((commands[word] for word in words if word in commands), None)
    known = re.findall(r"(?<!\w)-[\w-]+", chosen.format_usage()) if chosen else []
    names = [word.partition("=")[0] for word in words]
    # Before the command a name is a mistake; after it, it may be the path of a CONFIG.
    wrong = [
        name
        for name in names
        if (name.startswith("-") if chosen else True) and name in _WAYS and name not in known
    ]
    if wrong:
        return f"; {_WAYS[wrong[0]]}"
    if message.endswith("required: CONFIG"):
        installed = os.path.exists(INTENT_PATH)  # noqa: PTH110 (slow)
        also = f"; the installed one is {INTENT_PATH}" if installed else ""
        return f"; give a JSON file, or - for stdin{also}"
    match = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
    option = re.search(r"unrecognized arguments: (?:.* )?--(\w[\w-]*)", message)
    if match:
        known = [name for name in re.findall(r"[\w-]+", match[2]) if name != "reset"]
        meant = closest(match[1], known)
    else:
        by_word = {name.lstrip("-"): name for name in known}
        meant = by_word.get((option and closest(option[1], by_word)) or "")
    if meant:
        return f"; did you mean {meant!r}?"
    if "--cidr" in known:
        return "; give --cidr once for each expected CIDR"
    return f"; for its words: {chosen.prog if chosen else 'hostrouting'} --help"


def _from_records(added: argparse.ArgumentParser) -> None:
    text = "of recorded nodes instead, in files with a line for each, or - for stdin"
    added.add_argument("--from", dest="records", nargs="+", metavar="FILE", help=text)
    added.add_argument(
        "--jobs",
        type=int,
        choices=range(1, 65),
        default=1,
        metavar="N",
        help="with --from: the number of processes; the default is 1",
    )
    added.set_defaults(fail_on="error")


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(
        f"a timeout must be more than 0 seconds, such as 60 (got {text})"
    )


def _folder(text: str) -> str:
    # An empty variable of a script would stand for the working directory.
    if not text:
        raise argparse.ArgumentTypeError("the path of a folder must not be empty")
    return text
