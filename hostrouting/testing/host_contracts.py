"""What `FileStore`, `ServiceManager` and `RunLock` promise, as tests: for the fakes and for whatever else fulfils them.

Derive a class, override the fixtures and, for files, the three helpers:

    class TestMyFiles(FileStoreContract):
        @pytest.fixture
        def files(self): ...

    FileStoreContract              any files
    ServiceManagerContract         any units: links and what is known of them
    LiveServiceManagerContract     the same, and units that run
    RunLockContract                any lock
"""

from __future__ import annotations

import pytest

# Before they are imported, or pytest would report a bare AssertionError where it could show both sides.
pytest.register_assert_rewrite(
    *(f"hostrouting.testing.{room}_contract" for room in ("file", "service", "lock")),
)

from hostrouting.testing.file_contract import FileStoreContract  # noqa: E402 - as said above
from hostrouting.testing.lock_contract import RunLockContract  # noqa: E402 - same
from hostrouting.testing.service_contract import LiveServiceManagerContract, ServiceManagerContract  # noqa: E402 - same

__all__ = ["FileStoreContract", "LiveServiceManagerContract", "RunLockContract", "ServiceManagerContract"]
