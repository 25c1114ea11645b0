"""A folder is read-only or full, by real mounts: the error has the path, no state is partial, the
next run succeeds.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.images import make_image
from support.in_process import run_here
from support.needs import needs

#: Lays a small file system over a folder that holds the same, makes it read-only or fills it, and
#: runs a command; then there is room again, and the next command runs.
SCRIPT = """
folder=$1 trouble=$2 output=$3; shift 3
cp -a "$folder" "$output.copy"
mount -t tmpfs -o size=6m,mode=755 none "$folder"
cp -a "$output.copy/." "$folder/"
before=$(cd "$folder" && find . ! -type d | sort)
case $trouble in
read-only) mount -o remount,ro "$folder";;
full) cat /dev/zero > "$folder/.filling" 2> /dev/null || :; before+=$'\\n./.filling';;
esac
status=0
"$@" "${command[@]}" 2> "$output" || status=$?
after=$(cd "$folder" && find . ! -type d | sort)
mount -o remount,rw "$folder"
rm -f "$folder/.filling"
if [[ $trouble == read-only && $before != "$after" ]]; then echo "changed: $before -> $after" >> "$output"; fi
"$@" "${command[@]}" || exit 90
"$@" "${check[@]}" || exit 91
exit "$status"
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
    """Exit status 3 and a path, but where the lock needs no room; once there is room, the same
    command completes.
    """
    image = make_image(tmp_path / "image")
    (image / folder).mkdir(parents=True)
    for name, config in ("new", CONFIG), ("earlier", OTHER):
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    if story != "first":
        assert run_here("apply", "--root", image, tmp_path / "earlier.json").returncode == 0
    new = str(tmp_path / "new.json")
    apply, plan = f"apply --root {image} {new}", f"plan --exit-code --root {image} {new}"
    command, check = (f"reset --root {image}",) * 2 if story == "reset" else (apply, plan)
    output = tmp_path / "output"
    script = f"command=({command}) check=({check})\n{SCRIPT}"
    words = [
        "unshare",
        "--mount",
        "bash",
        "-ec",
        script,
        "bash",
        str(image / folder),
        trouble,
        str(output),
    ]
    words += [sys.executable, "-I", "-m", "hostrouting"]
    result = subprocess.run(words, check=False)
    text = output.read_text()
    assert "Traceback" not in text
    assert "changed:" not in text
    if trouble == "read-only" or (story != "reset" and folder != "run"):
        reason = "Read-only file system" if trouble == "read-only" else "No space left on device"
        assert result.returncode == 3, text
        assert re.search(f"{image / folder}[^;\n]*{reason} *(;|$)", text, re.MULTILINE), text
    else:
        assert result.returncode == 0, text
