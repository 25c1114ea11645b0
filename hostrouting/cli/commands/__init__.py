"""The commands, a file each: its value `COMMAND` has the function, the words and the help.

Nothing lists them. The parser, the help, the manual page and the completions of shells
follow from the files.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hostrouting.cli.command import Command


def command_named(name: str) -> Command | None:
    """Return the command of a name, or None; its file alone is imported."""
    module = f"{__name__}.{name}"
    # Any word that somebody types comes here; `__init__` is a file, too.
    if not name.isidentifier() or name.startswith("_"):
        return None
    try:
        command: Command = import_module(module).COMMAND
    except ModuleNotFoundError as error:
        # The file is there, and imports a module that is missing.
        if error.name != module:
            raise
        return None
    return command


def all_commands() -> dict[str, Command]:
    """Return all commands by name, as the help lists them: first those that only read."""
    # Imported late: only the help lists commands.
    from pkgutil import iter_modules

    # It costs more than a command's own file.
    found = {name: command_named(name) for _, name, _ in iter_modules(__path__)}
    commands = [(name, command) for name, command in found.items() if command is not None]
    commands.sort(key=lambda item: (item[1].changes, item[1].position, item[0]))
    return dict(commands)
