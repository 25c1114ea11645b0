"""What `import phases` loads."""

import sys

from support.processes import ended


def test_import_is_light() -> None:
    """`import phases` loads neither hostrouting nor heavy modules that are not always needed."""
    heavy = "asyncio attr dataclasses datetime difflib hostrouting inspect json"
    heavy += " phases.testing pyroute2 subprocess tempfile"
    shown = f"print(*(name for name in {heavy.split()!r} if name in sys.modules))"
    assert _python(f"import sys, phases; {shown}") == _python(f"import sys; {shown}")


def _python(code: str) -> str:
    return ended(sys.executable, "-I", "-c", code, check=True).stdout
