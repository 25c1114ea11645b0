"""The promises of every port as tests, for the fakes, for our adapters and for yours. Needs the extra `testing`.

Derive a class from a contract and override its fixtures:

    import pytest
    from hostrouting.host.netlink import NetlinkBackend
    from hostrouting.testing import KernelNode
    from hostrouting.testing.contracts import RouteBackendContract

    class TestMyBackend(RouteBackendContract):
        @pytest.fixture
        def node(self):  # the tests arrange it, see `hostrouting.testing.Node`
            with KernelNode.made() as node:
                yield node

        @pytest.fixture
        def backend(self, node):  # the tests ask it
            return NetlinkBackend(netns=node.name)

    RouteBackendContract           IPv4 routing
    FileStoreContract              files; override its helpers, too
    ServiceManagerContract         units: their links and their state
    LiveServiceManagerContract     the same, and units that run
    RunLockContract                the run lock
    NftablesContract, EbtablesContract          packet rules
    LinkLayerContract              devices, neighbours, bridges and IPv6; it arranges a `LinkNode`
    NetworkEventsContract          the kernel's announcements
    SupervisorContract             the signs of a service to its manager
"""

from __future__ import annotations

from pkgutil import iter_modules

import pytest

# pytest rewrites the asserts of a module only if it knows of the module before the import.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from hostrouting.testing.contracts.ebtables import EbtablesContract  # noqa: E402 - as said above
from hostrouting.testing.contracts.files import FileStoreContract  # noqa: E402 - same
from hostrouting.testing.contracts.link_changes import LinkLayerContract  # noqa: E402 - same
from hostrouting.testing.contracts.link_layer import LinkNode  # noqa: E402 - same
from hostrouting.testing.contracts.lock import RunLockContract  # noqa: E402 - same
from hostrouting.testing.contracts.network_events import NetworkEventsContract  # noqa: E402 - same
from hostrouting.testing.contracts.nftables import NftablesContract  # noqa: E402 - same
from hostrouting.testing.contracts.route_changes import RouteBackendContract  # noqa: E402 - same
from hostrouting.testing.contracts.services import (  # noqa: E402 - same
    LiveServiceManagerContract,
    ServiceManagerContract,
)
from hostrouting.testing.contracts.supervisor import SupervisorContract  # noqa: E402 - same

__all__ = [
    "EbtablesContract",
    "FileStoreContract",
    "LinkLayerContract",
    "LinkNode",
    "LiveServiceManagerContract",
    "NetworkEventsContract",
    "NftablesContract",
    "RouteBackendContract",
    "RunLockContract",
    "ServiceManagerContract",
    "SupervisorContract",
]
