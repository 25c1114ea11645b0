"""The promises of `RouteBackend` as tests, for any backend. Needs the extra `testing`.

Derive a class from the contract and override its fixtures:

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
        def backend(self, node):  # the tests call it
            return NetlinkBackend(netns=node.name)

        @pytest.fixture
        def failing(self):  # each call of it must raise a BackendError
            return NetlinkBackend(netns="absent")

A fixture `denied` may give a backend whose changes the kernel refuses with EPERM, such as one that
is called in a process without CAP_NET_ADMIN.
"""

try:
    import pytest
except ImportError as error:
    raise ImportError(
        "the contracts of backends need pytest: run pip install 'hostrouting[testing]'"
    ) from error

# pytest rewrites the asserts of a module that is registered before its import.
pytest.register_assert_rewrite(f"{__name__}.routes")

from hostrouting.testing.contracts.routes import RouteBackendContract  # noqa: E402

__all__ = ["RouteBackendContract"]
