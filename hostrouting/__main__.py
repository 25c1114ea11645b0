"""`python -m hostrouting` is the command."""

from __future__ import annotations

import sys

from hostrouting.cli import main

if __name__ == "__main__":
    sys.exit(main())
