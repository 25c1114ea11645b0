"""The machine as our tasks see it: few methods, our own value types; the docstrings are the contract.

The contract suites in `hostrouting.testing` ask an implementation for all that is promised here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from hostrouting.host.routes import Link, Lookup, ObservedRoute, RouteChange, Rule
    from hostrouting.host.units import UnitState
    from phases import Context

__all__ = ["FileStore", "RouteBackend", "RunLock", "ServiceManager"]


class RouteBackend(Protocol):
    """The IPv4 routes of one network namespace.

    Reading needs no privilege. Every method may be called from any thread. Whatever goes wrong is a
    `BackendError`, never an error of the library or system call behind it.
    """

    def links(self) -> list[Link]:
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
        `sources` has one entry per destination: the source address that the packet already has, or None.

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

        Refusals, by errno: EEXIST an addition to an occupied place; ESRCH a removal of what is not there; ENOENT a
        replacement of what is not there; ENETUNREACH a gateway that is not on a link of that device; ENETDOWN a
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
        """Take away an empty folder; False where it is absent or holds something."""
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


class RunLock(Protocol):
    """One run at a time. The lock ends with the process that holds it, however that ends."""

    def hold(self, ctx: Context) -> AbstractContextManager[None]:
        """Hold the lock while the `with` block runs; first wait for it as long as the context allows.

        At the context's deadline `LockHeldError` names the process that holds it; a cancelled context raises
        `CancelledError`. Not reentrant: a run that holds the lock and asks again waits for itself.
        """
        ...
