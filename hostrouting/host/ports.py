"""The machine as our tasks see it: few methods, our own value types; the docstrings are the contract.

The contract suites in `hostrouting.testing` ask an implementation for all that is promised here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from hostrouting.host.packets.ebtables_rules import EbtablesReading, EbtablesRule
    from hostrouting.host.systemd.units import UnitState
    from hostrouting.net.changes import RouteChange
    from hostrouting.net.links import Device, Neighbour, Station
    from hostrouting.net.routes import Lookup, ObservedRoute
    from hostrouting.net.rules import Rule
    from phases import Context

__all__ = [
    "Ebtables",
    "FileStore",
    "IPv6Backend",
    "InstanceMetadata",
    "LinkLayer",
    "Nftables",
    "RouteBackend",
    "RunLock",
    "ServiceManager",
]


class RouteBackend(Protocol):
    """The IPv4 routes of one network namespace.

    Reading needs no privilege. Every method may be called from any thread. Whatever goes wrong is a
    `BackendError`, never an error of the library or system call behind it.
    """

    def links(self) -> list[Device]:
        """Every network device, by interface index, each with its addresses and known neighbours (IPv4)."""
        ...

    def routes(self) -> list[ObservedRoute]:
        """The routes of every table, those that the kernel made included.

        Within a table they are ordered by network, and for one network by prefix length (longest first) and metric.
        The answer is a snapshot: a table that changed meanwhile is read again.
        """
        ...

    def rules(self) -> list[Rule]:
        """The policy rules in the order in which the kernel tries them; a fresh namespace has three."""
        ...

    def lookup(
        self, destinations: Sequence[int], *, sources: Sequence[int | None] | None = None, resolve: bool = False
    ) -> list[Lookup]:
        """Ask for each destination which route decides it; one answer per destination, in the same order.

        The answer's route is the one in the table, with all its next hops, whichever a flow would be given. A
        destination that the node itself holds is decided by a `local` route whose device is the address's owner.
        `sources` has one entry per destination: the source address that the packet already has, or None. The packet is
        one of root's (uid 0), whichever user asks.

        With `resolve` the answer is what one packet would meet instead: the one next hop that its hash picks, and in
        `source` the address that the kernel would send from. (Where a rule selects by source, ask so first, and then
        ask again with that source.)
        """
        ...

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        """Make all the changes, in their order, or none of them.

        When any change is refused, every change of the batch that did succeed is taken back and the routes are read
        again; `RouteRejectedError` names every refusal and says whether the rollback held. With `verify` the routes are
        read back after a success too, and a change that did not last counts as refused. A device that does
        not exist is a `LinkNotFoundError` before anything is sent; a lack of privilege a `PermissionDeniedError`.

        A removal takes the route of its full description and no other, and is refused where that does not stand. So
        `prepend`, then `remove`, is a compare-and-swap, and a refusal means that another program was faster: read
        again. What a deletion cannot say fits anything, see `is_deleted_by`: a route with metric 0 that is gone may be
        taken for one of its owner's that differs by its metric only. A rollback adds what was removed behind the
        others of its place, and removes what was added by its full description: it overwrites nothing.

        Refusals, by errno: EEXIST an addition to an occupied place, or of a route that stands there already; ESRCH a
        removal of what is not there; ENETUNREACH a gateway that is not on a link of that device; ENETDOWN a
        device that is down; EINVAL a source address that is not the node's; ENODEV a device that vanished meanwhile.
        """
        ...


class FileStore(Protocol):
    """The files of one machine, or of one offline image.

    Paths are absolute and mean what they mean on the target machine: in an image, a symbolic link such as
    `/etc -> /srv/etc` stays inside it. Every method may be called from any thread. Whatever goes wrong is a
    `HostFileError` that names the path, what was tried and the reason; what is merely absent is an answer, no error.
    """

    def read(self, path: str) -> bytes | None:
        """Return the content, following symbolic links; None where there is nothing, or a link to nothing."""
        ...

    def write(self, path: str, content: bytes, *, mode: int) -> bool:
        """Make `path` a file of exactly this content and these permission bits; True if that changed anything.

        A file that is right already is not touched and keeps its mtime; of one that has only the wrong mode the mode
        alone is changed. Otherwise the new file takes the place of the old one in a single step and is on the disk
        when this returns: no reader, and no machine that loses power, ever meets half of it. A symbolic link at
        `path` is replaced, never followed. Missing folders are made, with mode 0755. What a killed writer of this
        file has left beside it is taken away.
        """
        ...

    def link(self, path: str, target: str) -> bool:
        """Make `path` a symbolic link that says `target`; True if that changed anything.

        The link takes the place of a file or another link in a single step, and is on the disk when this returns. A
        folder at `path` is refused. Missing folders are made, with mode 0755.
        """
        ...

    def mode(self, path: str) -> int | None:
        """Return the permission bits of a file, following symbolic links; None where there is no file."""
        ...

    def owner(self, path: str) -> int | None:
        """Return the user id that owns what bears this name, a symbolic link itself; None where there is nothing."""
        ...

    def exposed(self, path: str) -> str | None:
        """Say why another user could change what `path` leads to: who owns, or may write to, a folder on the way.

        None where only root and the caller could. The way ends where nothing exists yet. A sticky folder such as /tmp
        counts as any other: there anybody may be the first to have a name.
        """
        ...

    def rename(self, path: str, name: str) -> bool:
        """Give what bears the name `path`, be it a folder, another one in its folder; False where there is nothing.

        A name that is taken is refused. The new one is on the disk when this returns.
        """
        ...

    def remove(self, path: str) -> bool:
        """Take away the file or symbolic link (never its target); False where there is none. A folder is refused.

        What a killed writer of this file has left beside it goes, too.
        """
        ...

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder, none if it is absent. What a writer has under way is left out."""
        ...

    def exists(self, path: str) -> bool:
        """Whether anything bears this name: a file, a folder, or a symbolic link, be its target there or not."""
        ...

    def read_link(self, path: str) -> str | None:
        """Return what the symbolic link says, as it was written; None where there is no symbolic link."""
        ...

    def remove_directory_if_empty(self, path: str) -> bool:
        """Take away an empty folder; False where it is absent, holds something, or is where something is mounted.

        What killed writers have left in it does not count, and goes.
        """
        ...

    def refuse_unwritable(self, path: str, *, size: int) -> None:
        """Raise the HostFileError that writing `size` bytes below a folder would meet now; changes nothing.

        As far as it can be known: a file system that is read-only or has no room, a folder that is not ours.
        """
        ...

    def sweep(self, path: str) -> bool:
        """Take away what killed writers have left in a folder; True if there was anything.

        Only what bears a name such as they give, belongs to the caller, and is written by no living process.
        """
        ...

    def is_locked(self, path: str) -> bool:
        """Whether some process holds a lock on the file, by flock or fcntl; False where there is no file.

        Whoever asks takes no lock, not even for a moment: a program that tries meanwhile is not turned away.
        """
        ...


class ServiceManager(Protocol):
    """The systemd units of one machine, or of one offline image.

    In an image nothing runs: there `daemon_reload`, `start` and `stop` do nothing but say so in the log, and no unit is
    active. So a task makes the same calls for both. Whatever systemd refuses is a `UnitError` that shows the command,
    its exit status and systemd's own words. Every method is bound by its context; a job that systemd has begun goes
    on when the caller gives up.

    `unit` may be a template (`systemd-nspawn@.service`) where the description says so.
    """

    def daemon_reload(self, ctx: Context) -> None:
        """Make systemd read all unit files and links again."""
        ...

    def enable(self, ctx: Context, *units: str) -> None:
        """Make the links that the [Install] sections ask for; systemd heeds them after the next `daemon_reload`.

        Units that are enabled already, and units without [Install], are fine; one that has no unit file is refused.
        """
        ...

    def disable(self, ctx: Context, *units: str) -> None:
        """Take away every link that pulls in one of the units, also of those whose unit file is gone."""
        ...

    def start(self, ctx: Context, unit: str) -> None:
        """Start the unit with all that it requires, and wait: a oneshot has run to its end, a service is up.

        Refused when the unit, or one that it requires, fails or does not exist. What runs already goes on undisturbed.
        """
        ...

    def stop(self, ctx: Context, unit: str) -> None:
        """Stop the unit, wait for it, and forget that it may have failed; fine if it does not run or exist."""
        ...

    def state(self, ctx: Context, unit: str) -> UnitState:
        """What is known about the unit; a template is answered for as an instance that does not run."""
        ...

    def running(self, ctx: Context, unit: str) -> list[UnitState]:
        """Return the unit if it is running, sorted by name all running instances if it is a template."""
        ...

    def ordered_before(self, ctx: Context, unit: str) -> frozenset[str]:
        """Return every unit that waits for this one, or for an instance of this template, directly or through others.

        Of an image, only what the unit files say by `Before=` is known.
        """
        ...

    def settings(self, ctx: Context, unit: str, *names: str) -> dict[str, str]:
        """Return what the unit, or the next instance of a template, ends up with for settings of these names.

        Drop-ins count. Where there is no such unit or nothing sets it, the text is empty or systemd's default. A
        command is a line, and holds what it runs with its arguments; durations are written in any of systemd's ways.
        """
        ...


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
        ...


class IPv6Backend(Protocol):
    """What one network namespace knows of IPv6. It only reads, and needs no privilege for that.

    Every method may be called from any thread. Whatever goes wrong is a `BackendError`.
    """

    def default_devs(self) -> tuple[str, ...]:
        """The devices of the default route in the main table that the kernel likes best, in its order, each once.

        Several where it has several next hops, or others are as good: of the same metric and router preference.
        """
        ...

    def addresses(self, dev: str) -> tuple[str, ...]:
        """The usable addresses of global scope on a device, in the kernel's order; none if there is no device.

        One that is tentative, or was found to be somebody else's (dadfailed), cannot be used.
        """
        ...

    def newest_address(self, dev: str) -> float | None:
        """The seconds since an address, be it a link-local or tentative one, was added to the device; None without any.

        The kernel adds the link-local one when the device comes up, and then asks for routers.
        """
        ...

    def leaves_by(self, address: str) -> tuple[str, ...]:
        """The devices by which a packet to the address may leave: those of all next hops of the deciding route, sorted.

        None where no route leads there, or one that blocks. For an address of the node's own it is the device
        that has it.
        """
        ...

    def classifiers(self, dev: str) -> tuple[str, ...]:
        """The names of the BPF programmes that tc or tcx runs for packets in and out of the device, sorted, each once.

        Those of tcx are cut after 15 bytes; without privilege they are not seen, and that is logged.
        """
        ...


class LinkLayer(Protocol):
    """Who is behind which device of one network namespace: neighbours, what bridges have learned, IPv6 routes.

    Reading needs no privilege. Every method may be called from any thread. Whatever goes wrong is a `BackendError`.
    """

    def devices(self) -> list[Device]:
        """Every network device, by interface index."""
        ...

    def neighbours(self) -> list[Neighbour]:
        """The neighbours of both families that have a hardware address, sorted by device and address."""
        ...

    def stations(self, bridge: str) -> list[Station]:
        """The forwarding database of a bridge, sorted; none if there is no such bridge."""
        ...

    def answering(self, ctx: Context, asked: Sequence[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Ask on the link who has an address, for each (device, address); those for which somebody answered.

        No table of this node changes. Whoever is asked for an IPv6 address may note who asked, as for any packet, in an
        entry that ages; its permanent ones stay, and an address that it is still trying out (tentative) stays its own,
        and does not answer yet. It waits up to a second, and no longer than until everybody has answered.
        On a device that is down or gone nobody answers. It needs CAP_NET_RAW: without it, a `PermissionDeniedError`.
        """
        ...

    def routes(self) -> list[ObservedRoute]:
        """The IPv6 routes of every table but the local one, sorted; a snapshot."""
        ...

    def apply(
        self, *, remove: Sequence[Neighbour | ObservedRoute] = (), add: Sequence[Neighbour | ObservedRoute] = ()
    ) -> None:
        """Make all of it happen, removals first, or nothing.

        When anything is refused (a removal of what is not there: ENOENT or ESRCH; an addition to an occupied place:
        EEXIST; a device that is gone: ENODEV; what the kernel would turn into something else: EINVAL), what succeeded
        is taken back, newest first, and all is read again; `RouteRejectedError` names every refusal and says whether
        the rollback held. What was removed and is added again is, in every detail, as it was. A lack of privilege is
        a `PermissionDeniedError`.
        """
        ...


class Nftables(Protocol):
    """The nftables ruleset of one network namespace, a table at a time. Reading it needs CAP_NET_ADMIN, too.

    Where nft is not installed every method raises `ToolNotFoundError`; without privilege a `PermissionDeniedError`.
    Whatever else goes wrong is a `BackendError` that has nft's own words. Every method is bound by its context.
    """

    def table(self, ctx: Context, family: str, name: str) -> list[dict[str, Any]] | None:
        """What `nft -j list table` shows of a table, its chains before its rules; None if there is no such table.

        Each is an object with one key, `chain`, `rule`, ..., as libnftables-json(5) has it; the table itself is
        first, and the rules are last, chain by chain. What differs from reading to reading, or between releases of nft,
        is left out: there are no handles, no comments of tables and chains, and a counter is `{"counter": None}`.

        A table that has flags (`dormant`, `owner`), which not every nft can put into JSON, is there, and that is all
        that is shown of it: `[{"table": {"family": ..., "name": ..., "unreadable": True}}]`.
        """
        ...

    def load(self, ctx: Context, ruleset: str) -> None:
        """Run an nft script in one transaction: all of it is in force, or, when it is refused, nothing of it."""
        ...

    def check(self, ctx: Context, ruleset: str) -> None:
        """Refuse what `load` would refuse; change nothing."""
        ...


class Ebtables(Protocol):
    """The rules of the ebtables table `nat` in one network namespace, of both backends: `nft` and `legacy`.

    Reading them needs CAP_NET_ADMIN, too. A backend that is not installed, that the kernel does not support, or that we
    may not read is no error but a note in the reading. Every method is bound by its context.
    """

    def read(self, ctx: Context) -> EbtablesReading:
        """Every rule, chain by chain in its order, and why what could not be seen was not."""
        ...

    def delete(
        self, ctx: Context, rules: Sequence[EbtablesRule], *, progress: Callable[[int], None] | None = None
    ) -> None:
        """Delete the rules, each by its full description, through the backend that holds it; all or none.

        Of identical rules the first go. Which ones makes a difference only to their order after `insert`, and none
        where all of them go.

        `progress` is called with the number of rules that are done, after each batch. When a rule is refused (it is not
        there any more, say), those that had been deleted are put back where they were, and the `BackendError` has the
        tool's own words, and says which could not be put back.
        """
        ...

    def insert(
        self, ctx: Context, rules: Sequence[EbtablesRule], *, progress: Callable[[int], None] | None = None
    ) -> None:
        """Put the rules into their chains at their `position`, in ascending order; at the end of a shorter chain.

        So the rules that `delete` took away stand where they stood, if nobody changed the chain meanwhile. All or none.
        """
        ...


class InstanceMetadata(Protocol):
    """What the cloud says about this virtual machine."""

    def network_interfaces(self, ctx: Context) -> object:
        """The decoded JSON of the cloud's description of the network interfaces, whatever is in it.

        An answer that may get better is asked for again, with growing pauses, as long as the context allows, and no
        longer than a limit of its own. Then, and for an answer that is no JSON, a `BackendError` says what came.
        """
        ...
