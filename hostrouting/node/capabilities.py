"""The commands of the optional capabilities; their rooms are imported when one runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from hostrouting.commands import Answer
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host

    Run = Callable[[Host, Namespace, Callable[[], HostRoutingConfig]], Answer]


class Verb(NamedTuple):
    """A command of a capability: its words, and the function that loads the code behind them."""

    name: str
    text: str
    load: Callable[[], Run]
    description: str = ""
    #: Each with its help.
    switches: Sequence[tuple[str, str]] = ()


def _sweep() -> Run:
    from hostrouting.stale_cni.command import run

    return run


def _watch() -> Run:
    from hostrouting.watch.command import run

    return run


_KEEP_RIGHT: Final = "keep the routing of an applied config right, until SIGTERM or SIGINT"
_JSON_OF_A_WATCH: Final = (
    "each line of stdout is an object: version, time (UTC), severity (info, warning, error), kind (keeps, repair, "
    "alarm, stale, trouble, over: the end of one of these three, note), subject (the route, CIDR, object or failure; "
    "null for several), text; lost is the number of lines left out while the reader "
    "stood still; the last line has ok, and error if false"
)
VERBS: Final = (
    Verb(
        "sweep",
        "remove the stale objects of azure-vnet; `reset` restores them",
        _sweep,
        switches=(
            ("--dry-run", "only show the objects that a sweep would remove"),
            ("--exit-code", "with --dry-run: exit with 4 if there is something to sweep"),
        ),
    ),
    Verb("watch", _KEEP_RIGHT, _watch, f"{_KEEP_RIGHT}; with --json, {_JSON_OF_A_WATCH}"),
)
