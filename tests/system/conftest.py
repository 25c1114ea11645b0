"""Each test on real systemd takes seconds: `make test` runs those that are listed here, and `make
check` runs all.
"""

from pathlib import Path

import pytest
from support.gated_machine import require_nspawn
from system.advertised_machines import tree_with_network_manager

#: File and test; of test_matrix.py some rows are slow all the same.
STORIES = frozenset(
    {
        "test_fabric.py::test_an_announced_fabric_holds_at_boot",
        "test_gate.py::test_each_start_of_a_machine_checks_afresh",
        "test_gate.py::test_no_verb_disturbs_running_units",
        "test_gate.py::test_the_break_glass_lets_machines_start",
        "test_matrix.py::test_a_trouble",
        "test_matrix.py::test_the_table_is_whole",
        "test_networkd.py::test_a_restart_is_survived_with_the_drop_in",
        "test_networkd.py::test_watch_repairs",
        "test_probe_snat.py::test_refused_rules_hold_and_heal",
        "test_probe_snat.py::test_before_the_machine_starts_and_again",
        "test_probe_snat.py::test_live",
        "test_recovery.py::test_a_refused_unit_starts_with_or_without_restart",
        "test_recovery.py::test_after_reset",
        "test_recovery.py::test_stopped_masked_or_disabled_units_stay_down",
        "test_routes_and_check.py::test_apply_change_and_reset_while_machines_run",
        "test_routes_and_check.py::test_static_routes_make_strict_pass",
        "test_routes_and_check.py::test_strict_holds_and_heals",
        "test_routes_and_check.py::test_warn_waits_once",
        "test_upgrade.py::test_our_scripts_run_and_the_machine_goes_on",
        "test_watch_alarm.py::test_an_alarm_holds_the_next_start_and_stops_nothing",
        "test_watch_service.py::test_from_the_boot_to_the_reset",
        "test_watch_timer.py::test_a_deleted_route_and_a_late_overlap",
    }
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder as slow, but for the stories of `make test`."""
    for item in items:
        if Path(__file__).parent == item.path.parent and _name(item) not in STORIES:
            item.add_marker(pytest.mark.slow)


def _name(item: pytest.Item) -> str:
    return f"{item.path.name}::{getattr(item, 'originalname', item.name)}"


@pytest.fixture(autouse=True, scope="session")
def _boots() -> None:
    """Skip a test where no machine with the gates of the distribution can be booted."""
    require_nspawn()


@pytest.fixture(scope="session")
def with_network_manager(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tree with NetworkManager."""
    return tree_with_network_manager(tmp_path_factory.mktemp("other"))
