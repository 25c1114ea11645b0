"""`nox -s fuzz`: every parser and decoder against the inputs of a fuzzer, for a given time.

An input that makes a reader fail is kept in `tests/fuzz/cases/TARGET/`, where the tests read it
again; give it a name that describes it.
"""

import argparse
import io
import logging
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import IO, Any

from fuzz.targets import Target

#: No reader gets more at once: quadratic costs show at this size. Netlink comes in datagrams, and
#: small ones show as much as long ones.
_MOST_BYTES, _MOST_BYTES_OF_NETLINK = 1 << 16, 1 << 12
#: A reader that does not end is called a hang after so many seconds; of one that ends `Target.run`
#: complains earlier.
_HANG = 20
#: Exit statuses: no reader failed, a reader failed, there is no fuzzer.
_FINE, _FAILED, _NO_FUZZER = 0, 1, 3
_LINES_OF_A_FAILURE = 60


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz for about the given time; 0 if no reader failed, 1 if one did, 3 if there is no fuzzer
    here.
    """
    parser = argparse.ArgumentParser(prog="tests/fuzz/run.py", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together (60)")
    parser.add_argument(
        "--seed", type=int, default=0, help="the same inputs each time, as far as the time allows"
    )
    parser.add_argument("targets", nargs="*", help="names of targets, or how names begin (all)")
    options = parser.parse_args(arguments)
    try:
        import atheris
    except ImportError as error:
        print(
            f"there is no fuzzer here ({error}): atheris has no wheel for every Python",
            file=sys.stderr,
        )
        return _NO_FUZZER
    logging.disable()
    # Instrumented code shows the fuzzer which input leads to code that no other has led to; and
    # prints its name.
    with (
        redirect_stderr(io.StringIO()),
        atheris.instrument_imports(include=["hostrouting", "phases"]),
    ):
        from fuzz.targets import TARGETS

    chosen = [
        one for one in TARGETS if not options.targets or one.name.startswith(tuple(options.targets))
    ]
    if not chosen:
        parser.error(f"no target begins with {' or '.join(options.targets)}")
    jobs = len(os.sched_getaffinity(0))
    seconds = max(1, options.seconds * min(jobs, len(chosen)) // len(chosen))
    found, parent = tempfile.mkdtemp(prefix="hostrouting-fuzz-"), os.getpid()
    try:
        failed = _in_processes(
            chosen, jobs, lambda target: _fuzz(atheris, target, seconds, options.seed, found)
        )
    finally:
        # A child whose reader failed comes by here, too.
        if os.getpid() == parent:
            shutil.rmtree(found)
    print(
        f"{len(chosen)} targets, {seconds} s each: {len(failed)} failed {' '.join(failed)}".rstrip()
    )
    return _FAILED if failed else _FINE


def _in_processes(
    targets: Sequence[Target], jobs: int, fuzz: Callable[[Target], None]
) -> list[str]:
    """Fuzz so many targets at a time, each in a child of this process, which the fuzzer ends; those
    that failed.
    """
    waiting, failed = list(targets), []
    running: dict[int, tuple[Target, IO[bytes]]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            target = waiting.pop(0)
            output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it was shown
            child = os.fork()
            if not child:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                try:
                    fuzz(target)
                except Exception:  # noqa: BLE001 - whatever it is, this process ends here
                    traceback.print_exc()
                    sys.stderr.flush()
                # Where a reader failed this is a SystemExit: on its way out, libFuzzer writes down
                # the input.
                os._exit(_FAILED)
            running[child] = target, output
        child, status = os.waitpid(-1, 0)
        target, output = running.pop(child)
        with output:
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines()
        _show(target, lines, failed=status != 0)
        if status:
            failed.append(target.name)
    return failed


def _show(target: Target, lines: Sequence[str], *, failed: bool) -> None:
    runs = next((line for line in reversed(lines) if line.startswith("Done ")), "")
    print(f"{target.name:22} {'FAILED' if failed else runs}", flush=True)
    if failed:
        reported = [line for line in lines if not line.startswith(("INFO:", "WARNING:", "#"))]
        print("\n".join(reported[-_LINES_OF_A_FAILURE:]), flush=True)


def _fuzz(atheris: Any, target: Target, seconds: int, seed: int, found: str) -> None:
    """Fuzz one target in this process, without return; inputs that reach new code are written into
    `found`.
    """
    is_netlink = target.name.startswith("netlink-")
    inputs = Path(found, target.name)
    inputs.mkdir()
    argv = [
        sys.argv[0],
        f"-max_total_time={seconds}",
        f"-max_len={_MOST_BYTES_OF_NETLINK if is_netlink else _MOST_BYTES}",
        f"-timeout={_HANG}",
        f"-seed={seed}",
        f"-artifact_prefix={target.folder}/",
        str(inputs),
        str(target.folder),
    ]
    atheris.Setup(argv, target.run)
    atheris.Fuzz()
