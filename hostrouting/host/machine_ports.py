"""The rest of the machine: files, units, the service manager, the run lock and the cloud.

As in `hostrouting.host.ports`, the docstrings are the contract, and the contract suites hold an
implementation to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from hostrouting.host.units import UnitState
    from phases import Context


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

    def modified(self, path: str) -> float | None:
        """Return when a file's content last changed, in seconds since the epoch.

        Symbolic links are followed; None for an absent file.
        """

    def exposed(self, path: str) -> str | None:
        """Return why another user could change the target of `path`: an owner or a mode on the way.

        A remedy follows after a semicolon. None if only root could; in an image, below its folder,
        root and the caller. The walk ends at the first absent name. A sticky folder such as /tmp
        counts as any other: any user may create the absent name in it.
        """

    def rename(self, path: str, name: str) -> bool:
        """Give a file, link or folder another name in its folder; return False if it is absent.

        A name that is taken is refused. The new name is on the disk when this returns.
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
        known yet.
        """

    def stop(self, ctx: Context, unit: str) -> None:
        """Stop the unit, wait for it, and reset a failure; fine if it does not run or exist."""

    def state(self, ctx: Context, unit: str) -> UnitState:
        """Return the state of the unit; for a template, that of an instance that does not run."""

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
    is lost. A `status` is text for people; line breaks in it become spaces.
    """

    @property
    def seconds_between_signs(self) -> float | None:
        """The longest time between two calls of `alive`; None without a watchdog.

        The manager waits twice as long before it restarts the process.
        """

    def ready(self, status: str) -> None:
        """Signal that the start, or a reload, is done."""

    def status(self, status: str) -> None:
        """Report the present state."""

    def reloading(self) -> None:
        """Signal the begin of a reload; `ready` signals its end."""

    def alive(self) -> None:
        """Signal that the work goes on, for the watchdog."""

    def stopping(self) -> None:
        """Signal that the process is about to end."""


class RunLock(Protocol):
    """One run at a time. The kernel releases the lock when the holder's process ends."""

    def hold(self, ctx: Context) -> AbstractContextManager[Context]:
        """Hold the lock while the `with` block runs, and return the context for the code inside.

        First wait for the lock until the context's deadline; then `LockHeldError` names the process
        that holds it. A context without a deadline waits ten minutes, so that nothing waits for
        ever. A cancelled context raises `CancelledError`.

        With the returned context, or one derived from it, the same lock is held already: `hold`
        then only waits for its turn among the tasks of this run. Any other context waits, in this
        process too.
        """


class InstanceMetadata(Protocol):
    """The cloud's description of this virtual machine."""

    def network_interfaces(self, ctx: Context) -> object:
        """Return the decoded JSON of the cloud's network interfaces, whatever it contains.

        After an answer that may improve the request is repeated, with growing pauses, as long as
        the context and the adapter's limit allow. After that, and for an answer that is not JSON, a
        `BackendError` has the answer.
        """
