"""The command `hostrouting`: `plan`, `apply`, `check` and others. It calls the tasks and prints the result.

stdout carries the answer, stderr the log. Exit status: 0 fine; 1 the answer is bad; 2 usage or an invalid config;
3 it could not; 4 there is something to change (`plan --exit-code`).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from hostrouting import __version__
from hostrouting.exceptions import HostFileError, InvalidConfigError, RouteOverlapError
from hostrouting.output import (
    end_log,
    end_streams,
    json_line,
    log_to_stderr,
    prepare_streams,
    print_document,
    print_json,
    print_lines,
    printable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from hostrouting.boot import BootFile
    from hostrouting.config import HostRoutingConfig
    from hostrouting.configure import Configure, Reset
    from hostrouting.host import Host
    from phases import Change, Context, Plan

FINE, BAD, USAGE, FAILED, DIFFERS = 0, 1, 2, 3, 4

#: For apply and reset: enough to wait for DHCP (30 s), for systemd, and for another run.
_DEFAULT_TIMEOUT: Final = 120.0
#: What a watch loads only when it wants it.
_LATE: Final = (
    "hostrouting.host.imds",
    "hostrouting.host.netlink.batches",
    "hostrouting.host.netlink.events",
    "hostrouting.host.netlink.link_layer",
    "hostrouting.host.netlink.probes",
    "hostrouting.host.packets.ebtables",
    "hostrouting.host.packets.nft",
    "hostrouting.host.systemd.notify",
    "hostrouting.route_overlap.announced",
    "hostrouting.route_overlap.lasting",
    "hostrouting.route_overlap.policy",
    "hostrouting.route_overlap.suggest",
)
#: Each leaves an entry in the journal, and says little without -v.
_CHANGING: Final = frozenset({"apply", "reset", "sweep"})
#: After so many nodes the progress is told.
_PROGRESS: Final = 100
_JSON_OF_A_WATCH: Final = (
    "each line of stdout is an object: version, time (UTC), severity (info, warning, error), kind (keeps, repair, "
    "alarm, stale, trouble, over: the end of one of these three, note), subject (the route, CIDR, object or failure; "
    "null for several), text; lost is the number of lines left out while the reader "
    "stood still; the last line has ok, and error if false"
)
#: For the verdict after a run.
_SECONDS_TO_LOOK: Final = 10.0
_NO_SYSTEMD: Final = "systemd does not run here, so its files are read instead; an apply needs it, or --root DIR"
_logger = logging.getLogger("hostrouting")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return perform(asked(argv))


def asked(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what the words ask for; none at all ask for the help."""
    prepare_streams()
    argv = sys.argv[1:] if argv is None else argv
    absent = argparse.Namespace(json=False, verbose=False, timeout=None)
    return parser(as_json="--json" in argv).parse_args(argv or ["--help"], absent)


def perform(arguments: argparse.Namespace) -> int:
    """Do what is asked for, and return the exit status."""
    is_brief = arguments.command in _CHANGING and not arguments.verbose
    talks = arguments.command == "watch"
    log_to_stderr(verbose=arguments.verbose, talks=talks, is_brief=is_brief, as_json=arguments.json)
    with _recorded(arguments):
        try:
            status: int = arguments.run(arguments)
        except KeyboardInterrupt:
            # As of a process that SIGINT ended; that is the usual end of a watch.
            status = _refuse(arguments, "interrupted", FINE if talks else 130)
        except Exception as error:
            _logger.debug("where it happened", exc_info=True)
            # Some mistakes in a config show only on its machine, within a task.
            failures = getattr(error, "failures", (error,))
            mistakes = (failure for failure in failures if isinstance(failure, InvalidConfigError))
            status = _refuse(arguments, next(mistakes, error), _status_after(error))
    end_log(failed=status not in {FINE, USAGE, DIFFERS})
    return status


def _status_after(error: BaseException) -> int:
    from signal import Signals

    reason, failures = getattr(error, "reason", ""), getattr(error, "failures", (error,))
    if reason in Signals.__members__:
        # As of a process that the signal ended.
        return 128 + Signals[reason]
    if any(isinstance(failure, InvalidConfigError) for failure in failures):
        return USAGE
    return BAD if all(isinstance(failure, RouteOverlapError) for failure in failures) else FAILED


class _Parser(argparse.ArgumentParser):
    def switch(self, name: str, text: str) -> None:
        self.add_argument(name, action="store_true", help=text)


def parser(*, as_json: bool = False) -> argparse.ArgumentParser:
    """Return the parser of the command; with `as_json` it reports usage errors as JSON."""

    class Parser(_Parser):
        def error(self, message: str) -> NoReturn:
            message += _guess(message)
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
    formatter = partial(argparse.HelpFormatter, width=78)
    # They stand before the command or after it, where a default would hide the former.
    common = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    common.switch("--json", "the answer as JSON")
    common.add_argument("-v", "--verbose", action="store_true", help="say more on stderr")
    common.add_argument("--timeout", type=_seconds, metavar="S", help="the limit for the run, in seconds")
    root = Parser(
        prog="hostrouting",
        formatter_class=formatter,
        parents=[common],
        description="Make a Kubernetes node's host routing right, and prove it.",
        epilog="Exit status: 0 fine; 1 the answer is bad; 2 usage or an invalid config; 3 it could not be done; "
        "4 plan --exit-code, sweep --dry-run --exit-code: there is something to change.",
    )
    root.add_argument("--version", action="version", version=f"hostrouting {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str,
        run: Callable[[argparse.Namespace], int],
        text: str,
        *,
        config: str | None = None,
        has_root: bool = False,
    ) -> Parser:
        added = commands.add_parser(name, help=text, description=text, formatter_class=formatter, parents=[common])
        added.set_defaults(run=run, root=None, dry_run=False, verdict="")
        if config is not None:
            text = "a JSON file, or - for stdin: the hostRouting object, or a whole config that has it"
            text += config and f"; without it: {config}"
            added.add_argument("config", nargs="?" if config else None, metavar="CONFIG", help=text)
            added.switch("--allow-empty", "accept a CONFIG that installs nothing, which means: remove everything")
        if has_root:
            text = "an image: files and units below DIR, nothing live"
            added.add_argument("--root", type=_folder, metavar="DIR", help=text)
        return added

    installed = "the installed config"
    command("status", _status, "tell in one sentence if this node is right, and what to do; needs no root")
    added = command(
        "plan",
        _plan,
        "show the changes that apply would make; changes nothing, needs no root",
        config=installed,
        has_root=True,
    )
    added.switch("--exit-code", f"exit with {DIFFERS} if there is something to change")
    added.switch("--diff", "show the changed files as a unified diff")
    _from_records(added)
    added = command("apply", _apply, "correct this node now and for every boot", config="", has_root=True)
    added.switch("--force", "go on even if addresses that leave right would leave wrong")
    added = command(
        "check",
        _check,
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
    added.switch("--fix", "write CONFIG with the routes that mend this node, to apply it")
    added.add_argument(
        "--format",
        choices=["prometheus"],
        help="the answer as metrics of this node, for the textfile collector of node_exporter",
    )
    added.add_argument("--out", metavar="FILE", help="write the metrics to FILE, which is replaced as a whole")
    command("record", _record, "print this node as a line of JSON, for --from; needs no root")
    added = command("explain", _explain, "show which route and device decide each part, and why")
    added.add_argument("asked", nargs="+", metavar="ADDRESS|CIDR", help="one or more, of either family")
    added = command("render", _render, "show the files that apply would install", config="")
    added.add_argument("name", nargs="?", metavar="NAME", help="only this file, by its path or last part")
    added.add_argument("--out", type=_folder, metavar="DIR", help="write them and the links of the units below DIR")
    text = "remove everything that hostrouting installed, and restore swept objects"
    of_any = "any config; only the records of a sweep with a backupDir need one"
    command("reset", _reset, text, config=of_any, has_root=True)
    added = command("sweep", _sweep, "remove the stale objects of azure-vnet; `reset` restores them", config=installed)
    added.switch("--dry-run", "only show the objects that a sweep would remove")
    added.switch("--exit-code", f"with --dry-run: exit with {DIFFERS} if there is something to sweep")
    text = "keep the routing of an applied config right, until SIGTERM or SIGINT"
    command("watch", _watch, text, config=installed).description = f"{text}; with --json, {_JSON_OF_A_WATCH}"
    command("schema", _schema, "print the JSON Schema of CONFIG, for editors and for programs that write one")
    return root


def _guess(message: str) -> str:
    """Return what a wrong word of a usage error is probably meant to be, as the end of the message."""
    import re

    from hostrouting.config.wire import closest

    found = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
    meant = closest(found[1], re.findall(r"[\w-]+", found[2])) if found else None
    return f"; did you mean {meant!r}?" if meant else ""


def _from_records(added: argparse.ArgumentParser) -> None:
    text = "of recorded nodes instead, in files with a line for each, or - for stdin"
    added.add_argument("--from", dest="records", nargs="+", metavar="FILE", help=text)
    text = "with --from: the number of processes; the default is 1"
    added.add_argument("--jobs", type=int, choices=range(1, 65), default=1, metavar="N", help=text)
    added.set_defaults(fail_on="error")


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no time to wait; give seconds, such as 60")


def _folder(text: str) -> str:
    # An empty variable of a script would stand for the working directory.
    if not text:
        raise argparse.ArgumentTypeError("'' is no folder; give its path")
    return text


# --- the commands


def _plan(arguments: argparse.Namespace) -> int:
    import attrs

    from hostrouting.boot.gates import broken_glass
    from hostrouting.configure import Configure
    from hostrouting.findings import LEFT, REFUSED
    from hostrouting.host.systemd.systemctl import OfflineUnits, Systemctl, is_there
    from phases import plan

    if arguments.records:
        return _fleet(arguments)
    config, host = _config(arguments), _host(arguments)
    lacks_systemd = isinstance(host.services, Systemctl) and not is_there()
    if lacks_systemd:
        host = attrs.evolve(host, services=OfflineUnits("/"))
    with _context(arguments.timeout) as ctx:
        task = Configure(config, host=host)
        changes = _without_repeats(plan(task, ctx))
        notices = _notices(ctx, config, host, *[_NO_SYSTEMD] * lacks_systemd)
        found, broken = task.forecast(ctx), broken_glass(host.files)
    diffs = _diffs(changes, config, host) if arguments.diff else ()
    lines = [*map(str, changes), *diffs, *found.lines(config, broken)]
    more = ({"notices": notices} if notices else {}) | found.to_mapping(config, broken)
    _answer(arguments, {"changes": [each.to_mapping() for each in changes], **more}, lines)
    if found.fails(config) or any(change.kind == REFUSED for change in changes):
        return BAD
    return DIFFERS if arguments.exit_code and any(change.kind != LEFT for change in changes) else FINE


def _diffs(changes: Iterable[Change], config: HostRoutingConfig, host: Host) -> Iterator[str]:
    """Yield the unified diff of each file that the changes write or remove."""
    from difflib import unified_diff

    from hostrouting.boot_files import boot_files

    wanted = {file.path: file.content for file in boot_files(config, host=host)}
    for path in dict.fromkeys(change.subject for change in changes):
        # Scripts are links, too; those that start a unit have no content of their own.
        if path in wanted or (path.startswith("/") and not path.endswith((".service", ".timer"))):
            contents = (host.files.read(path) or b"", wanted.get(path, b""))
            before, after = (content.decode(errors="replace").splitlines() for content in contents)
            yield from unified_diff(before, after, path, path, lineterm="")


def _notices(ctx: Context, config: HostRoutingConfig, host: Host, *others: str) -> list[str]:
    """Log and return the notices about the gates, after the others."""
    from hostrouting.boot import Boot
    from hostrouting.boot_files import installs_units, missing_tools
    from hostrouting.watch.networkd import networkd_findings

    found = Boot(host, gates=config.gates).notices(ctx) if installs_units(ctx, config, host) else []
    found += networkd_findings(ctx, config, host) if host.is_live else missing_tools(config, host.files)
    notices = [*others, *(finding.text for finding in found)]
    for notice in notices:
        _logger.warning("%s", notice)
    return notices


def _without_repeats(plan: Plan) -> list[Change]:
    """Return the changes of all tasks, with those that several tasks share (the gates) once."""
    from hostrouting.boot import BOOT_FOLDERS, RELOAD

    changes: list[Change] = []
    for _, planned in plan.by_task:
        earlier = set(changes)
        changes += [change for change in planned if change not in earlier]
    # A reload that a killed run left is part of the reload for these files.
    is_read_anyway = any(change.subject.startswith(BOOT_FOLDERS) for change in changes)
    return [change for change in changes if not (is_read_anyway and change == RELOAD)]


def _apply(arguments: argparse.Namespace) -> int:
    from hostrouting.configure import Configure

    config, host = _config(arguments), _host(arguments)
    task = Configure(config, host=host, force=arguments.force)
    # Before the gates are installed: later it is unknown which running machines were never held.
    with _context(arguments.timeout) as ctx:
        _notices(ctx, config, host)
    return _run(arguments, task, host, None if config.void else config)


def _check(arguments: argparse.Namespace) -> int:
    from hostrouting.boot import INTENT_PATH
    from hostrouting.check import check_node

    if arguments.records:
        return _fleet(arguments)
    if (arguments.root or arguments.fix or arguments.json) if arguments.format else arguments.out is not None:
        problem = "--format prometheus goes with none of --root, --fix and --json, and --out goes with it alone"
        return _refuse(arguments, problem, USAGE)
    config, host = _config(arguments), _host(arguments)
    # The given time is for the default route: its absence is an answer.
    with _context(None) as ctx:
        if arguments.fix:
            from hostrouting.fix import fixed

            found = fixed(ctx, config, host, seconds=arguments.timeout)
            if isinstance(found, str):
                _logger.error("%s", found)
                return BAD
            print_document({"hostRouting": found.to_mapping()})
            return FINE
        path = arguments.config or INTENT_PATH
        report = check_node(ctx, config, host, seconds=arguments.timeout, path=path, root=arguments.root)
        lines = report.lines(verbose=arguments.verbose)
        if arguments.format:
            from hostrouting.fleet.metrics import exposition

            text = exposition(report, config, now=ctx.clock.time())
            # A name of stdout is no file to be replaced.
            if arguments.out in {None, "-", "/dev/stdout"}:
                lines = text.splitlines()
            else:
                path = os.path.abspath(arguments.out)  # noqa: PTH100 (slow)
                # The node of a device, such as /dev/null, would be gone for the whole machine; a link, for its owner.
                if os.path.islink(path) or os.path.exists(path) > os.path.isfile(path):  # noqa: PTH110, PTH113, PTH114
                    raise HostFileError(f"{path} is no file to be replaced; give the path of one")
                host.files.write(path, text.encode(), mode=0o644)
    _answer(arguments, report.to_mapping(), lines)
    if not report.severities.isdisjoint({"error", arguments.fail_on}):
        return BAD
    return FAILED if report.unread else FINE


def _record(arguments: argparse.Namespace) -> int:
    from hostrouting.fleet import take_record

    with _context(arguments.timeout) as ctx:
        print_lines([take_record(ctx, _host(arguments)).to_line().decode()])
    return FINE


def _fleet(arguments: argparse.Namespace) -> int:
    """Prove recorded nodes: a line for each that is to be told, and what they have in common."""
    from hostrouting.fleet.stream import Summary, read_lines, verdict_on, verdicts

    planned, summary = arguments.command == "plan", Summary(arguments.fail_on)
    useless = [
        name
        for name in ("root", "fix", "diff", "exit-code", "timeout", "format", "out")
        if vars(arguments).get(name.replace("-", "_"))
    ]
    if useless or (planned and not arguments.config) or [arguments.config, *arguments.records].count("-") > 1:
        rule = "a plan needs a CONFIG, and stdin is read once"
        problem = f"--{useless[0]} means nothing with --from" if useless else f"with --from {rule}"
        return _refuse(arguments, problem, USAGE)
    judge = partial(verdict_on, config=_config(arguments) if arguments.config else None, planned=planned)

    def told() -> Iterator[str]:
        with _context(None) as ctx, ctx.interruptible():
            for found in verdicts(read_lines(arguments.records), judge, arguments.jobs):
                if summary.add(found) or arguments.verbose or arguments.json:
                    yield json_line(found.to_mapping()) if arguments.json else printable(str(found))
                if sys.stderr.isatty() and not summary.counts["nodes"] % _PROGRESS:
                    sys.stderr.write(f"\r{summary.counts['nodes']:,} nodes, {summary.counts['bad']:,} bad\r")
        if arguments.json:
            yield json_line({"summary": summary.to_mapping()})
        else:
            yield from map(printable, summary.lines(planned=planned))

    print_lines(told())
    return summary.status


def _status(arguments: argparse.Namespace) -> int:
    from hostrouting.status import node_status

    with _context(arguments.timeout) as ctx:
        found = node_status(ctx, _host(arguments))
    _answer(arguments, found.to_mapping(), found.lines())
    return (FAILED if found.report.unread else FINE) if found.report.ok else BAD


def _sweep(arguments: argparse.Namespace) -> int:
    from hostrouting.stale_cni import sweep_node

    config = _config(arguments)
    with _context(arguments.timeout or _DEFAULT_TIMEOUT) as ctx:
        report = sweep_node(ctx, config, _host(arguments), dry_run=arguments.dry_run, logger=_logger)
    arguments.verdict = report.error or "ok"
    _answer(arguments, report.to_mapping(), report.lines(verbose=arguments.verbose))
    if report.error:
        _logger.error("%s", report.error)
        return FAILED
    if not report.ok:
        return BAD
    return DIFFERS if arguments.dry_run and arguments.exit_code and report.changes else FINE


def _explain(arguments: argparse.Namespace) -> int:
    from hostrouting.route_overlap.explain import explain

    try:
        explanations = explain(_host(arguments).routes, arguments.asked)
    except ValueError as error:
        return _refuse(arguments, error, USAGE)
    width, picture = sys.maxsize, False
    if sys.stdout.isatty():
        from shutil import get_terminal_size

        # In less nothing can be read.
        width = max(20, get_terminal_size().columns)
        picture = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    lines = (line for explanation in explanations for line in explanation.lines(width=width, picture=picture))
    _answer(arguments, {"explanations": [explanation.to_mapping() for explanation in explanations]}, lines)
    return FINE


def _render(arguments: argparse.Namespace) -> int:
    from hostrouting.boot_files import boot_files, boot_links

    config, host = _config(arguments), _host(arguments)
    files, links = boot_files(config, host=host), boot_links(config, host=host)
    if arguments.name is not None:
        known = ", ".join(file.path for file in files) or "nothing"
        files = [file for file in files if arguments.name in {file.path, file.path.rpartition("/")[2]}]
        links = {}
        if not files:
            problem = f"{arguments.name!r} is no file of this config's; apply would install: {known}"
            return _refuse(arguments, problem, USAGE)
    if arguments.out is not None:
        written = _write_files(files, links, arguments.out)
        _answer(arguments, {"written": written}, written)
    else:
        shown = [{"path": f.path, "mode": f"{f.mode:04o}", "content": f.content.decode()} for f in files]
        if arguments.name is None:
            texts = [f"==> {each['path']} ({each['mode']}) <==\n{each['content']}" for each in shown]
        else:
            texts = [each["content"].removesuffix("\n") for each in shown]
        _answer(arguments, {"files": shown}, texts)
    return FINE


def _write_files(files: Sequence[BootFile], links: Mapping[str, str], folder: str) -> list[str]:
    from hostrouting.host.files.store import RootedFiles

    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 (pathlib would be loaded for this line alone)
    except OSError as error:
        raise HostFileError(f"cannot make the folder {folder}: {error.strerror}") from error
    target = RootedFiles(folder)
    for file in files:
        target.write(file.path, file.content, mode=file.mode)
    for path, text in links.items():
        target.link(path, text)
    if not files:
        _logger.warning("nothing was written: this config installs no files")
    return [f"{folder.rstrip('/')}{path}" for path in (*(file.path for file in files), *links)]


def _reset(arguments: argparse.Namespace) -> int:
    from hostrouting.config import HostRoutingConfig
    from hostrouting.configure import Reset

    # Reset removes everything, of any config; a config only says where the sweep keeps its records.
    config = HostRoutingConfig() if arguments.config is None else _config(arguments)
    host = _host(arguments)
    return _run(arguments, Reset(config, host=host), host)


def _watch(arguments: argparse.Namespace) -> int:
    import gc
    import signal

    # The process of a command is without a collector, since it ends soon. This one does not.
    gc.enable()
    # It waits until the task can take it; by default it would end this process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    # The signals that end it first: to import the rest takes a while.
    with _context(arguments.timeout) as ctx:
        from hostrouting.watch.signs import LivingClock
        from hostrouting.watch.task import Watch

        host = _host(arguments)
        ctx.clock = clock = LivingClock(host.supervisor)
        with clock.woken_by_signals():
            config = _config_to_watch(ctx, arguments, host)
            _load_the_rest()
            if config is not None:
                watch = Watch(config, host=host, logger=_logger)
                signal.signal(signal.SIGHUP, lambda *_: watch.reload(partial(_config, arguments)))
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
                watch.do(ctx)
    _answer(arguments, {"ok": True}, ())
    return FINE


def _config_to_watch(ctx: Context, arguments: argparse.Namespace, host: Host) -> HostRoutingConfig | None:
    """Return the config; the service of the installed one waits for it, and gets None if it is to end before."""
    from hostrouting.boot import INTENT_PATH
    from hostrouting.host.offline import NoSupervisor
    from hostrouting.watch.installed import wait_for_installed
    from phases import CancelledError

    if arguments.config not in {None, INTENT_PATH} or isinstance(host.supervisor, NoSupervisor):
        # A pipe may never be written to.
        with suppress(CancelledError), ctx.interruptible():
            return _config(arguments)
        return None
    return wait_for_installed(ctx, host, _logger)


def _load_the_rest() -> None:
    """Load all that a watch may want later: its process outlives an upgrade or a removal of the files that have it."""
    from importlib import import_module

    from hostrouting.probe_snat.ruleset import template

    for name in _LATE:
        import_module(name)
    template()


def _schema(_arguments: argparse.Namespace) -> int:
    from hostrouting.config.schema import config_schema

    print_document(config_schema())
    return FINE


# --- shared by the commands


def _config(arguments: argparse.Namespace) -> HostRoutingConfig:
    from hostrouting.config import HostRoutingConfig

    if arguments.config is None:
        from hostrouting.boot import require_intent

        return require_intent(_host(arguments).files)
    source = sys.stdin.fileno() if arguments.config == "-" else arguments.config
    config = HostRoutingConfig.from_file(source, timeout=arguments.timeout or _DEFAULT_TIMEOUT)
    if arguments.allow_empty and config.void:
        return HostRoutingConfig()
    if config.given is None:
        # To remove everything there is `reset`: an empty file is more probably a mistake.
        raise InvalidConfigError(config.void)
    return config


def _host(arguments: argparse.Namespace) -> Host:
    from hostrouting.host import Host

    return Host.live() if arguments.root is None else Host.offline(arguments.root)


def _recorded(arguments: argparse.Namespace) -> AbstractContextManager[None]:
    if arguments.command not in _CHANGING or arguments.root is not None or arguments.dry_run:
        return nullcontext()
    from hostrouting.history import recorded
    from hostrouting.host.files.store import RootedFiles

    return recorded(arguments, RootedFiles())


def _context(timeout: float | None) -> AbstractContextManager[Context]:
    from phases import Context, cancel_on_signals

    return cancel_on_signals(Context(timeout=timeout))


def _answer(arguments: argparse.Namespace, mapping: Mapping[str, object], lines: Iterable[str]) -> None:
    if arguments.json:
        # Those of a watch are the last of many lines.
        print_lines([json_line(mapping)]) if arguments.command == "watch" else print_json(mapping)
    else:
        print_lines(lines)


def _run(
    arguments: argparse.Namespace, task: Configure | Reset, host: Host, installs: HostRoutingConfig | None = None
) -> int:
    """Run the task, print its recorded changes, and return the exit status."""
    import signal

    from hostrouting.boot import Boot
    from hostrouting.configure import RELEASED
    from hostrouting.status import verdict_now
    from phases import run

    # Like Ctrl-C: a second SIGTERM ends an undo, with a line on what is left. A run outlives its terminal.
    usual = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGQUIT)}
    usual[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        report = run(task, timeout=arguments.timeout or _DEFAULT_TIMEOUT, handle_signals=True, logger=_logger)
    except KeyboardInterrupt:
        arguments.verdict = "a second signal ended the run, or its undo"
        raise
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
    failures = getattr(report.error, "failures", ())
    overlaps = (failure.report.to_mapping() for failure in failures if isinstance(failure, RouteOverlapError))
    changes = report.changes
    with _context(_SECONDS_TO_LOOK) as ctx:
        verdict, spared = verdict_now(ctx, host, installs if report.ok else None)
        held = [] if report.ok else Boot(host, gates=()).held(ctx)
    released = [change.subject for change in changes if change.kind == RELEASED]
    account = {"overlap": next(overlaps, None), "held": held, "released": released, "spared": spared}
    more = {name: value for name, value in account.items() if value}
    # Its 10,000 changes take a while.
    tree = report.to_mapping() if arguments.json else {}
    told = {"ok": report.ok, "verdict": verdict, **tree, **more}
    arguments.verdict = report.error or verdict
    if report.error:
        _logger.error("%s", report.error)
        end_log(failed=True)
    _answer(arguments, told, [*map(str, changes), verdict])
    return _status_after(report.error) if report.error else FINE


def _refuse(arguments: argparse.Namespace, problem: object, status: int) -> int:
    """Print the problem on stderr, and as JSON on stdout if asked for."""
    # An answer that cannot be written takes no verdict back.
    arguments.verdict = arguments.verdict or problem
    _logger.error("%s", problem)
    if arguments.json:
        told: dict[str, object] = {"ok": status == FINE, "error": str(problem)}
        if isinstance(problem, InvalidConfigError):
            told["errors"] = [error._asdict() for error in problem.errors]
        _answer(arguments, told, ())
    return status
