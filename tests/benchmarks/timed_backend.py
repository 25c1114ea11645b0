"""A backend that measures the time of the kernel and of reading its answers."""

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import Sample

from hostrouting.host.netlink import NetlinkBackend


class TimedBackend(NetlinkBackend):
    """The kernel's own, for one proof: `dump` and `lookups` add up, `asked` counts the addresses.

    It keeps its answers until `forget`, so that freeing the memory is charged to no other figure.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dump = self.lookups = Sample(0, 0)
        self.asked = 0
        self._kept: list[object] = []
        for name in ("links", "routes", "routes_of", "rules"):
            setattr(self, name, self._timed("dump", getattr(super(), name)))
        self._ask = self._timed("lookups", super().lookup)

    def forget(self) -> None:
        """Let go of all answers."""
        self._kept.clear()

    def lookup(self, destinations: Sequence[int], **options: Any) -> Any:
        self.asked += len(destinations)
        return self._ask(destinations, **options)

    def _timed(self, what: str, call: Any) -> Any:
        def timed(*values: Any, **options: Any) -> Any:
            cpu, wall = time.process_time(), time.perf_counter()
            answer = call(*values, **options)
            before: Sample = getattr(self, what)
            after = Sample(before.wall + time.perf_counter() - wall, before.cpu + time.process_time() - cpu)
            setattr(self, what, after)
            self._kept.append(answer)
            return answer

        return timed
