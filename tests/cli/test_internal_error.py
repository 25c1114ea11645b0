"""A mistake of the program itself: its traceback, and where to report it."""

import json
from pathlib import Path

import pytest
from support.command_line import OTHER_COMMAND
from support.in_process import run_here

from hostrouting import Configure
from hostrouting.exceptions import UnitError
from phases import Context

pytestmark = pytest.mark.skipif(bool(OTHER_COMMAND), reason="they run within this process")

REPORT = "report it, with the above: https://github.com/hostrouting/hostrouting/issues\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text('{"hostRouting": {}}', encoding="utf-8")
    return path


def _break(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let each look at the node, and each apply, raise an error."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("hostrouting.cli.commands.check.check_node", fail)

    def do(_self: Configure, _ctx: Context) -> None:
        fail()

    monkeypatch.setattr(Configure, "do", do)


@pytest.mark.parametrize(("command", "path"), [("check", ""), ("apply", "configure: ")])
def test_an_internal_mistake_is_named_as_one(
    command: str, path: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An internal mistake ends with status 3, the whole traceback, and the request to report it."""
    _break(monkeypatch, AttributeError("'NoneType' object has no attribute 'dev'"))
    ended = run_here(command, "--root", config.parent, config)
    assert ended.returncode == 3
    assert "Traceback (most recent call last):" in ended.stderr
    assert "in fail\n    raise error\n" in ended.stderr
    text = f"internal error: {path}'NoneType' object has no attribute 'dev'; {REPORT}"
    assert ended.stderr.endswith(f"\nhostrouting: {text}")


def test_in_json_it_is_the_error(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --json the answer about an internal mistake is an object on stdout, as it is for any
    other error.
    """
    _break(monkeypatch, KeyError("dev"))
    ended = run_here("check", "--json", "--root", config.parent, config)
    assert json.loads(ended.stdout) == {
        "version": 1,
        "ok": False,
        "error": f"internal error: KeyError: 'dev'; {REPORT}".strip(),
    }


def test_an_error_that_is_raised_on_purpose_has_no_traceback(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that is raised on purpose is printed in one line without a traceback."""
    _break(monkeypatch, UnitError("systemd is busy; wait, and try again"))
    ended = run_here("check", "--root", config.parent, config)
    assert ended.returncode == 3
    assert ended.stderr == "hostrouting: systemd is busy; wait, and try again\n"
