"""The network as our tasks see it: few methods, our own value types; the docstrings are the contract.

The contract suites in `hostrouting.testing` hold an implementation to everything that is promised here. Two ports are
the network as it is: `RouteBackend` is how the node routes both families, with its changes; all else belongs to
`LinkLayer`: neighbours, bridge stations, BPF programs, and questions on the link. `NetworkEvents` has the changes that
other programs make. `Nftables` and `Ebtables` are the packet filters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hostrouting.net.addresses import IPV4, IPV6

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from hostrouting.host.packets.ebtables_rules import EbtablesReading, EbtablesRule
    from hostrouting.host.packets.nft import Listing
    from hostrouting.net.changes import RouteChange
    from hostrouting.net.events import NetworkEvent
    from hostrouting.net.links import Device, Neighbour, Station
    from hostrouting.net.routes import Lookup, ObservedRoute
    from hostrouting.net.rules import Rule
    from phases import Context

#: An address on the link of a device: (device, address).
LinkAddress = tuple[str, str]


class Routing(Protocol):
    """The routing of a node, to be read: a network namespace's, or a model's (`hostrouting.fib.Fib`).

    `family` is `IPV4` or `IPV6`, one that is in `families`. Reading needs no privilege. Every failure is a
    `BackendError`. A node without IPv6 has no routes and rules of it, and each lookup is ENETUNREACH.
    """

    @property
    def families(self) -> tuple[int, ...]:
        """The families that it knows: a config with another one is refused. A class attribute will do."""

    def links(self) -> list[Device]:
        """Return every network device, by interface index, with its addresses, and its known IPv4 neighbours."""

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        """Return the routes of every table, including those that the kernel made, but none that it only caches.

        Within a table they are ordered by network, then by prefix length (longest first) and metric, and within a place
        as the kernel has them. The next hops of an IPv6 route are sorted, as text. The result is a snapshot: a table
        that changed meanwhile is read again.
        """

    def rules(self, family: int = IPV4) -> list[Rule]:
        """Return the policy rules in the order in which the kernel tries them.

        A fresh namespace has three, and two of IPv6.
        """

    def lookup(
        self,
        destinations: Sequence[int],
        *,
        sources: Sequence[int | None] | None = None,
        resolve: bool = False,
        family: int = IPV4,
    ) -> list[Lookup]:
        """Return which route decides each destination: one answer per destination, in the same order.

        The route is the one in the table, with all its next hops. An address of the node itself is decided by a
        `local` route whose device has the address. `sources` has one entry per destination: the source address that the
        packet already has, or None. The packet belongs to root (uid 0), whatever the user of this process. The kernel
        takes an IPv4 packet for UDP, and one of IPv6 for no protocol.

        With `resolve` the answer is the path of one packet instead: the next hop that its hash picks, and in `source`
        the address that the kernel would send from. (If a rule selects by source, ask this way first, and then ask
        again with that source.)
        """


class RouteBackend(Routing, Protocol):
    """The routes of one network namespace.

    Reading needs no privilege. Every method may be called from any thread. Every failure is a `BackendError`, never an
    error of the library or system call underneath.
    """

    def routes_of(self, protocol: int, family: int = IPV4) -> list[ObservedRoute]:
        """Return the routes of one protocol, as `routes` shows them: a small part of a big table costs little."""

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        """Make all the changes of both families, in their order, or none; see `RouteChange` for those that come last.

        If a change is refused, every change of the batch that succeeded is rolled back and the routes are read again;
        `RouteRejectedError` names every refusal and says if the rollback is complete. With `verify` the routes are read
        after a success too, and a change that did not last counts as refused. A device that does not exist is a
        `LinkNotFoundError` before anything is sent; missing privilege is a `PermissionDeniedError`.

        A removal removes the route of its full description and no other, and is refused if there is none. So `prepend`,
        then `remove`, is a compare-and-swap, and a refusal means that another program was faster: read again. A
        deletion cannot express every field, see `is_deleted_by`. So the routes are read first, and a removal for which
        the kernel would take another route is refused before anything is sent. A rollback returns removed routes to the
        first or the last position of their place, and removes added routes as the kernel holds them: it overwrites
        nothing. An IPv6 route by a gateway returns to an empty place only, with all its next hops: it is never merged
        with another. `left_behind` names the differences that remain, such as a route that stood between others.

        Refusals, by errno: EEXIST an addition to an occupied place, or of a route that exists; ESRCH a removal of a
        route that does not exist, or instead of which the kernel would remove another; ENETUNREACH a gateway that is
        not on a link of that device (EHOSTUNREACH of IPv6); ENETDOWN a device that is down; EINVAL a source address
        that is not the node's; ENODEV a device that vanished meanwhile.
        """


class LinkLayer(Protocol):
    """The neighbours, bridge stations and BPF programs of one network namespace.

    Reading needs no privilege. Every method may be called from any thread. Every failure is a `BackendError`.
    """

    def newest_address(self, dev: str) -> float | None:
        """Return the seconds since the newest IPv6 address was added to the device; None without addresses.

        The kernel adds the link-local one when the device comes up, and then asks for routers.
        """

    def classifiers(self, dev: str) -> tuple[str, ...]:
        """Return the names of the BPF programs that tc or tcx runs for packets of the device, sorted, each once.

        Names from tcx are cut after 15 bytes; without privilege they are not seen, and that is logged once.
        """

    def neighbours(self) -> list[Neighbour]:
        """Return the neighbours of both families that have a hardware address, sorted by device and address."""

    def stations(self, bridge: str) -> list[Station]:
        """Return the forwarding database of a bridge, sorted; empty if there is no such bridge."""

    def answering(self, ctx: Context, asked: Sequence[LinkAddress]) -> frozenset[LinkAddress]:
        """Ask on the link for each (device, address); return the pairs that were answered.

        No table of this node changes. A node that is asked for an IPv6 address may note the sender, as for any packet,
        in an entry that ages; its permanent entries stay, and it keeps an address that it is still probing (tentative),
        for which it does not answer yet. It waits up to a second, or until every address is answered. On a device that
        is down or gone nothing is answered. Without CAP_NET_RAW it raises `PermissionDeniedError`.
        """

    def silent(self, ctx: Context, asked: Sequence[LinkAddress]) -> frozenset[LinkAddress]:
        """Return those of the pairs (device, IPv4 address) from which the kernel gets no answer.

        If the kernel does not know the hardware address, a datagram to the port `discard` makes it ask: an entry of its
        table may say for long that an address failed which answers again. It is given up to 2.5 seconds, or until all
        have answered. A device that is gone or without carrier is not asked by. It needs no privilege, but a packet
        filter may refuse the datagram, which is a `PermissionDeniedError`.
        """

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """Remove neighbours, each by its full description; one that differs stays.

        `NeighbourRejectedError` names each refusal, and has the neighbours that were removed: they do not come back by
        themselves. What can be known is refused before anything is sent. Missing privilege is a
        `PermissionDeniedError`.

        Refusals, by errno: ENOENT a neighbour that does not exist, or instead of which the kernel would remove another;
        ENODEV a device that is gone; EINVAL a neighbour that the kernel would not show so.
        """

    def add_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """Add neighbours to empty places; a removed one that is added again has every detail as before.

        The errors are those of `remove_neighbours`, and EEXIST for an occupied place.
        """


class NetworkEvents(Protocol):
    """The changes of one network namespace, as the kernel announces them.

    They are those of devices, and of routes, addresses and rules of both families. Listening needs no privilege, but
    without CAP_NET_ADMIN a burst of some hundred events may be lost.

    The kernel announces nothing of the routes that go with a device or an address, except those that it made for the
    address; newer kernels also announce the routes that send from a removed address. A next hop that dies with its
    device, and revives, is not announced either.
    """

    def listen(self, ctx: Context, *, families: Sequence[int] = (IPV4, IPV6)) -> AbstractContextManager[Listener]:
        """Listen while the `with` block runs; from the return of `__enter__` on no announced change is missed.

        Routes, addresses and rules are those of `families`.

        `ctx` is notified when there is something to take, so a task waits with `ctx.wait`, and uses no processor time
        meanwhile. Several listeners do not disturb each other. A cancelled context raises `CancelledError`.
        """


class Listener(Protocol):
    """The events of one `listen`; one thread at a time may take them.

    A reading of the node is exact if nothing happened meanwhile: `take()`, read, and `take()` nothing. If an event
    comes after the first `take`, the reading may show it or not. Read again, or let the event change nothing that is so
    already; the second can go wrong where a route replaced another, so compare everything later.
    """

    @property
    def has_news(self) -> bool:
        """True if `take` would return events or raise; wait for it by `ctx.wait(lambda: listener.has_news)`."""

    def take(self) -> list[NetworkEvent]:
        """Return the events since the last call (or since `listen`), in the kernel's order; never wait for one.

        Every change that had been made before the call is among them. `EventsLostError` says that events were lost,
        because there were more than the listener can hold, or because one cannot be read: read everything anew. The
        next call returns the events after that error. Any other failure is a `BackendError` of another type: events may
        be lost, too, and if listening has ended, each later call raises it again.
        """


class Nftables(Protocol):
    """The nftables ruleset of one network namespace, a table at a time. Reading it needs CAP_NET_ADMIN, too.

    If nft is not installed every method raises `ToolNotFoundError`; without privilege `PermissionDeniedError`. Any
    other failure is a `BackendError` with nft's own words. Every method is bound by its context.
    """

    def table(self, ctx: Context, family: str, name: str) -> Listing | None:
        """Return the objects of `nft -j list table`, chains before rules; None if there is no such table.

        Each is an object with one key, `chain`, `rule`, ..., as in libnftables-json(5). The table itself is first, and
        the rules are last, chain by chain. Values that differ between readings or releases of nft are left out: there
        are no handles, no comments of tables and chains, and a counter is `{"counter": None}`.

        Of a table with flags (`dormant`, `owner`), which not every nft can put into JSON, the listing shows only that
        it exists: `[{"table": {"family": ..., "name": ..., "unreadable": True}}]`.
        """

    def load(self, ctx: Context, ruleset: str) -> None:
        """Run an nft script in one transaction: all of it takes effect or, if it is refused, nothing."""

    def check(self, ctx: Context, ruleset: str) -> None:
        """Raise the error that `load` would raise; change nothing."""


class Ebtables(Protocol):
    """The rules of the ebtables table `nat` in one network namespace, of both backends: `nft` and `legacy`.

    Reading them needs CAP_NET_ADMIN, too. If a backend is not installed, not supported by the kernel, or not readable,
    that is a note in the reading and no error. Every method is bound by its context.
    """

    def read(self, ctx: Context) -> EbtablesReading:
        """Return every rule, chain by chain in its order, with notes on backends that could not be read."""

    def delete(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """Delete the rules, each by its full description, through its backend.

        Of identical rules the first ones are deleted. That matters only for their order after `insert`, unless all of
        them are deleted.

        If a rule is gone, nothing is deleted. If one is refused, or another program adds one again, the `BackendError`
        has the program's own words; rules that were deleted by then do not come back by themselves, but by `insert`.
        """

    def insert(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """Insert the rules into their chains at their `position`, in ascending order; at the end of a shorter chain.

        So the rules of a `delete` get their places back, unless another program has changed the chain. After a
        refusal the rules that were inserted by then stay.
        """
