"""probe-snat.service at boot, in all its confinement: no gated machine starts without the rules."""

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from support.gated_machine import EARLY, GATES, KUBELET, GatedMachine
from support.printed import NOT_LOADED
from support.probe_listings import rules_in
from support.probe_worlds import RULES

from hostrouting import (
    ConfigureProbeSNAT,
    Host,
    HostRoutingConfig,
    OverlapMode,
    ProbeSNATConfig,
)
from hostrouting.azure.probe_snat.ruleset import RULESET_PATH
from hostrouting.boot.layout import gate_drop_in
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from hostrouting.host.packets.nft import NftCommand
from phases import Context

OPTIONAL = ProbeSNATConfig(enabled=True, dev="eth0", detect="always")
CONFIG = HostRoutingConfig(probe_snat=attrs.evolve(OPTIONAL, required=True), gates=GATES)
UNIT = "probe-snat.service"
#: The unit logs when it has loaded the rules.
ECHO_LOADED = f"""
mkdir -p /etc/systemd/system/{UNIT}.d
printf '[Service]\\nExecStartPost=/bin/echo loaded\\n' > /etc/systemd/system/{UNIT}.d/loaded.conf
"""
LINKS = """
ip link add eth0 type veth peer name wire && ip link set wire up
ip link set eth0 up && ip -6 address add 2001:db8::4/64 dev eth0 nodad
ip -6 route add default via fe80::1 dev eth0
"""
#: Each start of a machine counts the rules as soon as its gate has let it pass.
WITNESS = """
cat > /etc/systemd/system/systemd-nspawn@.service.d/60-witness.conf <<'END'
[Service]
ExecStartPre=/bin/sh -c 'nft list table ip6 azureSLBProbe | grep -c counter >> /run/witness; exit 0'
END
"""
#: The optional feature agent's unit, but slower: a unit that does not wait for it loses all rules that were
#: loaded.
FLUSH = """
mkdir -p /etc/systemd/system/multi-user.target.wants
cat > /etc/systemd/system/nftables-flush.service <<'END'
[Unit]
{order}
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'sleep 1; nft flush ruleset; echo flushed'
[Install]
WantedBy=multi-user.target
END
ln -s ../nftables-flush.service /etc/systemd/system/multi-user.target.wants/
"""


def install(image: Host) -> None:
    """Have the gates wait for the rules."""
    ConfigureProbeSNAT(CONFIG, host=image).do(Context(timeout=60))


def install_optional(image: Host) -> None:
    """Load the rules together with other programs."""
    config = HostRoutingConfig(probe_snat=OPTIONAL, gates=GATES)
    ConfigureProbeSNAT(config, host=image).do(Context(timeout=60))


def break_rules(image: Host) -> None:
    """Leave a ruleset that nft refuses."""
    text = image.files.read(RULESET_PATH)
    assert text is not None
    image.files.write(RULESET_PATH, text.replace(b"ip6 saddr set", b"ip6 saddr sit"), mode=0o644)


def node(machine: GatedMachine) -> Host:
    """The machine with its packet rules and its IPv6."""
    parts = {field.name: getattr(machine.host, field.name) for field in attrs.fields(Host)}
    layer = NetlinkLinkLayer(netns=f"/proc/{machine.pid}/ns/net")
    return Host(**{**parts, "link_layer": layer, "nftables": NftCommand((*machine.enter, "nft"))})


def are_in_force(machine: GatedMachine) -> bool:
    listing = node(machine).nftables.table(machine.ctx, "ip6", "azureSLBProbe")
    return listing is not None and rules_in(listing) == RULES


def witnessed(machine: GatedMachine) -> list[str]:
    return (machine.files.read("/run/witness") or b"").decode().split()


@pytest.mark.parametrize("order", ["Before=systemd-nspawn@kube1.service", ""])
def test_before_the_machine_starts_and_again(tmp_path: Path, order: str) -> None:
    """The rules are loaded before the machine starts: at boot, after a slow flush, and at its next
    start.
    """
    with GatedMachine(
        tmp_path, units=(), arrange=install, prepare=LINKS + WITNESS + FLUSH.format(order=order)
    ) as machine:
        machine.wait_until_up()
        machine.wait_for("flushed", unit="nftables-flush.service")
        assert witnessed(machine) == ["4"]
        assert are_in_force(machine)
        machine.run("nft", "flush", "ruleset")
        cursor = machine.cursor()
        machine.reboot()
        machine.wait_until_up(after=cursor)
        assert witnessed(machine) == ["4", "4"]
        assert are_in_force(machine)


def test_wherever_nft_is(tmp_path: Path) -> None:
    """The gated machine starts with nft in an uncommon folder, which an apply finds on PATH, and
    the unit on systemd's path.
    """
    elsewhere = "mv /usr/sbin/nft /usr/local/sbin/nft\n"
    with GatedMachine(tmp_path, units=(), arrange=install, prepare=LINKS + elsewhere) as machine:
        machine.wait_until_up()
        assert are_in_force(machine)


#: In place of nft, a program that refuses every ruleset.
REFUSING = """
printf '#!/bin/sh\\necho "Error: not supported" >&2\\nexit 1\\n' > /usr/local/sbin/nft
chmod +x /usr/local/sbin/nft
"""


def test_refused_rules_hold_and_heal(tmp_path: Path) -> None:
    """Required rules that nft refuses hold the machines under WARN as well, with nft's words in the
    journal; all start after the repair.
    """
    late = "systemd-nspawn@late.service"
    with GatedMachine(tmp_path, units=(), arrange=install, prepare=LINKS + REFUSING) as machine:
        assert machine.payloads() == []
        assert machine.systemctl("start", late) == 1
        assert machine.payloads() == []
        assert "Error: not supported" in machine.journal(f"--unit={UNIT}")
        journal = machine.journal(f"--unit={late}")
        assert any(
            f"{late} is refused: probe-snat.service has failed; " in line for line in journal
        )
        machine.files.remove("/usr/local/sbin/nft")
        machine.wait_until_up()
        assert are_in_force(machine)


def test_where_they_are_optional_nothing_waits(tmp_path: Path) -> None:
    """Machines start although nft refuses optional rules; a correct ruleset is loaded at boot and
    at each start of a machine.
    """

    def broken(image: Host) -> None:
        install_optional(image)
        break_rules(image)

    with GatedMachine(tmp_path / "broken", units=(), arrange=broken, prepare=LINKS) as machine:
        machine.wait_until_up()
        machine.wait_for_failure(UNIT)
        assert not are_in_force(machine)
        assert machine.systemctl("start", "systemd-nspawn@late.service") == 0
    with GatedMachine(
        tmp_path / "right", units=(), arrange=install_optional, prepare=LINKS + ECHO_LOADED
    ) as machine:
        machine.wait_until_up()
        assert are_in_force(machine)
        machine.run("nft", "flush", "ruleset")
        cursor = machine.cursor()
        machine.reboot()
        machine.wait_for("loaded", unit=UNIT, after=cursor)
        assert are_in_force(machine)


def test_live(tmp_path: Path) -> None:
    """A live run installs the rules, and its undo removes them, while the same processes go on;
    each start of a gate loads the rules again.
    """
    with GatedMachine(tmp_path, units=(), prepare=LINKS) as machine:
        task, pids = ConfigureProbeSNAT(CONFIG, host=node(machine)), machine.pids()
        found = ["find", "/etc/systemd", "/etc/aks-flex-node", "/run/hostrouting"]
        before = machine.run(*found, check=False).stdout
        task.do(machine.ctx)
        assert are_in_force(machine)
        assert task.findings(machine.ctx) == []
        assert task.plan(machine.ctx) == []
        for _ in range(2):
            machine.run("nft", "flush", "ruleset")
            assert [finding.reason for finding in task.findings(machine.ctx)] == [NOT_LOADED]
            assert machine.systemctl("start", "hostrouting-ready.service") == 0
            assert are_in_force(machine)
        task.undo(machine.ctx)
        assert machine.run("nft", "list", "ruleset").stdout == ""
        assert machine.run(*found, check=False).stdout == before
        assert machine.pids() == pids


AGENTBAKERS_RULES = "ipv6_nftables.service"


def their_end(machine: GatedMachine) -> str:
    """Return the last message of systemd about a unit whose commands have ended."""
    return f"{AGENTBAKERS_RULES}: {'Succeeded' if machine.version < 249 else 'Deactivated successfully'}."


#: AgentBaker's unit with its settings; a stand-in for the cloud answers its script if /run/imds
#: exists.
THEIR_UNIT = """
mkdir -p /opt/scripts /etc/systemd/system/multi-user.target.wants
cat > /etc/systemd/system/ipv6_nftables.service <<'END'
[Unit]
Description=Configure nftables rules for handling Azure SLB IPv6 health probe packets
Before=kubelet.service
[Service]
Type=simple
RemainAfterExit=true
ExecStart=/bin/bash /opt/scripts/ipv6_nftables.sh
Restart=on-failure
RestartSec=3
[Install]
WantedBy=multi-user.target
END
ln -s ../ipv6_nftables.service /etc/systemd/system/multi-user.target.wants/
cat > /opt/scripts/ipv6_nftables.sh <<'END'
until [[ -e /run/imds ]]; do sleep .1; done
nft -f /etc/systemd/system/ipv6_nftables
echo filled
END
cat > /etc/systemd/system/ipv6_nftables <<'END'
table ip6 azureSLBProbe
flush table ip6 azureSLBProbe
table ip6 azureSLBProbe {
  chain prerouting {
    type filter hook prerouting priority -300;
    iifname wire icmpv6 type { nd-neighbor-solicit, nd-router-advert, nd-neighbor-advert } counter accept
    iifname wire ip6 saddr fe80::1234:5678:9abc ip6 saddr set 2603:1062:0:1:fe80:1234:5678:9abc counter
  }
  chain postrouting {
    type filter hook postrouting priority -300;
    oifname wire ip6 daddr 2603:1062:0:1:fe80:1234:5678:9abc ip6 daddr set fe80::1234:5678:9abc counter
  }
}
END
"""


@pytest.mark.parametrize("arrange", [install, install_optional], ids=["required", "optional"])
def test_another_unit_fills_the_same_table(tmp_path: Path, arrange: Callable[[Host], None]) -> None:
    """A unit of AgentBaker that fills the same table for another device late does not delay any
    machine, and its rules are replaced.
    """
    with GatedMachine(
        tmp_path, units=(), arrange=arrange, prepare=LINKS + ECHO_LOADED + THEIR_UNIT
    ) as machine:
        machine.wait_until_up()
        machine.wait_for("loaded", unit=UNIT)
        assert are_in_force(machine)
        assert (
            machine.systemctl("start", "hostrouting-ready.service", "systemd-nspawn@late.service")
            == 0
        )
        # The gate of that start has begun to load the rules: wait for the end.
        assert machine.systemctl("start", UNIT) == 0
        cursor = machine.cursor()
        machine.files.write("/run/imds", b"", mode=0o644)
        machine.wait_for(their_end(machine), unit=AGENTBAKERS_RULES, after=cursor)
        assert "filled" in machine.journal(f"--unit={AGENTBAKERS_RULES}")
        assert are_in_force(machine)
        notice = "hostrouting: the table ip6 azureSLBProbe has other rules; those of hostrouting replace them"
        # A unit's own lines and systemd's reach the journal by different ways.
        machine.wait_for(notice, unit=AGENTBAKERS_RULES, after=cursor)
        assert notice in machine.journal(f"--unit={AGENTBAKERS_RULES}", "--priority=5")
        # Restart it together with probe-snat, as AgentBaker does.
        cursor = machine.cursor()
        assert machine.systemctl("restart", AGENTBAKERS_RULES) == 0
        machine.wait_for(their_end(machine), unit=AGENTBAKERS_RULES, after=cursor)
        assert are_in_force(machine)
        # After a reset the table is AgentBaker's alone, and unchanged.
        ConfigureProbeSNAT(CONFIG, host=node(machine)).undo(machine.ctx)
        assert (
            machine.run(
                "systemctl", "show", "--value", "-pRemainAfterExit", AGENTBAKERS_RULES
            ).stdout
            == "yes\n"
        )
        assert not machine.files.exists("/etc/systemd/system/ipv6_nftables.service.d")


#: The unit has loaded the rules, and has not come to its end before there is /run/end.
LINGER = f"""
mkdir -p /etc/systemd/system/{UNIT}.d
cat > /etc/systemd/system/{UNIT}.d/linger.conf <<'END'
[Service]
ExecStartPost=/bin/sh -c 'echo loaded; until [ -e /run/end ]; do sleep .1; done; echo ended'
END
"""


def test_another_unit_fills_the_table_while_the_rules_are_loaded(tmp_path: Path) -> None:
    """The rules of hostrouting are loaded last, even if foreign ones come while they are loaded,
    although a start of a running unit does not run that unit again.
    """
    with GatedMachine(
        tmp_path, units=(), arrange=install_optional, prepare=EARLY + LINKS + LINGER + THEIR_UNIT
    ) as box:
        box.wait_for("loaded", unit=UNIT)
        box.files.write("/run/imds", b"", mode=0o644)
        box.wait_for(their_end(box), unit=AGENTBAKERS_RULES)
        box.files.write("/run/end", b"", mode=0o644)
        box.wait_for("ended", unit=UNIT)
        assert are_in_force(box)


def test_by_hand_it_goes_as_well(tmp_path: Path) -> None:
    """The commands in a gate's drop-in remove each file and link of the rules, also the drop-in for
    AgentBaker's unit.
    """
    own_files = "find /etc -name '*hostrouting*' -o -name '*probe-snat*'"
    with GatedMachine(tmp_path, units=(), arrange=install, prepare=LINKS + THEIR_UNIT) as machine:
        assert machine.run("sh", "-c", own_files).stdout
        lines = gate_drop_in(KUBELET, OverlapMode.WARN).content.decode().splitlines()
        commands = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
        for command in commands:
            if command.startswith(("rm ", "systemctl ")):
                machine.run("bash", "-c", command)
        assert machine.run("sh", "-c", own_files).stdout == ""
