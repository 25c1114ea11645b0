"""A backend of a node whose routing changes between two readings of it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hostrouting.host import IPV4, Lookup, RouteBackend

Change = Callable[[], object]


class Meanwhile:
    """A backend that makes changes of the node before its lookups, one before each of a kind.

    The kinds are `plain`, `resolved` and `sourced`. `always` is called before every plain lookup with
    its addresses; `asked` counts these lookups.
    """

    def __init__(
        self,
        inner: RouteBackend,
        *,
        plain: Sequence[Change] = (),
        resolved: Sequence[Change] = (),
        sourced: Sequence[Change] = (),
        always: Callable[[Sequence[int]], object] | None = None,
    ) -> None:
        self._inner = inner
        self._changes: dict[str, Iterator[Change]] = {
            "plain": iter(plain),
            "resolved": iter(resolved),
            "sourced": iter(sourced),
        }
        self._always = always
        self.asked = 0
        self.readings = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def routes(self, family: int = IPV4) -> Any:
        self.readings += 1
        return self._inner.routes(family)

    def lookup(self, destinations: Sequence[int], **options: Any) -> list[Lookup]:
        kind = "resolved" if options.get("resolve") else "plain"
        if any(options.get("sources") or ()):
            kind = "sourced"
        if change := next(self._changes[kind], None):
            change()
        if kind == "plain":
            self.asked += 1
            if self._always:
                self._always(destinations)
        return self._inner.lookup(destinations, **options)
