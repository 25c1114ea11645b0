"""The values of the service port, unit names, and the settings in the text of unit files."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

#: The target of the link that an administrator puts in place of a masked unit file or drop-in.
MASK: Final = "/dev/null"
#: Where systemd looks for system units; the first match counts.
UNIT_FOLDERS: Final = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    # For scripts in /etc/init.d.
    "/run/systemd/generator.late",
)
#: Settings that another setting also sets.
_ALSO_SET_BY = {"TimeoutStartSec": "TimeoutSec"}
#: Settings whose assignments add up, in addition to commands.
_ADDS_UP = frozenset(
    {
        "After",
        "Before",
        "Requires",
        "Wants",
        "BindsTo",
        "Upholds",
        "OnFailure",
        "RequiredBy",
        "WantedBy",
    }
)
#: Only these count as white space, and only the following end a line.
_WHITE = " \t\n\r"
_HEADER = r"""\[[^\x00-\x1f\x7f"'\\]*\]"""
_LINE_END = r"\r\n|\n\r|[\n\r\0]"
#: The units of time that make sense here; systemd also has longer ones.
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class UnitState(NamedTuple):
    """The state of a unit, as `systemctl show` prints it."""

    name: str
    #: `loaded`, `not-found`, `masked`, `bad-setting`, `error`.
    load_state: str = "not-found"
    #: `active`, `inactive`, `failed`, `activating`, `deactivating`, `reloading`.
    active_state: str = "inactive"
    sub_state: str = "dead"
    #: `success`, or the failure of the last run: `exit-code`, `timeout`, `signal`, ...
    result: str = "success"
    main_pid: int = 0
    #: The file, or a drop-in that systemd has read, has changed since. New drop-ins and links show
    #: in the two fields below.
    needs_reload: bool = False
    #: The paths of the drop-ins that systemd has read.
    drop_ins: frozenset[str] = frozenset()
    #: The units that a start of this one starts and needs, by the settings and links that systemd
    #: has read.
    requires: frozenset[str] = frozenset()
    #: True if a link starts it with another unit (`systemctl enable`).
    is_enabled: bool = False

    @property
    def exists(self) -> bool:
        """True if there is a unit of this name, even a masked or broken one."""
        return self.load_state != "not-found"

    @property
    def is_running(self) -> bool:
        """True if the unit is running; one that waits for its gate (`activating`) is not."""
        return self.active_state in {"active", "reloading"}


def instance_of(template: str, instance: str) -> str:
    """Return the name of an instance; return the name of any other unit unchanged.

    >>> instance_of("systemd-nspawn@.service", "kube1")
    'systemd-nspawn@kube1.service'
    """
    return template.replace("@.", f"@{instance}.", 1)


def template_of(unit: str) -> str | None:
    """Return the template of an instance, or None.

    >>> template_of("systemd-nspawn@kube1.service")
    'systemd-nspawn@.service'
    """
    prefix, at, rest = unit.partition("@")
    instance, _, kind = rest.rpartition(".")
    return f"{prefix}@.{kind}" if at and instance else None


def reach(unit: str, ahead_of: Callable[[frozenset[str]], Iterable[str]]) -> frozenset[str]:
    """Return every unit reachable from `unit` through `ahead_of`, transitively."""
    reached: set[str] = set()
    ring = frozenset({unit})
    while ring:
        ring = frozenset(ahead_of(ring)) - reached - {unit}
        reached |= ring
    return frozenset(reached)


def words(texts: Iterable[str], name: str) -> list[str]:
    r"""Return the words of one setting; see `settings`.

    >>> texts = ["[Service]\nExecStart=/bin/a", "[Service]\nExecStart=\nExecStart=/bin/b -c"]
    >>> words(texts, "ExecStart")
    ['/bin/b', '-c']
    >>> words(["[Unit]\nBefore=a.service", "[Unit]\nBefore=\nBefore=b.service"], "Before")
    ['a.service', 'b.service']
    """
    return settings(texts, name)[name].split()


def assignments(texts: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (path, section, key, value) of each assignment in files of systemd's format.

    A broken section header ends the parsing of its file and of all later ones.
    """
    for path, text in texts.items():
        section = ""
        for line in _joined(text):
            if line.startswith("["):
                if not re.fullmatch(_HEADER, line):
                    return
                section = line[1:-1]
            else:
                key, _, value = line.partition("=")
                yield path, section, key.strip(_WHITE), value.strip(_WHITE)


# A unit file is parsed once for each setting.
@lru_cache
def _joined(text: str) -> tuple[str, ...]:
    """Return the lines without comments; a backslash at the end continues a line."""
    lines: list[str] = []
    begun: list[str] = []
    for raw in re.split(_LINE_END, text):
        line = raw.lstrip(_WHITE)
        # Even in the middle of a continued line.
        if line.startswith(("#", ";")):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun.append(f"{line[:-1]} ")
        else:
            lines.append("".join([*begun, line]).strip(_WHITE))
            begun = []
    return (*lines, "".join(begun).strip(_WHITE))


def settings(texts: Iterable[str], *names: str) -> dict[str, str]:
    r"""Return the final text of each setting: the last assignment, or all if they add up.

    An empty assignment resets a setting, except in [Unit], where it does nothing.

    >>> text = "[Service]\nTimeoutSec=5\nExecStartPre=/a\nExecStartPre=/b"
    >>> settings([text], "TimeoutStartSec", "ExecStartPre", "User")
    {'TimeoutStartSec': '5', 'ExecStartPre': '/a\n/b', 'User': ''}
    """
    values = dict.fromkeys(names, "")
    for text in texts:
        for _, section, key, value in assignments({"": text}):
            for name in names:
                if key not in {name, _ALSO_SET_BY.get(name)}:
                    continue
                adds_up = name in _ADDS_UP or name.startswith("Exec")
                if adds_up and (value or section == "Unit"):
                    values[name] = f"{values[name]}\n{value}".strip("\n")
                else:
                    values[name] = value
    return values


def seconds(text: str) -> float:
    """Return the seconds of a duration in a unit file; infinity for invalid text.

    >>> seconds("1min 30s"), seconds("90"), seconds("500ms"), seconds("infinity")
    (90.0, 90.0, 0.5, inf)
    """
    total = 0.0
    rest = re.sub(r"\s", "", text)
    while rest:
        part = re.match(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s(?:ec)?|m(?:in)?|h|d|$)", rest)
        if part is None:
            return float("inf")
        unit = part[2] or "s"
        total += float(part[1]) * _SECONDS[unit if unit in _SECONDS else unit[0]]
        rest = rest[part.end() :]
    return total
