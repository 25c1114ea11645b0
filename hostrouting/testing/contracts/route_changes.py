"""The promises of `RouteBackend` for changes, as tests; `routes` has those for reading."""

from __future__ import annotations

import errno
import struct
from typing import Any, Final

import attrs
import pytest

from hostrouting.base.errors import LinkNotFoundError, PermissionDeniedError
from hostrouting.host import RouteBackend
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.rejected import RouteRejectedError
from hostrouting.net.routes import Extra, RouteChange, resting
from hostrouting.testing.contracts.routes import (
    BY_SOURCE,
    MULTIPATH,
    RouteReadingContract,
    arrange,
    as_read,
    deciding,
    find,
    in_order,
    place,
    shown,
)
from hostrouting.testing.node import KernelNode, Node
from hostrouting.testing.route_texts import route

_add = RouteChange.add
_prepend = RouteChange.prepend
_append = RouteChange.append
_remove = RouteChange.remove
_replace = RouteChange.replace

#: An own route, foreign routes in its place, and one whose gateway is not on-link.
OWN: Final = "9.0.0.0/8 via 10.224.0.1 dev eth0 proto 142"
DHCP: Final = "9.0.0.0/8 via 10.224.0.9 dev eth0 proto dhcp"
BOOT: Final = "9.0.0.0/8 via 10.224.0.8 dev eth0"
ON_LINK: Final = "9.0.0.0/8 dev eth0 proto 142 scope link"
OFF_LINK: Final = "8.0.0.0/8 via 192.0.2.1 dev eth0 proto 142"
IPV6_OWN: Final = "fd00:9::/32 via fd00:1::1 dev eth0 proto 142 metric 1"
IPV6_ON_LINK: Final = "fd00:9::/32 dev ib0 metric 1"
IPV6_BOOT: Final = "fd00:9::/32 via fd00:a::9 dev ib0 metric 1"
IPV6_OFF_LINK: Final = "fd00:8::/32 via fd00:99::1 dev eth0 proto 142 metric 1"
#: ON_LINK, as a removal names it.
ABSENT: Final = resting(route(ON_LINK))
#: By the family, additions beside DHCP (of IPv6: IPV6_BOOT), and the errno of a refusal.
REFUSED: Final = {
    IPV4: [
        (_add, "9.0.0.0/8 via 172.16.0.9 dev ib0 proto 142", errno.EEXIST),
        (_add, "172.16.0.0/16 via 10.224.0.1 dev eth0", errno.EEXIST),
        (_prepend, DHCP, errno.EEXIST),
        (_append, DHCP, errno.EEXIST),
        (_add, OFF_LINK, errno.ENETUNREACH),
        (_add, "8.0.0.0/8 dev down0", errno.ENETDOWN),
        (_add, "8.0.0.0/8 dev eth0 src 10.224.0.99", errno.EINVAL),
    ],
    IPV6: [
        (_add, IPV6_OWN, errno.EEXIST),
        (_add, IPV6_ON_LINK, errno.EEXIST),
        (_add, "fd00:a::/64 via fd00:1::1 dev eth0 metric 256", errno.EEXIST),
        (_add, IPV6_OFF_LINK, errno.EHOSTUNREACH),
        (_add, "fd00:8::/32 dev down0 metric 1", errno.ENETDOWN),
        (_add, "fd00:8::/32 dev eth0 src fd00:1::99 metric 1", errno.EINVAL),
    ],
}
#: By the family, routes for the tests of both.
_OWN = {IPV4: OWN, IPV6: IPV6_OWN}
_NEAR = {IPV4: ON_LINK, IPV6: "fd00:9::/32 dev eth0 proto 142"}
_OFF_LINK = {IPV4: OFF_LINK, IPV6: IPV6_OFF_LINK}
_FOREIGN = {
    IPV4: [
        route("9.1.0.0/16 via 10.224.0.9 dev eth0 metric 77 proto bgp"),
        route("unreachable 9.3.0.0/16 table 99"),
        route("9.2.0.0/16 dev eth0 proto dhcp src 10.224.0.4"),
        MULTIPATH[IPV4],
    ],
    IPV6: [
        route("fd00:9::/32 via fd00:1::9 dev eth0 metric 9 src fd00:1::4"),
        route("prohibit fd00:9::/48 metric 3"),
        MULTIPATH[IPV6],
        BY_SOURCE,
    ],
}


def metrics(kind: int, value: int) -> Extra:
    """Return the unknown attribute RTA_METRICS with one metric; 2 is the mtu."""
    return ((8, struct.pack("=HHI", 8, kind, value)),)


class RouteBackendContract(RouteReadingContract):
    """Each test has a fresh `node` with only a loopback device, up, which `backend` sees."""

    def _refused(
        self, backend: RouteBackend, *changes: RouteChange, verify: bool = True
    ) -> RouteRejectedError:
        """Apply a batch that must be refused; assert that nothing changed."""
        before = [*map(backend.routes, backend.families)]
        with pytest.raises(RouteRejectedError) as caught:
            backend.apply(changes, verify=verify)
        assert [*map(backend.routes, backend.families)] == before
        assert caught.value.rolled_back
        assert caught.value.left_behind == []
        return caught.value

    # --- applying

    def test_an_added_route_is_as_wanted(self, eth0: Node, backend: RouteBackend) -> None:
        """Routes of every kind, table and gateway are read back as added, verified or not."""
        wanted = [
            route("172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142 src 10.224.0.4 metric 5"),
            *map(route, ["blackhole 9.1.0.0/16", "9.2.0.0/16 dev ib0 table 1000"]),
            route("default via 10.224.0.1 dev eth0 metric 9"),
            attrs.evolve(MULTIPATH[IPV4], network=9 << 24 | 3 << 16, prefix_length=16),
            route("9.4.0.0/16 via 1.0.0.0 dev ib0", onlink=True),
            route("9.5.0.0/16 dev ib0", tos=8),
        ]
        backend.apply([*map(_add, wanted[1:])])
        backend.apply([_add(wanted[0])], verify=False)
        seen = backend.routes()
        assert all(any(observed.fulfils(want) for observed in seen) for want in wanted)

    def test_changes_are_made_in_their_order(self, eth0: Node, backend: RouteBackend) -> None:
        """A gateway may be reached by a route that the same batch added before it."""
        texts = [
            "9.9.9.9 dev eth0 proto 142 scope link",
            "9.0.0.0/8 via 9.9.9.9 dev eth0 proto 142",
        ]
        backend.apply([_add(route(text)) for text in texts])
        assert shown(backend, protocol=142) == in_order(*reversed(texts))

    def test_exactly_the_named_route_is_removed(
        self, world: Node, family: int, backend: RouteBackend
    ) -> None:
        """Another metric, protocol, device or table stays; an empty batch removes nothing."""
        own = f"{_NEAR[family]} metric 5"
        arrange(
            world,
            own.replace("eth0 proto 142", "ib0 proto static"),
            own,
            f"{own}7",
            f"{own} table 88",
        )
        before = backend.routes(family)
        backend.apply([])
        assert backend.routes(family) == before
        named = find(backend, own)
        backend.apply([_remove(named)])
        assert backend.routes(family) == [observed for observed in before if observed != named]

    def test_a_replacement_takes_the_named_route_alone(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """Further routes in one place stay, even if one of them is the first."""
        old = "9.0.0.0/8 via 10.224.0.1 dev eth0"
        new = "9.0.0.0/8 via 172.16.0.9 dev ib0 proto 142"
        arrange(eth0, DHCP, old, BOOT)
        backend.apply([_replace(find(backend, old), route(new))])
        assert place(backend) == in_order(new, DHCP, BOOT)

    def test_a_prepended_route_decides(self, eth0: Node, backend: RouteBackend) -> None:
        """It stands first in its place, also if only the protocol differs, or alone."""
        foreign = OWN.replace("142", "static")
        arrange(eth0, foreign)
        alone = "8.0.0.0/8 via 10.224.0.1 dev eth0 proto 142"
        backend.apply([_prepend(route(text)) for text in (OWN, alone)])
        assert place(backend) == in_order(OWN, foreign)
        decided = [deciding(backend, address) for address in ("9.1.1.1", "8.1.1.1")]
        assert decided == in_order(OWN, alone)

    def test_a_route_is_moved_to_the_front(self, eth0: Node, backend: RouteBackend) -> None:
        """To move a route is to remove and add it, last in a batch, so a refusal moves none."""
        arrange(eth0, DHCP, OWN)
        move = _replace(find(backend, OWN), route(OWN))
        self._refused(backend, move, _add(route(OFF_LINK)), _remove(ABSENT))
        backend.apply([move, _add(route(ON_LINK.replace("9.0.0.0/8", "8.0.0.0/8")))])
        assert place(backend) == in_order(OWN, DHCP)

    def test_an_appended_route_stands_behind(self, eth0: Node, backend: RouteBackend) -> None:
        """It decides when the routes before it are named."""
        arrange(eth0, DHCP)
        backend.apply([_append(route(OWN))])
        assert place(backend) == in_order(DHCP, OWN)
        backend.apply([_remove(find(backend, DHCP))])
        assert deciding(backend, "9.1.1.1") == as_read(OWN)

    def test_what_was_read_can_be_put_back(
        self, world: Node, family: int, backend: RouteBackend
    ) -> None:
        """Foreign routes are the same when added again, from a reading or by a rollback."""
        usual = backend.routes(family)
        for wanted in _FOREIGN[family]:
            world.insert_route(wanted)
        before = backend.routes(family)
        foreign = [observed for observed in before if observed not in usual]
        self._refused(backend, *map(_remove, foreign), _add(route(_OFF_LINK[family])))
        backend.apply([*map(_remove, foreign)])
        assert backend.routes(family) == usual
        backend.apply([_add(observed.to_route()) for observed in foreign])
        assert backend.routes(family) == before

    def test_unknown_attributes_are_kept(self, eth0: Node, backend: RouteBackend) -> None:
        """An attribute that a backend cannot parse, here an mtu, is installed, read and removed.

        A rollback returns it. A backend that declares that it does not keep metrics refuses them.
        """
        addition = _add(route(OWN, extra=metrics(2, 1400)))
        if not getattr(backend, "keeps_metrics", True):
            assert "metrics" in str(self._refused(backend, addition))
            return
        backend.apply([addition])
        installed = find(backend, OWN, extra=metrics(2, 1400))
        for change in _remove(installed), _replace(installed, route(ON_LINK)):
            self._refused(backend, change, _add(route(OFF_LINK)))
        arrange(eth0, DHCP)
        backend.apply([_remove(installed)])
        assert place(backend) == in_order(DHCP)

    def test_the_nexthop_object_of_a_route_is_kept(self, eth0: Node, backend: RouteBackend) -> None:
        """A route by one is read with its id, returned by a rollback, and removed."""
        if not isinstance(eth0, KernelNode):
            pytest.skip("only a kernel has nexthop objects: test it on a KernelNode")
        eth0.ip("nexthop add id 5 via 10.224.0.9 dev eth0")
        eth0.ip("route add 9.0.0.0/8 nhid 5")
        [installed] = place(backend)
        assert installed.nexthop_id == 5
        self._refused(backend, _remove(installed), _add(route(OFF_LINK)))
        backend.apply([_remove(installed)])
        assert place(backend) == []

    def test_verification_finds_a_route_that_did_not_last(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """A route whose mtu the kernel limits is accepted, but a reading shows another route."""
        if not getattr(backend, "keeps_metrics", True):
            pytest.skip("the backend does not keep metrics")
        changes = [_add(route(ON_LINK, extra=metrics(2, 70_000)))]
        self._refused(backend, *changes)
        backend.apply(changes, verify=False)
        [limited] = place(backend)
        assert limited.extra != metrics(2, 70_000)
        assert limited._replace(extra=()) == as_read(ON_LINK)

    # --- refusals

    def test_a_lack_of_privilege_has_its_error(self, denied: RouteBackend) -> None:
        """The kernel's EPERM is a `PermissionDeniedError`, and nothing was changed."""
        before = denied.routes()
        with pytest.raises(PermissionDeniedError) as caught:
            denied.apply([_add(route("9.0.0.0/8 dev lo"))])
        assert caught.value.errno == errno.EPERM
        assert denied.routes() == before

    def test_each_reason_has_its_errno(
        self, world: Node, family: int, backend: RouteBackend
    ) -> None:
        """An addition never overwrites any route, and a route is not moved within its place.

        No addition makes one IPv6 route of two.
        """
        world.add_link("down0", up=False)
        arrange(world, {IPV4: DHCP, IPV6: IPV6_BOOT}[family])
        for verb, wanted, number in REFUSED[family]:
            change = verb(route(wanted))
            error = self._refused(backend, change)
            [refusal] = error.refusals
            assert (refusal.change, refusal.errno) == (change, number)
            assert error.errno == number

    @pytest.mark.parametrize(
        "detail", [{"metric": 2}, {"protocol": 4}, {"gateway": None}, {"dev": "ib0"}]
    )
    def test_removing_what_is_not_there_is_esrch(
        self, world: Node, family: int, backend: RouteBackend, detail: dict[str, Any]
    ) -> None:
        """A removal names a route that must be there, with every detail."""
        arrange(world, _OWN[family])
        stale = find(backend, _OWN[family])._replace(**detail)
        assert self._refused(backend, _remove(stale)).errno == errno.ESRCH

    @pytest.mark.parametrize("verify", [True, False])
    @pytest.mark.parametrize(
        "present",
        [[f"{ON_LINK} metric 5"], [f"{ON_LINK} src 10.224.0.4", ON_LINK]],
        ids=["of another metric", "before it, with a source"],
    )
    def test_a_removal_never_takes_another_route(
        self, eth0: Node, backend: RouteBackend, present: list[str], *, verify: bool
    ) -> None:
        """A deletion that would remove another route is not sent."""
        arrange(eth0, *present)
        addition = _add(route("7.0.0.0/8 dev eth0"))
        [refusal] = self._refused(backend, addition, _remove(ABSENT), verify=verify).refusals
        assert (refusal.change, refusal.errno) == (_remove(ABSENT), errno.ESRCH)

    def test_what_another_program_changed_meanwhile_is_not_overwritten(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """A route that another program replaced stays: its replacement is refused."""
        arrange(eth0, BOOT)
        old = find(backend, BOOT)
        eth0.insert_route(route(DHCP), verb="replace")
        assert self._refused(backend, _replace(old, route(ON_LINK))).errno == errno.ESRCH
        assert place(backend) == in_order(DHCP)

    def test_a_rollback_keeps_the_order_of_a_place(self, eth0: Node, backend: RouteBackend) -> None:
        """Removed routes, the last of a place first, come back in their order."""
        arrange(eth0, OWN, DHCP, BOOT)
        present = [observed for observed in backend.routes() if observed.network == 9 << 24]
        self._refused(backend, *map(_remove, reversed(present)), _add(route(OFF_LINK)))

    def test_an_incomplete_rollback_is_reported(self, eth0: Node, backend: RouteBackend) -> None:
        """The error names a removed route that cannot return: another program took its way."""
        way = "7.7.7.7 dev eth0"
        named = "7.0.0.0/8 via 7.7.7.7 dev eth0"
        arrange(eth0, way, named)
        eth0.delete_route(route(way))
        lost = find(backend, named)
        with pytest.raises(RouteRejectedError) as caught:
            backend.apply([_remove(lost), _add(route(OFF_LINK))])
        assert not caught.value.rolled_back
        [difference] = caught.value.left_behind
        assert str(lost) in difference

    def test_a_missing_device_is_named_before_anything_is_done(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """A typing error in a device's name changes nothing."""
        before = backend.routes()
        with pytest.raises(LinkNotFoundError) as caught:
            backend.apply([_add(route(OWN)), _add(route("8.0.0.0/8 dev eht0"))])
        assert caught.value.dev == "eht0"
        assert backend.routes() == before

    def test_one_refusal_undoes_the_whole_batch(self, eth0: Node, backend: RouteBackend) -> None:
        """Changes of every verb before and after the refused one are all rolled back.

        A foreign route that stands before an addition of the batch stays.
        """
        arrange(
            eth0,
            DHCP,
            *(f"{network}.0.0.0/8 via 10.224.0.1 dev eth0 metric 3" for network in (8, 9)),
        )
        first, second = (observed for observed in backend.routes() if observed.metric == 3)
        self._refused(
            backend,
            _add(route("7.7.7.7 dev eth0")),
            _add(route("7.0.0.0/8 via 7.7.7.7 dev eth0")),
            _remove(first),
            _append(route(BOOT)),
            _add(route("6.0.0.0/8 via 192.0.2.77 dev ib0")),
            _replace(second, route("9.0.0.0/8 dev ib0 metric 3")),
        )

    def test_every_refusal_is_named(self, eth0: Node, backend: RouteBackend) -> None:
        """With more refusals than a socket's queue holds, each is named, in order."""
        near = route("20.0.0.0/24 via 10.224.0.1 dev eth0")
        far = route("20.0.0.0/24 via 192.0.2.1 dev eth0")
        changes = [
            _add(attrs.evolve((far, near)[number % 2], network=20 << 24 | number << 8))
            for number in range(1200)
        ]
        error = self._refused(backend, *changes)
        assert [refusal.change for refusal in error.refusals] == changes[::2]
        assert {refusal.errno for refusal in error.refusals} == {errno.ENETUNREACH}

    # --- IPv6

    def test_a_batch_has_routes_of_both_families(self, six: Node, backend: RouteBackend) -> None:
        """All are added, all are removed, or none."""
        texts = [IPV6_OWN, "9.0.0.0/8 via 10.224.0.1 dev eth0 proto 142"]
        backend.apply([_add(route(text)) for text in texts])
        installed = [find(backend, text) for text in texts]
        self._refused(backend, *map(_remove, installed), _add(route(IPV6_OFF_LINK)))
        backend.apply([*map(_remove, installed)])
        assert backend.routes_of(142) == backend.routes_of(142, IPV6) == []

    def test_a_replaced_ipv6_route_leaves_its_place_first(
        self, six: Node, backend: RouteBackend
    ) -> None:
        """Two routes by gateways would become one."""
        arrange(six, IPV6_OWN)
        change = _replace(find(backend, IPV6_OWN), route(IPV6_BOOT))
        self._refused(backend, change, _add(route(IPV6_OFF_LINK)))
        backend.apply([change])
        assert place(backend, IPV6) == in_order(IPV6_BOOT)

    def test_a_removal_of_ipv6_never_takes_another_route(
        self, six: Node, backend: RouteBackend
    ) -> None:
        """A deletion without a gateway, which fits any gateway of the device, is not sent."""
        arrange(six, IPV6_BOOT, IPV6_ON_LINK)
        change = _remove(find(backend, IPV6_ON_LINK))
        [refusal] = self._refused(backend, change).refusals
        assert (refusal.change, refusal.errno) == (change, errno.ESRCH)
