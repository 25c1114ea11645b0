"""The unit on real systemd, with all its confinement: the script can do its work there, and its log
arrives.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.needs import require
from support.printed import NEVER_OVERWRITTEN, SEE_DHCP, WAITING
from support.static_route_scripts import config_of, static_route
from support.systemd_box import SystemdBox

from hostrouting import ConfigureStaticRoutes, Host, StaticRoute
from phases import Context

UNIT = "static-routes.service"
#: Why the route without a gateway waits.
LACKING = f"172.16.1.0/24: table main has no IPv4 default route; {SEE_DHCP}"
NETWORK = """
ip link set lo up
ip link add eth0 type ifb && ip link set eth0 up && ip address add 10.224.0.4/16 dev eth0
"""


def our_routes(box: SystemdBox) -> str:
    return box.run("ip", "route", "show", "proto", "142").stdout


@contextmanager
def machine(prepare: str) -> Iterator[SystemdBox]:
    """A machine on which the unit is installed when it has booted: for two routes, of which one is
    to be looked up.
    """
    require("box")
    config = config_of(
        [
            StaticRoute(destination="172.16.1.0/24"),
            static_route("172.16.2.0/24 via 10.224.0.9 dev eth0 metric 7"),
        ]
    )
    with SystemdBox(prepare=NETWORK + prepare) as box:
        ConfigureStaticRoutes(config, host=Host.offline(box.root)).do(Context())
        box.run("systemctl", "daemon-reload")
        yield box


@pytest.mark.slow
def test_it_waits_and_works() -> None:
    """The unit that is started before the lease waits within its confinement, and then adds its
    routes, also at each later start.
    """
    with machine("") as box:
        assert (
            "hostrouting-ready.service"
            in box.run("systemctl", "show", "--property=Before", UNIT).stdout
        )
        box.run("systemctl", "start", "--no-block", UNIT)
        box.wait_for(f"{WAITING}{LACKING}", unit=UNIT)
        box.run(
            "ip", "route", "add", "default", "via", "10.224.0.1", "dev", "eth0", "proto", "dhcp"
        )
        box.wait_for("routes in force: 2", unit=UNIT)
        assert our_routes(box).splitlines() == [
            "172.16.1.0/24 via 10.224.0.1 dev eth0 ",
            "172.16.2.0/24 via 10.224.0.9 dev eth0 metric 7 ",
        ]
        # Afresh at each start, however many there are.
        box.run("ip", "route", "flush", "proto", "142")
        for _ in range(7):
            box.run("systemctl", "start", UNIT)
        assert len(our_routes(box).splitlines()) == 2
        # In the journal a state that stands still has one line; that the unit was started has
        # none.
        assert box.journal(f"--unit={UNIT}") == [
            f"{WAITING}{LACKING}",
            "routes in force: 2",
            "repaired: + 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142",
            "repaired: + 172.16.2.0/24 via 10.224.0.9 dev eth0 proto 142 metric 7",
        ]


def test_the_journal_names_a_refusal_once() -> None:
    """A refused route fails the unit, and the journal names the route and the reason as an error:
    in full once, then in one short line at each start; the end of the refusal is logged, too.
    """
    refused = (
        "ip route add default via 10.224.0.1 dev eth0\nip address add 172.16.1.1/24 dev eth0\n"
    )
    with machine(refused) as box:

        def journal_lines() -> list[str]:
            before = len(box.journal("--identifier=static-routes", "--priority=3"))
            assert box.run("systemctl", "start", UNIT, check=False).returncode == 1
            box.run("journalctl", "--sync")
            return box.journal("--identifier=static-routes", "--priority=3")[before:]

        [first] = journal_lines()
        assert first == (
            "refused: 172.16.1.0/24: the kernel's own route '172.16.1.0/24 dev eth0 proto kernel scope "
            f"link src 172.16.1.1' {NEVER_OVERWRITTEN}"
        )
        assert our_routes(box) == ("172.16.2.0/24 via 10.224.0.9 dev eth0 metric 7 \n")
        for _ in range(2):
            [short] = journal_lines()
            assert re.fullmatch(r"as before, since \d\d:\d\d: " + re.escape(first), short)
        # Beside this line, a failed start leaves only the messages of systemd.
        before = len(box.journal(f"--unit={UNIT}"))
        journal_lines()
        assert len(box.journal(f"--unit={UNIT}")) - before <= 4
        box.run("ip", "address", "del", "172.16.1.1/24", "dev", "eth0")
        box.run("systemctl", "start", UNIT)
        box.wait_for("routes in force: 2", unit=UNIT)


def test_no_other_user_delays_it() -> None:
    """A lock that another user holds on the folder of the scripts does not delay the unit."""
    with machine("ip route add default via 10.224.0.1 dev eth0\n") as box:
        user = "setpriv", "--reuid=65534", "--clear-groups"
        lock = *user, "flock", "/etc/aks-flex-node", "sleep", "infinity"
        with subprocess.Popen([*box.enter, *lock]) as holder:
            box.until("! flock --nonblock /etc/aks-flex-node true")
            box.run("systemctl", "start", UNIT)
            assert len(our_routes(box).splitlines()) == 2
            holder.kill()
