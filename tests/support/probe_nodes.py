"""Fake nodes on which probes are rewritten, and the questions about them afterwards."""

from typing import Any

import pytest
from support.memory_links import add_address

from hostrouting import ConfigureProbeSNAT, HostRoutingConfig, ProbeSNATConfig
from hostrouting.host import IPV6
from hostrouting.net.routes import default_routes
from hostrouting.testing import FakeHost
from phases import Context

CONFIG = HostRoutingConfig(probe_snat=ProbeSNATConfig(enabled=True), gates=())
OFF = HostRoutingConfig(gates=())
#: The node's own.
ADDRESS = "2001:db8::4/64"
OWN_TABLE = ("ip6", "azureSLBProbe")
TABLE = "nft table ip6 azureSLBProbe"
#: Rules that upstream, or an operator, may have left there.
FOREIGN = "table ip6 azureSLBProbe {\nchain mine {\ntype filter hook input priority 0\ncounter accept\n}\n}\n"
#: As AgentBaker's images fill the table.
AGENTBAKERS = """\
table ip6 azureSLBProbe
flush table ip6 azureSLBProbe
table ip6 azureSLBProbe {
  chain prerouting {
    type filter hook prerouting priority -300;
    iifname "eth0" icmpv6 type { nd-neighbor-solicit, nd-router-advert, nd-neighbor-advert } counter accept
    iifname "eth0" ip6 saddr fe80::1234:5678:9abc ip6 saddr set 2603:1062:0:1:fe80:1234:5678:9abc counter
  }
  chain postrouting {
    type filter hook postrouting priority -300;
    oifname "eth0" ip6 daddr 2603:1062:0:1:fe80:1234:5678:9abc ip6 daddr set fe80::1234:5678:9abc counter
  }
}
"""
NEIGHBOUR = (
    "table ip6 foreign {\nchain foreign {\ntype filter hook forward priority 0\ndrop\n}\n}\n"
)


def config(**section: Any) -> HostRoutingConfig:
    """A config whose section is on."""
    return HostRoutingConfig(probe_snat=ProbeSNATConfig(enabled=True, **section), gates=())


def made_host(ruleset: str = NEIGHBOUR) -> FakeHost:
    """Return a node with two devices, whose IPv6 leaves through eth0, and with foreign packet rules."""
    host = FakeHost()
    for dev in "eth0", "eth1":
        host.routes.add_link(dev)
    add_address(host.link_layer, "eth0", ADDRESS)
    lead(host, "eth0")
    host.nftables.load(Context(), ruleset)
    for fake in host.nftables, host.link_layer:
        fake.operations.calls.clear()
    return host


def lead(host: FakeHost, *devs: str) -> None:
    """Let the IPv6 default routes lead by these devices, and by no others."""
    for route in default_routes(host.routes.routes(IPV6)):
        host.routes.delete_route(route)
    for dev in devs:
        host.routes.add_route("::/0", dev=dev)


def check(host: FakeHost, ctx: Context, settings: HostRoutingConfig = CONFIG) -> list[str]:
    """Return the findings of `check`."""
    return [str(finding) for finding in ConfigureProbeSNAT(settings, host=host).findings(ctx)]


def messages_at(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """Return the messages of the task at a level."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == level and hasattr(record, "task")
    ]


def apply(host: FakeHost, ctx: Context, settings: HostRoutingConfig = CONFIG) -> None:
    """Do the task."""
    ConfigureProbeSNAT(settings, host=host).do(ctx)


def planned(host: FakeHost, ctx: Context, settings: HostRoutingConfig = CONFIG) -> list[str]:
    """Return the plan of the task."""
    return [str(change) for change in ConfigureProbeSNAT(settings, host=host).plan(ctx)]
