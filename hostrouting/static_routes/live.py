"""The live half: our routes in the kernel become exactly those that are wanted, and displaced ones come back."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final

from hostrouting.addresses import format_ipv4, parse_cidr
from hostrouting.exceptions import BackendError, HostFileError, LinkNotFoundError, Refusal, RouteRejectedError
from hostrouting.findings import refused
from hostrouting.host.routes import MAIN_TABLE
from hostrouting.static_routes.displaced import read_records, write_records
from hostrouting.static_routes.reconcile import GivenUp, Reconciliation, place, reconcile
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hostrouting.config import StaticRoute
    from hostrouting.host import Host, Link, ObservedRoute, Route, RouteChange
    from hostrouting.static_routes.reconcile import Place
    from hostrouting.static_routes.resolve import Resolution

__all__ = ["LiveRoutes"]

#: The refusals that a lease, an address or a carrier may mend.
_MAY_HEAL: Final = frozenset({errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENODEV})


class LiveRoutes:
    """The routes of one live machine that carry our mark, and those whose place they took."""

    def __init__(self, host: Host, logger: logging.Logger) -> None:
        self._host = host
        self._logger = logger

    def converge(self, desired: Sequence[Route]) -> None:
        """Make the routes that carry our mark exactly these, and put back what has no more reason to be displaced."""
        files = self._host.files
        recorded = read_records(files)
        records, lost = self._restorable(recorded)
        observed = self._host.routes.routes()
        outcome = reconcile(desired, observed, displaced=records)
        while True:
            # Before anything is displaced: a run that is killed in between can be undone all the same.
            write_records(files, list({place(route): route for route in (*recorded, *outcome.records)}.values()))
            self._tell(outcome)
            try:
                self._host.routes.apply(outcome.changes)
            except RouteRejectedError as error:
                refused = _refused_to_come_back(outcome, error)
                if not refused:
                    self._restore_records(recorded)
                    raise self._explained(error, outcome) from error
                # What others had must not hold up what is ours: without it, then.
                lost += refused
                records = [record for record in records if record not in [given_up.route for given_up in refused]]
                outcome = reconcile(desired, observed, displaced=records)
            except LinkNotFoundError as error:
                self._restore_records(recorded)
                raise _with_routes(error, desired) from error
            except BackendError:
                self._restore_records(recorded)
                raise
            else:
                break
        self._logger.info("%d routes changed", len(outcome.changes), extra={"changed": len(outcome.changes)})
        for route, reason in (*lost, *outcome.given_up):
            self._logger.warning("route '%s', which we had displaced, is not put back: %s", route, reason)
        write_records(files, outcome.records)

    def _restorable(self, records: Iterable[ObservedRoute]) -> tuple[list[ObservedRoute], list[GivenUp]]:
        """Of displaced routes those that can come back, and those whose device has gone."""
        kept: list[ObservedRoute] = []
        lost: list[GivenUp] = []
        devices: set[str] | None = None
        for record in records:
            if devices is None:
                devices = {link.name for link in self._host.routes.links()}
            gone = sorted({*record.devs} - devices)
            if gone:
                lost.append(GivenUp(record, f"there is no device {', '.join(gone)} any more"))
            else:
                kept.append(record)
        return kept, lost

    def _restore_records(self, recorded: Sequence[ObservedRoute]) -> None:
        """Nothing was displaced after all."""
        try:
            write_records(self._host.files, recorded)
        except HostFileError as error:
            # The next run finds those routes in their places; and what went wrong first matters more.
            self._logger.warning("%s", error)

    def _tell(self, outcome: Reconciliation) -> None:
        for change, route in outcome.displaced.items():
            self._logger.warning(
                "route '%s' of somebody else is displaced by '%s'; it comes back when ours goes",
                route,
                change.after,
                extra={"displaced": str(route), "route": str(change.after)},
            )
        if self._logger.isEnabledFor(logging.DEBUG):
            for change in outcome.changes:
                self._logger.debug("%s", change)

    def plan(self, resolution: Resolution) -> list[Change]:
        """What `converge` would change, once all that is missing can be looked up."""
        observed = self._host.routes.routes()
        records, _ = self._restorable(read_records(self._host.files))
        undecided = {_place_of(route) for route, _ in resolution.missing}
        outcome = reconcile(resolution.routes, observed, displaced=records, undecided=undecided)
        devices = {link.name for link in self._host.routes.links()} if resolution.missing else set()
        waiting = [
            Change("+", str(route), f"looked up when a default route is there: {reason}")
            if route.dev is None or route.dev in devices
            else Change("+", str(route), refused(_no_device(route.dev)))
            for route, reason in resolution.missing
        ]
        # What cannot come back is given up, and hinders nothing.
        ours = [change for change in outcome.changes if change not in outcome.put_back]
        foreseen = self._foreseen(ours, observed)
        return waiting + [_shown(change, outcome, foreseen) for change in outcome.changes]

    def _foreseen(self, changes: Sequence[RouteChange], observed: Sequence[ObservedRoute]) -> dict[RouteChange, str]:
        """What will hinder routes: their device, or the gateway on it, is not there."""
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
        """The same error; it says where a route of the kernel's own is in the way, and whether time may heal it."""
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
            may_heal=may_heal,
        )

    def _may_heal(self, refusals: Iterable[Refusal], changes: Iterable[RouteChange]) -> bool:
        """Whether each refusal is of a route whose device is absent, down, or has no IPv4 address yet.

        With device, carrier and address there, 'Nexthop has invalid gateway' is a mistake in the config: the kernel's
        error number is the same for both.
        """
        devs = {str(change): {change.after.dev} for change in changes if change.after is not None}
        usable = {link.name for link in self._host.routes.links() if _is_usable(link)}
        return all(
            refusal.errno in _MAY_HEAL and not usable.issuperset(devs.get(refusal.change, set()))
            for refusal in refusals
        )


def _is_usable(link: Link) -> bool:
    return link.up and bool(link.addresses)


def _no_device(dev: str) -> str:
    return f"there is no network device {dev}; correct its 'dev'"


def _without_gateway(changes: Iterable[RouteChange], observed: Sequence[ObservedRoute]) -> dict[RouteChange, str]:
    """The routes whose gateway no route reaches on the link of their device: the kernel takes none of them."""
    reached: dict[tuple[int, str], bool] = {}
    lost: dict[RouteChange, str] = {}
    for change in changes:
        route = change.after
        if route is None or route.gateway is None or route.dev is None or route.onlink:
            continue
        hop = route.gateway, route.dev
        if hop not in reached:
            reached[hop] = _is_on_link(*hop, observed)
        if not reached[hop]:
            gateway = format_ipv4(route.gateway)
            lost[change] = f"no network of {route.dev} has the gateway {gateway}; correct its 'gateway' or 'dev'"
    return lost


def _is_on_link(gateway: int, dev: str, observed: Iterable[ObservedRoute]) -> bool:
    # Of any table, for rules may lead the kernel there: what is foreseen here is refused for certain.
    return any(
        route.gateway is None and dev in route.devs and (gateway ^ route.network) >> (32 - route.prefix_length) == 0
        for route in observed
    )


def _place_of(route: StaticRoute) -> Place:
    network, prefix_length = parse_cidr(route.destination)
    return MAIN_TABLE, network, prefix_length, 0, route.metric


def _shown(change: RouteChange, outcome: Reconciliation, foreseen: Mapping[RouteChange, str]) -> Change:
    before, after = change.before, change.after
    if before is None and not outcome.in_the_way and not outcome.put_back and not foreseen:
        return Change("+", str(after))  # what most are
    if change in outcome.in_the_way:
        return Change("+", str(after), refused(_never_overwritten(outcome.in_the_way[change])))
    if after is None:
        return Change("-", str(before))
    if change in foreseen:
        return Change("+" if before is None else "~", str(after), foreseen[change])
    comes_back = change in outcome.put_back
    if before is None:
        return Change("+", str(after), "put back" if comes_back else None)
    if change in outcome.displaced:
        return Change("~", str(after), f"displaces '{before}', which comes back when ours goes")
    if change in outcome.adopted:
        return Change("~", str(after), f"adopts '{before}'")
    # Metrics of the route itself, such as an mtu, are not among the words that people know a route by.
    earlier = "the same with other attributes" if str(before) == str(after) else f"'{before}'"
    return Change("~", str(after), f"{'put back, ' if comes_back else ''}was {earlier}")


def _never_overwritten(own: ObservedRoute) -> str:
    return (
        f"the kernel's own route '{own}' has this destination and metric, and is never overwritten; "
        f"configure narrower destinations, or another metric"
    )


def _with_routes(error: LinkNotFoundError, routes: Iterable[Route]) -> LinkNotFoundError:
    """The same error; it says whose device is missing."""
    of_device = [f"\n  {route}" for route in routes if route.dev == error.dev]
    step = f"; correct the 'dev' of:{''.join(of_device)}" if of_device else ""
    return LinkNotFoundError(f"{error}{step}", dev=error.dev, errno=error.errno, may_heal=True)


def _refused_to_come_back(outcome: Reconciliation, error: RouteRejectedError) -> list[GivenUp]:
    """The displaced routes that the kernel does not take back, if these are all that it refused."""
    coming_back = {str(change): record for change, record in outcome.put_back.items()}
    if not error.rolled_back or any(refusal.change not in coming_back for refusal in error.refusals):
        return []
    return [GivenUp(coming_back[refusal.change], refusal.reason) for refusal in error.refusals]
