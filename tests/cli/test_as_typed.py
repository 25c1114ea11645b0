"""Command lines and configs as people type them: each answer has the next step."""

import ast
import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from support.config_errors import is_valid
from support.golden import assert_golden_lines, golden_lines
from support.in_process import run_here

from hostrouting.host import Host
from hostrouting.testing import FakeHost

#: The words, which may have C (a right config), R (a record), X (no file), and the last line that
#: they print, after the exit status.
LINES = Path(__file__).with_name("command_lines.txt")
#: A route, or what stands in hostRouting, or a whole file as bytes; and the answer.
CONFIGS = Path(__file__).with_name("configs.txt")


@pytest.fixture(autouse=True)
def _no_line_reaches_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a fake in place of this machine, since `watch` would keep the routes of an installed
    config.
    """
    fake = FakeHost()
    # Under no service manager, as a person types it.
    host = Host(routes=fake.routes, services=fake.services, files=fake.files, lock=fake.lock)
    monkeypatch.setattr(Host, "live", lambda: host)


def test_command_lines_as_typed(tmp_path: Path) -> None:
    """A command line as people type it has the exit status and the last line of the golden file,
    and prints few lines without a traceback.
    """
    config = tmp_path / "c.json"
    config.write_text('{"hostRouting":{"routeOverlap":{"expectedCidrs":["10.96.0.0/12"]}}}')
    (record := tmp_path / "n.jsonl").write_text("")
    files = {"C": config, "R": record, "X": tmp_path / "absent"}
    answers = {}
    for line in golden_lines(LINES):
        answered = run_here(*(str(files.get(word, word)) for word in line.split()))
        # -vv shows a traceback; --json has its answer on stdout, and R its verdict on each node.
        if not {"-vv", "--json", "R"} & {*line.split()}:
            assert answered.stdout == ""
            assert "Traceback" not in answered.stderr
            assert len(answered.stderr.splitlines()) <= 6
        last = (answered.stderr or answered.stdout).splitlines()[-1]
        for letter, path in files.items():
            last = last.replace(str(path), letter)
        # Newer Pythons write the choices without quotes.
        shown = re.sub(r"\(choose from .*?\)", "(choose from @)", last)
        answers[line] = f"{answered.returncode}: {shown}"
    assert_golden_lines(LINES, answers)


@pytest.mark.parametrize(
    ("line", "phrase"),
    [
        ("", "usage: hostrouting"),
        ("-h", "usage: hostrouting"),
        ("help", "only read: status"),
        ("--help", " apply "),
        ("help apply", "usage: hostrouting apply"),
        ("help check", "usage: hostrouting check"),
        ("help reset", "usage: hostrouting reset"),
        ("check --help", "--fail-on"),
        ("--version", "hostrouting "),
    ],
)
def test_help_and_version_as_typed(line: str, phrase: str) -> None:
    """A request for help or the version ends with exit status 0, and prints the text on stdout."""
    answered = run_here(*line.split())
    assert answered.returncode == 0
    assert phrase in " ".join(answered.stdout.split())


_DESTINATION = {"destination": "172.16.8.0/22"}


@pytest.mark.parametrize(
    "document",
    [
        {"$schema": "x", "staticRoutes": {"enabled": True, "routes": [_DESTINATION]}},
        {
            "$schema": "x",
            "hostRouting": {"staticRoutes": {"enabled": True, "routes": [_DESTINATION]}},
        },
    ],
)
def test_the_schema_of_a_file_is_allowed_at_its_top(document: object, tmp_path: Path) -> None:
    """The key `$schema`, which an editor needs, is accepted at the top of a config, and refused
    inside a section.
    """
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document))
    assert run_here("render", path).returncode == 0
    path.write_text(json.dumps(document).replace('"enabled"', '"$schema": "x", "enabled"'))
    answered = run_here("render", path)
    assert answered.returncode == 2
    assert "staticRoutes['$schema']: is not a" in answered.stderr


def test_a_schema_alone_is_not_a_config(tmp_path: Path) -> None:
    """A config with nothing but `$schema` is refused, since it configures nothing."""
    path = tmp_path / "c.json"
    path.write_text('{"$schema": "x"}')
    answered = run_here("render", path)
    assert answered.returncode == 2
    assert answered.stderr.startswith("hostrouting: hostRouting: ")


def test_configs_as_typed(tmp_path: Path) -> None:
    """A wrong config ends with status 2 and the line of the golden file: the field or the place,
    the rule, the value, and what to write.

    The file also has whether the JSON Schema allows the config, since a schema cannot express each
    rule.
    """
    path = tmp_path / "c.json"
    answers = {}
    for typed in golden_lines(CONFIGS):
        path.write_bytes(whole := ast.literal_eval(typed) if typed[0] == "b" else _whole(typed))
        answered = run_here("render", path)
        output = answered.stderr.replace(f"the config '{path}' is not JSON: ", "")
        output = output.removeprefix("hostrouting: ").removeprefix("hostRouting.")
        assert answered.returncode == 2
        [answer] = output.splitlines()
        with suppress(ValueError, RecursionError):
            answer += " (the schema allows it)" * is_valid(json.loads(whole.decode()))
        answers[typed] = answer
    assert_golden_lines(CONFIGS, answers)


@pytest.mark.parametrize("whole", [b"[" * 100_000, b'{"x": ' + b"9" * 5000 + b"}"])
def test_a_config_beyond_all_depth_and_length(whole: bytes, tmp_path: Path) -> None:
    """A config that is nested too deeply, or has too long a number, is refused in one line."""
    path = tmp_path / "c.json"
    path.write_bytes(whole)
    answered = run_here("render", path)
    assert answered.returncode == 2
    assert len(answered.stderr.splitlines()) == 1


def _whole(typed: str) -> bytes:
    if typed[0] in "{n":
        typed = f'"staticRoutes": {{"enabled": true, "routes": [{typed}]}}'
    return f'{{"hostRouting": {{{typed}}}}}'.encode()
