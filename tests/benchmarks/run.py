"""`make bench`: what this library costs, as ratios to the kernel's own limit and to what people use instead.

Needs root, for a network namespace of its own. `--help` says what can be asked for; the report explains its figures.
A slow result is no failure: whoever reads the report decides, so the exit status is 0 when everything was measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

# As tests and type checker name these modules, wherever this was started; and no module of ours hides another one.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.session import main  # noqa: E402  # only now is it found

if __name__ == "__main__":
    sys.exit(main())
