"""Units of an administrator that have the names of hostrouting's, on real systemd."""

import json
from pathlib import Path

from support.gated_machine import RoutedMachine
from support.systemd_box import require_program

from hostrouting.boot.layout import CONFIG_PATH

UNITS = "/etc/systemd/system"
NAMES = ("static-routes.service", "probe-snat.service")
WANTS = f"{UNITS}/multi-user.target.wants"
#: They run, are enabled, and another unit requires one of them.
FOREIGN = f"""
mkdir -p {WANTS} {UNITS}/site.target.requires {UNITS}/static-routes.service.d
for name in {" ".join(NAMES)}; do
  cat > {UNITS}/$name <<'END'
[Unit]
Description=Routes of the site
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
END
  ln -s ../$name {WANTS}/$name
done
printf '[Service]\\nNice=1\\n' > {UNITS}/static-routes.service.d/override.conf
ln -s ../static-routes.service {UNITS}/site.target.requires/static-routes.service
systemctl daemon-reload
systemctl start {" ".join(NAMES)}
"""
#: Right without static routes.
RIGHT = {"expectedCidrs": ["10.96.0.0/16"], "mode": "STRICT"}
PROOF = json.dumps({"hostRouting": {"routeOverlap": RIGHT}})
WANTED = """{"hostRouting": {
  "staticRoutes": {"enabled": true, "routes": [{"destination": "172.16.8.0/22"}]},
  "probeSnat": {"enabled": true, "dev": "eth0"}}}"""


def facts(node: RoutedMachine) -> str:
    """Return the state, the process and the files of the foreign units."""
    shown = f"systemctl show -p ActiveState,MainPID,UnitFileState {' '.join(NAMES)}"
    paths = f"{UNITS}/*/static-routes.service {UNITS}/*/probe-snat.service {UNITS}/*.service.d/o*"
    return node.shell(f"{shown}; cd /; ls -l {paths}; sha256sum {UNITS}/{{static,probe}}*.service")


def test_a_foreign_unit_outlives_everything(tmp_path: Path) -> None:
    """An administrator's unit with a name of hostrouting keeps its file, process and links through
    plan, apply, status, reset and every offered step.
    """
    require_program()
    with RoutedMachine(tmp_path, staticRoutes={}, routeOverlap=RIGHT) as node:
        node.shell(FOREIGN)
        before = facts(node)
        assert before.count("ActiveState=active") == 2
        assert before.count("UnitFileState=enabled") == 2

        def runs(script: str) -> str:
            output = node.shell(f"{script}; echo status $?")
            assert facts(node) == before, script
            return output

        for verb in "plan", "apply", "apply --force":
            output = runs(f"echo '{WANTED}' | hostrouting {verb} - 2>&1")
            for name in NAMES:
                assert f"{UNITS}/{name}" in output, output
            assert "status 0" not in output
        assert "status 0" in runs(f"echo '{PROOF}' | hostrouting apply -")
        assert f"{UNITS}/{NAMES[0]}" in runs("hostrouting status")
        for _ in range(4):
            runs(node.status()["next"] or "true")
        reset = runs("hostrouting reset 2>&1")
        assert "status 0" in reset
        assert f"{UNITS}/{NAMES[0]}: belongs to another owner" in reset
        assert f"{UNITS}/{NAMES[0]}" in runs("hostrouting status 2>&1")


def test_an_own_unit_that_was_replaced(tmp_path: Path) -> None:
    """An administrator's unit that replaced hostrouting's is left as it is by the offered steps, an
    apply and a reset.
    """
    require_program()
    with RoutedMachine(tmp_path) as node:
        node.shell(FOREIGN)
        before = facts(node)
        for _ in range(4):
            step = node.status()["next"] or "true"
            assert "apply" not in step
            node.shell(step)
            assert facts(node) == before, step
        assert "another owner" in node.shell(f"hostrouting apply {CONFIG_PATH} 2>&1")
        assert facts(node) == before
        node.shell("hostrouting reset")
        after = facts(node).splitlines()
        # Its own links to the units are gone with its own files.
        assert [line for line in before.splitlines() if "hostrouting-" not in line] == after
        assert after.count("ActiveState=active") == 2
        assert node.shell(f"ls {UNITS} | grep hostrouting") == ""
