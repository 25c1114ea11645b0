"""The JSON of the commands as programs may rely on it: docs/schemas."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parents[2] / "docs/schemas"
_STEP = "if that is meant, change docs/reference.md, and run: nox -s reference"
#: The answers of a command that are not named like it, by a key that others do not have.
_BY_KEY = {"children": "apply", "hostname": "verdict", "summary": "summary", "changes": "plan"}


@cache
def validator(name: str) -> Draft202012Validator:
    """Return the validator of an answer, which may have no key that the schema lacks."""
    path = SCHEMAS / f"{name}.json"
    return Draft202012Validator(json.loads(path.read_text(), object_hook=_closed))


def _closed(part: dict[str, Any]) -> dict[str, Any]:
    is_object = isinstance(part.get("properties"), dict) and "type" in part
    return {"additionalProperties": False, **part} if is_object else part


def require_valid(name: str, answer: Any) -> None:
    """Fail for a key that is new, lost or of another type."""
    errors = [
        f"{error.json_path}: {error.message[:500]}" for error in validator(name).iter_errors(answer)
    ]
    assert not errors, f"docs/schemas/{name}.json: {'; '.join(errors)}; {_STEP}"


def require_valid_output(words: Sequence[str | Path], stdout: str) -> None:
    """Compare what a command printed for programs with its schema."""
    if "record" in words[:1] and stdout:
        require_valid("record", json.loads(stdout))
    # `init` prints a config.
    if "--json" not in words or words[0] == "init" or not stdout.startswith("{"):
        return
    lines = stdout.splitlines()
    # An answer is several lines, or each line is one.
    for text in lines if lines[0].endswith("}") else [stdout]:
        answer = json.loads(text)
        require_valid(_named(str(words[0]), answer), answer)


def _named(command: str, answer: dict[str, Any]) -> str:
    if answer.keys() <= {"version", "ok", "error", "errors"}:
        return "end"
    if command in {"check", "plan", "apply", "reset"}:
        return next((_BY_KEY[key] for key in _BY_KEY if key in answer), command)
    return command
