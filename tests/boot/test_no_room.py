"""On a read-only or full folder, by real mounts, the error of a run has the path, and the next run
succeeds.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import ROOT
from support.images import make_image
from support.in_process import run_here
from support.needs import needs

#: Lays a small file system over a folder that holds the same, makes it read-only or fills it, and
#: runs a command; then there is room again, and the next commands run. It prints what they did. One
#: process for them all: each would load the program again.
PROGRAM = """
import json
import subprocess
import sys
from pathlib import Path

from support.in_process import run_here

folder, trouble, commands = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])


def mount(*words):
    subprocess.run(["mount", *words, str(folder)], check=True)


def files():
    return sorted(str(path) for path in folder.rglob("*") if not path.is_dir())


copy = f"{folder}.copy"
subprocess.run(["cp", "-a", str(folder), copy], check=True)
mount("-t", "tmpfs", "-o", "size=10m,mode=755", "none")
subprocess.run(["cp", "-a", f"{copy}/.", str(folder)], check=True)
subprocess.run(["rm", "-r", copy], check=True)
before = files()
filling = folder / ".filling"
if trouble == "full":
    subprocess.run(["dd", "if=/dev/zero", "bs=64k", f"of={filling}"], stderr=subprocess.DEVNULL)
else:
    mount("-o", "remount,ro")
first = run_here(*commands[0])
after = [path for path in files() if path != str(filling)]
mount("-o", "remount,rw")
filling.unlink(missing_ok=True)
later = [run_here(*command).returncode for command in commands[1:]]
print(json.dumps([first.returncode, first.stderr, before, after, later]))
"""
CONFIG = {
    "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]},
    "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"]},
}
OTHER = {**CONFIG, "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/21"}]}}


@needs("root")
@pytest.mark.parametrize("trouble", ["read-only", "full"])
@pytest.mark.parametrize("folder", ["etc/systemd/system", "etc/aks-flex-node", "run"])
@pytest.mark.parametrize("story", ["first", "again", "reset"])
def test_a_path_that_cannot_be_written_is_named(
    tmp_path: Path, story: str, folder: str, trouble: str
) -> None:
    """A run that cannot write a path ends with 3 and names the path; on a full disk a reset
    succeeds, and so does an apply if only /run is full.

    A read-only folder is as before, and the same command completes once there is room.
    """
    image = make_image(tmp_path / "image")
    (image / folder).mkdir(parents=True)
    for name, config in ("new", CONFIG), ("earlier", OTHER):
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    if story != "first":
        assert run_here("apply", "--root", image, tmp_path / "earlier.json").returncode == 0
    new = str(tmp_path / "new.json")
    reset = ["reset", "--root", str(image)]
    apply = ["apply", "--root", str(image), new]
    plan = ["plan", "--exit-code", "--root", str(image), new]
    commands = [reset, reset, reset] if story == "reset" else [apply, apply, plan]
    words = ["unshare", "--mount", sys.executable, "-c", PROGRAM]
    words += [str(image / folder), trouble, json.dumps(commands)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    status, text, before, after, later = json.loads(done.stdout)
    assert later == [0, 0]
    assert "Traceback" not in text
    if trouble == "read-only":
        assert after == before
    if trouble == "read-only" or (story != "reset" and folder != "run"):
        reason = "Read-only file system" if trouble == "read-only" else "No space left on device"
        assert status == 3, text
        assert re.search(f"{image / folder}[^;\n]*{reason} *(;|$)", text, re.MULTILINE), text
    else:
        assert status == 0, text
