"""`check --from --json` and `plan --from --json` on many machines with Dask, for many nodes.

    make dist; dask scheduler
    dask worker tcp://HOST:8786 --nworkers auto --nthreads 1     (on each machine)
    python examples/fleet/dask_fleet.py tcp://HOST:8786 dist/hostrouting.pyz 'records/*' \
[--config FILE] [--plan]

Scheduler and workers need Dask only: the workers get the single file, and this program imports it,
too. Lines go to them as text, and verdicts come back in the order of the lines. Dask trusts every
client that reaches its ports: use its TLS.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed import Client, get_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.fleet import NodeVerdict

#: A worker gets this much at once: bytes, or lines.
_BYTES, _LINES = 1 << 20, 256


def check(
    lines: list[tuple[str, bytes]], config: str | None, *, planned: bool, file: str, version: str
) -> list[NodeVerdict]:
    """Return the verdicts on lines, in a worker, by its own copy of the file."""
    path = f"{get_worker().local_directory}/{file}"
    if path not in sys.path:
        sys.path.insert(0, path)
    import hostrouting
    from hostrouting.fleet.stream import verdict_on

    if hostrouting.__version__ != version:
        loaded = f"a worker has loaded hostrouting {hostrouting.__version__}, not {version}"
        raise RuntimeError(f"{loaded}: restart the workers")
    parsed = hostrouting.HostRoutingConfig.from_json(config) if config is not None else None
    return [verdict_on(line, parsed, planned=planned) for line in lines]


def verdicts(
    client: Client, lines: Iterator[tuple[str, bytes]], **options: Any
) -> Iterator[NodeVerdict]:
    """Yield the verdicts in the order of the lines; submit only enough to keep each thread busy."""
    client.wait_for_workers(1)
    most = 2 * sum(client.nthreads().values())
    window: deque[Any] = deque()
    for chunk in chunks(lines):
        window.append(client.submit(check, chunk, **options, pure=False))
        if len(window) > most:
            yield from window.popleft().result()
    while window:
        yield from window.popleft().result()


def chunks(lines: Iterator[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Yield the lines in lists that make small messages, unless one line is large."""
    chunk: list[tuple[str, bytes]] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == _LINES or sum(len(content) for _, content in chunk) > _BYTES:
            yield chunk
            chunk = []
    yield chunk


def main() -> int:
    """Return the exit status of `check --from`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scheduler", help="its address")
    parser.add_argument("pyz", type=Path, help="the single file, for the workers")
    parser.add_argument("records", nargs="+", help="files, or patterns of their names")
    parser.add_argument(
        "--config", type=Path, help="check this config instead of that of each record"
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="check the routing as it would be after an apply of the config",
    )
    arguments = parser.parse_args()
    if arguments.plan and not arguments.config:
        parser.error("--plan needs --config")
    try:
        return run(arguments)
    except Exception as error:  # noqa: BLE001 - of Dask or a worker; 1 would be a verdict
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 3


def run(arguments: argparse.Namespace) -> int:
    """Print the verdict on each line, and the summary; return the exit status."""
    sys.path.insert(0, str(arguments.pyz))
    from hostrouting import HostRoutingConfig, __version__
    from hostrouting.fleet.stream import Summary, read_lines
    from hostrouting.node.output import json_line

    config = arguments.config.read_text() if arguments.config else None
    if config is not None:
        HostRoutingConfig.from_json(config)
    names = (name for pattern in arguments.records for name in sorted(glob(pattern)) or [pattern])  # noqa: PTH207
    options = {
        "config": config,
        "planned": arguments.plan,
        "file": arguments.pyz.name,
        "version": __version__,
    }
    summary = Summary()
    with Client(arguments.scheduler) as client:
        # Not loaded by Dask: that would run the command in the scheduler.
        client.upload_file(str(arguments.pyz), load=False)
        for verdict in verdicts(client, read_lines(names), **options):
            summary.add(verdict)
            print(json_line(verdict.to_mapping()))
    print(json_line({"summary": summary.to_mapping()}), flush=True)
    return summary.status


if __name__ == "__main__":
    sys.exit(main())
