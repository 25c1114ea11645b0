"""What every run shares: Hypothesis profiles, the programs of the environment, what becomes of skips."""

from __future__ import annotations

import os
import sysconfig
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings

if TYPE_CHECKING:
    from collections.abc import Generator

# Programs that the lock brings (shellcheck) are found wherever the tests start, as in an environment that is activated.
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# CI must not fail by the luck of a seed; it says so in the log instead when somebody runs the random profile.
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, print_blob=True)
# The second run, against the built wheel, asks whether everything is packed, not whether it is right.
settings.register_profile("wheel", parent=settings.get_profile("ci"), max_examples=10)
# On a machine made for the purpose (.ci/fresh) the question is what the tests need, three times over.
settings.register_profile("fresh", parent=settings.get_profile("wheel"), max_examples=3)
settings.register_profile("soak", parent=settings.get_profile("default"), max_examples=5000)
# For hunting differences: the first failure as it comes, without the minutes that shrinking a state machine takes.
settings.register_profile(
    "hunt", parent=settings.get_profile("default"), phases=[Phase.reuse, Phase.generate], report_multiple_bugs=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests marked `soak` to `make soak`: deselected, not skipped, for CI counts a skip as a failure."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "soak":
        return
    soaked = [item for item in items if item.get_closest_marker("soak")]
    items[:] = [item for item in items if item not in soaked]
    config.hook.pytest_deselected(items=soaked)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn skips into failures where the machine is supposed to have everything (CI sets HOSTROUTING_NO_SKIP)."""
    report = yield
    if report.skipped and os.environ.get("HOSTROUTING_NO_SKIP") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure here: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell for each reason how many tests it has skipped, when all else has scrolled away."""
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section("skipped, because this machine lacks something")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5} {reason}")


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
