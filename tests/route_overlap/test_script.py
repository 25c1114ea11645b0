"""The boot script and its unit: their files, and the behaviour of the script in the kernel."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from support.boot_units import assert_systemd_accepts
from support.counted_ip import IP, another_ip, counted_ip, take_counts
from support.examples import FEW
from support.filled import asset, changes, without
from support.kernel import connect, needs_kernel
from support.needs import needs
from support.overlap_worlds import run_script

from hostrouting.boot import units_in
from hostrouting.config import DEFAULT_ALLOWED_DEVS, HostRoutingConfig
from hostrouting.route_overlap import render_script
from hostrouting.route_overlap.script import boot_part
from hostrouting.testing import KernelNode, strategies

in_each_mode = pytest.mark.parametrize(("mode", "status"), [("WARN", 10), ("STRICT", 11)])


def with_fabric(fabric: object, *cidrs: str) -> HostRoutingConfig:
    """Return a config with this setting, units to wait for, and a network in `expectedDevs`."""
    overlap = {"expectedCidrs": cidrs, "fabric": fabric, "expectedDevs": ["10.224.0.0/16"]}
    return HostRoutingConfig.from_mapping({"routeOverlap": overlap, "after": [r"a\x2d", "b.path"]})


CONFIG = HostRoutingConfig.from_mapping(
    {
        "routeOverlap": {
            "expectedCidrs": ["172.16.0.0/16", "10.0.0.0/8", "169.254.169.254/32", "10.0.0.255/24"],
            "mode": "STRICT",
            "allowedDevs": ["mesh*", "veth[0-9]?"],
        }
    }
)
[UNIT] = units_in([boot_part(CONFIG)])


class TestFiles:
    def test_script(self) -> None:
        """The whole script, to the byte: its asset, with these places filled in."""
        plain = asset(
            "route_overlap/check-route-overlap.sh",
            SHARED="boot/shared.sh",
            AGENT="route_overlap/fabric.sh",
        )
        for part in "ipv6", "after", "networks":
            plain = without(plain, part)
        assert changes(plain, render_script(CONFIG)) == [
            *("-mode=@MODE@", "-cidrs=(@CIDRS@)", "+mode=STRICT", "+cidrs=("),
            *("+  172.16.0.0/16", "+  10.0.0.0/8", "+  169.254.169.254/32", "+  10.0.0.0/24", "+)"),
            *("-firsts=(@FIRSTS@)", "-nexts=(@NEXTS@)", "-families=(@FAMILIES@)", "+firsts=("),
            *("+  2886729728", "+  167772160", "+  2852039166", "+  167772160", "+)", "+nexts=("),
            *("+  2886795264", "+  184549376", "+  2852039167", "+  167772416", "+)"),
            *("+families=(4)", "-allowed=(@ALLOWED@)", "+allowed=("),
            *(f"+  '{pattern}'" for pattern in (*DEFAULT_ALLOWED_DEVS, "mesh*", "veth[0-9]?")),
            *(
                "+)",
                "-given=(@EXPECTED@)",
                "+given=()",
                "-declare -A names=(@NAMES@)",
                "+declare -A names=()",
            ),
            *("-fabric_networks=(@NETWORKS@)", "+fabric_networks=()"),
            *("-  family=4 edges=(@EDGES@) roots=(@ROOTS@)", "+  family=4 edges=("),
            *("+  [167772160]=1", "+  [167772416]=1", "+  [184549376]=1", "+  [2852039166]=1"),
            *("+  [2852039167]=1", "+  [2886729728]=1", "+  [2886795264]=1"),
            *("+) roots=(", "+  10.0.0.0/8", "+  169.254.169.254/32", "+  172.16.0.0/16"),
            *("+)", "-fabric_source=routeOverlap.fabric"),
        ]
        # A CIDR is cut at the ranges that the kernel treats specially, too.
        assert f"[{224 << 24}]=1" in render_script(with_fabric("off", "192.0.0.0/2")).decode()

    def test_where_they_go(self) -> None:
        """The script before the unit that names it, with the modes that they need; it runs after
        the static routes.
        """
        assert UNIT.files[0].content == render_script(CONFIG)
        assert [(file.path, oct(file.mode)) for file in UNIT.files] == [
            ("/etc/aks-flex-node/check-route-overlap.sh", "0o755"),
            ("/etc/systemd/system/check-route-overlap.service", "0o644"),
        ]
        assert b"After=network.target static-routes.service\n" in UNIT.files[1].content

    @pytest.mark.slow
    @pytest.mark.parametrize("fabric", ["auto", "off", ["172.16.0.0/16"]])
    @pytest.mark.parametrize("cidrs", [["10.0.0.0/8"], ["fd00::/8"], ["10.0.0.0/8", "fd00::/8"]])
    def test_shellcheck_has_nothing_to_say(
        self, tmp_path: Path, fabric: object, cidrs: list[str]
    ) -> None:
        """The rendered script, whatever the families and the fabric are."""
        (tmp_path / "script.sh").write_bytes(render_script(with_fabric(fabric, *cidrs)))
        subprocess.run(["shellcheck", tmp_path / "script.sh"], check=True)

    @pytest.mark.parametrize("fabric", ["auto", "off", ["172.16.0.0/16"], []])
    @pytest.mark.parametrize("cidrs", [["10.0.0.0/8"], ["10.0.0.0/8", "fd00::/8"]])
    def test_every_function_is_called(self, fabric: object, cidrs: list[str]) -> None:
        """A config has no lines in its script that only another config needs."""
        text = render_script(with_fabric(fabric, *cidrs)).decode()
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        names = re.findall(r"^(\w+)\(\) \{", code, flags=re.MULTILINE)
        assert "read_tables" in names
        assert [name for name in names if len(re.findall(rf"\b{name}\b", code)) < 2] == []
        assert "@if" not in text
        assert "@end" not in text

    @needs("systemd-analyze")
    def test_systemd_has_nothing_to_say(self, tmp_path: Path) -> None:
        """`systemd-analyze verify` prints nothing, and the unit is exposed to 3.2 at most."""
        assert_systemd_accepts(UNIT, tmp_path)

    @settings(max_examples=FEW)
    @given(strategies.configs())
    def test_any_config_is_data_to_bash(self, config: HostRoutingConfig) -> None:
        """Whatever validates, bash reads it as the words that the config has, and runs nothing of
        it.
        """
        script = render_script(config)
        settings_only = script[script.index(b"mode=") : script.index(b"((${#cidrs[@]}))")]
        words = b'"$mode" "${cidrs[@]}" "${allowed[@]}" "${given[@]}" "${fabric_networks[@]}"'
        program = b'LC_ALL=C\nset -f\n%b\nprintf "%%s\\n" %b\n' % (settings_only, words)
        program += b'for cidr in "${cidrs[@]}"; do echo "${names[$cidr]-}"; done\n'
        done = subprocess.run(
            ["bash", "-r"], input=program, capture_output=True, check=True, env={}
        )
        section = config.route_overlap
        patterns = dict.fromkeys((*DEFAULT_ALLOWED_DEVS, *section.allowed_devs))
        # The fabric is of IPv4.
        is_fabric = not isinstance(section.fabric, str) and any(
            ":" not in cidr for cidr in section.cidrs
        )
        fabric = section.fabric if is_fabric else ()
        names = [name or "" for name in section.cidrs.values()]
        lines = [section.mode, *section.cidrs, *patterns, *section.expected_devs, *fabric, *names]
        assert done.stdout.decode().splitlines() == lines
        assert done.stderr == b""


@needs_kernel
class TestRunning:
    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        with KernelNode.made() as node:
            connect(node, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
            yield node

    @pytest.fixture
    def uplink(self, node: KernelNode) -> None:
        node.ip("route append default via 10.224.0.1 dev eth0 proto 16")

    @in_each_mode
    def test_an_overlap(
        self, node: KernelNode, uplink: None, tmp_path: Path, mode: str, status: int
    ) -> None:
        """The journal names the fault, the deciding route, and the config to paste; the mode sets
        the exit.
        """
        ran = run_script(node, tmp_path, ["172.16.8.0/22", "10.96.0.0/16"], mode=mode)
        finding = (
            "172.16.8.0/22: overlap 172.16.8.0-172.16.11.255 by ib0 "
            "(172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4)\n"
        )
        assert ran.status == status
        assert ran.markers == {"route-overlap.detected": finding}
        strict = "The mode is STRICT: units that wait for hostrouting-ready.service start once routing is right.\n"
        assert ran.output == (
            "1 of 2 expected CIDRs would not leave by eth0 as a whole:\n"
            f"  {finding}"
            "expected: dev eth0 via 10.224.0.1; for the routes that help: "
            f"hostrouting check /etc/aks-flex-node/hostrouting.json\n{strict if mode == 'STRICT' else ''}"
        )

    @in_each_mode
    def test_systemd_gives_no_answer(
        self, node: KernelNode, uplink: None, tmp_path: Path, mode: str, status: int
    ) -> None:
        """A unit of `after` then counts as late, beside the findings and without them."""
        for name in "bin", "run":
            (tmp_path / name).mkdir()
        (tmp_path / "bin/systemctl").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "bin/systemctl").chmod(0o755)
        path = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        late = "a.service: is unknown (systemd gives no answer), neither active nor ended"
        for cidr, fault in ("10.96.0.0/16", ""), ("172.16.8.0/22", "172.16.8.0/22: overlap"):
            ran = run_script(
                node, tmp_path / "run", [cidr], mode=mode, after=["a.service"], environment=path
            )
            [marker] = ran.markers.values()
            assert (ran.status, late in ran.output) == (status, True)
            assert marker.startswith(
                fault or (late if mode == "STRICT" else f"{cidr} leaves by eth0")
            )
            assert (late in marker) == (mode == "STRICT")

    @pytest.mark.slow
    def test_everything_is_wrong(self, node: KernelNode, uplink: None, tmp_path: Path) -> None:
        """10,000 CIDRs, of which ten are told: under WARN, too, no verdict in time is a refusal."""
        node.ip("route append 172.0.0.0/8 dev ib0")
        cidrs = [f"172.{n >> 14}.{n >> 6 & 255}.{(n & 63) << 2}/30" for n in range(10_000)]
        # `make kernel-*`: qemu takes ten times as long.
        limit = (
            "prlimit",
            "--cpu=150" if os.environ.get("HYPOTHESIS_PROFILE") == "kernel" else "--cpu=15",
        )
        ran = run_script(node, tmp_path, cidrs, mode="WARN", through=limit)
        assert ran.status == 10
        assert ran.markers["route-overlap.detected"].count(": overlap ") == len(cidrs)
        assert ran.output.startswith(
            "10000 of 10000 expected CIDRs would not leave by eth0 as a whole:"
        )
        assert ran.output.count(": overlap ") == 10
        assert f"\n  and 9990 more in {tmp_path}/route-overlap.detected\n" in ran.output

    @pytest.mark.slow
    def test_what_grows_with_the_cidrs(self, node: KernelNode, tmp_path: Path) -> None:
        """The script reads a row of each route in a CIDR, asks about each part once, and starts no
        further process.
        """
        counts = []
        for size in 1_000, 10_000:
            cidrs = [f"11.{n >> 14}.{n >> 6 & 255}.{(n & 63) << 2}/30" for n in range(size)]
            lines = "".join(f"route add {cidr} via 10.224.0.1 dev eth0\n" for cidr in cidrs)
            argv = ["nsenter", f"--net=/run/netns/{node.name}", "ip", "-force", "-batch", "-"]
            subprocess.run(argv, input=lines, text=True, capture_output=True, check=False)
            options = {"expectedDevs": ["eth0"]}
            assert (
                run_script(
                    node, tmp_path, cidrs, options=options, environment=counted_ip(tmp_path)
                ).status
                == 10
            )
            counts.append(take_counts(tmp_path))
        few, many = counts
        assert many == (few.processes, few.commands + 9_000, few.lines + 18_000)

    @in_each_mode
    def test_no_default_route(
        self, node: KernelNode, tmp_path: Path, mode: str, status: int
    ) -> None:
        """A finding for every CIDR, after the wait: without a route, and with one that nothing
        expects.
        """
        nothing = "10.96.0.0/16: no-route 10.96.0.0-10.96.255.255\n"
        ran = run_script(node, tmp_path, ["10.96.0.0/16"], mode=mode)
        assert (ran.status, ran.markers) == (status, {"route-overlap.detected": nothing})
        assert ran.output.startswith(
            "the node has no IPv4 default route, so nothing leads to 10.96.0.0/16\n"
        )
        ran = run_script(node, tmp_path, ["172.16.8.0/22", "10.96.0.0/16"], mode=mode)
        route = "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4"
        unknown = f"172.16.8.0/22: unknown-exit 172.16.8.0-172.16.11.255 by ib0 ({route})\n"
        assert (ran.status, ran.markers) == (status, {"route-overlap.detected": unknown + nothing})
        assert (
            f"so it is unknown where 172.16.8.0/22 10.96.0.0/16 should leave:\n  {unknown}"
            in ran.output
        )

    @pytest.mark.parametrize(
        ("program", "reason"),
        [
            (None, "there is no program 'ip' in "),
            (
                "head -n 2 | sed 's/.*/default via 10.224.0.1 dev eth0 /'; kill -9 $$",
                "ip ended early",
            ),
            ("cat >/dev/null; echo 'default via 10.224.0.1 dev eth0 '; exit 0", "ip ended early"),
            (
                (
                    "cat >/dev/null; for n in 2 4 6 8; do echo Dump was interrupted and may be inconsistent.; "
                    'printf \'Object "\\36" is unknown, try "ip help".\\nCommand failed -:%d\\n\' $n; done; exit 1'
                ),
                "ip cannot read the tables: Dump was interrupted and may be inconsistent.",
            ),
        ],
    )
    def test_half_a_reading_proves_nothing(
        self, node: KernelNode, uplink: None, tmp_path: Path, program: str | None, reason: str
    ) -> None:
        """Missing, killed, or ended half-way with a clean exit: the check says at once that it
        failed itself.
        """
        tools, folder = tmp_path / "tools", tmp_path / "run"
        tools.mkdir()
        for tool in "rm", "mkdir", "bash", "head", "sed", "cat":
            (tools / tool).symlink_to(shutil.which(tool) or "")
        if program:
            another_ip(tools, program)
        for mode, status in ("WARN", 10), ("STRICT", 11):
            folder.mkdir(exist_ok=True)
            (folder / "route-overlap.ok").write_text("old\n")
            ran = run_script(
                node,
                folder,
                ["10.96.0.0/16"],
                mode=mode,
                environment={"PATH": str(tools)},
                waits=30,
            )
            assert ran.status == status
            assert list(ran.markers) == ["route-overlap.detected"]
            assert ran.markers["route-overlap.detected"].startswith(
                f"the check itself failed: {reason}"
            )
            assert ran.output.startswith(f"cannot prove anything: {reason}")

    def test_answers_cut_short_prove_nothing(
        self, node: KernelNode, uplink: None, tmp_path: Path
    ) -> None:
        """The tables were read in full, but not the answers: no marker of a good check."""
        environment = another_ip(
            tmp_path, f'[[ "$*" == *-force* ]] || exec {IP} "$@"; {IP} "$@" | head -n 1'
        )
        ran = run_script(
            node, tmp_path / "run", ["10.96.0.0/16", "10.0.0.0/24"], environment=environment
        )
        assert ran.status == 11
        assert list(ran.markers) == ["route-overlap.detected"]

    def test_without_cidrs_nothing_happens(self, node: KernelNode, tmp_path: Path) -> None:
        """The script of a config that expects nothing ends well at once, without marker, without
        ip.
        """
        ran = run_script(node, tmp_path / "run", [], environment={"PATH": "/nonexistent"}, waits=30)
        assert ran == (10, "", {})

    def test_now_is_one_look(self, node: KernelNode, tmp_path: Path) -> None:
        """With `now` there is no wait; verdict, marker and status are the same."""
        (tmp_path / "run").mkdir()
        at_once = run_script(node, tmp_path / "now", ["10.96.0.0/16"], waits=30, arguments=["now"])
        patient = run_script(node, tmp_path / "run", ["10.96.0.0/16"], waits=1)
        assert (patient.status, patient.markers.pop("waited")) == (11, "1\n")
        told = "waiting up to 1 s: table main has no IPv4 default route\n"
        assert patient == at_once._replace(output=told + at_once.output)

    def test_many_cidrs_among_many_routes(self, node: KernelNode, uplink: None) -> None:
        """More than 64 KB of questions, and no room for a temporary file; the one that leaves
        elsewhere is found.
        """
        cidrs = [f"11.{n >> 8}.{n & 255}.0/24" for n in range(2500)]
        lines = [
            f"route add {cidr} via 10.224.0.1 dev eth0\n" for cidr in cidrs if cidr != "11.7.7.0/24"
        ]
        lines.append("route add 11.7.7.128/25 dev ib0\n")
        argv = ["nsenter", f"--net=/run/netns/{node.name}", "ip", "-batch", "-"]
        subprocess.run(argv, input="".join(lines), text=True, check=True)
        # The program may lie there, so the folders keep their content.
        close = "mount --bind $folder $folder && mount -o remount,bind,ro $folder"
        full = f'for folder in /tmp /var/tmp /usr/tmp; do {close}; done 2>/dev/null; exec "$@"'
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            ran = run_script(
                node,
                Path(folder),
                cidrs[::-1],
                through=["unshare", "--mount", "sh", "-c", full, "sh"],
            )
        finding = (
            "11.7.7.0/24: overlap 11.7.7.128-11.7.7.255 by ib0 (11.7.7.128/25 dev ib0 scope link)\n"
        )
        assert (ran.status, ran.markers) == (11, {"route-overlap.detected": finding})

    @pytest.mark.parametrize(
        "variable", ["SHELLOPTS=errexit", "BASHOPTS=nocasematch", "BASH_FUNC_printf%%=() { :; }"]
    )
    def test_no_environment_changes_the_verdict(
        self, node: KernelNode, uplink: None, tmp_path: Path, variable: str
    ) -> None:
        """Options and functions for bash, from an operator's shell or systemd's
        DefaultEnvironment=, are not taken.
        """
        cidrs = ["172.16.8.0/22", "10.96.0.0/16"]
        script, markers = tmp_path / "check.sh", tmp_path / "run"
        for expected, verdict in ([cidrs[1]], "ok"), (cidrs, "detected"):
            section = {"routeOverlap": {"expectedCidrs": expected, "mode": "STRICT"}}
            text = render_script(HostRoutingConfig.from_mapping(section))
            script.write_bytes(text.replace(b"/run/aks-flex-node", bytes(markers)))
            script.chmod(0o755)
            argv = ["nsenter", f"--net=/run/netns/{node.name}", "env", variable, str(script), "now"]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert done.returncode == (10 if verdict == "ok" else 11), done.stderr
            assert [path.name for path in markers.iterdir()] == [f"route-overlap.{verdict}"]

    def test_in_the_journal_a_state_is_told_once(
        self, node: KernelNode, uplink: None, tmp_path: Path
    ) -> None:
        """In full when it changes, each line with its priority; a refusal that is as before has a
        line.
        """

        def said(mode: str = "STRICT", cidr: str = "172.16.8.0/22") -> list[str]:
            journal = {"JOURNAL_STREAM": "8:4711"}
            return run_script(
                node, tmp_path, [cidr], mode=mode, environment=journal
            ).output.splitlines()

        first = said()
        assert first[0] == "<3>1 of 1 expected CIDRs would not leave by eth0 as a whole:"
        assert len(first) == 4
        assert all(line.startswith("<3>") and "\\" not in line for line in first)
        [again] = said()
        assert re.fullmatch(r"<3>as before, since \d\d:\d\d: 172\.16\.8\.0/22: overlap .*", again)
        assert said(cidr="10.96.0.0/16") == ["<5>10.96.0.0/16 leaves by eth0"]
        assert said(cidr="10.96.0.0/16") == []
        assert {line[:3] for line in said(mode="WARN")} == {"<4>"}
