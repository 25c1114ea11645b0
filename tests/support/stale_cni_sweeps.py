"""A fake node with leftovers of every sort, and sweeps of it."""

from collections.abc import Callable

import pytest
from support.memory_links import add_neighbour, learn
from support.stale_cni_worlds import NODE_RULES, arp_reply, config_of, context, dnat, node_of

from hostrouting import CleanStaleCNI, Host, HostRoutingConfig
from hostrouting.exceptions import HostRoutingError, StaleCNIError
from hostrouting.testing import FakeHost
from phases import Change, Context, run, task

DEAD, DEAD_MAC = "10.240.0.9", "aa:bb:cc:00:00:09"
DEAD6 = "fd00:10:240::9"
LIVE, LIVE_MAC = "10.240.0.10", "aa:bb:cc:00:00:10"
FOREIGN = "-A PREROUTING -p IPv4 -i eth1 -j mark --mark-set 0x1 --mark-target ACCEPT"
CONFLIST = "/etc/cni/net.d/10-azure.conflist"
FOLDER = "/var/lib/hostrouting/stale-cni"
#: The record of the first sweep.
RECORD = f"{FOLDER}/sweep-20260101T000001Z-1.json"

LINES = (
    dnat(LIVE, LIVE_MAC),
    *NODE_RULES[1:],
    arp_reply(DEAD, DEAD_MAC),
    FOREIGN,
    dnat(DEAD, DEAD_MAC),
    arp_reply(LIVE, LIVE_MAC),
    dnat(DEAD6, DEAD_MAC),
)
#: The objects that a sweep of the machine below removes, in the order of the plan.
STALE = [
    f"ebtables nft nat: {arp_reply(DEAD, DEAD_MAC)}",
    f"ebtables nft nat: {dnat(DEAD, DEAD_MAC)}",
    f"ebtables nft nat: {dnat(DEAD6, DEAD_MAC)}",
    f"ebtables legacy nat: {dnat(DEAD, DEAD_MAC)}",
    f"{DEAD} dev azure0 lladdr {DEAD_MAC} PERMANENT",
    f"{DEAD6} dev azure0 lladdr {DEAD_MAC} PERMANENT",
    "10.240.0.11 dev azv1 scope link",
    "fd00:10:240::11 dev azv1 metric 1024",
]


def made_host() -> FakeHost:
    """Return a node with a live pod, a dead one in both backends and families, and dead transparent
    mode's routes.
    """
    host = FakeHost()
    host.files.tree.make_directory("/var/lib")
    node_of(host)
    for line in LINES:
        host.ebtables.add(line)
    host.ebtables.add(dnat(DEAD, DEAD_MAC), backend="legacy")
    layer = host.link_layer
    learn(layer, LIVE_MAC, "azv1")
    add_neighbour(layer, LIVE, "azure0", LIVE_MAC)
    add_neighbour(layer, DEAD, "azure0", DEAD_MAC)
    add_neighbour(layer, DEAD6, "azure0", DEAD_MAC)
    add_neighbour(layer, "10.240.0.1", "azure0", "12:34:56:78:9a:bc", permanent=False)
    host.routes.add_route("10.240.0.11/32", dev="azv1")
    # Each device may have its own IPv6 route to a destination.
    host.routes.add_route("fd00:10:240::11/128", dev="eth0")
    host.routes.add_route("fd00:10:240::11/128", dev="azv1")
    return host


def sweep(host: Host, config: HostRoutingConfig | None = None) -> CleanStaleCNI:
    """Return the task for a host."""
    return CleanStaleCNI(config or config_of(), host=host)


def sweep_now(host: Host, config: HostRoutingConfig | None = None) -> None:
    """Sweep a host."""
    sweep(host, config).do(context())


def undo_now(host: Host, config: HostRoutingConfig | None = None) -> None:
    """Undo the sweeps of a host."""
    sweep(host, config).undo(context())


def planned(host: Host, config: HostRoutingConfig | None = None) -> list[Change]:
    """Return the plan of a sweep."""
    return sweep(host, config).plan(context())


def there(host: FakeHost) -> list[str]:
    """Return the objects on the node that a sweep would remove."""
    return [change.subject for change in planned(host)]


def refused(act: Callable[[], object], kind: type[HostRoutingError] = StaleCNIError) -> str:
    """Return the message of the error that `act` raises."""
    with pytest.raises(kind) as caught:
        act()
    return str(caught.value)


def refusal(
    host: Host,
    config: HostRoutingConfig | None = None,
    *,
    kind: type[HostRoutingError] = StaleCNIError,
) -> str:
    """Return the message of the error that a sweep of the host raises."""
    return refused(lambda: sweep_now(host, config), kind)


def done_by(act: Callable[[Context], None]) -> list[Change]:
    """Return the changes that a `do` or an `undo` records in a run, also if it fails."""
    return list(run(task("act")(act), context()).changes)
