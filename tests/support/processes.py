"""A process that a test runs to its end."""

import subprocess
from typing import Any


def ended(*words: object, check: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command; return its status and its output as text."""
    argv = [*map(str, words)]
    return subprocess.run(argv, check=check, capture_output=True, text=True, **options)
