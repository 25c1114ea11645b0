"""The commands: each runs a task or reads the node, and returns the exit status."""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import BAD, DIFFERS, FAILED, FINE, USAGE, printable
from hostrouting.exceptions import HostFileError, InvalidConfigError, RouteOverlapError
from hostrouting.host import Host
from hostrouting.node.output import (
    end_log,
    has_colours,
    json_line,
    painted,
    print_document,
    print_json,
    print_lines,
)

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hostrouting.boot import BootFile
    from hostrouting.config import HostRoutingConfig
    from hostrouting.node.boot_files import RenderedFiles
    from hostrouting.node.capabilities import Run
    from hostrouting.node.configure import Configure, Reset
    from phases import Change, Context

#: For apply and reset: enough to wait for DHCP (30 s), for systemd, and for another run.
_DEFAULT_TIMEOUT = 120.0
#: Each leaves an entry in the journal, and logs little without -v.
CHANGING: Final = frozenset({"apply", "reset", "sweep"})
#: The progress is shown after each so many nodes.
_PROGRESS = 100
#: For the verdict after a run.
_SECONDS_TO_LOOK = 10.0
_NO_SYSTEMD = (
    "systemd does not run here, so its files are read instead; "
    "an apply needs it, or --live, or --root DIR"
)
_NOT_KEPT = "nothing is kept at the next boot; to remove the routes, run: hostrouting reset"
_logger = logging.getLogger("hostrouting")


def plan(arguments: Namespace) -> int:
    """Print the changes that an apply would make, and the proof of the planned node."""
    from hostrouting.base.findings import LEFT, REFUSED
    from hostrouting.boot.gates import broken_glass
    from hostrouting.node.configure import Configure
    from phases import TaskFailedError
    from phases import plan as plan_task

    if arguments.records:
        return _fleet(arguments)
    config, host = _config(arguments), _host(arguments)
    live, host = host, _with_unit_files(host)
    with _context(arguments.timeout) as ctx:
        task = Configure(config, host=host)
        by_task: list[Sequence[Change]] = []
        unread: dict[str, None] = {}
        for subtask in task.subtasks:
            # Only root may list some folders; the routes can be planned all the same.
            try:
                by_task.append(plan_task(subtask, ctx).changes)
            except TaskFailedError as error:
                if not isinstance(error.cause, HostFileError):
                    raise error.under(task.name) from error.cause
                unread[f"not compared: {error.cause}"] = None
        changes = _without_repeats(by_task)
        first = (*[_NO_SYSTEMD] * (host is not live), *unread)
        notices = _notices(ctx, config, host, *first, reads=not unread)
        forecast, broken = task.forecast(ctx), None if unread else broken_glass(host.files)
    diffs = _diffs(changes, config, host) if arguments.diff else ()
    lines = [*map(str, changes), *diffs, *forecast.lines(config, broken)]
    more = ({"notices": notices} if notices else {}) | forecast.to_mapping(config, broken)
    _answer(arguments, {"changes": [change.to_mapping() for change in changes], **more}, lines)
    if forecast.fails(config) or any(change.kind == REFUSED for change in changes):
        return BAD
    if unread:
        return FAILED
    differs = any(change.kind != LEFT for change in changes)
    return DIFFERS if arguments.exit_code and differs else FINE


def _with_unit_files(host: Host) -> Host:
    """Return the host, with the files of units where no systemd runs."""
    import attrs

    from hostrouting.host.systemd.systemctl import OfflineUnits, Systemctl, is_there

    if isinstance(host.services, Systemctl) and not is_there():
        return attrs.evolve(host, services=OfflineUnits("/"))
    return host


def _diffs(changes: Iterable[Change], config: HostRoutingConfig, host: Host) -> Iterator[str]:
    """Yield the unified diff of each file that the changes write or remove."""
    from difflib import unified_diff

    from hostrouting.boot.layout import GATE_LOCK, PROGRAM_PATH
    from hostrouting.node.boot_files import render_files

    wanted = {file.path: file.content for file in render_files(config, host=host).files}
    for path in dict.fromkeys(change.subject for change in changes):
        # It is empty, and only root can read it.
        if path == GATE_LOCK:
            continue
        if path == PROGRAM_PATH:
            yield f"Binary files {path} and {path} differ"
            continue
        # Scripts are links, too; those that start a unit lack content.
        if path in wanted or (path.startswith("/") and not path.endswith((".service", ".timer"))):
            contents = (host.files.read(path) or b"", wanted.get(path, b""))
            before, after = (content.decode(errors="replace").splitlines() for content in contents)
            yield from unified_diff(before, after, path, path, lineterm="")


def _notices(
    ctx: Context, config: HostRoutingConfig, host: Host, *first: str, reads: bool = True
) -> list[str]:
    """Log and return the notices about the gates, after the first ones."""
    from hostrouting.boot import Boot
    from hostrouting.config.sections import AGENT_LIST
    from hostrouting.node.boot_files import installs_units, missing_programs
    from hostrouting.node.capabilities import networkd_findings

    boot = Boot(host, gates=config.gates)
    findings = boot.notices(ctx) if reads and installs_units(ctx, config, host) else []
    if host.is_live:
        findings += networkd_findings(ctx, config, host)
    findings += missing_programs(config, host)
    notices = [*first, *(finding.text for finding in findings)]
    if config.inherits_after:
        step = "to change that, set hostRouting.after"
        notices.append(f"after: {', '.join(config.after)}, from {AGENT_LIST}; {step}")
    for notice in notices:
        _logger.warning("%s", notice)
    return notices


def _without_repeats(by_task: Iterable[Sequence[Change]]) -> list[Change]:
    """Return the changes of all tasks, with those that several tasks share (the gates) once."""
    from hostrouting.boot import BOOT_FOLDERS, RELOAD

    changes: list[Change] = []
    for planned in by_task:
        earlier = set(changes)
        changes += [change for change in planned if change not in earlier]
    # A reload that a killed run left is part of the reload for these files.
    is_read_anyway = any(change.subject.startswith(BOOT_FOLDERS) for change in changes)
    return [change for change in changes if not (is_read_anyway and change == RELOAD)]


def apply(arguments: Namespace) -> int:
    """Correct the node, now and for every boot."""
    from hostrouting.node.configure import Configure, ConfigureLive

    if arguments.live and (arguments.dry_run or arguments.root is not None):
        problem = (
            "--live excludes --root and --dry-run; for the changes, run: hostrouting plan CONFIG"
        )
        return refuse(arguments, problem, USAGE)
    if arguments.dry_run:
        return plan(arguments)
    config, host = _config(arguments), _host(arguments)
    if arguments.live:
        host = _with_unit_files(host)
        return _run(arguments, ConfigureLive(config, host=host, force=arguments.force), host)
    task = Configure(config, host=host, force=arguments.force)
    # Before the gates are installed: later it is unknown which running machines were never held.
    with _context(arguments.timeout) as ctx:
        _notices(ctx, config, host)
    return _run(arguments, task, host, None if config.void else config)


def check(arguments: Namespace) -> int:
    """Prove the expected CIDRs, and compare the installed files."""
    from hostrouting.boot import INTENT_PATH
    from hostrouting.node.check import check_node

    if arguments.records:
        return _fleet(arguments)
    excluded = arguments.root or arguments.fix or arguments.json
    if excluded if arguments.format else arguments.out is not None:
        problem = "--format prometheus excludes --root, --fix and --json, and --out needs it"
        return refuse(arguments, problem, USAGE)
    config, host = _config(arguments), _with_unit_files(_host(arguments))
    # The given time is for the default route: its absence is an answer.
    with _context(None) as ctx:
        if arguments.fix:
            from hostrouting.node.fix import fixed, replaced

            result = fixed(ctx, config, host, seconds=arguments.timeout)
            if isinstance(result, str):
                _logger.error("%s", result)
                return BAD
            for sentence in replaced(config, result):
                _logger.warning("%s", sentence)
            print_document({"hostRouting": result.to_mapping()})
            return FINE
        # A line with `-` would wait for a config on a terminal.
        given = "CONFIG" if arguments.config == "-" else arguments.config
        path, root = given or INTENT_PATH, arguments.root
        report = check_node(ctx, config, host, seconds=arguments.timeout, path=path, root=root)
        lines = report.lines(verbose=arguments.verbose)
        if arguments.format:
            from hostrouting.fleet.metrics import exposition

            text = exposition(report, config, now=ctx.clock.time())
            # A name of stdout must not be replaced.
            if arguments.out in {None, "-", "/dev/stdout"}:
                lines = text.splitlines()
            else:
                path = os.path.abspath(arguments.out)  # noqa: PTH100 (slow)
                # The node of a device, such as /dev/null, would be gone for the whole machine; a
                # link, for its owner.
                if os.path.islink(path) or os.path.exists(path) > os.path.isfile(path):  # noqa: PTH110, PTH113, PTH114
                    raise HostFileError(
                        f"{path} is not a plain file to replace; give the path of one"
                    )
                host.files.write(path, text.encode(), mode=0o644)
    _answer(arguments, report.to_mapping(), lines)
    if not report.severities.isdisjoint({"error", arguments.fail_on}):
        return BAD
    return FAILED if report.unread else FINE


def record(arguments: Namespace) -> int:
    """Print the node as a line of JSON."""
    from hostrouting.fleet import take_record

    with _context(arguments.timeout) as ctx:
        print_lines([take_record(ctx, _host(arguments)).to_line().decode()])
    return FINE


def _fleet(arguments: Namespace) -> int:
    """Prove recorded nodes: print a line for each notable one, and their summary."""
    from hostrouting.fleet.stream import Summary, read_lines, verdict_on, verdicts

    planned, summary = arguments.command == "plan", Summary(arguments.fail_on)
    live = ("root", "fix", "diff", "exit-code", "timeout", "format", "out")
    useless = [name for name in live if vars(arguments).get(name.replace("-", "_"))]
    sources = [arguments.config, *arguments.records]
    if useless or (planned and not arguments.config) or sources.count("-") > 1:
        rule = "a plan needs a CONFIG, which stands before --from, and stdin is read once"
        problem = f"--{useless[0]} means nothing with --from" if useless else f"with --from {rule}"
        return refuse(arguments, problem, USAGE)
    config = _config(arguments) if arguments.config else None
    judge = partial(verdict_on, config=config, planned=planned)
    is_json, counts = arguments.json, summary.counts

    def lines() -> Iterator[str]:
        with _context(None) as ctx, ctx.interruptible():
            for verdict in verdicts(read_lines(arguments.records), judge, arguments.jobs):
                if summary.add(verdict) or arguments.verbose or is_json:
                    yield json_line(verdict.to_mapping()) if is_json else printable(str(verdict))
                if sys.stderr.isatty() and not counts["nodes"] % _PROGRESS:
                    sys.stderr.write(f"\r{counts['nodes']:,} nodes, {counts['bad']:,} bad\r")
        if is_json:
            yield json_line({"summary": summary.to_mapping()})
        else:
            yield from map(printable, summary.lines(planned=planned))

    print_lines(lines())
    return summary.status


def status(arguments: Namespace) -> int:
    """Print the verdict on the node."""
    from hostrouting.node.status import node_status

    with _context(arguments.timeout) as ctx:
        status = node_status(ctx, _host(arguments))
    _answer(arguments, status.to_mapping(), status.lines())
    if "error" in status.report.severities:
        return BAD
    return FAILED if status.report.unread else FINE


def optional(load: Callable[[], Run], arguments: Namespace) -> int:
    """Run the command of an optional capability; `load` imports its function."""
    answer = load()(_host(arguments), arguments, partial(_config, arguments))
    arguments.verdict = answer.error or "ok"
    _answer(arguments, answer.mapping, answer.lines)
    if answer.error:
        _logger.error("%s", answer.error)
    return answer.status


def explain(arguments: Namespace) -> int:
    """Print the routes that decide the addresses."""
    from hostrouting.route_overlap.explain import explain_routing

    host, overlap = _host(arguments), None
    width, picture = sys.maxsize, has_colours()
    if picture:
        from hostrouting.boot import require_intent

        with suppress(HostFileError, InvalidConfigError):
            overlap = require_intent(host.files).route_overlap
    try:
        explanations = explain_routing(host, arguments.targets, overlap=overlap)
    except ValueError as error:
        return refuse(arguments, error, USAGE)
    if sys.stdout.isatty():
        from shutil import get_terminal_size

        # In less nothing can be read.
        width = max(20, get_terminal_size().columns)
    texts = (explanation.lines(width=width, picture=picture) for explanation in explanations)
    mappings = [explanation.to_mapping() for explanation in explanations]
    _answer(arguments, {"explanations": mappings}, chain.from_iterable(texts))
    return FINE


def render(arguments: Namespace) -> int:
    """Print or write the files of a config."""
    from hostrouting.node.boot_files import render_files

    rendered = render_files(_config(arguments), host=_host(arguments))
    files, name = rendered.files, arguments.name
    if name is not None:
        known = ", ".join(file.path for file in files) or "nothing"
        files = tuple(file for file in files if name in {file.path, file.path.rpartition("/")[2]})
        if not files:
            problem = f"this config has no file {name!r}; apply would install: {known}"
            return refuse(arguments, problem, USAGE)
    if arguments.out is not None:
        rendered = type(rendered)(files=files, links={} if name else rendered.links)
        written = _write_files(rendered, arguments.out)
        _answer(arguments, {"written": written}, written)
    else:
        form = "==> {path} ({mode}) <==\n{content}\n" if name is None else "{content}"
        texts = (
            form.format(path=file.path, mode=f"{file.mode:04o}", content=_text_of(file))
            for file in files
        )
        shown = {"files": [_mapping_of(file) for file in files]}
        _answer(arguments, shown, (text.removesuffix("\n") for text in texts))
    return FINE


def _text_of(file: BootFile) -> str:
    if file.is_text:
        return file.content.decode()
    return f"({len(file.content)} bytes; --out writes them)\n"


def _mapping_of(file: BootFile) -> dict[str, object]:
    """Return a file for JSON; the program has no text, but a size."""
    shown = {"path": file.path, "mode": f"{file.mode:04o}"}
    if file.is_text:
        return {**shown, "content": file.content.decode()}
    return {**shown, "content": None, "size": len(file.content)}


def _write_files(rendered: RenderedFiles, folder: str) -> list[str]:
    from hostrouting.host.files.store import RootedFiles

    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    except OSError as error:
        raise HostFileError(f"cannot make the folder {folder}: {error.strerror}") from error
    target = RootedFiles(folder)
    for file in rendered.files:
        target.write(file.path, file.content, mode=file.mode)
    for path, text in rendered.links.items():
        target.link(path, text)
    if not rendered.files:
        _logger.warning("nothing was written: this config installs no files")
    return [f"{folder.rstrip('/')}{path}" for path in rendered.paths]


def reset(arguments: Namespace) -> int:
    """Remove everything that hostrouting installed."""
    from hostrouting.config import HostRoutingConfig
    from hostrouting.node.configure import Reset

    # Reset removes everything, of any config; CONFIG only names the folder of a sweep's records.
    config = HostRoutingConfig() if arguments.config is None else _config(arguments)
    host = _host(arguments)
    return _run(arguments, Reset(config, host=host), host)


def schema(_arguments: Namespace) -> int:
    """Print the JSON Schema of the config."""
    from hostrouting.config.schema import config_schema

    print_document(config_schema())
    return FINE


def init(arguments: Namespace) -> int:
    """Print a first config for this node, and on stderr where its values came from."""
    from hostrouting.node.first_config import first_config

    try:
        document, lines = first_config(_host(arguments), arguments.cidr)
    except ValueError as error:
        return refuse(arguments, f"{error}; give --cidr once for each expected CIDR", USAGE)
    print_document(document)
    for line in lines:
        _logger.warning("%s", line)
    return FINE


# --- shared by the commands


def _config(arguments: Namespace) -> HostRoutingConfig:
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


def _host(arguments: Namespace) -> Host:
    if arguments.root is None:
        return Host.live()
    return Host.offline(os.path.abspath(arguments.root))  # noqa: PTH100 (slow)


def recorded_run(arguments: Namespace) -> AbstractContextManager[None]:
    """Return a context that records the run in the journal, if the command changes the node."""
    if arguments.command not in CHANGING or arguments.root is not None or arguments.dry_run:
        return nullcontext()
    from hostrouting.host.files.store import RootedFiles
    from hostrouting.node.history import recorded

    return recorded(arguments, RootedFiles())


def _context(timeout: float | None) -> AbstractContextManager[Context]:
    from phases import Context, cancel_on_signals

    return cancel_on_signals(Context(timeout=timeout))


def _answer(arguments: Namespace, mapping: Mapping[str, object], lines: Iterable[str]) -> None:
    if arguments.json:
        # Those of a watch are the last of many lines.
        print_lines([json_line(mapping)]) if arguments.command == "watch" else print_json(mapping)
    else:
        print_lines(map(painted, lines))


def _run(
    arguments: Namespace,
    task: Configure | Reset,
    host: Host,
    installs: HostRoutingConfig | None = None,
) -> int:
    """Run the task, print its recorded changes, and return the exit status."""
    from hostrouting.boot import Boot
    from hostrouting.node.configure import RELEASED
    from hostrouting.node.status import verdict_now
    from phases import run

    # Like Ctrl-C: a second SIGTERM ends an undo, with a line on what is left. A run outlives its
    # terminal.
    usual = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGQUIT)
    }
    usual[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        report = run(
            task, timeout=arguments.timeout or _DEFAULT_TIMEOUT, handle_signals=True, logger=_logger
        )
    except KeyboardInterrupt:
        arguments.verdict = "a second signal ended the run, or its undo"
        stays = "what was changed until then stays; see: hostrouting status"
        _logger.warning("%s; %s", arguments.verdict, stays)
        raise
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
    failures = getattr(report.error, "failures", ())
    proofs = [failure.report for failure in failures if isinstance(failure, RouteOverlapError)]
    results = [child.result for child in report.children if child.result is not None]
    proofs += results
    changes = report.changes
    with _context(_SECONDS_TO_LOOK) as ctx:
        applied = getattr(task, "applied", None) if report.ok else None
        verdict, node = verdict_now(ctx, host, installs if report.ok else None, applied)
        held = [] if report.ok else Boot(host).held(ctx)
    if arguments.live:
        state = results[-1].headline if results else "the routes of CONFIG are in force"
        is_right = report.ok and not report.degraded
        word, step = ("right", "") if is_right else ("wrong", "; run: hostrouting check CONFIG")
        verdict = f"{word}: {state}{step}"
        # A failed run that changed nothing has left no routes to remove.
        if report.ok or changes:
            verdict += f"; {_NOT_KEPT}"
        if not report.ok and all(proof.ok for proof in results):
            # Not the proof failed, but a change, or the run was refused.
            verdict = (
                f"wrong: {report.error}".replace("\n  ", "\n")
                .replace(":\n", ": ")
                .replace("\n", "; ")
            )
    account = {
        "held": held,
        "released": [change.subject for change in changes if change.kind == RELEASED],
        "spared": () if node is None else node.spared,
    }
    # Its 10,000 changes take a while.
    tree = report.to_mapping() if arguments.json else {}
    overlap = proofs[0].to_mapping() if proofs and arguments.json else None
    # A program is missing, or another one has changed a route since the proof.
    is_wrong = installs is not None and node is not None and node.is_wrong
    answer = {"verdict": verdict, **tree, "ok": report.ok and not is_wrong, "overlap": overlap}
    answer |= {name: value for name, value in account.items() if value}
    arguments.verdict = report.error or verdict
    if report.error:
        _logger.error("%s", report.error)
        end_log(failed=True)
    _answer(arguments, answer, [*map(str, changes), verdict])
    if report.error:
        return status_after(report.error)
    return BAD if is_wrong else FINE


def status_after(error: BaseException) -> int:
    """Return the exit status of a failure."""
    reason, failures = getattr(error, "reason", ""), getattr(error, "failures", (error,))
    if reason in signal.Signals.__members__:
        # As of a process that the signal ended.
        return 128 + signal.Signals[reason]
    if any(isinstance(failure, InvalidConfigError) for failure in failures):
        return USAGE
    return BAD if all(isinstance(failure, RouteOverlapError) for failure in failures) else FAILED


def refuse(arguments: Namespace, problem: object, status: int) -> int:
    """Print the problem on stderr, and with --json on stdout, too."""
    # An answer that cannot be written takes no verdict back.
    arguments.verdict = arguments.verdict or problem
    _logger.error("%s", problem)
    if arguments.json:
        answer: dict[str, object] = {"ok": status == FINE, "error": str(problem)}
        if isinstance(problem, InvalidConfigError):
            answer["errors"] = [error._asdict() for error in problem.errors]
        _answer(arguments, answer, ())
    return status
