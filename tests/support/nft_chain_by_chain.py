"""An nft that lists as those before 1.0.6 do, each chain followed by its rules, whichever nft is
installed.
"""

import json
import subprocess
import sys
from typing import Any

#: How to call it.
COMMAND = (sys.executable, __file__)


def main(arguments: list[str]) -> int:
    """Run nft; reorder its JSON."""
    done = subprocess.run(["nft", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    try:
        shown = json.loads(done.stdout)["nftables"]
    except ValueError:  # words; or flags of a table, which some releases cannot put into JSON
        sys.stdout.write(done.stdout)
        return done.returncode
    chains = [one["chain"]["name"] for one in shown if "chain" in one]

    def place(one: dict[str, Any]) -> int:
        if "rule" in one:
            return chains.index(one["rule"]["chain"])
        return chains.index(one["chain"]["name"]) if "chain" in one else -1

    json.dump({"nftables": sorted(shown, key=place)}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
