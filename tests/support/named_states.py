"""The state of the node that a run logs at its end, and a check of it."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from hostrouting import HostRoutingConfig
from phases import Report

INSTALLED = "this config is installed all the same; gated units start once this is fixed"
CHANGED = "the config is changed all the same; see which units are held: hostrouting status"
INTERRUPTED = "the config is changed; the rest was interrupted"
UNDONE = "undone: the earlier config is in force, live and for the next boot"
NOTHING = "nothing is installed for the next boot"
NO_ROUTE = "this config is installed for the next boot, and the routes are as before"
KEPT = "what was installed is in force, live and for the next boot"
RESET = "the boot files are removed all the same; see which units are held: hostrouting status"
RESET_COMMITTED = "the boot files are removed all the same"
RESET_INTERRUPTED = "the boot files are removed; the rest was interrupted"
#: The routes and the files after a run, by its message: as before it, or as without a fault.
STATES = {
    INSTALLED: (None, "after"),
    CHANGED: ("after", "after"),
    INTERRUPTED: ("after", "after"),
    UNDONE: ("before", "before"),
    NOTHING: (None, "before"),
    f"undone: {NOTHING}": (None, "before"),
    NO_ROUTE: ("before", "after"),
    f"undone: {NO_ROUTE}": ("before", "after"),
    KEPT: ("before", "before"),
    f"undone: {KEPT}": ("before", "before"),
    RESET: ("after", "after"),
    RESET_COMMITTED: (None, "after"),
    RESET_INTERRUPTED: (None, "after"),
}
UNFINISHED = re.compile(r"not undone: these stay as the run left them: (.*?); ")
BACK = "not undone: the files are back"


def config(*routes: str) -> HostRoutingConfig:
    return HostRoutingConfig.from_mapping(
        {
            "staticRoutes": {"enabled": True, "routes": [{"destination": text} for text in routes]},
            "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"},
        }
    )


EARLIER = config("172.16.8.0/22")
NEW = config("172.16.8.0/21", "172.16.16.0/24")


class State(NamedTuple):
    """Our routes, and the files below /etc."""

    routes: list[str]
    files: dict[str, str]


def statements(messages: list[str]) -> list[str]:
    return [line for line in messages if line in STATES or "undo was ended" in line]


def disproved(lines: list[str], now: State, before: State, after: State) -> Iterator[str]:
    """Yield each line that names another state."""
    wanted: dict[str | None, State] = {"before": before, "after": after, None: now}
    for line in lines:
        routes, files = STATES.get(line, (None, None))
        in_force = wanted[files].files
        if line in {INSTALLED, INTERRUPTED}:
            # Files of the earlier config may be left beside it.
            in_force = in_force | {path: now.files[path] for path in now.files.keys() - in_force}
        if now.routes != wanted[routes].routes or now.files != in_force:
            yield line


def unnamed(report: Report | None, now: State, before: State, after: State) -> bool:
    """Return True if the state is not that of a run which names none.

    Then the changes of its report are those that it made.
    """
    if report is None:
        # A signal that ends a run before its first change, or after its last one.
        return now not in (before, after)
    subjects = [change.subject for change in report.changes]
    routes = after if any("proto 142" in subject for subject in subjects) else before
    files = after if any(subject.startswith("/etc/") for subject in subjects) else before
    return now != State(routes.routes, files.files)


def is_named(line: str, now: State, before: State) -> bool:
    """Return True if the state is that which a line on an undo names."""
    if line == UNDONE:
        return now == before
    if found := UNFINISHED.match(line):
        paths = now.files.keys() | before.files.keys()
        left = {path for path in paths if now.files.get(path) != before.files.get(path)}
        named = {path for path in found[1].split(", ") if path.startswith("/etc/")}
        return named == left
    if line.startswith(BACK):
        return now == before
    if line.startswith("not undone: - 172.16.8.0/22 via 10.224.0.1"):
        return now.files == before.files and now.routes != before.routes
    if line.startswith("the undo was interrupted, and went on; what stays may be: "):
        # The inverse of the routes is not that of the files.
        return now.files == before.files or now.routes == before.routes
    return line.startswith("the undo was ended; up to ")
