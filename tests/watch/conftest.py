"""Each test of a watch also checks that the records of the log have the name of the task."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hostrouting.watch
from hostrouting import Watch

PACKAGE = Path(hostrouting.watch.__file__).parent


@pytest.fixture(autouse=True)
def _records_name_their_task(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Each record that the package writes has the name of its task, as the records of a run do."""
    yield
    found = [
        record for record in caplog.get_records("call") if Path(record.pathname).parent == PACKAGE
    ]
    assert {getattr(record, "task", record.getMessage()) for record in found} <= {Watch.name}
