"""A recorded node has the proof of the live one: random worlds in the kernel, with announced
fabrics and rules.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.announced_fabrics import Announced, announcements
from support.examples import FEW
from support.fabric_files import write_files
from support.ipv6_worlds import IPv6World, arranged, ipv6_worlds, mixed_worlds
from support.kernel import kernel_of, needs_kernel
from support.node_worlds import World, announced_worlds
from support.overlap_proofs import told_alike
from support.patience import in_time

from hostrouting import Host, HostRoutingConfig
from hostrouting.boot import Intent
from hostrouting.fleet import NodeRecord, prove_record, take_record
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.offline import absent
from hostrouting.route_overlap.look import announced_fabric, prove_now
from hostrouting.testing import KernelNode

pytestmark = needs_kernel
#: In `nox -s soak` a thousand of both.
SLOW = settings(
    max_examples=min(FEW, 500),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def check(node: KernelNode, folder: Path, section: Mapping[str, object]) -> str:
    """Assert that the record of a node under a config has the findings of the live proof; return
    why it has none.
    """
    config = HostRoutingConfig.from_mapping({"routeOverlap": section})
    files = RootedFiles(str(folder))
    intent = Intent(config=config).file
    files.write(intent.path, intent.content, mode=intent.mode)
    host = Host(
        routes=kernel_of(node),
        files=files,
        services=absent("services"),
        lock=absent("lock"),
    )
    ctx = in_time()
    record = take_record(ctx, host)
    read = NodeRecord.parse(record.to_line())
    assert read == record
    assert read.config == config
    live = prove_now(config, announced_fabric(ctx, config.route_overlap.fabric, host), host)
    verdict = prove_record(read)
    if verdict.report is not None:
        assert told_alike(verdict.report.overlap.cidrs) == told_alike(live.cidrs)
    return verdict.undecided


@SLOW
@given(world=announced_worlds(rare=True), announced=announcements)
def test_ipv4(world: World, announced: Announced, tmp_path: Path) -> None:
    """Under rules of any kind, several tables and next hops, and a fabric that the agent or the
    config announces.
    """
    with KernelNode.made() as node:
        announced.prepare(node)
        world.arrange(node)
        write_files(tmp_path, announced.as_fabric(kernel_of(node)))
        section: dict[str, object] = {
            "expectedCidrs": world.cidrs,
            "allowedDevs": list(world.allowed),
        }
        if announced.networks:
            section["fabric"] = list(announced.networks)
        undecided = check(node, tmp_path, section)
        assert not undecided or "scope host" in undecided, undecided


def test_ipv6(tmp_path: Path) -> None:
    """Of IPv6, too, and of both; where the model cannot derive the kernel's choice of a source, it
    leaves it undecided.
    """
    decided: Counter[bool] = Counter()

    @SLOW
    @given(
        world=st.one_of(ipv6_worlds(unplugged=True), mixed_worlds()),
        expected=st.sampled_from([[], ["e0"]]),
    )
    def compare(world: IPv6World, expected: list[str]) -> None:
        with arranged(world) as node:
            section = {
                "expectedCidrs": world.cidrs,
                "allowedDevs": list(world.allowed),
                "expectedDevs": expected,
            }
            undecided = check(node, tmp_path, section)
            assert not undecided or "source" in undecided, undecided
            decided[not undecided] += 1

    compare()
    # A model whose answer is always "unknown" would agree with everything.
    assert decided[True] > decided[False], decided
