"""A GPU node in memory for ConfigureStaticRoutes, and an account of the changes of a run."""

from collections.abc import Callable

from support.kernel import connect

from hostrouting import HostRoutingConfig, StaticRoute, StaticRoutesConfig
from hostrouting.host import OUR_PROTOCOL
from hostrouting.testing import FakeHost, MemoryBackend
from hostrouting.testing.contracts.routes import arrange
from phases import Change, Context, Wait

CONFIG = HostRoutingConfig(
    static_routes=StaticRoutesConfig(
        enabled=True,
        routes=(
            StaticRoute(destination="172.16.1.0/24", gateway="10.224.0.1", dev="eth0"),
            StaticRoute(destination="172.16.8.0/22"),
            StaticRoute(destination="172.16.16.0/24"),
        ),
    )
)
WANTED = [
    "172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142",
    "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142",
    "172.16.16.0/24 via 10.224.0.1 dev eth0 proto 142",
]
NONE = HostRoutingConfig()
DROP_IN = "/etc/systemd/system/systemd-nspawn@.service.d/10-hostrouting.conf"


def made_host() -> FakeHost:
    """A GPU node: a default route, a fabric, and in our way a foreign route, upstream's, and our
    stale one.
    """
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
    arrange(
        node,
        "default via 10.224.0.1 dev eth0 proto dhcp",
        "172.16.8.0/22 via 10.224.0.9 dev eth0 proto static",
        "172.16.16.0/24 via 10.224.0.1 dev eth0",
        "172.20.0.0/16 via 10.224.0.1 dev eth0 proto 142 table 100",
    )
    return FakeHost(node)


def own_routes(host: FakeHost) -> list[str]:
    return [str(route) for route in host.routes.routes() if route.protocol == OUR_PROTOCOL]


def other_routes(host: FakeHost) -> list[str]:
    return [str(route) for route in host.routes.routes() if route.protocol != OUR_PROTOCOL]


def state(host: FakeHost) -> object:
    """All that a run can change."""
    return list(map(str, host.routes.routes())), host.files.tree.snapshot()


class Account:
    """Keeps the changes of a run, and their inverses."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.inverses: list[Callable[[Context], object]] = []

    def skips(self, _name: str) -> bool:
        return False

    def record(self, change: Change, undo: Callable[[Context], object] | None) -> None:
        assert undo is not None
        self.changes.append(str(change))
        self.inverses.append(undo)

    def result(self, value: object) -> None:
        raise AssertionError(f"routes have no result (got {value!r})")

    def degrade(self, reason: str) -> None:
        raise AssertionError(f"routes degrade nothing (got {reason!r})")

    def wait(self, wait: Wait) -> None:
        raise AssertionError(f"a repair does not wait (got {wait!r})")

    def undo(self) -> list[object]:
        """Run the inverses, and return their results."""
        return [inverse(Context()) for inverse in self.inverses]
