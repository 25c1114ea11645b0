"""The files in examples/fleet/ next to the Ansible module are run, or validated by the program that
reads them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from support.documents import ROOT
from support.gated_machine import GatedMachine, require_nspawn
from support.needs import needs
from support.printed import IN_FORCE, leaves
from support.processes import ended
from support.systemd_box import PYTHON, install_command, require_program

from hostrouting.boot.layout import STATE_DIRECTORY
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK
from hostrouting.testing import KernelNode

RIGHT = leaves("172.16.8.0/22", "eth0")

EXAMPLES = ROOT / "examples/fleet"
PLUGIN = EXAMPLES / "npd/check_hostrouting.sh"


def run(*words: str | Path, **options: Any) -> str:
    done = ended(*words, **options)
    assert done.returncode == 0, done
    return done.stdout


def yaml(name: str) -> Any:
    """Return a document of YAML: only the tools of the fleet have a reader of it."""
    code = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))"
    return json.loads(run("fleet-python", "-c", code, EXAMPLES / name))


@needs("promtool")
def test_the_alerts() -> None:
    """Prometheus reads the rules of the alerts, which alert as alerts_test.yml states."""
    assert "SUCCESS: 6 rules found" in run("promtool", "check", "rules", "alerts.yml", cwd=EXAMPLES)
    assert "SUCCESS" in run("promtool", "test", "rules", "alerts_test.yml", cwd=EXAMPLES)


LINE = "172.16.8.0/22: overlap 172.16.8.0-172.16.11.255 through ib0 (172.16.0.0/16 dev ib0 proto kernel scope link)"
FINE = "expected addresses leave through this node\n"
WRONG = "expected addresses would not leave through this node\n"


@pytest.mark.parametrize(
    ("ok", "detected", "status", "printed"),
    [
        (f"{RIGHT}\n".encode(), None, 0, FINE),
        (b"", f"{LINE}\n{LINE}\n".encode(), 1, f"{LINE[:80]}\n"),
        (None, b"", 1, WRONG),
        (None, None, 2, "no check since the boot: there is no marker in "),
        (
            None,
            b"by \x1b[2J\x07$(touch /tmp/x)\0\xff",
            1,
            r"$'by \E[2J\a$(touch /tmp/x)\377'" + "\n",
        ),
        (None, b"\t" * 10_000_000, 1, "$'" + r"\t" * 39 + "\n"),
    ],
)
def test_the_plugin(
    tmp_path: Path, ok: bytes | None, detected: bytes | None, status: int, printed: str
) -> None:
    """The plugin ends with 0, 1 or 2 and one printable line of 80 characters at most, by the marker
    alone and without another program.
    """
    for path, content in (MARKER_OK, ok), (MARKER_DETECTED, detected):
        if content is not None:
            (tmp_path / Path(path).name).write_bytes(content)
    done = subprocess.run(
        [PLUGIN, tmp_path], env={"PATH": "/none"}, check=False, capture_output=True, timeout=60
    )
    described = done.stdout.decode("ascii")
    assert done.returncode == status
    assert described.startswith(printed[:80])
    assert done.stderr == b""
    assert len(described) <= 81
    assert described[:-1].isprintable()


def dated(seconds: float) -> bytes:
    """Return a marker with the time that many seconds ago."""
    date = datetime.now(timezone.utc) - timedelta(seconds=seconds)
    return f"{RIGHT}\nproven {date:%Y-%m-%dT%H:%M:%SZ}\n".encode()


UNDATED = "the marker does not have the time of its check\n"


@pytest.mark.parametrize(
    ("ok", "words", "status", "printed"),
    [
        (10_000, "", 0, FINE),
        (0, "max-age=5000", 0, FINE),
        (4_000, "max-age=5000", 0, FINE),
        (10_000, "max-age=5000", 2, "the last check is of 20"),
        # The clock was set back.
        (-10_000, "max-age=5000", 2, "the last check is of 20"),
        (0, "proven max-age=5000", 1, FINE),
        (10_000, "proven max-age=5000", 0, "the last check is of 20"),
        (10_000, "max-age=5000 proven", 0, "the last check is of 20"),
        # Of an earlier release, empty or damaged.
        (f"{RIGHT}\n".encode(), "max-age=5000", 2, UNDATED),
        (b"", "max-age=5000", 2, UNDATED),
        (b"\nproven yesterday\n", "max-age=5000", 2, UNDATED),
        (0, "max-age=", 2, "max-age=: give a number of seconds\n"),
        (0, "max-age=0", 2, "max-age=0: give a number of seconds\n"),
        (0, "max-age=5m proven", 0, "max-age=5m: give a number of seconds\n"),
        (0, "config=", 2, "config=: give a file\n"),
        (0, "fresh", 2, "unknown word fresh: use proven, config=FILE or max-age=SECONDS\n"),
    ],
)
def test_a_proof_that_is_too_old(
    tmp_path: Path, ok: bytes | int, words: str, status: int, printed: str
) -> None:
    """A node whose last check is older than the maximum age is unknown to the plugin; without a
    maximum age any marker counts. The zone of the node does not matter.
    """
    content = dated(ok) if isinstance(ok, int) else ok
    (tmp_path / Path(MARKER_OK).name).write_bytes(content)
    done = ended(
        PLUGIN, tmp_path, *words.split(), env={"PATH": "/none", "TZ": "Asia/Tokyo"}, timeout=60
    )
    assert done.returncode == status
    assert done.stdout[: len(printed)] == printed
    assert done.stderr == ""
    assert len(done.stdout) <= 81


def test_a_problem_has_no_age(tmp_path: Path) -> None:
    """Routing that was wrong at the last check is a problem to the plugin, however old the check
    is.
    """
    (tmp_path / Path(MARKER_DETECTED).name).write_text(f"{LINE}\n")
    assert ended(PLUGIN, tmp_path, "max-age=1").returncode == 1


@pytest.mark.parametrize("marker", [MARKER_OK, MARKER_DETECTED])
def test_a_marker_that_outlives_its_config(tmp_path: Path, marker: str) -> None:
    """A node whose marker outlives its config is unknown to the plugin, and not checked."""
    (tmp_path / Path(marker).name).write_bytes(dated(0))
    config = tmp_path / "hostrouting.json"
    config.symlink_to("hostrouting/hostrouting.json")
    for words, status in ([], 2), (["proven"], 0):
        done = ended(PLUGIN, tmp_path, f"config={config}", *words)
        assert done.returncode == status
        assert done.stdout.startswith("no config is installed: there is no /")
    config.unlink()
    config.touch()
    done = ended(PLUGIN, tmp_path, f"config={config}")
    assert done.returncode == int(marker == MARKER_DETECTED)


def test_the_plugin_never_waits(tmp_path: Path) -> None:
    """A marker that is a fifo or a folder is a problem to the plugin at once."""
    marker = tmp_path / Path(MARKER_DETECTED).name
    for make in os.mkfifo, os.mkdir:
        make(marker)
        done = ended(PLUGIN, tmp_path, timeout=60)
        assert done.returncode == 1
        assert done.stdout == WRONG
        marker.unlink() if marker.is_fifo() else marker.rmdir()


def test_the_detectors_config() -> None:
    """The config of the detector gives the plugin the folder of the markers, and cuts and waits as
    the plugin expects.
    """
    config = json.loads((EXAMPLES / "npd/hostrouting.json").read_text())
    assert config["plugin"] == "custom"
    assert config["pluginConfig"]["max_output_length"] == 80
    [rule] = config["rules"]
    assert Path(rule["path"]).name == PLUGIN.name
    assert rule["args"] == [STATE_DIRECTORY]
    assert rule["timeout"] == "1s"
    assert rule["condition"] == config["conditions"][0]["type"]
    assert "folder=${1:-" + STATE_DIRECTORY + "}" in PLUGIN.read_text()


@needs("fleet-python")
def test_a_node_is_ready_only_with_a_proof(tmp_path: Path) -> None:
    """The condition of the readiness rule is True for a right node alone, and False for a node
    whose state is unknown.
    """
    spec = yaml("readiness.yaml")["spec"]
    config = json.loads((EXAMPLES / "npd/hostrouting-proven.json").read_text())
    [rule] = config["rules"]
    [condition] = config["conditions"]
    assert spec["conditions"] == [{"type": condition["type"], "requiredStatus": "True"}]
    assert rule["condition"] == condition["type"]
    assert rule["args"] == [STATE_DIRECTORY, "proven"]
    for marker, status in (None, 0), ("route-overlap.ok", 1), ("route-overlap.detected", 0):
        if marker:
            (tmp_path / marker).touch()
        assert ended(PLUGIN, tmp_path, "proven").returncode == status


@needs("cloud-init", "fleet-python")
@pytest.mark.slow
def test_cloud_init(tmp_path: Path) -> None:
    """The schema of cloud-init accepts the file, whose commands configure a booted machine; its
    metrics come, and stay after a reset.
    """
    assert "Valid" in run("cloud-init", "schema", "--config-file", EXAMPLES / "cloud-init.yaml")
    require_nspawn()
    require_program()
    image = tmp_path / "image"
    install_command(image)
    [command] = (path for path in image.rglob("hostrouting") if path.is_file())
    (image / "usr/bin").mkdir(parents=True)
    shutil.copy(command, image / "usr/bin")
    document = yaml("cloud-init.yaml")
    for file in document["write_files"]:
        (path := image / file["path"].lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file["content"])
    prepare = (
        "ip link add eth0 type veth peer name wire; ip link set wire up; "
        "ip address add 10.224.0.4/16 dev eth0; ip link set eth0 up\n"
    )
    with GatedMachine(
        tmp_path, units=(), prepare=f"{prepare}ip route add default via 10.224.0.1"
    ) as machine:
        for words in document["runcmd"]:
            machine.run(*words)
        machine.until("grep -q in_force.} 1$ /var/lib/prometheus/node-exporter/hostrouting.prom")
        assert f"routes: {IN_FORCE}" in machine.run("hostrouting", "status").stdout
        machine.run("hostrouting", "reset")
        assert (
            machine.run("systemctl", "is-enabled", "hostrouting-metrics.timer").stdout
            == "enabled\n"
        )


@needs("kubernetes-validate", "fleet-python")
def test_the_daemonset() -> None:
    """Kubernetes accepts the DaemonSet without an unknown field; its containers have neither root
    nor capabilities, and the user of the image.
    """
    run("kubernetes-validate", "--strict", EXAMPLES / "daemonset.yaml")
    pod = yaml("daemonset.yaml")["spec"]["template"]["spec"]
    assert pod["hostNetwork"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert (
        "USER {runAsUser}:{runAsGroup}".format(**pod["securityContext"])
        in (EXAMPLES / "Dockerfile").read_text()
    )
    for container in pod["initContainers"] + pod["containers"]:
        allowed = container["securityContext"]
        assert allowed["readOnlyRootFilesystem"] is True
        assert allowed["allowPrivilegeEscalation"] is False
        assert allowed["capabilities"] == {"drop": ["ALL"]}


@needs("kubernetes-validate", "fleet-python")
def test_the_daemonset_that_changes_routes() -> None:
    """Kubernetes accepts the DaemonSet of examples/container.py, whose program gets the folders of
    the node below one root, and no right but that to change routes.
    """
    run("kubernetes-validate", "--strict", EXAMPLES.parent / "daemonset.yaml")
    pod = yaml("../daemonset.yaml")["spec"]["template"]["spec"]
    assert pod["hostNetwork"] is True
    [container] = pod["containers"]
    assert container["command"][1:] == ["/usr/src/container.py", "/config/config.json", "/host"]
    assert (EXAMPLES.parent / "container.py").exists()
    allowed = container["securityContext"]["capabilities"]
    assert allowed == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    folders = {each["name"]: each.get("hostPath", {}).get("path") for each in pod["volumes"]}
    mounted = {each["mountPath"]: each for each in container["volumeMounts"]}
    for path in "/etc", "/var/lib", "/run":
        mount = mounted[f"/host{path}"]
        assert folders[mount["name"]] == path
        assert mount.get("readOnly", False) is (path != "/run")


#: Runs a command in a root that is read-only, with /proc and /sys as a container has them.
_CONTAINER = """
mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; mount --rbind /proc "$0/proc"; mount -t sysfs none "$0/sys"
exec chroot --userspec=65534:65534 --groups= "$0" "$@"
"""


@needs("kernel", "buildah", "fleet-python")
@pytest.mark.slow
def test_the_image_records_a_node(tmp_path: Path) -> None:
    """An image that Buildah makes of a base with this Python records a node in one line, as in the
    DaemonSet, without any right.
    """
    (tmp_path / "policy").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    (context := tmp_path / "dist").mkdir()
    version = "{}.{}".format(*sys.version_info)
    run(
        sys.executable,
        ROOT / "release/pyz.py",
        context / "hostrouting.pyz",
        version,
        sys.executable,
    )
    places: list[str | Path] = [
        "--root",
        tmp_path / "images",
        "--runroot",
        tmp_path / "running",
        "--storage-driver",
        "vfs",
    ]

    def buildah(command: str, *words: str | Path) -> str:
        trust: list[str | Path] = (
            ["--signature-policy", tmp_path / "policy"]
            if command in {"build", "commit", "from"}
            else []
        )
        return run("buildah", *places, command, *trust, *words).strip()

    base = buildah("from", "scratch")
    copy_python(Path(buildah("mount", base)))
    buildah("commit", base, "base")
    dockerfile = EXAMPLES / "Dockerfile"
    buildah(
        "build",
        "--isolation=chroot",
        "--build-arg=BASE=localhost/base",
        "--tag=hr",
        "--file",
        dockerfile,
        context,
    )
    made = buildah("from", "localhost/hr")
    described = json.loads(buildah("inspect", made))["OCIv1"]["config"]
    root = buildah("mount", made)
    with KernelNode.made() as node:
        node.add_link("eth0")
        inside = [
            "nsenter",
            f"--net=/run/netns/{node.name}",
            "unshare",
            "--mount",
            "sh",
            "-ec",
            _CONTAINER,
            root,
        ]
        command = [*inside, *described["Entrypoint"]]
        assert run(*command, "--version", env={"PATH": os.environ["PATH"]}).startswith(
            "hostrouting "
        )
        [container] = yaml("daemonset.yaml")["spec"]["template"]["spec"]["initContainers"]
        [line] = run(*command, *container["args"]).splitlines()
        assert '"eth0"' in line


def copy_python(root: Path) -> None:
    """Make the root of an image with nothing but the Python of the tests, and what it loads."""
    library = Path(sysconfig.get_path("stdlib"))
    unwanted = shutil.ignore_patterns(
        "*-packages", "__pycache__", "test*", "idlelib", "config-*", "*.a"
    )
    shutil.copytree(library, root / library.relative_to("/"), ignore=unwanted)
    loaded = run("ldd", PYTHON, *library.glob("lib-dynload/*.so"))
    for path in {str(PYTHON), *re.findall(r"(/\S+) \(0x", loaded)}:
        (copy := root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for name in "proc", "sys", "usr/bin":
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "usr/bin/python3").symlink_to(PYTHON)
