"""nft and ebtables: the machine's packet rules, through their programs."""

from __future__ import annotations

import os

#: Where Debian and others install nft, ebtables and ip, and where systemd looks for programs. They
#: are not in the PATH of users, cron and su.
_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def with_sbin() -> dict[str, str]:
    """Return this process's PATH followed by the folders of administrators.

    With it, programs started through others (`ip netns exec`, `nsenter`) are found as well.
    """
    return {"PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS])}
