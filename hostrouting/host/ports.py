"""The machine as the tasks see it: few methods, with values of `hostrouting.net` for the network.

The docstrings are the contract, and the contract suites of `hostrouting.testing` verify that an
implementation keeps it. The first paragraph of a method says what it does, mostly with an example;
*Refusals* and *Kernel* follow if there are any. `RouteBackend` reads and changes the routing of
both families. `LinkLayer` covers neighbours, bridge stations and BPF programs. `NetworkEvents`
announces changes by other programs. `Nftables` and `Ebtables` are the packet filters. The rest of
the machine follows: files, the service manager, the run lock and the cloud.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from ipaddress import IPv4Network, IPv6Network
from typing import Protocol, TypeAlias

from hostrouting.host.files.rooted import Exposure
from hostrouting.host.packets.ebtables_rules import EbtablesRule, EbtablesSnapshot
from hostrouting.host.packets.nft import Listing
from hostrouting.host.units import UnitState
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.events import NetworkEvent
from hostrouting.net.links import Device, Neighbour, Station
from hostrouting.net.routes import Lookup, ObservedRoute, RouteChange
from hostrouting.net.rules import Rule
from phases import Context

#: A network of the standard library, which is accepted instead of its text.
Network: TypeAlias = IPv4Network | IPv6Network
#: An address on the link of a device: (device, address).
LinkAddress = tuple[str, str]


class Routing(Protocol):
    """The routing of a node, to read: a network namespace's, or that of a model.

    `family` is `IPV4` or `IPV6`, one of `families`. Reading needs no privilege. Every failure is a
    `BackendError`. On a node without IPv6, its lists of routes and rules are empty, and each lookup
    returns ENETUNREACH.
    """

    @property
    def families(self) -> tuple[int, ...]:
        """The supported families; a config with another one is refused. May be a class attribute.

        For example `families = (IPV4,)` in a backend that reads IPv4 only.
        """

    def links(self) -> list[Device]:
        """Return every network device, ordered by interface index, with all fields of `Device`.

        Addresses are of both families, whatever `families` contains. Neighbours are sorted by
        address. The loopback device is included: `backend.links()[0].name` is usually `"lo"`.
        """

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        """Return the routes of every table, including those that the kernel made.

        The result is a snapshot. Within a table it is ordered by network, prefix length (longest
        first) and metric; routes with the same key are in the kernel's order. So `10.0.0.0/24`
        precedes `10.0.0.0/16`, which precedes `10.1.0.0/16`. The next hops of an IPv6 route are
        sorted as text. A route through a device without carrier has RTNH_F_LINKDOWN in its flags, a
        next hop through a device that is down is `dead`, and attributes without a field are in
        `extra`.

        *Kernel*: cached routes are left out. A table that changes while it is read is read again.
        """

    def rules(self, family: int = IPV4) -> list[Rule]:
        """Return the policy rules in the order in which the kernel tries them.

        In a new namespace, for example, `rules()` are the lookups of the tables local, main and
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
        """Return the route that each destination uses: an answer for each, in the same order.

        The route is the one in the table, with its prefix and all its next hops, so that a check
        knows for which addresses the answer is valid. See `Lookup` for the errno of an address
        without a route. Addresses of the node itself use a `local` route through the device that
        has the address. `sources` contains the source address that each packet already has, or
        None; another number of sources than of destinations is a ValueError. With `resolve`, the
        answer is the path of one packet instead: the next hop that its hash selects (through `lo`
        for the node itself), and in `source` the address that the kernel would send from. If a rule
        selects by source, two lookups give the final answer::

            [path] = backend.lookup([destination], resolve=True)
            [final] = backend.lookup([destination], sources=[path.route.source])

        *Kernel*: the packet is sent by root (uid 0), not by this process's user. An IPv4
        packet counts as UDP, an IPv6 packet as one without protocol.
        """


class Announced(Protocol):
    """The changes of a network namespace since this object was created."""

    def take(self, names: Mapping[int, str]) -> list[NetworkEvent]:
        """Return the events since the last call, in the kernel's order; wait for pending ones.

        `names` are the names of devices by interface index, read after this object was created.

        *Refusals*: `EventsLostError` means that there were more events than it can hold, or that
        one cannot be parsed: create another object, and read everything again.
        """


class RouteBackend(Routing, Protocol):
    """The routes of one network namespace.

    Reading needs no privilege, and each call reads again. Every method may be called from any
    thread. Every failure is a `BackendError`, never an error of the library or system call
    underneath.

    A backend that cannot keep the attribute RTA_METRICS of a route, such as an MTU, declares this
    with the class attribute `keeps_metrics = False`. Then it refuses to add such a route, with the
    word `metrics` and the next step in the reason, and never installs the route without them.

    A backend that can announce changes has a method `listen() -> Announced`. With other backends, a
    check reads routes, rules and devices before and after its lookups, and compares them.
    """

    def routes_of(self, protocol: int, family: int = IPV4) -> list[ObservedRoute]:
        """Return the routes of one protocol, in the order of `routes`.

        `routes_of(142)`, for example, returns what hostrouting has installed. Reading a few routes
        of a big table is cheap.
        """

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        """Make all changes of both families, in order, or none of them.

        See `RouteChange` for the changes that come last. A removal only removes a route that
        matches its full description. So an addition and a removal are a compare-and-swap, and a
        refusal means that another program was faster::

            backend.apply([RouteChange.prepend(wanted), RouteChange.remove(present)])

        If a change is refused, the changes of the batch that succeeded are rolled back, and the
        routes are read again. With `verify` they are also read after a success, and a change that
        did not last counts as refused.

        *Refusals*: `RouteRejectedError` lists each refused change, in order, and in `left_behind`
        the differences that remain if the rollback is incomplete, such as a new position. A device
        that does not exist is a `LinkNotFoundError` before anything is sent; missing privilege is a
        `PermissionDeniedError`.

        *Kernel*: a deletion cannot express every field. So the routes are read
        first, and a removal that would remove another route is refused before anything is sent. A
        rollback overwrites nothing: removed routes return to the first or last position among those
        with their key, and added ones are removed in the form that the kernel gave them. An IPv6
        route with a gateway is restored only if no other route has its key, with all its next hops,
        so that it is never merged with another.

        *Errno of a refusal*: EEXIST if the key is taken, or the route exists; ESRCH if the route to
        remove does not exist, or the kernel would remove another one; ENETUNREACH (EHOSTUNREACH for
        IPv6) if the gateway is not on a network of the device; ENETDOWN if the device is down;
        EINVAL if the source address is not the node's; ENODEV if the device has vanished.
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

        *Kernel*: names from tcx are truncated to 15 bytes. Without privilege they are not visible,
        which is logged once.
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
        """Return the pairs (device, IPv4 address) that do not answer the kernel.

        It returns after 2.5 seconds, or as soon as all have answered. Pairs whose device is gone or
        has no carrier are left out. `silent(ctx, [("eth0", "10.224.0.1")])`, for example, is empty
        if the router answers.

        *Refusals*: it needs no privilege, but a packet filter may refuse a datagram, which is a
        `PermissionDeniedError`.

        *Kernel*: a neighbour may be marked as failed long after the address answers again. So a
        datagram to the port `discard` makes the kernel resolve each unresolved address.
        """

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """Remove neighbours that match their full description; those that have changed stay.

        `remove_neighbours([entry for entry in link_layer.neighbours() if is_stale(entry)])`, for
        example.

        *Refusals*: if one is absent or has changed, nothing is removed, and the `BackendError`
        names it. After any other failure the rest may be removed. Missing privilege is a
        `PermissionDeniedError`.
        """


class NetworkEvents(Protocol):
    """The changes of one network namespace, as the kernel announces them.

    They cover devices, and routes, addresses and rules of both families. Listening needs no
    privilege, but without CAP_NET_ADMIN a burst of some hundred events may be lost.

    The kernel does not announce routes that disappear with a device or an address, except those
    that it had added for the address; newer kernels also announce routes with the removed address
    as their source. A next hop that dies with its device, or revives, is not announced either.
    """

    def listen(
        self, ctx: Context, *, families: Sequence[int] = (IPV4, IPV6)
    ) -> AbstractContextManager[Listener]:
        """Listen during the `with` block: no announced change is missed from `__enter__` on.

        Routes, addresses and rules are those of `families`. `ctx` is notified when there is
        something to take, so a task can wait without using CPU time::

            with host.events.listen(ctx, families=(IPV4,)) as listener:
                wait(ctx, lambda: listener.has_news)
                events = listener.take()

        Several listeners are independent. A cancelled context raises `CancelledError`.
        """


class Listener(Protocol):
    """The events of one `listen`; one thread at a time may take them.

    To get an exact snapshot of the node, call `take()`, read, and call `take()` again: the snapshot
    is exact if that returns nothing. Otherwise it may or may not contain what the events describe.
    Either read again, or apply the events and ignore those that are already reflected. The latter
    may be wrong if a route replaced another, so compare everything later.
    """

    @property
    def has_news(self) -> bool:
        """True if `take` would return events or raise: `wait(ctx, lambda: listener.has_news)`."""

    def take(self) -> list[NetworkEvent]:
        """Return the events since the last call or `listen`, in the kernel's order; never wait.

        Every change that had been made before the call is among them: after `ip route add`, for
        example, the next call has the new route.

        *Refusals*: `EventsLostError` means that there were more events than the listener can hold,
        or that one cannot be parsed: read everything again. The next call returns the events after
        that error. Any other failure is a different `BackendError`: events may have been lost, and
        if listening has ended, each later call raises it again.
        """


class Nftables(Protocol):
    """The nftables ruleset of one network namespace, by table. Even reading needs CAP_NET_ADMIN.

    If nft is not installed, every method raises `ToolNotFoundError`; without privilege,
    `PermissionDeniedError`. Any other failure is a `BackendError` with nft's own message. Every
    method ends with its context.
    """

    def table(self, ctx: Context, family: str, name: str) -> Listing | None:
        """Return the objects of `nft -j list table`, chains before rules; None without the table.

        Each is an object with one key, `chain`, `rule`, ..., as in libnftables-json(5). The table
        itself is first, and the rules are last, chain by chain. `table(ctx, "ip6", "probes")[0]`,
        for example, is `{"table": {"family": "ip6", "name": "probes"}}`. Values that differ between
        calls or releases of nft are left out: handles, and comments of tables and chains; a counter
        is `{"counter": None}`.

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

    Even reading needs CAP_NET_ADMIN. Every method ends with its context.
    """

    def read(self, ctx: Context) -> EbtablesSnapshot:
        """Return every rule, chain by chain in its order, with notes on unreadable backends.

        A backend that is not installed, not supported by the kernel, or not readable is not an
        error: `notes` of the result gives the reason, and `rules` contains those of the other
        backend.
        """

    def delete(self, ctx: Context, rules: Sequence[EbtablesRule]) -> None:
        """Delete rules that match their full description, through their backend.

        `ebtables.delete(ctx, [rule for rule in reading.rules if is_stale(rule)])`, for example. Of
        identical rules the first ones are deleted.

        *Refusals*: a rule that is absent or refused is a `BackendError` with the program's own
        words. Nothing of nft's rules is deleted then; of legacy's, those before it are.
        """


# --- the rest of the machine


class FileStore(Protocol):
    """The files of one machine, or of one offline image.

    Paths are absolute and are resolved as on the target machine: in an image, a symbolic link such
    as `/etc -> /srv/etc` stays inside it. Every method may be called from any thread. Every failure
    is a `HostFileError` with the path, the action and the reason; a missing file is not an error.
    """

    def read(self, path: str, *, limit: int | None = None) -> bytes | None:
        """Return the content, following symbolic links; None for an absent file or a broken link.

        With `limit`, read and return at most that many bytes.
        """

    def write(self, path: str, content: bytes, *, mode: int) -> bool:
        """Make `path` a file with this content and mode; return True if that changed anything.

        A file that needs no change is not touched and keeps its mtime; if only the mode differs,
        only the mode changes. Otherwise the new file replaces the old one atomically and is on the
        disk when this returns: no reader, even after a loss of power, sees half of it. A symbolic
        link at `path` is replaced, never followed. Missing folders are created with mode 0755.
        Leftovers of a killed writer of this file are removed.
        """

    def link(self, path: str, target: str) -> bool:
        """Make `path` a symbolic link with the text `target`; return True if that changed anything.

        The link replaces a file or another link atomically, and is on the disk when this returns. A
        folder at `path` is refused. Missing folders are created with mode 0755.
        """

    def mode(self, path: str) -> int | None:
        """Return the permission bits of a file, following symbolic links; None if it is absent."""

    def folder_mode(self, path: str) -> int | None:
        """Return the permission bits of a folder, following symbolic links, or None."""

    def set_folder_mode(self, path: str, mode: int) -> None:
        """Give a folder these permission bits; an absent one is refused."""

    def modified(self, path: str) -> float | None:
        """Return when a file's content last changed, in seconds since the epoch.

        Symbolic links are followed; None for an absent file.
        """

    def exposed(self, path: str) -> Exposure | None:
        """Return why another user could change the target of `path`: an owner or mode on the way.

        None if only root could; in an image, root and the caller. The check ends at the first
        missing component. A sticky folder such as /tmp is like any other, because any user can
        create the missing component in it.
        """

    def remove(self, path: str) -> bool:
        """Remove the file or symbolic link; return False if it is absent. A folder is refused.

        Leftovers of a killed writer of this file are also removed.
        """

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder without temporary files; [] if it does not exist."""

    def exists(self, path: str) -> bool:
        """Return True if the path is a file, a folder, or a symbolic link, even a broken one."""

    def read_link(self, path: str) -> str | None:
        """Return the target of a symbolic link; None if the path is not a link."""

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

        A leftover is named like an unfinished file, belongs to the caller, and no living process
        writes it.
        """

    def is_locked(self, path: str) -> bool:
        """Return True if a process holds a lock on the file, by flock or fcntl.

        False for an absent file. The lock is never taken, not even for a moment, so another program
        can always take it.
        """


class ServiceManager(Protocol):
    """The systemd units of one machine, or of one offline image.

    In an image nothing is running: `daemon_reload`, `start` and `stop` only log, and no unit is
    active, so that tasks make the same calls for both. If systemd refuses, that is a `UnitError`
    with the command, its exit status and systemd's own message. Every method ends with its context,
    but a job that systemd has begun continues.

    `unit` may be a template (`systemd-nspawn@.service`) where the method's description allows it.
    """

    def daemon_reload(self, ctx: Context) -> None:
        """Make systemd read all unit files and links again."""

    def start(self, ctx: Context, unit: str, *, wait: bool = True) -> None:
        """Start the unit with its required units; wait until a oneshot has ended, a service is up.

        Refused if the unit, or one that it requires, fails or does not exist. A running unit is not
        affected. Without `wait`, return when systemd has accepted the job, before any failure is
        known. A start limit that the unit has reached is reset before.
        """

    def stop(self, ctx: Context, unit: str) -> None:
        """Stop the unit, wait for it, and reset a failure; do nothing if it is not there."""

    def state(self, ctx: Context, unit: str) -> UnitState:
        """Return the state of the unit; for a template, that of an instance that is not running."""

    def states(self, ctx: Context, *units: str) -> list[UnitState]:
        """Return the `state` of each unit, in their order, by one query."""

    def loaded(self, ctx: Context, unit: str) -> list[UnitState]:
        """Return the unit if systemd has it in memory; for a template, its instances by name.

        These are running and failed units, and some inactive ones that other units refer to.
        """

    def ordered_before(self, ctx: Context, unit: str) -> frozenset[str]:
        """Return every unit ordered after this one, or an instance of this template, transitively.

        For an image, it is derived from the unit files and links of all units that a boot would
        load.
        """

    def settings(self, ctx: Context, unit: str, *names: str) -> dict[str, str]:
        """Return the final text of settings by name, of the unit or a template's next instance.

        Drop-ins count. If the unit is absent or nothing sets it, the text is empty or systemd's
        default. Commands are one a line, each with its arguments; durations have any form that
        systemd writes.
        """


class Supervisor(Protocol):
    """The service manager that started this process and waits for its signals, if there is one.

    Every method may be called from any thread and raises nothing, because a lost notification does
    not matter.
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
        """Run a program, and return why it does not exit with 10; empty if it does.

        It has the environment of a unit, and no capability except CAP_NET_ADMIN. It may take ten
        seconds.
        """


class RunLock(Protocol):
    """One run at a time. The kernel releases the lock when the holder's process ends.

    Handles of the same lock are equal and have the same hash.
    """

    def hold(self, ctx: Context) -> AbstractContextManager[Context]:
        """Hold the lock during the `with` block, and return the context for the code inside.

        Waits for the lock until the context's deadline; then `LockHeldError` names the process that
        holds it. A context without a deadline waits ten minutes. A cancelled context raises
        `CancelledError`.

        If the context is the returned one, or derived from it, the lock is already held: `hold`
        then only waits for its turn among the tasks of this run. Any other context waits, even in
        the same process.
        """

    def hold_file(self, ctx: Context, path: str) -> AbstractContextManager[object]:
        """Hold an exclusive lock (flock) on a file of `FileStore` during the `with` block.

        Other programs wait for it or hold it briefly, so this waits at most 15 s; then a
        `LockHeldError` names the file. If it cannot be opened, that is a `HostFileError`. The mtime
        of the file is when the lock was last taken, so a program that reads it before and after its
        work can tell if that happened in between.
        """


class InstanceMetadata(Protocol):
    """The cloud's description of this virtual machine."""

    def network_interfaces(self, ctx: Context) -> object:
        """Return the decoded JSON of the cloud's network interfaces, whatever it contains.

        After a transient failure the request is repeated, with growing pauses, as long as the
        context and the adapter's limit allow. After that, or if the answer is not JSON, the answer
        is in a `BackendError`.
        """
