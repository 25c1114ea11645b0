"""The environment for a program whose imports a test looks at: `make coverage` would have it import
more.
"""

import os


def unmeasured() -> dict[str, str]:
    """Return the environment of this process without the settings by which Python measures its
    coverage.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
