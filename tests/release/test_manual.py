"""The manual page: it has each command and option of the parser."""

import subprocess
import sys

from support.documents import ROOT

from hostrouting.cli.parser import parser


def test_the_page_names_each_command_and_option() -> None:
    """Those of `--help`, that of the whole command included."""
    script = "import manual; print(manual.page())"
    words = [sys.executable, "-c", script]
    told = subprocess.run(
        words, cwd=ROOT / "release", capture_output=True, text=True, check=True
    ).stdout
    page = told.replace(r"\-", "-")
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
