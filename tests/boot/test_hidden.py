"""A gate has root's identity and obeys the modes of files, so folders may be hidden from it."""

import subprocess
from pathlib import Path

import pytest
from support.boot_units import CHECK, NSPAWN, STATIC, stand_in
from support.images import make_image
from support.needs import needs
from support.shell_nodes import AS_A_GATE

from hostrouting import Configure, Host, HostRoutingConfig, check_node
from hostrouting.boot.boot import Boot
from hostrouting.testing import FakeHost
from phases import Context, plan

CONFIG = HostRoutingConfig.from_mapping(
    {"routeOverlap": {"expectedCidrs": ["10.0.0.0/8"]}, "gates": [NSPAWN]}
)
FOLDER = "/etc/aks-flex-node"
HIDDEN = "its mode 0644 hides it from gates"


@needs("root")
def test_an_apply_opens_what_chmod_has_closed(tmp_path: Path) -> None:
    """After `chmod -R 644` a gate cannot read its files; plan and check name the folders, and an
    apply fixes them.
    """
    make_image(tmp_path)
    host = Host.offline(tmp_path)
    folder = tmp_path / FOLDER.lstrip("/")

    def look() -> list[str]:
        findings = check_node(Context(timeout=60), CONFIG, host).findings
        return [str(each) for each in findings if each.kind == "boot-file"]

    def can_read() -> bool:
        files = [str(folder / name) for name in ("hostrouting/applied.json", "hostrouting.zip")]
        command = [*AS_A_GATE.split(), "cat", *files]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    Configure(CONFIG, host=host).do(Context(timeout=60))
    assert look() == []
    assert can_read()
    subprocess.run(["chmod", "-R", "644", folder], check=True)
    assert not can_read()
    generation = (folder / "hostrouting").readlink()
    hidden = [f"{FOLDER}/", f"{FOLDER}/{generation}/"]
    assert look()[:2] == [
        f"error: boot-file: {path}: {HIDDEN}; apply the config" for path in hidden
    ]
    changes = [*map(str, plan(Configure(CONFIG, host=host), Context(timeout=60)).changes)]
    assert changes[:2] == [f"~ {path} ({HIDDEN})" for path in hidden]
    Configure(CONFIG, host=host).do(Context(timeout=60))
    assert look() == []
    assert can_read()
    assert folder.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("mode", "is_hidden"),
    [(0o644, True), (0o600, True), (0o055, True), (0o300, True), (0o500, False), (0o700, False)],
)
def test_modes_that_hide_a_folder(host: FakeHost, ctx: Context, mode: int, is_hidden: bool) -> None:
    """A folder that root as its owner cannot list or enter is a difference; any other mode is an
    administrator's.
    """
    boot = Boot(host, gates=[NSPAWN])
    units = stand_in(STATIC), stand_in(CHECK)
    boot.install(ctx, *units)
    host.files.set_folder_mode(FOLDER, mode)
    assert [change.subject for change in boot.drift(ctx, *units)] == [f"{FOLDER}/"] * is_hidden
    assert boot.install(ctx, *units) == is_hidden
    assert host.files.folder_mode(FOLDER) == (0o755 if is_hidden else mode)


def test_an_undo_restores_the_mode(host: FakeHost, ctx: Context) -> None:
    """A folder whose mode an install has changed has its former mode after the undo."""
    boot = Boot(host, gates=[NSPAWN])
    boot.install(ctx, stand_in(STATIC))
    host.files.set_folder_mode(FOLDER, 0o644)
    files = boot.recorded(ctx)
    boot.install(ctx, stand_in(STATIC, "true\n"), files=files)
    assert host.files.folder_mode(FOLDER) == 0o755
    assert files.undo(ctx)
    assert host.files.folder_mode(FOLDER) == 0o644
