"""The machine as the tasks see it: few methods, with values of `hostrouting.net` for the network.

The docstrings are the contract.

The contract suites of `hostrouting.testing` hold an implementation to every promise. The first
paragraph of a method is what it does, with an example; *Refusals* and *Kernel* follow where there
are any. `RouteBackend` reads and changes the routing of both families. `LinkLayer` has neighbours,
bridge stations and BPF programs. `NetworkEvents` announces the changes of
other programs. `Nftables` and `Ebtables` are the packet filters. The rest of the machine follows:
files, units, the service manager, the run lock and the cloud.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from ipaddress import IPv4Network, IPv6Network
from typing import Protocol, TypeAlias

from hostrouting.host.files.rooted import Exposure
from hostrouting.host.packets.ebtables_rules import EbtablesReading, EbtablesRule
from hostrouting.host.packets.nft import Listing
from hostrouting.host.units import UnitState
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.events import NetworkEvent
from hostrouting.net.links import Device, Neighbour, Station
from hostrouting.net.routes import Lookup, ObservedRoute, RouteChange
from hostrouting.net.rules import Rule
from phases import Context

#: A network of the standard library, which stands for its text.
Network: TypeAlias = IPv4Network | IPv6Network
#: An address on the link of a device: (device, address).
LinkAddress = tuple[str, str]


class Routing(Protocol):
    """The routing of a node, to read: a network namespace's, or that of a model.

    `family` is `IPV4` or `IPV6`, one of `families`. Reading needs no privilege. Every failure is a
    `BackendError`. On a node without IPv6 the lists of routes and rules of this family are empty,
    and each lookup is ENETUNREACH.
    """

    @property
    def families(self) -> tuple[int, ...]:
        """The supported families; a config with another one is refused. A class attribute will do.

        For example `families = (IPV4,)` in a backend that reads IPv4 only.
        """

    def links(self) -> list[Device]:
        """Return every network device, by interface index, with all that `Device` has.

        Addresses are of both families, whatever `families` has. Neighbours are sorted by address.
        The loopback device is among the devices: `backend.links()[0].name` is usually `"lo"`.
        """

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        """Return the routes of every table, including those that the kernel made.

        The result is a snapshot. Within a table it is ordered by network, prefix length (longest
        first) and metric, and within a place as the kernel has it: `10.0.0.0/24` precedes
        `10.0.0.0/16`, which precedes `10.1.0.0/16`. The next hops of an IPv6 route are sorted, as
        text. A route by a device without carrier has RTNH_F_LINKDOWN in its flags, a next hop by a
        device that is down is `dead`, and an attribute without a field is in `extra`.

        *Kernel*: cached routes are left out. A table that changes during the reading is read again.
        """

    def rules(self, family: int = IPV4) -> list[Rule]:
        """Return the policy rules in the order in which the kernel tries them.

        In a fresh namespace, for example, `rules()` are the lookups of the tables local, main and
        default; `rules(IPV6)` are those of local and main.
        """

    def lookup(
        self,
        destinations: Sequence[int],
        *,
        sources: Sequence[int | None] | None = None,
        resolve: bool = False,
        family: int = IPV4,
    ) -> list[Lookup]:
        """Return which route decides each destination: an answer for each, in the same order.

        The route is the one in the table, with its prefix and all its next hops: a proof counts an
        answer for no other addresses. See `Lookup` for the errno of an address without one. An
        address of the node itself is decided by a `local` route whose device has the address.
        `sources` has one entry per destination, or it is a ValueError: the source address that the
        packet already has, or None. With `resolve` the answer is the path of one packet instead:
        the next hop that its hash picks (by `lo` to the node itself), and in `source` the address
        from which the kernel would send. Where a rule selects by source, two lookups give the final
        answer::

            [path] = backend.lookup([destination], resolve=True)
            [final] = backend.lookup([destination], sources=[path.route.source])

        *Kernel*: the packet belongs to root (uid 0), whatever the user of this process. An IPv4
        packet counts as UDP, an IPv6 packet as one without protocol.
        """


class Announced(Protocol):
    """The changes of a network namespace since this was made."""

    def take(self, names: Mapping[int, str]) -> list[NetworkEvent]:
        """Return the events since the last call, in the kernel's order; wait for those under way.

        `names` are the names of devices by interface index, read after this was made.

        *Refusals*: `EventsLostError` means that there were more events than it can hold, or that
        one cannot be read: make another one, and read everything anew.
        """


class RouteBackend(Routing, Protocol):
    """The routes of one network namespace.

    Reading needs no privilege, and each call reads anew. Every method may be called from any
    thread. Every failure is a `BackendError`, never an error of the library or system call
    underneath.

    A backend that cannot keep the attribute RTA_METRICS of a route, such as an mtu, declares it by
    the class attribute `keeps_metrics = False`. Then it refuses an addition of such a route as any
    refusal, with the word `metrics` and the next step in the reason, and never installs less.

    A backend that can announce changes has a method `listen() -> Announced`. With any other one a
    check reads routes, rules and devices before and after its lookups, and compares.
    """

    def routes_of(self, protocol: int, family: int = IPV4) -> list[ObservedRoute]:
        """Return the routes of one protocol, in the order of `routes`.

        `routes_of(142)`, for example, is all that hostrouting has installed. A few routes of a big
        table cost little.
        """

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        """Make all the changes of both families, in their order, or none of them.

        See `RouteChange` for the changes that come last. A removal takes the route of its full
        description only. So an addition and a removal are a compare-and-swap, whose refusal means
        that another program was faster::

            backend.apply([RouteChange.prepend(wanted), RouteChange.remove(present)])

        If a change is refused, the changes of the batch that succeeded are rolled back, and the
        routes are read again. With `verify` they are read after a success, too, and a change that
        did not last counts as refused.

        *Refusals*: `RouteRejectedError` names each refused change, in their order, if the rollback
        is complete, and in `left_behind` the differences that remain, each with its route, such as
        a new position. A device that does not exist is a `LinkNotFoundError` before anything is
        sent; missing privilege is a `PermissionDeniedError`.

        *Kernel*: a deletion cannot express every field. So the routes are read
        first, and a removal that would take another route is refused before anything is sent. A
        rollback overwrites nothing: removed routes return to the first or the last position of
        their place, and added ones are removed as the kernel holds them. An IPv6 route by a gateway
        returns to an empty place only, with all its next hops: it is never merged with another.

        *Errno of a refusal*: EEXIST an addition to an occupied place, or of a route that exists;
        ESRCH a removal of a route that does not exist, or instead of which the kernel would remove
        another; ENETUNREACH a gateway that is not on a link of that device (EHOSTUNREACH of IPv6);
        ENETDOWN a device that is down; EINVAL a source address that is not the node's; ENODEV a
        device that vanished meanwhile.
        """


class LinkLayer(Protocol):
    """The neighbours, bridge stations and BPF programs of one network namespace.

    Reading needs no privilege. Every method may be called from any thread. Every failure is a
    `BackendError`.
    """

    def newest_address(self, dev: str) -> float | None:
        """Return the seconds since the newest IPv6 address was added to the device.

        None for a device without IPv6 addresses. `newest_address("eth0")` is 3.5, for example,
        three and a half seconds after the device came up.

        *Kernel*: it adds the link-local address when the device comes up, and then solicits
        routers.
        """

    def classifiers(self, dev: str) -> tuple[str, ...]:
        """Return the names of the BPF programs that tc or tcx runs for packets of the device.

        They are sorted, each once: `("cil_from_netdev", "cil_to_netdev")` on a node with Cilium.

        *Kernel*: names from tcx are cut after 15 bytes. Without privilege they are not visible, and
        that is logged once.
        """

    def neighbours(self) -> list[Neighbour]:
        """Return the neighbours of both families that have a hardware address.

        They are sorted by device and address: `10.240.0.9 dev azure0` precedes `10.240.0.10 dev
        azure0`.
        """

    def stations(self, bridge: str) -> list[Station]:
        """Return the forwarding database of a bridge, sorted; empty for an absent bridge.

        `{station.dev for station in link_layer.stations("azure0")}`, for example, are its used
        ports.
        """

    def silent(self, ctx: Context, addresses: Sequence[LinkAddress]) -> frozenset[LinkAddress]:
        """Return those of the pairs (device, IPv4 address) from which the kernel gets no answer.

        It returns after 2.5 seconds, or as soon as all have answered. Pairs with a device that is
        gone or without carrier are left out. `silent(ctx, [("eth0", "10.224.0.1")])`, for example,
        is empty if the router answers.

        *Refusals*: it needs no privilege, but a packet filter may refuse a datagram, which is a
        `PermissionDeniedError`.

        *Kernel*: an entry of its table may be marked as failed long after the address answers
        again. So a datagram to the port `discard` makes it resolve each address that it has not
        resolved.
        """

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """Remove neighbours, each by its full description; one that has changed by now stays.

        `remove_neighbours([entry for entry in link_layer.neighbours() if is_stale(entry)])`, for
        example.

        *Refusals*: if one is absent or has changed, nothing is removed, and the `BackendError`
        names it. After any other failure the rest may be removed. Missing privilege is a
        `PermissionDeniedError`.
        """


class NetworkEvents(Protocol):
    """The changes of one network namespace, as the kernel announces them.

    They are those of devices, and of routes, addresses and rules of both families. Listening needs
    no privilege, but without CAP_NET_ADMIN a burst of some hundred events may be lost.

    The kernel announces nothing of the routes that go with a device or an address, except those
    that it made for the address; newer kernels also announce the routes that send from a removed
    address. A next hop that dies with its device, and revives, is not announced either.
    """

    def listen(
        self, ctx: Context, *, families: Sequence[int] = (IPV4, IPV6)
    ) -> AbstractContextManager[Listener]:
        """Listen while the `with` block runs: no announced change is missed from `__enter__` on.

        Routes, addresses and rules are those of `families`. `ctx` is notified when there is
        something to take, so a task waits without using processor time::

            with host.events.listen(ctx, families=(IPV4,)) as listener:
                wait(ctx, lambda: listener.has_news)
                events = listener.take()

        Several listeners are independent. A cancelled context raises `CancelledError`.
        """


class Listener(Protocol):
    """The events of one `listen`; one thread at a time may take them.

    A reading of the node is exact if nothing happened meanwhile: `take()`, read, and `take()`
    nothing. If an event comes after the first `take`, the reading may show it or not. Read again,
    or let the event change nothing that is so already; the second can go wrong where a route
    replaced another, so compare everything later.
    """

    @property
    def has_news(self) -> bool:
        """True if `take` would return events or raise: `wait(ctx, lambda: listener.has_news)`."""

    def take(self) -> list[NetworkEvent]:
        """Return the events since the last call or `listen`, in the kernel's order; never wait.

        Every change that had been made before the call is among them: after `ip route add`, for
        example, the next call has the new route.

        *Refusals*: `EventsLostError` means that there were more events than the listener can hold,
        or that one cannot be read: read everything anew. The next call returns the events after
        that error. Any other failure is a `BackendError` of another type: events may be lost, too,
        and if listening has ended, each later call raises it again.
        """


class Nftables(Protocol):
    """The nftables ruleset of one network namespace, by table. It needs CAP_NET_ADMIN to read, too.

    If nft is not installed every method raises `ToolNotFoundError`; without privilege
    `PermissionDeniedError`. Any other failure is a `BackendError` with nft's own words. Every
    method is bound by its context.
    """

    def table(self, ctx: Context, family: str, name: str) -> Listing | None:
        """Return the objects of `nft -j list table`, chains before rules; None without the table.

        Each is an object with one key, `chain`, `rule`, ..., as in libnftables-json(5). The table
        itself is first, and the rules are last, chain by chain. `table(ctx, "ip6", "probes")[0]`,
        for example, is `{"table": {"family": "ip6", "name": "probes"}}`. Values that differ between
        readings or releases of nft are left out: handles, and comments of tables and chains; a
        counter is `{"counter": None}`.

        *nft*: not every release can put a table with flags (`dormant`, `owner`) into JSON, so its
        listing is only `[{"table": {"family": ..., "name": ..., "unreadable": True}}]`.
        """

    def load(self, ctx: Context, ruleset: str) -> None:
        """Run an nft script in one transaction: all of it takes effect or, if refused, nothing.

        For example `nftables.load(ctx, "add table ip6 probes")`.
        """

    def check(self, ctx: Context, ruleset: str) -> None:
        """Raise the error that `load` would raise, and change nothing.

        `check(ctx, "add tabel ip6 probes")`, for example, raises a `BackendError` with the syntax
        error.
        """


class Ebtables(Protocol):
    """The rules of the ebtables table `nat` in one network namespace, of both `nft` and `legacy`.

    Reading them needs CAP_NET_ADMIN, too. Every method is bound by its context.
    """

    def read(self, ctx: Context) -> EbtablesReading:
        """Return every rule, chain by chain in its order, with notes on unreadable backends.

        A backend that is not installed, not supported by the kernel, or not readable is a note, not
        an error: `reading.notes` has the reason, and `reading.rules` the rules of the second
        backend.
        """

    def delete(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """Delete the rules, each by its full description, through its backend.

        `ebtables.delete(ctx, [rule for rule in reading.rules if is_stale(rule)])`, for example. Of
        identical rules the first ones are deleted.

        *Refusals*: a rule that is absent or refused is a `BackendError` with the program's own
        words. Nothing of nft's rules is deleted then; of legacy's, those before it are.
        """


# --- the rest of the machine


class FileStore(Protocol):
    """The files of one machine, or of one offline image.

    Paths are absolute, and have their meaning on the target machine: in an image, a symbolic link
    such as `/etc -> /srv/etc` stays inside it. Every method may be called from any thread. Every
    failure is a `HostFileError` with the path, the action and the reason; an absent file is an
    answer, not an error.
    """

    def read(self, path: str, *, limit: int | None = None) -> bytes | None:
        """Return the content, following symbolic links; None for an absent file or a broken link.

        With `limit`, return the first bytes only, at most so many, and read no more of the file.
        """

    def write(self, path: str, content: bytes, *, mode: int) -> bool:
        """Make `path` a file with this content and mode; return True if that changed anything.

        A file that is right stays untouched and keeps its mtime; if only the mode is wrong, only
        the mode changes. Otherwise the new file replaces the old one in a single step and is on the
        disk when this returns: no reader, and no machine that loses power, ever sees half of it. A
        symbolic link at `path` is replaced, never followed. Missing folders are made, with mode
        0755. Leftovers of a killed writer of this file are removed.
        """

    def link(self, path: str, target: str) -> bool:
        """Make `path` a symbolic link with the text `target`; return True if that changed anything.

        The link replaces a file or another link in a single step, and is on the disk when this
        returns. A folder at `path` is refused. Missing folders are made, with mode 0755.
        """

    def mode(self, path: str) -> int | None:
        """Return the permission bits of a file, following symbolic links; None if it is absent."""

    def folder_mode(self, path: str) -> int | None:
        """Return the permission bits of a folder, following symbolic links; None for all else."""

    def set_folder_mode(self, path: str, mode: int) -> None:
        """Give a folder these permission bits; an absent one is refused."""

    def modified(self, path: str) -> float | None:
        """Return when a file's content last changed, in seconds since the epoch.

        Symbolic links are followed; None for an absent file.
        """

    def exposed(self, path: str) -> Exposure | None:
        """Return why another user could change the target of `path`: an owner or a mode on the way.

        None if only root could; in an image, below its folder, root and the caller. The walk ends
        at the first absent name. A sticky folder such as /tmp counts as any other: any user may
        create the absent name in it.
        """

    def remove(self, path: str) -> bool:
        """Remove the file or symbolic link; return False if it is absent. A folder is refused.

        Leftovers of a killed writer of this file are removed, too.
        """

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder, none if it is absent, without temporary files."""

    def exists(self, path: str) -> bool:
        """Return True if the path is a file, a folder, or a symbolic link, even a broken one."""

    def read_link(self, path: str) -> str | None:
        """Return the text of the symbolic link; None if the path is none."""

    def remove_directory_if_empty(self, path: str) -> bool:
        """Remove an empty folder; return False if it is absent, not empty or a mount point.

        Leftovers of killed writers do not count, and are removed.
        """

    def refuse_unwritable(self, path: str, *, size: int) -> None:
        """Raise the HostFileError that a write of `size` bytes to a folder would; change nothing.

        It finds a read-only or full file system, and a folder that the caller may not write to.
        """

    def sweep(self, path: str) -> None:
        """Remove the leftovers of killed writers in a folder, if there is one.

        A leftover has the name of a file under way, belongs to the caller, and no living process
        writes it.
        """

    def is_locked(self, path: str) -> bool:
        """Return True if a process holds a lock on the file, by flock or fcntl.

        False for an absent file. The lock is never taken, not even for a moment, so another program
        can always take it.
        """


class ServiceManager(Protocol):
    """The systemd units of one machine, or of one offline image.

    In an image nothing runs: `daemon_reload`, `start` and `stop` only log, and no unit is active.
    So a task makes the same calls for both. A refusal of systemd is a `UnitError` with the command,
    its exit status and systemd's own words. Every method is bound by its context; a job that
    systemd has begun goes on when the caller gives up.

    `unit` may be a template (`systemd-nspawn@.service`) where the method's description allows it.
    """

    def daemon_reload(self, ctx: Context) -> None:
        """Make systemd read all unit files and links again."""

    def start(self, ctx: Context, unit: str, *, wait: bool = True) -> None:
        """Start the unit with its required units; wait until a oneshot has ended, a service is up.

        Refused if the unit, or one that it requires, fails or does not exist. A running unit goes
        on undisturbed. Without `wait`, systemd has only taken the job: no failure of a unit is
        known yet. So a limit of starts that the unit has reached is reset before.
        """

    def stop(self, ctx: Context, unit: str) -> None:
        """Stop the unit, wait for it, and reset a failure; fine if it does not run or exist."""

    def state(self, ctx: Context, unit: str) -> UnitState:
        """Return the state of the unit; for a template, that of an instance that does not run."""

    def states(self, ctx: Context, *units: str) -> list[UnitState]:
        """Return the `state` of each unit, in their order, by one query."""

    def loaded(self, ctx: Context, unit: str) -> list[UnitState]:
        """Return the unit if systemd has it in memory; for a template, its instances by name.

        They are the running ones, the failed ones, and some that are down: another unit names them.
        """

    def ordered_before(self, ctx: Context, unit: str) -> frozenset[str]:
        """Return every unit ordered after this one, or an instance of this template, transitively.

        For an image, the unit files and links count of all units that a boot would load.
        """

    def settings(self, ctx: Context, unit: str, *names: str) -> dict[str, str]:
        """Return the final text of settings by name, of the unit or a template's next instance.

        Drop-ins count. If the unit is absent or nothing sets it, the text is empty or systemd's
        default. Commands are one a line, each with its arguments; durations have any form that
        systemd writes.
        """


class Supervisor(Protocol):
    """The service manager that started this process and waits for its signals, if there is one.

    Every method may be called from any thread, and raises nothing: the work is the same if a signal
    is lost.
    """

    @property
    def seconds_between_signs(self) -> float | None:
        """The longest time between two messages `WATCHDOG=1`; None without a watchdog.

        The manager waits twice as long before it restarts the process.
        """

    def notify(self, **assignments: str) -> None:
        """Send one message with assignments of sd_notify(3); line breaks become spaces.

        `supervisor.notify(READY="1", STATUS="2 routes")`, for example.
        """


class ProgramTrial(Protocol):
    """Runs programs as the gates of a machine do."""

    def failure(self, ctx: Context, argv: Sequence[str]) -> str:
        """Run a program, and return why it does not end with 10; empty if it does.

        It has the environment of a unit, and no capability but CAP_NET_ADMIN. It may take ten
        seconds.
        """


class RunLock(Protocol):
    """One run at a time. The kernel releases the lock when the holder's process ends.

    Handles of one lock are equal, and have one hash.
    """

    def hold(self, ctx: Context) -> AbstractContextManager[Context]:
        """Hold the lock while the `with` block runs, and return the context for the code inside.

        First wait for the lock until the context's deadline; then `LockHeldError` names the process
        that holds it. A context without a deadline waits ten minutes, so that nothing waits for
        ever. A cancelled context raises `CancelledError`.

        With the returned context, or one derived from it, the same lock is held already: `hold`
        then only waits for its turn among the tasks of this run. Any other context waits, in this
        process too.
        """

    def hold_file(self, ctx: Context, path: str) -> AbstractContextManager[object]:
        """Hold an exclusive lock (flock) on a file of `FileStore` while the `with` block runs.

        Other programs wait for it, or hold it for moments. So this waits for 15 s at most; then a
        `LockHeldError` names the file. One that cannot be opened is a `HostFileError`. The time of
        the file is that at which the last hold began: a program that reads it before and after its
        work sees whether one began meanwhile.
        """


class InstanceMetadata(Protocol):
    """The cloud's description of this virtual machine."""

    def network_interfaces(self, ctx: Context) -> object:
        """Return the decoded JSON of the cloud's network interfaces, whatever it contains.

        After an answer that may improve the request is repeated, with growing pauses, as long as
        the context and the adapter's limit allow. After that, and for an answer that is not JSON, a
        `BackendError` has the answer.
        """
