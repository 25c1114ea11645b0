"""`hostrouting render`: show or write the files of a config."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from hostrouting.base.commands import FINE, USAGE
from hostrouting.base.errors import HostFileError
from hostrouting.base.refused_files import why_refused
from hostrouting.cli.command import Command, folder
from hostrouting.cli.shared import host_of, new_config_of, print_answer, refuse
from hostrouting.host.files.store import RootedFiles
from hostrouting.node.boot_files import render_files

if TYPE_CHECKING:
    from argparse import Namespace

    from hostrouting.boot.layout import BootFile
    from hostrouting.node.boot_files import RenderedFiles

_logger = logging.getLogger("hostrouting")


def run(arguments: Namespace) -> int:
    """Print or write the files of a config."""
    rendered = render_files(new_config_of(arguments), host=host_of(arguments))
    files = rendered.files
    name = arguments.name
    if name is not None:
        known = ", ".join(file.path for file in files) or "nothing"
        files = tuple(file for file in files if name in {file.path, file.path.rpartition("/")[2]})
        if not files:
            problem = f"this config has no file {name!r}; apply would install: {known}"
            return refuse(arguments, problem, USAGE)
    if arguments.out is not None:
        rendered = type(rendered)(files=files, links={} if name else rendered.links)
        written = _write_files(rendered, arguments.out)
        verdict = f"files and links written: {len(written)}"
        print_answer(arguments, {"verdict": verdict, "written": written}, written)
    else:
        form = "==> {path} ({mode}) <==\n{content}\n" if name is None else "{content}"
        texts = (
            form.format(path=file.path, mode=f"{file.mode:04o}", content=_text_of(file))
            for file in files
        )
        verdict = f"files that apply would install: {len(files)}"
        shown = {"verdict": verdict, "files": [_mapping_of(file) for file in files]}
        print_answer(arguments, shown, (text.removesuffix("\n") for text in texts))
    return FINE


COMMAND = Command(
    run=run,
    summary="show the files that apply would install",
    position=60,
    config="",
    options={
        "name": {
            "nargs": "?",
            "metavar": "NAME",
            "help": "only this file, given its path or its name",
        },
        "--out": {
            "type": folder,
            "metavar": "DIR",
            "help": "write the files and the links of the units below DIR",
        },
    },
)


def _text_of(file: BootFile) -> str:
    if file.is_text:
        return file.content.decode()
    return f"({len(file.content)} bytes; --out writes them)\n"


def _mapping_of(file: BootFile) -> dict[str, object]:
    """Return a file for JSON; the program is binary, so it has a size instead of content."""
    shown = {"path": file.path, "mode": f"{file.mode:04o}"}
    if file.is_text:
        return {**shown, "content": file.content.decode()}
    return {**shown, "content": None, "size": len(file.content)}


def _write_files(rendered: RenderedFiles, folder: str) -> list[str]:
    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    except OSError as error:
        why = why_refused(error.errno, folder)
        raise HostFileError(f"cannot make the folder {folder}: {why}") from error
    target = RootedFiles(folder)
    for file in rendered.files:
        target.write(file.path, file.content, mode=file.mode)
    for path, text in rendered.links.items():
        target.link(path, text)
    if not rendered.files:
        _logger.warning("nothing was written: this config installs no files")
    return [f"{folder.rstrip('/')}{path}" for path in rendered.paths]
