"""A GPU node in memory, and a context whose clock needs no waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.static_route_nodes import made_host

from phases import Context
from phases.testing import ManualClock

if TYPE_CHECKING:
    from hostrouting.testing import FakeHost


@pytest.fixture
def host() -> FakeHost:
    return made_host()


@pytest.fixture
def ctx() -> Context:
    return Context(clock=ManualClock(auto=True))
