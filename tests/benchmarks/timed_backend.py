"""A backend that measures the time of the kernel and of reading its answers."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from benchmarks.measure import BenchmarkError, Sample

from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import IPV4
from hostrouting.net.changes import RouteChange
from hostrouting.net.links import Device
from hostrouting.net.routes import Lookup, ObservedRoute
from hostrouting.net.rules import Rule

T = TypeVar("T")


class TimedBackend:
    """The kernel's own, for one proof: `dump` and `lookups` add up, `asked` counts the addresses.

    It keeps its answers until `forget`, so that freeing the memory is charged to no other figure.
    """

    def __init__(self) -> None:
        self._backend = NetlinkBackend()
        self.families = self._backend.families
        self.dump = self.lookups = Sample(0, 0)
        self.asked = 0
        self._kept: list[object] = []

    def forget(self) -> None:
        """Let go of all answers."""
        self._kept.clear()

    def links(self) -> list[Device]:
        with self._timed("dump"):
            return self._keep(self._backend.links())

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        with self._timed("dump"):
            return self._keep(self._backend.routes(family))

    def routes_of(self, protocol: int, family: int = IPV4) -> list[ObservedRoute]:
        with self._timed("dump"):
            return self._keep(self._backend.routes_of(protocol, family))

    def rules(self, family: int = IPV4) -> list[Rule]:
        with self._timed("dump"):
            return self._keep(self._backend.rules(family))

    def lookup(
        self,
        destinations: Sequence[int],
        *,
        sources: Sequence[int | None] | None = None,
        resolve: bool = False,
        family: int = IPV4,
    ) -> list[Lookup]:
        self.asked += len(destinations)
        with self._timed("lookups"):
            return self._keep(self._backend.lookup(destinations, sources=sources, resolve=resolve, family=family))

    def apply(
        self, changes: Sequence[RouteChange], *, verify: bool = True, standing: Sequence[ObservedRoute] | None = None
    ) -> None:
        raise BenchmarkError(f"a proof changes nothing, but wanted {len(changes)} changes (verify={verify})")

    def _keep(self, answer: list[T]) -> list[T]:
        self._kept.append(answer)
        return answer

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        before: Sample = getattr(self, what)
        after = Sample(before.wall + time.perf_counter() - wall, before.cpu + time.process_time() - cpu)
        setattr(self, what, after)
