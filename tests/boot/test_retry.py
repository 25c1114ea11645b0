"""The functions of the script that starts held units, without systemd."""

import subprocess

from support.documents import ROOT

SCRIPT = ROOT / "hostrouting/boot/assets/hostrouting-retry.sh"
#: Defines the functions of the script, and a systemd with one marked unit. It is asked for marks
#: first, and gives no answer about the unit itself.
PROGRAM = """
source <(sed '/^sleep 0.5$/,$d' "$1")
systemctl() {
    [[ $1 == show ]] || echo "systemctl $*" >&2
    [[ $* == *@* ]] || return 1
    printf '%s\\n' Id=hostrouting-waits@web.service.service ActiveState=active
}
list_held
echo "${!waits[@]}"
"""


def test_a_unit_waits_on_while_systemd_gives_no_answer() -> None:
    """The retry does not stop the mark of a unit while systemd does not answer whether the unit has
    started.
    """
    argv = ["bash", "-c", PROGRAM, "bash", str(SCRIPT)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("web.service\n", "")


#: A unit that was enabled until the next boot is disabled while it is down.
DISABLED = """
source <(sed '/^sleep 0.5$/,$d' "$1")
is[web.service ActiveState]=inactive
is[web.service UnitFileState]=enabled-runtime
is_taken_down web.service || is[web.service UnitFileState]=disabled
is_taken_down web.service
"""


def test_a_unit_that_is_enabled_until_the_next_boot_was_enabled() -> None:
    """The retry gives up a unit that was enabled until the next boot and is disabled now."""
    subprocess.run(["bash", "-c", DISABLED, "bash", str(SCRIPT)], check=True)
