"""A node with leftovers in real namespaces, for each backend of ebtables."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ebtables_backends import BACKENDS
from support.stale_cni_nodes import LIVE, SHORT, World


@pytest.fixture(params=BACKENDS)
def world(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    for name, value in SHORT.items():
        monkeypatch.setattr(f"hostrouting.{name}", value)
    (tmp_path / "var/lib").mkdir(parents=True)
    with World.made(tmp_path, request.param) as world:
        assert world.reaches(LIVE)
        yield world
