"""The history of a node: each apply, reset and sweep leaves an entry in the journal."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from hostrouting.base.commands import MESSAGE_ID
from hostrouting.base.errors import HostFileError
from hostrouting.boot.installed_config import installed_checksum
from hostrouting.host.systemd.notify import entry, send

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from hostrouting.host import FileStore


@contextmanager
def recorded(
    arguments: Namespace, files: FileStore, *, journal: str = "/run/systemd/journal/socket"
) -> Iterator[None]:
    """Record the command of the block: its user, the config before and after, and the verdict.

    The verdict is the first line of `arguments.verdict`, with the next one after a colon. Without a
    journal, or if the entry cannot be sent, nothing fails.
    """
    before = _checksum(files)
    try:
        yield
    finally:
        after = _checksum(files)
        verdict = " ".join(re.sub(r"(?s)(?<!:)\n.*", "", str(arguments.verdict)).split())
        uid = os.getuid()
        sudo_uid = os.environ.get("SUDO_UID", "")
        config = f"{before or 'none'} -> {after or 'none'}"
        by = f"{arguments.command} by uid {uid} (SUDO_UID={sudo_uid})"
        sent = entry(
            MESSAGE=f"{by}: {verdict}; installed config: {config}",
            MESSAGE_ID=MESSAGE_ID,
            PRIORITY="5",
            SYSLOG_IDENTIFIER="hostrouting",
            HOSTROUTING_COMMAND=arguments.command,
            HOSTROUTING_UID=f"{uid}",
            HOSTROUTING_SUDO_UID=sudo_uid,
            HOSTROUTING_BEFORE=before,
            HOSTROUTING_AFTER=after,
            HOSTROUTING_VERDICT=verdict,
        )
        send(journal, sent)


def _checksum(files: FileStore) -> str:
    with suppress(HostFileError):
        return installed_checksum(files)
    return ""
