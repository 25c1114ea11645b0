"""docs/operators.md has a valid config, and its tables have the commands and lines of the code; the
outputs that it and README.md show are those of the command on real systemd.
"""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest
from support.boot_units import NSPAWN
from support.documents import ROOT, blocks
from support.gated_machine import KUBE, GatedMachine, require_nspawn
from support.needs import require
from support.printed import leaves
from support.systemd_box import COMMAND_PATH, install_command, require_program

from hostrouting import Configure, Host, HostRoutingConfig
from hostrouting.cli.commands import all_commands
from hostrouting.testing import FakeHost
from phases import Context

PATH: Final = ROOT / "docs/operators.md"
PAGE: Final = PATH.read_text(encoding="utf-8")
#: The pages that show outputs of the command.
PAGES: Final = (PATH, ROOT / "README.md")
CIDR = "172.16.8.0/22"
#: A GPU node in small, with a router on each link, and the fabric's network around the cluster's.
LINKS = """
sysctl -qw net.ipv6.conf.default.accept_dad=0
ip netns add beyond
for dev in eth0 ib0; do
    ip link add $dev type veth peer name $dev netns beyond
    ip -n beyond address add fe80::1/64 dev $dev nodad
    ip -n beyond link set $dev up && ip link set $dev up
done
ip -n beyond address add 10.224.0.1/16 dev eth0
ip address add 10.224.0.4/16 dev eth0 && ip route add default via 10.224.0.1 dev eth0 proto dhcp
"""
#: The kubelet of the node is that in its machine.
NO_KUBELET = "rm /etc/systemd/system/multi-user.target.wants/kubelet.service\n"
SHADOW = "ip address add 172.16.1.4/16 dev ib0\n"
IPV6: Final = "ip -6 address add 2001:db8::4/64 dev eth0 nodad; ip -6 route add default via fe80::1 dev eth0 proto ra\n"
ROUTE = {"destination": CIDR}
CHECKED: Mapping[str, Any] = {
    "routeOverlap": {"expectedCidrs": [CIDR], "mode": "STRICT", "expectedDevs": ["eth0"]},
    "gates": [NSPAWN],
}
MENDED = {"staticRoutes": {"enabled": True, "routes": [ROUTE]}, **CHECKED}
BOTH_FAMILIES = {"expectedCidrs": [CIDR, "fd00:9::/64"], "mode": "STRICT"}
TYPO = {"destination": "192.168.77.0/24", "gateway": "10.22.0.1", "dev": "eth0"}
HELD = f"until systemctl is-failed --quiet {KUBE}; do sleep .1; done"
#: The configuration and the pool of WALinuxAgent, which has one pair.
FABRIC = """
echo OS.EnableRDMA=y > /etc/waagent.conf
mkdir -p /var/lib/hyperv && cd /var/lib/hyperv
printf %s IPoIB_Data > .kvp_pool_0 && truncate -s 512 .kvp_pool_0
printf %s 'NUMPAIRS:1|00155D33FF10:172.16.1.4' >> .kvp_pool_0 && truncate -s 2560 .kvp_pool_0
cd /
"""
STEAL = f"""
until [[ $(systemctl is-active hostrouting-watch) == active ]]; do sleep .1; done
for _ in 1 2 3 4; do
    until ip route del {CIDR} proto 142 2> /dev/null; do sleep .05; done
done
until journalctl -u hostrouting-watch | grep -q 'within an hour'; do sleep .1; done
"""
NEIGHBOUR = """
ip link add azure0 type bridge && ip link set azure0 up && ip address add 10.240.0.1/16 dev azure0
ip neigh add 10.240.0.9 lladdr 02:00:00:00:00:09 dev azure0 nud permanent
"""


def _new(config: Mapping[str, object]) -> str:
    """Return bash that writes a config for the next apply."""
    return f"echo '{json.dumps({'hostRouting': config})}' > /root/new.json"


#: By the word after `console`: the installed config, what is there before the boot, and what
#: happens after it.
STATES: Mapping[str, tuple[Mapping[str, Any], str, str]] = {
    "new": ({}, SHADOW, ""),
    "overlap": (CHECKED, SHADOW, HELD),
    "held": (CHECKED, SHADOW, HELD),
    "glass": (CHECKED, SHADOW, HELD),
    "fabric": (CHECKED, FABRIC, ""),
    "lease": (MENDED, SHADOW, "ip route del default; ip route flush proto 142"),
    "worse": (MENDED, SHADOW, _new(CHECKED)),
    "undone": (
        MENDED,
        SHADOW,
        _new({**MENDED, "staticRoutes": {"enabled": True, "routes": [ROUTE, TYPO]}}),
    ),
    "taken": ({**MENDED, "watch": {"enabled": True, "mode": "service"}}, SHADOW, STEAL),
    "ipv6": (
        {**MENDED, "routeOverlap": BOTH_FAMILIES},
        SHADOW + IPV6,
        "ip -6 route add default via fe80::1 dev ib0 proto ra metric 512",
    ),
    "removed": (MENDED, SHADOW, ""),
    "sweep": (
        {**MENDED, "staleCni": {"enabled": True, "podCidrs": ["10.240.0.0/16"]}},
        SHADOW,
        NEIGHBOUR,
    ),
    "probes": (
        {**MENDED, "probeSnat": {"enabled": True, "dev": "eth0", "detect": "always"}},
        SHADOW + IPV6,
        "nft delete table ip6 azureSLBProbe",
    ),
}
#: Those of `make test`; each takes seconds.
STORIES = "new", "overlap", "worse"
#: What differs from run to run: times, ages, processes, netlink ports and checksums.
VOLATILE = (
    r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?( [A-Z]{3,4})?",
    r"[A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d",
    r"(?<=as before, since )\d\d:\d\d",
    r"since [A-Z][a-z]{2} |; \S+ ago",
    r"(?<=\[)\d+(?=\]:)",
    r"\b[0-9a-f]{12}\b",
    r"(?<=sweep-)\d+T\d+Z",
    r"(?<=netlink port )\d+",
)


def plain(text: str) -> str:
    """Return a text without what differs from run to run."""
    return re.sub("|".join(VOLATILE), "@", text)


def pattern_of(expected: str) -> str:
    """Return the expression of an output on the page, in which a line `...` stands for any lines."""
    lines = plain(expected).splitlines(keepends=True)
    return "".join("(?:.*\n)*?" if line == "...\n" else re.escape(line) for line in lines)


def renewed(expected: str, output: str) -> str:
    """Return an output for the page: of lines that differ by times alone the old ones, and `...`."""
    old, new = expected.splitlines(keepends=True), output.splitlines(keepends=True)
    alike = SequenceMatcher(None, [*map(plain, old)], [*map(plain, new)], autojunk=False)
    lines = []
    for _, begin, end, new_begin, new_end in alike.get_opcodes():
        before, others = old[begin:end], new[new_begin:new_end]
        if [*map(plain, before)] == [*map(plain, others)]:
            lines += before
        elif "...\n" in before:
            cut = before.index("...\n")
            lines += [*others[:cut], "...\n", *others[len(others) - len(before) + cut + 1 :]]
        else:
            lines += others
    return "".join(lines)


def console_blocks() -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the state of each block of the pages, with its commands and their outputs."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = re.findall(r"^```console (\w+)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    parts = [
        (state, re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, flags=re.MULTILINE))
        for state, text in found
    ]
    return sorted(parts, key=lambda part: part[0])


SESSIONS = {
    state: [each for _, session in parts for each in session]
    for state, parts in groupby(console_blocks(), lambda part: part[0])
}


def test_the_config_is_one() -> None:
    """The config of the manual is accepted, and has every section that this release can apply."""
    (document,) = blocks("docs/operators.md", language="json")
    config = HostRoutingConfig.from_json(document)
    assert config.probe_snat.enabled
    assert config.stale_cni.enabled
    Configure(config, host=FakeHost())


def test_the_manual_lists_each_command() -> None:
    """The page has a line for each command, in the order of `--help`; the first seven commands only
    read.
    """
    section = PAGE.partition("## The commands\n")[2].partition("\n## ")[0]
    assert re.findall(r"^hostrouting ([a-z]+) ", section, flags=re.MULTILINE) == [*all_commands()]
    changes = [command.changes for command in all_commands().values()]
    assert changes == [False] * 7 + [True] * 4


def test_every_block_has_a_state() -> None:
    """Each output of a page has a state in which it is tested, and each state has an output."""
    assert SESSIONS.keys() == STATES.keys()
    assert {*re.findall(r"^```(\w+)", PAGE, flags=re.MULTILINE)} == {"console", "json", "sh"}


@pytest.mark.parametrize(
    "state",
    [
        state if state in STORIES else pytest.param(state, marks=pytest.mark.slow)
        for state in SESSIONS
    ],
)
def test_the_outputs_are_real(state: str, tmp_path: Path) -> None:
    """Each command of the page, pasted on the node that its block names, prints what the page has;
    a line `...` stands for any lines.
    """
    require_nspawn()
    require_program()
    config, links, trouble = STATES[state]
    if state == "probes":
        require("nft")
    image = tmp_path / "image"

    def arrange(host: Host) -> None:
        install_command(image)
        # The image has no Python of its own.
        work = Configure(HostRoutingConfig.from_mapping(config), host=host, force=True)
        work.do(Context(timeout=60))

    prepare = LINKS + links + NO_KUBELET
    with GatedMachine(tmp_path, units=(), arrange=arrange, prepare=prepare) as machine:

        def paste(command: str) -> str:
            path = f"{COMMAND_PATH.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            return subprocess.run(
                [*machine.enter, "bash", "-c", f"cd /root; {command}"],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={"PATH": path, "LC_ALL": "C.UTF-8", "HOME": "/root"},
            ).stdout

        assert paste(trouble) == ""
        for command, expected in SESSIONS[state]:
            if command.startswith("journalctl"):
                machine.journal()
            output = paste(command)
            if "UPDATE_GOLDEN" in os.environ:
                shown = renewed(expected, output)
                asked = f"$ {command}\n"
                for page in PAGES:
                    text = page.read_text(encoding="utf-8").replace(asked + expected, asked + shown)
                    page.write_text(text, encoding="utf-8")
            else:
                shown = expected
            assert re.fullmatch(pattern_of(shown), plain(output)), (
                f"if the page is to have this, run the test with UPDATE_GOLDEN=1: $ {command}\n{output}"
            )


# --- the journal


def rows() -> list[str]:
    """Return the words by which the table of the page finds a line."""
    table = PAGE.partition("| The line has | It means |\n|---|---|\n")[2].partition("\n\n")[0]
    return [
        words for row in table.splitlines() for words in re.findall("`(.*?)`", row.split(" | ")[0])
    ]


#: The packages with the texts of watch, of the program of a boot, and of what that runs.
CAPABILITIES = ("watch", "node", "route_overlap", "static_routes", "boot")


def test_every_row_has_a_line() -> None:
    """The code has the words of each row in the page's table of the journal."""
    package = ROOT / "hostrouting"
    capabilities = (path for name in CAPABILITIES for path in package.glob(f"{name}/*.py"))
    sources = [*package.rglob("assets/*"), *capabilities, *package.glob("azure/*/*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    # Texts of several lines, and the verdicts on several CIDRs and on one, are put together.
    code = re.sub(r'\\\n|"\s+f?"', "", code) + leaves("")
    assert [words for words in rows() if words not in code] == [], f"of {PATH}"
