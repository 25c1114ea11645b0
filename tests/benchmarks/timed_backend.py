"""A backend that measures the time of the kernel and of reading its answers."""

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import Sample

from hostrouting.host.netlink import NetlinkBackend


class TimedBackend(NetlinkBackend):
    """The kernel's own, for one proof: `spent` adds up, `asked` counts the addresses.

    It keeps its answers, so that the time to free them is not part of the proof.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spent = Sample(0, 0)
        self.asked = 0
        self._kept: list[object] = []
        for name in ("links", "routes", "routes_of", "rules"):
            setattr(self, name, self._timed(getattr(super(), name)))
        self._ask = self._timed(super().lookup)

    def lookup(self, destinations: Sequence[int], **options: Any) -> Any:
        self.asked += len(destinations)
        return self._ask(destinations, **options)

    def _timed(self, call: Any) -> Any:
        def timed(*values: Any, **options: Any) -> Any:
            cpu, wall = time.process_time(), time.perf_counter()
            answer = call(*values, **options)
            seconds = self.spent.wall + time.perf_counter() - wall
            self.spent = Sample(seconds, self.spent.cpu + time.process_time() - cpu)
            self._kept.append(answer)
            return answer

        return timed
