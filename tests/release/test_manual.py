"""The manual page, which has each command and option of the parser, and the exit statuses."""

import re
import sys

from support.documents import ROOT
from support.processes import ended

from hostrouting.cli.parser import parser


def made() -> str:
    script = "import manual; print(manual.page())"
    words = [sys.executable, "-c", script]
    printed = ended(*words, check=True, cwd=ROOT / "release").stdout
    return printed.replace(r"\-", "-")


def test_the_page_has_the_exit_statuses_of_the_operators_manual() -> None:
    """The manual page has each exit status of the operators' manual, those of signals included."""
    table = (
        (ROOT / "docs/operators.md").read_text(encoding="utf-8").partition("## Exit statuses")[2]
    )
    rows = re.findall(r"^\| (\d[\d, ]*) \|", table.partition("\n## ")[0], flags=re.MULTILINE)
    statuses = set(", ".join(rows).split(", "))
    section = made().partition(".SH EXIT STATUS\n")[2].partition("\n.SH")[0]
    assert {"0", "143"} <= statuses
    assert statuses <= set(re.findall(r"\d+", section))


def test_the_page_names_each_command_and_option() -> None:
    """The manual page names each command and each option of `--help`."""
    page = made()
    [commands] = [
        action.choices for action in parser()._actions if isinstance(action.choices, dict)
    ]
    for name, command in {"": parser(), **commands}.items():
        assert f".SS {name}" in page
        section = page.partition(f".SS {name}\n")[2].partition("\n.S")[0] if name else page
        options = {word for action in command._actions for word in action.option_strings} - {
            "-h",
            "--help",
        }
        assert [option for option in options if option not in section] == [], name
