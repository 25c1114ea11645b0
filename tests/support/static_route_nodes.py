"""A GPU node in memory for ConfigureStaticRoutes."""

from support.static_route_worlds import config_of

from hostrouting.config import HostRoutingConfig, StaticRoute
from hostrouting.host import OUR_PROTOCOL
from hostrouting.testing import FakeHost, MemoryBackend

CONFIG = config_of(
    [
        StaticRoute(destination="172.16.1.0/24", gateway="10.224.0.1", dev="eth0"),
        StaticRoute(destination="172.16.8.0/22"),
        StaticRoute(destination="172.16.16.0/24"),
    ]
)
WANTED = [
    "172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142",
    "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142",
    "172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142",
]
NONE = HostRoutingConfig()
DROP_IN = "/etc/systemd/system/systemd-nspawn@.service.d/10-hostrouting.conf"


def made_host() -> FakeHost:
    """A GPU node: a default route, a fabric, and in our way a foreign route, upstream's, and our stale one."""
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    node.add_route("default", gateway="10.224.0.1", dev="eth0", protocol=16)
    node.add_link("ib0")
    node.add_address("ib0", "172.16.1.4/16")
    node.add_route("172.16.8.0/22", gateway="10.224.0.9", dev="eth0", protocol=4)
    node.add_route("172.16.16.0/24", gateway="10.224.0.1", dev="eth0")
    node.add_route("172.20.0.0/16", gateway="10.224.0.1", dev="eth0", protocol=OUR_PROTOCOL, table=100)
    return FakeHost(node)


def ours(host: FakeHost) -> list[str]:
    return [str(route) for route in host.routes.routes() if route.protocol == OUR_PROTOCOL]


def others(host: FakeHost) -> list[str]:
    return [str(route) for route in host.routes.routes() if route.protocol != OUR_PROTOCOL]


def state(host: FakeHost) -> object:
    """All that a run can change."""
    return list(map(str, host.routes.routes())), host.files.tree.snapshot()
