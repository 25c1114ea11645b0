"""`nox -s mutants`: change one piece of the code, and expect a test of its package to fail; again
for each mutant. The test that fails must pass on the unchanged tree, before and after.

A file `PACKAGE.txt` next to this one has a block for each source file: its path, then its mutants.

    hostrouting/net/example.py
    # Table.rows: what goes wrong
    - code that is found once in Table.rows
    + the code instead of it

Name a function with its class, or with the function around it; `Table` is all of a class, and
`<module>` all of a file. Quote as little as is unique, so that other changes of the function do not
touch the mutant. A mutant with `?` in place of `#` is known to survive. One whose code is not
found, or not once, is an error: update it together with the code. PACKAGES has the tests of each
package; `make test-package` runs all but the slow ones. A mutant that only these kill is listed.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from math import inf
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
#: The last killer of each mutant, which the next run tries first; it is not a part of the project.
NOTES = ROOT / ".mutants.json"
PACKAGES = {
    # Those of real systemd first, since they take the longest.
    "boot": "tests/system/test_recovery.py tests/system/test_gate.py tests/system/test_waiters.py"
    " tests/node/test_configure.py tests/node/test_undo_of_a_run.py tests/watch/test_networkd.py"
    " tests/watch/test_check.py tests/boot",
    "cli": "tests/cli tests/watch/test_unit.py tests/node/test_check.py"
    " tests/azure/stale_cni/test_swept.py",
    "config": "tests/config tests/cli/test_as_typed.py tests/test_mistakes_table.py"
    " tests/cli/test_typed.py::test_ctrl_c_just_before_a_wait_ends_it",
    "fib": "tests/fib",
    "fleet": "tests/fleet",
    "host": "tests/host tests/test_errors.py",
    "managers": "tests/managers",
    "net": "tests/net tests/fib/test_vrf.py tests/static_routes/test_ipv6_decisions.py"
    " tests/test_errors.py",
    "node": "tests/node tests/cli/test_status.py tests/cli/test_watch_json.py"
    " tests/boot/test_installed_config.py tests/route_overlap/test_task.py",
    "phases": "tests/phases tests/test_mistakes_table.py",
    "probe_snat": "tests/azure/probe_snat tests/watch/test_probes.py tests/watch/test_worker.py"
    " tests/node/test_configure.py tests/system/test_probe_snat.py::test_live",
    "route_overlap": "tests/route_overlap tests/node/test_causes.py",
    "stale_cni": "tests/azure/stale_cni tests/test_public_modules.py",
    "static_routes": "tests/static_routes tests/node/test_fix.py"
    " tests/route_overlap/test_ipv6_ways.py",
    "testing": "tests/testing tests/host/test_fakes.py tests/host/test_notify.py"
    " tests/host/test_link_layer_faults.py"
    " tests/host/ebtables/test_ebtables.py::TestMemory tests/host/test_nft.py::TestMemoryNftables"
    " tests/host/test_link_layer.py::TestMemoryLinkLayer"
    " tests/host/test_network_events.py::TestMemoryEvents"
    " tests/host/test_route_backends.py::TestMemoryBackend tests/host/test_route_backends.py"
    "::TestNetlinkBackend::test_rules_come_in_the_order_of_their_priority",
    "watch": "tests/watch tests/cli/test_watch_json.py"
    " tests/system/test_watch_service.py::test_from_the_boot_to_the_reset",
}
#: Seconds; a mutant may loop for ever.
_LONGEST = 900
#: The test that failed, in the line of its result, or a file in the summary that cannot be imported.
_FAILED = re.compile(
    r"^(?:(.+?) (?:FAILED|ERROR) +\[ *\d+%\]|(?:FAILED|ERROR) (.+?)(?: - .*)?)$", re.MULTILINE
)


class Mutant(NamedTuple):
    """One wrong piece of code; `survives` if no test is known to fail by it."""

    package: str
    #: The path of its source below the root.
    file: str
    function: str
    name: str
    before: str
    after: str
    survives: bool

    def __str__(self) -> str:
        return f"{self.package}: {self.name}"


class Outcome(NamedTuple):
    """What the tests of a mutant's package did."""

    mutant: Mutant
    #: The first one that fails by the mutant alone, or empty.
    killer: str
    seconds: float
    #: Those that failed, but not by the mutant alone.
    doubtful: tuple[str, ...] = ()
    #: Whether `make test-package` does not run the killer, or not with so many examples.
    needs_all_tests: bool = False


def mutants() -> list[Mutant]:
    """Return all mutants, package by package."""
    return [mutant for package in PACKAGES for mutant in _parsed(package)]


def _parsed(package: str) -> Iterator[Mutant]:
    path = Path(__file__).with_name(f"{package}.txt")
    for block in path.read_text(encoding="utf-8").strip().split("\n\n") if path.exists() else ():
        file, *entries = re.split(r"\n(?=[#?] )", block)
        for entry in entries:
            head, *lines = entry.split("\n")
            function, colon, name = head[2:].partition(": ")
            if not colon or not {"-"} <= {line[:1] for line in lines} <= {"-", "+"}:
                raise SystemExit(
                    f"{path.name}: these are not '# function: name', '- before', '+ after':\n{entry}"
                )
            before, after = (
                "\n".join(line[2:] for line in lines if line[:1] == mark) for mark in "-+"
            )
            yield Mutant(package, file, function, name, before, after, head[0] == "?")


@cache
def _spans(text: str, suffix: str) -> list[tuple[str, int, int]]:
    """Return the functions and classes of a source, each with the offsets of its begin and end."""
    found = [("<module>", 0, len(text))]
    if suffix != ".py":
        functions = re.finditer(r"^(\w+)\(\) \{.*?^\}", text, re.MULTILINE | re.DOTALL)
        return found + [(function[1], *function.span()) for function in functions]
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inside = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min(part.lineno for part in (child, *child.decorator_list))
                name, last = f"{prefix}{child.name}", child.end_lineno or first
                found.append((name, starts[first - 1], starts[last]))
                inside = f"{name}."
            visit(child, inside)

    visit(ast.parse(text), "")
    return found


def split(mutant: Mutant, tree: Path) -> tuple[str, str]:
    """Return the text before and after the code of a mutant; end if it is not found just once."""
    file = tree / mutant.file
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    spans = [span for name, *span in _spans(text, file.suffix) if name == mutant.function]
    pieces = re.compile(re.escape(mutant.before)).finditer
    found = [piece.span() for begin, end in spans for piece in pieces(text, begin, end)]
    if len(found) != 1:
        has = f"has {len(found)} times {mutant.before!r}" if spans and text else "does not exist"
        raise SystemExit(
            f"tests/mutants/{mutant.package}.txt: {mutant.name}: {mutant.function} {has} in "
            f"{mutant.file}; update the mutant together with the code"
        )
    return text[: found[0][0]], text[found[0][1] :]


def diff_since(base: str) -> str:
    """Return how the packages differ from a commit's common ancestor with this tree."""
    words = ["git", "diff", "--unified=0", "--no-ext-diff", "--merge-base", base, "--"]
    words += ["hostrouting", "phases"]
    done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"--since {base}: {done.stderr.strip()}; name a commit that git has here")
    return done.stdout


def changed_lines(diff: str) -> dict[Path, set[int]]:
    """Return the lines of each file that a diff without context touches."""
    lines: dict[Path, set[int]] = {}
    for part in re.split(r"^\+\+\+ b/", diff, flags=re.MULTILINE)[1:]:
        path = ROOT / part.partition("\n")[0]
        hunks = re.findall(r"^@@ \S+ \+(\d+)(?:,(\d+))? @@", part, flags=re.MULTILINE)
        # Where lines were removed alone, the one before counts.
        lines[path] = {
            int(start) + number for start, count in hunks for number in range(int(count or 1) or 1)
        }
    return lines


def _lines_of(mutant: Mutant) -> set[int]:
    begin = split(mutant, ROOT)[0].count("\n") + 1
    return set(range(begin, begin + mutant.before.count("\n") + 1))


def _run(
    tree: Path, tests: Sequence[str], profile: str, *, without: Sequence[str] = ()
) -> tuple[int, str]:
    """Run tests until one fails; return the status of pytest, and which one failed or hung."""
    environment = os.environ | {"PYTHONPATH": str(tree), "HYPOTHESIS_PROFILE": profile}
    command = [sys.executable, "-m", "pytest", "-vx", "-p", "no:cacheprovider", "--no-header"]
    command += ["--tb=no", "-rfE", *(f"--deselect={test}" for test in without), *tests]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        # pytest writes the name of a test before it begins.
        return 1, (expired.stdout or b"").decode().rpartition("\n")[2].strip()
    failed = _FAILED.search(done.stdout)
    # 5: the profile leaves nothing to run. Else a file may be lost, and no test is named.
    if not failed and done.returncode not in {0, 5}:
        raise SystemExit(
            f"the tests of {tree} cannot run: {done.stdout[-500:]}{done.stderr[-500:]}"
        )
    return done.returncode, (failed[1] or failed[2]) if failed else ""


@contextmanager
def _mutated(mutant: Mutant, tree: Path) -> Iterator[None]:
    file, parts = tree / mutant.file, split(mutant, tree)
    _write(file, mutant.after.join(parts))
    try:
        yield
    finally:
        _write(file, mutant.before.join(parts))


def _write(file: Path, text: str) -> None:
    """Write a source whose time is its checksum.

    Python takes a compiled file if the size and the second of its source have not changed, as may
    be with a mutant.
    """
    source = text.encode()
    file.write_bytes(source)
    seconds = zlib.crc32(source) % 10**9
    os.utime(file, (seconds, seconds))


def _kills(test: str, mutant: Mutant, tree: Path, profile: str) -> bool:
    """Return True if a test fails with a mutant, and passes without it, before and after."""

    def passes() -> bool:
        status, _ = _run(tree, [test], profile)
        return status == 0

    if not passes():
        return False
    with _mutated(mutant, tree):
        if passes():
            return False
    return passes()


def judge(mutant: Mutant, tree: Path, first: str) -> Outcome:
    """Run tests with a mutant in a copy of the tree: `first`, those that need no kernel, those of
    `make test-package`, then all of the package. A test that is red by chance, or without the
    mutant, is left out.
    """
    tests, begun = PACKAGES[mutant.package].split(), time.monotonic()
    doubtful: list[str] = []

    def outcome(killer: str, profile: str = "") -> Outcome:
        seconds = time.monotonic() - begun
        return Outcome(mutant, killer, seconds, tuple(doubtful), profile == "check")

    if first and _kills(first, mutant, tree, "package"):
        return outcome(first)
    for profile in "quick", "package", "check":
        while True:
            with _mutated(mutant, tree):
                _, failed = _run(tree, tests, profile, without=doubtful)
            if not failed or failed in doubtful:
                break
            if _kills(failed, mutant, tree, profile):
                return outcome(failed, profile)
            doubtful.append(failed)
    return outcome("")


def _arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--package", action="append", choices=PACKAGES, help="only its mutants; may be repeated")
    add("--sample", type=int, metavar="N", help="only N of them, taken at random")
    add("--seed", type=int, default=0, help="of the sample")
    add("--since", metavar="COMMIT", help="only those of lines that changed after COMMIT")
    add("--minutes", type=float, default=inf, metavar="N", help="begin none later than this")
    add("--jobs", type=int, default=os.cpu_count(), help="so many at a time")
    add("--list", action="store_true", help="count the mutants of each package")
    add("--tests", choices=PACKAGES, metavar="PACKAGE", help="print the tests of a package")
    return parser.parse_args()


def _chosen(arguments: argparse.Namespace) -> list[Mutant]:
    """Return the mutants that the command line means; end if the code of one is lost."""
    chosen = [mutant for mutant in mutants() if mutant.package in (arguments.package or PACKAGES)]
    lines = {mutant: _lines_of(mutant) for mutant in chosen}
    if arguments.since:
        changed = changed_lines(diff_since(arguments.since))
        chosen = [m for m in chosen if lines[m] & changed.get(ROOT / m.file, set())]
    if arguments.sample is not None:
        chosen = random.Random(arguments.seed).sample(chosen, min(arguments.sample, len(chosen)))
    return chosen


def report(outcomes: Sequence[Outcome], untried: Sequence[Mutant], *, is_of_a_change: bool) -> int:
    """Print what the outcomes show; return the status. All mutants of a change must be tried."""
    killed = sum(bool(outcome.killer) for outcome in outcomes)
    lost = [
        outcome.mutant for outcome in outcomes if not outcome.killer and not outcome.mutant.survives
    ]
    print(f"{killed} of {len(outcomes)} mutants were killed")
    if untried:
        print(f"{len(untried)} were not tried in time")
    for mutant in untried if is_of_a_change else ():
        print(f"not tried: {mutant}")
    for mutant in (outcome.mutant for outcome in outcomes if outcome.needs_all_tests):
        print(f"not killed by `make test-package PACKAGE={mutant.package}`: {mutant.name}")
    for mutant in lost:
        print(f"not killed: {mutant}")
    for test in sorted({test for outcome in outcomes for test in outcome.doubtful}):
        print(f"failed, but not by a mutant alone: {test}")
    return 1 if lost or (untried and is_of_a_change) else 0


def main() -> int:
    """Judge the mutants, and list those that survive though none of them should."""
    arguments = _arguments()
    if arguments.tests:
        print(PACKAGES[arguments.tests])
        return 0
    chosen = _chosen(arguments)
    if arguments.list:
        for package in PACKAGES:
            print(f"{package:14} {sum(mutant.package == package for mutant in chosen)}")
        return 0
    begun, longest = time.monotonic(), 60 * arguments.minutes
    killers: dict[str, str] = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        ignored = shutil.ignore_patterns(".git", ".venv*", ".tools", "__pycache__", ".hypothesis")
        for number in range(arguments.jobs):
            tree = Path(folder, str(number))
            trees.put(shutil.copytree(ROOT, tree, ignore=ignored, symlinks=True))

        def in_a_tree(mutant: Mutant) -> Outcome | None:
            if time.monotonic() - begun > longest:
                return None
            tree = trees.get()
            try:
                return judge(mutant, tree, killers.get(str(mutant), ""))
            finally:
                trees.put(tree)

        outcomes = []
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for outcome in filter(None, pool.map(in_a_tree, chosen)):
                outcomes.append(outcome)
                name, killer = str(outcome.mutant), outcome.killer or "SURVIVES"
                print(f"{outcome.seconds:6.1f} s  {name}: {killer}", flush=True)
                killers[name] = outcome.killer
                NOTES.write_text(json.dumps(killers, indent=1))
    tried = {outcome.mutant for outcome in outcomes}
    untried = [mutant for mutant in chosen if mutant not in tried]
    return report(outcomes, untried, is_of_a_change=arguments.since is not None)


if __name__ == "__main__":
    sys.exit(main())
