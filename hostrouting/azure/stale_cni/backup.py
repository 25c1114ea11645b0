"""The backup that is written before entries are removed, with a command to restore each of them.

It is a script: `sh FILE` adds every entry again. It never restores a whole table, because that
would overwrite what other programs have changed since.
"""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

from hostrouting.base.commands import quoted
from hostrouting.host.packets.ebtables_rules import EbtablesRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.azure.stale_cni.leftovers import Leftover
    from hostrouting.host import EbtablesSnapshot, FileStore, Neighbour


def restore_command(leftover: Leftover, ebtables: EbtablesSnapshot) -> str:
    """Return the command that restores a removed entry.

    >>> from hostrouting.host import EbtablesSnapshot, Neighbour
    >>> neighbour = Neighbour("10.240.0.9", "azure0", "aa:bb:cc:00:00:09", permanent=True)
    >>> restore_command(neighbour, EbtablesSnapshot(()))
    'ip neigh add 10.240.0.9 lladdr aa:bb:cc:00:00:09 nud permanent dev azure0'
    """
    if isinstance(leftover, EbtablesRule):
        words = ("-t", "nat", "-A", leftover.chain, *leftover.spec)
        return quoted(dict(ebtables.programs)[leftover.backend], *words)
    words = ("lladdr", leftover.mac, "nud", "permanent", "dev", leftover.dev)
    return quoted("ip", "neigh", "add", leftover.address, *words)


def write_backup(
    files: FileStore,
    folder: str,
    *,
    now: float,
    commands: Iterable[str],
    ebtables: EbtablesSnapshot,
    neighbours: Sequence[Neighbour],
) -> str:
    """Write a new file, which is on the disk when this returns; return its path."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    stem = f"{folder.rstrip('/')}/sweep-{moment}"
    # The name may exist if the clock was set back.
    names = (f"{stem}-{number}.sh" for number in count(1))
    path = next(name for name in names if not files.exists(name))
    parts = ["# hostrouting removed these entries; each command restores one.", *commands]
    for backend, text in ebtables.texts:
        parts += [f"# ebtables ({backend}), before:", *_commented(text)]
    parts += ["# ip neigh, before:", *_commented("\n".join(map(str, neighbours)))]
    content = "\n".join([*parts, ""]).encode(errors="surrogateescape")
    # It contains addresses of the cluster.
    files.write(path, content, mode=0o600)
    return path


def _commented(text: str) -> list[str]:
    # Not splitlines(), because only this character ends a comment.
    return [f"# {line}" for line in text.rstrip().split("\n")]
