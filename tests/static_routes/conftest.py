"""A GPU node in memory."""

import pytest
from support.static_route_nodes import made_host

from hostrouting.testing import FakeHost


@pytest.fixture
def host() -> FakeHost:
    return made_host()
