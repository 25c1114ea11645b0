"""Tasks for tests of the runner: they note calls, or fail."""

from collections.abc import Sequence

from phases import Change, Context, Report


class RecordingTask:
    """A task that writes every call into a journal, which tasks may share."""

    def __init__(self, name: str, journal: list[str]) -> None:
        self.name = name
        self.journal = journal

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def do(self, ctx: Context) -> None:
        """Note the call, unless the context is over."""
        ctx.check()
        self.journal.append(f"do {self.name}")

    def plan(self, ctx: Context) -> Sequence[Change]:
        """Note the call; return a change with the task's name."""
        ctx.check()
        self.journal.append(f"plan {self.name}")
        return [Change("+", self.name)]

    def undo(self, ctx: Context) -> None:
        """Note the call, unless the context is over."""
        ctx.check()
        self.journal.append(f"undo {self.name}")


class FailingTask:
    """A task that raises an error: always, or so many times."""

    def __init__(self, name: str, error: BaseException, *, times: int | None = None) -> None:
        self.name = name
        self.error = error
        self.times = times
        #: How often it was done.
        self.calls: int = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def do(self, ctx: Context) -> None:
        """Raise the error, or do nothing once it was raised `times` times."""
        ctx.check()
        self.calls += 1
        if self.times is None or self.calls <= self.times:
            raise self.error


def statuses(report: Report) -> dict[str, str]:
    """Return the status of each task by its name."""
    return {each.name: each.status for each in report.walk()}
