"""Recorded nodes are checked on the workers of Dask, which import nothing but the single file."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from support.command_line import CHECKED, MENDED, run
from support.documents import ROOT
from support.kernel import connect
from support.needs import needs
from support.processes import ended

from hostrouting import HostRoutingConfig
from hostrouting.fleet import take_record
from hostrouting.testing import FakeHost, MemoryBackend
from phases import Context

pytestmark = [needs("fleet-python"), pytest.mark.slow]
#: Two workers in processes of their own; the program once for each list of words; then where the
#: workers have it from.
_CLUSTER = """
import json, subprocess, sys
from distributed import Client, LocalCluster

def places():
    import hostrouting, attr
    return hostrouting.__file__, attr.__file__

if __name__ == "__main__":
    options = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with LocalCluster(**options, local_directory=sys.argv[2]) as cluster, Client(cluster) as client:
        runs = []
        for words in json.loads(sys.argv[1]):
            command = [sys.executable, words[0], cluster.scheduler_address, *words[1:]]
            done = subprocess.run(command, capture_output=True, text=True)
            runs.append((done.returncode, done.stdout, done.stderr))
        print(json.dumps([runs, [*client.run(places).values()]]))
"""


def lines() -> Iterator[bytes]:
    """Yield the records of 300 nodes: two in three overlap, each fourth has no config, and each
    twentieth line is broken.
    """
    for number in range(300):
        routes = MemoryBackend()
        fabric = {f"ib{number}": f"{172 + number % 3}.16.1.4/16"}
        connect(routes, eth0="10.224.0.4/16", **fabric)
        routes.add_route("default", gateway="10.224.0.1", dev="eth0", protocol=16)
        record = attrs.evolve(
            take_record(Context(), FakeHost(routes)),
            hostname=f"node-{number}",
            config=HostRoutingConfig.from_mapping(CHECKED) if number % 4 else None,
        )
        yield record.to_line()[: -9 if number % 20 == 7 else None] + b"\n"


def test_dask_finds_what_one_process_finds(tmp_path: Path) -> None:
    """The workers of Dask print the same verdicts in the same order, and the same groups and
    counts, as one process.
    """
    pyz = tmp_path / "hostrouting.pyz"
    config = tmp_path / "config"
    every = [*lines()]
    subprocess.run([sys.executable, ROOT / "release/pyz.py", pyz], check=True)
    config.write_text(json.dumps(MENDED))
    (tmp_path / "nodes-1").write_bytes(b"".join(every[:200]))
    (tmp_path / "nodes-2").write_bytes(b"".join(every[200:]))
    program = str(ROOT / "examples/fleet/dask_fleet.py")
    pattern = str(tmp_path / "nodes-*")
    script = (
        [program, str(pyz), pattern],
        [program, str(pyz), pattern, "--config", str(config), "--plan"],
        [program, str(pyz), str(tmp_path / "none")],
    )
    done = ended(
        "fleet-python", "-c", _CLUSTER, json.dumps(script), tmp_path, check=True, cwd=tmp_path
    )
    (checked, planned, none), places = json.loads(done.stdout)
    files: list[str | Path] = ["--json", "--from", tmp_path / "nodes-1", tmp_path / "nodes-2"]
    for found, words in (checked, ["check"]), (planned, ["plan", str(config)]):
        expected = run(*words, *files)
        assert found == [expected.returncode, expected.stdout, ""]
    summary = json.loads(checked[1].splitlines()[-1])["summary"]
    assert summary["nodes"] == 285
    assert summary["refused"] == 15
    assert len(summary["groups"]) == 3
    assert none[:2] == [3, ""]
    assert none[2].startswith("HostFileError: cannot read the records in ")
    # Their own copies: Dask's Python has no hostrouting, and an attrs of its own.
    assert len(places) == len({first for first, _ in places}) == 2
    for hostrouting, attr in places:
        assert str(tmp_path) in hostrouting.removesuffix("/hostrouting.pyz/hostrouting/__init__.py")
        assert attr.endswith("/hostrouting.pyz/attr/__init__.py")
