"""A GPU node in memory for ConfigureStaticRoutes, and an account of the changes of a run."""

import logging
from collections.abc import Sequence
from threading import Lock

from support.kernel import connect

from hostrouting import HostRoutingConfig, StaticRoute, StaticRoutesConfig
from hostrouting.base.conflicts import until_settled
from hostrouting.host import OUR_PROTOCOL, Host, Route
from hostrouting.static_routes.converge import make_changes
from hostrouting.static_routes.reconcile import Reconciliation, read, reconcile
from hostrouting.testing import FakeHost, MemoryBackend
from hostrouting.testing.contracts.routes import arrange
from phases import Context, Report, task
from phases.context import Work
from phases.step import Step

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


def other_routes(host: FakeHost) -> list[str]:
    return [str(route) for route in host.routes.routes() if route.protocol != OUR_PROTOCOL]


def converge(ctx: Context, desired: Sequence[Route], host: Host) -> None:
    """Make these the routes of hostrouting, as an apply does."""

    def plan() -> Reconciliation:
        return reconcile(desired, read(host.routes, desired))

    def make(outcome: Reconciliation, is_last: bool) -> None:
        make_changes(ctx, outcome, host, logging.getLogger("routes"), is_last=is_last)

    until_settled(plan(), lambda _: plan(), make)


class Account(Step):
    """The step of a run, with its changes and their inverses."""

    def __new__(cls) -> "Account":
        return super().__new__(cls, Report(task("routes")(print)), Lock(), records=[])

    @property
    def changes(self) -> list[str]:
        return [str(change) for change in self.report.changes]

    @property
    def inverses(self) -> list[Work]:
        return [record.undo for record in self.report.records if record.undo]

    def undo(self) -> list[object]:
        """Run the inverses, and return their results."""
        return [inverse(Context()) for inverse in self.inverses]
