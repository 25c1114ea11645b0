"""The tests themselves keep the rules that a program can check."""

import importlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.documents import ROOT
from support.kernel import batch, needs_kernel
from system.conftest import STORIES

from hostrouting.testing import KernelNode


def test_each_story_is_there() -> None:
    """Each test that STORIES lists exists in tests/system, so that one with a new name is listed
    again.
    """
    names = {
        f"{path.name}::{name}"
        for path in (ROOT / "tests/system").glob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert STORIES - names == set()


def test_support_imports_are_shallow() -> None:
    """A module of tests/support imports another one, which imports at most one further: whoever
    reads a red test reads three files.
    """
    folder = ROOT / "tests/support"
    imported = {}
    for path in folder.rglob("*.py"):
        name = ".".join(path.relative_to(folder).with_suffix("").parts)
        imports = r"^from support(?:\.([\w.]+) import| import (\w+)$)"
        found = re.findall(imports, path.read_text(), re.MULTILINE)
        imported[name] = [module or whole for module, whole in found]

    def depth(name: str) -> int:
        return 1 + max(map(depth, imported.get(name, ())), default=0)

    assert [name for name in imported if depth(name) > 3] == []


def test_other_modules_change_no_examples_of_a_fixed_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module with constants that is loaded between two runs of a property changes its examples in
    a soak alone.
    """

    def examples() -> list[int]:
        drawn: list[int] = []

        @settings(derandomize=True, database=None, max_examples=300)
        @given(st.integers())
        def collect(number: int) -> None:
            drawn.append(number)

        collect()
        return drawn

    before = examples()
    numbers = [*range(400_000, 400_200)]
    (tmp_path / "module_with_constants.py").write_text(f"NUMBERS = {numbers}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("module_with_constants")
    assert (examples() == before) is settings().derandomize


@needs_kernel
def test_a_batch_that_ends_early_is_red() -> None:
    """A batch of `ip` that ends early, as it does at words that it cannot parse even with `-force`,
    fails its test, while a refused command is reported.
    """
    refused = "route add 10.0.0.0/8 via 10.1.0.1"
    unknown = "route add 10.0.0.0/8 dev lo table"
    with KernelNode.made() as node:
        _, refusals = batch(node.name, commands=[refused, "link show"])
        assert [*refusals] == [1]
        with pytest.raises(AssertionError, match="table"):
            batch(node.name, commands=[unknown, "link show"])


def test_printed_words_stand_once() -> None:
    """The words on where addresses leave and on the next step stand only in `support.printed`, in
    golden files and in the test of the report's text.
    """
    words = re.compile(r"""(leaves through (?:[{]|\w+[0-9](?!, which))|["'n]next: [^\[])""")
    allowed = {"support/printed.py", "route_overlap/test_report.py", "test_tests.py"}
    # The first line of each broken node is that of docs/operators.md.
    allowed.add("system/test_broken_nodes.py")
    folder = ROOT / "tests"
    worded = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if words.search(re.sub('""".*?"""', "", path.read_text(), flags=re.DOTALL))
    }
    assert {path for path in worded if not path.startswith("node/")} - allowed == set()
