"""The ebtables backends that have tables in this kernel, and the output of the tools of each."""

import re
from pathlib import Path

_MODULES = Path("/proc/modules")
#: `.ci/kernel` loads the table; elsewhere no test does that, for it hooks itself into every bridge
#: of the machine.
BACKENDS = (
    ("nft", "legacy") if _MODULES.exists() and "ebtable_nat " in _MODULES.read_text() else ("nft",)
)

_MAC = re.compile(r"\b[0-9a-f]{1,2}(?::[0-9a-f]{1,2}){5}\b")
#: Words that the legacy tool adds to a rule, and ebtables-nft leaves out.
_IMPLIED = (" --arpreply-target DROP",)


def in_full(line: str) -> str:
    """A rule in one spelling: each tool has its own for hardware addresses, options that are
    implied, and blanks.
    """
    line = _MAC.sub(lambda found: ":".join(part.zfill(2) for part in found[0].split(":")), line)
    for words in _IMPLIED:
        line = line.replace(words, "")
    return " ".join(line.split())
