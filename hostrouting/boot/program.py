r"""The program that boot units and gates run: one zip file.

    #!/usr/bin/python3.11 -IS                      the interpreter, which the scripts read
    # Installed by hostrouting; ...                for people
    # a70d0d0a 1f2e3d4c 5a6b7c8d hostrouting ...   the tag
    PK...                                          __main__.py, the sources, and their bytecode

An apply makes it of the running installation: the packages that a boot needs, and attrs. So the
boot needs neither the installation nor its environment any more, only a Python: that of the apply
runs the bytecode. Any other one compiles the sources, and leaves a program with its own bytecode in
/run for the later starts of this boot. The bytecode is that which Python keeps beside the sources,
wherever they are. Its bytes are not those of another process: marshal notes which strings a process
has interned.

The tag has the magic number of the bytecode, a checksum of the sources, one of the bytes after it,
and the modules. By it a plan and an apply find out that the installed file is that of their
installation, without making one.
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

#: The interpreter, if that of the apply is of no use for a boot.
USUAL_INTERPRETER: Final = "/usr/bin/python3"
_OPTIONS = b" -IS"
#: Python 3.10.
_OLDEST_MINOR = 10
#: A new program, as long as it is tried.
_TRIAL = f"{STATE_DIRECTORY}/trial.zip"
_LONGEST_LINE = 4096
_PACKAGES = ("attr", "attrs", "hostrouting", "phases")
#: The packages and modules that no boot needs: each start reads the names of all others, and a test
#: finds what one of these imports of them.
_UNNEEDED = """
    hostrouting.__main__ hostrouting.apply hostrouting.azure hostrouting.cli hostrouting.exceptions
    hostrouting.fleet hostrouting.testing hostrouting.watch hostrouting.base.facts
    hostrouting.base.pace hostrouting.base.signals hostrouting.boot.boot hostrouting.boot.capability
    hostrouting.boot.gates hostrouting.boot.reconciler hostrouting.boot.steps hostrouting.boot.task
    hostrouting.host.imds hostrouting.host.packets hostrouting.host.ports hostrouting.host.pyroute
    hostrouting.host.trial hostrouting.host.netlink.classifiers hostrouting.host.netlink.link_layer
    hostrouting.host.netlink.neighbours hostrouting.host.systemd.notify hostrouting.node.boot_files
    hostrouting.node.capabilities hostrouting.node.check hostrouting.node.configure
    hostrouting.node.first_config hostrouting.node.fix hostrouting.node.history
    hostrouting.node.plan_report hostrouting.node.report hostrouting.node.sentences
    hostrouting.node.status hostrouting.node.status_report hostrouting.node.units
    hostrouting.node.watch hostrouting.route_overlap.errors hostrouting.route_overlap.explain
    hostrouting.route_overlap.logged hostrouting.static_routes.entries
    hostrouting.static_routes.forecast hostrouting.static_routes.lost_hops phases.testing
"""
#: The first time that a zip file can express.
_TIME = (1980, 1, 1, 0, 0, 0)
#: The flags of bytecode that is never compared with its source: the zip file changes as a whole.
_UNCHECKED = (1).to_bytes(4, "little")
_ABOUT = b"""\
# Installed by hostrouting; `hostrouting reset` removes it. Boot scripts run it.
"""
#: The files of a generation, but for the installed config, which people may edit.
_CHECKED = sorted(
    path.rpartition("/")[2]
    for path in (*SCRIPT_PATHS, APPLIED_PATH, PROGRAM_PATH, ASK_PATH, RETRY_PATH)
)
#: Runs on any Python, before hostrouting can be imported. Of a generation each file has to be as
#: an apply wrote it, before anything else of it runs: its folder's name has their checksum. The
#: status of a failure is 12, and its reason is on stdout; 13: another Python is needed.
_MAIN = f"""\
import gc, os, sys, zlib

# All garbage ends with this process.
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
    """Return the program for a host: the installed one if it is as it should be.

    Otherwise a new one, in whose place a plan, which writes none, has an empty one.

    An interpreter that it names may be another one than an apply would name now, if it can be used:
    of two installations on a node neither finds fault with the program of the other.
    """
    own = interpreter_for(host)
    named = interpreter_of(installed)
    is_own = named == own
    is_named = is_own or (bool(named) and is_usable(host, named))
    if installed and is_named and _is_right(installed, named, is_own=is_own):
        return installed
    return b"" if is_planned else new_program(own)


def interpreter_for(host: Host) -> str:
    """Return the interpreter for the program of a host: that of this process, if it can be used."""
    # Of a virtual environment the interpreter that it was made with: the environment may go.
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return own if host.is_live and is_usable(host, own) else USUAL_INTERPRETER


def interpreter_at_boot(host: Host) -> str:
    """Return the interpreter with which the scripts of a host run the program after an apply."""
    named = ""
    # A plan without root goes on.
    with suppress(HostFileError):
        named = interpreter_of(host.files.read(PROGRAM_PATH, limit=_LONGEST_LINE))
    return named if named and is_usable(host, named) else interpreter_for(host)


def interpreter_finding(host: Host) -> NodeFinding | None:
    """Return a finding if the scripts of a host have no interpreter that root may run."""
    interpreter = interpreter_at_boot(host)
    if missing := _missing(host, interpreter):
        return no_program(missing)
    if exposed := host.files.exposed(interpreter):
        danger = "and a boot would run it as root"
        return no_program(f"users other than root can change {interpreter}: {exposed}", danger)
    return None


def program_failure(ctx: Context, host: Host, program: bytes | None) -> NodeFinding | None:
    """Return a finding if a boot could not run the program.

    A new one of a live host, `program`, is run as a gate would, before it is installed.
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
    """Return why a host has no Python for the program; empty if it may have one.

    Nothing of an image is run: there the name of the interpreter tells its version.
    """
    place = "node" if host.is_live else "image"
    if not is_program(host.files, interpreter):
        return f"the {place} has no {interpreter}"
    name = interpreter
    # On Debian, alternatives may lead through several links.
    while target := host.files.read_link(name):
        name = target if target.startswith("/") else f"{name.rpartition('/')[0]}/{target}"
    version = re.search(r"python3\.([0-9]+)$", name)
    if version and int(version[1]) < _OLDEST_MINOR:
        return f"the {place} has Python 3.{version[1]} as {interpreter}"
    return ""


def no_program(
    reason: str,
    consequence: str = "so nothing is checked at a boot: WARN starts the gates, STRICT holds them",
) -> NodeFinding:
    """Return the finding that a boot cannot run the program, or should not."""
    step = f"install Python 3.10 or newer as {USUAL_INTERPRETER}, and apply the config again"
    return NodeFinding("no-program", "python3", f"{reason}, {consequence}", "warning", step)


def is_usable(host: Host, interpreter: str) -> bool:
    """Return True if a host has this program, and only root could change it."""
    return is_program(host.files, interpreter) and not host.files.exposed(interpreter)


def interpreter_of(program: bytes | None) -> str:
    r"""Return the interpreter that a program names; empty for none.

    >>> interpreter_of(b"#!/usr/bin/python3 -IS\n")
    '/usr/bin/python3'
    """
    line = (program or b"")[:_LONGEST_LINE].partition(b"\n")[0]
    is_line = line.startswith(b"#!/") and line.endswith(_OPTIONS)
    return os.fsdecode(line[2 : -len(_OPTIONS)]) if is_line else ""


def _first_line(interpreter: str) -> bytes:
    return b"#!%s%s\n" % (os.fsencode(interpreter), _OPTIONS)


def _is_right(program: bytes, interpreter: str, *, is_own: bool) -> bool:
    """Return True if the program is intact, and made of the sources of the running installation.

    With `is_own` its bytecode must be for this process's version of Python.
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
        # The program was made of other modules.
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


# Many runs of one process install it.
@lru_cache(maxsize=4)
def new_program(interpreter: str) -> bytes:
    """Return a new program for an interpreter."""
    # Imported late: only an apply that changes the program needs them.
    from pkgutil import iter_modules
    from zipfile import ZIP_STORED, ZipFile, ZipInfo

    unneeded = frozenset(_UNNEEDED.split())

    def modules_in(spec: ModuleSpec) -> Iterator[ModuleSpec]:
        """Yield a module, and those in it."""
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
    """Return the name in the zip file, and the text, of a module of the running installation.

    Raise OSError without a file of this name.
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
    """Return code as that of a file."""
    inner = (
        _placed(each, file) if isinstance(each, type(code)) else each for each in code.co_consts
    )
    return code.replace(co_filename=file, co_consts=tuple(inner))
