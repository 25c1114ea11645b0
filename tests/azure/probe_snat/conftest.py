"""A node in memory that takes part, with a default route."""

import pytest
from support.probe_nodes import made_host

from hostrouting.testing import FakeHost


@pytest.fixture
def host() -> FakeHost:
    return made_host()
