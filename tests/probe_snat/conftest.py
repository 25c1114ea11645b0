"""A node in memory that takes part, with a default route."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.probe_nodes import made_host

if TYPE_CHECKING:
    from hostrouting.testing import FakeHost


@pytest.fixture
def host() -> FakeHost:
    return made_host()
