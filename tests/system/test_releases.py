"""A release whose scripts let gates start at exit status 0, and this one, exchanged beneath a held unit."""

from pathlib import Path

import pytest
from support.boot_units import CHECK, STATIC
from support.gated_machine import GATES, KUBE, KUBELET, STAND_INS, STRICT, GatedMachine

from hostrouting import Host, HostRoutingConfig
from hostrouting.boot.boot import Boot
from hostrouting.boot.intent import Intent
from hostrouting.boot.layout import SCRIPT_DIRECTORY, drop_in_of
from hostrouting.host import FileStore

RETRY = "hostrouting-retry.service"
WARN = Intent(config=HostRoutingConfig.from_mapping({"gates": list(GATES)}))
#: The scripts of an earlier release, as short as their language allows: 0 lets a unit start, 1 refuses.
EARLIER = {
    "hostrouting-ask.sh": """#!/bin/bash -p
[[ ! -e /etc/overlap ]] || { echo 'an overlap'; exit 1; }
[[ ! ${1-} ]] || systemctl stop --no-block "hostrouting-held@$1.service"
exit 0
""",
    "hostrouting-retry.sh": f"""#!/bin/bash -p
until /etc/aks-flex-node/hostrouting-ask.sh; do sleep 1; done
systemctl reset-failed
systemctl start --no-block {KUBE}
""",
    f"{STATIC}.sh": "#!/bin/bash\nexit 0\n",
    f"{CHECK}.sh": "#!/bin/bash\n[[ ! -e /etc/overlap ]]\n",
}
EARLIER_DROP_IN = """[Unit]
After=hostrouting-ready.service
[Service]
ExecStartPre=+/bin/sh -c '\\
    systemctl reload-or-restart --no-block hostrouting-held@$$1.service; \\
    /etc/aks-flex-node/hostrouting-ask.sh $$1 || exit 1; \\
    systemctl stop --no-block hostrouting-held@$$1.service' hostrouting %n
"""
modes = pytest.mark.parametrize("intent", [STRICT, WARN], ids=["STRICT", "WARN"])


def write_earlier(files: FileStore) -> None:
    """Replace the scripts and drop-ins of this release by those of the earlier one."""
    folder = files.read_link(f"{SCRIPT_DIRECTORY}/hostrouting")
    for gate in GATES:
        files.write(drop_in_of(gate), EARLIER_DROP_IN.encode(), mode=0o644)
    for name, text in EARLIER.items():
        place = name if name.startswith("hostrouting-") else f"{folder}/{name}"
        files.write(f"{SCRIPT_DIRECTORY}/{place}", text.encode(), mode=0o755)


@pytest.mark.slow
@modes
def test_an_upgrade_while_a_unit_is_held(tmp_path: Path, intent: Intent) -> None:
    """The retry of the earlier release ends with its files: that of this one starts the unit, and
    not before routing is right.
    """
    with GatedMachine(
        tmp_path, intent=intent, arrange=lambda image: write_earlier(image.files), overlap=True
    ) as machine:
        machine.wait_for_failure(KUBE)
        assert KUBE in machine.boot.held(machine.ctx)
        pid = machine.state(RETRY).main_pid
        assert Boot(machine.host, gates=GATES).install(machine.ctx, *STAND_INS, intent)
        assert machine.state(RETRY).main_pid not in {0, pid}
        assert machine.systemctl("start", KUBE) == 1
        assert machine.payloads() == []
        machine.mend_routing()
        machine.wait_until_up()


@pytest.mark.slow
@modes
def test_a_downgrade_while_a_unit_is_held(tmp_path: Path, intent: Intent) -> None:
    """The retry of this release begins anew, as that of the earlier one, once the question is the
    earlier one.
    """
    with GatedMachine(tmp_path, intent=intent, overlap=True) as machine:
        machine.wait_for_failure(KUBE)
        # It restarts by itself, and until the reload WARN takes a 1 for an accident.
        machine.systemctl("stop", KUBELET)
        machine.systemctl("kill", "--signal=STOP", RETRY)
        write_earlier(machine.files)
        machine.services.daemon_reload(machine.ctx)
        machine.systemctl("kill", "--signal=CONT", RETRY)
        assert machine.systemctl("start", KUBE) == 1
        assert machine.payloads() == []
        machine.mend_routing()
        machine.wait_until_up()


@pytest.mark.slow
@modes
def test_earlier_scripts_open_no_strict_gate(tmp_path: Path, intent: Intent) -> None:
    """Beside the drop-in of this release, 0 is no answer: STRICT refuses, until the next apply, and
    WARN starts the unit with a warning.
    """

    def arrange(image: Host) -> None:
        drop_ins = {gate: image.files.read(drop_in_of(gate)) or b"" for gate in GATES}
        write_earlier(image.files)
        for gate, content in drop_ins.items():
            image.files.write(drop_in_of(gate), content, mode=0o644)

    with GatedMachine(tmp_path, intent=intent, arrange=arrange) as machine:
        is_strict = intent is STRICT
        assert machine.systemctl("start", KUBE) == (1 if is_strict else 0)
        assert ("kube1" in machine.payloads()) is not is_strict
        answer = "hostrouting-ask.sh is lost, or ended with 0; run: hostrouting apply /etc/aks-flex-node/hostrouting.json"
        verdict = "is refused" if is_strict else "starts, although routing is unknown"
        assert f"hostrouting: {KUBE} {verdict}: {answer}" in machine.journal(f"--unit={KUBE}")
        assert (KUBE in machine.boot.held(machine.ctx)) is is_strict
        machine.boot.install(machine.ctx, *STAND_INS, intent)
        machine.boot.release(machine.ctx, [], is_right=True)
        machine.wait_until_up()


@pytest.mark.slow
@modes
def test_an_earlier_drop_in_leaves_no_unit_down(tmp_path: Path, intent: Intent) -> None:
    """Beside the scripts of this release it takes their 10 for a refusal, as after a cut upgrade: the
    unit stays held, and the next apply starts it.
    """

    def arrange(image: Host) -> None:
        for gate in GATES:
            image.files.write(drop_in_of(gate), EARLIER_DROP_IN.encode(), mode=0o644)

    with GatedMachine(tmp_path, intent=intent, arrange=arrange) as machine:
        assert machine.systemctl("start", KUBE) == 1
        assert machine.payloads() == []
        assert KUBE in machine.boot.held(machine.ctx)
        machine.boot.install(machine.ctx, *STAND_INS, intent)
        machine.boot.release(machine.ctx, [KUBE], is_right=True)
        machine.wait_until_up()
