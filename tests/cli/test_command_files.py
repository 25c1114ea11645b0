"""The commands are files: what follows from a file, and what it costs."""

import subprocess
import sys
from pathlib import Path
from pkgutil import iter_modules

import pytest
from support.documents import ROOT
from support.in_process import run_here
from support.processes import ended

from hostrouting.cli import commands
from hostrouting.cli.command import Command
from hostrouting.cli.commands import all_commands, command_named

_GREET = """
import sys

from hostrouting.cli.command import Command


def run(arguments):
    sys.stdout.write(f"good morning, {arguments.name}\\n")
    return 0


COMMAND = Command(
    run=run,
    summary="greet somebody",
    position=35,
    options={"--name": {"metavar": "WHO", "help": "the name of somebody"}},
)
"""
#: The folder of the first word belongs to the package of the commands, too.
_WITH_FOLDER = "import sys; from hostrouting.cli import commands, main; commands.__path__.append(sys.argv.pop(1));"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "greet.py").write_text(_GREET)
    return tmp_path


def with_folder(
    folder: Path, *words: str, program: str = "sys.exit(main())"
) -> subprocess.CompletedProcess[str]:
    """Run the command, or another program, with the commands of a folder besides the usual ones."""
    return ended(
        sys.executable, "-c", f"{_WITH_FOLDER} {program}", folder, *words, cwd=ROOT / "release"
    )


@pytest.mark.parametrize("name", [name for _, name, _ in iter_modules(commands.__path__)])
def test_each_file_of_the_package_is_a_command(name: str) -> None:
    """Each file of the package of the commands has a `COMMAND` with a summary, and is listed by its
    name.
    """
    command = command_named(name)
    assert isinstance(command, Command)
    assert command.summary
    assert all_commands()[name] is command


@pytest.mark.parametrize(
    "word", ["", "-", "--json", "__init__", "_switch", "greet", "check.py", "a.b", "\0", "\udcff"]
)
def test_any_other_word_is_not_a_command(word: str) -> None:
    """`command_named` returns None for a word that is not a command, and imports nothing."""
    before = set(sys.modules)
    assert command_named(word) is None
    assert set(sys.modules) == before


def test_a_module_that_a_command_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that cannot be imported raises the error of its missing module, and is not taken
    for an unknown word.
    """
    (tmp_path / "broken.py").write_text("import hostrouting.nowhere\n")
    monkeypatch.setattr(commands, "__path__", [str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'hostrouting\.nowhere'$"):
        command_named("broken")


def test_a_new_command_runs(folder: Path) -> None:
    """A new command needs only its own file, which has its function and its options."""
    assert with_folder(folder, "greet", "--name", "Ada").stdout == "good morning, Ada\n"


def test_a_new_command_is_in_the_help(folder: Path) -> None:
    """The help lists a new command at its position in its group, and the command's own help lists
    its options.
    """
    shown = with_folder(folder, "--help").stdout
    assert "\n    greet        greet somebody\n    record " in shown
    assert shown.index("\n    greet ") < shown.index("change the node:")
    shown = with_folder(folder, "greet", "--help").stdout
    assert "usage: hostrouting greet [-h] [--json] [-v] [--timeout S] [--name WHO]\n" in shown
    assert "  --name WHO     the name of somebody\n" in shown


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["gret"], "did you mean 'greet'?"),
        (["greet", "--nam", "Ada"], "did you mean '--name'?"),
    ],
)
def test_an_error_proposes_a_new_command(words: list[str], step: str, folder: Path) -> None:
    """An error about a misspelled word proposes the name, or an option, of a new command."""
    refused = with_folder(folder, *words)
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.endswith(f"; {step}\n"), refused.stderr


def test_a_new_command_is_completed_and_in_the_manual(folder: Path) -> None:
    """The manual and the completion of each shell list a new command from its file."""
    program = "sys.path.insert(0, ''); import manual; print(manual.page()); [print(text) for _, text in manual.completions()]"
    made = with_folder(folder, program=program)
    assert made.stderr == ""
    assert ".SS greet\ngreet somebody\n" in made.stdout
    assert "_shtab_hostrouting_greet_option_strings=(" in made.stdout
    assert "    greet) _arguments -C -s $_shtab_hostrouting_greet_options ;;" in made.stdout
    assert "-eq 0' -a greet -d 'greet somebody'\n" in made.stdout


def test_a_command_imports_its_own_file_alone(folder: Path) -> None:
    """A command imports its own file, and those of other commands not at all."""
    program = "main(); print(*(name for name in sys.modules if name.startswith('hostrouting.cli.commands.')))"
    shown = with_folder(folder, "greet", "--name", "Ada", program=program).stdout
    assert shown == "good morning, Ada\nhostrouting.cli.commands.greet\n"


def test_a_reset_is_never_guessed() -> None:
    """A misspelled word proposes any other command, so that nobody removes everything by mistake."""
    assert run_here("rset").stderr.endswith("; see: hostrouting --help\n")
    assert run_here("chek").stderr.endswith("; did you mean 'check'?\n")


def test_a_watch_leaves_no_entry_in_the_journal() -> None:
    """An apply leaves an entry in the journal, and a watch or a check does not."""
    assert all_commands()["apply"].has_history
    assert not all_commands()["watch"].has_history
    assert not all_commands()["check"].has_history
