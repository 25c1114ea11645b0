"""What tests share that ask the real kernel."""

from __future__ import annotations

from support.needs import needs

needs_kernel = needs("kernel")


def powerless(*capabilities: str) -> tuple[str, ...]:
    """What leads to a process with these capabilities alone. It may read every file, or it could not read our own code.

    (A checkout in /root, or in the home of the user who ran sudo, is closed to others.)
    """
    kept = "".join(f",+{capability}" for capability in ("dac_read_search", *capabilities))
    return ("setpriv", f"--bounding-set=-all{kept}", "--inh-caps=-all")
