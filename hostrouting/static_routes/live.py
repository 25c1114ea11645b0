"""The live half: make our routes in the kernel exactly the desired ones, and restore displaced routes."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import LinkNotFoundError, Refusal, RouteRejectedError
from hostrouting.findings import RESTORED, refused
from hostrouting.host import ObservedRoute
from hostrouting.net.routes import place
from hostrouting.static_routes.account import change_of
from hostrouting.static_routes.converge import ChangesRefusedError, Convergence, restorable
from hostrouting.static_routes.displaced import read_records
from hostrouting.static_routes.reconcile import Reconciliation, reconcile
from phases import Change

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable, Mapping, Sequence

    from hostrouting.config import StaticRoute
    from hostrouting.host import Host, Route, RouteChange
    from hostrouting.net.addresses import Address
    from hostrouting.net.links import Device
    from hostrouting.net.routes import Place
    from hostrouting.static_routes.resolve import Resolution
    from phases import Context

__all__ = ["LiveRoutes"]

#: The refusals that a lease, an address or a carrier may mend.
_MAY_HEAL: Final = frozenset({errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENODEV})


class LiveRoutes:
    """The routes of one live machine that are owned by us, and the routes that they displaced."""

    def __init__(self, host: Host, logger: logging.Logger) -> None:
        self._host = host
        self._logger = logger

    def converge(self, ctx: Context, desired: Sequence[Route]) -> None:
        """Make our routes exactly these, and restore displaced routes whose place is free again."""
        try:
            Convergence(self._host, self._logger).run(ctx, desired)
        except ChangesRefusedError as refusal:
            raise self._explained(refusal.error, refusal.outcome) from refusal.error
        except LinkNotFoundError as error:
            raise _with_routes(error, desired) from error

    def plan(self, resolution: Resolution) -> list[Change]:
        """Return the changes of `converge`, once every missing value can be looked up."""
        observed = self._host.routes.routes()
        records, _ = restorable(
            read_records(self._host.files).routes, (link.name for link in self._host.routes.links())
        )
        undecided = {_place_of(route) for route, _ in resolution.missing}
        outcome = reconcile(resolution.routes, observed, displaced=records, undecided=undecided)
        devices = {link.name for link in self._host.routes.links()} if resolution.missing else set()
        waiting = [
            Change("+", str(route), f"looked up when a default route is there: {reason}")
            if route.dev is None or route.dev in devices
            else Change("+", str(route), refused(_no_device(route.dev)))
            for route, reason in resolution.missing
        ]
        # A route that cannot be restored is given up, and hinders nothing.
        ours = outcome.changes
        foreseen = self._foreseen(ours, observed)
        return waiting + [
            _shown(change, outcome, foreseen) for change in outcome.all_changes if change not in outcome.moved
        ]

    def _foreseen(self, changes: Sequence[RouteChange], observed: Sequence[ObservedRoute]) -> dict[RouteChange, str]:
        """Return the foreseen refusals: the device of a route, or the gateway on it, is missing."""
        if not changes:
            return {}
        links = {link.name: link for link in self._host.routes.links()}
        foreseen = {change: refused(reason) for change, reason in _without_gateway(changes, observed).items()}
        for change in changes:
            dev = None if change.after is None else change.after.dev
            if dev is None:
                continue
            if dev not in links:
                foreseen[change] = refused(_no_device(dev))
            elif not _is_usable(links[dev]):
                lack = "has no IPv4 address" if links[dev].up else "is down"
                foreseen[change] = f"waits up to 30 s, since {dev} {lack}"
        return foreseen

    def _explained(self, error: RouteRejectedError, outcome: Reconciliation) -> RouteRejectedError:
        """Return the error with its explanations: where a kernel route is in the way, and if waiting may help."""
        reasons = {str(change): _never_overwritten(own) for change, own in outcome.in_the_way.items()}
        may_heal = error.rolled_back and self._may_heal(error.refusals, outcome.changes)
        lost = {} if may_heal else _without_gateway(outcome.changes, self._host.routes.routes())
        steps = {str(change): f"; {reason}" for change, reason in lost.items()}
        refusals = [
            Refusal(change, number, reasons.get(change, f"{reason}{steps.get(change, '')}"))
            for change, number, reason in error.refusals
        ]
        return RouteRejectedError(
            refusals,
            rolled_back=error.rolled_back,
            left_behind=error.left_behind,
            overtaken=error.overtaken,
            may_heal=may_heal,
        )

    def _may_heal(self, refusals: Iterable[Refusal], changes: Iterable[RouteChange]) -> bool:
        """Return True if each refused route has a device that is absent, down, or without an IPv4 address.

        With device, carrier and address there, 'Nexthop has invalid gateway' is a mistake in the config: the kernel's
        error number is the same for both.
        """
        devs = {str(change): {change.after.dev} for change in changes if change.after is not None}
        usable = {link.name for link in self._host.routes.links() if _is_usable(link)}
        return all(
            refusal.errno in _MAY_HEAL and not usable.issuperset(devs.get(refusal.change, set()))
            for refusal in refusals
        )


def _is_usable(link: Device) -> bool:
    return link.up and bool(link.addresses)


def _no_device(dev: str) -> str:
    return f"there is no network device {dev}; correct its 'dev'"


def _without_gateway(changes: Iterable[RouteChange], observed: Sequence[ObservedRoute]) -> dict[RouteChange, str]:
    """Return the routes whose gateway is not on the link of their device: the kernel refuses all of them."""
    reached: dict[tuple[Address, str], bool] = {}
    lost: dict[RouteChange, str] = {}
    for change in changes:
        route = change.after
        if route is None or route.gateway is None or route.dev is None or route.onlink:
            continue
        hop = route.gateway, route.dev
        if hop not in reached:
            reached[hop] = _is_on_link(*hop, observed)
        if not reached[hop]:
            lost[change] = f"no network of {route.dev} has the gateway {route.gateway}; correct its 'gateway' or 'dev'"
    return lost


def _is_on_link(gateway: Address, dev: str, observed: Iterable[ObservedRoute]) -> bool:
    # Any table counts, because rules may lead the kernel there: a refusal that is foreseen here is certain.
    return any(
        route.gateway is None
        and dev in route.devs
        and (gateway.number ^ route.network) >> (32 - route.prefix_length) == 0
        for route in observed
    )


def _place_of(route: StaticRoute) -> Place:
    return place(ObservedRoute(*route.prefix, metric=route.metric))


def _shown(change: RouteChange, outcome: Reconciliation, foreseen: Mapping[RouteChange, str]) -> Change:
    before, after = change.before, change.after
    if after is None:
        return Change("-", str(before))
    if change in outcome.in_the_way:
        return Change("+", str(after), refused(_never_overwritten(outcome.in_the_way[change])))
    shown = change_of(before, after, outcome.displaced.get(change, ()))
    if change in foreseen:
        return Change(shown.action, shown.subject, foreseen[change])
    return Change(shown.action, shown.subject, RESTORED) if change in outcome.put_back else shown


def _never_overwritten(own: ObservedRoute) -> str:
    return (
        f"the kernel's own route '{own}' has this destination and metric, and is never overwritten; "
        f"configure narrower destinations, or another metric"
    )


def _with_routes(error: LinkNotFoundError, routes: Iterable[Route]) -> LinkNotFoundError:
    """Return the error with the routes whose device is missing."""
    of_device = [f"\n  {route}" for route in routes if route.dev == error.dev]
    step = f"; correct the 'dev' of:{''.join(of_device)}" if of_device else ""
    return LinkNotFoundError(f"{error}{step}", dev=error.dev, errno=error.errno, may_heal=True)
