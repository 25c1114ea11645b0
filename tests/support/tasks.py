"""A task for tests of whatever runs tasks: it fails."""

from phases import Context


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
