"""What every test run shares: Hypothesis profiles, and CI's rule that a skip is a failure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings

if TYPE_CHECKING:
    from collections.abc import Generator

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# CI must not fail by the luck of a seed; it says so in the log instead when somebody runs the random profile.
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, print_blob=True)
# The second run, against the built wheel, asks whether everything is packed, not whether it is right.
settings.register_profile("wheel", parent=settings.get_profile("ci"), max_examples=10)
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
