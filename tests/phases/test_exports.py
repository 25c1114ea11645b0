import subprocess
import sys

import phases
import phases.testing


def test_exported_members() -> None:
    """The package exports exactly these names, sorted."""
    assert " ".join(phases.__all__) == (
        "CancelledError Change Clock CommandFailedError CommandResult Context DeadlineExceededError Event "
        "Group Parallel PhaseError Plan Plannable Record Report Serial Status Task TaskFailedError "
        "Transaction Undoable UnknownTaskError Wait Work cancel_on_signals execute plan run run_command task tolerate undo with_retry "
        "with_timeout"
    )
    assert phases.testing.__all__ == ["ManualClock"]


def test_import_is_light() -> None:
    """`import phases` loads neither hostrouting nor heavy modules that are not always needed."""
    heavy = "asyncio attr dataclasses datetime difflib hostrouting inspect json"
    heavy += " phases.testing pyroute2 subprocess tempfile"
    shown = f"print(*(name for name in {heavy.split()!r} if name in sys.modules))"
    assert _python(f"import sys, phases; {shown}") == _python(f"import sys; {shown}")


def _python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True
    ).stdout
