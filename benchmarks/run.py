"""`make bench`: the costs of this library, as ratios to the kernel's own limit and to the usual
tools.

Needs root, for its network namespace. `--help` lists the options; the report explains its figures.
A slow result is no failure: the reader of the report decides, so the exit status is 0 when
everything was measured.
"""

import sys
from pathlib import Path

# As tests and type checker name these modules, in any working directory; no module here hides
# another one, and this folder's `hostrouting` does not hide the installed one.
del sys.path[0]
root = Path(__file__).resolve().parents[1]
# A few stand-ins for an image are those of the tests.
sys.path += [str(root), str(root / "tests")]

from benchmarks.session import main  # noqa: E402  # only now is it found

if __name__ == "__main__":
    sys.exit(main())
