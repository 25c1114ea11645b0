"""The task on a node whose nft lists each chain followed by its rules, as those before 1.0.6 do."""

import logging
from collections.abc import Iterator

import attrs
import pytest
from support import nft_chain_by_chain
from support.needs import needs
from support.probe_nodes import messages_at
from support.probe_worlds import ProbeWorld

from hostrouting import ConfigureProbeSNAT, Host, HostRoutingConfig, ProbeSNATConfig
from hostrouting.host.packets.nft import NftCommand
from phases import Context

CONFIG = HostRoutingConfig(probe_snat=ProbeSNATConfig(enabled=True, detect="always"), gates=())


@pytest.fixture
def host() -> Iterator[Host]:
    with ProbeWorld.made() as world:
        old = NftCommand(("ip", "netns", "exec", world.node.name, *nft_chain_by_chain.COMMAND))
        yield attrs.evolve(world.host, nftables=old)


@needs("kernel", "nft")
def test_loaded_rules_are_in_place(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    """Rules that an old nft lists in another order are in place: a second run changes nothing, and
    a check finds nothing.
    """
    caplog.set_level(logging.DEBUG)
    task = ConfigureProbeSNAT(CONFIG, host=host)
    task.do(Context(timeout=60))
    assert messages_at(caplog, logging.WARNING) == []
    caplog.clear()
    task.do(Context(timeout=60))
    assert "nft table ip6 azureSLBProbe is in place" in messages_at(caplog, logging.DEBUG)
    assert task.plan(Context(timeout=60)) == []
    assert ConfigureProbeSNAT(CONFIG, host=host).findings(Context(timeout=60)) == []
