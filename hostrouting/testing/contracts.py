"""What every port promises, as tests: for the fakes, for our adapters and for yours. Needs the extra `testing`.

Derive a class and override the fixtures and, for files, the three helpers:

    class TestMyFiles(FileStoreContract):
        @pytest.fixture
        def files(self): ...

    RouteBackendContract           any IPv4 routing
    FileStoreContract              any files
    ServiceManagerContract         any units: links and what is known of them
    LiveServiceManagerContract     the same, and units that run
    RunLockContract                any lock
    NftablesContract, EbtablesContract          any packet rules
    IPv6BackendContract, LinkLayerContract      any kernel's IPv6, neighbours and bridges
    IPv6Node, LinkNode             handles that these two turn
"""

from __future__ import annotations

import pytest

# Before they are imported, or pytest would report a bare AssertionError where it could show both sides.
pytest.register_assert_rewrite(
    *(
        f"hostrouting.testing.{room}_contract"
        for room in ("ebtables", "file", "ipv6", "link_layer", "lock", "nftables", "route", "service")
    ),
)

from hostrouting.testing.ebtables_contract import EbtablesContract  # noqa: E402 - as said above
from hostrouting.testing.file_contract import FileStoreContract  # noqa: E402 - same
from hostrouting.testing.ipv6_contract import IPv6BackendContract, IPv6Node  # noqa: E402 - same
from hostrouting.testing.link_layer_contract import LinkLayerContract, LinkNode  # noqa: E402 - same
from hostrouting.testing.lock_contract import RunLockContract  # noqa: E402 - same
from hostrouting.testing.nftables_contract import NftablesContract  # noqa: E402 - same
from hostrouting.testing.route_contract import RouteBackendContract  # noqa: E402 - same
from hostrouting.testing.service_contract import LiveServiceManagerContract, ServiceManagerContract  # noqa: E402 - same

__all__ = [
    "EbtablesContract",
    "FileStoreContract",
    "IPv6BackendContract",
    "IPv6Node",
    "LinkLayerContract",
    "LinkNode",
    "LiveServiceManagerContract",
    "NftablesContract",
    "RouteBackendContract",
    "RunLockContract",
    "ServiceManagerContract",
]
