"""The default backend: the kernel's own routes over rtnetlink, without a library in between.

What `apply` and `check` need is packed and parsed by hand (`route_writer`, `route_reader`): pyroute2
takes some ninety times as long to encode a route as the kernel to install it, and 145 ms to import.
"""

from __future__ import annotations

import errno
import gc
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink.commit import AnswersLostError, Failure, check_devices, commit_routes, missing_after
from hostrouting.host.netlink.conversation import BATCH, rtnetlink_socket
from hostrouting.host.netlink.kernel_socket import KernelSocket
from hostrouting.host.netlink.route_writer import RouteWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostrouting.host.netlink.commit import AnyRoute, Steps
    from hostrouting.host.netlink.route_writer import Signature
    from hostrouting.net.changes import RouteChange
    from hostrouting.net.links import Device
    from hostrouting.net.routes import Lookup, ObservedRoute
    from hostrouting.net.rules import Rule


class NetlinkBackend:
    """The routes of this process's network namespace, or of the one named `netns` (a name, or a path).

    >>> backend = NetlinkBackend()
    >>> [link.name for link in backend.links()][0]
    'lo'
    """

    def __init__(self, *, netns: str | None = None) -> None:
        self._netns = netns
        self._batch = BATCH

    def __repr__(self) -> str:
        return f"{type(self).__name__}(netns={self._netns!r})" if self._netns else f"{type(self).__name__}()"

    def links(self) -> list[Device]:
        """Every device with its addresses."""
        with self._open() as kernel:
            return kernel.links()

    def rules(self) -> list[Rule]:
        """The policy rules in the kernel's order."""
        with self._open() as kernel:
            return kernel.rules()

    def routes(self) -> list[ObservedRoute]:
        """The routes of every table."""
        with self._open() as kernel, _collector_paused():
            return kernel.routes()

    def lookup(
        self, destinations: Sequence[int], *, sources: Sequence[int | None] | None = None, resolve: bool = False
    ) -> list[Lookup]:
        """Ask which route decides each destination."""
        if sources is not None and len(sources) != len(destinations):
            raise ValueError(f"{len(sources)} sources for {len(destinations)} destinations: give one for each, or none")
        batch = self._batch
        while True:
            try:
                with self._open(batch=batch) as kernel, _collector_paused():
                    return kernel.lookup(destinations, sources, resolve=resolve)
            except AnswersLostError as error:
                if batch == 1:
                    raise BackendError("the kernel's answer to a lookup was lost", errno=errno.ENOBUFS) from error
                # Asking is free of consequences: ask again, less at a time.
                batch //= 2

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        """Make all the changes, in their order, or none of them."""
        with self._open() as kernel, _collector_paused():
            indexes = {name: index for index, name in kernel.names().items()}
            check_devices(changes, indexes)
            commit_routes(_KernelTransport(kernel, indexes), changes, verify=verify)

    @contextmanager
    def _open(self, *, batch: int | None = None) -> Iterator[KernelSocket]:
        with rtnetlink_socket(self._netns) as opened:
            yield KernelSocket(opened, batch=batch or self._batch)


class _KernelTransport:
    """The transport of a commit that sends routes to the kernel."""

    def __init__(self, kernel: KernelSocket, indexes: Mapping[str, int]) -> None:
        self._kernel = kernel
        self._indexes = indexes
        self._echoes: dict[Signature, set[int]] | None = None
        self._writer = RouteWriter(indexes)

    def send(self, steps: Steps[AnyRoute], *, will_verify: bool) -> dict[int, Failure]:
        self._echoes = {} if will_verify else None
        return self._kernel.send(steps, self._writer, self._echoes)

    def standing(self) -> list[ObservedRoute]:
        return self._kernel.routes()

    def unfulfilled(self, steps: Steps[AnyRoute]) -> dict[int, Failure]:
        """What is not in force of `steps`, which end with the last that were sent.

        Routes were sent as the kernel writes them, so what it shows of a healthy one is, byte for byte, what was
        sent, and nothing has to be parsed. Where that does not hold (a removal, a link without carrier, two changes
        of one route), the routes are read and compared by their meaning.
        """
        if self._echoes is not None and "remove" not in steps.verbs:
            table, protocol = _only(self._writer.tables), _only(self._writer.protocols)
            with suppress(FileNotFoundError):  # no such table, so nothing is there
                self._kernel.strike_seen(self._echoes, table=table, protocol=protocol)
            if not any(self._echoes.values()):
                return {}
        return missing_after(steps, self._kernel.routes())


def _only(numbers: set[int]) -> int | None:
    return next(iter(numbers)) if len(numbers) == 1 else None


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the cycle collector from walking rows by the hundred thousand, which can form no cycle, again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
