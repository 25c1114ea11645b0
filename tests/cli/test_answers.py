"""The JSON of each command has the keys and types of docs/schemas: on random nodes here, and in
each test that runs a command with --json.
"""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node.test_plan_and_records import wanted_configs
from node.test_transaction import worlds
from support import node_worlds
from support.answers import require_valid
from support.fleets import as_document, records
from support.in_process import run_here

import phases.context
from hostrouting import HostRoutingConfig
from hostrouting.fleet import NodeRecord, check_record
from hostrouting.host import Host
from hostrouting.node.output import json_line
from hostrouting.testing import FakeHost, MemoryBackend, strategies
from phases.testing import ManualClock


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(world=worlds, data=st.data())
def test_the_answers_about_random_nodes(
    world: node_worlds.World, data: st.DataObject, tmp_path: Path
) -> None:
    """The JSON of a command about a random node is valid by its schema, before an apply, after it,
    and after a reset.
    """
    host = FakeHost(MemoryBackend())
    # No device of it goes down.
    world._replace(down=None).arrange(host.routes)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(data.draw(wanted_configs(world, siblings=True)).to_mapping()))
    clock = ManualClock(auto=True)
    with (
        patch.object(Host, "live", lambda: host),
        patch.object(phases.context, "SystemClock", lambda: clock),
    ):
        for words in (
            ["check", path],
            ["plan", path],
            ["render", path],
            ["apply", path],
            ["status"],
            ["check"],
            ["explain", *world.cidrs],
            ["reset"],
            ["status"],
        ):
            run_here(*words, "--json")
        run_here("record")


@given(records, st.none() | strategies.configs(), st.booleans())
def test_the_answers_about_random_records(
    record: NodeRecord, config: HostRoutingConfig | None, planned: bool
) -> None:
    """The JSON of a random record, and that of its check, is valid by its schema."""
    require_valid("record", as_document(record))
    verdict = check_record(record, config, planned=planned)
    require_valid("verdict", json.loads(json_line(verdict.to_mapping())))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"more": 1}, "Additional properties are not allowed ('more' was unexpected)"),
        ({"ok": None}, "None is not of type 'boolean'"),
        ({"ok": ...}, "'ok' is a required property"),
    ],
)
def test_another_key_is_refused(change: dict[str, object], reason: str) -> None:
    """An answer with an added, retyped or lost key fails its schema; the failure names the key, and
    the step if the change is meant.
    """
    answer = {"version": 1, "ok": False, "error": "no config", **change}
    kept = {name: value for name, value in answer.items() if value is not ...}
    with pytest.raises(AssertionError) as failed:
        require_valid("end", kept)
    assert reason in str(failed.value)
    assert "nox -s reference" in str(failed.value)
