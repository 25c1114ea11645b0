"""The commands, one file each, whose `COMMAND` has the function, the options and the help.

There is no list of them: the parser, the help, the man page and the shell completions are built
from the files.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hostrouting.cli.command import Command


def command_named(name: str) -> Command | None:
    """Return a command by its name, or None; import no other file."""
    module = f"{__name__}.{name}"
    # The name is whatever the user typed; `__init__` is also a file.
    if not name.isidentifier() or name.startswith("_"):
        return None
    try:
        command: Command = import_module(module).COMMAND
    except ModuleNotFoundError as error:
        # The file exists, but a module that it imports is missing.
        if error.name != module:
            raise
        return None
    return command


def all_commands() -> dict[str, Command]:
    """Return all commands by name in the order of the help: those that only read come first."""
    # Imported here because only the help lists the commands.
    from pkgutil import iter_modules

    found = {name: command_named(name) for _, name, _ in iter_modules(__path__)}
    commands = [(name, command) for name, command in found.items() if command is not None]
    commands.sort(key=lambda item: (item[1].changes, item[1].position, item[0]))
    return dict(commands)
