"""nft and ebtables: the machine's packet rules, through their programs."""

from __future__ import annotations

import os

#: Debian and others have nft, ebtables and ip there, and systemd looks there for a program without
#: a folder. The PATH of users, of cron and of su lacks these folders.
_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def with_sbin() -> dict[str, str]:
    """Return this process's PATH followed by the folders of administrators.

    With it, programs started through others (`ip netns exec`, `nsenter`) are found as well.
    """
    return {"PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS])}
