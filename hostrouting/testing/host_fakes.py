"""A machine in memory: its files, its systemd, its run lock, and `FakeHost`, which assembles them.

FakeHost         a `Host` made of the fakes
MemoryFiles      `tree` to arrange and inspect, `operations` as the record, `fail_at` for faults
MemoryServices   the state that systemd would derive from the unit files in that tree
MemoryLock       `holder` to let another process hold the lock
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn

from hostrouting.base.errors import BackendError, HostFileError
from hostrouting.host import Host, RouteBackend
from hostrouting.host.files.lock import ProgramLock, WaitingLock, take_at_once
from hostrouting.host.offline import offline_routes
from hostrouting.host.ports import InstanceMetadata, RunLock
from hostrouting.testing.faults import Faulty
from hostrouting.testing.memory import MemoryBackend
from hostrouting.testing.memory_events import MemoryEvents
from hostrouting.testing.memory_files import MemoryFiles
from hostrouting.testing.memory_link_layer import MemoryLinkLayer
from hostrouting.testing.memory_packets import MemoryEbtables, MemoryNftables
from hostrouting.testing.memory_services import MemoryServices
from phases import Context

#: The programs that a boot needs.
_PROGRAMS = ("bash", "ip", "flock", "nsenter", "setpriv", "python3", "nft")


class MemoryMetadata(Faulty, ports=[InstanceMetadata]):
    """The cloud's description of a fake machine: by default one interface with an IPv6 address.

    By default, `fail_at` reports that the service does not answer.

    It implements `InstanceMetadata`.

    >>> from phases import Context
    >>> metadata = MemoryMetadata()
    >>> metadata.document = []
    >>> metadata.network_interfaces(Context())
    []
    """

    def __init__(self) -> None:
        super().__init__(BackendError("the instance metadata service gave no answer"))
        #: The answer; any JSON value.
        self.document: Any = [{"ipv6": {"ipAddress": [{"privateIpAddress": "fd00:10:224::4"}]}}]
        #: The error to raise instead of every answer.
        self.error: BackendError | None = None

    def network_interfaces(self, ctx: Context) -> Any:
        """See `InstanceMetadata.network_interfaces`."""
        if self.error is not None:
            raise self.error
        return copy.deepcopy(self.document)


class MemorySupervisor:
    """The manager of a fake machine; `heard` has the assignments of each message.

    It implements `Supervisor`.

    >>> supervisor = MemorySupervisor()
    >>> supervisor.notify(READY="1", STATUS="2 routes in force")
    >>> supervisor.heard
    [{'READY': '1', 'STATUS': '2 routes in force'}]
    """

    def __init__(self) -> None:
        self.heard: list[dict[str, str]] = []
        #: Set it to let the manager wait for signs.
        self.seconds_between_signs: float | None = None

    def notify(self, **assignments: str) -> None:
        """See `Supervisor.notify`."""
        # A line is an assignment, in UTF-8.
        self.heard.append(
            {
                name: " ".join(value.split()).encode(errors="backslashreplace").decode()
                for name, value in assignments.items()
            }
        )


class MemoryLock(Faulty, WaitingLock, ports=[RunLock]):
    """A run lock of one process: its threads exclude each other, and so does `holder`, if set.

    `locked_files` are the files that are locked; a test may add those of another program. By
    default, `fail_at` reports that the lock cannot be made.

    >>> from phases import Context
    >>> lock = MemoryLock()
    >>> lock.holder = 4711
    >>> with lock.hold(Context(timeout=0)):
    ...     pass
    Traceback (most recent call last):
    phases.exceptions.DeadlineExceededError: deadline exceeded: not done within 0 s
    """

    shown = "the lock in memory"

    def __init__(self) -> None:
        super().__init__(HostFileError("cannot open the lock: Read-only file system"))
        self.resource: object = object()
        #: The process id of another run that has the lock; None if there is none.
        self.holder: int | None = None
        #: The paths of `hold_file` that are locked.
        self.locked_files: set[str] = set()
        self._lock = threading.Lock()
        self._guard = threading.Lock()

    @property
    def is_held(self) -> bool:
        """True if a run holds it now."""
        return self.holder is not None or self._lock.locked()

    def hold_file(self, ctx: Context, path: str) -> AbstractContextManager[object]:
        """See `RunLock.hold_file`."""
        return ProgramLock(path, partial(self._locked_file, path)).hold(ctx)

    @contextmanager
    def _locked_file(self, path: str) -> Iterator[bool]:
        with self._guard:
            taken = path not in self.locked_files
            self.locked_files.add(path)
        try:
            yield taken
        finally:
            if taken:
                self.locked_files.remove(path)

    def attempt(self) -> AbstractContextManager[bool]:
        """Take the lock for a `with` block, whose value is False if another run has it."""
        return take_at_once(self._lock) if self.holder is None else nullcontext(False)

    def holder_name(self) -> str:
        """Return the holder's name for messages."""
        return f"process {self.holder or os.getpid()}"


#: So a unit has the same text wherever a test runs.
_COMMAND = "/usr/bin/hostrouting"


class FakeHost(Host):
    r"""A `Host` in memory, for tests of tasks, which arrange, inspect and break its parts.

    >>> host = FakeHost()
    >>> unit = b"[Service]\nExecStart=/bin/true\n"
    >>> host.files.write("/etc/systemd/system/a.service", unit, mode=0o644)
    True
    >>> from phases import Context
    >>> host.services.start(Context(), "a.service")
    >>> host.services.started
    ['a.service']

    With `is_live=False` it is an image: it refuses questions about routes and packet rules, and
    nothing runs. With `boot=False` only its routes can be changed, as those of the host of a
    container. Its `command` is /usr/bin/hostrouting, whose file a test writes if it needs one.
    """

    routes: MemoryBackend
    files: MemoryFiles
    services: MemoryServices
    lock: MemoryLock
    link_layer: MemoryLinkLayer
    events: MemoryEvents
    nftables: MemoryNftables
    ebtables: MemoryEbtables
    metadata: MemoryMetadata
    supervisor: MemorySupervisor

    def __init__(
        self,
        routes: RouteBackend | None = None,
        *,
        is_live: bool = True,
        boot: bool = True,
        **others: NoReturn,
    ) -> None:
        if others:
            # `attrs.evolve` gives all parts of a host.
            raise TypeError(
                f"FakeHost takes routes, is_live and boot alone (got {', '.join(sorted(others))}): "
                "write FakeHost(routes), and change its parts in place"
            )
        if routes is not None and not hasattr(routes, "apply"):
            raise TypeError(f"routes must be a RouteBackend (got {routes!r}); give MemoryBackend()")
        files = MemoryFiles()
        if is_live:
            files.programs.update(f"/usr/bin/{name}" for name in _PROGRAMS)
        routes = routes or MemoryBackend()
        # Some tests take a real backend for the routes, and fakes for the rest.
        announced = routes if isinstance(routes, MemoryBackend) else MemoryBackend()
        of_a_kernel: dict[str, Any] = {
            "routes": routes,
            "link_layer": MemoryLinkLayer(announced),
            "events": announced.events,
            "nftables": MemoryNftables(),
            "ebtables": MemoryEbtables(),
            "metadata": MemoryMetadata(),
        }
        super().__init__(
            services=MemoryServices(files.tree, is_live=is_live and boot),
            files=files,
            lock=MemoryLock(),
            supervisor=MemorySupervisor(),
            is_live=is_live,
            has_boot=boot,
            command=_COMMAND,
            **(of_a_kernel if is_live else {"routes": offline_routes()}),
        )
