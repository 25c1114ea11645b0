"""The product with shorter waits, and its command killed on the way: for tests of troubles on a
node.

    python hurried.py STEP,... SIGNAL ARGUMENT...    `hostrouting ARGUMENT...`, signalled after these steps; 0 is none

The product has no option to wait less: the waits are changed here, in this process and in the
programs that it writes.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType
from typing import Any
from unittest.mock import patch

from hostrouting.apply import run as apply_run
from hostrouting.azure.probe_snat import detect
from hostrouting.azure.probe_snat import task as probe_snat
from hostrouting.boot import program
from hostrouting.cli import main
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.packets.nft import NftCommand
from hostrouting.host.systemd.systemctl import Systemctl
from hostrouting.node import configure

SCRIPT = Path(__file__)
#: Instead of the 30 s for DHCP.
_WAIT = 1
#: Instead of the 60 s that a sibling of the routing pair has. In a machine, each run of Python
#: compiles its modules: with 3 s, a sibling ran out of time when the computer was busy, and was
#: missing from the installed files.
_SIBLING = 10
#: Operations that change a machine: names in folders, routes, rules, and orders to systemd.
_STEPS = (
    *((os, name) for name in ("mkdir", "rename", "rmdir", "symlink", "unlink")),
    *((Systemctl, name) for name in ("daemon_reload", "start", "stop")),
    (NetlinkBackend, "apply"),
    (NftCommand, "load"),
)


@contextmanager
def rewritten(module: str, text: bytes, by: bytes) -> Iterator[None]:
    """Have the programs that this process writes contain another text in a module."""
    source, packed = program._source, program._packed
    changed_file = f"{module.replace('.', '/')}.py"

    def changed(name: str) -> tuple[str, bytes]:
        file, content = source(name)
        return file, content.replace(text, by) if name == module else content

    def compiled(code: CodeType, file: str, content: bytes) -> bytes:
        is_changed = file == changed_file
        return packed(compile(content, file, "exec") if is_changed else code, file, content)

    assert source(module)[1].count(text) == 1
    with ExitStack() as patched:
        patched.enter_context(patch.object(program, "_source", changed))
        patched.enter_context(patch.object(program, "_packed", compiled))
        for kept in program.new_program, program._checksum:
            kept.cache_clear()
            patched.callback(kept.cache_clear)
        yield


@contextmanager
def hurried() -> Iterator[None]:
    """Shorten the waits of all tasks in this process, and those of the programs that it writes."""
    usual, short = (b"WAIT_SECONDS: Final = %d.0\n" % seconds for seconds in (30, _WAIT))
    with ExitStack() as patched:
        patched.enter_context(rewritten("hostrouting.boot.layout", usual, short))
        patched.enter_context(patch.object(apply_run, "WAIT_SECONDS", float(_WAIT)))
        patched.enter_context(patch.object(configure, "_FEATURE_SECONDS", float(_SIBLING)))
        patched.enter_context(patch.object(probe_snat, "_WAIT_SECONDS", _WAIT))
        patched.enter_context(patch.object(detect, "_SECONDS_FOR_ROUTERS", _WAIT))
        patched.enter_context(patch.object(probe_snat, "_SECONDS_FOR_A_CHECK", _WAIT))
        yield


@contextmanager
def _signalled_after(steps: Sequence[int], number: int) -> Iterator[list[str]]:
    """Have this process signalled whenever so many steps are done; the list is of those that were."""
    done: list[str] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*values: Any, **options: Any) -> Any:
            result = function(*values, **options)
            done.append(function.__qualname__)
            if len(done) in steps:
                os.kill(os.getpid(), number)
            return result

        return call

    with ExitStack() as patched:
        for owner, name in _STEPS:
            patched.enter_context(patch.object(owner, name, counted(getattr(owner, name))))
        yield done


def _run(steps: Sequence[int], number: int, *arguments: str) -> int:
    with hurried():
        with _signalled_after(steps, number) as done:
            status = main(arguments)
        sys.stderr.write(f"steps: {len(done)}\n")
    return status


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    if "COVERAGE_PROCESS_CONFIG" in os.environ:
        # `nox -s coverage`. The environment of the tests would do it at the start of Python; a
        # machine has not that one.
        import coverage

        coverage.process_startup()
    sys.exit(_run([*map(int, sys.argv[1].split(","))], int(sys.argv[2]), *sys.argv[3:]))
