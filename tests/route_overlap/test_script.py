"""The boot script and its unit: as files, and what the script says in the kernel."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from support.kernel import needs_kernel
from support.overlap_worlds import run_script

from hostrouting.config import DEFAULT_ALLOWED_DEVS, HostRoutingConfig
from hostrouting.route_overlap import render_script
from hostrouting.route_overlap.script import boot_unit, render_unit
from hostrouting.testing import KernelNode, strategies

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = Path(__file__).parent / "golden"
CONFIG = HostRoutingConfig.from_mapping(
    {
        "routeOverlap": {
            "expectedCidrs": ["172.16.0.0/16", "10.0.0.0/8", "169.254.169.254/32", "10.0.0.255/24"],
            "mode": "STRICT",
            "allowedDevs": ["mesh*", "veth[0-9]?"],
        }
    }
)


class TestFiles:
    def test_script(self) -> None:
        """The whole script, to the byte; rendered twice it is the same."""
        assert render_script(CONFIG) == (GOLDEN / "check-route-overlap.sh").read_bytes()
        assert render_script(CONFIG) == render_script(CONFIG)

    def test_unit(self) -> None:
        """The whole unit, to the byte."""
        assert render_unit() == (GOLDEN / "check-route-overlap.service").read_bytes()

    def test_where_they_go(self) -> None:
        """The script before the unit that names it, with the modes that they need."""
        unit = boot_unit(CONFIG)
        assert unit.name == "check-route-overlap.service"
        assert [(file.path, oct(file.mode)) for file in unit.files] == [
            ("/etc/aks-flex-node/check-route-overlap.sh", "0o755"),
            ("/etc/systemd/system/check-route-overlap.service", "0o644"),
        ]

    def test_shellcheck_has_nothing_to_say(self, tmp_path: Path) -> None:
        """The rendered script."""
        (tmp_path / "script.sh").write_bytes(render_script(CONFIG))
        subprocess.run(["shellcheck", tmp_path / "script.sh"], check=True)

    def test_systemd_has_nothing_to_say(self, tmp_path: Path) -> None:
        """`systemd-analyze verify` prints nothing, and the unit is exposed to 3.2 at most."""
        unit = tmp_path / "check-route-overlap.service"
        script = tmp_path / "check-route-overlap.sh"
        script.write_bytes(render_script(CONFIG))
        script.chmod(0o755)
        unit.write_bytes(render_unit().replace(b"/etc/aks-flex-node", str(tmp_path).encode()))
        verify = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", unit], check=True, capture_output=True, text=True
        )
        assert (verify.stdout, verify.stderr) == ("", "")
        security = ["systemd-analyze", "security", "--offline=true", "--threshold=32", "--no-pager", str(unit)]
        subprocess.run(security, check=True, capture_output=True)

    @settings(max_examples=50)
    @given(strategies.configs())
    def test_any_config_is_data_to_bash(self, config: HostRoutingConfig) -> None:
        """Whatever validates, bash reads it as the words that the config has, and runs nothing of it."""
        script = render_script(config)
        settings_only = script[script.index(b"mode=") : script.index(b"((${#cidrs[@]}))")]
        program = b'LC_ALL=C\nset -f\n%b\nprintf "%%s\\n" "$mode" "${cidrs[@]}" "${allowed[@]}"\n' % settings_only
        done = subprocess.run(["bash", "-r"], input=program, capture_output=True, check=True, env={})
        section = config.route_overlap
        patterns = dict.fromkeys((*DEFAULT_ALLOWED_DEVS, *section.allowed_devs))
        assert done.stdout.decode().splitlines() == [section.mode, *section.expected_cidrs, *patterns]
        assert done.stderr == b""


@needs_kernel
@pytest.mark.kernel
class TestRunning:
    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        with KernelNode.made() as node:
            node.add_link("eth0")
            node.add_address("eth0", "10.224.0.4/16")
            node.add_link("ib0")
            node.add_address("ib0", "172.16.1.4/16")
            yield node

    @pytest.fixture
    def uplink(self, node: KernelNode) -> None:
        node.add_route("default", gateway="10.224.0.1", dev="eth0", protocol=16)

    def test_all_is_well(self, node: KernelNode, uplink: None, tmp_path: Path) -> None:
        """One line for the journal, the same in the marker; the marker of a bad check goes."""
        (tmp_path / "route-overlap.detected").write_text("old\n")
        ran = run_script(node, tmp_path, ["10.96.0.0/16", "10.0.0.0/24"])
        verdict = "10.96.0.0/16, 10.0.0.0/24 leave by eth0\n"
        assert ran == (0, verdict, {"route-overlap.ok": verdict})

    @pytest.mark.parametrize(("mode", "status"), [("WARN", 0), ("STRICT", 1)])
    def test_an_overlap(self, node: KernelNode, uplink: None, tmp_path: Path, mode: str, status: int) -> None:
        """The journal alone says what is wrong, which route decides, and what to paste; the mode decides the status."""
        ran = run_script(node, tmp_path, ["172.16.8.0/22", "10.96.0.0/16"], mode=mode)
        finding = (
            "172.16.8.0/22: overlap 172.16.8.0-172.16.11.255 by ib0 "
            "(172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4)\n"
        )
        assert ran.status == status
        assert ran.markers == {"route-overlap.detected": finding}
        strict = "The mode is STRICT: what waits for hostrouting-ready.service starts once routing is right.\n"
        route = '{"destination": "172.16.8.0/22", "gateway": "10.224.0.1", "dev": "eth0"}'
        assert ran.output == (
            "1 of 2 expected CIDRs would not leave by eth0 as a whole:\n"
            f"  {finding}"
            "To mend it, add these routes to hostRouting in the agent's config, and apply it again:\n"
            f'  "staticRoutes": {{"enabled": true, "routes": [{route}]}}\n'
            "Only a CIDR that the cluster alone uses is safe: "
            "a route takes its addresses from whom they belong to now.\n"
            "If these interfaces are meant to carry the addresses, allow them instead:\n"
            '  "routeOverlap": {"allowedDevs": ["ib0"]}\n' + (strict if mode == "STRICT" else "")
        )

    @pytest.mark.parametrize(("mode", "status"), [("WARN", 0), ("STRICT", 1)])
    def test_no_default_route(self, node: KernelNode, tmp_path: Path, mode: str, status: int) -> None:
        """A finding for every CIDR, after the wait."""
        ran = run_script(node, tmp_path, ["172.16.8.0/22"], mode=mode)
        assert ran.status == status
        assert ran.markers == {"route-overlap.detected": "172.16.8.0/22: no-route 172.16.8.0-172.16.11.255\n"}
        assert ran.output.startswith("the node has no IPv4 default route, so nothing leads to 172.16.8.0/22")

    def test_the_blocking_route_is_named(self, node: KernelNode, uplink: None, tmp_path: Path) -> None:
        """The kernel answers with an errno alone; the script finds the route."""
        node.add_route("10.96.0.0/24", kind="prohibit")
        ran = run_script(node, tmp_path, ["10.96.0.0/16"])
        line = "10.96.0.0/16: blocked 10.96.0.0-10.96.0.255 (prohibit 10.96.0.0/24)\n"
        assert ran.markers == {"route-overlap.detected": line}

    def test_rules_on_marks_are_named(self, node: KernelNode, uplink: None, tmp_path: Path) -> None:
        """They are no finding; the journal says that the proof does not cover them."""
        node.ip("rule", "add", "fwmark", "5", "lookup", "88", "priority", "50")
        ran = run_script(node, tmp_path, ["10.96.0.0/16"])
        assert ran.status == 0
        assert ran.output.splitlines()[1] == (
            "not covered by this proof, as it selects by more than addresses: rule 50: from all fwmark 0x5 lookup 88"
        )
