"""`nox -s fuzz`: every parser and decoder against the inputs of a fuzzer; see `--help`."""

import sys
from pathlib import Path

# As tests and type checker name these modules, in any working directory; and no module here hides
# another one.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from fuzz.session import main  # noqa: E402  # only now is it found

if __name__ == "__main__":
    sys.exit(main())
