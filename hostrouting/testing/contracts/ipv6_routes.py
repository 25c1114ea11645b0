"""The promises of `RouteBackend` for IPv6, as tests; a backend that does not know it skips them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import pytest

from hostrouting.exceptions import RouteRejectedError
from hostrouting.net.addresses import IPV6, Address, Prefix
from hostrouting.net.changes import RouteChange
from hostrouting.testing.contracts.routes import (
    IPV6_DEFAULT,
    RouteReadingContract,
    arrange,
    find,
    route,
    shown,
)

if TYPE_CHECKING:
    from hostrouting.host import RouteBackend
    from hostrouting.testing.node import Node

_add, _remove = RouteChange.add, RouteChange.remove
_NINE: Final = Prefix.parse("fd00:9::/32")
OURS: Final = "fd00:9::/32 via fd00:1::1 dev eth0 proto 142 metric 1"
ON_LINK: Final = "fd00:9::/32 dev ib0 metric 1"
OTHERS: Final = "fd00:9::/32 via fd00:a::9 dev ib0 metric 1"
OFF_LINK: Final = "fd00:8::/32 via fd00:99::1 dev eth0 proto 142 metric 1"
#: Only packets from the uplink's network take it.
FROM: Final = attrs.evolve(route("fd00:9::/32 dev ib0 metric 5"), from_prefix=Prefix.parse("fd00:1::/64"))


def six_place(backend: RouteBackend) -> list[str]:
    """Return the routes of fd00:9::/32 in their order."""
    return shown(backend, family=IPV6, network=_NINE.network)


class Ipv6RoutesContract(RouteReadingContract):
    """The node `six` is as `eth0`, in IPv6."""

    def _refused(self, backend: RouteBackend, *changes: RouteChange) -> RouteRejectedError:
        """Apply a batch that must be refused; assert that nothing changed."""
        before = [*map(backend.routes, backend.families)]
        with pytest.raises(RouteRejectedError) as caught:
            backend.apply(changes)
        assert [*map(backend.routes, backend.families)] == before
        assert caught.value.rolled_back
        assert caught.value.left_behind == []
        return caught.value

    # --- reading

    def test_links_have_addresses_of_both_families(self, six: Node, backend: RouteBackend) -> None:
        """Each has its family."""
        own = [str(one) for link in backend.links() for one in link.addresses if one.family == IPV6]
        assert own == ["::1/128", "fd00:1::4/64", "fd00:a::4/64"]

    def test_a_route_by_source_hides_the_others(self, six: Node, backend: RouteBackend) -> None:
        """Whatever the metrics: packets from elsewhere, or from nowhere yet, go to a shorter prefix."""
        arrange(six, OURS)
        six.insert_route(FROM)
        asked, *sources = (Address.parse(text).number for text in ("fd00:9::1", "fd00:1::4", "fd00:a::4"))
        answers = backend.lookup([asked] * 3, sources=[*sources, None], family=IPV6)
        assert [str(one.route) for one in answers] == [str(FROM), IPV6_DEFAULT, IPV6_DEFAULT]

    # --- changes

    def test_a_batch_has_routes_of_both_families(self, six: Node, backend: RouteBackend) -> None:
        """All are added, all are removed, or none."""
        texts = [OURS, "9.0.0.0/8 via 10.224.0.1 dev eth0 proto 142"]
        backend.apply([_add(route(text)) for text in texts])
        held = [find(backend, text) for text in texts]
        self._refused(backend, *map(_remove, held), _add(route(OFF_LINK)))
        backend.apply([*map(_remove, held)])
        assert backend.routes_of(142) == backend.routes_of(142, IPV6) == []

    def test_a_replaced_ipv6_route_leaves_its_place_first(self, six: Node, backend: RouteBackend) -> None:
        """Two routes by gateways would become one."""
        arrange(six, OURS)
        change = RouteChange.replace(find(backend, OURS), route(OTHERS))
        self._refused(backend, change, _add(route(OFF_LINK)))
        backend.apply([change])
        assert six_place(backend) == [OTHERS]

    def test_a_removal_of_ipv6_never_takes_another_route(self, six: Node, backend: RouteBackend) -> None:
        """A deletion without a gateway fits a route by any gateway of the device: it is not sent."""
        arrange(six, OTHERS, ON_LINK)
        error = self._refused(backend, _remove(find(backend, ON_LINK)))
        assert f"the kernel would remove '{OTHERS}' instead" in str(error)
