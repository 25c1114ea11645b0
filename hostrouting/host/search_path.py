"""Where administrators' programs are looked for."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["with_sbin"]

#: Where Debian and others have nft, ebtables and ip, and where systemd looks for what a unit names without a folder. A
#: user's PATH leaves these out, and so do cron's and su's.
_FOLDERS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def with_sbin() -> dict[str, str]:
    """The environment variable PATH of this process, with the folders of administrators behind its own.

    So their programs are found by us, and by what we start (`ip netns exec`, `nsenter`).
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return {"PATH": os.pathsep.join([*folders, *(folder for folder in _FOLDERS if folder not in folders)])}
