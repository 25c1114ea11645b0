"""The words of the command: its parser."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

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
#: Of commands without these options; some are for a plan as `apply --dry-run`.
_ABSENT: Final = {
    "root": None,
    "live": False,
    "dry_run": False,
    "records": None,
    "exit_code": False,
    "diff": False,
    "fail_on": "error",
}
CHANGING: Final = run.CHANGING | {"watch"}
#: Of the other commands, and of these.
HEADINGS: Final = ("only read", "change the node")
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


def _switch(text: str) -> dict[str, Any]:
    return {"action": "store_true", "help": text}


class _Command(NamedTuple):
    run: Callable[[argparse.Namespace], int]
    text: str
    #: What CONFIG is if it is left out; "" if it must not be, None without a CONFIG.
    config: str | None = None
    options: Mapping[str, Any] = {}
    #: The rest of its description.
    more: str = ""


_INSTALLED = "the installed config"
_ROOT: dict[str, Any] = {
    "--root": {
        "type": _folder,
        "metavar": "DIR",
        "help": "an image: files and units below DIR, nothing live",
    }
}
_RECORDS: dict[str, Any] = {
    "--from": {
        "dest": "records",
        "nargs": "+",
        "metavar": "FILE",
        "help": "of recorded nodes instead, in files with a line for each, or - for stdin",
    },
    "--jobs": {
        "type": int,
        "choices": range(1, 65),
        "default": 1,
        "metavar": "N",
        "help": "with --from: the number of processes; the default is 1",
    },
}
_COMMANDS: Final = {
    "status": _Command(
        run.status, "show in one sentence if this node is right, and the next step; needs no root"
    ),
    "plan": _Command(
        run.plan,
        "show the changes that apply would make; changes nothing, needs no root",
        _INSTALLED,
        {
            **_ROOT,
            "--exit-code": _switch(f"exit with {DIFFERS} if there is something to change"),
            "--diff": _switch("show the changed files as a unified diff"),
            **_RECORDS,
        },
    ),
    "check": _Command(
        run.check,
        "prove every expected CIDR, and compare all else; changes nothing, needs no root",
        _INSTALLED,
        {
            **_ROOT,
            "--fail-on": {
                "choices": ["error", "warning"],
                "help": "exit with 1 for findings of this severity or a worse one; the default is "
                "error",
            },
            **_RECORDS,
            "--fix": _switch("write CONFIG with the routes that repair this node, to apply it"),
            "--format": {
                "choices": ["prometheus"],
                "help": "the answer as metrics of this node, for the textfile collector of "
                "node_exporter",
            },
            "--out": {
                "metavar": "FILE",
                "help": "write the metrics to FILE, which is replaced as a whole",
            },
        },
    ),
    "record": _Command(run.record, "print this node as a line of JSON, for --from; needs no root"),
    "explain": _Command(
        run.explain,
        "show which route and device decide each part, and why",
        options={
            "targets": {
                "nargs": "+",
                "metavar": "ADDRESS|CIDR",
                "help": "one or more, of either family",
            }
        },
    ),
    "render": _Command(
        run.render,
        "show the files that apply would install",
        "",
        {
            "name": {
                "nargs": "?",
                "metavar": "NAME",
                "help": "only this file, by its path or last part",
            },
            "--out": {
                "type": _folder,
                "metavar": "DIR",
                "help": "write them and the links of the units below DIR",
            },
        },
    ),
    "schema": _Command(
        run.schema, "print the JSON Schema of CONFIG, for editors and for programs that write one"
    ),
    "init": _Command(
        run.init,
        "print a first CONFIG for this node, under WARN",
        options={
            "--cidr": {
                "action": "append",
                "default": [],
                "metavar": "CIDR",
                "help": "an expected CIDR; repeat it for several",
            }
        },
    ),
    "apply": _Command(
        run.apply,
        "correct this node now and for every boot",
        "",
        {
            **_ROOT,
            "--dry-run": _switch("the same as plan"),
            "--live": _switch(
                "change and prove the routes until the next boot, and install nothing"
            ),
            "--force": _switch("go on even if addresses that leave right would leave wrong"),
        },
    ),
    "reset": _Command(
        run.reset,
        "remove everything that hostrouting installed, and restore swept objects",
        "any config; only the records of a sweep with a backupDir need one",
        _ROOT,
    ),
    "sweep": _Command(
        partial(run.optional, sweep_command),
        "remove the stale objects of azure-vnet; `reset` restores them",
        _INSTALLED,
        {
            "--dry-run": _switch("only show the objects that a sweep would remove"),
            "--exit-code": _switch("with --dry-run: exit with 4 if there is something to sweep"),
        },
    ),
    "watch": _Command(
        partial(run.optional, watch_command),
        "keep the routing of an applied config right, until SIGTERM or SIGINT",
        _INSTALLED,
        more=f"; with --json, {_JSON_OF_A_WATCH}",
    ),
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
    common.add_argument("--json", **_switch("the answer as JSON"))
    common.add_argument("-v", "--verbose", **_switch("write more to stderr"))
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

    # With its own command alone, the parser is made in a fifth of the instructions.
    for name in [word for word in words[:1] if word in _COMMANDS] or _COMMANDS:
        command = _COMMANDS[name]
        added = commands.add_parser(
            name,
            help=command.text,
            description=command.text + command.more,
            formatter_class=formatter,
            allow_abbrev=False,
            parents=[common],
        )
        added.set_defaults(run=command.run, verdict="", **_ABSENT)
        if command.config is not None:
            text = (
                "a JSON file, or - for stdin: the hostRouting object, or a whole config that has it"
            )
            text += command.config and f"; without it: {command.config}"
            nargs = "?" if command.config else None
            added.add_argument("config", nargs=nargs, metavar="CONFIG", help=text)
            text = "accept a CONFIG that installs nothing, which means: remove everything"
            added.add_argument("--allow-empty", **_switch(text))
        for option, keywords in command.options.items():
            added.add_argument(option, **keywords)
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
