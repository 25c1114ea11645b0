"""A machine in memory on which systemd-nspawn is installed."""

import pytest
from support.boot_units import NSPAWN

from hostrouting.testing import FakeHost
from phases import Context

MACHINE = b"[Unit]\nAfter=network.target\nBefore=machines.target\n[Service]\nExecStart=/bin/sleep infinity\n"


@pytest.fixture
def ctx() -> Context:
    """A context that is long enough for any test."""
    return Context(timeout=60)


@pytest.fixture
def host() -> FakeHost:
    """A machine without any installed config."""
    host = FakeHost()
    host.files.write(f"/lib/systemd/system/{NSPAWN}", MACHINE, mode=0o644)
    return host
