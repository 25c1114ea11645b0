"""Configure every test run: Hypothesis profiles, the selection of tests, and the treatment of skips."""

from __future__ import annotations

import gc
import logging
import os
import sysconfig
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from support.needs import require

from phases import Context
from phases.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Generator

# Tests find the programs of the environment (shellcheck) as if it were activated.
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A fixed seed: CI does not fail by chance. A random seed finds new failures on a developer's machine.
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, print_blob=True)
# A further run asks if the program works elsewhere (as a wheel, with other tools), or which lines run (coverage).
# Few examples answer that.
settings.register_profile("wheel", parent=settings.get_profile("ci"), max_examples=10)
# On a fresh machine (.ci/fresh) the run shows which packages the tests need; three examples suffice.
settings.register_profile("fresh", parent=settings.get_profile("wheel"), max_examples=3)
# `make kernel-*`: a kernel that is ten times slower, and has the modules that the tests marked `other_kernel` need.
settings.register_profile("kernel", parent=settings.get_profile("fresh"))
# `make quick`: without the tests that need a kernel or are marked `thorough`.
settings.register_profile("quick", parent=settings.get_profile("fresh"))
settings.register_profile("soak", parent=settings.get_profile("default"), max_examples=5000)
# For hunting differences: the first failure as it comes, without the minutes that shrinking a state machine takes.
settings.register_profile(
    "hunt", parent=settings.get_profile("default"), phases=[Phase.reuse, Phase.generate], report_multiple_bugs=False
)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default")
settings.load_profile(PROFILE)


@pytest.fixture(scope="session")
def needs_kernel() -> None:
    """Skip a test unless it can have network namespaces: root, the tools, and a kernel that permits them."""
    require("kernel")


@pytest.fixture
def ctx() -> Context:
    """A context whose clock needs no waiting."""
    return Context(clock=ManualClock(auto=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests marked `soak` outside `make soak`, and those marked `other_kernel` outside `make kernel-*`.

    In `make quick` deselect the thorough and the skipped ones, too: hundreds of skips take seconds. None of the others
    is skipped, since CI counts a skip as a failure.
    """
    unwanted = {
        "soak": ("other_kernel",),
        "kernel": ("soak",),
        "quick": ("soak", "other_kernel", "thorough"),
    }.get(PROFILE, ("soak", "other_kernel"))
    selected: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        is_unwanted = any(map(item.get_closest_marker, unwanted)) or (PROFILE == "quick" and _is_skipped(item))
        (deselected if is_unwanted else selected).append(item)
    items[:] = selected
    config.hook.pytest_deselected(items=deselected)


def _is_skipped(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return "needs_kernel" in fixtures or any(True in mark.args for mark in item.iter_markers("skipif"))


def pytest_collection_finish() -> None:
    """Keep the cycle collector from walking through the tests that were collected, whenever a test calls it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Fail a test that leaves the log of the command: it writes to a closed file in all tests after it.

    Such a test calls `run_here` of `support/in_process.py` instead of `main`.
    """
    yield
    root = logging.getLogger()
    left = [handler for handler in root.handlers if type(handler).__module__ == "hostrouting.output"]
    for handler in left:
        root.removeHandler(handler)
    if left:
        pytest.fail(f"the log of the command is left: {left}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn skips into failures on a machine that is supposed to have everything (CI sets HOSTROUTING_NO_SKIP)."""
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
