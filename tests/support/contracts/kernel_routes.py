"""The kernel's behaviour beyond the promises of a route backend, as tests; the fake does the same."""

import errno
from collections.abc import Callable

import attrs
import pytest

from hostrouting.exceptions import RouteRejectedError
from hostrouting.host import RouteBackend
from hostrouting.net.addresses import IPV6, Address, parse_ipv4
from hostrouting.net.changes import RouteChange
from hostrouting.net.routes import NextHop, Route
from hostrouting.testing import Node
from hostrouting.testing.contracts.route_changes import (
    ABSENT,
    IPV6_ON_LINK,
    IPV6_OWN,
    ON_LINK,
    OWN,
    RouteBackendContract,
    metrics,
)
from hostrouting.testing.contracts.routes import (
    arrange,
    look_up,
    place,
    route,
)


class KernelRoutesContract(RouteBackendContract):
    """The contract of the backends of the house, see `RouteBackendContract`."""

    def test_resolving_an_ipv6_address(self, six: Node, backend: RouteBackend) -> None:
        """The answer has one packet's gateway, device and source address."""
        arrange(six, "fd00:9::/32 via fd00:1::9 dev eth0 src fd00:1::4 metric 1")
        paths = [one.route for one in look_up(backend, "fd00:9::1", "fd00:a::4", resolve=True)]
        assert [
            path and (path.kind, path.dev, path.gateway, path.source, path.from_prefix)
            for path in paths
        ] == [
            (
                "unicast",
                "eth0",
                Address.parse("fd00:1::9"),
                Address.parse("fd00:1::4").number,
                None,
            ),
            ("local", "lo", None, Address.parse("fd00:a::4").number, None),
        ]

    def test_an_ipv6_route_without_a_gateway_stands_behind(
        self, six: Node, backend: RouteBackend
    ) -> None:
        """It merges with no other, so it can be appended."""
        arrange(six, IPV6_OWN)
        backend.apply([RouteChange.append(route(IPV6_ON_LINK))])
        assert place(backend, IPV6) == [IPV6_OWN, IPV6_ON_LINK]
        with pytest.raises(ValueError, match="can only be added to an empty place"):
            RouteChange.append(route(IPV6_OWN))
        with pytest.raises(ValueError, match="cannot be prepended"):
            RouteChange.prepend(route(IPV6_ON_LINK))

    def test_a_foreign_source_is_refused(self, eth0: Node, backend: RouteBackend) -> None:
        """The node cannot send from an address that it does not hold."""
        (answer,) = look_up(backend, "9.1.1.1", sources=[parse_ipv4("10.224.0.99")])
        assert answer == (parse_ipv4("9.1.1.1"), None, errno.ENETUNREACH)

    @pytest.mark.parametrize("verb", [RouteChange.add, RouteChange.prepend, RouteChange.append])
    @pytest.mark.parametrize("metric", [2, 8, 10], ids=["mtu", "advmss", "hoplimit"])
    def test_what_the_kernel_made_of_a_route_is_rolled_back(
        self, eth0: Node, backend: RouteBackend, verb: Callable[[Route], RouteChange], metric: int
    ) -> None:
        """The kernel limits this metric, so the route is not there as wanted; the one that it made
        goes.
        """
        error = self._refused(
            backend, verb(attrs.evolve(route(ON_LINK), extra=metrics(metric, 70_000)))
        )
        assert [refusal.change for refusal in error.refusals] == [f"+ {ON_LINK}"]

    def test_a_rollback_spares_what_looks_like_the_changed_route(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """A foreign route that differs from the refused one by its metrics only was there before,
        and stays.
        """
        usual, large = (
            attrs.evolve(route(ON_LINK), extra=metrics(2, mtu)) for mtu in (1400, 70_000)
        )
        backend.apply([RouteChange.add(usual)])
        self._refused(backend, RouteChange.append(large))

    def test_a_removal_never_takes_a_route_of_its_batch(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """The kernel would take the route that the same batch added, instead of a missing one
        without a metric.
        """
        self._refused(
            backend, RouteChange.add(route(f"{ON_LINK} metric 7")), RouteChange.remove(ABSENT)
        )
        backend.apply([RouteChange.add(route(ON_LINK)), RouteChange.remove(ABSENT)])
        assert place(backend) == []

    def test_a_removal_of_several_next_hops_never_takes_the_first_alone(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """The kernel takes a route with fewer next hops, too, if those are the first of the named
        ones.
        """
        hops = NextHop(None, "eth0"), NextHop(None, "ib0")
        several = Route(network=9 << 24, prefix_length=8, nexthops=hops)
        backend.apply([RouteChange.add(several)])
        [standing] = [one for one in backend.routes() if one.fulfils(several)]
        backend.apply([RouteChange.prepend(route(OWN))])
        with pytest.raises(RouteRejectedError, match=f"the kernel would remove '{OWN}' instead"):
            backend.apply([RouteChange.remove(standing)])
        assert place(backend) == [OWN, str(standing)]
