"""The route contract fails for backends that are almost right."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import pytest

from hostrouting.exceptions import RouteRejectedError
from hostrouting.host import ObservedRoute, RouteChange
from hostrouting.net.addresses import IPV4
from hostrouting.net.rules import Rule
from hostrouting.testing import MemoryBackend
from hostrouting.testing.contracts import RouteBackendContract


class ForgetsAttributes(MemoryBackend):
    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        """Drop the unknown attributes of every route."""
        return [route._replace(extra=()) for route in super().routes(family)]


class ForgetsSelectors(MemoryBackend):
    def rules(self, family: int = IPV4) -> list[Rule]:
        """Keep only the addresses of a rule, its table and its action."""
        return [Rule(*rule[:7]) for rule in super().rules(family)]


def applying(**fixed: bool | None) -> type[MemoryBackend]:
    """Return a backend that applies changes with these options, whatever the caller gives, as a
    wrapper may.
    """

    class Fixed(MemoryBackend):
        def apply(self, changes: Sequence[RouteChange], **options: Any) -> None:
            super().apply(changes, **{**options, **fixed})

    return Fixed


class ShowsEveryProtocol(MemoryBackend):
    def routes_of(self, protocol: int, family: int = IPV4) -> list[ObservedRoute]:
        """Filter nothing."""
        return self.routes(family)


LASTING = "test_verification_finds_a_route_that_did_not_last"


@pytest.mark.parametrize(
    ("broken", "promise", "failure"),
    [
        (ForgetsSelectors, "test_rules_come_in_the_order_of_their_priority", AssertionError),
        (ForgetsAttributes, "test_unknown_attributes_are_kept", RouteRejectedError),
        (applying(verify=False), LASTING, pytest.fail.Exception),
        (applying(verify=True), LASTING, RouteRejectedError),
        (ShowsEveryProtocol, "test_routes_of_one_table_are_ordered", AssertionError),
    ],
)
def test_the_contract_notices(
    broken: type[MemoryBackend], promise: str, failure: type[BaseException]
) -> None:
    """A backend that drops one thing fails the one test of it."""
    backend = broken()
    backend.add_link("eth0")
    backend.add_address("eth0", "10.224.0.4/16")
    test = getattr(RouteBackendContract(), promise)
    given = {"eth0": backend, "world": backend, "backend": backend, "family": IPV4}
    with pytest.raises(failure):
        test(**{name: given[name] for name in signature(test).parameters})
