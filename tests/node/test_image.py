"""An image is prepared and checked: nothing outside it changes, and missing programs are reported."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.in_process import run_here as run
from support.printed import LEFT_FILES, NOT_APPLIED, STAY_SHUT

from hostrouting import HostRoutingConfig, render_files
from hostrouting.boot.installed_config import NOT_INSTALLED

UNITS = "etc/systemd/system"
SECTIONS: dict[str, Any] = {
    "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]},
    "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"},
    "probeSnat": {"enabled": True, "dev": "eth0", "detect": "always", "required": True},
    "gates": ["systemd-nspawn@.service"],
}
PROGRAMS = {
    "bash": "bin/bash",
    "flock": "usr/bin/flock",
    "nft": "usr/sbin/nft",
    "nsenter": "usr/bin/nsenter",
    "setpriv": "usr/bin/setpriv",
}
PACKAGES = {"bash": "bash", "nft": "nftables"} | dict.fromkeys(
    ("flock", "nsenter", "setpriv"), "util-linux"
)
#: Every folder in which an apply makes a file or a link.
WRITTEN = (
    "etc",
    "etc/aks-flex-node",
    UNITS,
    f"{UNITS}/multi-user.target.wants",
    f"{UNITS}/hostrouting-ready.service.requires",
    f"{UNITS}/systemd-nspawn@.service.d",
    "run",
)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image that has all programs, and the unit of the gate."""
    image = tmp_path / "image"
    for path in (*PROGRAMS.values(), "usr/bin/python3"):
        program = image / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch(mode=0o755)
    unit = image / "lib/systemd/system/systemd-nspawn@.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    return image


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config with all that is installed for a boot."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SECTIONS))
    return path


def contents(folder: Path) -> dict[str, object]:
    return {
        str(path): path.readlink() if path.is_symlink() else path.stat().st_mtime_ns
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize(
    ("written", "leads"),
    [
        *((written, "out") for written in WRITTEN),
        *(
            (written, leads)
            for written in WRITTEN[3:5]
            for leads in ("out and up", "by a chain", "to nothing")
        ),
    ],
)
def test_links_do_not_lead_out_of_an_image(
    tmp_path: Path, image: Path, config: Path, written: str, leads: str
) -> None:
    """Links of an image, be they absolute, relative, dangling or in a chain, lead to targets inside
    it: an apply writes there, and changes nothing outside.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs").write_text("theirs")
    place = image / written
    place.parent.mkdir(parents=True, exist_ok=True)
    (image / "srv").mkdir()
    (image / "srv/link").symlink_to(outside)
    target, seen = {
        "out": (str(outside), outside),
        "out and up": (f"{'../' * 40}{outside}", outside),
        "by a chain": ("/srv/link", outside),
        "to nothing": (f"{outside}/nothing", outside / "nothing"),
    }[leads]
    place.symlink_to(target)
    before = contents(outside)
    applied = run("apply", "--root", image, config)
    assert applied.returncode == 0, applied.stderr
    assert contents(outside) == before
    wanted = {file.path for file in render_files(HostRoutingConfig.from_mapping(SECTIONS)).files}
    made = {path.name for path in image.rglob("*") if path.name != "theirs"}
    assert {path.rpartition("/")[2] for path in wanted} <= made
    assert {"hostrouting-ready.service.requires", "multi-user.target.wants"} <= made
    if written != "run":
        # The image, as the node will see it, has it all where the link leads.
        assert any(Path(f"{image}{seen}").iterdir())
    checked = run("check", "--root", image, config)
    assert checked.returncode == 0, checked.stdout
    assert "error" not in checked.stdout, checked.stdout
    assert run("reset", "--root", image).returncode == 0
    assert contents(outside) == before
    # A link that the image had stays, whatever it is called.
    assert [path for path in image.rglob("*hostrouting*") if path != place] == []


def test_an_image_is_not_mended(image: Path, config: Path) -> None:
    """A fix of an image ends with 1, and its reason names the command for a node that is made of
    the image.
    """
    result = run("check", "--fix", "--root", image, config)
    reason = (
        "an image has no routes to be repaired; on a node made of it, run: hostrouting check --fix"
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.partition(" |")[0] == f"hostrouting: {reason}"


def test_an_apply_ends_with_the_state_of_the_image(image: Path, config: Path) -> None:
    """An apply to an image ends with a sentence on the image; one that fails without a config names
    what is left, and the reset that removes it.
    """
    sentence = "right: the image is as the config wants it"
    assert run("apply", "--root", image, config).stdout.splitlines()[-1] == sentence
    (image / UNITS / "static-routes.service").unlink()
    (image / "etc/aks-flex-node/hostrouting.json").unlink()
    (image / "etc/aks-flex-node").chmod(0o777)
    failed = run("apply", "--root", image, config)
    assert failed.returncode == 3
    assert failed.stdout.startswith(f"{NOT_INSTALLED} in the image{LEFT_FILES}")
    assert failed.stdout.endswith("; a reset with --root removes that\n")


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_image_without_a_program_is_reported(image: Path, config: Path, name: str) -> None:
    """For an image that does not have a program an apply fails with the consequence and the package, and a
    check has an error next to its notes.
    """
    (image / PROGRAMS[name]).unlink()
    message = f"{name}: is not installed in the image: {STAY_SHUT}; "
    applied = run("apply", "--root", image, config)
    assert applied.returncode == 1
    assert f"{message}install the package {PACKAGES[name]}\n" in applied.stderr
    checked = run("check", "--root", image, "--json", config)
    assert checked.returncode == 1
    finding, *others = json.loads(checked.stdout)["findings"]
    assert {other["severity"] for other in others} == {"note"}
    assert finding["kind"] == "no-program"
    assert finding["subject"] == name
    assert finding["severity"] == "error"


def test_nft_is_missed_only_by_probes(image: Path, config: Path) -> None:
    """An image without nft is a warning if its probes are optional, and without probes nft is not
    needed.
    """
    (image / PROGRAMS["nft"]).unlink()
    config.write_text(
        json.dumps({**SECTIONS, "probeSnat": {**SECTIONS["probeSnat"], "required": False}})
    )
    applied = run("apply", "--root", image, config)
    assert (
        "nft: is not installed in the image: IPv6 load-balancer probes would not reach pods"
        in applied.stderr
    )
    checked = run("check", "--root", image, config)
    assert checked.returncode == 0
    assert "warning: no-program: nft" in checked.stdout
    config.write_text(
        json.dumps({key: value for key, value in SECTIONS.items() if key != "probeSnat"})
    )
    assert "nft: the image lacks it" not in run("apply", "--root", image, config).stderr


def test_programs_are_found_over_links_of_the_image(image: Path, config: Path) -> None:
    """A program counts as installed where the links of the image lead to one inside the image, as
    on a node.
    """
    (image / "etc/alternatives").mkdir(parents=True)
    shutil.move(image / "bin", image / "usr/merged")
    (image / "bin").symlink_to("usr/merged")
    (image / "usr/bin/setpriv").unlink()
    (image / "usr/bin/setpriv").symlink_to("/etc/alternatives/setpriv")
    (image / "etc/alternatives/setpriv").symlink_to("../../usr/bin/flock")
    assert "the image lacks it" not in run("apply", "--root", image, config).stderr
    (image / "etc/alternatives/setpriv").unlink()
    (image / "etc/alternatives/setpriv").symlink_to(sys.executable)
    assert "setpriv: is not installed in the image" in run("apply", "--root", image, config).stderr


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ("kubelet.service", "[Unit]\nBefore=network-pre.target\n"),
        ("systemd-networkd.service", "[Unit]\nAfter=kubelet.service\nBefore=network.target\n"),
        ("network.target.wants/kubelet.service", ""),
        ("sysinit.target.d/x.conf", "[Unit]\nAfter=kubelet.service\n"),
    ],
)
def test_a_gate_that_the_network_waits_for_is_refused(
    image: Path, config: Path, unit: str, text: str
) -> None:
    """A gate in an image is refused without a change if the network waits for it by its own order,
    by that of another unit of the boot, or as a part of a target.
    """
    units = image / UNITS
    files = {
        "default.target": "[Unit]\nWants=multi-user.target systemd-networkd.service\nAfter=multi-user.target\n",
        "multi-user.target": "[Unit]\nAfter=basic.target\n",
        "basic.target": "[Unit]\nAfter=sysinit.target\n",
        "sysinit.target": "",
        "network.target": "[Unit]\nAfter=network-pre.target\n",
        "systemd-networkd.service": "[Unit]\nBefore=network.target\n",
        "kubelet.service": "[Service]\nExecStart=/bin/true\n",
        unit: text,
    }
    for name, content in files.items():
        (units / name).parent.mkdir(parents=True, exist_ok=True)
        (units / name).write_text(content)
    config.write_text(json.dumps({**SECTIONS, "gates": ["kubelet.service"]}))
    before = contents(units)
    refused = run("apply", "--root", str(image), str(config))
    assert refused.returncode == 3
    assert contents(units) == before
    assert "kubelet.service cannot be a gate: " in refused.stderr
    assert run("plan", "--root", str(image), str(config)).returncode == 3


@pytest.mark.parametrize(
    ("section", "is_noted"),
    [({}, True), ({"mode": "WARN"}, False), ({"expectedDevs": ["10.224.0.0/16"]}, False)],
)
def test_an_open_exit_of_an_image(
    image: Path, tmp_path: Path, section: dict[str, Any], is_noted: bool
) -> None:
    """An apply to an image, which does not pin an exit, advises under STRICT to name the network of
    the exit where `expectedDevs` is open.
    """
    overlap = {**SECTIONS["routeOverlap"], **section}
    (config := tmp_path / "open.json").write_text(json.dumps({**SECTIONS, "routeOverlap": overlap}))
    applied = run("apply", "--root", image, config)
    assert applied.returncode == 0, applied.stderr
    assert ('"expectedDevs": ["10.224.0.0/16"]' in applied.stderr) == is_noted


@pytest.mark.slow
def test_a_check_of_an_image(image: Path, config: Path) -> None:
    """A check of an image has one error before the first apply, notes alone after it, and an error
    for each installed file that is taken away. Routes are not read.
    """
    empty = run("check", "--root", image, config)
    assert empty.returncode == 1
    assert f"error: not-applied: hostRouting: {NOT_APPLIED} in the image" in empty.stdout
    assert run("apply", "--root", image, config).returncode == 0
    fine = run("check", "--root", image, "--json", config)
    answer = json.loads(fine.stdout)
    assert fine.returncode == 0
    assert answer["ok"] is True
    assert answer["cidrs"] == []
    kinds = [(finding["kind"], finding["severity"]) for finding in answer["findings"]]
    assert kinds == [("open-exit", "note"), ("not-watched", "note")]
    [message] = answer["not_asked"]
    assert message.startswith("an image has no routes to be checked")
    installed = [path for path in (image / "etc").rglob("*") if path.is_symlink() or path.is_file()]
    assert len(installed) > 12
    for path in installed:
        aside = path.with_name("aside")
        path.rename(aside)
        harmed = run("check", "--root", image, config)
        aside.rename(path)
        assert harmed.returncode == 1, path
        assert "error: " in harmed.stdout, path
    assert run("check", "--root", image, config).returncode == 0
