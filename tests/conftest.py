"""Configure every test run: Hypothesis profiles, the selection of tests, and the treatment of
skips.
"""

import gc
import logging
import os
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import engine, providers
from hypothesis.internal.constants_ast import Constants
from support.boot_units import wanted_program
from support.needs import require
from support.patience import at_once

from hostrouting.host.packets import with_sbin
from phases import Context

# Tests import `benchmarks`. The root of the project is behind the installed packages, which may be
# those of a wheel.
sys.path.append(str(Path(__file__).parents[1]))

# pytest rewrites the asserts of these modules, as it does those of test files.
pytest.register_assert_rewrite("host.contracts")

# Tests find the programs of the environment (shellcheck) as if it were activated, those of
# `nox -s fleet_tools`, and ip and sysctl where PATH does not have their folder, as that of `su` does.
_FLEET_TOOLS = str(Path(__file__).parents[1] / ".tools/fleet/bin")
os.environ["PATH"] = os.pathsep.join(
    [sysconfig.get_path("scripts"), _FLEET_TOOLS, with_sbin()["PATH"]]
)

# Not five minutes, which a property that starts processes would take.
engine.MAX_SHRINKING_SECONDS = 20

# `make test`, with few examples: more are for a run that may take longer. A fixed seed: no change
# fails by chance, so what a soak finds becomes a test of its own.
settings.register_profile(
    "default",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    max_examples=3,
)
# `nox -s tests`: the slow tests, too.
settings.register_profile("check", parent=settings.get_profile("default"), max_examples=100)
# All tests again, for another question: which lines run (coverage), whether the program works
# elsewhere (other tools, a fresh machine).
settings.register_profile("again", parent=settings.get_profile("default"), max_examples=10)
# `nox -s kernel`: a kernel that is ten times slower, and has the modules that the tests marked
# `other_kernel` need.
settings.register_profile("kernel", parent=settings.get_profile("default"))
# `make test-package`: the tests that kill the mutants of a package.
settings.register_profile("package", parent=settings.get_profile("default"))
# `nox -s docs`: the tests of the site that it has built.
settings.register_profile("site", parent=settings.get_profile("default"))
# `make dist`: the tests of the files that it has built.
settings.register_profile("dist", parent=settings.get_profile("default"))
# `make quick` and `nox -s unprivileged`: without the tests that need a kernel.
settings.register_profile("quick", parent=settings.get_profile("default"))
# `nox -s soak`: a random seed.
settings.register_profile(
    "soak", parent=settings.get_profile("default"), derandomize=False, max_examples=5000
)
# For hunting differences: the first failure as it comes, without the minutes that shrinking a state
# machine takes.
settings.register_profile(
    "hunt",
    parent=settings.get_profile("soak"),
    phases=[Phase.reuse, Phase.generate],
    report_multiple_bugs=False,
)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
settings.load_profile(PROFILE)
if settings().derandomize:
    # Hypothesis draws numbers and texts of the modules that are loaded, too. With these a property
    # would have other examples after other tests, and after each change of a constant.
    providers._get_local_constants = Constants
#: The marks of the tests that a run leaves out. The slow tests of a file that is named run, but in
#: `make test-package` and `make quick`; a folder selects none.
_LEFT_OUT = {"slow", "soak", "other_kernel", "site", "dist"} - {
    "check": {"slow"},
    "again": {"slow"},
    "soak": {"slow", "soak"},
    "kernel": {"slow", "other_kernel"},
    "site": {"slow", "site"},
    "dist": {"slow", "dist"},
}.get(PROFILE, set())


@pytest.fixture(scope="session")
def needs_kernel() -> None:
    """Skip a test unless it can have network namespaces: root, the tools, and a kernel that permits
    them.
    """
    require("kernel")


@pytest.fixture
def ctx() -> Context:
    """A context whose clock jumps to the end of each wait."""
    return at_once()


@pytest.fixture
def in_tokyo() -> Iterator[None]:
    """Let this process be nine hours ahead of UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are for another run, and those that need a kernel in one without.

    Hundreds of skips take seconds. No further test is skipped, since CI counts a skip as a
    failure.
    """
    named = {Path(word.partition("::")[0]).resolve() for word in config.args}
    selected: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        is_named = item.path in named and PROFILE not in {"quick", "package"}
        left_out = _LEFT_OUT - {"slow"} if is_named else _LEFT_OUT
        is_unwanted = any(map(item.get_closest_marker, left_out)) or (
            PROFILE == "quick" and _is_skipped(item)
        )
        (deselected if is_unwanted else selected).append(item)
    items[:] = _spread(selected)
    config.hook.pytest_deselected(items=deselected)


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with those of real systemd evenly among them.

    These mostly wait. Each worker begins with a part of the list, so one worker would have them
    all, and the others would be done long before it.
    """
    system = Path(__file__).parent / "system"
    waiting = [item for item in items if item.path.parent == system]
    spread = [item for item in items if item.path.parent != system]
    step = len(items) // max(1, len(waiting))
    for number, item in enumerate(waiting):
        spread.insert(number * step, item)
    return spread


def _is_skipped(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return "needs_kernel" in fixtures or any(
        True in mark.args for mark in item.iter_markers("skipif")
    )


def pytest_collection_finish() -> None:
    """Keep the cycle collector from walking through the tests that were collected, whenever a test
    calls it.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Fail a test that leaves the log of the command: it writes to a closed file in all tests after
    it.

    Such a test calls `run_here` of `support/in_process.py` instead of `main`.
    """
    yield
    root = logging.getLogger()
    left = [
        handler
        for handler in root.handlers
        if type(handler).__module__ == "hostrouting.node.output"
    ]
    for handler in left:
        root.removeHandler(handler)
    if left:
        pytest.fail(f"the log of the command is left: {left}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn skips into failures on a machine that is supposed to have everything (CI sets
    HOSTROUTING_NO_SKIP).
    """
    report = yield
    if report.skipped and os.environ.get("HOSTROUTING_NO_SKIP") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure here: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each reason for a skip once, with the number of tests that it skipped."""
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5} {reason}")


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


@pytest.fixture(autouse=True, scope="session")
def _stand_ins() -> Iterator[None]:
    """Let an installation of stand-ins have a program that runs their scripts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hostrouting.boot.steps.wanted_program", wanted_program)
        yield
