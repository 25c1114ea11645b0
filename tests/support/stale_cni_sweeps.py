"""A fake node with leftovers of every sort, and cleanups of it."""

from support.memory_links import add_neighbour
from support.stale_cni_worlds import (
    NODE_RULES,
    arp_reply,
    config_of,
    context,
    dnat,
    node_of,
    state_of,
)

from hostrouting import CleanStaleCNI, Host, HostRoutingConfig
from hostrouting.azure.stale_cni.azure_vnet import STATE_PATH
from hostrouting.testing import FakeHost

DEAD, DEAD_MAC = "10.240.0.9", "aa:bb:cc:00:00:09"
DEAD6 = "fd00:10:240::9"
LIVE, LIVE_MAC = "10.240.0.10", "aa:bb:cc:00:00:10"
FOREIGN = "-A PREROUTING -p IPv4 -i eth1 -j mark --mark-set 0x1 --mark-target ACCEPT"
CONFLIST = "/etc/cni/net.d/10-azure.conflist"
FOLDER = "/var/lib/hostrouting/stale-cni"

LINES = (
    dnat(LIVE, LIVE_MAC),
    *NODE_RULES[1:],
    arp_reply(DEAD, DEAD_MAC),
    FOREIGN,
    dnat(DEAD, DEAD_MAC),
    arp_reply(LIVE, LIVE_MAC),
    dnat(DEAD6, DEAD_MAC),
)
#: The entries that a cleanup of the machine below removes, in the order of the plan.
STALE = [
    f"ebtables nft nat: {arp_reply(DEAD, DEAD_MAC)}",
    f"ebtables nft nat: {dnat(DEAD, DEAD_MAC)}",
    f"ebtables nft nat: {dnat(DEAD6, DEAD_MAC)}",
    f"ebtables legacy nat: {dnat(DEAD, DEAD_MAC)}",
    f"{DEAD} dev azure0 lladdr {DEAD_MAC} PERMANENT",
    f"{DEAD6} dev azure0 lladdr {DEAD_MAC} PERMANENT",
]


def made_host() -> FakeHost:
    """Return a node with a live pod on azv1, and a dead one in both backends and families."""
    host = FakeHost()
    host.files.tree.make_directory("/var/lib")
    node_of(host)
    record(host, {"azv1": [LIVE]}, LIVE_MAC)
    for line in LINES:
        host.ebtables.add(line)
    host.ebtables.add(dnat(DEAD, DEAD_MAC), backend="legacy")
    layer = host.link_layer
    add_neighbour(layer, LIVE, "azure0", LIVE_MAC)
    add_neighbour(layer, DEAD, "azure0", DEAD_MAC)
    add_neighbour(layer, DEAD6, "azure0", DEAD_MAC)
    add_neighbour(layer, "10.240.0.1", "azure0", "12:34:56:78:9a:bc", permanent=False)
    return host


def record(host: FakeHost, endpoints: dict[str, list[str]], mac: str) -> None:
    """Write azure-vnet's state; all pods have this hardware address."""
    host.files.tree.write(STATE_PATH, state_of(endpoints, mac), mode=0o600)


def sweep(host: Host, config: HostRoutingConfig | None = None) -> CleanStaleCNI:
    """Return the task for a host."""
    return CleanStaleCNI(config or config_of(), host=host)


def sweep_now(host: Host, config: HostRoutingConfig | None = None) -> None:
    """Clean a host up."""
    sweep(host, config).do(context())


def there(host: FakeHost) -> list[str]:
    """Return the entries on the node that a cleanup of `made_host` would remove."""
    rules = map(str, host.ebtables.read(context()).rules)
    entries = [*rules, *map(str, host.link_layer.neighbours())]
    return [entry for entry in STALE if entry in entries]
