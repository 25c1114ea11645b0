"""The machine as our tasks see it: few methods, our own value types; the docstrings are the contract.

The contract suites in `hostrouting.testing` hold an implementation to everything that is promised here. Two ports are
the network as it is: `RouteBackend` is how the node routes IPv4, with its changes; all else belongs to `LinkLayer`:
devices in every detail, neighbours, bridge stations, BPF programs and IPv6, with their changes. `NetworkEvents` has
the changes that other programs make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from hostrouting.host.packets.ebtables_rules import EbtablesReading, EbtablesRule
    from hostrouting.host.units import UnitState
    from hostrouting.net.changes import RouteChange
    from hostrouting.net.events import NetworkEvent
    from hostrouting.net.links import Device, Neighbour, Station
    from hostrouting.net.routes import Lookup, ObservedRoute
    from hostrouting.net.rules import Rule
    from phases import Context

__all__ = [
    "Ebtables",
    "FileStore",
    "InstanceMetadata",
    "LinkLayer",
    "Listener",
    "NetworkEvents",
    "Nftables",
    "RouteBackend",
    "Routing",
    "RunLock",
    "ServiceManager",
    "Supervisor",
]


class Routing(Protocol):
    """The IPv4 routing of a node, to be read: a network namespace's, or a model's (`hostrouting.fib.Fib`).

    Reading needs no privilege. Every failure is a `BackendError`.
    """

    def links(self) -> list[Device]:
        """Return every network device, by interface index, with its addresses and known neighbours (IPv4)."""

    def routes(self) -> list[ObservedRoute]:
        """Return the routes of every table, including those that the kernel made.

        Within a table they are ordered by network, then by prefix length (longest first) and metric. The result is a
        snapshot: a table that changed meanwhile is read again.
        """

    def rules(self) -> list[Rule]:
        """Return the policy rules in the order in which the kernel tries them; a fresh namespace has three."""

    def lookup(
        self, destinations: Sequence[int], *, sources: Sequence[int | None] | None = None, resolve: bool = False
    ) -> list[Lookup]:
        """Return which route decides each destination: one answer per destination, in the same order.

        The route is the one in the table, with all its next hops. An address of the node itself is decided by a
        `local` route whose device has the address. `sources` has one entry per destination: the source address that the
        packet already has, or None. The packet belongs to root (uid 0), whatever the user of this process.

        With `resolve` the answer is the path of one packet instead: the next hop that its hash picks, and in `source`
        the address that the kernel would send from. (If a rule selects by source, ask this way first, and then ask
        again with that source.)
        """


class RouteBackend(Routing, Protocol):
    """The IPv4 routes of one network namespace.

    Reading needs no privilege. Every method may be called from any thread. Every failure is a `BackendError`, never an
    error of the library or system call underneath.
    """

    def routes_of(self, protocol: int) -> list[ObservedRoute]:
        """Return the routes of one protocol, as `routes` shows them: a small part of a big table costs little."""

    def apply(
        self,
        changes: Sequence[RouteChange],
        *,
        verify: bool = True,
        standing: Sequence[ObservedRoute] | None = None,
    ) -> None:
        """Make all the changes, in their order, or none of them.

        If a change is refused, every change of the batch that succeeded is rolled back and the routes are read again;
        `RouteRejectedError` names every refusal and says if the rollback is complete. With `verify` the routes are read
        after a success too, and a change that did not last counts as refused. A device that does not exist is a
        `LinkNotFoundError` before anything is sent; missing privilege is a `PermissionDeniedError`.

        A removal removes the route of its full description and no other, and is refused if there is none. So `prepend`,
        then `remove`, is a compare-and-swap, and a refusal means that another program was faster: read again. A
        deletion cannot express every field, see `is_deleted_by`. So the routes are read first, and a removal for which
        the kernel would take another route is refused before anything is sent. A rollback appends removed routes after
        the others of their place, and removes added routes as the kernel holds them: it overwrites nothing.
        `left_behind` names the differences that remain.

        A caller that knows the routes of all places that the changes concern gives them as `standing`, in the kernel's
        order. Then they are not read first, so that a few changes cost the same in a table of any size.

        Refusals, by errno: EEXIST an addition to an occupied place, or of a route that exists; ESRCH a removal of a
        route that does not exist, or instead of which the kernel would remove another; ENETUNREACH a gateway that is
        not on a link of that device; ENETDOWN a device that is down; EINVAL a source address that is not the node's;
        ENODEV a device that vanished meanwhile.
        """


class FileStore(Protocol):
    """The files of one machine, or of one offline image.

    Paths are absolute, and have their meaning on the target machine: in an image, a symbolic link such as `/etc ->
    /srv/etc` stays inside it. Every method may be called from any thread. Every failure is a `HostFileError` with the
    path, the action and the reason; an absent file is an answer and no error.
    """

    def read(self, path: str, *, limit: int | None = None) -> bytes | None:
        """Return the content, following symbolic links; None for an absent file or a broken link.

        With `limit`, return the first bytes only, at most so many, and read no more of the file.
        """

    def write(self, path: str, content: bytes, *, mode: int) -> bool:
        """Make `path` a file with exactly this content and these permission bits; return True if that changed anything.

        A file that is right stays untouched and keeps its mtime; if only the mode is wrong, only the mode changes.
        Otherwise the new file replaces the old one in a single step and is on the disk when this returns: no reader,
        and no machine that loses power, ever sees half of it. A symbolic link at `path` is replaced, never followed.
        Missing folders are made, with mode 0755. Leftovers of a killed writer of this file are removed.
        """

    def link(self, path: str, target: str) -> bool:
        """Make `path` a symbolic link with the text `target`; return True if that changed anything.

        The link replaces a file or another link in a single step, and is on the disk when this returns. A folder at
        `path` is refused. Missing folders are made, with mode 0755.
        """

    def mode(self, path: str) -> int | None:
        """Return the permission bits of a file, following symbolic links; None if there is no file."""

    def modified(self, path: str) -> float | None:
        """Return when the content of a file last changed, in seconds since the epoch, following symbolic links.

        None if there is no file.
        """

    def exposed(self, path: str) -> str | None:
        """Return why another user could change the target of `path`: its owner or mode, or a folder on the way.

        None if only root and the caller could. The walk ends at the first absent name. A sticky folder such as /tmp
        counts as any other: any user may create the absent name in it.
        """

    def rename(self, path: str, name: str) -> bool:
        """Give a file, link or folder another name in its folder; return False if it is absent.

        A name that is taken is refused. The new name is on the disk when this returns.
        """

    def remove(self, path: str) -> bool:
        """Remove the file or symbolic link (never its target); return False if it is absent. A folder is refused.

        Leftovers of a killed writer of this file are removed, too.
        """

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder, none if it is absent, without files that a writer has under way."""

    def exists(self, path: str) -> bool:
        """Return True if the path is a file, a folder, or a symbolic link, even a broken one."""

    def read_link(self, path: str) -> str | None:
        """Return the text of the symbolic link; None if the path is none."""

    def remove_directory_if_empty(self, path: str) -> bool:
        """Remove an empty folder; return False if it is absent, is not empty, or has a file system mounted on it.

        Leftovers of killed writers do not count, and are removed.
        """

    def refuse_unwritable(self, path: str, *, size: int) -> None:
        """Raise the HostFileError that a write of `size` bytes below a folder would raise now; changes nothing.

        It finds a read-only or full file system, and a folder that the caller may not write to.
        """

    def sweep(self, path: str) -> None:
        """Remove the leftovers of killed writers in a folder, if there is one.

        A leftover has the name of a file under way, belongs to the caller, and no living process writes it.
        """

    def is_locked(self, path: str) -> bool:
        """Return True if a process holds a lock on the file, by flock or fcntl; False if there is no file.

        The question takes no lock, not even for a moment, so it never gets in the way of another program.
        """


class ServiceManager(Protocol):
    """The systemd units of one machine, or of one offline image.

    In an image nothing runs: `daemon_reload`, `start` and `stop` only log, and no unit is active. So a task makes the
    same calls for both. A refusal of systemd is a `UnitError` with the command, its exit status and systemd's own
    words. Every method is bound by its context; a job that systemd has begun goes on when the caller gives up.

    `unit` may be a template (`systemd-nspawn@.service`) if the description says so.
    """

    def daemon_reload(self, ctx: Context) -> None:
        """Make systemd read all unit files and links again."""

    def start(self, ctx: Context, unit: str, *, wait: bool = True) -> None:
        """Start the unit with all units that it requires, and wait: a oneshot has ended, a service is up.

        Refused if the unit, or one that it requires, fails or does not exist. A running unit goes on undisturbed.
        Without `wait`, systemd has only taken the job: no failure of a unit is known yet.
        """

    def stop(self, ctx: Context, unit: str) -> None:
        """Stop the unit, wait for it, and reset a failure; fine if it does not run or exist."""

    def state(self, ctx: Context, unit: str) -> UnitState:
        """Return the state of the unit; for a template, that of an instance that does not run."""

    def running(self, ctx: Context, unit: str) -> list[UnitState]:
        """Return the unit if it is running; for a template, all running instances sorted by name."""

    def ordered_before(self, ctx: Context, unit: str) -> frozenset[str]:
        """Return every unit that waits for this one, or for an instance of this template, directly or through others.

        For an image, only `Before=` in the unit files counts.
        """

    def settings(self, ctx: Context, unit: str, *names: str) -> dict[str, str]:
        """Return the final text of settings by name, for the unit or for the next instance of a template.

        Drop-ins count. If the unit is absent or nothing sets it, the text is empty or systemd's default. Commands are
        one a line, each with its arguments; durations have any form that systemd writes.
        """


class Supervisor(Protocol):
    """The service manager that started this process, and waits for its signs; or none, and each sign is for nothing.

    Every method may be called from any thread, and raises nothing: the work is the same if a sign is lost. A `status`
    is text for people; line breaks in it become spaces.
    """

    @property
    def seconds_between_signs(self) -> float | None:
        """The longest time between two calls of `alive`; None if the manager does not wait for them.

        The manager waits twice as long before it restarts the process.
        """

    def ready(self, status: str) -> None:
        """Tell that the start, or a reload, is done."""

    def status(self, status: str) -> None:
        """Tell the present state."""

    def reloading(self) -> None:
        """Tell that a reload begins; `ready` tells its end."""

    def alive(self) -> None:
        """Tell that the work goes on."""

    def stopping(self) -> None:
        """Tell that the process is about to end."""


class RunLock(Protocol):
    """One run at a time. The kernel releases the lock when the process that holds it ends, however it ends."""

    def hold(self, ctx: Context) -> AbstractContextManager[Context]:
        """Hold the lock while the `with` block runs, and return the context for the code inside.

        First wait for the lock until the context's deadline; then `LockHeldError` names the process that holds it. A
        context without a deadline waits ten minutes, so that nothing waits for ever. A cancelled context raises
        `CancelledError`.

        With the returned context, or one derived from it, the same lock is held already: `hold` then only waits for
        its turn among the tasks of this run. Any other context waits, in this process too.
        """


class LinkLayer(Protocol):
    """The devices, neighbours, bridge stations, BPF programs and IPv6 routes of one network namespace.

    Reading needs no privilege. Every method may be called from any thread. Every failure is a `BackendError`.
    """

    def devices(self) -> list[Device]:
        """Return every network device, by interface index, with its addresses of both families."""

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

    def answering(self, ctx: Context, asked: Sequence[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Ask on the link for each (device, address); return the pairs that were answered.

        No table of this node changes. A node that is asked for an IPv6 address may note the sender, as for any packet,
        in an entry that ages; its permanent entries stay, and it keeps an address that it is still probing (tentative),
        for which it does not answer yet. It waits up to a second, or until every address is answered. On a device that
        is down or gone nothing is answered. Without CAP_NET_RAW it raises `PermissionDeniedError`.
        """

    def silent(self, ctx: Context, asked: Sequence[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Return those of the pairs (device, IPv4 address) from which the kernel gets no answer.

        If the kernel does not know the hardware address, a datagram to the port `discard` makes it ask: an entry of its
        table may say for long that an address failed which answers again. It is given up to 2.5 seconds, or until all
        have answered. A device that is gone or without carrier is not asked by. It needs no privilege, but a packet
        filter may refuse the datagram, which is a `PermissionDeniedError`.
        """

    def routes(self) -> list[ObservedRoute]:
        """Return the IPv6 routes of every table but the local one, sorted; a snapshot."""

    def leaves_by(self, address: str) -> tuple[str, ...]:
        """Return the devices by which a packet to the IPv6 address may leave, sorted.

        They are those of all next hops of the deciding route; none if no route leads there, or one that blocks. An
        address of the node leaves by the device that has it.
        """

    def apply(
        self, *, remove: Sequence[Neighbour | ObservedRoute] = (), add: Sequence[Neighbour | ObservedRoute] = ()
    ) -> None:
        """Make all the changes, removals first, or none of them.

        A removal removes the object of its full description and no other. If a change is refused, those that succeeded
        are rolled back, newest first, and everything is read again; `RouteRejectedError` names every refusal and says
        if the rollback is complete. An object that is removed and added again has every detail as before. Missing
        privilege is a `PermissionDeniedError`.

        Refusals, by errno: ENOENT or ESRCH a removal of an object that does not exist, or instead of which the kernel
        would remove another; EEXIST an addition to an occupied place; ENODEV a device that is gone; EINVAL an object
        that the kernel would change.
        """


class NetworkEvents(Protocol):
    """The changes of one network namespace, as the kernel announces them.

    They are those of devices, and of IPv4 routes, addresses, rules and neighbours. Listening needs no privilege, but
    without CAP_NET_ADMIN a burst of some hundred events may be lost.

    The kernel announces nothing of the routes that go with a device or an address, except those that it made for the
    address; newer kernels also announce the routes that send from a removed address. A next hop that dies with its
    device, and revives, is not announced either. `hostrouting.fib.events` knows all of these.
    """

    def listen(self, ctx: Context) -> AbstractContextManager[Listener]:
        """Listen while the `with` block runs; from the return of `__enter__` on no announced change is missed.

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

    def table(self, ctx: Context, family: str, name: str) -> list[dict[str, Any]] | None:
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
        """Delete the rules, each by its full description, through its backend; all or none.

        Of identical rules the first ones are deleted. That matters only for their order after `insert`, unless all of
        them are deleted.

        If a rule is refused (it may be gone), the deleted ones are restored in their places, and the `BackendError` has
        the program's own words and the rules that could not be restored.
        """

    def insert(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """Insert the rules into their chains at their `position`, in ascending order; at the end of a shorter chain.

        So the rules of a `delete` get their places back, unless another program has changed the chain. All or none.
        """


class InstanceMetadata(Protocol):
    """The cloud's description of this virtual machine."""

    def network_interfaces(self, ctx: Context) -> object:
        """Return the decoded JSON of the cloud's description of the network interfaces, whatever it contains.

        An answer that may improve is asked for again, with growing pauses, as long as the context and the adapter's
        limit allow. After that, and for an answer that is not JSON, a `BackendError` has the answer.
        """
