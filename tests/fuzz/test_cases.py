"""Every kept input, read by every reader of its sort, without a fuzzer."""

from pathlib import Path

import pytest
from fuzz.targets import CASES, TARGETS, Target


@pytest.mark.parametrize(
    ("target", "case"),
    [
        pytest.param(target, case, id=f"{target.name}-{case.name}")
        for target in TARGETS
        for case in target.cases()
    ],
)
def test_a_kept_input_raises_nothing_but_documented_errors(target: Target, case: Path) -> None:
    """Every kept input is read, or refused with a documented error."""
    target.run(case.read_bytes())


#: Nothing, noise, and inputs that cost a careless reader quadratic time, or more stack than there
#: is.
NOISE = (
    b"",
    b"\0",
    b"\xff" * 64,
    b"{" * 70_000,
    b"[" * 70_000,
    b'{"a":' * 12_000,
    b" " * 65_536,
    b"\n" * 65_536,
    b"1" * 65_536,
    b"*nat\n-A OUTPUT" + b" " * 65_000 + b"x",
    b"*nat\n-A OUTPUT" + b"\t" * 65_000 + b"x",
)


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_every_target_begins_with_an_example_and_stands_nothing_and_noise(target: Target) -> None:
    """Every target reads empty and random bytes without an undocumented error, and has an example,
    as a fuzzer that starts from nothing never gets past the first brace of JSON.
    """
    assert target.cases()
    for data in NOISE:
        target.run(data)


def test_every_folder_of_cases_belongs_to_a_target() -> None:
    """Every folder of cases belongs to a target, so that its cases run."""
    assert {path.name for path in CASES.iterdir()} == {target.name for target in TARGETS}
