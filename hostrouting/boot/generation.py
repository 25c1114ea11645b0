"""A generation: the scripts of all capabilities, which change together by the rename of one link.

    /etc/aks-flex-node/static-routes.sh        -> hostrouting/static-routes.sh
    /etc/aks-flex-node/check-route-overlap.sh  -> hostrouting/check-route-overlap.sh
    /etc/aks-flex-node/hostrouting             -> hostrouting-1f2e3d4c     only this link changes
    /etc/aks-flex-node/hostrouting-1f2e3d4c/   both scripts

The routes of one config next to the check of another would hold every gate under STRICT. A generation has a script of
each name, even one that is not configured, so that units of the earlier config run harmlessly with the scripts of the
later one, and the other way round.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.boot.layout import SCRIPT_DIRECTORY, BootFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostrouting.host import FileStore

__all__ = ["GENERATION_LINK", "IDLE", "LOST", "SCRIPT_MODE", "SCRIPT_PATHS", "Generation"]

#: The link that leads to the scripts in force.
GENERATION_LINK: Final = f"{SCRIPT_DIRECTORY}/hostrouting"
#: The scripts that change together, by the names in units and documents.
SCRIPT_PATHS: Final = (f"{SCRIPT_DIRECTORY}/static-routes.sh", f"{SCRIPT_DIRECTORY}/check-route-overlap.sh")
_PREFIX: Final = "hostrouting-"
SCRIPT_MODE: Final = 0o755
#: Stands for a script that is not configured.
IDLE: Final = b"#!/bin/bash\n# Installed by hostrouting: nothing is configured for this script.\nexit 0\n"
#: Replaces a configured script that was lost, until its task installs it again: no gate opens unchecked.
LOST: Final = b"""#!/bin/bash
# Installed by hostrouting in place of a script that was lost.
echo "<3>the script $0 was lost, so nothing is known of routing; run: hostrouting apply CONFIG" >&2
exit 1
"""


@attrs.frozen
class Generation:
    """Scripts by path, one for each of `SCRIPT_PATHS`.

    >>> Generation(dict.fromkeys(SCRIPT_PATHS, IDLE)).folder
    '/etc/aks-flex-node/hostrouting-a8f1d520'
    """

    scripts: Mapping[str, bytes]

    @property
    def name(self) -> str:
        """The name of the folder, derived from the content: the same scripts have the same folder."""
        checksum = 0
        for content in self.scripts.values():
            checksum = zlib.crc32(content, zlib.crc32(b"%d\n" % len(content), checksum))
        return f"{_PREFIX}{checksum:08x}"

    @property
    def folder(self) -> str:
        """The path of the folder."""
        return f"{SCRIPT_DIRECTORY}/{self.name}"

    @property
    def files(self) -> list[BootFile]:
        """The scripts with their paths in the folder."""
        return [
            BootFile(path=f"{self.folder}/{path.rpartition('/')[2]}", content=content, mode=SCRIPT_MODE)
            for path, content in self.scripts.items()
        ]


def link_to_script(path: str) -> str:
    """Return the text of the link that a script's well-known path is.

    >>> link_to_script("/etc/aks-flex-node/static-routes.sh")
    'hostrouting/static-routes.sh'
    """
    return f"{GENERATION_LINK.rpartition('/')[2]}/{path.rpartition('/')[2]}"


def scripts_in_force(files: FileStore) -> dict[str, bytes]:
    """Return the scripts of the generation in force, by path; none if there is no generation."""
    found = {path: files.read(path) for path in SCRIPT_PATHS if files.read_link(path) == link_to_script(path)}
    return {path: content for path, content in found.items() if content is not None}


def generation_folders(files: FileStore) -> list[str]:
    """Return the folders of all generations, those of killed runs included."""
    names = files.names(SCRIPT_DIRECTORY)
    return [f"{SCRIPT_DIRECTORY}/{name}" for name in names if re.fullmatch(rf"{_PREFIX}[0-9a-f]{{8}}", name)]
