"""The boot script and its unit: their files, and the behaviour of the script in the kernel."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.boot_units import assert_systemd_accepts
from support.counted_ip import IP, another_ip, counted_ip, take_counts
from support.filled import asset, changes
from support.kernel import connect, needs_kernel
from support.needs import needs
from support.overlap_answers import ScriptRun, proven_at, run_script
from support.printed import UNPROVEN, leaves

from hostrouting.boot.layout import units_in
from hostrouting.boot.steps import IDLE
from hostrouting.config.sections import DEFAULT_ALLOWED_DEVS, HostRoutingConfig
from hostrouting.route_overlap.script import boot_part, config_in, render_script
from hostrouting.testing import KernelNode

FINE = leaves("10.96.0.0/16", "eth0")


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
            "expectedDevs": ["eth0", "10.224.0.0/16"],
        }
    }
)
[UNIT] = units_in([boot_part(CONFIG)])


class TestFiles:
    @pytest.mark.parametrize(
        "script",
        [
            IDLE,
            render_script(CONFIG).replace(b"given=(", b"taken=("),
            render_script(CONFIG).replace(b"mode=STRICT", b"mode=\xff"),
            render_script(CONFIG).replace(b"[4]='10.255.255.254/8", b"[4]='10.0.0.0/99"),
        ],
        ids=["idle", "another form", "no mode", "no network"],
    )
    def test_another_script_has_none(self, script: bytes) -> None:
        """A script that is not configured, of another version, or damaged has no config to read."""
        assert config_in(script) is None

    def test_script(self) -> None:
        """The script is its asset with the values of the config filled in."""
        plain = asset("route_overlap/check-route-overlap.sh", COMMON="boot/common.sh")
        cidrs = "172.16.0.0/16, 10.0.0.0/8, 169.254.169.254/32, 10.0.0.0/24"
        roots = "10.0.0.0/8 169.254.169.254/32 172.16.0.0/16"
        points = "10.255.255.254/8 10.0.0.254/24 169.254.169.254/32 172.16.255.254/16"
        patterns = "|".join((*DEFAULT_ALLOWED_DEVS, "mesh*", "veth[0-9]?"))
        assert changes(plain, render_script(CONFIG)) == [
            *("-mode=@MODE@", "+mode=STRICT"),
            "-declare -A roots=([4]='@ROOTS4@' [6]='@ROOTS6@')",
            "-declare -A points=([4]='@POINTS4@' [6]='@POINTS6@')",
            f"+declare -A roots=([4]='{roots}' [6]='')",
            f"+declare -A points=([4]='{points}' [6]='')",
            *("-firsts=(@FIRSTS@)", "-lasts=(@LASTS@)"),
            "+firsts=(167772160 167772160 2852039166 2886729728)",
            "+lasts=(184549375 167772415 2852039166 2886795263)",
            *("-verdict='@VERDICT@'", f"+verdict='{cidrs} leave by'"),
            *("-given=(@DEVICES@)", "+given=('eth0' '10.224.0.0/16')"),
            *("-allowed='@ALLOWED@'", f"+allowed='{patterns}'"),
            *("-fabric=@FABRIC@", "+fabric=auto", "-beyond=@BEYOND@", "+beyond="),
        ]
        # The kernel treats multicast and broadcast addresses specially: they are looked up, too.
        wide = render_script(with_fabric("off", "192.0.0.0/2"))
        assert b"points=([4]='223.255.255.254/2 224.0.0.0/2 240.0.0.0/2 255.255.255.255/2'" in wide

    def test_where_they_go(self) -> None:
        """The files are the script and the unit that names it, with their modes; the unit runs
        after the static routes.
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
    def test_shellcheck_finds_nothing(
        self, tmp_path: Path, fabric: object, cidrs: list[str]
    ) -> None:
        """ShellCheck finds nothing in the rendered script, whatever the families and the fabric
        are.
        """
        (tmp_path / "script.sh").write_bytes(render_script(with_fabric(fabric, *cidrs)))
        subprocess.run(["shellcheck", tmp_path / "script.sh"], check=True)

    def test_every_function_is_called(self) -> None:
        """Every function of the script is called."""
        text = render_script(CONFIG).decode()
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        names = re.findall(r"^(\w+)\(\) \{", code, flags=re.MULTILINE)
        assert "prove" in names
        # Bash calls one.
        names.remove("command_not_found_handle")
        assert [name for name in names if len(re.findall(rf"\b{name}\b", code)) < 2] == []

    @needs("systemd-analyze")
    def test_systemd_verifies_them(self, tmp_path: Path) -> None:
        """`systemd-analyze verify` prints nothing for the unit, whose exposure is 3.2 at most."""
        assert_systemd_accepts(UNIT, tmp_path)


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

    @pytest.mark.slow
    def test_what_grows_with_the_cidrs(self, node: KernelNode, tmp_path: Path) -> None:
        """Each further CIDR costs the script two commands of `ip` and four lines of answers, and no
        further process.
        """
        counts = []
        for size in 100, 1_000:
            cidrs = [f"11.{n >> 14}.{n >> 6 & 255}.{(n & 63) << 2}/30" for n in range(size)]
            lines = "".join(f"route add {cidr} via 10.224.0.1 dev eth0\n" for cidr in cidrs)
            argv = ["nsenter", f"--net=/run/netns/{node.name}", "ip", "-force", "-batch", "-"]
            subprocess.run(argv, input=lines, text=True, capture_output=True, check=False)
            options = {"expectedDevs": ["eth0"]}
            counted = counted_ip(tmp_path)
            ran = run_script(node, tmp_path, cidrs, options=options, environment=counted)
            assert ran.status == 10
            counts.append(take_counts(tmp_path))
        # For each of 900 CIDRs more: two commands, and four lines of answers.
        few, many = counts
        assert many == (few.processes, few.commands + 1_800, few.lines + 3_600)

    @pytest.mark.parametrize(
        ("program", "detail"),
        [
            (None, ""),
            ("head -n 2 | sed 's/.*/default via 10.224.0.1 dev eth0 /'; kill -9 $$", "default"),
            ("cat >/dev/null; echo 'default via 10.224.0.1 dev eth0 '; exit 0", "default"),
        ],
    )
    def test_half_a_reading_proves_nothing(
        self, node: KernelNode, uplink: None, tmp_path: Path, program: str | None, detail: str
    ) -> None:
        """An `ip` that is missing, killed, or ends half-way with status 0 proves nothing, and the
        script leaves no marker.
        """
        tools = tmp_path / "tools"
        folder = tmp_path / "run"
        tools.mkdir()
        for tool in "rm", "mkdir", "bash", "head", "sed", "cat":
            (tools / tool).symlink_to(shutil.which(tool) or "")
        if program:
            another_ip(tools, program)
        for mode, status in ("WARN", 10), ("STRICT", 12):
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
            assert ran.markers == {}
            assert ran.output.startswith(f"{UNPROVEN}ip ({detail}")

    @pytest.mark.parametrize("zone", ["JST-9", "EST5", ""])
    def test_the_time_of_the_proof(
        self, node: KernelNode, uplink: None, tmp_path: Path, zone: str
    ) -> None:
        """The marker has the time of the proof below the verdict, in UTC and to the second,
        whatever the zone of the node.
        """
        before = datetime.now(timezone.utc).replace(microsecond=0)
        run_script(node, tmp_path / "run", ["10.96.0.0/16"], environment={"TZ": zone})
        marker = (tmp_path / "run/route-overlap.ok").read_text()
        assert marker.startswith(f"{FINE}\nproven ")
        assert before <= proven_at(marker) <= datetime.now(timezone.utc)

    def test_answers_cut_short_prove_nothing(
        self, node: KernelNode, uplink: None, tmp_path: Path
    ) -> None:
        """Answers of `ip` without the last one prove nothing."""
        environment = another_ip(tmp_path, f'{IP} "$@" 2>&1 | head -n -3')
        ran = run_script(
            node, tmp_path / "run", ["10.96.0.0/16", "10.0.0.0/24"], environment=environment
        )
        assert not ran.is_plain
        assert ran.markers == {}

    def test_many_cidrs_among_many_routes(self, node: KernelNode, uplink: None) -> None:
        """A wrong route among 2,500 CIDRs, more than 64 KB of lookups, is found without room for a
        temporary file.
        """
        cidrs = [f"11.{n >> 8}.{n & 255}.0/24" for n in range(2500)]
        right = [cidr for cidr in cidrs if cidr != "11.7.7.0/24"]
        lines = [f"route add {cidr} via 10.224.0.1 dev eth0\n" for cidr in right]
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
        assert ran.output.startswith(f"{UNPROVEN}device (ib0);")
        node.ip("route del 11.7.7.128/25")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            ran = run_script(node, Path(folder), cidrs)
        assert ran.is_plain, ran.output[:1000]

    @pytest.mark.parametrize(
        "variable", ["SHELLOPTS=errexit", "BASHOPTS=nocasematch", "BASH_FUNC_printf%%=() { :; }"]
    )
    def test_no_environment_changes_the_verdict(
        self, node: KernelNode, uplink: None, tmp_path: Path, variable: str
    ) -> None:
        """Options and functions of bash in the environment, as of an operator's shell, do not
        change the verdict.
        """
        script = tmp_path / "check.sh"
        markers = tmp_path / "run"
        for expected, status, names in (
            (["10.96.0.0/16"], 10, ["route-overlap.ok"]),
            (["172.16.8.0/22", "10.96.0.0/16"], 12, []),
        ):
            section = {"routeOverlap": {"expectedCidrs": expected, "mode": "STRICT"}}
            text = render_script(HostRoutingConfig.from_mapping(section))
            text = text.replace(b"python=/usr/bin/python3", b"python=/nonexistent")
            script.write_bytes(text.replace(b"/run/aks-flex-node", bytes(markers)))
            script.chmod(0o755)
            argv = ["nsenter", f"--net=/run/netns/{node.name}", "env", variable, str(script), "now"]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert done.returncode == status, done.stderr
            assert [path.name for path in markers.iterdir()] == names

    def test_in_the_journal_a_state_is_logged_once(
        self, node: KernelNode, uplink: None, tmp_path: Path
    ) -> None:
        """The journal gets each verdict once, in full and with its priority; a refusal that stays
        has one short line.
        """

        def logged(mode: str = "STRICT", cidr: str = "172.16.8.0/22") -> list[str]:
            journal = {"JOURNAL_STREAM": "8:4711"}
            ran = run_script(node, tmp_path, [cidr], mode=mode, environment=journal)
            return ran.output.splitlines()

        [first] = logged()
        assert first.startswith(f"<3>{UNPROVEN}device (ib0); ")
        [again] = logged()
        assert re.fullmatch(rf"<3>as before, since \d\d:\d\d: {UNPROVEN}.*", again)
        assert logged(cidr="10.96.0.0/16") == [f"<5>{FINE}"]
        assert logged(cidr="10.96.0.0/16") == []
        [warning] = logged(mode="WARN")
        assert warning.startswith(f"<4>{UNPROVEN}device (ib0); ")
        assert logged(mode="WARN") == []

    def test_values_precede_the_message_for_a_gate(
        self, node: KernelNode, uplink: None, tmp_path: Path
    ) -> None:
        """The message for a gate is preceded by the time since when the fact stands, which is empty
        for news, and by the fact; a person gets the fact alone.
        """

        def logged(words: str, **environment: str) -> list[str]:
            cidrs = ["172.16.8.0/22"]
            ran = run_script(
                node, tmp_path, cidrs, arguments=words.split(), environment=environment
            )
            return ran.output.rstrip("\n").split("\36")

        [fact] = logged("now")
        assert fact.startswith(f"{UNPROVEN}device (ib0); ")
        assert logged("now ask") == ["", "", fact, fact]
        assert logged("now ask", JOURNAL_STREAM="8:4711") == ["", "", fact, f"<3>{fact}"]
        before, since, again, line = logged("now ask", JOURNAL_STREAM="8:4711")
        assert before == ""
        assert again == fact
        assert line == f"<3>as before, since {since}: {fact}"
        assert re.fullmatch(r"\d\d:\d\d", since)


@needs_kernel
class TestProgram:
    """The script and the program's answer, for nodes about which the script leaves the answer to
    the program.
    """

    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        """A node without routes."""
        with KernelNode.made() as node:
            connect(node, eth0="10.224.0.4/16")
            yield node

    @pytest.fixture
    def program(self, tmp_path: Path) -> Path:
        """A program that writes its arguments, prints `words`, and ends with the status in `status`."""
        path = tmp_path / "program"
        path.write_text(
            f"#!{shutil.which('bash')}\ncd {tmp_path}\necho $* >> arguments\ncat words\nexit $(<status)\n"
        )
        path.chmod(0o755)
        (tmp_path / "words").write_text("")
        return path

    @staticmethod
    def run(node: KernelNode, program: Path, status: int, **options: object) -> ScriptRun:
        """Run the script, where the program ends with a status."""
        program.with_name("status").write_text(str(status))
        program.with_name("arguments").unlink(missing_ok=True)
        folder = program.with_name("run")
        folder.mkdir(exist_ok=True)
        return run_script(
            node,
            folder,
            ["10.96.0.0/16"],
            program=program,
            second=0.01,
            **options,  # type: ignore[arg-type]
        )

    @pytest.mark.parametrize(
        ("mode", "status", "end"),
        [("STRICT", 10, 10), ("STRICT", 11, 11), ("WARN", 10, 10), ("WARN", 11, 10)],
    )
    def test_its_answer(
        self, node: KernelNode, program: Path, mode: str, status: int, end: int
    ) -> None:
        """The script prints the program's output, leaves its files alone, and maps the status by
        the mode.
        """
        program.with_name("words").write_text("<3>a verdict\n<3>of two lines\n")
        ran = self.run(node, program, status, mode=mode)
        assert ran == (end, "<3>a verdict\n<3>of two lines\n", {})
        assert program.with_name("arguments").read_text() == "check ip\n"

    @pytest.mark.parametrize("status", [0, 1, 2, 13, 14, 127, 139, 255])
    @pytest.mark.parametrize(("mode", "end"), [("WARN", 10), ("STRICT", 12)])
    def test_no_answer(
        self, node: KernelNode, program: Path, mode: str, end: int, status: int
    ) -> None:
        """Any other status of the program, and 14 where the script does not wait, proves nothing,
        and no marker stays.
        """
        folder = program.with_name("run")
        folder.mkdir()
        for name in "route-overlap.ok", "route-overlap.detected":
            (folder / name).write_text("old\n")
        ran = self.run(node, program, status, mode=mode)
        assert ran.status == end
        assert ran.markers == {}
        assert ran.output == (
            f"{UNPROVEN}ip (RTNETLINK answers: Network is unreachable); "
            f"{program} ended with {status}; run: "
            "hostrouting apply /etc/aks-flex-node/hostrouting.json\n"
        )

    @pytest.mark.slow
    def test_it_hangs(self, node: KernelNode, program: Path) -> None:
        """A program that hangs and ignores signals ends with the script, which logs that and does
        not call it again.
        """
        program.write_text(f"#!{shutil.which('bash')}\ntrap '' TERM\nread <> <(:)\n")
        ran = self.run(node, program, 0, waits=30)
        assert ran.status == 12
        assert ran.markers == {}
        assert f"; {program} has not answered after 10 s; run: hostrouting apply" in ran.output

    def test_the_interpreter_complains(self, node: KernelNode, program: Path) -> None:
        """The last of several lines about a damaged program is in the verdict for the journal."""
        program.write_text(
            f"#!{shutil.which('bash')}\necho 'File x, line 1' >&2\necho 'no zip' >&2\nexit 1\n"
        )
        ran = self.run(node, program, 1, through=("env", "JOURNAL_STREAM=8:4711"))
        assert ran.output.startswith(f"<3>{UNPROVEN}ip (")
        assert f"; {program} ended with 1 (no zip); run: hostrouting apply" in ran.output
        assert "line 1" not in ran.output

    def test_a_second_may_help(self, node: KernelNode, program: Path) -> None:
        """The script waits while the program answers "wait", and calls it once more after the wait."""
        program.with_name("words").write_text("a reason")
        ran = self.run(node, program, 14, waits=2)
        *waiting, last = program.with_name("arguments").read_text().splitlines()
        assert {*waiting} == {"check ip wait"}
        assert last == "check ip"
        assert ran.status == 12
        assert ran.output.startswith(f"waiting up to 2 s: a reason\n{UNPROVEN}ip (")
        assert [*ran.markers] == ["waited"]

    def test_right_meanwhile(self, node: KernelNode, program: Path) -> None:
        """A node that gets its route while the program runs is right at the script's next look."""
        route = f"{IP} route add default via 10.224.0.1 dev eth0"
        for status in 14, 1:
            program.with_name("words").write_text("a reason")
            path = program.with_name("meanwhile")
            path.write_text(f"#!{shutil.which('bash')}\n{route} || true\nexit {status}\n")
            path.chmod(0o755)
            ran = self.run(node, path, 0, waits=2)
            assert ran.status == 10
            assert ran.markers["route-overlap.ok"] == f"{FINE}\n"
            node.ip("route del default")
            shutil.rmtree(program.with_name("run"))

    def test_the_interpreter(self, node: KernelNode, tmp_path: Path) -> None:
        """The program runs with the interpreter of its first line, or with the usual one if that is
        gone.

        The program is opened in its generation, whichever one an apply puts in force meanwhile.
        """
        usual = tmp_path / "usual"
        named = tmp_path / "named"
        for path, status in (usual, 11), (named, 10):
            path.write_text(f"#!{shutil.which('bash')}\necho $*\nexit {status}\n")
            path.chmod(0o755)
        zipped = tmp_path / "hostrouting.zip"
        zipped.symlink_to("hostrouting/hostrouting.zip")
        (tmp_path / "hostrouting").symlink_to("hostrouting-1f2e3d4c")
        (tmp_path / "hostrouting-1f2e3d4c").mkdir()
        script = render_script(
            HostRoutingConfig.from_mapping(
                {"routeOverlap": {"expectedCidrs": ["10.96.0.0/16"], "mode": "STRICT"}}
            )
        )
        for place, value in {
            "/run/aks-flex-node": tmp_path / "run",
            "/etc/aks-flex-node/hostrouting.zip": zipped,
            "/usr/bin/python3": usual,
        }.items():
            script = script.replace(place.encode(), bytes(value))
        (tmp_path / "script").write_bytes(script)
        argv = [
            "nsenter",
            f"--net=/run/netns/{node.name}",
            "bash",
            "-p",
            str(tmp_path / "script"),
            "now",
        ]
        for line, status in (f"#!{named} -IS\n", 10), ("#!/nonexistent -IS\n", 11), ("", 11):
            zipped.write_bytes(line.encode() + b"PK\3\4\n")
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert done.returncode == status
            opened = f"{tmp_path}/hostrouting-1f2e3d4c/hostrouting.zip"
            assert done.stdout == f"-I -S {opened} check ip\n"

    @pytest.mark.parametrize("step", [397, pytest.param(7, marks=pytest.mark.soak)])
    def test_a_script_that_is_cut_anywhere(
        self, node: KernelNode, program: Path, tmp_path: Path, step: int
    ) -> None:
        """A script that is cut anywhere never ends with 10 on a wrong node under STRICT, and leaves
        no marker of a right one.
        """
        connect(node, ib0="10.96.1.4/16")
        program.with_name("status").write_text("11")
        section = {"expectedCidrs": ["10.96.0.0/16"], "expectedDevs": ["eth0"], "mode": "STRICT"}
        script = render_script(HostRoutingConfig.from_mapping({"routeOverlap": section}))
        for place, value in {
            "/run/aks-flex-node": tmp_path / "run",
            "/etc/aks-flex-node/hostrouting.zip": program,
            '"$python" -I -S "$file"': '"$program"',
        }.items():
            script = script.replace(place.encode(), str(value).encode())
        path = tmp_path / "script"
        argv = ["nsenter", f"--net=/run/netns/{node.name}", "bash", "-p", str(path), "now"]
        statuses = set()
        for end in (*range(0, len(script), step), *range(len(script) - 40, len(script) + 1)):
            path.write_bytes(script[:end])
            done = subprocess.run(argv, capture_output=True, check=False)
            statuses.add(done.returncode)
            assert not (tmp_path / "run/route-overlap.ok").exists()
        assert 10 not in statuses
        assert 11 in statuses
