"""A node with leftovers in real namespaces, for each backend of ebtables."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stale_cni_nodes import LIVE, SHORT, World

_MODULES = Path("/proc/modules")
#: `.ci/kernel` loads the table; elsewhere no test does that, for it hooks itself into every bridge
#: of the machine.
BACKENDS = (
    ("nft", "legacy") if _MODULES.exists() and "ebtable_nat " in _MODULES.read_text() else ("nft",)
)


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
