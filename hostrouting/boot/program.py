r"""The program that boot units and gates run: one zip file.

    #!/usr/bin/python3.11 -IS                      the interpreter, which the scripts read
    # Installed by hostrouting; ...                a comment for people
    # a70d0d0a 1f2e3d4c 5a6b7c8d hostrouting ...   the tag
    PK...                                          __main__.py, the sources, and their bytecode

An apply builds it from the running installation: the packages that a boot needs, and attrs. So the
boot needs only a Python, not the installation or its virtual environment. The Python of the apply
runs the bytecode directly. Any other version compiles the sources, and writes a program with its
own bytecode to /run for later starts during this boot. The bytecode is what Python caches next to
the sources. It is not reproducible across processes, because marshal records which strings are
interned.

The tag contains the magic number of the bytecode, a checksum of the sources, one of the bytes that
follow it, and the names of the modules. From it a plan and an apply can tell if the installed file
belongs to their installation, without building one.
"""

from __future__ import annotations

import marshal
import os
import re
import sys
import zlib
from contextlib import suppress
from functools import lru_cache
from importlib.util import MAGIC_NUMBER, source_hash
from io import BytesIO
from typing import TYPE_CHECKING, Final, cast

from hostrouting.base.commands import command_line
from hostrouting.base.errors import HostFileError
from hostrouting.base.findings import NodeFinding
from hostrouting.boot.layout import (
    APPLIED_PATH,
    ASK_PATH,
    CONFIG_PATH,
    PROGRAM_PATH,
    RETRY_PATH,
    SCRIPT_PATHS,
    STATE_DIRECTORY,
    is_program,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.abc import InspectLoader, ResourceLoader
    from importlib.machinery import ModuleSpec
    from types import CodeType

    from hostrouting.host import Host
    from phases import Context

#: The interpreter to use if a boot cannot use that of the apply.
USUAL_INTERPRETER: Final = "/usr/bin/python3"
_OPTIONS = b" -IS"
#: Python 3.10.
_OLDEST_MINOR = 10
#: A new program while it is being tried.
_TRIAL = f"{STATE_DIRECTORY}/trial.zip"
_LONGEST_LINE = 4096
_PACKAGES = ("attr", "attrs", "hostrouting", "phases")
#: The packages and modules that a boot does not need. Each start reads the names of all others, and
#: a test fails if one of those imports one of these.
_UNNEEDED = """
    hostrouting.__main__ hostrouting.apply hostrouting.azure hostrouting.cli hostrouting.exceptions
    hostrouting.fleet hostrouting.testing hostrouting.watch hostrouting.base.facts
    hostrouting.base.pace hostrouting.base.signals hostrouting.boot.boot hostrouting.boot.capability
    hostrouting.boot.gates hostrouting.boot.reconciler hostrouting.boot.steps hostrouting.boot.task
    hostrouting.host.imds hostrouting.host.packets hostrouting.host.ports hostrouting.host.pyroute
    hostrouting.host.trial hostrouting.host.netlink.classifiers hostrouting.host.netlink.link_layer
    hostrouting.host.netlink.neighbours hostrouting.host.systemd.notify hostrouting.node.boot_files
    hostrouting.node.capabilities hostrouting.node.check hostrouting.node.configure
    hostrouting.node.findings hostrouting.node.first_config hostrouting.node.fix
    hostrouting.node.history hostrouting.node.plan_report hostrouting.node.remedies
    hostrouting.node.report hostrouting.node.sentences hostrouting.node.status
    hostrouting.node.status_report hostrouting.node.units hostrouting.node.watch
    hostrouting.route_overlap.errors hostrouting.route_overlap.explain
    hostrouting.route_overlap.logs hostrouting.static_routes.entries
    hostrouting.static_routes.forecast hostrouting.static_routes.lost_hops phases.testing
"""
#: The earliest time that a zip file can express.
_TIME = (1980, 1, 1, 0, 0, 0)
#: The flags of bytecode that Python does not compare with its source.
_UNCHECKED = (1).to_bytes(4, "little")
_ABOUT = b"""\
# Installed by hostrouting; `hostrouting reset` removes it. Boot scripts run it.
"""
#: The files of a generation, except the installed config, which people may edit.
_CHECKED = sorted(
    path.rpartition("/")[2]
    for path in (*SCRIPT_PATHS, APPLIED_PATH, PROGRAM_PATH, ASK_PATH, RETRY_PATH)
)
#: Runs on any Python, before hostrouting can be imported. It verifies that all files of a
#: generation are as an apply wrote them: the directory's name contains their checksum. If they are
#: not, it prints the reason and exits with 12. If another Python is needed, it exits with 13.
_MAIN = f"""\
import gc, os, sys, zlib

# The process is short-lived.
gc.disable()
if sys.version_info < (3, 10):
    about = (sys.executable,) + sys.version_info[:2]
    sys.stdout.write("%s is Python %d.%d; install 3.10 or newer as {USUAL_INTERPRETER}\\n" % about)
    sys.exit(13)
folder = os.path.dirname(sys.argv[0])
renewed = ""
if os.path.basename(folder).startswith("hostrouting-"):
    sum = 0
    for name in {_CHECKED}:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                text = file.read()
        except OSError:
            text = b""
        sum = zlib.crc32(text, zlib.crc32(b"%d\\n" % len(text), sum))
    if not folder.endswith("-%08x" % sum):
        step = "run: {command_line("apply", CONFIG_PATH)}"
        sys.stdout.write("a file in %s is lost or damaged; %s\\n" % (folder, step))
        sys.exit(12)
    renewed = "{STATE_DIRECTORY}/%s-%08x.zip" % (sys.implementation.cache_tag, sum)
    if os.path.exists(renewed):
        sys.path[0] = renewed
from hostrouting.node.at_boot import main

main(renewed)
""".encode()


def wanted_program(host: Host, installed: bytes | None, *, is_planned: bool = False) -> bytes:
    """Return the program for a host: the installed one if it is as it should be, or a new one.

    A plan, which does not write it, gets an empty one instead of a new one.

    The installed program may name another interpreter than an apply would now, if that is usable.
    So two installations on one node accept each other's program.
    """
    own = interpreter_for(host)
    named = interpreter_of(installed)
    is_own = named == own
    is_named = is_own or (bool(named) and is_usable(host, named))
    if installed and is_named and _is_current(installed, named, is_own=is_own):
        return installed
    return b"" if is_planned else new_program(own)


def interpreter_for(host: Host) -> str:
    """Return the interpreter for the program of a host: that of this process if usable."""
    # Not the virtual environment's interpreter, because the environment may be removed.
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return own if host.is_live and is_usable(host, own) else USUAL_INTERPRETER


def interpreter_at_boot(host: Host) -> str:
    """Return the interpreter that the scripts of a host use to run the program after an apply."""
    named = ""
    # A plan does not need root.
    with suppress(HostFileError):
        named = interpreter_of(host.files.read(PROGRAM_PATH, limit=_LONGEST_LINE))
    return named if named and is_usable(host, named) else interpreter_for(host)


def interpreter_finding(host: Host) -> NodeFinding | None:
    """Return a finding if the scripts of a host have no interpreter that root may safely run."""
    interpreter = interpreter_at_boot(host)
    if missing := _missing(host, interpreter):
        return no_program(missing)
    if exposed := host.files.exposed(interpreter):
        danger = "but a boot would run it as root"
        return no_program(f"users other than root can change {interpreter}: {exposed}", danger)
    return None


def program_failure(ctx: Context, host: Host, program: bytes | None) -> NodeFinding | None:
    """Return a finding if a boot could not run the program.

    On a live host, a new `program` is tried as a gate would run it, before it is installed.
    """
    interpreter = interpreter_of(program) or interpreter_at_boot(host)
    if missing := _missing(host, interpreter):
        return no_program(missing)
    if not program or host.trial is None:
        return None
    argv = [interpreter, "-I", "-S", _TRIAL, "try"]
    try:
        host.files.write(_TRIAL, program, mode=0o600)
        failure = host.trial.failure(ctx, argv)
    except HostFileError as error:
        return no_program(f"the program cannot be tried: {error}")
    finally:
        host.files.remove(_TRIAL)
    return no_program(f"{' '.join(argv)} fails: {failure}") if failure else None


def _missing(host: Host, interpreter: str) -> str:
    """Return why a host has no suitable Python; empty if it probably has one.

    Nothing in an image is run, so the version is derived from the name of the interpreter.
    """
    place = "node" if host.is_live else "image"
    if not is_program(host.files, interpreter):
        return f"the {place} has no {interpreter}"
    name = interpreter
    # On Debian, alternatives may be chains of links.
    while target := host.files.read_link(name):
        name = target if target.startswith("/") else f"{name.rpartition('/')[0]}/{target}"
    version = re.search(r"python3\.([0-9]+)$", name)
    if version and int(version[1]) < _OLDEST_MINOR:
        return f"the {place} has Python 3.{version[1]} as {interpreter}"
    return ""


def no_program(
    reason: str,
    consequence: str = "so boots do not check routing: WARN starts gated units, STRICT holds them",
) -> NodeFinding:
    """Return the finding that a boot cannot or should not run the program."""
    step = f"install Python 3.10 or newer as {USUAL_INTERPRETER}, and apply the config again"
    return NodeFinding("no-program", "python3", f"{reason}, {consequence}", "warning", step)


def is_usable(host: Host, interpreter: str) -> bool:
    """Return True if a host has this program and only root can change it."""
    return is_program(host.files, interpreter) and not host.files.exposed(interpreter)


def interpreter_of(program: bytes | None) -> str:
    r"""Return the interpreter that a program names; empty if it names none.

    >>> interpreter_of(b"#!/usr/bin/python3 -IS\n")
    '/usr/bin/python3'
    """
    line = (program or b"")[:_LONGEST_LINE].partition(b"\n")[0]
    is_line = line.startswith(b"#!/") and line.endswith(_OPTIONS)
    return os.fsdecode(line[2 : -len(_OPTIONS)]) if is_line else ""


def _first_line(interpreter: str) -> bytes:
    return b"#!%s%s\n" % (os.fsencode(interpreter), _OPTIONS)


def _is_current(program: bytes, interpreter: str, *, is_own: bool) -> bool:
    """Return True if the program is intact and was built from the running installation.

    With `is_own`, its bytecode must be for the Python version of this process.
    """
    head = _first_line(interpreter) + _ABOUT
    if not program.startswith(head):
        return False
    end = program.find(b"\n", len(head)) + 1
    line = program[len(head) : end]
    _, magic, _, _, *modules = [*line.decode(errors="replace").split(), "", "", "", ""]
    named = tuple(filter(None, modules))
    try:
        tag = _tag(MAGIC_NUMBER.hex() if is_own else magic, named, memoryview(program)[end:])
    except (OSError, KeyError):
        # The program was built from other modules.
        return False
    return line == tag


def _tag(magic: str, modules: tuple[str, ...], body: bytes | memoryview) -> bytes:
    """Return the line that identifies a program."""
    sums = f"{_checksum(modules):08x} {zlib.crc32(body):08x}"
    return f"# {magic} {sums} {' '.join(modules)}\n".encode()


# A run compares the program several times.
@lru_cache(maxsize=2)
def _checksum(modules: tuple[str, ...]) -> int:
    """Return the checksum of the sources of these modules in the running installation."""
    checksum = zlib.crc32(_MAIN)
    for module in modules:
        file, text = _source(module)
        checksum = zlib.crc32(text, zlib.crc32(file.encode(), checksum))
    return checksum


# A process may install it several times.
@lru_cache(maxsize=4)
def new_program(interpreter: str) -> bytes:
    """Return a new program for an interpreter."""
    # Imported here because it is only needed by an apply that changes the program.
    from pkgutil import iter_modules
    from zipfile import ZIP_STORED, ZipFile, ZipInfo

    unneeded = frozenset(_UNNEEDED.split())

    def modules_in(spec: ModuleSpec) -> Iterator[ModuleSpec]:
        """Yield a module and its submodules."""
        yield spec
        for finder, name, _ in iter_modules(spec.submodule_search_locations or (), f"{spec.name}."):
            if name not in unneeded and (found := finder.find_spec(name, None)):
                yield from modules_in(found)

    entries = {"__main__.py": _MAIN}
    entries["__main__.pyc"] = _packed(compile(_MAIN, "", "exec", optimize=2), "__main__.py", _MAIN)
    modules = []
    try:
        for package in _PACKAGES:
            for spec in modules_in(cast("ModuleSpec", sys.modules[package].__spec__)):
                modules.append(spec.name)
                file, text = _source(spec.name)
                code = cast("InspectLoader", spec.loader).get_code(spec.name)
                entries[file] = text
                entries[f"{file}c"] = _packed(cast("CodeType", code), file, text)
    except (OSError, ImportError) as error:
        step = "install hostrouting with its sources, and apply the config again"
        raise HostFileError(f"cannot make {PROGRAM_PATH}: {error}; {step}") from error
    content = BytesIO()
    with ZipFile(content, "w", ZIP_STORED) as archive:
        for name in sorted(entries):
            archive.writestr(ZipInfo(name, _TIME), entries[name])
    body = content.getvalue()
    tag = _tag(MAGIC_NUMBER.hex(), tuple(sorted(modules)), body)
    return _first_line(interpreter) + _ABOUT + tag + body


def _source(module: str) -> tuple[str, bytes]:
    """Return the name in the zip file and the source of a module of the running installation.

    Raises OSError if there is no such file.
    """
    path = module.replace(".", "/")
    package = sys.modules[module.partition(".")[0]]
    loader = cast("ResourceLoader", getattr(package.__spec__, "loader", None))
    folder = (package.__file__ or "").rpartition("/")[0].rpartition("/")[0]
    for file in (f"{path}/__init__.py", f"{path}.py"):
        with suppress(OSError):
            return file, loader.get_data(f"{folder}/{file}")
    raise FileNotFoundError(f"the installation has no source of the module {module}")


def _packed(code: CodeType, file: str, text: bytes) -> bytes:
    """Return the bytecode file of a module."""
    placed = _placed(code, f"{PROGRAM_PATH}/{file}")
    return MAGIC_NUMBER + _UNCHECKED + source_hash(text) + marshal.dumps(placed)


def _placed(code: CodeType, file: str) -> CodeType:
    """Return code with another file name."""
    inner = (
        _placed(each, file) if isinstance(each, type(code)) else each for each in code.co_consts
    )
    return code.replace(co_filename=file, co_consts=tuple(inner))
